"""JSON schemas of parameters and results, made from the classes of both."""

import types
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import attrs

from warren.base import fields
from warren.base.described import attributes_of, summary_of
from warren.base.errors import ErrorCode
from warren.calls.reading import SearchRequest
from warren.calls.turns import PeerMessage
from warren.conversation import codec, events, messages
from warren.conversation.attachments import MAX_ATTACHMENTS, File, are_files
from warren.conversation.completion import FORM, MAX_TOKEN, is_completion_token
from warren.conversation.options import HOSTED, SessionRequest, TurnRequest, hosted
from warren.conversation.peers import MAX_TRUSTED, NAME, peer_name, peer_names
from warren.reports.audit import is_cursor

Schema = dict[str, Any]

_BASE64: Final = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_PLAIN: Final[Mapping[Any, Schema]] = {
    Any: {},
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    bytes: {"type": "string", "contentEncoding": "base64", "pattern": _BASE64},
    type(None): {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    Decimal: {"type": "string"},  # without a format: strict clients refuse schemas with one that they do not know
}
_WORD: Final = r"[^\s\x1c-\x1f\x85]"
"""A character that is no white space for Python, which has five more than JavaScript's `\\s`."""
_NAME: Final = f"^{NAME.pattern}$"
_CHECKS: Final[Mapping[Any, Schema]] = {
    fields.positive: {"exclusiveMinimum": 0},
    fields.not_negative: {"minimum": 0},
    fields.fits: {"maximum": fields.LARGEST},
    fields.not_blank: {"pattern": _WORD},
    peer_name: {"pattern": _NAME},
    fields.is_name: {"pattern": f"^{fields.NAME.pattern}$"},
    is_completion_token: {"pattern": f"^{FORM.pattern}$", "maxLength": MAX_TOKEN},
    is_cursor: {"pattern": r"^-?[0-9]{1,18}\.[0-9]{1,18}$"},
    are_files: {"maxItems": MAX_ATTACHMENTS},
    hosted: {"propertyNames": {"pattern": f"^{HOSTED.pattern}$"}, "additionalProperties": {"type": "object"}},
    peer_names: {"items": {"type": "string", "pattern": _NAME}, "maxItems": MAX_TRUSTED},
}
_ADDRESS: Final[Schema] = {"type": "string", "pattern": r"^https://[!#-\[\]-~]+$"}
_HASH: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_NULL: Final[Schema] = {"type": "null"}
_TEXT: Final[Schema] = {"type": "string"}
_RULES: Final[Mapping[type, Sequence[Schema]]] = {
    SessionRequest: (
        {"properties": {"prompt": _TEXT}},
        {"properties": {"attachments": {"maxItems": 0}}},
    ),
    TurnRequest: (
        {"properties": {"idempotency_key": _NULL}},
        {"properties": {"mode": {"enum": ["queue", "steer"]}}, "required": ["mode"]},
    ),
    PeerMessage: (
        {"properties": {"kind": {"const": "message"}, "params": _NULL, "request_id": _NULL, "status": _NULL}},
        {
            "properties": {"kind": {"const": "request"}, "request_id": _NULL, "status": _NULL},
            "required": ["kind"],
        },
        {
            "properties": {"kind": {"const": "response"}, "params": _NULL, "request_id": _TEXT, "status": _TEXT},
            "required": ["kind", "request_id", "status"],
        },
    ),
    File: (
        {"properties": {"data": _TEXT, "url": _NULL, "sha256": _NULL}, "required": ["data"]},
        {
            "properties": {"url": _ADDRESS, "media_type": _TEXT, "data": _NULL, "sha256": _NULL},
            "required": ["url", "media_type"],
        },
        {"properties": {"sha256": _HASH, "data": _NULL, "url": _NULL}, "required": ["sha256"]},
    ),
    SearchRequest: (
        {"properties": {"scope": {"const": "project"}}, "required": ["scope"]},
        {"properties": {"session_id": _TEXT}, "required": ["session_id"]},
    ),
}
"""Combinations of fields that a class allows: a value has to fit one of them."""
_UNIONS: Final[Sequence[tuple[Any, str, Mapping[str, type], bool]]] = (
    (messages.Block, "type", codec.BLOCK_TYPES, True),
    (messages.Message, "role", codec.ROLES, False),
    (events.Event, "type", codec.EVENT_TYPES, True),
)
"""Unions: the type, the field with the tag, the class of each tag, and whether newer versions may add classes."""
_TAGS: Final = {cls: (tag, name) for _, tag, classes, _ in _UNIONS for name, cls in classes.items()}


class Schemas:
    """Makes schemas. The schema of a class is made once, and referred to by name.

    Attributes:
        definitions: the schemas of classes, by name.
    """

    definitions: dict[str, Schema]

    def __init__(self, prefix: str = "#/$defs/", *, strict: bool) -> None:
        """Begin without definitions.

        Args:
            prefix: the beginning of references.
            strict: whether the schemas are for data that clients send, as `codec.from_data` takes it: unknown fields
                are refused. Else they are for data that clients get, as `codec.to_data` makes it: a newer version may
                have more fields.
        """
        self.definitions = {}
        self._prefix = prefix
        self._strict = strict

    def of(self, hint: Any) -> Schema:
        """Return the schema of a type. Raises TypeError if the type has none."""
        if attrs.has(hint):
            return self._reference(hint)
        for union, tag, classes, open_ended in _UNIONS:
            if hint == union:
                return self._union(classes, tag if open_ended else None)
        if hint in _PLAIN:
            return dict(_PLAIN[hint])
        return self._generic(hint, get_origin(hint), get_args(hint))

    def of_class(self, cls: type) -> Schema:
        """Return the schema of an attrs class itself, not a reference to it."""
        hints = get_type_hints(cls)
        described = attributes_of(cls)
        tag, name = _TAGS.get(cls, (None, None))
        properties = {} if tag is None else {tag: {"const": name}}
        for field in _in_order(cls):
            text = described.get(field.name)
            schema = self._field(field, hints[field.name]) | ({"description": text} if text else {})
            properties[codec.wire_name(cls, field.name)] = schema
        there = [field.name for field in attrs.fields(cls) if field.init and self._is_there(cls, field)]
        required = [*([tag] if tag else ()), *(codec.wire_name(cls, name) for name in there)]
        schema = {"type": "object", "description": summary_of(cls), "properties": properties}
        schema |= {"required": required} if required else {}
        schema |= _some_of(*_RULES[cls]) if cls in _RULES else {}
        return schema | ({"additionalProperties": False} if self._strict else {})

    def _reference(self, cls: type) -> Schema:
        if cls.__name__ not in self.definitions:
            self.definitions[cls.__name__] = {}  # ends the recursion of a class that contains itself
            self.definitions[cls.__name__] = self.of_class(cls)
        return {"$ref": self._prefix + cls.__name__}

    def _union(self, classes: Mapping[str, type], open_tag: str | None) -> Schema:
        known = [self._reference(cls) for cls in classes.values()]
        if open_tag is None:
            return {"oneOf": known}
        other = {"type": "object", "properties": {open_tag: {"type": "string"}}, "required": [open_tag]}
        return {"anyOf": [*known, other]}

    def _generic(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Schema:
        if origin is Literal:
            return {"type": "string", "enum": list(args)}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(arg) for arg in args]}
        if origin in (tuple, list, Sequence):
            return {"type": "array", "items": self.of(args[0])}
        if origin in (dict, Mapping):
            inner = self.of(args[1])
            return {"type": "object"} | ({"additionalProperties": inner} if inner else {})
        raise TypeError(f"{hint!r} has no schema")

    def _field(self, field: "attrs.Attribute[Any]", hint: Any) -> Schema:
        bounds: Schema = {}
        for check in fields.checks_of(field):
            bounds |= _bounds(check)
        schema = _bounded(self.of(hint), bounds)
        shown = self._strict and isinstance(field.default, str | int | float)
        return schema | ({"default": field.default} if shown else {})

    def _is_there(self, cls: type, field: "attrs.Attribute[Any]") -> bool:
        """Return whether a field is required in parameters, or always present in results."""
        optional = None if self._strict else codec.whole(cls)
        if optional is not None:
            return field.name not in optional
        return field.default is attrs.NOTHING


def _in_order(cls: type) -> "list[attrs.Attribute[Any]]":
    """Return the fields of a class in the order of its `__init__`: keywords come last.

    Those for callers in the same process are not among them.
    """
    sent = (
        field for field in attrs.fields(cls) if field.init and not field.metadata.keys() >= fields.IN_PROCESS.keys()
    )
    return sorted(sent, key=lambda field: field.kw_only)


def _bounds(check: Callable[..., Any]) -> Schema:
    match check:
        case fields.Between(low=low, high=high, without_low=without_low):
            return {"exclusiveMinimum" if without_low else "minimum": low, "maximum": high}
        case fields.Labels():
            return {"maxProperties": fields.MAX_LABELS}
        case fields.AtMost(characters=characters):
            return {"maxLength": characters}
    return _CHECKS.get(check, {})


def _some_of(first: Schema, *others: Schema) -> Schema:
    """Return a schema that a value fits if it fits one of some schemas.

    `anyOf` would say the same. Beside `properties` it makes code generators drop them, as they take it for a union of
    classes; they pass over conditions.
    """
    return {"if": {"not": first}, "then": _some_of(*others)} if others else first


def _bounded(schema: Schema, bounds: Schema) -> Schema:
    """Return a schema with bounds. If null is allowed too, the bounds hold for all else."""
    if not bounds:
        return schema
    if "anyOf" in schema:
        return {"anyOf": [inner if inner == _PLAIN[type(None)] else inner | bounds for inner in schema["anyOf"]]}
    return schema | bounds


def error_schema() -> dict[str, Any]:
    """Return the schema."""
    return {
        "type": "object",
        "description": "Why a request failed; `code` is for programs, `message` for people.",
        "required": ["code", "message", "retryable"],
        "properties": {
            "code": {"type": "string", "enum": [code.value for code in ErrorCode]},
            "message": {"type": "string"},
            "retryable": {"type": "boolean"},
            "session_id": {"type": "string"},
            "details": {"type": "object"},
        },
    }
