"""Requests that a server refuses until a part of them is gone: each rule of the table, over each protocol."""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import attrs
import httpx
import pytest
import trio

from tests.transport.providers.byte_server import events
from tests.transport.providers.calls import (
    CLAUDE,
    GPT,
    RESPONSES,
    SSE,
    WEATHER,
    environ,
    over,
    provider_of,
    request,
    servers,
)
from warren.base.errors import ProviderError
from warren.conversation.attachments import ANY_KIND, Attachment
from warren.conversation.messages import (
    AssistantMessage,
    FileBlock,
    Message,
    ReasoningBlock,
    SystemMessage,
    TextBlock,
    ToolResult,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.conversation.transcript import Continued, Transcript
from warren.conversation.usage import Usage
from warren.models.model import Emitted, Files, ModelRequest, Repaired
from warren.models.tools import ToolSpec
from warren.transport.providers import open_providers
from warren.transport.providers.learned import LEARNED_SECONDS
from warren.transport.providers.repair import MOST_REPAIRS, RULES

GEMINI: Final = "gemini-3.8-flash"
MODELS: Final = {"chat": GPT, "anthropic": CLAUDE, "responses": RESPONSES, "gemini": GEMINI}
ANSWERS: Final[dict[str, Any]] = {
    "chat": {"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]},
    "anthropic": {"content": [{"type": "text", "text": "fine"}], "stop_reason": "end_turn"},
    "responses": {
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "fine"}]}],
    },
    "gemini": {"candidates": [{"content": {"parts": [{"text": "fine"}]}, "finishReason": "STOP"}]},
}
KINDS: Final = ANY_KIND
FIRST = Attachment("image/png", "a" * 64, 3, "first.png")
SECOND = Attachment("image/png", "b" * 64, 3, "second.png")
REMOTE = Attachment("image/png", url="https://example.test/pictures/gone.png")

Refuses = Callable[[dict[str, Any]], Any]
"""Returns the body of a refusal for the body of a request; nothing if the request is taken."""


@attrs.define
class Strict:
    """A server that refuses requests until they please it."""

    protocol: str
    refuses: Refuses
    status: int = 400
    asked: list[dict[str, Any]] = attrs.field(factory=list)

    def __call__(self, sent: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(sent.content))
        refusal = self.refuses(self.asked[-1])
        if refusal is None:
            return httpx.Response(200, json=ANSWERS[self.protocol])
        if isinstance(refusal, bytes):
            return httpx.Response(self.status, content=refusal)
        return httpx.Response(self.status, json=refusal)


async def read(_file: Attachment, start: int, size: int) -> bytes:
    """Return the bytes of each file."""
    return b"abc"[start : start + size]


def error(message: str, **more: Any) -> dict[str, Any]:
    """Return an error as OpenAI and Anthropic write it."""
    return {"error": {"message": message, "type": "invalid_request_error", **more}}


def signed(protocol: str, provider: str, model: str) -> AssistantMessage:
    """Return an answer with opaque data of a protocol, and a call."""
    own: dict[str, Any] = {
        "anthropic": {"anthropic": {"type": "thinking", "signature": "OPAQUE"}},
        "responses": {"openai": {"id": "rs_1", "encrypted_content": "OPAQUE"}},
        "gemini": {"gemini": {"thoughtSignature": "OPAQUE"}},
    }[protocol]
    data = {**own, "provider": provider, "model": model}
    return AssistantMessage((ReasoningBlock("hm", data), ToolUseBlock("call_1", "weather", {"city": "x"})), "tool_use")


SYSTEM = SystemMessage("be brief")
RESULT = ToolResultsMessage((ToolResult("call_1", "sunny"),))


async def asked_of(server: Strict, *messages: Message | str, **more: Any) -> tuple[list[Repaired], str]:
    """Ask a server, and return what was repaired and the answer."""
    pieces: list[Emitted] = []
    asked = request(MODELS[server.protocol], *messages, **more)
    outcome = await over(server, attrs.evolve(asked, files=Files(KINDS, read)), pieces)
    return [piece for piece in pieces if isinstance(piece, Repaired)], outcome.reply.message.text


FORMS: Final[list[Any]] = [
    error("Unsupported parameter: 'X' is not supported with this model.", param="X", code="unsupported_parameter"),
    {"detail": [{"loc": ["body", "X"], "msg": "Extra inputs are not permitted", "type": "extra_forbidden"}]},
    {"message": {"detail": [{"loc": ["body", "X"], "msg": "Extra inputs are not permitted"}]}, "object": "error"},
    {"error": "Extra inputs are not permitted, field: 'X'"},
    {"errors": [{"message": "unknown field: `X`"}]},
    {"detail": "X is not supported"},
    [error('Invalid JSON payload received. Unknown name "X": Cannot find field.')],
    b'json: unknown field "X"',
]


@pytest.mark.parametrize("form", FORMS, ids=range(len(FORMS)))
@pytest.mark.parametrize("status", [400, 422])
async def test_a_member_that_the_server_does_not_know(form: Any, status: int) -> None:
    """It is left out, whatever form the refusal has, and the answer arrives."""
    for member, options in (("stream_options", {}), ("reasoning_effort", {"effort": "low"})):
        text = form if isinstance(form, bytes) else json.dumps(form).encode()
        told = text.replace(b"X", member.encode())
        server = Strict("chat", lambda body, name=member, told=told: told if name in body else None, status)  # type: ignore[misc]
        repaired, answer = await asked_of(server, **options)
        assert (answer, len(server.asked)) == ("fine", 2)
        assert [(each.action, each.what) for each in repaired] == [("switched_off", f"`{member}`")]


MEMBERS = [
    ("chat", "temperature", {"temperature": 0.5}, "Unsupported value: 'temperature' does not support 0.5"),
    ("chat", "top_p", {"top_p": 0.5}, "`temperature` and `top_p` cannot both be specified for this model"),
    ("chat", "max_completion_tokens", {"max_tokens": 9}, "'max_completion_tokens' is not supported"),
    ("chat", "response_format", {"answer_schema": {"type": "object"}}, "response_format is not supported"),
    ("anthropic", "temperature", {"temperature": 0.5}, "`temperature` is deprecated for this model."),
    ("anthropic", "thinking", {"reasoning_tokens": 1024}, "thinking: Extra inputs are not permitted"),
    ("responses", "temperature", {"temperature": 0.5}, "Unsupported parameter: 'temperature' is not supported"),
    ("responses", "reasoning", {"effort": "low"}, "Unsupported parameter: 'reasoning.effort' is not supported"),
    ("responses", "include", {}, "Unknown parameter: 'include'."),
    ("gemini", "responseJsonSchema", {"answer_schema": {"type": "object"}}, 'Unknown name "responseJsonSchema"'),
    ("gemini", "thinkingConfig", {"effort": "low"}, "generationConfig.thinkingConfig is not supported"),
]


@pytest.mark.parametrize(("protocol", "member", "options", "words"), MEMBERS)
async def test_members_over_each_protocol(protocol: str, member: str, options: dict[str, Any], words: str) -> None:
    """Each member that is no part of the question may be refused."""
    server = Strict(protocol, lambda body: error(words) if f'"{member}"' in json.dumps(body) else None)
    _, answer = await asked_of(server, **options)
    assert (answer, len(server.asked)) == ("fine", 2)


async def test_the_cap_goes_under_its_other_name() -> None:
    """`max_tokens` and `max_completion_tokens` stand for one another."""
    words = "Unrecognized request argument supplied: max_completion_tokens"
    server = Strict("chat", lambda body: error(words) if "max_completion_tokens" in body else None)
    repaired, _ = await asked_of(server, max_tokens=9)
    assert (server.asked[-1]["max_tokens"], repaired[0].action) == (9, "replaced")


@pytest.mark.parametrize(
    "words",
    [
        "max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens for the model",
        "max_tokens is too large: 64000. This model supports at most 8192 completion tokens",
        "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    ],
)
async def test_a_cap_above_that_of_the_model(words: str) -> None:
    """It is lowered to what the server says."""
    for protocol, name in (("chat", "max_completion_tokens"), ("anthropic", "max_tokens")):
        server = Strict(protocol, lambda body, name=name: error(words) if body[name] > 8192 else None)  # type: ignore[misc]
        repaired, answer = await asked_of(server, max_tokens=64_000)
        assert (answer, server.asked[-1][name], repaired[0].action) == ("fine", 8192, "shortened")


SIGNATURES = [
    ("anthropic", "messages.1.content.0: Invalid `signature` in `thinking` block", None),
    ("responses", "The encrypted content for item rs_1 could not be verified.", "invalid_encrypted_content"),
    ("gemini", "Corrupted thought signature.", None),
    ("gemini", "Thought signature is not valid", None),
]


@pytest.mark.parametrize(("protocol", "words", "code"), SIGNATURES)
async def test_opaque_data_that_cannot_be_verified(protocol: str, words: str, code: str | None) -> None:
    """The reasoning of earlier answers is dropped; calls and results stay."""
    server = Strict(protocol, lambda body: error(words, code=code) if "OPAQUE" in json.dumps(body) else None)
    provider = {"responses": "responses"}.get(protocol, protocol)
    repaired, answer = await asked_of(server, "go", signed(protocol, provider, MODELS[protocol]), RESULT, "and now?")
    assert (answer, len(server.asked)) == ("fine", 2)
    assert [each.action for each in repaired] == ["dropped"]
    last = json.dumps(server.asked[-1])
    assert all(word in last for word in ("weather", "sunny", "and now?"))


@pytest.mark.parametrize("protocol", MODELS)
@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("Error while downloading https://example.test/pictures/gone.png. Upstream status code: 404.", 400),
        ("Failed to download image from gone.png. Image size exceeds the limit.", 400),
        ("Unable to process input image. Please retry or report.", 400),
        ("Request exceeds the maximum size", 413),
    ],
)
async def test_an_image_that_is_gone(protocol: str, words: str, status: int) -> None:
    """A note stands in its place, and the other image stays if the server names the one."""
    server = Strict(protocol, lambda body: error(words) if 'gone.png"' in json.dumps(body) else None, status)
    talk = (UserMessage("look", (FIRST, REMOTE)), AssistantMessage((TextBlock("ok"),), "end_turn"), "and now?")
    repaired, answer = await asked_of(server, *talk)
    assert (answer, len(server.asked), repaired[0].action) == ("fine", 2, "replaced")
    last = json.dumps(server.asked[-1])
    assert "gone.png: left out, as the server refused it" in last
    assert ("YWJj" in last) == ("gone.png" in words)


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        (
            "anthropic",
            "messages.0.content.1.image.source.base64.data: the image dimensions exceed max allowed size",
        ),
        ("chat", "Invalid 'messages[0].content[1].image_url.url': image data is invalid"),
        ("responses", "Invalid 'input[0].content[1].image_url'. Expected a valid image."),
        ("gemini", "Unable to process image at contents[0].parts[1].inlineData"),
    ],
)
async def test_the_image_at_a_place_of_the_body(protocol: str, words: str) -> None:
    """The server's path leads to the file, and this file alone is replaced."""
    server = Strict(protocol, lambda body: error(words) if json.dumps(body).count("YWJj") > 1 else None)
    repaired, answer = await asked_of(server, UserMessage("look", (FIRST, SECOND)))
    assert (answer, [each.what for each in repaired]) == ("fine", ["image second.png, by a note"])
    assert json.dumps(server.asked[-1]).count("YWJj") == 1


async def test_too_many_images() -> None:
    """The oldest go, until so many are left as the server takes."""
    words = "At most 1 image(s) may be provided in one request."
    server = Strict("chat", lambda body: error(words) if json.dumps(body).count("YWJj") > 1 else None)
    talk: list[Message | str] = [
        UserMessage("one", (FIRST,)),
        AssistantMessage((TextBlock("ok"),), "end_turn"),
        UserMessage("two", (SECOND,)),
    ]
    repaired, answer = await asked_of(server, *talk)
    assert (answer, [each.what for each in repaired]) == ("fine", ["image first.png, by a note"])


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("image input is not supported - hint: if this is unexpected, you may need to provide the mmproj", 500),
        ("No endpoints found that support image input", 404),
        ("Failed to deserialize the JSON body: messages[0]: unknown variant `image_url`, expected `text`", 422),
        ("x is not a multimodal model", 400),
        ("This model does not support image input. Supported types: text", 400),
        ("This model does not support images.", 400),
        ("Content type 'image_url' is not supported by this model", 400),
    ],
)
async def test_a_server_without_images(words: str, status: int) -> None:
    """All images are told in words, and no image goes to that model any more."""
    server = Strict("chat", lambda body: error(words) if "YWJj" in json.dumps(body) else None, status)
    repaired, answer = await asked_of(server, UserMessage("look", (FIRST,)))
    assert (answer, [each.what for each in repaired]) == ("fine", ["`images`"])


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("failed to connect to upstream https://api.example.test/v1/chat/completions: timeout", 502),
        ("could not process the image, please try again", 500),
        ("cannot lock the file", 409),
        ("Invalid profile", 400),
        ("Invalid value, see https://docs.example.test", 400),
        ("the file is read", 400),
        ("request failed", 400),
    ],
)
async def test_files_stay_if_a_refusal_is_not_about_them(words: str, status: int) -> None:
    """Neither a fault of a moment nor words that look like those of a file take a file away."""
    server = Strict("chat", lambda _body: error(words), status)
    with pytest.raises(ProviderError):
        await asked_of(server, UserMessage("look", (FIRST, REMOTE)), CALLED, RESULT)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("Invalid schema for function 'read_file': array schema missing items", "the tool read_file"),
        ("Invalid schema for function 'file': cannot read the file", "the tool file"),
        ("Unrecognized request argument supplied: stream_options, see https://docs.example.test", "`stream_options`"),
        ("The file service: stream_options is not supported", "`stream_options`"),
    ],
)
async def test_files_stay_if_a_refusal_is_about_another_part(words: str, what: str) -> None:
    """The tool or the member is repaired, though the words have a file or an address in them."""
    server = Strict("chat", lambda _body: error(words) if len(server.asked) == 1 else None)
    tools = tuple(ToolSpec(name, "reads", {"type": "object"}) for name in ("read_file", "file"))
    repaired, answer = await asked_of(server, UserMessage("look", (FIRST,)), tools=tools)
    assert (answer, [each.what for each in repaired]) == ("fine", [what])


@pytest.mark.parametrize("status", [409, 500, 502])
async def test_a_file_that_a_fault_of_a_moment_names(status: int) -> None:
    """A server that answers so for a dead address does so each time."""
    words = "Error while downloading https://example.test/pictures/gone.png"
    server = Strict("chat", lambda body: error(words) if 'gone.png"' in json.dumps(body) else None, status)
    repaired, answer = await asked_of(server, UserMessage("look", (FIRST, REMOTE)))
    assert (answer, [each.what for each in repaired]) == ("fine", [f"{REMOTE.label}, by a note"])


@pytest.mark.parametrize("protocol", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize(
    ("words", "left"),
    [
        (
            "Invalid 'tools': array too long. Expected an array with maximum length 128, but got one with length 200.",
            128,
        ),
        ("You may not include more than 128 tools in your request.", 128),
        ("tools: List should have at most 64 items after validation, not 200", 64),
        ("The maximum number of tools is 20", 20),
        ("Tool count exceeds limit: 200 > 128", 128),
        ("too many functions", 100),
    ],
)
async def test_more_tools_than_a_server_takes(protocol: str, words: str, left: int) -> None:
    """A server of another maker gets all of them; if it refuses that, the first ones that it takes."""
    specs = tuple(ToolSpec(f"t{number}", "", {"type": "object", "properties": {}}) for number in range(200))
    server = Strict(protocol, lambda body: error(words) if len(body["tools"]) > left else None)
    variables = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
    names = {"chat": "chat", "responses": "responses", "anthropic": "anthropic"}
    pieces: list[Emitted] = []
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(server)) as client,
        open_providers(environ() | variables, client=client, servers=servers("http://127.0.0.1:9/v1")) as providers,
    ):
        model = MODELS[protocol]
        provider = providers.resolve(model, names[protocol]).provider
        await provider.complete(request(model, "a", tools=specs), pieces.append)
    assert [len(body["tools"]) for body in server.asked] == [200, left]
    (repaired,) = [piece for piece in pieces if isinstance(piece, Repaired)]
    assert (repaired.action, repaired.what) == ("left_out", f"the last {200 - left} tools")


async def test_the_number_of_tools_is_remembered_and_not_their_names() -> None:
    """Other conversations with the same tools, and fewer of them, have all of theirs; one with many asks once."""
    specs = tuple(ToolSpec(f"t{number}", "", {"type": "object", "properties": {}}) for number in range(200))
    words = "You may not include more than 128 tools in your request."
    server = Strict("chat", lambda body: error(words) if len(body.get("tools", ())) > 128 else None)
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(server)) as client,
        open_providers(environ(), client=client, servers=servers("http://127.0.0.1:9/v1")) as providers,
    ):
        complete = providers.resolve(MODELS["chat"], "chat").provider.complete
        for tools in (specs, specs[190:], specs[::-1]):
            await complete(request(MODELS["chat"], "a", tools=tools), lambda _: None)
    sent = [[tool["function"]["name"] for tool in body["tools"]] for body in server.asked]
    assert sent[2:] == [[spec.name for spec in specs[190:]], [spec.name for spec in specs[:71:-1]]]


ODD_ID: Final = "call_1__thought__" + "CiQB+/=" * 20


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ("chat", "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40"),
        ("anthropic", "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"),
        ("responses", "Invalid 'input[1].call_id': string too long. Expected a string with maximum length 64"),
    ],
)
async def test_ids_that_another_server_has_chosen(protocol: str, words: str) -> None:
    """They go out as they came until the server refuses them: then call and result have a short one."""
    server = Strict(protocol, lambda body: error(words) if ODD_ID in json.dumps(body, ensure_ascii=False) else None)
    maker = {"provider": provider_of(MODELS[protocol]) or "anthropic", "model": MODELS[protocol]}
    answer = AssistantMessage((ToolUseBlock(ODD_ID, "weather", {}, None, maker),), "tool_use")
    results = ToolResultsMessage((ToolResult(ODD_ID, "sunny"),))
    repaired, said = await asked_of(server, "a", answer, results, tools=(WEATHER,))
    assert (said, len(repaired)) == ("fine", 1)
    assert json.dumps(server.asked[0]).count(json.dumps(ODD_ID)) == 2
    assert "sunny" in json.dumps(server.asked[1])


@pytest.mark.parametrize("code", ["invalid_image", "image_parse_error", "invalid_image_format", "image_too_large"])
async def test_a_code_that_says_image(code: str) -> None:
    """A code is enough, if the words say nothing."""
    server = Strict("chat", lambda body: error("Bad input", code=code) if "YWJj" in json.dumps(body) else None)
    repaired, answer = await asked_of(server, UserMessage("look", (FIRST,)))
    assert (answer, [each.action for each in repaired]) == ("fine", ["replaced"])


@pytest.mark.parametrize(
    "words",
    [
        "Image format is not supported: image/png",
        "image/png is not supported",
        "This server does not support image/png",
        "The server does not support image URLs",
        "This model does not support images of this size",
        "Image type is not supported",
        "Images larger than 5 MB are not supported",
        "Unsupported image format",
    ],
)
async def test_words_about_one_image_are_not_about_the_model(words: str) -> None:
    """A note replaces that image, and other conversations go on with theirs."""
    server = Strict("chat", lambda body: error(words) if "YWJj" in json.dumps(body) else None)
    repaired, answer = await asked_of(server, UserMessage("look", (FIRST,)))
    assert (answer, [each.what for each in repaired]) == ("fine", [f"{FIRST.label}, by a note"])


NINE = re.compile("[a-zA-Z0-9]{9}")
CALLED = AssistantMessage((ToolUseBlock("call_1", "weather", {}),), "tool_use")


def of_mistral(body: dict[str, Any]) -> Any:
    """Refuse what Mistral's server refuses."""
    roles = [each["role"] for each in body["messages"]]
    for before, role in pairwise(roles):
        if (before, role) == ("tool", "user"):
            return {"object": "error", "message": "Unexpected role 'user' after role 'tool'", "code": "3230"}
    for each in body["messages"]:
        for call in each.get("tool_calls", ()):
            if not NINE.fullmatch(call["id"]):
                return error(f"Tool call id was {call['id']} but must be a-z, A-Z, 0-9, with a length of 9.")
    ids = {call["id"] for each in body["messages"] for call in each.get("tool_calls", ())}
    assert ids == {each["tool_call_id"] for each in body["messages"] if each["role"] == "tool"}
    return None


async def test_roles_and_ids_of_mistral() -> None:
    """Ids have nine letters and digits, the same in a call and its result, and an answer stands before the prompt."""
    server = Strict("chat", of_mistral)
    repaired, answer = await asked_of(server, "go", CALLED, RESULT, "and now?")
    assert (answer, len(repaired)) == ("fine", 2)


@pytest.mark.parametrize(
    "words", ["invalid message content type: <nil>", "Expected 'content' to be a string or an array"]
)
async def test_an_answer_without_a_text(words: str) -> None:
    """It gets an empty text beside its calls."""
    server = Strict("chat", lambda body: error(words) if '"content": null' in json.dumps(body) else None)
    repaired, answer = await asked_of(server, "go", CALLED, RESULT)
    assert (answer, [each.what for each in repaired]) == ("fine", ["`null_content`"])


@pytest.mark.parametrize(
    "words",
    [
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
        "messages.1: reasoning_content is required",
        "Missing `reasoning_content` field in the assistant message at message index 1",
    ],
)
async def test_answers_of_another_model_before_one_that_reasons(words: str) -> None:
    """Each answer goes back with a reasoning, that of its own stays, and the next request is right at once."""

    def refuses(body: dict[str, Any]) -> Any:
        answers = [each for each in body["messages"] if each["role"] == "assistant"]
        return error(words) if not all(each.get("reasoning_content") for each in answers) else None

    server, done = Strict("chat", refuses), AssistantMessage((TextBlock("done"),), "end_turn")
    repaired, answer = await asked_of(server, "go", CALLED, RESULT, done, "and now?")
    assert (answer, [each.what for each in repaired]) == ("fine", ["`reasoning_back`"])


def of_template(body: dict[str, Any]) -> Any:
    """Refuse what the template of a model without tools and without a system prompt refuses."""
    roles = [each["role"] for each in body["messages"]]
    if "system" in roles:
        return error("System role not supported")
    if roles != [("user", "assistant")[at % 2] for at in range(len(roles))]:
        return error("Conversation roles must alternate user/assistant/user/assistant/...")
    return None


async def test_roles_that_have_to_alternate() -> None:
    """Calls and results go out as words, so that none is forgotten."""
    server = Strict("chat", of_template, 500)
    _, answer = await asked_of(server, SYSTEM, "go", CALLED, RESULT, "and now?")
    last = json.dumps(server.asked[-1])
    assert answer == "fine"
    assert all(word in last for word in ("be brief", "weather", "sunny", "and now?"))


ODD = ToolSpec("odd", "is odd", {"type": "object", "properties": {"$x": {}}})


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ("anthropic", "tools.1.custom.input_schema.properties: Property keys should match pattern"),
        ("chat", "Invalid schema for function 'odd': In context=(), schema must be right"),
        ("chat", "Invalid 'tools[1].function.parameters': wrong"),
        ("responses", "Invalid schema for function 'odd': no"),
        ("gemini", "* GenerateContentRequest.tools[0].function_declarations[1].parameters.properties: wrong"),
    ],
)
async def test_a_tool_that_is_refused(protocol: str, words: str) -> None:
    """That tool alone is left out."""
    server = Strict(protocol, lambda body: error(words) if '"odd"' in json.dumps(body["tools"]) else None)
    repaired, answer = await asked_of(server, tools=(WEATHER, ODD))
    assert (answer, [(each.action, each.what) for each in repaired]) == ("fine", [("left_out", "the tool odd")])
    assert '"weather"' in json.dumps(server.asked[-1]["tools"])


@pytest.mark.parametrize(
    ("protocol", "member", "words", "param"),
    [
        (
            "chat",
            "response_format",
            "Invalid schema for response_format 'structured_output': no 'type'",
            "response_format",
        ),
        ("chat", "response_format", "schema must have a 'type' key", "response_format.json_schema.schema"),
        ("responses", "text", "Invalid schema for response_format 'structured_output': no", "text.format.schema"),
        ("gemini", "responseJsonSchema", "* GenerateContentRequest.generation_config.response_schema: invalid", ""),
    ],
)
async def test_a_schema_of_the_answer_that_is_refused(protocol: str, member: str, words: str, param: str) -> None:
    """The question goes out without it, and with all tools."""
    server = Strict(protocol, lambda body: error(words, param=param) if f'"{member}"' in json.dumps(body) else None)
    schema = {"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": False}
    repaired, answer = await asked_of(server, answer_schema=schema)
    assert (answer, [each.what for each in repaired]) == ("fine", [f"`{member}`"])


async def test_a_tool_that_is_no_json_beside_one_that_is_refused() -> None:
    """It does not count as refused, and its call does not fail."""
    server = Strict("chat", lambda body: error("Invalid schema for function 'odd'") if "odd" in str(body) else None)
    blank = ToolSpec("blank", "is no JSON", {"type": "object", "properties": {}, "x": object()})
    repaired, answer = await asked_of(server, tools=(blank, ODD, WEATHER))
    assert (answer, "the tool odd" in [each.what for each in repaired]) == ("fine", True)


@pytest.mark.parametrize(
    "words",
    [
        "supports at most {0} completion tokens",
        "max_tokens: 64000 > {0}",
        "At most {0} image(s) may be provided",
        "Invalid tools[{0}]",
        "Invalid messages[{0}].content: could not process the image",
    ],
)
async def test_numbers_that_are_no_numbers(words: str) -> None:
    """A refusal with a number of more digits than Python reads is a refusal like others."""
    server = Strict("chat", lambda _body: error(words.format("9" * 5000)))
    with pytest.raises(ProviderError) as caught:
        await asked_of(server, UserMessage("look", (FIRST,)), tools=(WEATHER,))
    assert caught.value.cause == "bad_request"


async def test_cache_marks_that_are_refused() -> None:
    """Requests to that model go without them."""
    words = "system.0.cache_control: Extra inputs are not permitted"
    server = Strict("anthropic", lambda body: error(words) if "cache_control" in json.dumps(body) else None)
    assert (await asked_of(server, SYSTEM, "hi"))[1] == "fine"


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ("This model's maximum context length is 8192 tokens, however you requested 9000 tokens in the messages", {}),
        ("Your request was flagged: image and text are not allowed", {"code": "content_filter"}),
        ("You exceeded your current quota, please check your plan", {"code": "insufficient_quota"}),
        ("The model `x` does not exist", {"code": "model_not_found"}),
    ],
)
@pytest.mark.parametrize("protocol", MODELS)
async def test_refusals_that_are_about_something_else(protocol: str, words: str, more: dict[str, Any]) -> None:
    """Nothing is changed, and nothing is asked again."""
    server = Strict(protocol, lambda _body: error(words, **more))
    talk = (SYSTEM, UserMessage("look", (FIRST,)), CALLED, RESULT, "and now?")
    with pytest.raises(ProviderError):
        await asked_of(server, *talk, tools=(WEATHER,), effort="low", max_tokens=4096)
    assert len(server.asked) == 1


async def test_what_cannot_be_repaired_is_refused_once() -> None:
    """A refusal that no rule knows, or that stays, raises its error, and the number of requests is bounded."""
    for words in ("the moon is wrong", "stream_options: Extra inputs are not permitted"):
        server = Strict("chat", lambda _body, words=words: error(words))  # type: ignore[misc]
        with pytest.raises(ProviderError) as caught:
            await asked_of(server)
        assert (caught.value.cause, caught.value.refuses_request) == ("bad_request", True)
        assert len(server.asked) <= 1 + MOST_REPAIRS
        assert words in caught.value.message


@pytest.mark.parametrize(
    ("status", "body"),
    [(403, b"<html><title>Forbidden</title>x</html>"), (413, b"<html>"), (400, b""), (400, b"Bad Request")],
)
async def test_the_refusal_of_a_proxy(status: int, body: bytes) -> None:
    """It is no verdict on the prompt."""
    with pytest.raises(ProviderError) as caught:
        await asked_of(Strict("chat", lambda _body: body, status))
    assert not caught.value.refuses_request
    assert ("firewall" in caught.value.message) == (body != b"Bad Request")


@pytest.mark.virtual_time
async def test_a_refusal_is_remembered_for_a_while() -> None:
    """The next request goes out right at once, of other models as before; an hour later it is tried again."""
    server = Strict("chat", lambda body: error("unknown field: `stream_options`") if "stream_options" in body else None)
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(server)) as client,
        open_providers(environ(), client=client, servers=servers()) as providers,
    ):
        choice = providers.resolve(GPT, provider_of(GPT))

        async def ask(model: str) -> int:
            before = len(server.asked)
            await choice.provider.complete(request(model), lambda _piece: None)
            return len(server.asked) - before

        assert [await ask(GPT), await ask(GPT), await ask("gpt-other")] == [2, 1, 2]
        await trio.sleep(LEARNED_SECONDS)
        assert await ask(GPT) == 2


MANY: Final = MOST_REPAIRS + 4


async def test_many_tools_that_are_refused_one_by_one() -> None:
    """All of them are left out in one call, also if the words are the same each time."""
    for words in ("Invalid schema for function 'odd{0}': no", "Invalid 'tools[0].function.parameters': wrong"):

        def refuses(body: dict[str, Any], words: str = words) -> Any:
            found = re.search(r'"odd(\d+)"', json.dumps(body.get("tools")))
            return error(words.format(found[1])) if found else None

        server = Strict("chat", refuses)
        tools = tuple(ToolSpec(f"odd{number}", "is odd", {"type": "object"}) for number in range(MANY))
        repaired, answer = await asked_of(server, tools=(*tools, WEATHER))
        assert (answer, len(repaired)) == ("fine", MANY)
        assert '"weather"' in json.dumps(server.asked[-1])


async def test_many_files_that_are_refused_one_by_one() -> None:
    """All of them are replaced in one call."""

    def refuses(body: dict[str, Any]) -> Any:
        found = re.search(r'"(https://example.test/\d+.png)"', json.dumps(body))
        return error(f"Error while downloading {found[1]}.") if found else None

    files = [Attachment("image/png", url=f"https://example.test/{number}.png") for number in range(MANY)]
    repaired, answer = await asked_of(Strict("chat", refuses), *(UserMessage("look", (file,)) for file in files))
    assert (answer, len(repaired)) == ("fine", MANY)


async def test_repairs_that_got_past_a_refusal_stay() -> None:
    """If the repaired request fails for another reason, the next one begins repaired; else nothing is kept."""
    failing = [httpx.Response(503), httpx.ReadError("gone"), httpx.Response(400, json=error("the moon is wrong"))]
    for then in [*failing, None]:
        asked = list[dict[str, Any]]()

        def server(sent: httpx.Request, then: Any = then, asked: list[dict[str, Any]] = asked) -> httpx.Response:
            asked.append(json.loads(sent.content))
            if "stream_options" in asked[-1] or then is None:
                return httpx.Response(
                    400, json=error(f"Unknown: 'stream_options' (request id: 2026{len(asked):020}aX)")
                )
            if isinstance(then, Exception):
                raise then
            answer: httpx.Response = then
            return answer

        async with (
            httpx.AsyncClient(transport=httpx.MockTransport(server)) as client,
            open_providers(environ(), client=client, servers=servers()) as providers,
        ):
            provider = providers.resolve(GPT, provider_of(GPT)).provider
            with pytest.raises(ProviderError):
                await provider.complete(request(GPT), lambda _piece: None)
            with pytest.raises(ProviderError):
                await provider.complete(request(GPT), lambda _piece: None)
        assert ["stream_options" in each for each in asked] == [True, False, *([False] if then else [True, False])]


@pytest.mark.parametrize("then", [httpx.Response(503), httpx.ReadError("gone"), httpx.Response(400, json=error("no"))])
@pytest.mark.parametrize("words", ["Bad request", "The payload is odd"])
async def test_a_guess_that_no_answer_follows_is_not_kept(words: str, then: Any) -> None:
    """A refusal that may be of a server in trouble takes no file out of the conversation, as long as it is away."""
    asked = list[str]()

    def server(sent: httpx.Request) -> httpx.Response:
        asked.append(sent.content.decode())
        if len(asked) == 1:
            return httpx.Response(400, json=error(words))
        if len(asked) == 2 and isinstance(then, Exception):
            raise then
        return then if len(asked) == 2 else httpx.Response(200, json=ANSWERS["chat"])

    transcript = Transcript()
    for message in (UserMessage("look", (FIRST,)), AssistantMessage((TextBlock("so"),)), UserMessage("and?")):
        transcript.append(message)
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(server)) as client,
        open_providers(environ(), client=client, servers=servers()) as providers,
    ):
        ask = partial(
            providers.resolve(GPT, provider_of(GPT)).provider.complete,
            ModelRequest(GPT, transcript, files=Files(KINDS, read)),
            lambda _piece: None,
        )
        with pytest.raises(ProviderError):
            await ask()
        await ask()
    assert ["YWJj" in each for each in asked] == [True, False, True]


async def test_a_conversation_is_refused_once_for_a_part() -> None:
    """The next requests of a conversation, and those beside it, go without the part; new reasoning goes out."""
    server = Strict(
        "anthropic",
        lambda body: error("Invalid `signature` in `thinking` block") if "OPAQUE" in json.dumps(body) else None,
    )
    transcript = Transcript()
    for message in (UserMessage("go"), signed("anthropic", "anthropic", CLAUDE), RESULT):
        transcript.append(message)
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(server)) as client,
        open_providers(environ(), client=client) as providers,
    ):
        provider = providers.resolve(CLAUDE, "anthropic").provider

        async def ask(asked: ModelRequest) -> int:
            before = len(server.asked)
            await provider.complete(asked, lambda _piece: None)
            return len(server.asked) - before

        assert await ask(ModelRequest(CLAUDE, transcript)) == 2
        data = {"anthropic": {"type": "thinking", "signature": "NEW"}, "provider": "anthropic", "model": CLAUDE}
        transcript.append(AssistantMessage((ReasoningBlock("hm", data), TextBlock("so")), "end_turn"))
        transcript.append(UserMessage("more"))
        assert await ask(ModelRequest(CLAUDE, transcript)) == 1
        assert "NEW" in json.dumps(server.asked[-1])
        assert await ask(ModelRequest(CLAUDE, Continued(transcript, [UserMessage("aside")]))) == 1


async def test_the_tokens_of_a_request_that_is_refused_in_its_stream() -> None:
    """They are told with the repair, and the usage of the answer is that of its own request."""
    begun = {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 1000, "output_tokens": 1}}}
    refused = {"type": "error", **error("temperature is not supported")}

    def server(sent: httpx.Request) -> httpx.Response:
        if "temperature" in json.loads(sent.content):
            return httpx.Response(200, headers=SSE, content=events(begun, refused))
        return httpx.Response(200, json=ANSWERS["anthropic"] | {"usage": {"input_tokens": 900, "output_tokens": 2}})

    pieces: list[Emitted] = []
    outcome = await over(server, request(CLAUDE, "hello", temperature=0.5), pieces)
    assert [each.usage for each in pieces if isinstance(each, Repaired)] == [Usage(1000, 1)]
    assert outcome.reply.usage == Usage(900, 2)


def test_each_rule_says_its_source() -> None:
    """The table in the documentation is made of the rules."""
    assert all(re.match(r"github\.com/|$", rule.source) and rule.about for rule in RULES)


MADE: Final[dict[str, dict[str, Any]]] = {
    "gemini": {"gemini": {"inlineData": {"mimeType": "image/png"}, "thoughtSignature": "OPAQUE"}},
    "responses": {"openai": {"type": "image_generation_call", "id": "ig_1", "status": "completed"}},
    "chat": {},
    "anthropic": {},
}
REFUSED_PICTURES: Final = ("x is not a multimodal model", "Unable to process input image. Please retry or report.")


@pytest.mark.parametrize("protocol", MADE)
@pytest.mark.parametrize("words", REFUSED_PICTURES)
@pytest.mark.parametrize("kinds", [KINDS, frozenset[Any]()])
async def test_a_picture_that_a_model_has_made(protocol: str, words: str, kinds: frozenset[Any]) -> None:
    """It is repaired as an attachment is, where it goes out as a part of the prompt or of the answer."""
    names = {"gemini": "gemini", "responses": "responses"}
    data = MADE[protocol] | {"provider": names.get(protocol, "x"), "model": MODELS[protocol]}
    answer = AssistantMessage((TextBlock("here"), FileBlock(FIRST, data)), "end_turn")
    server = Strict(protocol, lambda body: error(words) if "YWJj" in json.dumps(body) else None)
    pieces: list[Emitted] = []
    asked = attrs.evolve(request(MODELS[protocol], "draw", answer, "and now?"), files=Files(kinds, read))
    outcome = await over(server, asked, pieces)
    repaired = [each.what for each in pieces if isinstance(each, Repaired)]
    goes_out = bool(kinds) or protocol in names
    what = "`images`" if words == REFUSED_PICTURES[0] else "image first.png, by a note"
    assert (outcome.reply.message.text, repaired) == ("fine", [what] if goes_out else [])
    assert ("left out, as the server refused it" in json.dumps(server.asked[-1])) == ("by a note" in "".join(repaired))


async def test_a_picture_with_a_signature_that_is_refused() -> None:
    """Its signature goes with those of the other parts, and the picture is seen with the next prompt."""
    data = MADE["gemini"] | {"provider": "gemini", "model": GEMINI}
    answer = AssistantMessage((TextBlock("here"), FileBlock(FIRST, data)), "end_turn")
    words = "Corrupted thought signature."
    server = Strict("gemini", lambda body: error(words) if "OPAQUE" in json.dumps(body) else None)
    repaired, text = await asked_of(server, "draw", answer, "and now?")
    assert (text, len(repaired), json.dumps(server.asked[-1]).count("YWJj")) == ("fine", 1, 1)


async def test_left_out_tools_are_told_once_for_all_repairs() -> None:
    """A repair within the call, or in a later one of the conversation, tells of no tool again."""
    refused = ["stream_options", "temperature"]

    def refuses(body: dict[str, Any]) -> Any:
        return next((error(f"unknown field: `{name}`") for name in refused if name in body), None)

    server = Strict("chat", refuses)
    tools = (ToolSpec("bad", "", {"type": "array"}), WEATHER)
    transcript = Transcript()
    transcript.append(UserMessage("go"))
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(server)) as client,
        open_providers(environ(), client=client, servers=servers()) as providers,
    ):

        async def told(messages: Sequence[Message], model: str) -> list[str]:
            pieces: list[Emitted] = []
            asked = attrs.evolve(request(model, tools=tools, temperature=0.5, top_p=0.5), messages=messages)
            await providers.resolve(GPT, "chat").provider.complete(asked, pieces.append)
            return [piece.what for piece in pieces if isinstance(piece, Repaired)]

        assert await told(transcript, GPT) == ["the tool `bad`", "`stream_options`", "`temperature`"]
        assert await told(transcript, GPT) == []
        refused.append("top_p")
        assert await told(transcript, GPT) == ["`top_p`"]
        assert await told([UserMessage("aside")], "gpt-other") == [
            "the tool `bad`",
            "`stream_options`",
            "`temperature`",
            "`top_p`",
        ]


WORDS: Final = (
    ("anthropic", "OPAQUE", "messages.1.content.0.thinking.signature: Field required"),
    ("anthropic", "OPAQUE", "messages.1.content.0.type: Input tag 'thinking' does not match any of the expected tags"),
    ("responses", "OPAQUE", "Encrypted content is not supported with this model."),
    ("responses", "OPAQUE", "Unknown item type 'reasoning' in input[1]"),
    ("responses", '"include"', "Unsupported parameter: include"),
    ("gemini", "systemInstruction", "Developer instruction is not enabled for models/gemma-3-27b-it"),
    ("gemini", '"id"', "Unknown name \"id\" at 'contents[1].parts[0].function_call': Cannot find field."),
    ("chat", '"role": "system"', "unexpected message role: system"),
    ("chat", '"content": null', "Value is not a string: messages[2].content"),
    ("chat", '"content": null', "messages.2.content: Input should be a valid string"),
    ("chat", '"content": null', "invalid type: null, expected a string at line 1 column 220"),
    ("anthropic", "base64", "A maximum of 100 PDF pages may be provided."),
    ("anthropic", "base64", "The image was specified using the image/png media type, but appears to be image/jpeg"),
    ("responses", "base64", "The image data you provided does not represent a valid image."),
    ("chat", "base64", "The prompt contains multimodal content but model is text-only"),
    ("gemini", "inlineData", "Request payload size exceeds the limit: 20971520 bytes."),
    ("gemini", "inlineData", "Cannot fetch content from the provided URL."),
    ("gemini", "inlineData", "The document has no pages."),
    ("gemini", "inlineData", "Request contains an invalid argument."),
    ("chat", "base64", "Bad Request"),
    ("gemini", "inlineData", "Image input modality is not enabled for models/gemma-3-1b-it"),
)
"""What servers of these protocols say when a part of a request, whose bytes have a text, is too much for them."""


@pytest.mark.parametrize(("protocol", "part", "words"), WORDS)
async def test_words_of_other_servers(protocol: str, part: str, words: str) -> None:
    """The part that is meant is known by a word of the refusal, and the conversation goes on without it."""
    answer = AssistantMessage((ToolUseBlock("call_1", "weather", {"city": "x"}),), "tool_use")
    if protocol != "chat":
        answer = signed(protocol, provider_of(MODELS[protocol]) or protocol, MODELS[protocol])
    server = Strict(protocol, lambda body: error(words) if part in json.dumps(body) else None)
    asked: list[Message | str] = [
        SYSTEM,
        UserMessage("look", (FIRST,)),
        answer,
        RESULT,
        AssistantMessage((TextBlock("ok"),)),
        "and?",
    ]
    repaired, said = await asked_of(server, *asked, tools=(WEATHER,))
    assert (said, len(repaired)) == ("fine", 1)
    assert "sunny" in json.dumps(server.asked[-1])
