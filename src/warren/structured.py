"""Answers as data: the JSON schema that a caller wants one to fit, what the model is told, and whether it fits."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

import attrs

from warren import codec
from warren.errors import InvalidParamsError
from warren.fields import FieldValueError
from warren.messages import AssistantMessage, Message, TextBlock, UserMessage

T = TypeVar("T")
MAX_SCHEMA: Final = 32 * 1024
"""Bytes of a schema: it goes with every request for data, and is looked through on the event loop."""
MAX_RETRIES: Final = 10
RETRIES: Final = 2
"""How often an answer that does not fit is tried again, unless somebody says otherwise."""
MAX_PROBLEMS: Final = 5
MAX_PROBLEM: Final = 200
MAX_QUOTE: Final = 16 * 1024
"""Characters of an answer that are shown to the model again."""

INSTRUCTION: Final = "Give your final answer again, as JSON alone: no words around it."
CORRECTION: Final = "That does not fit the schema:"
_FENCED: Final = re.compile(r"```[\w-]*[ \t]*\n(.*?)```", re.DOTALL)


@attrs.frozen
class OutputWish:
    """What a turn's answer is brought into.

    Attributes:
        schema: the JSON schema, one that `checked_schema` has let through.
        retries: how often an answer that does not fit is tried again.
    """

    schema: Mapping[str, Any]
    retries: int = RETRIES


@attrs.frozen
class Fit:
    """An answer held against the schema: what is wrong with it, and the data where nothing is."""

    problems: tuple[str, ...] = ()
    data: Any = None


def wish_of(
    schemas: Sequence[Mapping[str, Any] | None], retries: Sequence[int | None] = (RETRIES,)
) -> OutputWish | None:
    """Return what is wished for by the first that says something of each; None where nobody has a schema."""
    schema = _first(schemas)
    if schema is None:
        return None
    often = _first(retries)
    return OutputWish(schema, RETRIES if often is None else often)


def _first(values: Iterable[T | None]) -> T | None:
    for each in values:
        if each is not None:
            return each
    return None


def checked_schema(schema: object, root: str = "$.output_schema") -> Mapping[str, Any]:
    """Return a copy of a schema that answers can be held against.

    That is draft 2020-12 unless `$schema` names another one. What a `$ref` names has to be inside: nothing is fetched.
    Raises InvalidParamsError whose path begins with `root`.
    """
    if not isinstance(schema, Mapping):
        raise InvalidParamsError(f"{root}: must be an object", path=root)
    try:
        raw = codec.encode(dict(schema))
        copy: Mapping[str, Any] = codec.parse(raw)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidParamsError(f"{root}: is not JSON: {_cut(str(exc))}", path=root) from None
    if len(raw) > MAX_SCHEMA:
        raise InvalidParamsError(f"{root}: must be at most {MAX_SCHEMA} bytes", path=root)
    try:
        _checker(raw)
    except FieldValueError as exc:
        path = root + exc.field.removeprefix("$")
        raise InvalidParamsError(f"{path}: {_cut(exc.problem)}", path=path) from None
    return copy


def fit(schema: Mapping[str, Any], answer: AssistantMessage) -> Fit:
    """Hold an answer's text against a schema; a fenced block in it counts alone."""
    text = _unfenced(answer.text)
    try:
        data = codec.parse(text)
    except ValueError as exc:
        cut = ": it was cut at the cap of an answer" if answer.stop_reason == "max_tokens" else f": {_cut(str(exc))}"
        return Fit((f"it is not JSON{cut}",))
    problems = tuple(_cut(problem) for problem in _checker(codec.encode(schema)).problems(data, MAX_PROBLEMS))
    return Fit(problems) if problems else Fit(data=data)


def request(schema: Mapping[str, Any]) -> UserMessage:
    """Return what asks the model for its answer as data."""
    return UserMessage(f"{INSTRUCTION} It has to fit this JSON schema:\n\n{codec.encode(schema).decode()}")


def correction(answer: AssistantMessage, problems: Sequence[str]) -> tuple[Message, ...]:
    """Return what asks the model once more: its own words, shortened, and what is wrong with them."""
    said = answer.text[:MAX_QUOTE].encode("utf-8", "replace").decode().strip()
    listed = "\n".join(f"- {problem}" for problem in problems)
    words = (AssistantMessage((TextBlock(said),)),) if said else ()
    return (*words, UserMessage(f"{CORRECTION}\n{listed}\n\nGive the corrected JSON alone."))


def asked_at(messages: Sequence[Message]) -> int | None:
    """Return the position of the message that asks for data, for models that play a part; None where nothing does."""
    positions = range(len(messages) - 1, -1, -1)
    for message, position in ((messages[position], position) for position in positions):
        if isinstance(message, UserMessage) and not message.content.startswith(CORRECTION):
            return position if message.content.startswith(INSTRUCTION) else None
    return None


def _unfenced(text: str) -> str:
    fenced = _FENCED.search(text)
    return (fenced[1] if fenced is not None and not text.lstrip().startswith(("{", "[", '"')) else text).strip()


def _cut(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= MAX_PROBLEM else one_line[: MAX_PROBLEM - 1] + "…"


@lru_cache(maxsize=128)
def _checker(raw: bytes) -> Any:
    """Return what holds data against a schema; the same schema comes with every turn of its session."""
    from warren.structured_check import checker_of  # noqa: PLC0415 - few turns have a schema, and its library is slow

    return checker_of(codec.parse(raw))
