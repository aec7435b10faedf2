"""The arguments of tool calls as models write them: values given as texts, and JSON that is broken."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from warren.conversation import codec

NEAR: Final = 30
"""Characters on each side of a place in broken JSON that the model is shown."""
DEEPEST: Final = 32
"""Levels of values and of references that are looked through."""
_KINDS: Final[Mapping[type, str]] = {dict: "object", list: "array"}


def problem_of(raw: str) -> str:
    """Return the reason why a text is no JSON object, with the place of the fault."""
    try:
        found = json.loads(raw, parse_constant=_refuse)
    except json.JSONDecodeError as exc:
        near = raw[max(0, exc.pos - NEAR) : exc.pos + NEAR]
        where = f"character {exc.pos + 1} of {len(raw)}" if exc.pos < len(raw) else "the end"
        place = f"line {exc.lineno}, column {exc.colno} ({where})"
        return f"{exc.msg.removesuffix(' at')}: {place}, near {near!r}"
    except (ValueError, RecursionError) as exc:
        return str(exc)
    return "it is JSON, but no object" if not isinstance(found, dict) else "it has what JSON does not allow"


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def unwrapped(args: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arguments with lists and objects in place of the texts that hold their JSON.

    A text stays unless its schema takes no text, but what it holds. Numbers stay texts: a tool refuses them, and the
    model mends its call. Arguments without such texts are returned as they are.
    """
    found = _unwrapped(args, schema, schema, 0)
    return found if isinstance(found, Mapping) else args


def _unwrapped(value: Any, schema: Any, root: Any, depth: int) -> Any:
    if depth > DEEPEST or not isinstance(value, str | list | Mapping):
        return value
    choices = [*_choices(schema, root, 0)]
    if isinstance(value, str):
        inside = _inside(value, choices)
        return value if inside is value else _unwrapped(inside, schema, root, depth + 1)
    if isinstance(value, list):
        items = next((each["items"] for each in choices if isinstance(each.get("items"), Mapping)), None)
        made = [_unwrapped(each, items, root, depth + 1) for each in value] if items is not None else value
        return made if any(new is not old for new, old in zip(made, value, strict=True)) else value
    changed = dict[str, Any]()
    for name, old in value.items():
        if isinstance(old, str | list | Mapping):
            members = (each.get("properties") for each in choices)
            own = next((each[name] for each in members if isinstance(each, Mapping) and name in each), None)
            if own is not None and (new := _unwrapped(old, own, root, depth + 1)) is not old:
                changed[name] = new
    return {**value, **changed} if changed else value


def _inside(text: str, choices: list[Mapping[str, Any]]) -> Any:
    """Return the value whose JSON a text is, if one of the schemas takes it, and none of them the text."""
    wanted = {kind for each in choices for kind in _kinds(each)}
    if not wanted or "string" in wanted:
        return text
    try:
        value = codec.parse(text)
    except ValueError:
        return text
    return value if _KINDS.get(type(value)) in wanted else text


def _kinds(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the types that a schema takes; a text among them if it takes anything."""
    kind = schema.get("type")
    if isinstance(kind, str):
        yield kind
    elif isinstance(kind, list):
        yield from kind
    else:
        yield "string"


def _choices(schema: Any, root: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of which a value has to fit one or all, references followed."""
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return
    inner = [each for name in ("anyOf", "oneOf", "allOf") for each in _list(schema.get(name))]
    if isinstance(ref := schema.get("$ref"), str):
        inner.append(_target(ref, root))
    for each in inner:
        yield from _choices(each, root, depth + 1)
    if not inner or schema.keys() & {"type", "properties", "items"}:
        yield schema


def _target(ref: str, root: Any) -> Any:
    found = root
    for step in ref.removeprefix("#").split("/")[1:]:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
