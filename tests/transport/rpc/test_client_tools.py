"""Tools that the client runs: correlation, every way in which a call can go wrong, and who gets to see them."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.support.models import FunctionModel, reply
from tests.support.runtime import open_runtime
from tests.transport.clients import Client, connect, gateway
from tests.transport.rpc.endpoints import Line, opened
from tests.transport.stdio.client import Near, near
from warren.actors.turn.toolbox import NO_RESULT
from warren.base.errors import CapacityExceededError
from warren.calls.facade import RuntimeService
from warren.conversation.messages import AssistantMessage, ToolResultsMessage, ToolUseBlock
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import ToolContext, ToolError, ToolSpec, calling, tool
from warren.settings.config import Config, Limits
from warren.transport.rpc.client_tools import ClientTools
from warren.transport.rpc.endpoint import Dispatcher

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
LOOKUP = {"name": "lookup", "description": "Look something up.", "input_schema": SCHEMA}


@attrs.define(eq=False)
class Bench:
    """Tools behind an endpoint, with a client in the test's hand.

    Attributes:
        line: the channel to the client.
        tools: what is tested.
        came: what became of the calls.
    """

    line: Line
    tools: ClientTools
    came: dict[str, object] = attrs.field(factory=dict)

    @property
    def sent(self) -> list[dict[str, Any]]:
        """The requests to the client."""
        return self.line.sent

    async def call(self, /, **arguments: Any) -> None:
        (offered,) = self.tools.offered
        key = str(arguments.get("q", ""))
        calling.set(ToolContext("session", 1, 1, "call", "lookup", {}))
        try:
            self.came[key] = await offered.call(**offered.bind(arguments))
        except ToolError as exc:
            self.came[key] = exc

    def answer(self, index: int, result: Any = None, error: Any = None) -> None:
        self.line.say({"jsonrpc": "2.0", "id": self.sent[index]["id"], "result": result, "error": error})


@asynccontextmanager
async def open_bench() -> AsyncIterator[Bench]:
    """Serve a client that has registered one tool."""
    async with opened(Dispatcher()) as (endpoint, line):
        tools = ClientTools(endpoint.ask)
        tools.register([ToolSpec("lookup", "", SCHEMA)])
        yield Bench(line, tools)


async def test_a_call_is_a_request_and_its_answer_the_result() -> None:
    """The client is sent the tool's name and the model's arguments, and its text is what the call returns."""
    async with open_bench() as bench, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bench.call(q="x", name="n", self=1))
        await trio.testing.wait_all_tasks_blocked()
        assert bench.sent[0]["method"] == "tool/execute"
        params = bench.sent[0]["params"]
        assert (params["name"], params["arguments"]) == ("lookup", {"q": "x", "name": "n", "self": 1})
        assert (params["session_id"], params["call_id"]) == ("session", "call")
        bench.answer(0, {"content": "found", "is_error": False})
    assert bench.came == {"x": "found"}


async def test_calls_are_told_apart_by_their_ids() -> None:
    """Two calls at once, answered the other way round, each get their own answer."""
    async with open_bench() as bench, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bench.call(q="a"))
        nursery.start_soon(lambda: bench.call(q="b"))
        await trio.testing.wait_all_tasks_blocked()
        for index in (1, 0):
            bench.answer(index, {"content": bench.sent[index]["params"]["arguments"]["q"] * 2})
    assert bench.came == {"a": "aa", "b": "bb"}


NONSENSE = [
    (None, None, "$.result"),
    ({}, None, "$.result.content"),
    ("found", None, "$.result"),
    ({"content": 5}, None, "$.result.content"),
    ({"content": "x", "is_error": "no"}, None, "$.result.is_error"),
    ({"content": "x", "other": 1}, None, "$.result.other"),
    ({"content": "it broke", "is_error": True}, None, "it broke"),
    (None, {"code": 1, "message": "no such tool"}, "no such tool"),
    (None, "nonsense", "nonsense"),
    ({"content": "x"}, {"code": 1}, "failed"),
]


@pytest.mark.parametrize(("result", "error", "told"), NONSENSE)
async def test_what_is_no_answer_ends_the_call_with_an_error(result: Any, error: Any, told: str) -> None:
    """Whatever the client sends under the call's id, the call ends, and the model is told what was wrong."""
    async with open_bench() as bench, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bench.call(q="x"))
        await trio.testing.wait_all_tasks_blocked()
        bench.answer(0, result, error)
    assert told in str(bench.came["x"])
    assert isinstance(bench.came["x"], ToolError)


async def test_answers_that_nothing_waits_for_are_dropped() -> None:
    """An answer to a call that was given up, and one with an id of no call, change nothing."""
    async with open_bench() as bench:
        with trio.move_on_after(0.01):
            await bench.call(q="x")
        bench.answer(0, {"content": "late"})
        for strange in (None, 99, "tool-99"):
            bench.line.say({"jsonrpc": "2.0", "id": strange, "result": {"content": "strange"}})
        await trio.testing.wait_all_tasks_blocked()
        assert bench.came == {}


async def test_a_client_that_is_gone_runs_nothing() -> None:
    """A call that waits for it ends with an error, and so does every later call."""
    async with open_bench() as bench:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: bench.call(q="x"))
            await trio.testing.wait_all_tasks_blocked()
            bench.line.hang_up()
        await bench.call(q="y")
    assert "gone" in str(bench.came["x"])
    assert "gone" in str(bench.came["y"])
    assert len(bench.sent) == 1


async def test_a_client_has_so_many_tools_and_no_more() -> None:
    """Registering replaces by name; in all there is a bound, and past it nothing of a call is taken."""
    async with open_bench() as bench:
        bench.tools.register([ToolSpec("lookup", "new", SCHEMA), *(ToolSpec(f"t{n}", "", SCHEMA) for n in range(127))])
        assert bench.tools.offered[0].spec.description == "new"
        with pytest.raises(CapacityExceededError) as caught:
            bench.tools.register([ToolSpec("one-more", "", SCHEMA)])
        assert caught.value.cause == "max_tools"
        assert len(bench.tools.offered) == 128


async def calls_lookup(request: ModelRequest, _emit: Any) -> ModelReply:
    """Call the tool once if it is offered, then say what came of it."""
    last = request.messages[-1]
    if isinstance(last, ToolResultsMessage):
        return reply(f"{'error: ' if last.results[0].is_error else ''}{last.results[0].content}")
    if "lookup" not in {spec.name for spec in request.tools}:
        return reply("no tools")
    call = ToolUseBlock("c1", "lookup", {"q": getattr(last, "content", "")})
    return ModelReply(AssistantMessage((call,), "tool_use"), Usage(1, 1))


class OverWebSocket(Client):
    """A WebSocket client that answers requests of the server, with the words of `Near`."""

    async def asked(self) -> dict[str, Any]:
        while "method" not in (message := await self.next()) or "id" not in message:
            pass
        return message

    async def answer(self, request: dict[str, Any], **response: Any) -> None:
        await self.raw(json.dumps({"jsonrpc": "2.0", "id": request["id"], **response}))

    async def hang_up(self) -> None:
        await self.socket.aclose()


@asynccontextmanager
async def over_websocket(service: RuntimeService) -> AsyncIterator[OverWebSocket]:
    """Connect over a real socket."""
    async with gateway(service) as port, connect(port) as client:
        yield OverWebSocket(client.socket)


SURFACES: Sequence[Any] = [pytest.param(over_websocket, id="websocket"), pytest.param(near, id="stdio")]
AnyClient = Near | OverWebSocket


async def start(client: AnyClient, prompt: str = "x") -> int:
    """Register the tool and start a turn of a new session."""
    assert await client.call("tools/register", tools=[LOOKUP]) == {"registered": 1}
    return await client.send("session/create", prompt=prompt)


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_turn_uses_the_clients_tool(surface: Any) -> None:
    """The model calls, the client runs, the model goes on with the result; events and reply come in order."""
    async with open_runtime(FunctionModel(calls_lookup)) as service, surface(service) as client:
        turn = await start(client, "weather")
        request = await client.asked()
        params = request["params"]
        assert (params["name"], params["arguments"]) == ("lookup", {"q": "weather"})
        assert params["key"].startswith(params["session_id"])
        assert (await client.call("health"))["running_turns"] == 1
        await client.answer(request, result={"content": "sunny", "is_error": False})
        result = (await client.reply(turn))["result"]
        assert (result["text"], result["tool_calls"]) == ("sunny", 1)


@pytest.mark.parametrize("surface", SURFACES)
async def test_an_error_of_the_client_is_told_to_the_model_alone(surface: Any) -> None:
    """The turn goes on with an error result, and the session takes another turn."""
    async with open_runtime(FunctionModel(calls_lookup)) as service, surface(service) as client:
        turn = await start(client)
        await client.answer(await client.asked(), result={"content": "it broke", "is_error": True})
        result = (await client.reply(turn))["result"]
        assert result["text"] == "error: it broke"
        again = await client.send("turn/start", session_id=result["session_id"], prompt="again")
        await client.answer(await client.asked(), error={"code": -32601, "message": "no such tool"})
        assert "no such tool" in (await client.reply(again))["result"]["text"]


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_silent_client_runs_into_the_time_limit(surface: Any) -> None:
    """A call without an answer ends with an error after the runtime's time for tools; a late answer does no harm."""
    limits = Limits(tool_timeout=0.05)
    model = FunctionModel(calls_lookup)
    async with open_runtime(model, config=Config(limits=limits)) as service, surface(service) as client:
        turn = await start(client)
        request = await client.asked()
        assert (await client.reply(turn))["result"]["text"] == "error: timed out after 0.05 s"
        await client.answer(request, result={"content": "late"})
        assert "status" in await client.call("health")


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_client_that_leaves_for_good_gives_its_turn_an_error_result(surface: Any, tmp_path: Path) -> None:
    """The turn waits for it, ends, is stored, and has the error; the next client's turns have no such tool."""
    config = Config(limits=Limits(approval_timeout=1.5))
    async with open_runtime(FunctionModel(calls_lookup), store=tmp_path, config=config) as service:
        async with surface(service) as client:
            await start(client)
            await client.asked()
            (session,) = (await service.list()).sessions
            await client.hang_up()
            while (await service.read(session.session_id)).state.turn is not None:  # noqa: ASYNC110 - only the service shows it
                await trio.sleep(0.01)
        state = (await service.read(session.session_id)).state
        assert state.last_assistant_text == f"error: {NO_RESULT}"
        assert (await service.start_turn(session.session_id, "again")).text == "no tools"


@pytest.mark.parametrize("surface", SURFACES)
async def test_an_interrupt_ends_the_wait(surface: Any) -> None:
    """The turn ends as cancelled although the client never answers, and the next one calls again."""
    async with open_runtime(FunctionModel(calls_lookup)) as service, surface(service) as client:
        turn = await start(client)
        await client.asked()
        (session,) = (await service.list()).sessions
        interrupt = await client.send("turn/interrupt", session_id=session.session_id)
        error = (await client.reply(turn))["error"]
        assert error["data"]["details"]["cause"] == "cancelled"
        assert (await client.reply(interrupt))["result"] == {"interrupted": True}
        again = await client.send("turn/start", session_id=session.session_id, prompt="again")
        await client.answer(await client.asked(), result={"content": "now"})
        assert (await client.reply(again))["result"]["text"] == "now"


async def test_concurrent_turns_get_their_own_answers() -> None:
    """Twenty turns wait for the client at once; answered in reverse, each goes on with its own."""
    async with open_runtime(FunctionModel(calls_lookup)) as service, near(service) as client:
        await client.call("tools/register", tools=[LOOKUP])
        turns = {await client.send("session/create", prompt=f"q{number}"): f"q{number}" for number in range(20)}
        requests = [await client.asked() for _ in turns]
        for request in reversed(requests):
            await client.answer(request, result={"content": "re " + request["params"]["arguments"]["q"]})
        for _ in range(len(turns)):
            while "result" not in (message := await client.next() or {}):
                pass
            assert message["result"]["text"] == "re " + turns.pop(message["id"])
        assert not turns


async def test_tools_are_those_of_the_connection_that_starts_the_turn() -> None:
    """Another connection's turn of the same session is not offered them, and cannot be."""
    async with open_runtime(FunctionModel(calls_lookup)) as service, near(service) as one, near(service) as other:
        turn = await start(one)
        await one.answer(await one.asked(), result={"content": "mine"})
        session_id = (await one.reply(turn))["result"]["session_id"]
        result = await other.call("turn/start", session_id=session_id, prompt="x")
        assert result["text"] == "no tools"


async def test_a_session_with_a_list_of_tools_is_offered_no_others() -> None:
    """A session that was created with names of tools keeps to them; the client's can be among them."""
    async with open_runtime(FunctionModel(calls_lookup)) as service, near(service) as client:
        refused = await client.error("session/create", prompt="x", tools=["lookup"])
        assert refused["data"]["details"]["path"] == "$.tools[0]"
        await client.call("tools/register", tools=[LOOKUP])
        assert (await client.call("session/create", prompt="x", tools=[]))["text"] == "no tools"
        turn = await client.send("session/create", prompt="x", tools=["lookup"])
        await client.answer(await client.asked(), result={"content": "listed"})
        assert (await client.reply(turn))["result"]["text"] == "listed"


async def test_the_clients_tool_comes_before_the_runtimes_of_its_name() -> None:
    """The client that starts the turn decides what a name means in it; other turns are not touched."""

    @tool
    def lookup(q: str) -> str:
        """Look it up."""
        return f"the runtime's {q}"

    async with open_runtime(FunctionModel(calls_lookup), tools=[lookup]) as service, near(service) as client:
        turn = await start(client)
        await client.answer(await client.asked(), result={"content": "the client's"})
        result = (await client.reply(turn))["result"]
        assert result["text"] == "the client's"
        assert (await service.start_turn(result["session_id"], "y")).text == "the runtime's y"
