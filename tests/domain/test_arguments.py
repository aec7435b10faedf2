"""Arguments of tool calls as models write them."""

from typing import Any

import pytest

from warren.models.arguments import problem_of, unwrapped
from warren.models.tools import Tool, ToolArgumentsError, ToolSpec, tool

SCHEMA = {
    "type": "object",
    "properties": {
        "paths": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "array", "items": {"type": "integer"}},
        "rows": {"$ref": "#/$defs/rows"},
        "deep": {"type": "object", "properties": {"rows": {"$ref": "#/$defs/rows"}}},
        "where": {"$ref": "#/$defs/where"},
        "maybe": {"anyOf": [{"type": "array"}, {"type": "null"}]},
        "both": {"anyOf": [{"type": "array"}, {"type": "string"}]},
        "open": {},
        "text": {"type": "string"},
        "number": {"type": "number"},
        "choice": {"enum": [1, 2]},
        "flag": {"type": "boolean"},
    },
    "$defs": {
        "rows": {"type": "array", "items": {"type": "array"}},
        "where": {"type": "object", "properties": {"x": {"type": "integer"}}},
    },
}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"paths": '["a", "b"]'}, {"paths": ["a", "b"]}),
        ({"where": '{"x": 1}'}, {"where": {"x": 1}}),
        ({"where": '{"x": "1"}'}, {"where": {"x": "1"}}),
        ({"rows": ["[1]", [2]], "deep": {"rows": "[[1]]"}}, {"rows": [[1], [2]], "deep": {"rows": [[1]]}}),
        ({"deep": '{"rows": ["[1]"]}'}, {"deep": {"rows": [[1]]}}),
        ({"maybe": "[1]"}, {"maybe": [1]}),
    ],
)
def test_a_text_that_has_what_is_wanted_becomes_it(given: dict[str, Any], meant: dict[str, Any]) -> None:
    """Where a schema takes no text, a text with the JSON of what it takes counts as that."""
    assert unwrapped(given, SCHEMA) == meant


@pytest.mark.parametrize(
    "given",
    [
        {"text": '["a"]', "both": "[1]", "open": "{}", "other": "[1]"},
        {"paths": ["[1]", "x"], "where": {"y": "1", "x": "1"}, "counts": ["1", 2]},
        {"number": "1.5", "flag": "true", "choice": "2", "maybe": "null"},
        {"paths": "a, b", "counts": '{"a": 1}', "flag": "yes", "choice": "x", "maybe": ""},
        {"paths": '["a"', "number": "NaN"},
        {"paths": ["a"], "where": {"x": 1}},
    ],
)
def test_other_texts_stay(given: dict[str, Any]) -> None:
    """A text stays a text if one may stand there, and if it has nothing that fits; then nothing is copied."""
    assert unwrapped(given, SCHEMA) is given


def test_a_python_tool_gets_the_values() -> None:
    """The arguments are taken out of texts before they are checked, if they do not fit as they are."""

    @tool
    def look(paths: list[str], depth: int = 1, note: str = "") -> None:
        """Look."""

    assert look.bind({"paths": '["a"]', "note": "[1]"}) == {"paths": ["a"], "depth": 1, "note": "[1]"}
    with pytest.raises(ToolArgumentsError, match=r"depth"):
        look.bind({"paths": '["a"]', "depth": "2"})


def test_a_tool_of_a_server_gets_the_values() -> None:
    """A tool that is known by its schema alone gets the values, too."""
    own = Tool(ToolSpec("look", "", SCHEMA), print, is_async=False)
    assert own.bind({"paths": '["a"]', "text": "[1]"}) == {"paths": ["a"], "text": "[1]"}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ('{"a": 1,, "b": 2}', "line 1, column 9 (character 9 of 17), near"),
        ('{"a": "x}', "Unterminated string starting: line 1, column 7 (character 7 of 9), near"),
        ('{\n "a": [1\n', "line 3, column 1 (the end), near"),
        ("[1]", "it is JSON, but no object"),
        ("", "line 1, column 1 (the end), near ''"),
        ('{"a": NaN}', "NaN is no JSON"),
        ("[" * 100_000, ""),
    ],
)
def test_broken_json_has_its_place(raw: str, said: str) -> None:
    """The model is told where the fault is, and what stands there."""
    assert said in problem_of(raw)
