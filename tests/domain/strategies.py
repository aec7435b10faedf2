"""Random objects of the domain, drawn from the annotations of its classes: a new field is tested unasked."""

import types
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import attrs
from hypothesis import strategies as st

from warren.base.fields import LARGEST
from warren.compaction import CompactionConfig
from warren.conversation import budget, codec, events, messages, records, usage, views
from warren.conversation.options import EFFORTS, MAX_RETRIES, ModelOptions, SessionOptions, TurnOptions
from warren.conversation.peers import NAME, Peer

MODULES: Final = (messages, events, records, views, budget, usage)
UNIONS: Final = (messages.Block, messages.Message, events.Event)

# A family of four, a flag, a letter with a combining accent, a skin tone: one character to a person, many to Python.
PICTURES: Final = ("👨‍👩‍👧‍👦", "🇩🇪", "é", "👍🏽", "\u202eabc", "\x00", '"\\')

text: Final = st.text() | st.lists(st.sampled_from(PICTURES) | st.text(max_size=2), max_size=4).map("".join)
moments: Final = st.datetimes(
    timezones=st.just(UTC) | st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
)
numbers: Final = st.floats(allow_nan=False, allow_infinity=False)
leaves: Final = st.none() | st.booleans() | st.integers() | numbers | text
json_values: Final = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=8
)
SIMPLE: Final[Mapping[Any, st.SearchStrategy[Any]]] = {
    str: text,
    int: st.integers(),
    bool: st.booleans(),
    float: numbers,
    Decimal: st.decimals(0, 10**9, places=9),
    bytes: st.binary(),
    datetime: moments,
    type(None): st.none(),
    Any: json_values,
}


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a type: of the standard library, a union, or a class of the domain."""
    if hint in SIMPLE:
        return SIMPLE[hint]
    if hint in SPECIAL:
        return SPECIAL[hint]
    if attrs.has(hint):
        hints = get_type_hints(hint)
        return st.builds(hint, **{field.name: of(hints[field.name]) for field in attrs.fields(hint) if field.init})
    return _generic(get_origin(hint), get_args(hint))


def domain_classes() -> list[type]:
    """Return every public data class of the domain that the codec is asked for."""
    found = [cls for module in MODULES for cls in vars(module).values() if isinstance(cls, type) and attrs.has(cls)]
    owned = [cls for cls in found if cls.__module__ in {module.__name__ for module in MODULES}]
    hidden = {budget.Meter, budget.Use, records.EventRow, records.MessageRow, *_members()}
    return sorted({cls for cls in owned if not cls.__name__.startswith("_")} - hidden, key=lambda cls: cls.__name__)


def _members() -> set[type]:
    # What is told apart by a tag is decoded as a member of its union.
    return {cls for union in UNIONS for cls in get_args(union)}


def _generic(origin: Any, args: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(of, args))
    if origin is tuple:
        return st.lists(of(args[0]), max_size=4).map(tuple)
    if origin is Mapping:
        return st.dictionaries(text, of(args[1]), max_size=3)
    raise TypeError(f"no strategy for {origin}{args}")


def _unknown(cls: type, known: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    tags = text.filter(lambda tag: tag not in known)
    return st.builds(cls, type=tags, data=st.dictionaries(text.filter(lambda key: key != "type"), json_values))


_limits: Final = st.none() | st.integers(1, LARGEST)
_names: Final = st.from_regex(NAME, fullmatch=True)
_budget: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "max_tokens": _limits,
    "max_seconds": st.none() | st.floats(0, 1e9, exclude_min=True),
    "max_tool_calls": _limits,
    "max_steps": _limits,
}
_compaction: Final = tuple(field.name for field in attrs.fields(CompactionConfig))
_model_options: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "max_tokens": _limits,
    "temperature": st.none() | st.floats(0, 2),
    "top_p": st.none() | st.floats(0, 1, exclude_min=True),
    "effort": st.none() | st.sampled_from(EFFORTS),
    "reasoning_tokens": st.none() | st.integers(1, 2**53),
    "hosted_tools": st.none() | st.dictionaries(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), st.just({"max": 1})),
}
_said: Final = st.none() | text.filter(str.strip)
_turn_options: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    **_model_options,
    "model": _said,
    "provider": _said,
    "structured_output_retries": st.none() | st.integers(0, MAX_RETRIES),
}


def _checked(cls: type, own: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Return values of a class whose fields have bounds; those that `own` does not name are of their types."""
    hints = get_type_hints(cls)
    rest = {name: of(hints[name]) for name in attrs.fields_dict(cls) if name not in own}
    return st.builds(cls, **rest, **{name: own[name] for name in own if name in attrs.fields_dict(cls)})


SPECIAL: Final[dict[Any, st.SearchStrategy[Any]]] = {
    messages.UnknownBlock: _unknown(messages.UnknownBlock, codec.BLOCK_TYPES),
    events.UnknownEvent: _unknown(events.UnknownEvent, codec.EVENT_TYPES),
    budget.Budget: st.builds(budget.Budget, **_budget),
    Peer: st.builds(Peer, _names, st.lists(_names, max_size=3).map(tuple), keep_alive=st.booleans()),
    CompactionConfig: st.builds(CompactionConfig, **dict.fromkeys(_compaction, st.integers(1, 10**9))),
}
SPECIAL.update({cls: _checked(cls, _turn_options) for cls in (ModelOptions, TurnOptions, SessionOptions)})
