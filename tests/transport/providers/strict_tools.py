"""The checks that servers make on the tools of a request, as they are published: each refuses the whole request."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

ONE: Final = (
    *("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
SOME: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
NAMED: Final = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
OF_GEMINI: Final = {
    *("type", "format", "title", "description", "enum", "items", "prefixItems", "minItems", "maxItems", "minimum"),
    *("maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required", "$id", "$defs", "$anchor"),
}
AT_TOP: Final = {"anyOf", "oneOf", "allOf"}


def within(schema: Any) -> Iterator[Any]:
    """Yield a schema and all schemas within it."""
    yield schema
    if isinstance(schema, dict):
        for name in ONE:
            if name in schema:
                yield from within(schema[name])
        for name in SOME:
            for each in schema.get(name, ()):
                yield from within(each)
        for name in NAMED:
            for each in schema.get(name, {}).values():
                yield from within(each)


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def _check_sound(schema: dict[str, Any]) -> None:
    """Check that a schema is one of draft 2020-12, and that its references lead to a schema."""
    Draft202012Validator.check_schema(schema)
    for each in within(schema):
        if not isinstance(each, dict):
            continue
        for pattern in [each["pattern"]] if "pattern" in each else []:
            re.compile(pattern)
        if "$ref" in each:
            found: Any = schema
            for step in each["$ref"].removeprefix("#/").split("/"):
                found = found[step]
            assert isinstance(found, dict), "a reference leads to a schema"


def openai(tools: list[dict[str, Any]]) -> None:
    """Check the functions of OpenAI's protocols."""
    assert 0 < len(tools) <= 128, "1 to 128 tools"
    for tool in tools:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool["name"]), tool["name"]
        schema = tool["parameters"]
        assert schema["type"] == "object", schema
        assert not schema.keys() & {*AT_TOP, "enum", "const", "not"}, schema
        for each in within(schema):
            if isinstance(each, dict):
                assert "object" not in _kinds(each) or "properties" in each, "an object has properties"
                assert "array" not in _kinds(each) or "items" in each, "an array has items"
        _check_sound(schema)


def chat(body: Mapping[str, Any]) -> None:
    """Check the tools of a request to chat completions."""
    if "tools" in body:
        openai([each["function"] for each in body["tools"]])
        assert all(len(each["function"]["description"]) <= 1024 for each in body["tools"]), "the description is short"


def responses(body: Mapping[str, Any]) -> None:
    """Check the tools of a request to responses."""
    if "tools" in body:
        openai(body["tools"])


def anthropic(body: Mapping[str, Any]) -> None:
    """Check the tools of a request to Anthropic's messages."""
    if "tools" not in body:
        return
    assert body["tools"], "no empty list"
    for tool in body["tools"]:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool["name"]), tool["name"]
        schema = tool["input_schema"]
        assert schema["type"] == "object", schema
        assert not schema.keys() & AT_TOP, schema
        for each in within(schema):
            names = each.get("properties", {}) if isinstance(each, dict) else {}
            assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name) for name in names), names
        _check_sound(schema)


def gemini(body: Mapping[str, Any]) -> None:
    """Check the declarations of a request to Google's protocol."""
    if "tools" not in body:
        return
    declared = body["tools"][0]["functionDeclarations"]
    assert 0 < len(declared) <= 512, "1 to 512 declarations"
    for tool in declared:
        assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}", tool["name"]), tool["name"]
        if (schema := tool.get("parametersJsonSchema")) is None:
            continue
        assert schema["type"] == "object", schema
        for each in within(schema):
            if isinstance(each, dict):
                assert each.keys() <= OF_GEMINI, each.keys() - OF_GEMINI
                assert all(type(value) in (str, int, float) for value in each.get("enum", ())), "texts and numbers"
                assert {*each.get("required", ())} <= {*each.get("properties", {})}, "required members are declared"
        _check_sound(schema)


CHECKS: Final[Mapping[str, Callable[[Mapping[str, Any]], None]]] = {
    "anthropic": anthropic,
    "gemini": gemini,
    "openai-chat": chat,
    "openai-responses": responses,
}
