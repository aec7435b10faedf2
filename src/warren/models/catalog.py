"""The catalog of models: their windows, caps, prices and abilities, from `models.json` and from the configuration."""

import pkgutil
import re
from collections.abc import Mapping
from decimal import Decimal
from functools import cache, cached_property, lru_cache
from typing import Any, Final

import attrs

from warren.base.fields import fits, is_whole, not_negative, optional, positive
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.attachments import Kind
from warren.conversation.usage import Usage

MILLION: Final = 6
"""The power of ten of the tokens that a price is for."""
# `re` compiles these patterns at their first use, and keeps them.
# What a maker puts behind the name of a model to say which edition of it is meant.
_EDITION: Final = r"([-@]20\d{6}|-20\d\d-\d\d-\d\d|-latest|-0)(-v\d+:\d+)?$"
# The ids of Amazon Bedrock: a place of its inference, the vendor, the model's name, and the version of the id.
_BEDROCK: Final = r"^(?:[a-z-]+\.)?anthropic\.(claude-.+?)(?:-v\d+)?(?::\d+\w*)*$"
_price: Final = attrs.field(default=None, validator=not_negative)


@frozen(kw_only=True)
class Prices:
    """Prices in US dollars for a million tokens; None is unknown, never 0.

    They are decimal numbers, because lists of prices have those: tokens times a price are exact, and so are sums. A
    whole number of a smallest unit would need a smaller unit with the next list.

    Attributes:
        input: tokens of a request that are neither read from the prompt cache nor written to it.
        output: tokens of an answer, its reasoning included.
        cache_read: tokens of a request that are read from the prompt cache.
        cache_write_5m: tokens of a request that are written to the prompt cache, for five minutes.
        cache_write_1h: tokens of a request that are written to the prompt cache, for an hour.
    """

    input: Decimal | None = _price
    output: Decimal | None = _price
    cache_read: Decimal | None = _price
    cache_write_5m: Decimal | None = _price
    cache_write_1h: Decimal | None = _price

    def total(self, usage: Usage, *, hour: bool) -> Decimal | None:
        """Return the price of one call; None if it has tokens whose price is unknown. `hour` is the cache's time."""
        if usage.output_tokens and self.output is None:  # mostly either no price of a model is known, or all are
            return None
        read, written = usage.cache_read_tokens, usage.cache_creation_tokens
        parts = (
            (max(0, usage.input_tokens - read - written), self.input),
            (read, self.cache_read),
            (written, self.cache_write_1h if hour else self.cache_write_5m),
            (usage.output_tokens, self.output),
        )
        sum_ = Decimal()
        for tokens, price in parts:
            if tokens and price is None:
                return None
            sum_ += tokens * (price or 0)
        return sum_.scaleb(-MILLION)


PRICES: Final = tuple(attrs.fields_dict(Prices))


@frozen(kw_only=True)
class LongContext(Prices):
    """The prices of long requests.

    Attributes:
        above: tokens of a request above which they hold for the whole call.
    """

    above: int = attrs.field(validator=optional(is_whole, positive, fits))


@frozen(kw_only=True)
class ModelEntry(Prices):
    """The facts about a model; None is unknown.

    Attributes:
        provider: the name of its provider.
        window: tokens that a request may have.
        max_output: tokens that an answer may have.
        long_context: other prices of long requests; None if there are none.
        images: whether it reads images.
        files: whether it reads files such as PDF.
        audio: whether it hears sounds.
        reasoning: whether it can reason before it answers.
        tools: whether it calls tools.
        structured: whether its answers can be forced into a schema.
        source: the place of these facts: the name of a source in the table.
    """

    provider: str | None = None
    window: int | None = attrs.field(default=None, validator=optional(is_whole, positive, fits))
    max_output: int | None = attrs.field(default=None, validator=optional(is_whole, positive, fits))
    long_context: LongContext | None = None
    images: bool | None = None
    files: bool | None = None
    audio: bool | None = None
    reasoning: bool | None = None
    tools: bool | None = None
    structured: bool | None = None
    source: str | None = None

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of attachments that it is known to take. Texts go to each model, as words."""
        abilities: Mapping[Kind, bool | None] = {"image": self.images, "pdf": self.files, "audio": self.audio}
        return frozenset[Kind]({"text", *(kind for kind, able in abilities.items() if able)})

    @property
    def priced(self) -> bool:
        """Whether the prices of requests and answers are known."""
        return self.input is not None and self.output is not None

    def cost(self, usage: Usage, *, hour: bool = False) -> Decimal | None:
        """Return the cost of one call in US dollars; None if a price is unknown. `hour` is the time of the cache."""
        long = self.long_context
        return (long if long is not None and usage.input_tokens > long.above else self).total(usage, hour=hour)

    def under(self, own: "ModelEntry") -> "ModelEntry":
        """Return these facts, replaced by the known ones of `own`. Its prices replace all, if it has any."""
        given = {name: value for name in _FACTS if (value := getattr(own, name)) is not None}
        if any(name in given for name in PRICES):
            given = {**dict.fromkeys((*PRICES, "long_context")), **given}
        return attrs.evolve(self, **given)


_FACTS: Final = tuple(attrs.fields_dict(ModelEntry))
Models = Mapping[str, ModelEntry]
"""Entries by the names of models, of the configuration."""
NO_MODELS: Final[Models] = {}
UNKNOWN: Final = ModelEntry()


@cache
def _table() -> Mapping[str, Any]:
    data = pkgutil.get_data(__package__, "models.json")
    assert data is not None  # noqa: S101 - for the type checker: it is beside this module
    return codec.parse(data)  # type: ignore[no-any-return]


def known() -> Models:
    """Return the entries of the table, by name."""
    return {name: _entry(name) for name in _table()["models"]}


def listed_provider(model: str) -> str | None:
    """Return the provider of a model that the table has under exactly this name; None if it has none."""
    entry = _table()["models"].get(model)
    return None if entry is None else entry.get("provider")


@cache
def _entry(name: str) -> ModelEntry:
    return codec.from_data(ModelEntry, _table()["models"][name])


def entry_of(model: str, own: Models = NO_MODELS) -> ModelEntry:
    """Return the known facts about a model.

    The table knows the models by their names, their editions, and their ids at Bedrock and Vertex AI:
    `claude-haiku-4-5-20251001` and `us.anthropic.claude-haiku-4-5-20251001-v1:0` are `claude-haiku-4-5`.
    Of another name only the window may be known, as that of the longest known beginning; see `window_of`.

    Args:
        model: the model's name. A path before it, as in `anthropic/claude-sonnet-5`, is ignored for the table.
        own: entries that win over the table, under the exact names of models.
    """
    found = _listed(model)
    return found if model not in own else found.under(own[model])


@lru_cache(maxsize=256)  # bounded, because clients name models
def _listed(model: str) -> ModelEntry:
    """Return the facts of the table about a model."""
    name = model.rpartition("/")[2]
    name = re.sub(_BEDROCK, r"\1", name)
    models = _table()["models"]
    plain = name if name in models else re.sub(_EDITION, "", name)
    return _entry(plain) if plain in models else _family(name)


def window_of(model: str, own: Models = NO_MODELS) -> int | None:
    """Return a model's window in tokens, or None if it is unknown.

    A name that is newer than the table gets its family's smallest window: one that is too small costs a compaction,
    one that is too large a failed turn.
    """
    return entry_of(model, own).window


def _family(name: str) -> ModelEntry:
    windows = {**_table()["families"], **{each: entry["window"] for each, entry in _table()["models"].items()}}
    found = [beginning for beginning in windows if name.startswith(beginning)]
    return ModelEntry(window=windows[max(found, key=len)]) if found else UNKNOWN
