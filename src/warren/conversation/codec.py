"""Objects to JSON and back. No other module of the library does this.

Input from outside is read strictly: exact types, no unknown keys, errors that name the path of the bad field. Stored
rows may have unknown keys, so that an older version can read the rows of a newer one.
"""

import gc
import re
from array import array
from base64 import b64decode, b64encode
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import cache, partial
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast, get_args, get_origin

import attrs
import cattrs
import msgspec
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from warren.base.errors import InvalidParamsError
from warren.base.fields import FORM, IN_PROCESS, LEFT_OUT, FieldValueError, text_problem
from warren.conversation import aliases, events, messages

T = TypeVar("T")
MAX_DEPTH: Final = 100
"""Levels that JSON from outside may nest. Deeper data could overflow the stack when it is written again."""
MAX_INNER_DEPTH: Final = MAX_DEPTH - 10
"""Levels of a stored message: there is room for those of the replies that it is part of."""
LARGE: Final = 64 * 1024
"""Bytes of JSON from which on pausing the garbage collector saves more than it costs."""
JSON_TYPES: Final[Mapping[type, str]] = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}
_SNAKE: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def _snake(name: str) -> str:
    return _SNAKE.sub("_", name).lower()


EVENT_TYPES: Final[Mapping[str, type]] = {
    _snake(cls.__name__): cls for cls in get_args(events.Event) if cls is not events.UnknownEvent
}
BLOCK_TYPES: Final[Mapping[str, type]] = {
    "text": messages.TextBlock,
    "reasoning": messages.ReasoningBlock,
    "tool_use": messages.ToolUseBlock,
    "hosted_tool": messages.HostedToolBlock,
    "file": messages.FileBlock,
}
ROLES: Final[Mapping[str, type]] = {
    "system": messages.SystemMessage,
    "user": messages.UserMessage,
    "context": messages.ContextMessage,
    "assistant": messages.AssistantMessage,
    "tool_results": messages.ToolResultsMessage,
}


class _BadFieldError(Exception):
    """A bad value whose path is not known yet."""


def _exactly(cls: type) -> Callable[[Any, Any], Any]:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is cls or (cls is float and type(value) is int):
            return value
        raise _BadFieldError(f"must be {JSON_TYPES[cls]}")

    return structure


def _text(value: Any, _: Any) -> str:
    if not (type(value) is str and value.isascii()) and (problem := text_problem(value)) is not None:
        raise _BadFieldError(problem)
    return cast("str", value)


def _bytes(value: Any, _: Any) -> bytes:
    """Return the bytes that JSON has in base64."""
    try:
        return b64decode(_text(value, None), validate=True)
    except ValueError:
        raise _BadFieldError("must be base64") from None


def _moment(value: Any, _: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(_text(value, None))
    except ValueError:
        raise _BadFieldError("must be an RFC 3339 time") from None
    if moment.tzinfo is None:
        raise _BadFieldError("must have a time zone")
    return moment


def _decimal(value: Any, _: Any) -> Decimal:
    """Return a decimal number, which JSON has as a text: readers would make an inexact number of a number."""
    if type(value) not in (str, int, float, Decimal):
        raise _BadFieldError("must be a decimal number")
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise _BadFieldError("must be a decimal number") from None
    if not number.is_finite():
        raise _BadFieldError("must be a finite number")
    return number


def _origin(cls: Any) -> Any:
    return get_origin(cls)


def _is_plain(cls: Any) -> bool:
    return cls is Any or (_origin(cls) in (dict, Mapping) and get_args(cls) == (str, Any))


def _as_it_is(value: Any) -> Any:
    return value


def _one_of(choices: Any) -> Callable[[Any, Any], Any]:
    allowed = get_args(choices)

    def structure(value: Any, _: Any) -> Any:
        if isinstance(value, str) and value in allowed:
            return value
        raise _BadFieldError(f"must be one of {', '.join(map(str, allowed))}")

    return structure


def _with_tag(converter: cattrs.Converter, cls: Any, tag: str, name: str) -> Callable[[Any], Any]:
    fields = _fields_of(converter, cls)
    return lambda obj: {tag: name, **fields(obj)}


def _tagged(
    converter: cattrs.Converter, union: Any, tag: str, classes: Mapping[str, type], unknown: type | None
) -> None:
    """Register a union of classes that differ by a tag. An object with another tag becomes an `unknown`, if given."""
    names = {cls: name for name, cls in classes.items()}
    # a factory, because a hook is a function that cattrs writes and compiles: no program needs all of them at its start
    converter.register_unstructure_hook_factory(
        names.__contains__, lambda cls: _with_tag(converter, cls, tag, names[cls])
    )
    if unknown is not None:
        converter.register_unstructure_hook(unknown, lambda obj: {tag: obj.type, **obj.data})
    converter.register_unstructure_hook(union, converter.unstructure)

    def factory(_: Any) -> Callable[[Any, Any], Any]:
        hooks = {name: converter.get_structure_hook(cls) for name, cls in classes.items()}

        def structure(value: Any, _: Any) -> Any:
            if not isinstance(value, dict):
                raise _BadFieldError("must be an object")
            rest = value.copy()
            name = rest.pop(tag, None)
            if isinstance(name, str) and name in hooks:
                return hooks[name](rest, classes[name])
            if isinstance(name, str) and unknown is not None:
                return unknown(name, rest)
            raise _BadFieldError(f"`{tag}` must be one of {', '.join(classes)}")

        return structure

    converter.register_structure_hook_factory(lambda candidate: candidate == union, factory)


def _guard_containers(converter: cattrs.Converter) -> None:
    """Refuse values that cattrs accepts as containers by duck typing: a string as a list, a list as an object."""

    def sequence(cls: Any) -> Callable[[Any, Any], Any]:
        item, build = get_args(cls)[0], list if _origin(cls) is list else tuple
        hook = converter.get_structure_hook(item)

        def structure(value: Any, _: Any) -> Any:
            if type(value) is not list and type(value) is not tuple:
                raise _BadFieldError("must be a list")
            try:
                return build([hook(each, item) for each in value])
            except Exception:  # noqa: BLE001 - hooks raise anything; finding the bad item costs time only in this case
                raise _bad_item(hook, item, ((f"[{index}]", each) for index, each in enumerate(value))) from None

        return structure

    def mapping(cls: Any) -> Callable[[Any, Any], Any]:
        item = get_args(cls)[1]
        hook = converter.get_structure_hook(item)

        def structure(value: Any, _: Any) -> Any:
            if not isinstance(value, dict):
                raise _BadFieldError("must be an object")
            try:
                return value if item is Any else {key: hook(each, item) for key, each in value.items()}
            except Exception:  # noqa: BLE001 - as above
                raise _bad_item(hook, item, ((f".{key}", each) for key, each in value.items())) from None

        return structure

    converter.register_structure_hook_factory(lambda cls: _origin(cls) in (tuple, list, Sequence), sequence)
    converter.register_structure_hook_factory(lambda cls: _origin(cls) in (dict, Mapping), mapping)


def _bad_item(
    hook: Callable[[Any, Any], Any], item: Any, items: Iterable[tuple[str, Any]]
) -> cattrs.BaseValidationError:
    """Return the error of the first bad item, with a note that has its step in the path."""
    for step, value in items:
        try:
            hook(value, item)
        except Exception as exc:  # noqa: BLE001 - as above
            exc.add_note(_STEP_NOTE + step)
            return cattrs.BaseValidationError("bad item", [exc], list)
    raise AssertionError("no item is bad")


_STEP_NOTE: Final = "warren step: "


def _make(*, strict: bool) -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=strict, detailed_validation=True)
    for cls in (bool, int, float):
        converter.register_structure_hook(cls, _exactly(cls))
    converter.register_structure_hook(str, _text)
    converter.register_structure_hook(datetime, _moment)
    converter.register_unstructure_hook(datetime, lambda moment: moment)
    converter.register_structure_hook(Decimal, _decimal)
    converter.register_unstructure_hook(Decimal, lambda number: format(number.normalize(), "f"))
    converter.register_structure_hook(bytes, _bytes)
    converter.register_unstructure_hook(bytes, lambda data: b64encode(data).decode())
    converter.register_structure_hook(Path, lambda value, _: Path(_text(value, None)))
    converter.register_unstructure_hook(Path, str)
    converter.register_structure_hook_factory(lambda cls: _origin(cls) is Literal, _one_of)
    # plain data is left to msgspec, which walks it many times faster than hooks would
    converter.register_unstructure_hook_factory(_is_plain, lambda _: _as_it_is)
    _guard_containers(converter)
    _structure_objects(converter, strict=strict)
    _tagged(converter, messages.Block, "type", BLOCK_TYPES, messages.UnknownBlock)
    _tagged(converter, messages.Message, "role", ROLES, None)
    _tagged(converter, events.Event, "type", EVENT_TYPES, events.UnknownEvent)
    return converter


def _structure_objects(converter: cattrs.Converter, *, strict: bool) -> None:
    def factory(cls: Any) -> Callable[[Any, Any], Any]:
        overrides = {**_overrides(cls), **_of_callers(converter, cls)}
        # cattrs wants to know the parameters of generic classes; none of those is the type of a field in JSON
        whole_type = cls[(Any,) * len(cls.__parameters__)] if getattr(cls, "__parameters__", ()) else cls
        inner = make_dict_structure_fn(whole_type, converter, _cattrs_forbid_extra_keys=strict, **overrides)

        def structure(value: Any, hint: Any) -> Any:
            if not isinstance(value, dict):
                raise _BadFieldError("must be an object")
            return inner(value, hint)

        return structure

    converter.register_structure_hook_factory(attrs.has, factory)
    converter.register_unstructure_hook_factory(attrs.has, lambda cls: _fields_of(converter, cls))


def _of_callers(converter: cattrs.Converter, cls: Any) -> dict[str, Any]:
    """Return the settings of the fields of a class to which callers in the same process may give more than others."""
    found = {}
    for field in attrs.fields(cls):
        if field.metadata.keys() >= IN_PROCESS.keys():
            found[field.name] = override(omit=True)
        elif (form := field.metadata.get(FORM)) is not None:
            found[field.name] = override(struct_hook=partial(_in_form, converter, form))
    return found


def _in_form(converter: cattrs.Converter, form: Any, value: Any, _: Any) -> Any:
    return converter.structure(value, form)


def _fields_of(converter: cattrs.Converter, cls: Any) -> Callable[[Any], Any]:
    """Return the function that turns an object into a dict of its fields."""
    return make_dict_unstructure_fn(cls, converter, _cattrs_omit_if_default=whole(cls) is None, **_overrides(cls))


def _overrides(cls: Any) -> dict[str, Any]:
    """Return the settings of the fields that are not treated as most fields of their class."""
    optional, renamed = whole(cls) or (), _wire_names(cls)
    return {
        name: override(omit_if_default=True if name in optional else None, rename=renamed.get(name))
        for name in {*optional, *renamed}
    }


_strict: Final = _make(strict=True)


@cache
def _stored() -> cattrs.Converter:
    """Return the converter for stored rows; a program that reads none does not make it."""
    return _make(strict=False)


def _plain(value: Any) -> Any:
    """Return plain data for a value that msgspec cannot encode. Raises TypeError."""
    data = _strict.unstructure(value)
    if data is value and hasattr(value, "__pydantic_core_schema__"):
        return value.model_dump(mode="json")
    if data is value:
        raise TypeError(f"an object of the type {type(value).__name__} has no form in JSON")
    return data


encode_whole: Final = msgspec.json.Encoder(enc_hook=_plain).encode
"""Returns the JSON of plain data and attrs objects with all their fields, in half the time of `encode`.

Use it for rows that `decode_stored` reads. Trap: it adds no tags, so events, messages and blocks need `encode`.
"""
_decode: Final = msgspec.json.Decoder().decode


def row_encoder(cls: type, *without: str) -> Callable[[Any], bytes]:
    """Return a function that encodes objects of a class as `encode_whole` does, without their fields at defaults.

    A default is told by identity: one that is another object is encoded, which does no harm.

    Args:
        cls: the class.
        without: names of fields that the row has elsewhere.
    """
    fields = [each for each in attrs.fields(cls) if each.name not in without]
    values = attrgetter(*(each.name for each in fields))
    forms = [(each.name, Any) if each.default is attrs.NOTHING else (each.name, Any, each.default) for each in fields]
    row = msgspec.defstruct(f"{cls.__name__}Row", forms, omit_defaults=True)
    return lambda obj: encode_whole(row(*values(obj)))


def wire_name(cls: type, field: str) -> str:
    """Return the name in JSON of a field of a class."""
    return _wire_names(cls).get(field, field)


def _wire_names(cls: type) -> Mapping[str, str]:
    return cast(Mapping[str, str], getattr(cls, "WIRE_NAMES", {}))


def whole(cls: type) -> Collection[str] | None:
    """Return the optional fields of a class whose other fields callers always get; None for any other class.

    Such a view has the class variable WHOLE. Its other fields are encoded at their defaults, too.
    """
    if not getattr(cls, "WHOLE", False):
        return None
    return {field.name for field in attrs.fields(cls) if field.metadata == LEFT_OUT}


def encode(value: object) -> bytes:
    """Return the JSON of a domain object or plain data, in UTF-8, without the fields at their defaults; see `whole`."""
    return encode_whole(_strict.unstructure(value))


def encode_event(envelope: events.Envelope) -> bytes:
    """Return the JSON of the event in an envelope, as `encode` does. It is made once for each envelope."""
    encoded = envelope.encoded
    if encoded is None:
        event = envelope.event
        encoded = event_encoders[type(event)](event)
        object.__setattr__(envelope, "encoded", encoded)  # two threads may do it at once: the bytes are the same
    return encoded


class _EventEncoders(dict[type, Callable[[Any], bytes]]):
    """The functions that encode events, by class; each is made when it is first needed.

    msgspec takes an event with one plain field as it is, in half the time; it has an order of its own for several.
    """

    def __missing__(self, cls: type) -> Callable[[Any], bytes]:
        made: Callable[[Any], bytes]
        fields = attrs.fields(cls)
        if len(fields) == 1 and fields[0].default is attrs.NOTHING and fields[0].type in JSON_TYPES:
            (name,) = (name for name, each in EVENT_TYPES.items() if each is cls)
            head = b'{"type":"%s",' % name.encode()

            def made(event: Any) -> bytes:
                return head + encode_whole(event)[1:]
        else:
            hook = _strict.get_unstructure_hook(cls)

            def made(event: Any) -> bytes:
                return encode_whole(hook(event))

        self[cls] = made
        return made


event_encoders: Final = _EventEncoders()
"""Functions that return the JSON of an event that is in no envelope, as `encode` does, by its class."""


def encode_envelope(envelope: events.Envelope) -> bytes:
    """Return the JSON of an envelope, as `encode` does, around the JSON of its event, which is made only once."""
    event = msgspec.Raw(envelope.encoded or encode_event(envelope))
    return encode_whole(_EnvelopeForm(envelope.session_id, envelope.seq, envelope.timestamp, event, envelope.first_seq))


class _EnvelopeForm(msgspec.Struct, omit_defaults=True):
    session_id: str
    seq: int
    timestamp: datetime
    event: msgspec.Raw
    first_seq: int | None = None


def encode_in_pieces(value: object) -> bytes:
    """Return the same as `encode`. Call it in a thread for a large value: other threads run between the pieces."""
    return b"".join(_pieces(_strict.unstructure(value), _PIECES_BELOW))


_PIECES_BELOW: Final = 3
"""Levels whose items are encoded one by one: a reply, its result, and the list in the result."""


def _pieces(data: Any, levels: int) -> Iterator[bytes]:
    if levels and isinstance(data, dict) and data:
        for index, (name, each) in enumerate(data.items()):
            yield (b"," if index else b"{") + encode_whole(name) + b":"
            yield from _pieces(each, levels - 1)
        yield b"}"
    elif levels and isinstance(data, list) and data:
        for index, each in enumerate(data):
            yield b"," if index else b"["
            yield from _pieces(each, levels - 1)
        yield b"]"
    else:
        yield encode_whole(data)


def to_data(value: object) -> Any:
    """Return a domain object as plain data (dict, list, str, …, datetime)."""
    return _strict.unstructure(value)


def parse(raw: bytes | str, *, levels: int = MAX_DEPTH) -> Any:
    """Return the data of a JSON text. Raises ValueError if it is not JSON in UTF-8, or nests deeper than `levels`."""
    try:
        data = _decode_large(raw) if len(raw) > LARGE else _decode(raw)
    except RecursionError:
        raise _too_deep(levels) from None
    except (msgspec.MsgspecError, UnicodeError) as exc:
        raise ValueError(str(exc)) from exc
    if is_deep(raw, levels):
        raise _too_deep(levels)
    return data


def parse_file(raw: bytes) -> Any:
    """Return the data of a file as `parse`. A byte order mark at its beginning is skipped: many editors write one."""
    return parse(raw.removeprefix(BOM_UTF8))


def parser_of(form: type[T], mark: bytes) -> Callable[[bytes], T | None]:
    """Return a function that parses JSON texts into a msgspec struct, and skips members that it does not name.

    It takes a fraction of the time of `parse` and of looking the members up. It returns None for a text without the
    mark, and for one that is no JSON in UTF-8 or does not have the form.

    Trap: the depth of members of the type Any is not bounded as by `parse`.
    """
    decode = msgspec.json.Decoder(form).decode

    def parsed(raw: bytes) -> T | None:
        if raw.find(mark) < 0:  # `in` first makes an error that it is no number
            return None
        try:
            return decode(raw)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None

    return parsed


def _decode_large(raw: bytes | str) -> Any:
    """Decode with the garbage collector paused: each new list could start a collection over the whole heap."""
    paused = gc.isenabled()
    gc.disable()
    try:
        return _decode(raw)
    finally:
        if paused:
            gc.enable()


def _too_deep(levels: int) -> ValueError:
    return ValueError(f"nests deeper than {levels} levels")


def is_deep(raw: bytes | str, levels: int) -> bool:
    """Return whether a text that is JSON nests deeper than `levels`."""
    return len(raw) > 2 * levels and _may_be_deep(raw, levels) and _is_deep(raw, levels)


def _may_be_deep(raw: bytes | str, levels: int) -> bool:
    """Tell whether a text has enough brackets to be too deep, without parsing it."""
    opening = raw.count("[") + raw.count("{") if isinstance(raw, str) else raw.count(b"[") + raw.count(b"{")
    return opening > levels


def _is_deep(raw: bytes | str, levels: int) -> bool:
    """Tell whether a JSON text nests too deep. It counts brackets, as a walk over millions of lists takes seconds."""
    data = raw.encode() if isinstance(raw, str) else raw
    outside = data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    brackets = b"".join(outside).translate(_SIGNS, _NO_BRACKETS)
    inner = brackets.replace(_PAIR, b"")  # drops the innermost level, which has most of the brackets
    return max(accumulate(array("b", inner)), default=0) + (len(inner) < len(brackets)) > levels


_SIGNS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One level down and one level up, as signed bytes."""
_PAIR: Final = b"\x01\xff"
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def weight(value: Any) -> int:
    """Return about how many bytes a value has as JSON: those of its texts, and a few for all else."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(weight(name) + weight(each) for name, each in value.items())
    if isinstance(value, list | tuple):
        return sum(map(weight, value))
    if attrs.has(type(value)):
        return sum(weight(getattr(value, field.name)) for field in attrs.fields(type(value)))
    return 8


def from_data(cls: type[T], data: Any, *, root: str = "$") -> T:
    """Build an object from data from outside.

    A class may have a mapping `ALIASES`, from other names of its fields to their paths, see `aliases`.

    Args:
        cls: the class, or another type such as `int`.
        data: the plain data.
        root: the path of the data, with which the paths in errors begin.

    Raises:
        InvalidParamsError: if a field is bad; the path is that of the first one, as in `$.budget.max_tokens`.
    """
    try:
        return _strict.structure(data, cls)
    except Exception as exc:  # noqa: BLE001 - cattrs raises groups and the errors of hooks; all of them mean bad input
        paths: Mapping[str, str] = getattr(cls, "ALIASES", {})
        if paths and isinstance(data, dict) and not paths.keys().isdisjoint(data):
            return _without_aliases(cls, data, paths, root)
        path, problem = _locate(exc, root)
        raise InvalidParamsError.at(path, problem) from None


def _without_aliases(cls: type[T], data: Mapping[str, Any], paths: Mapping[str, str], root: str) -> T:
    try:
        return _strict.structure(aliases.resolved(data, paths), cls)
    except Exception as exc:  # noqa: BLE001 - as above
        path, problem = _locate(exc, root)
        path = f"{root}.{aliases.given_as(path.removeprefix(f'{root}.'), data, paths)}"
        raise InvalidParamsError.at(path, problem) from None


def text_of(value: object) -> str:
    """Return a text as it is, and any other value as JSON: the result of a tool, for the model."""
    return value if isinstance(value, str) else encode(value).decode()


def from_server(cls: type[T], data: Any) -> T:
    """Build an object from a server's answer, and ignore fields of newer versions. Raises ValueError if it is bad."""
    try:
        return _stored().structure(data, cls)
    except Exception as exc:
        path, problem = _locate(exc, "$")
        raise ValueError(f"the server's answer: {path}: {problem}") from exc


def decode_stored(cls: Any, raw: bytes | str) -> Any:
    """Build an object from a stored row, and ignore keys of newer versions. Raises ValueError if the row is damaged."""
    try:
        return _stored().structure(_decode(raw), cls)
    except Exception as exc:
        path, problem = _locate(exc, "$")
        raise ValueError(f"damaged row: {path}: {problem}") from exc


SYSTEM: Final = b'{"role":"system",'
"""The beginning of the rows of instructions."""
_DATA: Final = "structured_output"
WITH_DATA: Final = b'{"role":"assistant","structured_output":'
"""The beginning of the rows of answers that have data: a look at it costs less than a search for the member."""


def encode_message(message: messages.Message) -> bytes:
    """Return the row of a message, as `encode` does; an answer's data comes first, so the row begins as `WITH_DATA`."""
    if isinstance(message, messages.UserMessage) and not (message.attachments or message.steered):
        return encode_whole(_PromptRow(message.content))
    if isinstance(message, messages.AssistantMessage):
        if message.structured_output is not None:
            data = _strict.unstructure(message)
            return encode_whole({"role": data["role"], _DATA: data[_DATA], **data})
        texts = [
            _TextRow(block.text)
            for block in message.blocks
            if isinstance(block, messages.TextBlock) and block.metadata is None
        ]
        if len(texts) == len(message.blocks):
            return encode_whole(_AnswerRow(texts, message.stop_reason))
    return encode(message)


def decode_message(raw: bytes | str) -> messages.Message:
    """Build a message from its stored row. Raises ValueError if the row is damaged."""
    try:
        row = _decode_text(raw)
    except (msgspec.MsgspecError, UnicodeError):
        return decode_stored(messages.Message, raw)  # type: ignore[no-any-return]
    if isinstance(row, _PromptRow):
        return messages.UserMessage(row.content)
    return messages.AssistantMessage(tuple([messages.TextBlock(block.text) for block in row.blocks]), row.stop_reason)


# The rows of prompts and of answers that are text alone. Conversations mostly consist of them, and built from structs
# they take a third of the time.
class _PromptRow(msgspec.Struct, tag_field="role", tag="user", forbid_unknown_fields=True):
    content: str


class _TextRow(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    text: str


class _AnswerRow(msgspec.Struct, tag_field="role", tag="assistant", forbid_unknown_fields=True, omit_defaults=True):
    blocks: list[_TextRow]
    stop_reason: messages.StopReason = "end_turn"


_decode_text: Final[Callable[[bytes | str], _PromptRow | _AnswerRow]] = msgspec.json.Decoder(
    _PromptRow | _AnswerRow
).decode


def decode_event(raw: bytes | str) -> events.Event:
    """Build an event from its stored row. An unknown type gives an UnknownEvent. Raises ValueError if damaged."""
    return decode_stored(events.Event, raw)  # type: ignore[no-any-return]


def _locate(exc: BaseException, path: str) -> tuple[str, str]:
    """Return the path and the problem of the first bad field inside a validation error."""
    if isinstance(exc, cattrs.BaseValidationError):
        inner = exc.exceptions[0]
        return _locate(inner, path + _step(inner))
    if isinstance(exc, cattrs.ForbiddenExtraKeysError):
        return f"{path}.{min(exc.extra_fields)}", "is not a known field"
    if isinstance(exc, FieldValueError):
        return f"{path}.{exc.field}", exc.problem
    if isinstance(exc, KeyError):
        return path, "is required"
    if isinstance(exc, _BadFieldError | ValueError):
        return path, str(exc)
    return path, "has the wrong type"


def _step(exc: BaseException) -> str:
    """Return the step of the path to a nested error: `.field`, `.key` or `[index]`."""
    for note in getattr(exc, "__notes__", ()):
        if isinstance(note, cattrs.AttributeValidationNote):
            return f".{note.name}"
        if isinstance(note, str) and note.startswith(_STEP_NOTE):
            return note.removeprefix(_STEP_NOTE)
    return ""
