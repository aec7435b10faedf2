"""Answers as data: the caller's JSON schema, the messages that ask the model for data, and the check of the data."""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

import attrs

from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, Message, TextBlock, UserMessage
from warren.conversation.options import TurnOptions

Options = TypeVar("Options", bound=TurnOptions)
MAX_SCHEMA: Final = 32 * 1024
"""Bytes of a schema, which is sent with every request for data."""
MAX_LEVELS: Final = codec.MAX_DEPTH - 20
"""Levels that the data of an answer may nest: there is room for those of the events and replies that it is part of."""
MAX_ANSWER: Final = 1024 * 1024
"""Characters of an answer that is checked. Parsing a longer one would block the interpreter for too long."""
QUICK_SCHEMA: Final = 256
"""Bytes of a schema that may be checked on the event loop."""
QUICK_ANSWER: Final = 4 * 1024
"""Characters of an answer that may be checked on the event loop."""
SCHEMA_PATH: Final = "$.output_schema"
"""How errors name the option that has a schema."""
MAX_PROBLEMS: Final = 5
MAX_PROBLEM: Final = 200
MAX_QUOTE: Final = 16 * 1024
"""Characters of an answer that are shown to the model again."""

INSTRUCTION: Final = "Give your final answer again, as JSON alone: no words around it."
CORRECTION: Final = "That does not fit the schema:"
MAX_TRIES: Final = 64
"""Places of an answer at which JSON is looked for among its words."""
_FENCED: Final = re.compile(r"```[\w-]*[ \t]*\n(.*?)```", re.DOTALL)
_THOUGHT_END: Final = "</think>"
_BEGINS: Final = ("{", "[", '"')
_IN_WORDS: Final = re.compile(r"[{[]")
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{}]', re.DOTALL)
_OPEN_TEXT: Final = "Unterminated string"
"""How the decoder tells of a text without an end, at the place where that begins."""
_DECODER: Final = json.JSONDecoder()


class NotQuickError(Exception):
    """A check could take longer than the event loop may be blocked. Run it again in a thread."""


@frozen
class Fit:
    """The result of a check: the problems of the answer, or its data if there are none."""

    problems: tuple[str, ...] = ()
    data: Any = None


def checked_options(options: Options, *, quick: bool = False) -> Options:
    """Return options with a checked copy of their schema, if they have one. Raises as `checked_schema` does."""
    if options.output_schema is None:
        return options
    return attrs.evolve(options, output_schema=checked_schema(options.output_schema, quick=quick))


def checked_schema(schema: object, root: str = SCHEMA_PATH, *, quick: bool = False) -> Mapping[str, Any]:
    """Return a checked copy of a JSON schema.

    The draft is 2020-12 unless `$schema` names another one. A `$ref` must point inside the schema: nothing is fetched.

    Args:
        schema: the caller's value.
        root: the path of the value, with which the paths in errors begin.
        quick: whether the call is on the event loop.

    Raises:
        InvalidParamsError: if the value is not a schema, or is too large or too much work to check.
        NotQuickError: if `quick`, and the check could take too long.
    """
    if not isinstance(schema, Mapping):
        raise InvalidParamsError.at(root, "must be an object")
    try:
        raw = codec.encode_whole(dict(schema))
        copy: Mapping[str, Any] = codec.parse(raw)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidParamsError.at(root, f"is not JSON: {shortened(str(exc))}") from None
    if len(raw) > MAX_SCHEMA:
        raise InvalidParamsError.at(root, f"must be at most {MAX_SCHEMA} bytes")
    if quick and not _is_quick(raw):
        raise NotQuickError
    try:
        _checker(raw)
    except FieldValueError as exc:
        raise InvalidParamsError.at(root + exc.field.removeprefix("$"), shortened(exc.problem)) from None
    return copy


def fit(schema: Mapping[str, Any], answer: AssistantMessage, *, quick: bool = False) -> Fit:
    """Find the data in an answer's text that fits a schema.

    It is the text as a whole, or the first that fits: of its fenced blocks, and then of the objects and lists among its
    words. If none fits, the problems are those of the first of them.

    Args:
        schema: a schema that `checked_schema` has returned.
        answer: the model's answer.
        quick: whether the call is on the event loop.

    Raises:
        NotQuickError: if `quick`, and the check could take too long.
    """
    text = answer.text
    raw = codec.encode_whole(schema)
    if quick and not (len(text) <= QUICK_ANSWER and _is_quick(raw)):
        raise NotQuickError
    if len(text) > MAX_ANSWER:
        return Fit((f"it is too long: {len(text)} characters, of at most {MAX_ANSWER}",))
    from warren.structured.check import TOO_MUCH, Allowance, TooMuchWorkError  # noqa: PLC0415 - see _checker

    work, first, broken = Allowance.of(quick=quick), None, ""
    try:
        for found in _values(text):
            try:
                data = codec.parse(found, levels=MAX_LEVELS)
            except ValueError as exc:
                broken = broken or shortened(str(exc))
                continue
            problems = tuple(map(shortened, _checker(raw).problems(data, MAX_PROBLEMS, work)))
            if not problems:
                return Fit(data=data)
            first = first or Fit(problems)
    except TooMuchWorkError:
        if quick:
            raise NotQuickError from None
        return Fit((TOO_MUCH,))
    if first is None:
        cut = "it was cut at the cap of an answer" if answer.stop_reason == "max_tokens" else broken
        first = Fit((f"it is not JSON: {cut}",))
    return first


def _is_quick(raw: bytes) -> bool:
    """Tell whether a schema takes little time. A pattern can take long to compile, and the first import does."""
    return len(raw) <= QUICK_SCHEMA and b"attern" not in raw and "warren.structured.check" in sys.modules


def request(schema: Mapping[str, Any]) -> UserMessage:
    """Return the message that asks the model for its answer as data."""
    return UserMessage(f"{INSTRUCTION} It has to fit this JSON schema:\n\n{codec.encode_whole(schema).decode()}")


def correction(answer: AssistantMessage, problems: Sequence[str]) -> tuple[Message, ...]:
    """Return the messages that ask the model again: its answer, shortened, and the problems of the answer."""
    quote = answer.text[:MAX_QUOTE].encode("utf-8", "replace").decode().strip()
    listed = "\n".join(f"- {problem}" for problem in problems)
    words = (AssistantMessage((TextBlock(quote),)),) if quote else ()
    return (*words, UserMessage(f"{CORRECTION}\n{listed}\n\nGive the corrected JSON alone."))


def asked_at(messages: Sequence[Message]) -> int | None:
    """Return the position of the message that asks for data; None if there is none. The echo model uses it."""
    positions = range(len(messages) - 1, -1, -1)
    for message, position in ((messages[position], position) for position in positions):
        if isinstance(message, UserMessage) and not message.content.startswith(CORRECTION):
            return position if message.content.startswith(INSTRUCTION) else None
    return None


def _values(text: str) -> Iterator[str]:
    """Yield the parts of a text that may be its data: the first one is most of the text, and may be no JSON."""
    text = text.strip()
    if not text.startswith(_BEGINS):
        text = text.rpartition(_THOUGHT_END)[2].strip()  # reasoning may have drafts of the data
    fenced = [] if text.startswith(_BEGINS) else [found[1].strip() for found in _FENCED.finditer(text)]
    yield from fenced or (text,)
    place = 0
    for _ in range(MAX_TRIES):
        if (begin := _IN_WORDS.search(text, place)) is None:
            return
        try:
            _, place = _DECODER.raw_decode(text, begin.start())
        except json.JSONDecodeError as exc:
            place = begin.end()
            if text[place : exc.pos].strip() or exc.msg.startswith(_OPEN_TEXT):
                # A value that is not whole: nothing inside it is the data, before the fault or behind it.
                place = _behind(text, begin.start())
        except RecursionError:
            return
        else:
            if (found := text[begin.start() : place]) != text:
                yield found


def _behind(text: str, start: int) -> int:
    """Return the place behind the bracket that closes the one at `start`; the end of the text if none does."""
    depth = 0
    for found in _TOKEN.finditer(text, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
        if not depth:
            return found.end()
    return len(text)


def shortened(text: str) -> str:
    """Return a problem in one line, shortened: the model and callers get it."""
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= MAX_PROBLEM else one_line[: MAX_PROBLEM - 1] + "…"


@lru_cache(maxsize=128)
def _checker(raw: bytes) -> Any:
    """Return the checker of a schema, cached for the next turns of its session. Raises FieldValueError."""
    from warren.structured.check import TOO_MUCH, Allowance, TooMuchWorkError, checker_of  # noqa: PLC0415 - a slow import

    try:
        return checker_of(codec.parse(raw), Allowance.of(quick=False))
    except TooMuchWorkError:
        raise FieldValueError("$", TOO_MUCH) from None
