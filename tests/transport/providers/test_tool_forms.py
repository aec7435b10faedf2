"""Tools as hosts and servers bring them, in the form that each protocol takes."""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.transport.providers.calls import CLAUDE, GEMINI, GPT, RESPONSES, over, request
from tests.transport.providers.strict_tools import CHECKS
from tests.transport.providers.targets import provider
from warren.conversation.messages import AssistantMessage, ToolResult, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelRequest, Repaired
from warren.models.tools import ToolSpec, tool
from warren.transport.providers.remote import DIALECTS
from warren.transport.providers.tool_rules import ANTHROPIC, OPENAI
from warren.transport.providers.tool_rules import GEMINI as OF_GEMINI
from warren.transport.providers.tool_rules import RESPONSES as OF_RESPONSES
from warren.transport.providers.tool_schemas import UnfitToolError, fitted, restored

MODELS: Final = {"openai-chat": GPT, "openai-responses": RESPONSES, "anthropic": CLAUDE, "gemini": GEMINI}
PROTOCOLS: Final = (OPENAI, OF_RESPONSES, ANTHROPIC, OF_GEMINI)
ENDPOINT: Final = provider(GPT).endpoint
PLAIN: Final = {"type": "object", "properties": {"a": {"type": "string"}}}
NAMES: Final = ("a", "b", "$filter", "user name", "x" * 70, "größe", "", "filter[id]", "dots.are.good")
VALUES: Final[tuple[Any, ...]] = ("one", "two", 3, 4.5, True, None, [], {})
NONSENSE: Final[tuple[Any, ...]] = (
    None,
    "string",
    7,
    [],
    "nothing of the kind",
    {"type": "any"},
    {"type": "STRING"},
    {"type": 3},
)
REFS: Final[tuple[Any, ...]] = (
    "#/$defs/tree",
    "#/$defs/gone",
    "#",
    "#/properties/a",
    "#tree",
    "https://else.where/x#/y",
    3,
)
LEAVES: Final[tuple[Any, ...]] = (
    {"type": "string"},
    {"type": "integer"},
    {"enum": ["one", 3]},
    {"const": 3},
    {},
    True,
    False,
)
seeds: Final = given(seed=st.integers(0, 2**32))


class Odd(random.Random):
    """Makes schemas such as draft 2020-12 has them, or with everything that servers are known to send."""

    def __init__(self, seed: int, *, sound: bool) -> None:
        super().__init__(seed)
        self.sound = sound

    def tool(self) -> ToolSpec:
        """Return a tool with any schema."""
        node = self.node(0)
        if self.sound:  # a choice that does not name a member takes anything for it, which no server means
            for name in {"anyOf", "oneOf", "allOf"} & node.keys():
                node[name] = [_plain(each, closed=name != "allOf") for each in node[name]]
        tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "$value": self.schema(2)}}
        own = {"type": "object"} if self.random() < 0.5 else {}
        name = self.choice(["look", "a.b/c", "n" * 80, "3d", "grüße", "-x", ""])
        description = self.choice(["", "Looks.", "long " * 300])
        return ToolSpec(name, description, {**node, **own, "$defs": {"tree": tree}})

    def schema(self, depth: int) -> Any:
        """Return a schema."""
        if not self.sound and self.random() < 0.1:
            return self.choice(NONSENSE)
        return self.choice(LEAVES) if depth > 3 or self.random() < 0.4 else self.node(depth)

    def node(self, depth: int) -> dict[str, Any]:
        """Return a schema with several keywords."""
        made = dict[str, Any]()
        for _ in range(self.randint(1, 4)):
            name = self.choice([*_KEYWORDS])
            made[name] = _KEYWORDS[name](self, depth + 1)
            if not self.sound and self.random() < 0.2:
                name = self.choice([*_ODD])
                made[name] = _ODD[name](self, depth + 1)
        return made

    def some(self, depth: int) -> list[Any]:
        """Return a few schemas."""
        return [self.schema(depth) for _ in range(self.randint(1, 3))]

    def members(self, depth: int) -> dict[str, Any]:
        """Return schemas by names."""
        return {self.choice(NAMES): self.schema(depth) for _ in range(self.randint(0, 3))}

    def value(self, depth: int) -> Any:
        """Return any value of JSON."""
        kind = self.random() if depth < 3 else 1.0
        if kind < 0.25:
            return self.args(depth)
        return [self.value(depth + 1) for _ in range(self.randint(0, 2))] if kind < 0.4 else self.choice(VALUES)

    def args(self, depth: int = 0) -> dict[str, Any]:
        """Return arguments."""
        return {self.choice(NAMES): self.value(depth + 1) for _ in range(self.randint(0, 3))}


def _plain(schema: Any, *, closed: bool) -> Any:
    """Return a schema without choices; if it is closed, with no members but those that it names."""
    if not isinstance(schema, dict):
        return schema and not closed
    within = {"anyOf", "oneOf", "allOf", "$ref", "patternProperties"}
    rest = {name: each for name, each in schema.items() if name not in within}
    return rest | ({"additionalProperties": False} if closed else {})


def _one_of(*values: Any) -> Callable[[Odd, int], Any]:
    return lambda odd, _depth: odd.choice(values)


_KEYWORDS: Final[Mapping[str, Callable[[Odd, int], Any]]] = {
    "type": _one_of("object", "array", ["object", "null"], ["string", "integer"], ["array", "null", "object"]),
    **dict.fromkeys(("properties", "dependentSchemas"), Odd.members),
    "required": lambda odd, _: odd.sample(NAMES, odd.randint(0, 2)),
    "dependentRequired": lambda odd, _: {odd.choice(NAMES): odd.sample(NAMES, 1)},
    **dict.fromkeys(("items", "additionalProperties", "contains", "not", "if", "then"), Odd.schema),
    **dict.fromkeys(("unevaluatedProperties", "else"), Odd.schema),
    **dict.fromkeys(("prefixItems", "anyOf", "oneOf", "allOf"), Odd.some),
    "patternProperties": lambda odd, depth: {odd.choice(["^a", "x+"]): odd.schema(depth)},
    "enum": lambda odd, _: odd.sample(VALUES, odd.randint(1, 3)),
    "const": _one_of(*VALUES),
    "pattern": _one_of("^a", "[0-9]+"),
    "minimum": _one_of(0, 4),
    "minLength": _one_of(0, 3),
    "uniqueItems": _one_of(True, False),
    "default": _one_of(*VALUES),
    "description": _one_of("", "told"),
    "$ref": _one_of("#/$defs/tree"),
}
_ODD: Final[Mapping[str, Callable[[Odd, int], Any]]] = {
    "type": _one_of("any", "int", "OBJECT", None, [], ["array", "array"], {"a": 1}, 3),
    "required": _one_of(True, "a", ["a", "a", 7]),
    "items": Odd.some,
    "pattern": _one_of("[", "(?<name>a)", r"\p{L}", 3),
    "exclusiveMinimum": _one_of(True, False, "3"),
    "minLength": _one_of("3", -1, 2.5),
    "description": _one_of(None, ["a"]),
    "enum": _one_of([], "one", {"a": 1}),
    **dict.fromkeys(("properties", "anyOf", "allOf", "$defs", "patternProperties"), _one_of(*NONSENSE)),
    "propertyNames": _one_of({"pattern": "^[$]"}, 3),
    "$schema": _one_of("http://json-schema.org/draft-07/schema#"),
    "$ref": _one_of(*REFS),
    "x-order": _one_of(*VALUES),
}


def body_of(dialect: str, *specs: ToolSpec) -> Mapping[str, Any]:
    """Return the tools of a request as a server gets them."""
    data = DIALECTS[dialect].tools.encoded(request(MODELS[dialect], tools=specs))  # type: ignore[index]
    if not data:
        return {}
    return {"tools": [{"functionDeclarations": json.loads(data)}] if dialect == "gemini" else json.loads(data)}


@settings(max_examples=max(10, settings().max_examples // 10))  # the check of a schema takes most of the time
@seeds
def test_any_schema_is_taken_or_left_out(seed: int) -> None:
    """Whatever the schemas of tools are, no server refuses a request for them."""
    odd = Odd(seed, sound=False)
    specs = [odd.tool() for _ in range(4)]
    for dialect, check in CHECKS.items():
        check(body_of(dialect, *specs))


@seeds
def test_what_a_tool_takes_its_form_takes(seed: int) -> None:
    """Arguments that a tool's own schema takes fit the one that is sent, and come back from it unchanged."""
    odd = Odd(seed, sound=True)
    spec = odd.tool()
    own = Draft202012Validator(spec.input_schema)
    fitting = [args for args in (odd.args() for _ in range(20)) if own.is_valid(args)]
    for rules in PROTOCOLS if fitting else ():
        form = fitted(spec, rules)
        sent = {own: name for name, own in form.members.items()}
        for args in fitting:
            told = restored(args, sent)
            assert form.schema is None or Draft202012Validator(form.schema).is_valid(told), (rules, args)
            assert restored(told, form.members) == args


def called(dialect: str, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer that calls a tool, as plain JSON."""
    match dialect:
        case "openai-chat":
            own = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
            return {"choices": [{"message": {"tool_calls": [own]}, "finish_reason": "tool_calls"}]}
        case "openai-responses":
            item = {"type": "function_call", "call_id": "c1", "name": name, "arguments": json.dumps(args)}
            return {"status": "completed", "output": [item]}
        case "anthropic":
            block = {"type": "tool_use", "id": "c1", "name": name, "input": args}
            return {"role": "assistant", "content": [block], "stop_reason": "tool_use"}
        case _:
            parts = [{"functionCall": {"name": name, "args": args}}]
            return {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}


def sent_tool(dialect: str, body: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the name of the first tool of a request, and the names of its members."""
    each = body["tools"][0]
    each = each["functionDeclarations"][0] if dialect == "gemini" else each.get("function", each)
    schema = next(each[name] for name in ("parameters", "input_schema", "parametersJsonSchema") if name in each)
    return each["name"], [*schema["properties"]]


@pytest.mark.parametrize("dialect", CHECKS)
async def test_calls_come_back_under_the_own_names(dialect: str) -> None:
    """A tool and its members may have other names at the server: its calls have the own ones, and go back as sent."""
    own, members = "files.read/" + "long" * 20, {"$filter": {"type": "string"}, "user name": {"type": "string"}}
    spec = ToolSpec(own, "Reads.", {"type": "object", "properties": members})
    args, heard = {"$filter": "x", "user name": "y"}, list[tuple[str, list[str]]]()

    def server(asked: httpx.Request) -> httpx.Response:
        body = json.loads(asked.content)
        CHECKS[dialect](body)
        heard.append(sent_tool(dialect, body))
        name, names = heard[-1]
        assert len(heard) == 1 or name in asked.content.decode().partition('"c1"')[0 if dialect == "gemini" else 2]
        return httpx.Response(200, json=called(dialect, name, dict(zip(names, args.values(), strict=True))))

    first = await over(server, request(MODELS[dialect], tools=(spec,)))
    (call,) = first.reply.message.tool_calls
    assert (call.name, call.args) == (own, args)
    results = ToolResultsMessage((ToolResult(call.id, "read"),))
    again = await over(server, request(MODELS[dialect], UserMessage("go"), first.reply.message, results, tools=(spec,)))
    assert again.reply.message.tool_calls[0].args == args
    assert heard[0] == heard[1]


def _says(_asked: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]})


async def asked_with(specs: list[ToolSpec]) -> tuple[list[str], list[Repaired]]:
    """Return the names of the tools of a chat request, and what is said about it."""
    bodies = list[dict[str, Any]]()

    def server(asked: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(asked.content))
        CHECKS["openai-chat"](bodies[-1])
        return _says(asked)

    outcome = await over(server, request(GPT, tools=tuple(specs)))
    names = [each["function"]["name"] for each in bodies[0].get("tools", ())]
    return names, [piece for piece in outcome.pieces if isinstance(piece, Repaired)]


async def test_a_tool_that_cannot_be_sent_is_left_out_alone() -> None:
    """The others go, and it is said which one does not, and why; without any other there are no tools at all."""
    bad = ToolSpec("bad", "", {"type": "string"})
    worse = ToolSpec("worse", "", {"type": "object", "properties": {"a": {"default": object()}}})
    names, said = await asked_with([ToolSpec("good", "", PLAIN), bad, worse])
    assert names == ["good"]
    assert [each.action for each in said] == ["left_out", "left_out"]
    assert {each.what for each in said} == {"the tool `bad`", "the tool `worse`"}
    assert Repaired("left_out", "the tool `bad`", "its schema is not that of an object") in said
    names, said = await asked_with([bad])
    assert (names, len(said)) == ([], 1)


async def test_the_first_tools_go_if_there_are_too_many() -> None:
    """The first 128 go; the rest is told of in one piece."""
    names, said = await asked_with([ToolSpec(f"t{number}", "", PLAIN) for number in range(200)])
    assert names == [f"t{number}" for number in range(128)]
    (one,) = said
    assert one.why == "the server takes 128 tools at most, and there are 200"
    assert one.what.startswith("72 tools: `t128`, `t129`, ")
    assert one.what.endswith(" and 64 more")


def test_tools_of_the_server_count() -> None:
    """With tools that the provider runs fewer of the others go."""
    specs = tuple(ToolSpec(f"t{number}", "", PLAIN) for number in range(128))
    asked = request(RESPONSES, tools=specs, hosted_tools={"web_search": {}})
    assert len(json.loads(DIALECTS["openai-responses"].tools.encoded(asked))) == 127


async def test_a_context_is_told_once() -> None:
    """The requests of a conversation say the same once."""
    specs = (ToolSpec("bad", "", {"type": "array"}), ToolSpec("good", "", PLAIN))
    asked = request(GPT, tools=specs)
    dialect = DIALECTS["openai-chat"]
    dialect.tools.encoded(asked)
    context = dialect.context(ENDPOINT, GPT)
    assert len([*dialect.tools.changes(asked).told(context)]) == 1
    assert [*dialect.tools.changes(asked).told(context)] == []
    assert [*dialect.tools.changes(ModelRequest(GPT, (), specs[1:])).told(context)] == []
    assert len([*dialect.tools.changes(asked).told(context)]) == 1


def test_good_schemas_stay_as_they_are() -> None:
    """A schema within the rules is sent unchanged, its references and what only some servers read included."""
    schema = {
        "type": "object",
        "properties": {
            "where": {"$ref": "#/$defs/Place", "description": "the place"},
            "how": {"type": "string", "enum": ["fast", "slow"], "default": "fast", "x-order": 1},
            "many": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 3},
        },
        "required": ["where"],
        "additionalProperties": False,
        "$defs": {"Place": {"type": "object", "properties": {"inside": {"$ref": "#/$defs/Place"}}}},
    }
    for rules in (OPENAI, ANTHROPIC):
        form = fitted(ToolSpec("t", "Does.", schema), rules)
        assert (form.name, form.description, form.schema, form.members) == ("t", "Does.", schema, {})


def test_choices_at_the_top_become_one_object() -> None:
    """The members are united, the kinds become one list, and required is what each choice requires."""
    schema = {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "file"}, "path": {}}, "required": ["kind", "path"]},
            {"type": "object", "properties": {"kind": {"const": "url"}, "url": {}}, "required": ["kind", "url"]},
        ]
    }
    form = fitted(ToolSpec("t", "Reads.", schema), ANTHROPIC)
    assert form.schema == {
        "type": "object",
        "properties": {"kind": {"enum": ["file", "url"]}, "path": {}, "url": {}},
        "required": ["kind"],
    }
    assert form.description.startswith("Reads.\n\nThe arguments also have to match this JSON schema: {")
    assert json.loads(form.description.partition("schema: ")[2]) == schema


def test_the_top_may_be_a_reference() -> None:
    """The schema that the top refers to stands in its place."""
    inner = {"type": "object", "properties": {"a": {"$ref": "#/definitions/A"}}, "required": ["a"]}
    schema = {"$ref": "#/definitions/Args", "definitions": {"Args": inner, "A": {"type": "string"}}}
    form = fitted(ToolSpec("t", "", schema), OPENAI).schema
    assert form is not None
    assert (form["properties"], form["required"], "$ref" in form) == (inner["properties"], ["a"], False)
    assert form["definitions"]["A"] == {"type": "string"}


def test_a_schema_within_itself_ends_where_references_may_not_stay() -> None:
    """Google's protocol gets it some levels deep."""
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "value": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"tree": {"$ref": "#/$defs/tree"}}, "$defs": {"tree": tree}}
    form = json.dumps(fitted(ToolSpec("t", "", schema), OF_GEMINI).schema)
    assert form.count('"value"') == 2
    assert "$" not in form


def test_what_a_protocol_lacks_is_told_in_words() -> None:
    """The constraints that Google's protocol does not read stand in the description."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x", "description": "it"}}}
    form = fitted(ToolSpec("t", "", schema), OF_GEMINI).schema
    assert form is not None
    assert form["properties"]["a"] == {"type": "string", "description": 'it (JSON schema: {"pattern":"^x"})'}


def test_a_long_description_goes_on_in_the_schema() -> None:
    """Nothing of it is lost, and the bound of the server is kept."""
    text = "".join(chr(97 + number % 26) for number in range(3000))
    form = fitted(ToolSpec("t", text, PLAIN), OPENAI)
    assert form.schema is not None
    assert len(form.description) == 1024
    assert form.description.removesuffix("…") + form.schema["description"].removeprefix("…") == text
    assert fitted(ToolSpec("t", text, PLAIN), ANTHROPIC).description == text


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"anyOf": [{"type": "array"}, {"type": "null"}]}, [], None, True]
)
def test_schemas_of_no_object_are_unfit(schema: Any) -> None:
    """A tool takes an object of arguments; a schema of anything else is none that could be sent."""
    with pytest.raises(UnfitToolError):
        fitted(ToolSpec("t", "", schema), OPENAI)


def test_a_schema_that_is_too_deep_is_cut() -> None:
    """Deeper levels take anything, and a schema that has itself within it is left out."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(300):
        schema = {"type": "object", "properties": {"in": schema}}
    assert 50 < json.dumps(fitted(ToolSpec("t", "", schema), OPENAI).schema).count('"in"') < 80
    wide: dict[str, Any] = {
        f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}, "b": {"$ref": f"#/$defs/d{n + 1}"}}}
        for n in range(40)
    }
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": wide}
    assert len(json.dumps(fitted(ToolSpec("t", "", schema), OF_GEMINI).schema)) < 500_000


@pytest.mark.parametrize("names", [("a.b", "a_b"), ("a.b", "a/b"), ("x" * 70, "x" * 71), ("", "_")])
def test_names_stay_apart(names: tuple[str, str]) -> None:
    """Different names are different at each server, and a name is the same each time."""
    for rules in PROTOCOLS:
        made = [rules.name(each) for each in names]
        assert made[0] != made[1]
        assert made == [rules.name(each) for each in names]
        assert all(rules.names.fullmatch(each) for each in made)


def test_the_tools_of_python_functions_are_within_the_rules() -> None:
    """Whatever a signature says, no server refuses its tool."""

    @tool(name="my.tool")
    def odd(
        one: tuple[int, str],
        two: set[int],
        three: dict[str, list[Any]],
        *,
        four: int | str | None = None,
        five: Any = 3,
    ) -> str:
        """Do something."""
        return f"{one}{two}{three}{four}{five}"

    for dialect, check in CHECKS.items():
        check(body_of(dialect, odd.spec))


async def test_an_answer_as_data_keeps_its_members() -> None:
    """Data that is forced into a call of a tool has the members of its own schema."""
    schema = {"type": "object", "properties": {"$id of": {"type": "integer"}}, "anyOf": [{"required": ["$id of"]}]}

    def server(asked: httpx.Request) -> httpx.Response:
        body = json.loads(asked.content)
        CHECKS["anthropic"](body)
        ((name, _),) = body["tools"][0]["input_schema"]["properties"].items()
        return httpx.Response(200, json=called("anthropic", "structured_output", {name: 3}))

    outcome = await over(server, request("claude-3-5-test", answer_schema=schema))
    assert json.loads(outcome.reply.message.text) == {"$id of": 3}


def test_calls_of_the_history_have_the_names_of_their_tools() -> None:
    """A call of an earlier model goes back under the name that its tool has at this server."""
    call = ToolUseBlock("c", "a.b", {"$x": 1})
    for dialect, target in DIALECTS.items():
        context = target.context(ENDPOINT, MODELS[dialect])
        context.add(AssistantMessage((call,), "tool_use"))
        text = b"".join(part for part in context.between({}, {}) if isinstance(part, bytes)).decode()
        assert json.dumps(target.tools.rules.name("a.b")) in text.replace('\\"', '"')
