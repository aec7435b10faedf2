"""Brings the definitions of tools into the form that a protocol takes. No I/O.

Whoever runs a tool checks its arguments, so the schema that is sent may say less than the tool's own: it takes all
arguments that the tool's own takes, unless one choice at the top describes a member of another choice. A part that a
protocol cannot express stands in a description, if it is short.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Final, TypeGuard
from urllib.parse import unquote

import attrs

from warren.base.values import define, frozen
from warren.conversation import codec
from warren.models.tools import ToolSpec
from warren.transport.providers.tool_rules import ToolRules

Schema = dict[str, Any]
DEEPEST: Final = 64
"""Levels of a schema; those below take anything."""
MOST_PARTS: Final = 5_000
"""Schemas within one schema, its references replaced; further ones take anything."""
REPEATS: Final = 2
"""Times that a schema stands within itself in place of a reference; further ones take anything."""
LONGEST_NOTE: Final = 500
"""Characters of a part that is told in a description."""
LONGEST_PATTERN: Final = 1_000
"""Characters of a pattern: compiling a longer one takes too long to find out whether it is one."""

_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_ALIASES: Final = {
    "bool": "boolean",
    "dict": "object",
    "double": "number",
    "float": "number",
    "int": "integer",
    "list": "array",
    "none": "null",
    "str": "string",
    "text": "string",
}
"""Types under the names that they have in programming languages."""
_CHOICES: Final = ("anyOf", "oneOf")
_NOT_AT_TOP: Final = (*_CHOICES, "enum", "const", "not")
"""The keywords that the schema of arguments may not have at its top, but for `allOf`, which can be resolved."""
_TRIO: Final = frozenset({"if", "then", "else"})
_NOTES: Final = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"})
"""Keywords that say nothing about what is valid."""
_HOMES: Final = ("$defs", "definitions")
"""The members at the top of a schema that have the schemas to which others refer."""
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_TO_HOME: Final = re.compile(r"#/(\$defs|definitions)/([^/]+)")
_SILENT: Final = frozenset({"$anchor", "$comment", "$dynamicAnchor", "$id", "$schema", "$vocabulary", "id"})
"""Keywords that say nothing about the arguments."""


class UnfitToolError(Exception):
    """A tool cannot be brought into the form of a protocol; the text continues after the tool's name."""


@frozen
class FittedTool:
    """A tool in the form of a protocol.

    Attributes:
        name: the name that is sent.
        description: the description that is sent.
        schema: the schema of the arguments that is sent; None for none.
        members: the own names of those members of the arguments that are sent under another one.
    """

    name: str
    description: str
    schema: Mapping[str, Any] | None
    members: Mapping[str, str]


def fitted(spec: ToolSpec, rules: ToolRules) -> FittedTool:
    """Return a tool in the form that a protocol takes. Raises UnfitToolError."""
    work = _Work(spec.input_schema, rules)
    try:
        schema, note = work.arguments()
    except RecursionError:
        raise UnfitToolError("its schema is nested too deeply") from None
    description, most = "\n\n".join(filter(None, (spec.description, note))), rules.longest_description
    if most is not None and len(description) > most:
        # Within the schema the server has no bound for it. It stands first there: the model reads on.
        rest, description = description[most - 1 :], f"{description[: most - 1]}…"
        schema = {**schema, "description": "\n\n".join(filter(None, (f"…{rest}", schema.get("description"))))}
    bare = not (rules.bare_schemas or schema["properties"] or schema.get("additionalProperties"))
    return FittedTool(rules.name(spec.name), description, None if bare else schema, work.members)


@define
class _Work:
    """The work on one schema.

    Attributes:
        root: the tool's own schema.
        rules: the rules of the protocol.
        members: the own names of the members that got another one.
    """

    root: Any
    rules: ToolRules
    members: dict[str, str] = attrs.field(factory=dict)
    _lost: list[Schema] = attrs.field(factory=list)  # the choices at the top
    _left: int = MOST_PARTS
    _open: list[str] = attrs.field(factory=list)  # the references that are being replaced

    def arguments(self) -> tuple[Schema, str]:
        """Return the schema of the arguments, and a note for the description, which may be empty."""
        if not isinstance(self.root, Mapping):
            raise UnfitToolError("its schema is no JSON object")
        whole = self._as_object(self.root, ())
        if whole is None:
            raise UnfitToolError("its schema is not that of an object")
        made = self._node({"type": "object", **whole}, 0)
        made.setdefault("properties", {})
        note = _short(self._lost[0] if len(self._lost) == 1 else self._lost) if self._lost else ""
        return made, f"The arguments also have to match this JSON schema: {note}" if note else ""

    # -- the top

    def _as_object(self, schema: Mapping[str, Any], seen: Sequence[str]) -> Schema | None:
        """Return one schema without choices for all objects that a schema takes; None if it takes no object.

        Args:
            schema: the schema.
            seen: the references that led to it.
        """
        kinds = _types(schema.get("type"))
        if kinds and "object" not in kinds:
            return None
        self._left -= 1
        if self._left < 0:
            return {"properties": {}, "required": []}
        aside = {*_NOT_AT_TOP, *_REFERENCES, "allOf", "type"}
        own = {name: each for name, each in schema.items() if name not in aside} | {
            "properties": {**_mapping(schema.get("properties"))},
            "required": _names(schema.get("required")),
        }
        parts = _list(schema.get("allOf"))
        if isinstance(ref := schema.get("$ref"), str) and ref not in seen:
            parts, seen = [self._target(ref), *parts], (*seen, ref)
        if lost := {name: schema[name] for name in _NOT_AT_TOP if name in schema}:
            self._lost.append(lost)
        made = self._with_parts(own, parts, seen, alone="properties" not in schema and len(parts) == 1)
        for choices in filter(None, (_list(schema.get(name)) for name in _CHOICES)):
            made = None if made is None else self._with_choices(made, choices, seen)
        if made is not None:
            made["required"] = list(dict.fromkeys(made["required"]))
        return made

    def _with_parts(self, made: Schema, parts: list[Any], seen: Sequence[str], *, alone: bool) -> Schema | None:
        """Return a schema for the objects that fit it, and all of the parts."""
        for part in filter(_is_mapping, parts):
            if (own := self._as_object(part, seen)) is None:
                return None
            members, required = made.pop("properties"), made.pop("required")
            for name, each in own.pop("properties").items():
                before = members.get(name, each)
                members[name] = each if before == each else {"allOf": [before, each]}
            required += own.pop("required")
            aside = {*_HOMES, *(_TRIO if made.keys() & _TRIO else ())}
            if not alone:  # it would close the object to the members of the others
                aside.add("additionalProperties")
            made = {name: each for name, each in own.items() if name not in aside} | made
            made |= {"properties": members, "required": required}
            made.pop("unevaluatedProperties", None)
        return made

    def _with_choices(self, made: Schema, choices: list[Any], seen: Sequence[str]) -> Schema | None:
        """Return a schema for the objects that fit it, and one of the choices: it has the members of all of them."""
        found = [self._as_object(each, seen) if _is_mapping(each) else {} for each in choices if each is not False]
        takers = [each for each in found if each is not None]
        if not takers:
            return None
        united = dict[str, Any]()
        for taker in takers:
            for name, each in taker.get("properties", {}).items():
                united[name] = _either(united[name], each) if name in united else each
        needed = [taker.get("required", []) for taker in takers]
        made["required"] += [name for name in needed[0] if all(name in each for each in needed)]
        made["properties"] = united | made["properties"]
        if all(taker.get("additionalProperties") is False and "patternProperties" not in taker for taker in takers):
            made.setdefault("additionalProperties", False)
        made.pop("unevaluatedProperties", None)
        return made

    # -- each schema within

    def _node(self, schema: Any, depth: int) -> Any:
        """Return a schema within the schema, or the top itself, in the form of the protocol."""
        if isinstance(schema, bool):
            return schema if self.rules.keywords is None else {}
        if not isinstance(schema, Mapping):  # a type in place of a schema, or nonsense
            kinds = _types(schema)
            return self._finished({"type": kinds[0]} if len(kinds) == 1 else {})
        self._left -= 1
        if depth > DEEPEST or self._left < 0:
            return {}
        ref = next((schema[name] for name in _REFERENCES if name in schema), None)
        if ref is not None and not self._stays(ref):
            return self._replaced(ref, schema, depth)
        made: Schema = {}
        for name, value in _modern(schema).items():
            read = _READERS.get(name)
            found = value if read is None else read(self, value, depth)
            if name not in _SILENT and (found is not None or read is None):
                made[name] = found
        if made.get("properties", {}).keys() != _mapping(schema.get("properties")).keys():
            made.pop("propertyNames", None)  # it is about the own names
        if made.get("patternProperties", {}).keys() != _mapping(schema.get("patternProperties")).keys():
            made.pop("additionalProperties", None)  # it is not about names of a pattern
        return self._finished(made)

    def _finished(self, made: Schema) -> Schema:
        kinds = _types(made.get("type"))
        if "array" in kinds:
            made.setdefault("items", {})
        if "object" in kinds and not self.rules.open_objects:
            made.setdefault("properties", {})
        if not made.get("required", True):
            del made["required"]
        return made if self.rules.keywords is None else _within(made, self.rules.keywords)

    def _stays(self, ref: Any) -> bool:
        """Return whether a reference may stay, as the schema that it names stays in its place."""
        found = _TO_HOME.fullmatch(ref) if isinstance(ref, str) and self.rules.keywords is None else None
        return found is not None and isinstance(self._target(ref), Mapping)

    def _replaced(self, ref: Any, schema: Mapping[str, Any], depth: int) -> Schema:
        """Return a schema with that to which it refers in place of the reference."""
        target = self._target(ref) if isinstance(ref, str) else None
        found = dict(_mapping(target))
        if self._open.count(str(ref)) >= REPEATS:
            found = {name: found[name] for name in ("type", "title", "description") if name in found}
        beside = {name: each for name, each in schema.items() if name not in _REFERENCES}
        self._open.append(str(ref))
        # A keyword on both sides holds twice, but for those that only describe.
        whole = found | beside if beside.keys() <= _NOTES else {"allOf": [found]} | beside
        made: Schema = self._node(whole, depth + 1)
        self._open.pop()
        return made

    def _target(self, ref: str) -> Any:
        """Return the schema within the root to which a reference leads; None if there is none."""
        base, _, pointer = ref.partition("#")
        if base and base != self.root.get("$id"):
            return None
        found: Any = self.root
        if pointer and not pointer.startswith("/"):  # a name that the schema has elsewhere
            return None
        for step in unquote(pointer).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping):
                found = found.get(name)
            else:
                found = (
                    found[int(name)]
                    if isinstance(found, list) and name.isdecimal() and int(name) < len(found)
                    else None
                )
        return found

    # -- the keywords: each reader returns the value in the form of the protocol, or None for one that is left out

    def _member(self, own: str) -> str:
        name = self.rules.member(own)
        if name != own:
            self.members[name] = own
        return name

    def _schemas(self, value: Any, depth: int) -> list[Any] | None:
        return [self._node(each, depth + 1) for each in value] if isinstance(value, list) and value else None

    def _by_member(self, value: Any, depth: int) -> Schema | None:
        if not isinstance(value, Mapping):
            return None
        return {self._member(name): self._node(each, depth + 1) for name, each in value.items()}

    def _by_pattern(self, value: Any, depth: int) -> Schema | None:
        return {
            name: self._node(each, depth + 1) for name, each in _mapping(value).items() if _is_pattern(name)
        } or None

    def _home(self, value: Any, depth: int) -> Schema | None:
        """Keep the schemas to which others refer, if references stay, and at the top, to which these lead."""
        if depth or self.rules.keywords is not None:
            return None
        return {name: self._node(each, depth + 1) for name, each in _mapping(value).items()} or None

    def _required(self, value: Any, _depth: int) -> list[str] | None:
        return [self._member(name) for name in dict.fromkeys(_names(value))]

    def _dependent(self, value: Any, _depth: int) -> Schema | None:
        return {
            self._member(name): [*map(self._member, _names(each))] for name, each in _mapping(value).items()
        } or None


Reader = Callable[[_Work, Any, int], Any]


def _type(_work: _Work, value: Any, _depth: int) -> str | list[str] | None:
    kinds = _types(value)
    return (kinds if isinstance(value, list) else kinds[0]) if kinds else None


def _of(*classes: type) -> Reader:
    """Return the reader of a value that stays if it is one of some classes."""
    return lambda _work, value, _depth: value if type(value) in classes else None


def _count(_work: _Work, value: Any, _depth: int) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _number(_work: _Work, value: Any, _depth: int) -> float | None:
    return value if type(value) in (int, float) and isfinite(value) else None


def _step(_work: _Work, value: Any, _depth: int) -> float | None:
    return value if type(value) in (int, float) and isfinite(value) and value > 0 else None


def _pattern(_work: _Work, value: Any, _depth: int) -> str | None:
    return value if _is_pattern(value) else None


def _enum(_work: _Work, value: Any, _depth: int) -> list[Any] | None:
    return value if isinstance(value, list) and value else None


def _dropped(_work: _Work, _value: Any, _depth: int) -> None:
    return None


_READERS: Final[Mapping[str, Reader]] = {
    "type": _type,
    "enum": _enum,
    "required": _Work._required,  # noqa: SLF001 - the table belongs to the class
    "pattern": _pattern,
    "multipleOf": _step,
    "examples": _of(list),
    "dependencies": _dropped,
    "additionalItems": _dropped,
    "dependentRequired": _Work._dependent,  # noqa: SLF001
    "patternProperties": _Work._by_pattern,  # noqa: SLF001
    **dict.fromkeys(("title", "description", "format", "contentEncoding", "contentMediaType", "$ref"), _of(str)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _count),
    **dict.fromkeys(("minContains", "maxContains"), _count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _of(bool)),
    **dict.fromkeys(("allOf", *_CHOICES, "prefixItems"), _Work._schemas),  # noqa: SLF001
    **dict.fromkeys(("properties", "dependentSchemas"), _Work._by_member),  # noqa: SLF001
    **dict.fromkeys(_HOMES, _Work._home),  # noqa: SLF001
    **dict.fromkeys(
        (
            *("items", "additionalProperties", "contains", "propertyNames", "not", *_TRIO),
            *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
        ),
        lambda work, value, depth: work._node(value, depth + 1),  # noqa: SLF001
    ),
}
_TOLD: Final = frozenset(
    {*_READERS, "default", "nullable"} - {*_HOMES, "$ref", "allOf", "dependencies", "additionalItems"}
)
"""The keywords that are told in words to models whose protocol does not have them."""


def _within(made: Schema, keywords: frozenset[str]) -> Schema:
    """Return a schema with some keywords alone; the others are told in its description if they are short."""
    for part in made.pop("allOf", ()):
        made = _both(part, made)
    if "oneOf" in made:  # choices that say less than before may fit at once
        choices = made.pop("oneOf")
        made.setdefault("anyOf", choices)
    if "patternProperties" in made and (rest := made.pop("additionalProperties", None)) is not None:
        made["unevaluatedProperties"] = rest  # it holds for no name of a pattern
    lost = {name: made.pop(name) for name in [*made] if name not in keywords}
    if _is_scalar(lost.get("const")) and "enum" not in made:
        made["enum"] = [lost.pop("const")]
    if not all(map(_is_scalar, made.get("enum", ()))):
        lost["enum"] = made.pop("enum")
    kinds = _types(made.get("type"))
    if len([each for each in kinds if each != "null"]) > 1:
        del made["type"]
        made.setdefault("anyOf", [{"type": each} | ({"items": {}} if each == "array" else {}) for each in kinds])
    for name in made.get("required", ()):
        made.setdefault("properties", {}).setdefault(name, {})
    told = {name: each for name, each in lost.items() if name in _TOLD}
    if told and (note := _short(told)):
        made["description"] = " ".join(filter(None, (made.get("description"), f"(JSON schema: {note})")))
    return made


def _both(first: Schema, second: Schema) -> Schema:
    """Return a schema that takes what both take. Of a keyword of both it has that of the second."""
    made = first | second
    if "properties" in first and "properties" in second:
        made["properties"] = second["properties"] | first["properties"]
        made.pop("additionalProperties", None)
    if needed := [*second.get("required", ()), *first.get("required", ())]:
        made["required"] = list(dict.fromkeys(needed))
    return made


def _modern(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema with what draft 2020-12 has in place of the older drafts' lists of items and open bounds."""
    if isinstance(items := schema.get("items"), list):
        schema = {**schema, "prefixItems": items, "items": schema.get("additionalItems", {})}
    for open_, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if schema.get(open_) is True:
            schema = {name: each for name, each in schema.items() if name != bound} | {open_: schema.get(bound)}
    return schema


def _types(value: Any) -> list[str]:
    """Return the types that a `type` names: none for any, and for nonsense."""
    named = (each.lower() for each in (value if isinstance(value, list) else [value]) if isinstance(each, str))
    return [each for each in dict.fromkeys(_ALIASES.get(each, each) for each in named) if each in _TYPES]


def _either(first: Any, second: Any) -> Any:
    """Return a schema that takes what one of two takes; of two lists of values it is one list."""
    if first == second:
        return first
    lists = [each.get("enum", [each["const"]] if "const" in each else None) for each in map(_mapping, (first, second))]
    if all(isinstance(each, list) for each in lists):
        rest = [
            {name: x for name, x in _mapping(each).items() if name not in ("enum", "const", "title", "description")}
            for each in (first, second)
        ]
        if rest[0] == rest[1]:
            values = [*lists[0], *(each for each in lists[1] if each not in lists[0])]
            return {name: each for name, each in first.items() if name != "const"} | {"enum": values}
    choices = [*(first["anyOf"] if isinstance(first, dict) and first.keys() == {"anyOf"} else [first]), second]
    return {"anyOf": choices}


def _is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _names(value: Any) -> list[str]:
    return [each for each in _list(value) if isinstance(each, str)]


def _is_scalar(value: Any) -> bool:
    return type(value) in (str, int, float)


def _is_pattern(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > LONGEST_PATTERN:
        return False
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _short(value: Any) -> str:
    """Return the JSON of a part of a schema; nothing if it is long, or refers to what the model does not see."""
    try:
        text = codec.encode_whole(value).decode()
    except (TypeError, ValueError, RecursionError):
        return ""
    return "" if len(text) > LONGEST_NOTE or '"$ref"' in text else text


def restored(args: Any, members: Mapping[str, str]) -> Any:
    """Return the arguments of a call with the members' own names."""
    if isinstance(args, dict):
        return {members.get(name, name): restored(each, members) for name, each in args.items()}
    return [restored(each, members) for each in args] if isinstance(args, list) else args
