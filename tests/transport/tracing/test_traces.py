"""The traces of turns: their spans as a receiver gets them, and their places from surface to surface."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import attrs
import pytest
import trio
from mcp_types import RequestParamsMeta
from opentelemetry.sdk.trace import TracerProvider

from tests.support.asking import ask
from tests.support.envelopes import LATER, resumed_turn
from tests.support.models import Emit, FunctionModel, reply, says
from tests.support.waiting import until
from tests.transport.cli.process import Cli
from tests.transport.cli.serving import connected, serve
from tests.transport.clients import connect
from tests.transport.cluster.nodes import cluster
from tests.transport.mcp.clients import connected as mcp_connected
from tests.transport.providers.byte_server import END, HEAD, Request, chunk, events
from tests.transport.providers.byte_server import serve as serve_model
from tests.transport.rest.clients import port_of, rest
from tests.transport.tracing.receiver import Receiver, Span, receiving
from warren.base.errors import ProviderError, SessionNotRunningError, WarrenError
from warren.calls.facade import RuntimeService
from warren.conversation.events import RunStarted, TurnStarted
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest, Provider
from warren.models.tools import tool
from warren.reports.tracing import TraceContext, TracedTurn, Tracer, context_of, here
from warren.settings.config import Config, Limits, ModelServer, RetryPolicy, StoreConfig, TraceConfig
from warren.settings.tool_config import ToolsConfig
from warren.transport.embed import open_supervisor
from warren.transport.tracing import conventions
from warren.transport.tracing.spans import spans_of

TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
CALLER: Final = f"00-{TRACE}-b7ad6b7169203331-01"
SECRET: Final = "the swordfish"  # noqa: S105 - a text that is looked for
TOOL_TEXT: Final = "marlin"


@tool(description="Fish.")
def fish(bait: str) -> str:
    """Return a fish."""
    return f"{TOOL_TEXT} with {bait}"


@tool(description="Break.")
def broken() -> str:
    """Fail."""
    raise ValueError("no")


class Noting(Tracer):
    """A tracer that keeps the turns; it samples what its callers do."""

    def __init__(self) -> None:
        self.turns: list[TracedTurn] = []

    def begin(self, parent: TraceContext | None) -> TraceContext:
        return TraceContext(1, 2, sampled=False) if parent is None else parent.child()

    def ended(self, turn: TracedTurn) -> None:
        self.turns.append(turn)

    @property
    def parents(self) -> list[tuple[int, int | None]]:
        """The trace and the parent of each turn."""
        return [(turn.place.trace_id, turn.parent) for turn in self.turns]


META: Final = cast("RequestParamsMeta", {"traceparent": CALLER})
PARENT: Final = (int(TRACE, 16), 0xB7AD6B7169203331)
SIDES = ("input", "output")


async def traced(model: Provider, receiver: Receiver, *prompts: str, **settings: Any) -> list[WarrenError]:
    """Run turns of one session in a runtime with traces; return their errors when the spans have arrived."""
    errors: list[WarrenError] = []
    traces = TraceConfig(receiver.url, **settings)
    config = Config(model="test", traces=traces, retry=RetryPolicy(initial_delay=0, jitter=0))
    async with open_supervisor(config, providers={"test": model}, tools=[fish, broken], environ={}) as service:
        session_id = (await service.create_session(None)).session_id
        for prompt in prompts:
            try:
                await service.start_turn(session_id, prompt)
            except WarrenError as exc:
                errors.append(exc)
    return errors


def children(receiver: Receiver, parent: Span) -> list[str]:
    """Return the names of the children of a span, in the order of their ends."""
    return [span.name for span in receiver.spans if span.parent == parent.span_id]


async def test_the_spans_of_a_turn() -> None:
    """A turn with a retry, two tools and an answer, by the names of the conventions; without any text."""
    overloaded = ProviderError("busy", cause="overloaded", retryable=True)
    calls = ToolUseBlock("c1", "fish", {"bait": SECRET}), ToolUseBlock("c2", "broken", {})
    with receiving() as receiver:
        await traced(says(overloaded, reply("let me see", *calls), reply("done")), receiver, SECRET)
    (turn,) = receiver.named("invoke_agent")
    assert turn.parent == ""
    assert {span.trace_id for span in receiver.spans} == {turn.trace_id}
    assert sorted(children(receiver, turn)) == sorted(
        ["chat test", "execute_tool fish", "execute_tool broken", "chat test", "warren.commit"]
    )
    assert turn.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert turn.attributes["gen_ai.provider.name"] == turn.attributes["gen_ai.request.model"] == "test"
    assert turn.attributes["gen_ai.conversation.id"] == turn.attributes["session.id"]
    assert (turn.attributes["warren.turn"], turn.attributes["warren.tenant"]) == (1, "default")
    assert (turn.attributes["gen_ai.usage.input_tokens"], turn.attributes["gen_ai.usage.output_tokens"]) == (6, 4)
    first, last = receiver.named("chat test")
    assert first.events == ("retry",)
    assert (first.attributes["warren.step"], last.attributes["warren.step"]) == (0, 1)
    assert first.attributes["gen_ai.response.finish_reasons"] == ["tool_call"]
    assert last.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert last.attributes["gen_ai.usage.input_tokens"] == 3
    (good,), (bad,) = receiver.named("execute_tool fish"), receiver.named("execute_tool broken")
    assert (good.failed, good.attributes["gen_ai.tool.call.id"]) == (False, "c1")
    assert (bad.failed, bad.attributes["error.type"]) == (True, "tool_error")
    assert turn.resource["service.name"] == "warren"
    for text in (SECRET, TOOL_TEXT, "let me see"):
        assert not any(text.encode() in body for body in receiver.raw)


async def test_texts_only_if_asked_for() -> None:
    """Prompt, answer, arguments and results are in the spans then."""
    with receiving() as receiver:
        model = says(reply("", ToolUseBlock("c1", "fish", {"bait": "worm"})), reply("done"))
        await traced(model, receiver, SECRET, content=True)
    (turn,), (call,) = receiver.named("invoke_agent"), receiver.named("execute_tool fish")
    asked, answered = (json.loads(turn.attributes[f"gen_ai.{side}.messages"]) for side in ("input", "output"))
    assert asked == [{"role": "user", "parts": [{"type": "text", "content": SECRET}]}]
    done = {"role": "assistant", "parts": [{"type": "text", "content": "done"}], "finish_reason": "stop"}
    assert answered == [done]
    assert json.loads(call.attributes["gen_ai.tool.call.arguments"]) == {"bait": "worm"}
    assert call.attributes["gen_ai.tool.call.result"] == f"{TOOL_TEXT} with worm"


def text_of(role: str, content: str) -> dict[str, Any]:
    """Return a message with a text."""
    return {"role": role, "parts": [{"type": "text", "content": content}]}


async def test_the_messages_of_model_calls() -> None:
    """Each call has what the model was given, from turns before too, and what it answered; none without `content`."""
    call = {"type": "tool_call", "id": "c1", "name": "fish", "arguments": {"bait": "worm"}}
    result = {"type": "tool_call_response", "id": "c1", "response": f"{TOOL_TEXT} with worm"}
    first = [text_of("user", "one"), text_of("assistant", "two")]
    with receiving() as receiver:
        model = says(["two"], reply("look", ToolUseBlock("c1", "fish", {"bait": "worm"})), reply("done"))
        config = Config(model="test", traces=TraceConfig(receiver.url, content=True))
        async with open_supervisor(config, providers={"test": model}, tools=[fish], environ={}) as service:
            session_id = (await service.create_session("one", system_prompt="Be brief.")).session_id
            await service.start_turn(session_id, "three")
    calls = receiver.named("chat test")
    asked, answered = ([json.loads(span.attributes[f"gen_ai.{side}.messages"]) for span in calls] for side in SIDES)
    used = {"role": "assistant", "parts": [{"type": "text", "content": "look"}, call]}
    assert asked == [
        first[:1],
        [*first, text_of("user", "three")],
        [*first, text_of("user", "three"), used, {"role": "tool", "parts": [result]}],
    ]
    reasons = ("stop", "tool_call", "stop")
    said = (first[1], used, text_of("assistant", "done"))
    assert answered == [[each | {"finish_reason": reason}] for each, reason in zip(said, reasons, strict=True)]
    for span in [*calls, *receiver.named("invoke_agent")]:
        assert json.loads(span.attributes["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be brief."}]


async def test_long_conversations_in_spans() -> None:
    """An attribute has the newest messages, as many as it may have, and stays JSON."""
    with receiving() as receiver:
        await traced(says(["a"], ["b"], ["c"]), receiver, "x" * 40_000, "y" * 40_000, "z" * 90_000, content=True)
    asked = [json.loads(span.attributes["gen_ai.input.messages"]) for span in receiver.named("chat test")]
    lengths = [[len(part["content"]) for message in each for part in message["parts"]] for each in asked]
    assert lengths == [[40_000], [1, 40_000], [64 * 1024]]


async def test_the_server_of_a_model() -> None:
    """A call has the address and the port of the server that it went to, with those of one that took over."""

    async def answer(_: Request, stream: trio.SocketStream) -> None:
        said = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
        await stream.send_all(HEAD + chunk(events(said)) + chunk(b"data: [DONE]\n\n") + END)

    with receiving() as receiver:
        async with serve_model(answer) as url:
            servers = ModelServer(name="own", base_url=url), ModelServer(name="away", base_url="http://127.0.0.1:9/v1")
            config = Config(
                model="away:m",
                fallback=("own:m",),
                model_servers=servers,
                traces=TraceConfig(receiver.url),
                retry=RetryPolicy(max_attempts=1),
            )
            async with open_supervisor(config, environ={}) as service:
                await service.create_session("hello", model="own:m", fallback=())
                await service.create_session("hello")
                await service.create_session("hello", model="echo", fallback=())
    places = [(each.attributes.get("server.address"), each.attributes.get("server.port")) for each in chats(receiver)]
    assert places == [("127.0.0.1", int(url.rpartition(":")[2]))] * 2 + [(None, None)]


def chats(receiver: Receiver) -> list[Span]:
    """Return the spans of model calls."""
    return [span for span in receiver.spans if span.name.startswith("chat ")]


async def test_a_turn_that_fails() -> None:
    """Its span and that of the call that it failed in say why."""
    with receiving() as receiver:
        errors = await traced(says(ProviderError("no", cause="quota", retryable=False)), receiver, "hello")
    assert len(errors) == 1
    for name in ("invoke_agent", "chat test"):
        (span,) = receiver.named(name)
        assert (span.failed, span.attributes["error.type"]) == (True, "provider_error")


async def test_a_model_that_another_one_stands_in_for() -> None:
    """The call says which one has answered."""
    away = says(ProviderError("no", cause="overloaded", retryable=True))
    with receiving() as receiver:
        config = Config(traces=TraceConfig(receiver.url), retry=RetryPolicy(max_attempts=1))
        models = {"first": away, "second": says(["hi"])}
        async with open_supervisor(config, providers=models, environ={}) as service:
            await service.create_session("hello", model="first", fallback=("second",))
    (call,) = receiver.named("chat first")
    assert call.events == ("model_switched",)
    assert (call.failed, call.attributes["gen_ai.response.model"]) == (False, "second")


def test_a_turn_that_goes_on() -> None:
    """Its span says so, and how often it was interrupted."""
    rest = [each for each in resumed_turn() if each.seq >= LATER]
    place, began = TraceContext(1, 2, sampled=True), rest[0].timestamp
    turn = TracedTurn(place, None, "s1", "default", 1, "own", "m", began, began, rest)
    own, *children = spans_of(turn)
    assert own.events == [("turn_resumed", began, {"warren.resumed": 1})]
    assert [each.name for each in children] == ["chat m", "warren.commit"]


async def test_none_without_a_sample() -> None:
    """At 0 nothing is sent but for callers in a trace; that decides for them."""
    with receiving() as receiver:
        await traced(says(["a"], ["b"]), receiver, "one", "two", sample=0.0)
        assert receiver.spans == []
        token = here.set(context_of(CALLER))
        await traced(says(["a"]), receiver, "three", sample=0.0)
        here.reset(token)
    (turn,) = receiver.named("invoke_agent")
    assert turn.place == PARENT


async def test_a_receiver_that_is_away(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns and the shutdown do not wait for it for long, and the log says so."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with receiving() as receiver:
        pass
    with trio.fail_after(30):
        assert await traced(says(["a"]), receiver, "one") == []
    assert "export" in caplog.text.lower()


async def test_the_spans_of_a_program_are_parents() -> None:
    """A program with OpenTelemetry need not do anything for it."""
    tracer, own = Noting(), TracerProvider().get_tracer("program")
    async with open_supervisor(Config(), tracer=tracer, environ={}) as service:
        with own.start_as_current_span("work") as span:
            await service.create_session("hello")
        await service.create_session("hello")
    place = span.get_span_context()
    assert tracer.parents == [(place.trace_id, place.span_id)]


@pytest.mark.parametrize("place", [None, TraceContext(1, 2, sampled=True)])
async def test_a_turn_outlives_a_tracer_that_fails(place: TraceContext | None) -> None:
    """Whether it fails at the beginning or the end of a turn: the answer comes, and the session goes on."""

    class Failing(Tracer):
        def begin(self, parent: TraceContext | None) -> TraceContext:  # noqa: ARG002 - the port's
            if place is None:
                raise RuntimeError("no spans today")
            return place

        def ended(self, turn: TracedTurn) -> None:  # noqa: ARG002 - the port's
            raise RuntimeError("the buffer is full")

    tracer = Failing()
    async with open_supervisor(Config(), tracer=tracer, environ={}) as service:
        with trio.fail_after(5):
            first = await service.create_session("hello")
            assert (first.text, (await service.start_turn(first.session_id, "again")).text) == ("hello", "again")


async def test_the_trace_of_a_long_turn_has_no_failures_that_were_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose end is beyond the events of a trace has not failed, unless the turn has."""
    tracer = Noting()
    monkeypatch.setattr("warren.actors.session.trace.KEPT", 2)
    async with open_supervisor(Config(), tracer=tracer, environ={}) as service:
        here.set(context_of(CALLER))
        await service.create_session("hello")
        here.set(None)
    (turn,) = tracer.turns
    assert [type(each.event) for each in turn.events] == [RunStarted, TurnStarted]
    (call,) = spans_of(turn)[1:]
    assert call.error is None
    (call,) = spans_of(attrs.evolve(turn, failure="crash"))[1:]
    assert call.error == "crash"


async def test_tools_that_start_turns() -> None:
    """The turn of a tool is a child of the tool's turn, and the actor of the first caller keeps no place."""
    tracer, services = Noting(), list[RuntimeService]()

    @tool(description="Ask another one.")
    async def delegate() -> str:
        """Run a turn of another session."""
        return (await services[0].create_session("you do it", model="echo")).text

    calls = reply("", ToolUseBlock("c1", "delegate", {}))
    config, model = Config(model="test"), says(calls, reply("done"), reply("later"))
    opened = open_supervisor(config, providers={"test": model}, tools=[delegate], tracer=tracer, environ={})
    async with opened as service:
        services.append(service)
        token = here.set(context_of(CALLER))
        session_id = (await service.create_session("go")).session_id
        here.reset(token)
        await service.start_turn(session_id, "once more")
    inner, outer = tracer.turns
    assert (inner.place.trace_id, inner.parent) == (PARENT[0], outer.place.span_id)
    assert (outer.place.trace_id, outer.parent) == PARENT


async def delegating(request: ModelRequest, _emit: Emit) -> ModelReply:
    """Delegate two parts of `go`; all else is done at once."""
    await trio.lowlevel.checkpoint()
    asked = [each.content for each in request.messages if isinstance(each, UserMessage)]
    if asked[-1] != "go" or isinstance(request.messages[-1], ToolResultsMessage):
        return reply("done")
    return reply("", *(ToolUseBlock(f"c{part}", "delegate", {"prompt": f"part {part}"}) for part in (1, 2)))


@pytest.mark.parametrize("stored", [True, False])
async def test_the_turns_of_child_sessions_are_below_that_of_their_parent(tmp_path: Path, *, stored: bool) -> None:
    """The calls wait, and the parent's turn goes on below its first part; the receiver gets one trace."""
    with receiving() as receiver:
        store = StoreConfig(tmp_path) if stored else None
        config = Config(model="test", store=store, traces=TraceConfig(receiver.url), tools=ToolsConfig(delegate=True))
        async with open_supervisor(config, providers={"test": FunctionModel(delegating)}, environ={}) as service:
            parent = (await service.create_session("go")).session_id
            made = {each.session_id for each in (await service.list(delegated_by=parent)).sessions}
    turns = receiver.named("invoke_agent")
    first = next(each for each in turns if each.parent == "")
    assert first.attributes["session.id"] == parent
    assert len(made) == 2
    below = {each.attributes["session.id"]: each.parent for each in turns if each is not first}
    assert below == dict.fromkeys([*made, parent] if stored else made, first.span_id)
    assert {each.trace_id for each in receiver.spans} == {first.trace_id}


async def test_the_turn_of_a_child_is_below_the_request_that_made_it() -> None:
    """A request says its place; the span of a program is one; without either the child begins a trace of its own."""
    tracer, own = Noting(), TracerProvider().get_tracer("program")
    async with open_supervisor(Config(), tracer=tracer, environ={}) as service, rest(service) as http:
        parent = (await service.create_session("hello")).session_id
        path, body = f"/sessions/{parent}/children", {"prompt": "part"}
        made = [(await http.post(path, json=body, headers={"traceparent": CALLER})).json()["session_id"]]
        made.append((await http.post(path, json=body)).json()["session_id"])
        with own.start_as_current_span("work") as span:
            made.append(await service.delegate(parent, "part"))
        for each in made:
            await service.wait_turn(each)
    place = span.get_span_context()
    assert sorted(tracer.parents) == sorted([PARENT, (place.trace_id, place.span_id)])


@pytest.mark.parametrize(
    "header", ["", "00-zz", f"00-{'0' * 32}-b7ad6b7169203331-01", f"ff{CALLER[2:]}", f"{CALLER}-x"]
)
def test_a_bad_place_is_none(header: str) -> None:
    """As the standard wants it, a caller that says nothing useful has said nothing."""
    assert context_of(header) is None


def test_a_place_of_a_later_version() -> None:
    """It may have more behind it."""
    assert context_of(f"01{CALLER[2:]}-more") == context_of(CALLER)
    assert context_of(CALLER[:-1] + "0") == TraceContext(*PARENT, sampled=False)


async def test_the_place_of_a_request_over_rest_websocket_and_mcp() -> None:
    """Each has its own way to say it; a request that says none on the same connection has none."""
    tracer = Noting()
    async with open_supervisor(Config(), tracer=tracer, environ={}) as service:
        async with rest(service) as http:
            await http.post("/sessions", json={"prompt": "hello"}, headers={"traceparent": CALLER})
            await http.post("/sessions", json={"prompt": "hello"})
            async with connect(port_of(http)) as client:
                await client.call("session/create", prompt="hello", _meta=META)
                await client.call("session/create", prompt="hello", _meta={"traceparent": 5})
        async with mcp_connected(service) as program:
            await program.client.call_tool("warren_run", {"prompt": "hello"}, meta=META)
    assert tracer.parents == [PARENT] * 3


async def test_the_place_goes_out_to_the_model() -> None:
    """The request to the server of a model has the place of its turn."""
    seen: list[str | None] = []

    async def answer(request: Request, stream: trio.SocketStream) -> None:
        seen.append(request.headers.get("traceparent"))
        said = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
        await stream.send_all(HEAD + chunk(events(said)) + chunk(b"data: [DONE]\n\n") + END)

    tracer = Noting()
    async with serve_model(answer) as url:
        config = Config(model="m", provider="own", model_servers=(ModelServer(name="own", base_url=url),))
        async with open_supervisor(config, tracer=tracer, environ={}) as service:
            token = here.set(context_of(CALLER))
            await service.create_session("hello")
            here.reset(token)
            await service.create_session("hello")
    (turn,) = tracer.turns
    assert seen == [turn.place.traceparent, f"00-{1:032x}-{2:016x}-00"]


async def test_the_place_goes_on_to_another_node(tmp_path: Path) -> None:
    """A turn that is passed on runs under the caller of the first node."""
    seen: list[TraceContext | None] = []

    class Watching(Provider):
        async def complete(self, *_: Any) -> Any:
            seen.append(here.get())
            return reply("hi")

    async with cluster(StoreConfig(tmp_path), test=Watching()) as (first, second):
        session_id = (await first.service.create_session("hello", model="test")).session_id
        token = here.set(context_of(CALLER))
        await second.service.start_turn(session_id, "hello")
        here.reset(token)
    assert seen == [None, context_of(CALLER)]


def test_the_names_of_the_conventions() -> None:
    """They change while they are in development: a change here is one for all dashboards."""
    names = {value for value in vars(conventions).values() if isinstance(value, str) and value.startswith("gen_ai")}
    assert names == {
        "gen_ai.conversation.id",
        "gen_ai.input.messages",
        "gen_ai.operation.name",
        "gen_ai.output.messages",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.request.stream",
        "gen_ai.response.finish_reasons",
        "gen_ai.response.model",
        "gen_ai.response.time_to_first_chunk",
        "gen_ai.system_instructions",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.id",
        "gen_ai.tool.call.result",
        "gen_ai.tool.name",
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_write.input_tokens",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
    }


async def test_a_server_by_its_settings(cli: Cli) -> None:
    """Its log has the ids of the trace; the last spans are sent when it ends."""
    with receiving() as receiver:
        settings = {"WARREN_TRACES_ENDPOINT": receiver.url, "OTEL_SERVICE_NAME": "mine"}
        running, url = serve(cli, "--ephemeral", "--model", "echo", env=settings)
        async with connected(url) as client:
            await client.call("session/create", prompt="hello", _meta=META)
        running.process.terminate()
        assert running.end().code == 0
    (turn,) = receiver.named("invoke_agent")
    assert (turn.place, turn.resource["service.name"]) == (PARENT, "mine")


def test_a_command_by_its_variables(cli: Cli) -> None:
    """Its turn is a child of the process that has started it."""
    with receiving() as receiver:
        ended = cli.run(
            *("run", "hello", "--ephemeral", "--model", "echo"),
            env={"WARREN_TRACES_SAMPLE": "0", "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "TRACEPARENT": CALLER},
        )
    assert ended.code == 0, ended
    (turn,) = receiver.named("invoke_agent")
    assert turn.place == PARENT


def test_bad_settings(cli: Cli) -> None:
    """The error names them."""
    for name, text in (("SAMPLE", "2"), ("ENDPOINT", "nowhere"), ("CONTENT", "maybe")):
        ended = cli.run("run", "hello", "--ephemeral", env={f"WARREN_TRACES_{name}": text})
        assert ended.code == 2
        assert name.lower() in ended.err.lower()


async def test_all_lives_of_a_turn_are_in_one_trace(tmp_path: Path) -> None:
    """A turn that a stop has parked goes on in the trace of its caller, as a child of its first part."""
    tracer = Noting()
    calls, hangs = [reply("", ToolUseBlock("c1", "fish", {"bait": "worm"})), reply("done")], True

    async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
        if hangs and len(calls) == 1:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return calls.pop(0)

    config = Config(model="test", store=StoreConfig(tmp_path), limits=Limits(drain=0.1))
    models = {"test": FunctionModel(answer)}
    async with trio.open_nursery() as nursery:
        async with open_supervisor(config, providers=models, tools=[fish], tracer=tracer, environ={}) as service:
            session_id = (await service.create_session(None)).session_id
            here.set(context_of(CALLER))
            ask(nursery, service.start_turn, session_id, "go")
            await until(lambda: len(calls) == 1)
            await trio.sleep(0.2)
        hangs = False
        here.set(None)
        async with open_supervisor(config, providers=models, tools=[fish], tracer=tracer, environ={}) as service:
            with suppress(SessionNotRunningError):  # it may have ended
                assert (await service.wait_turn(session_id)).text == "done"
            await until(lambda: len(tracer.turns) == 2)
    first, last = tracer.turns
    assert tracer.parents == [PARENT, (PARENT[0], first.place.span_id)]
    assert (first.number, last.number) == (1, 1)
    spans = [spans_of(each)[0].attributes.get("warren.resumed") for each in tracer.turns]
    assert spans == [None, 1]
