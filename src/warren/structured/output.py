"""Answers as data: the JSON schema that a caller wants one to fit, what the model is told, and whether it fits."""

import re
import sys
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
"""Bytes of a schema: it goes with every request for data."""
MAX_ANSWER: Final = 1024 * 1024
"""Characters of an answer that is checked: reading a longer one would hold the interpreter up for too long."""
QUICK_SCHEMA: Final = 256
"""Bytes of a schema that may be looked through on the event loop."""
QUICK_ANSWER: Final = 4 * 1024
"""Characters of an answer that may be checked on the event loop."""
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


class NotQuickError(Exception):
    """A check takes longer than the event loop has time for: it belongs into a thread."""


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


def checked_schema(schema: object, root: str = "$.output_schema", *, quick: bool = False) -> Mapping[str, Any]:
    """Return a copy of a schema that answers can be held against.

    That is draft 2020-12 unless `$schema` names another one. What a `$ref` names has to be inside: nothing is fetched.

    Args:
        schema: what the caller gave.
        root: the path that an error's path begins with.
        quick: do no more than the event loop has time for.

    Raises InvalidParamsError whose path begins with `root`, and NotQuickError.
    """
    if not isinstance(schema, Mapping):
        raise InvalidParamsError(f"{root}: must be an object", path=root)
    try:
        raw = codec.encode_whole(dict(schema))
        copy: Mapping[str, Any] = codec.parse(raw)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidParamsError(f"{root}: is not JSON: {_cut(str(exc))}", path=root) from None
    if len(raw) > MAX_SCHEMA:
        raise InvalidParamsError(f"{root}: must be at most {MAX_SCHEMA} bytes", path=root)
    if quick and not _is_quick(raw):
        raise NotQuickError
    try:
        _checker(raw)
    except FieldValueError as exc:
        path = root + exc.field.removeprefix("$")
        raise InvalidParamsError(f"{path}: {_cut(exc.problem)}", path=path) from None
    return copy


def fit(schema: Mapping[str, Any], answer: AssistantMessage, *, quick: bool = False) -> Fit:
    """Hold an answer's text against a schema; a fenced block in it counts alone.

    Args:
        schema: one that `checked_schema` has let through.
        answer: what the model said.
        quick: do no more than the event loop has time for.

    Raises NotQuickError.
    """
    text = answer.text
    raw = codec.encode_whole(schema)
    if quick and not (len(text) <= QUICK_ANSWER and _is_quick(raw)):
        raise NotQuickError
    if len(text) > MAX_ANSWER:
        return Fit((f"it is too long: {len(text)} characters, of at most {MAX_ANSWER}",))
    try:
        data = codec.parse(_unfenced(text))
    except ValueError as exc:
        cut = ": it was cut at the cap of an answer" if answer.stop_reason == "max_tokens" else f": {_cut(str(exc))}"
        return Fit((f"it is not JSON{cut}",))
    from warren.structured.check import TOO_MUCH, TooMuchWorkError, Work  # noqa: PLC0415 - see _checker

    try:
        problems = tuple(map(_cut, _checker(raw).problems(data, MAX_PROBLEMS, Work.of(quick=quick))))
    except TooMuchWorkError:
        if quick:
            raise NotQuickError from None
        return Fit((TOO_MUCH,))
    return Fit(problems) if problems else Fit(data=data)


def _is_quick(raw: bytes) -> bool:
    """Return whether a schema takes little time; a pattern can take long to compile, and so does the first import."""
    return len(raw) <= QUICK_SCHEMA and b"attern" not in raw and "warren.structured.check" in sys.modules


def request(schema: Mapping[str, Any]) -> UserMessage:
    """Return what asks the model for its answer as data."""
    return UserMessage(f"{INSTRUCTION} It has to fit this JSON schema:\n\n{codec.encode_whole(schema).decode()}")


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
    """Return the checker of a schema; the same schema comes with every turn of its session. Raises FieldValueError."""
    from warren.structured.check import TOO_MUCH, TooMuchWorkError, Work, checker_of  # noqa: PLC0415 - a slow import

    try:
        return checker_of(codec.parse(raw), Work.of(quick=False))
    except TooMuchWorkError:
        raise FieldValueError("$", TOO_MUCH) from None
