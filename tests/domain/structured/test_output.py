"""Schemas of answers: which are let through, what fits them, and that neither takes for ever."""

import time
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.strategies import json_values
from warren.base.errors import InvalidParamsError
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, Message, SystemMessage, TextBlock, UserMessage
from warren.conversation.options import NO_OPTIONS, RETRIES, OutputWish, SessionOptions, TurnOptions
from warren.structured.output import (
    MAX_ANSWER,
    MAX_PROBLEM,
    MAX_PROBLEMS,
    MAX_QUOTE,
    MAX_SCHEMA,
    asked_at,
    checked_schema,
    correction,
    fit,
    request,
)

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DOUBLING = {
    "$ref": "#/$defs/a0",
    "$defs": {f"a{at}": {"allOf": [{"$ref": f"#/$defs/a{at + 1}"}] * 2} for at in range(40)} | {"a40": True},
}
QUICK = 20.0  # seconds; what is guarded against here takes years


def says(text: str) -> AssistantMessage:
    """Return an answer."""
    return AssistantMessage((TextBlock(text),))


@pytest.mark.parametrize(
    "schema",
    [
        {},
        PERSON,
        {"type": "array", "items": {"$ref": "#/$defs/node"}, "$defs": {"node": PERSON}},
        {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
        {"$id": "https://example.com/a", "$defs": {"b": {"$id": "b", "type": "string"}}, "$ref": "b"},
        {
            "$schema": DRAFT_7,
            "definitions": {"a": {"type": "string"}},
            "properties": {"a": {"$ref": "#/definitions/a"}},
        },
        {"properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}}},
        {"const": {"$ref": "https://example.com/not-a-reference"}},
        {"pattern": r"^\p{L}{1,64}@[a-z]{1,255}\.[a-z]{2,63}$"},
    ],
)
def test_good_schemas(schema: dict[str, Any]) -> None:
    """A valid schema is let through, as a copy that is the host's no more."""
    checked = checked_schema(schema)
    assert checked == schema
    assert checked is not schema


@pytest.mark.parametrize(
    ("schema", "path", "word"),
    [
        ("{}", "$.output_schema", "object"),
        ([], "$.output_schema", "object"),
        ({"type": "strin"}, "$.output_schema.type", "strin"),
        ({"properties": {"a": {"minimum": "1"}}}, "$.output_schema.properties.a.minimum", "number"),
        ({"$ref": "https://example.com/schema.json"}, "$.output_schema", "example.com"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "$.output_schema", "#/$defs/none"),
        ({"items": {"$dynamicRef": "#none"}}, "$.output_schema", "#none"),
        ({"$ref": "#"}, "$.output_schema", "too much work"),
        ({"$schema": "https://example.com/own"}, "$.output_schema.$schema", "draft"),
        ({"items": {"$schema": DRAFT_7}}, "$.output_schema", "$schema"),
        ({"pattern": "("}, "$.output_schema", "pattern"),
        ({"patternProperties": {"[": {}}}, "$.output_schema", "pattern"),
        ({"pattern": "((a{300}){300}){300}"}, "$.output_schema", "repeats"),
        ({"patternProperties": {}, "unevaluatedProperties": False}, "$.output_schema", "together"),
        ({"title": "x" * MAX_SCHEMA}, "$.output_schema", str(MAX_SCHEMA)),
        ({"title": "\ud800"}, "$.output_schema", "JSON"),
        ({"default": object()}, "$.output_schema", "JSON"),
    ],
)
def test_bad_schemas(schema: object, path: str, word: str) -> None:
    """An invalid one is refused, and the error names the place and the trouble."""
    with pytest.raises(InvalidParamsError) as caught:
        checked_schema(schema)
    assert caught.value.path == path
    assert word in caught.value.message
    assert len(caught.value.message) <= MAX_PROBLEM + len(path) + 2


def test_a_schema_that_holds_itself_or_is_too_deep() -> None:
    """A structure without an end, or with one far down, is bad input and not a crash."""
    endless: dict[str, Any] = {}
    endless["not"] = endless
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"not": deep}
    for schema in (endless, deep):
        with pytest.raises(InvalidParamsError):
            checked_schema(schema)


KEYWORDS = (
    *("type", "enum", "const", "properties", "items", "$ref", "$dynamicRef", "$id", "$schema", "$defs", "$anchor"),
    *("pattern", "patternProperties", "additionalProperties", "anyOf", "not", "required", "multipleOf", "minItems"),
    *("unevaluatedProperties", "dependentSchemas", "contains", "uniqueItems", "$vocabulary", "format"),
)
ODD_VALUES = json_values | st.sampled_from(
    ["#", "#/$defs/a", "https://example.com/x", "http://[bad", "object", "(", "^a+$", DRAFT_7, 0, 1e-300, -1, True, {}]
)
SCHEMAS = st.recursive(
    st.dictionaries(st.sampled_from(KEYWORDS), ODD_VALUES, max_size=4),
    lambda inner: st.dictionaries(
        st.sampled_from(KEYWORDS),
        inner | ODD_VALUES | st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        max_size=4,
    ),
    max_leaves=8,
)


@given(schema=SCHEMAS, data=json_values)
def test_odd_schemas(schema: dict[str, Any], data: Any) -> None:
    """Whatever stands in a schema, it is refused as bad input, or answers can be held against it."""
    try:
        checked = checked_schema(schema)
    except InvalidParamsError as exc:
        refusal = exc
    else:
        found = fit(checked, says(codec.encode(data).decode()))
        assert bool(found.problems) or found.data == codec.parse(codec.encode(data))
        return
    assert refusal.path.startswith("$.output_schema")
    assert codec.encode(refusal.body())


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ann"}',
        ' \n{"name": "Ann"}\n',
        '```json\n{"name": "Ann"}\n```',
        'Here it is:\n```\n{"name": "Ann"}\n```\nWell?',
    ],
)
def test_what_fits(text: str) -> None:
    """JSON alone is taken, and so is JSON in a fenced block."""
    assert fit(PERSON, says(text)).data == {"name": "Ann"}


ANN = '{"name": "Ann"}'


@pytest.mark.parametrize(
    "text",
    [
        f"It is {ANN}.",
        f"{ANN}\nHope it helps",
        f'<think>\nmaybe {{"name": "Bob"}}\n</think>\n\n{ANN}',
        f'It may be {{"name": "Bob"}}\n</think>\n{ANN}',
        f"For {{x}} in [1, 2] and {{}} I found {ANN}, not {ANN.replace('Ann', 'Eve')}",
        f"```python\nf(1)\n```\nand\n```json\n{ANN}\n```",
        f'{{"nobody": 1}}\n\n{ANN}',
        f"See [{{x}}], [1, see] and {{a: [b}}}}: {ANN}",
        f'First {{"name" "Bob"}}, rather {ANN}',
    ],
)
def test_data_among_words(text: str) -> None:
    """The first whole value that fits is the data, whatever stands around it."""
    assert fit(PERSON, says(text)).data == {"name": "Ann"}


@pytest.mark.parametrize(
    "text",
    [
        '{"person": {"name": "Ann"}',
        '{"a": {"name": "Ann"},}',
        '{"person": {"name": "Ann"}}',
        '{"first": "Bob" "child": {"name": "Ann"}}',
        '{"first": "Bob" "child": {"name": "Ann"}',
        'It is {"first": "a \\"} b" "child": [{"name": "Ann"}]}.',
        '{"code": "function f() {\\"name\\": \\"Ann\\"} {"name": "Ann"}',
        "[" * 500 + "{" * 500,
    ],
)
def test_parts_of_a_value_are_no_data(text: str) -> None:
    """What lies within a value that is cut, malformed or another one is not taken for the data."""
    assert fit(PERSON, says(text)).problems


@pytest.mark.parametrize(
    "text", ['{"code": "function f() {} return', '{"a": "see {\\"name\\"} {} x', '{"function f() {}']
)
def test_an_answer_that_is_cut_within_a_text(text: str) -> None:
    """What looks like data in a text of it is none."""
    (problem,) = fit({"type": "object"}, AssistantMessage((TextBlock(text),), "max_tokens")).problems
    assert "cap" in problem


def test_looking_for_data_is_bounded() -> None:
    """Words with many brackets do not take for ever."""
    began = time.monotonic()
    for text in ('{"a":' * 100_000, "[1," * 100_000, "{ " * 400_000, '["' * 400_000, '{"a" {"b"' * 80_000):
        assert fit(PERSON, says(text)).problems
    assert time.monotonic() - began < QUICK


def test_fences_inside_of_data() -> None:
    """A fence within a JSON text is a part of it."""
    assert fit({}, says('"```\\n1\\n```"')).data == "```\n1\n```"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ("Ann", "not JSON"),
        ("NaN", "not JSON"),
        ("1e999", "not JSON"),
        ("[" * 200 + "]" * 200, "not JSON"),
        ("{}", "$: 'name'"),
        ('{"name": 1}', "$.name: 1 is not"),
        ('{"name": "Ann", "age": -1}', "$.age: "),
        ('{"name": "Ann", "pet": 1}', "'pet'"),
        ("null", "$: None"),
    ],
)
def test_what_does_not_fit(text: str, problem: str) -> None:
    """Each problem begins with its place."""
    (found,) = fit(PERSON, says(text)).problems
    assert problem in found


def test_problems_are_bounded() -> None:
    """However large an answer, and however much is wrong with it, little of it is told."""
    problems = fit({"items": {"type": "integer"}}, says(codec.encode(["x" * 1_000] * 1_000).decode())).problems
    assert len(problems) == MAX_PROBLEMS
    assert all(len(problem) <= MAX_PROBLEM for problem in problems)
    said, asked = correction(says("é" * 100_000), problems)
    assert isinstance(said, AssistantMessage)
    assert len(said.text) == MAX_QUOTE
    assert isinstance(asked, UserMessage)
    assert len(asked.content) < 2_000


def test_an_answer_that_was_cut_says_so() -> None:
    """The model is told of the cap, not of a bracket that is missing."""
    (problem,) = fit(PERSON, AssistantMessage((TextBlock('{"name": "A'),), "max_tokens")).problems
    assert "cap" in problem


def test_nothing_takes_for_ever() -> None:
    """A schema that doubles its work with every level, and a pattern that tries everything, are given up."""
    began = time.monotonic()
    with pytest.raises(InvalidParamsError, match="too much work"):
        checked_schema(DOUBLING)
    only_strings = checked_schema({"type": "string"} | DOUBLING)
    assert fit(only_strings, says('"a"')).problems == ("it takes too much work to check",)
    hungry = checked_schema({"items": {"pattern": r"^(a|b|ab)*(ba|a|b)*(a|ab|b)*c(\1|\2|\3)$"}})
    assert fit(hungry, says(codec.encode(["ab" * 5_000] * 50).decode())).problems
    assert time.monotonic() - began < QUICK


def test_a_long_answer_is_not_read() -> None:
    """Past a bound in size nothing is read, and the model is told why."""
    (problem,) = fit({}, says("1" * (MAX_ANSWER + 1))).problems
    assert str(MAX_ANSWER) in problem


COMMON = st.recursive(
    st.sampled_from(
        [
            *(
                {},
                True,
                False,
                {"type": "object"},
                {"type": ["array", "null"]},
                {"enum": [1, "a", [True]]},
                {"const": 1},
            ),
            *({"uniqueItems": True}, {"required": ["a"]}, {"maxItems": 1}, {"minimum": 1}, {"pattern": "^a"}),
        ]
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries({}, optional={"items": inner, "prefixItems": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"contains": inner, "unevaluatedItems": inner}),
        st.fixed_dictionaries(
            {"properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2), "unevaluatedProperties": inner},
            optional={"allOf": st.lists(inner, min_size=1, max_size=2), "if": inner, "then": inner},
        ),
        st.dictionaries(st.sampled_from(["anyOf", "oneOf"]), st.lists(inner, min_size=1, max_size=3), max_size=2),
        st.dictionaries(st.sampled_from(["not", "additionalProperties", "propertyNames"]), inner, max_size=2),
    ),
    max_leaves=6,
)
DATA = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, "a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(schema=COMMON, data=DATA)
def test_as_the_library_says(schema: Any, data: Any) -> None:
    """Counting and bounding a check does not change its result."""
    expected = jsonschema.Draft202012Validator({"allOf": [schema]}).is_valid(data)
    assert (not fit({"allOf": [schema]}, says(codec.encode(data).decode())).problems) is expected


@pytest.mark.parametrize("name", ["pattern", "patternProperties", "additionalProperties"])
def test_patterns_mean_what_they_say(name: str) -> None:
    """The keywords with patterns, which are checked in a way of our own, let through and refuse the right data."""
    schema: dict[str, Any] = {
        "pattern": {"properties": {"x": {"pattern": "^a+$"}}},
        "patternProperties": {"patternProperties": {"^x": {"type": "string"}}},
        "additionalProperties": {
            "properties": {"y": {}},
            "patternProperties": {"^x": {}},
            "additionalProperties": {"type": "null"},
        },
    }
    good = {"pattern": '{"x": "aa", "y": "b"}', "patternProperties": '{"x": "b", "y": 1}'}
    bad = {"pattern": '{"x": "b"}', "patternProperties": '{"x2": 1}', "additionalProperties": '{"x": 1, "z": 1}'}
    assert not fit(schema[name], says(good.get(name, '{"x": 1, "y": 1, "z": null}'))).problems
    assert len(fit(schema[name], says(bad[name])).problems) == 1


def test_the_question_is_found_again() -> None:
    """Models that play a part can tell where data was asked for, also after corrections."""
    question: list[Message] = [SystemMessage("be kind"), UserMessage("hello"), says("hi"), request(PERSON)]
    assert asked_at(question) == 3
    assert asked_at([*question, *correction(says("no"), ["$: no"]), *correction(says(""), ["$: no"])]) == 3
    assert asked_at(question[:2]) is None
    assert asked_at([]) is None


def test_whose_wish_counts() -> None:
    """The first who has a schema, and the first who says how often; nobody's schema is no wish."""
    session = SessionOptions(output_schema=PERSON, structured_output_retries=5)
    assert NO_OPTIONS.output(SessionOptions(structured_output_retries=5)) is None
    assert NO_OPTIONS.output(session) == OutputWish(PERSON, 5)
    assert TurnOptions(output_schema={}, structured_output_retries=0).output(session) == OutputWish({}, 0)
    assert NO_OPTIONS.output(SessionOptions(output_schema=PERSON)) == OutputWish(PERSON, RETRIES)
