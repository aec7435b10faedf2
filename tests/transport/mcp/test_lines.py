"""The lines of MCP's standard streams: whatever they hold, the server answers what can be answered and goes on."""

import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar, cast

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import lockstep_stream_one_way_pair, memory_stream_one_way_pair, wait_all_tasks_blocked

from tests.support.envelopes import NOW
from tests.support.fake_service import FakeService, FakeTurn
from tests.support.models import Puppet
from tests.support.runtime import new_session, open_runtime
from tests.transport.mcp.clients import at_rest
from tests.transport.stdio.client import line
from warren.actors.io.streams import LineReader
from warren.calls.base import Call
from warren.calls.facade import RuntimeService
from warren.calls.reading import HistoryRequest
from warren.conversation.messages import UserMessage
from warren.conversation.views import HistoryEntry, HistoryPage
from warren.transport.mcp import stdio
from warren.transport.mcp.mcp_server import MAX_CALLS
from warren.transport.mcp.stdio import LINGER, MAX_IN_FLIGHT, serve_mcp
from warren.transport.rpc import jsonrpc

R = TypeVar("R")

HELLO: Final = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


@attrs.define(eq=False)
class Wire:
    """The server's streams in a test's hand; `stop` ends it as a signal does."""

    sink: trio.abc.SendStream
    lines: LineReader
    stop: trio.CancelScope
    _last: int = 0

    async def write(self, line: bytes) -> None:
        await self.sink.send_all(line + b"\n")

    async def send(self, method: str, params: Any) -> str:
        self._last += 1
        number = f"test-{self._last}"
        await self.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())
        return number

    async def receive(self) -> Any:
        """Return the next message, None at the end."""
        line = await self.lines.next()
        return None if line is None else json.loads(line)

    async def request(self, method: str, params: Any) -> Any:
        """Send a request and return its whole answer; others are passed over."""
        number = await self.send(method, params)
        while (answer := await self.receive()) is not None and answer.get("id") != number:
            pass
        assert answer is not None, f"ended without an answer to {method}"
        return answer

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return await self.send("tools/call", {"name": name, "arguments": arguments})


@asynccontextmanager
async def wired(service: RuntimeService) -> AsyncIterator[Wire]:
    """Serve over streams in memory, with the handshake done; the body leaves the server to end by itself."""
    sink, requests = memory_stream_one_way_pair()
    answers, source = memory_stream_one_way_pair()
    wire = Wire(sink, LineReader(source, 2**24), trio.CancelScope())

    async def serve() -> None:
        async with requests, answers:
            await serve_mcp(service, (requests, answers), wire.stop)

    async with trio.open_nursery() as serving:
        serving.start_soon(serve)
        assert (await wire.request("initialize", HELLO))["result"]["serverInfo"]["name"] == "warren"
        await wire.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        yield wire
        await sink.aclose()
        while await wire.receive() is not None:
            pass


@pytest.mark.parametrize(
    ("line", "number", "path"),
    [
        (b"{", -32700, "$"),
        (b"\xff", -32700, "$"),
        (b'"\\ud800"', -32700, "$"),
        (b"[" * 200 + b"]" * 200, -32700, "$"),
        (b"7", -32600, "$"),
        (b"[]", -32600, "$"),
        (b"{}", -32600, "$.jsonrpc"),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, "$.id"),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, "$.id"),
        (b'{"jsonrpc":"2.0","id":"a","method":7}', -32600, "$.method"),
        (b'{"jsonrpc":"2.0","id":"a","method":"tools/list","params":[]}', -32602, "$.params"),
        (b'{"jsonrpc":"2.0","id":"a","method":"tools/call"}', -32602, "$.params.name"),
        (b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":7}}', -32602, "$.params.name"),
        (b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"rm"}}', -32602, "$.params.name"),
        (
            b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"warren_run","arguments":[1]}}',
            -32602,
            "$.params.arguments",
        ),
    ],
)
async def test_a_bad_line_is_answered_with_what_is_wrong(line: bytes, number: int, path: str) -> None:
    """The error has JSON-RPC's number, our body and the path of what is bad; the next line is answered as ever."""
    async with wired(FakeService()) as wire:
        await wire.write(line)
        error = (await wire.receive())["error"]
        assert (error["code"], error["data"]["code"]) == (number, jsonrpc.NAMES.get(number, "INVALID_PARAMS"))
        assert error["data"]["details"] == {"path": path}
        assert (await wire.request("ping", {}))["result"] == {}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"  ",
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[]}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}',
        b'{"jsonrpc":"2.0","method":"no/such/thing"}',
    ],
)
async def test_a_line_that_asks_nothing_is_passed_over(line: bytes) -> None:
    """Nothing is said to an answer that nobody waits for, nor to a notification without sense."""
    async with wired(FakeService()) as wire:
        await wire.write(line)
        number = await wire.send("ping", {})
        assert await wire.receive() == {"jsonrpc": "2.0", "id": number, "result": {}}


async def test_a_line_that_is_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered with the limit, and never kept."""
    monkeypatch.setattr(stdio, "MAX_LINE", 1000)
    async with wired(FakeService()) as wire:
        await wire.write(b"x" * 1001)
        assert (await wire.receive())["error"]["message"] == "$: the message has more than 1000 bytes"
        assert (await wire.request("ping", {}))["result"] == {}


async def test_long_lines_go_both_ways() -> None:
    """A prompt of a megabyte is answered, here with itself."""
    text = "warren " * 150_000
    async with open_runtime() as service, wired(service) as wire:
        await wire.call("warren_run", {"prompt": text})
        assert (await wire.receive())["result"]["structuredContent"]["text"] == text


async def test_what_json_cannot_hold_is_an_error_and_not_silence(caplog: pytest.LogCaptureFixture) -> None:
    """The client gets an answer to each request, also where the runtime says what UTF-8 has no form for."""
    service = FakeService(on_read=None)
    async with wired(service) as wire:
        await wire.write(json.dumps({"jsonrpc": "2.0", "id": "a", "method": "nope\ud800"}, ensure_ascii=True).encode())
        assert (await wire.receive())["error"]["code"] == -32700
        assert (await wire.request("ping", {}))["result"] == {}
    assert caplog.records == []


async def test_too_many_calls_of_one_client_are_refused() -> None:
    """Past the bound a call fails as on every surface; what ends others, and other requests, get through."""
    async with open_runtime(Puppet()) as service, wired(service) as wire:
        for _ in range(MAX_CALLS):
            await wire.call("warren_run", {"prompt": "talk"})
        full = (await wire.request("tools/call", {"name": "warren_sessions", "arguments": {}}))["result"]
        body = full["structuredContent"]
        assert (full["isError"], body["code"], body["retryable"]) == (True, "CAPACITY_EXCEEDED", True)
        assert body["details"] == {"cause": "max_in_flight"}
        assert (await wire.request("ping", {}))["result"] == {}
        interrupt = {"name": "warren_interrupt", "arguments": {"session_id": "nobody"}}
        missed = (await wire.request("tools/call", interrupt))["result"]
        assert missed["structuredContent"]["code"] == "SESSION_NOT_FOUND"
        wire.stop.cancel()


@pytest.mark.virtual_time
async def test_a_client_that_does_not_read_is_not_read_either() -> None:
    """Answers do not pile up without end: its next requests wait in its own pipe, and all are answered in the end."""
    sink, requests = lockstep_stream_one_way_pair()
    answers, source = lockstep_stream_one_way_pair()
    written = 0

    async def write() -> None:
        nonlocal written
        await sink.send_all(line("initialize", 0, **HELLO))
        for number in range(1, 3 * MAX_IN_FLIGHT):
            await sink.send_all(line("ping", number))
            written = number
        await sink.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_mcp, FakeService(), (requests, answers))
        nursery.start_soon(write)
        await wait_all_tasks_blocked()
        assert MAX_IN_FLIGHT <= written <= MAX_IN_FLIGHT + 2
        lines = LineReader(source, 2**24)
        numbers = {json.loads(await lines.next() or b"")["id"] for _ in range(3 * MAX_IN_FLIGHT)}
        assert numbers == set(range(3 * MAX_IN_FLIGHT))


@attrs.define(eq=False)
class Library(FakeService):
    """Has one page of history, a large one, and counts how often it was asked for."""

    asked: int = 0

    async def perform(self, call: Call[R]) -> R:
        if not isinstance(call, HistoryRequest):
            return await super().perform(call)
        self.asked += 1
        await trio.lowlevel.checkpoint()
        return cast(
            "R", HistoryPage(call.session_id, (HistoryEntry(0, NOW, UserMessage("x" * 1_000_000)),), call.offset, 1)
        )


@pytest.mark.virtual_time
async def test_large_answers_are_made_as_they_are_read() -> None:
    """A client that asks for many pages and reads none has a few of them made; then it reads, and gets all."""
    sink, requests = lockstep_stream_one_way_pair()
    answers, source = lockstep_stream_one_way_pair()
    service, pages = Library(), 30

    async def write() -> None:
        await sink.send_all(line("initialize", 0, **HELLO))
        await sink.send_all(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        for number in range(1, pages + 1):
            call = {"name": "warren_history", "arguments": {"session_id": "s1"}}
            await sink.send_all(line("tools/call", number, **call))
        await sink.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_mcp, service, (requests, answers))
        nursery.start_soon(write)
        lines = LineReader(source, 2**24)
        assert json.loads(await lines.next() or b"")["id"] == 0
        await wait_all_tasks_blocked()
        assert 0 < service.asked < pages // 2
        numbers = {json.loads(await lines.next() or b"")["id"] for _ in range(pages)}
        assert numbers == set(range(1, pages + 1))


@pytest.mark.parametrize("method", ["session/list", "prompts/list", "", "tools/list/"])
async def test_an_unknown_method_is_an_error_of_the_protocol(method: str) -> None:
    """The official library answers it, with JSON-RPC's own number, under the request's id."""
    async with wired(FakeService()) as wire:
        answer = await wire.request(method, {})
        assert answer.keys() == {"jsonrpc", "id", "error"}
        assert answer["jsonrpc"] == "2.0"
        assert (answer["error"]["code"], isinstance(answer["error"]["message"], str)) == (-32601, True)
        assert (await wire.request("ping", {}))["result"] == {}


async def short(_turn: FakeTurn) -> None:
    """Take less time than a client that hangs up is given."""
    await trio.sleep(LINGER / 2)


@pytest.mark.virtual_time
async def test_at_the_end_of_the_input_quick_requests_are_still_answered() -> None:
    """A client that writes its requests and closes the pipe gets their answers."""
    service = FakeService(behaviour=short)
    async with wired(service) as wire:
        number = await wire.call("warren_run", {"prompt": "hi"})
        await wire.sink.aclose()
        answer = await wire.receive()
        assert (answer["id"], answer["result"]["structuredContent"]["text"]) == (number, "hi")
        assert await wire.receive() is None


@pytest.mark.virtual_time
async def test_the_end_does_not_wait_for_cancelled_requests() -> None:
    """A call that the client has cancelled itself is no reason to go on."""
    service = FakeService(behaviour=short)
    async with wired(service) as wire:
        number = await wire.call("warren_run", {"prompt": "hi"})
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
        await wire.write(json.dumps(cancel).encode())
        await wire.request("ping", {})
        await wire.sink.aclose()
        began = trio.current_time()
        assert await wire.receive() is None
        assert trio.current_time() == began


@pytest.mark.parametrize("how", ["end", "stop"])
async def test_the_end_leaves_running_turns_to_the_runtime(how: str) -> None:
    """The call is answered with an error, the server ends within seconds, the turn goes on and is readable."""
    model = Puppet()
    async with open_runtime(model) as service:
        session_id = await new_session(service)
        with trio.fail_after(2 * LINGER):
            async with wired(service) as wire:
                number = await wire.call("warren_resume", {"session_id": session_id, "prompt": "talk"})
                await model.reached(1)
                if how == "stop":
                    wire.stop.cancel()
                else:
                    await wire.sink.aclose()
                answer = await wire.receive()
                body = answer["result"]["structuredContent"]
                assert (answer["id"], body["session_id"]) == (number, session_id)
                assert (body["code"], body["details"]["cause"]) == ("AGENT_ERROR", "shutting_down")
        assert (await service.read(session_id)).state.is_active
        model.say("whole", None)
        assert await at_rest(service, session_id) == "whole"


async def test_a_client_that_reads_no_more_ends_the_server() -> None:
    """Once its end of stdout is closed nobody hears an answer: the server ends, with its input still open."""
    sink, requests = memory_stream_one_way_pair()
    answers, source = memory_stream_one_way_pair()
    await source.aclose()
    async with open_runtime() as service:
        await sink.send_all(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}).encode())
        await sink.send_all(b"\n")
        with trio.fail_after(5):
            await serve_mcp(service, (requests, answers))


CALL: Final = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "warren_run",
            "arguments": {"prompt": "hi", "budget": {"max_steps": 3}, "labels": {"a": "b"}},
            "_meta": {"progressToken": "p"},
        },
    }
).encode()
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
METHODS: Final = st.sampled_from(
    ["initialize", "ping", "tools/list", "tools/call", "server/discover", "notifications/cancelled", "logging/setLevel"]
)
TOOL_NAMES: Final = st.sampled_from(["warren_run", "warren_resume", "warren_read", "warren_sessions", "warren_archive"])


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good call with some of its bytes changed, cut or doubled."""
    line = bytearray(CALL)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(line) - 1, 0)))
        line[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(line).replace(b"\n", b"")


REQUESTS: Final = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0") | JSON},
    optional={"id": st.integers(1, 3) | JSON, "method": METHODS | JSON, "params": JSON, "extra": JSON},
)
CALLS: Final = st.fixed_dictionaries(
    {
        "jsonrpc": st.just("2.0"),
        "id": st.integers(1, 5),
        "method": st.just("tools/call"),
        "params": st.fixed_dictionaries(
            {"name": TOOL_NAMES}, optional={"arguments": JSON, "_meta": JSON, "task": JSON, "requestState": JSON}
        ),
    }
)
LINES: Final = (
    mutated() | st.binary(max_size=40) | (JSON | REQUESTS | CALLS).map(lambda data: json.dumps(data).encode())
)


@settings(max_examples=40)
@given(st.lists(LINES, min_size=10, max_size=12))
async def test_the_server_outlives_every_line(lines: list[bytes]) -> None:
    """Hundreds of broken, mutated and odd lines bring no traceback; each answer is a message, and the next is heard."""
    noise = Noise()
    logging.getLogger().addHandler(noise)
    try:
        async with open_runtime() as service, wired(service) as wire:
            for line in lines:
                await wire.write(line.replace(b"\n", b" "))
            answer = await wire.request("tools/call", {"name": "warren_sessions", "arguments": {}})
            assert answer["result"]["isError"] is False
    finally:
        logging.getLogger().removeHandler(noise)
    assert noise.tracebacks == []


@attrs.define(eq=False, init=False)
class Noise(logging.Handler):
    """Collects what is logged with a traceback."""

    tracebacks: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.tracebacks = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.tracebacks.append(self.format(record))
