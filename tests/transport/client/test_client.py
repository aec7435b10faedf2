"""`warren.client` against a gateway in the test's process: events, tools, errors and lost connections."""

import contextlib
import ssl
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
import trio
import trio.lowlevel
import trio.testing
import trustme
import wsproto
import wsproto.events
from trio_websocket import ConnectionClosed, wrap_server_stream

from tests.support.models import Emit, FunctionModel, reply
from tests.support.waiting import inbox_has, until
from tests.transport.client.cable import Cable, linked
from tests.transport.client.gate import Gate
from tests.transport.clients import HOST, gateway
from tests.transport.gateway.serving import runtime
from warren import Agent, Config, StoreConfig, open_supervisor
from warren.agents.hooks import Hooks
from warren.base.errors import AgentError, InvalidParamsError, SessionBusyError
from warren.calls.facade import RuntimeService
from warren.client import RemoteService, connect
from warren.conversation.events import Envelope, RunCompleted, TextDelta
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.models.tools import ToolError, tool
from warren.transport.client.connection import Connection, Dial, RefusedError
from warren.transport.client.links import ATTEMPTS, MAX_REQUESTS, Links
from warren.transport.client.readers import MAX_HELD
from warren.transport.rpc import jsonrpc

PIECES: Final = 3 * MAX_HELD
GREETING: Final = {
    "server_info": {"name": "warren", "version": "1"},
    "protocol": "2.0",
    "methods": [],
    "capabilities": {"session_store": False, "session_compaction": False, "memory_store": False},
}
RIGHT: Final = "right-token-0123456789"


async def events_of(service: RuntimeService | RemoteService, session_id: str, last: int) -> list[int]:
    """Return the numbers of a session's events up to one."""
    found = list[int]()
    async with service.subscribe(session_id, after_seq=0) as reader:
        async for envelope in reader:
            found.append(envelope.seq)
            if envelope.seq >= last:
                return found
    return found


async def test_calls_that_wait_for_a_connection_fail_with_it(tmp_path: Path) -> None:
    """The server is gone: of many calls at once each ends, in the time that one of them may take."""
    async with runtime(tmp_path) as service, linked(service, patience=0.2) as (remote, wire):
        session_id = (await remote.create_session(None)).session_id
        wire.closed = True
        wire.cut()
        failed = list[str | None]()

        async def read() -> None:
            with pytest.raises(AgentError) as caught:
                await remote.read(session_id)
            failed.append(caught.value.cause)

        async with trio.open_nursery() as tasks:
            for _ in range(5):
                tasks.start_soon(read)
        assert failed == ["unreachable"] * 5


async def test_a_busy_turn_is_not_sent_twice(tmp_path: Path) -> None:
    """Its outcome is unknown when the connection is lost; it runs once, is stored, and can be read."""
    gate = Gate()
    async with runtime(tmp_path, test=gate) as service, linked(service) as (remote, wire), trio.open_nursery() as tasks:
        session_id = (await remote.create_session(None, model="test")).session_id
        tasks.start_soon(_cut_when_begun, gate, wire)
        with pytest.raises(AgentError) as caught:
            await remote.start_turn(session_id, "hi")
        assert caught.value.cause == "connection_lost"
        gate.go.set()
        assert len(await events_of(remote, session_id, 7)) > 3
        assert (gate.calls, (await remote.read(session_id)).state.message_count) == (1, 2)


@pytest.mark.parametrize("told", [True, False])
async def test_a_request_that_is_too_large_is_refused(tmp_path: Path, *, told: bool) -> None:
    """The client refuses it: it asks for the bound if the server has not told it. Others are answered."""
    gate = Gate()
    async with (
        runtime(tmp_path, test=gate) as service,
        gateway(service, max_message_bytes=10_000) as port,
        connect(f"ws://{HOST}:{port}") as remote,
        trio.open_nursery() as tasks,
    ):
        assert remote.links.most == 10_000
        if not told:
            remote.links.bound(None)
        session_id = (await remote.create_session(None, model="test")).session_id
        tasks.start_soon(remote.start_turn, session_id, "hi")
        await gate.began.wait()
        with trio.fail_after(5), pytest.raises(InvalidParamsError) as caught:
            await remote.create_session("x" * 20_000, model="test")
        assert "10000" in str(caught.value)
        assert caught.value.path == "$"
        gate.go.set()
    assert gate.calls == 1


@pytest.mark.parametrize("key", [None, "once"])
async def test_a_request_that_ends_its_connection_is_not_sent_again(tmp_path: Path, key: str | None) -> None:
    """The server closes the connection for it, and says why: its caller hears that. The next request is answered."""
    async with (
        runtime(tmp_path) as service,
        gateway(service, max_message_bytes=1_000) as port,
        connect(f"ws://{HOST}:{port}") as remote,
    ):
        session_id = (await remote.create_session(None, model="echo")).session_id
        remote.links.bound(None)
        with trio.fail_after(5), pytest.raises(InvalidParamsError) as caught:
            await remote.start_turn(session_id, "x" * 2_000, idempotency_key=key, mode="queue")
        assert str(caught.value) == "$: the message has more than 1000 bytes"
        assert caught.value.path == "$"
        assert (await remote.start_turn(session_id, "short", idempotency_key=key, mode="queue")).text == "short"


async def test_a_result_of_a_tool_that_is_too_large_is_an_error(tmp_path: Path) -> None:
    """The server reads no such message: the model hears of it, and the turn goes on."""

    @tool
    async def look() -> str:
        """Return a long text."""
        return "x" * 20_000

    async def looks(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        last = request.messages[-1]
        return reply(last.results[0].content if isinstance(last, ToolResultsMessage) else "", *calls.pop())

    calls: list[tuple[ToolUseBlock, ...]] = [(), (ToolUseBlock("c1", "look", {}),)]
    async with (
        runtime(tmp_path, test=FunctionModel(looks)) as service,
        gateway(service, max_message_bytes=10_000) as port,
        connect(f"ws://{HOST}:{port}") as remote,
    ):
        with trio.fail_after(5):
            assert "10000" in (await remote.create_session("hi", model="test", extra_tools=[look])).text


async def _cut_when_begun(gate: Gate, wire: Cable) -> None:
    await gate.began.wait()
    wire.cut()


@pytest.mark.parametrize("new", [True, False])
async def test_a_prompt_with_a_key_survives_the_connection(tmp_path: Path, *, new: bool) -> None:
    """A new session, and a prompt that queues: the turn runs once, and the caller gets each event and the result."""
    gate, heard = Gate(), list[Envelope]()
    async with runtime(tmp_path, test=gate) as service, linked(service) as (remote, wire), trio.open_nursery() as tasks:
        session_id = None if new else (await remote.create_session(None, model="test")).session_id
        tasks.start_soon(_cut_when_begun, gate, wire)
        tasks.start_soon(_let_through_after, gate, wire, 2)
        if session_id is None:
            result = await remote.create_session("hi", model="test", on_event=heard.append)
        else:
            result = await remote.start_turn(session_id, "hi", mode="queue", on_event=heard.append)
        assert (result.text, gate.calls, wire.opened) == ("one two", 1, 2)
        assert (heard[0].seq, heard[-1].seq, type(heard[-1].event)) == (result.first_seq, result.last_seq, RunCompleted)
        said = "".join(each.event.delta for each in heard if isinstance(each.event, TextDelta))
        assert said == "one two"
        assert len((await remote.list()).sessions) == 1


async def _let_through_after(gate: Gate, wire: Cable, opened: int) -> None:
    """Let the model go on once the client has connected again."""
    await until(lambda: wire.opened >= opened)
    gate.go.set()


async def test_a_subscription_survives_lost_connections(tmp_path: Path) -> None:
    """No event is missed and none comes twice, however often the cable is cut; turns go on meanwhile."""
    async with runtime(tmp_path) as service, linked(service) as (remote, wire):
        session_id = (await remote.create_session("hi", model="echo")).session_id
        seen = list[int]()
        async with remote.subscribe(session_id, after_seq=0) as reader:
            for _ in range(5):
                last = (await service.start_turn(session_id, "again")).last_seq or 0
                opened = wire.opened
                wire.cut()
                async for envelope in reader:
                    seen.append(envelope.seq)
                    if envelope.seq >= last:
                        break
                await until(lambda: wire.opened > opened)  # noqa: B023 - awaited at once
        assert seen == list(range(1, 37))


async def test_a_subscription_from_now_on_stays_where_it_began(tmp_path: Path) -> None:
    """The connection is lost before its first event: what was published meanwhile is not missed."""
    async with runtime(tmp_path) as service, linked(service) as (remote, wire):
        session_id = (await remote.create_session("hi", model="echo")).session_id
        async with remote.subscribe(session_id) as reader:
            wire.closed = True
            wire.cut()
            await service.start_turn(session_id, "again")
            wire.closed = False
            assert (await anext(reader)).seq == 7


async def test_a_slow_reader_holds_a_bounded_number_of_events(tmp_path: Path) -> None:
    """It takes none of a long answer, and gets all of it in the end."""

    async def long(_request: ModelRequest, emit: Emit) -> ModelReply:
        for number in range(PIECES):
            emit(TextPiece(f"{number} "))
            if number % 100 == 0:
                await trio.lowlevel.checkpoint()
        return reply("".join(f"{number} " for number in range(PIECES)))

    async with runtime(tmp_path, test=FunctionModel(long)) as service, linked(service) as (remote, _):
        session_id = (await remote.create_session(None, model="test")).session_id
        async with remote.subscribe(session_id, after_seq=0) as reader:
            result = await remote.start_turn(session_id, "go")
            said, seqs = "", list[int]()
            async for envelope in reader:
                seqs.append(envelope.seq)
                if isinstance(envelope.event, TextDelta):
                    said += envelope.event.delta
                if envelope.seq >= (result.last_seq or 0):
                    break
        assert said == result.text
        assert seqs == sorted(set(seqs))


async def test_two_readers_of_one_session_are_at_places_of_their_own(tmp_path: Path) -> None:
    """Each has its own position, beside a turn of the same client; connections that are not needed are closed."""
    async with runtime(tmp_path) as service, linked(service) as (remote, wire):
        session_id = (await remote.create_session("hi", model="echo")).session_id
        async with (
            remote.subscribe(session_id, after_seq=0) as all_of_it,
            remote.subscribe(session_id, after_seq=4) as the_rest,
        ):
            result = await remote.start_turn(session_id, "again")
            first = [(await anext(all_of_it)).seq for _ in range(12)]
            second = [(await anext(the_rest)).seq for _ in range(8)]
        assert (first, second, result.last_seq) == (list(range(1, 13)), list(range(5, 13)), 12)
        await until(lambda: wire.carrying == 1)
        assert (await remote.read(session_id)).state.message_count == 4


async def test_the_end_of_a_log_ends_its_readers(tmp_path: Path) -> None:
    """The session is deleted."""
    async with runtime(tmp_path) as service, linked(service) as (remote, _):
        session_id = (await remote.create_session("hi", model="echo")).session_id
        async with remote.subscribe(session_id, after_seq=0) as reader:
            assert [(await anext(reader)).seq for _ in range(6)] == [1, 2, 3, 4, 5, 6]
            await remote.delete(session_id)  # what was not read before may be gone
            assert [envelope.seq async for envelope in reader] == []
            assert reader.over


async def test_a_client_runs_its_tools() -> None:
    """An async and a sync one, one that fails and one whose arguments do not fit, in one turn."""

    @tool
    async def look(at: str) -> str:
        """Look at something."""
        await trio.lowlevel.checkpoint()
        return f"it is a {at}"

    @tool
    def add(one: int, two: int) -> int:
        """Add."""
        return one + two

    @tool
    def fail() -> str:
        """Fail."""
        raise ToolError("no luck")

    @tool
    def leave() -> str:
        """Leave."""
        raise SystemExit(3)

    calls = (
        ToolUseBlock("c1", "look", {"at": "door"}),
        ToolUseBlock("c2", "add", {"one": 1, "two": 2}),
        ToolUseBlock("c3", "fail", {}),
        ToolUseBlock("c4", "add", {"one": "x"}),
        ToolUseBlock("c5", "leave", {}),
    )
    results = list[tuple[str, bool]]()

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        if len(request.messages) == 1:
            return reply("", *calls)
        results.extend((each.content, each.is_error) for each in request.messages[-1].results)  # type: ignore[union-attr]
        return reply("done")

    async with runtime(test=FunctionModel(answer)) as service, linked(service) as (remote, _):
        result = await remote.create_session("hi", model="test", extra_tools=[look, add, fail, leave])
        there = results.copy()
        results.clear()
        await service.create_session("hi", model="test", extra_tools=[look, add, fail, leave])
    assert (result.text, result.tool_calls) == ("done", 5)
    assert there[:3] == [("it is a door", False), ("3", False), ("no luck", True)]
    assert there == results, "the model is told the same as by tools in the process of the runtime"


async def test_tools_compactors_and_hooks_of_the_runtime_stay_there() -> None:
    """The error names the argument, and nothing was sent."""

    @tool
    async def look() -> str:
        """Look."""
        return "a door"

    async with runtime() as service, linked(service) as (remote, _):
        cases = (
            ({"tools": [look]}, "$.tools[0]"),
            ({"compactor": object()}, "$.compactor"),
            ({"hooks": [Hooks()]}, "$.hooks"),
        )
        for bad, path in cases:
            with pytest.raises(InvalidParamsError) as caught:
                await remote.create_session("hi", **bad)
            assert caught.value.path == path
        assert (await remote.list()).sessions == ()


async def test_a_cancelled_call_leaves_its_turn_alone(tmp_path: Path) -> None:
    """The turn runs on; its later events reach no later call of the session."""
    gate, heard = Gate(), list[Envelope]()
    async with runtime(tmp_path, test=gate) as service, linked(service) as (remote, _):
        session_id = (await remote.create_session(None, model="test")).session_id
        async with trio.open_nursery() as tasks:
            tasks.start_soon(remote.start_turn, session_id, "hi")
            await gate.began.wait()
            tasks.cancel_scope.cancel()
        async with trio.open_nursery() as tasks:

            async def next_turn() -> None:
                result = await remote.start_turn(session_id, "more", mode="queue", on_event=heard.append)
                assert heard[0].seq == result.first_seq

            tasks.start_soon(next_turn)
            await inbox_has(service, session_id, 1)
            gate.go.set()
        assert gate.calls == 2


async def test_the_callback_of_a_cancelled_call_hears_the_rest(tmp_path: Path) -> None:
    """The turn runs on, and so does its callback, to the turn's last event, as in the process of the runtime."""
    gate, heard = Gate(), list[Envelope]()
    async with runtime(tmp_path, test=gate) as service, linked(service) as (remote, _):
        session_id = (await remote.create_session(None, model="test")).session_id
        async with trio.open_nursery() as tasks:
            tasks.start_soon(partial(remote.start_turn, session_id, "hi", on_event=heard.append))
            await until(lambda: any(isinstance(each.event, TextDelta) for each in heard))
            tasks.cancel_scope.cancel()
        gate.go.set()
        await until(lambda: isinstance(heard[-1].event, RunCompleted))
        seqs = [each.seq for each in heard]
        assert seqs == sorted(set(seqs))


async def test_a_server_that_stays_away_is_an_error() -> None:
    """After the client's patience; when the server is back, the same client goes on."""
    async with runtime() as service, linked(service, patience=0.2) as (remote, wire):
        session_id = (await remote.create_session("hi", model="echo")).session_id
        wire.closed = True
        wire.cut()
        await until(lambda: wire.carrying == 0)
        with pytest.raises(AgentError) as caught:
            await remote.read(session_id)
        assert (caught.value.cause, caught.value.retryable) == ("unreachable", True)
        wire.closed = False
        assert (await remote.read(session_id)).state.message_count == 2


async def test_a_wrong_token_is_refused_at_once() -> None:
    """Once, without patience; the error has the status."""
    async with runtime() as service, gateway(service, token=RIGHT) as port:
        with pytest.raises(AgentError, match="HTTP 401") as caught:
            async with connect(f"http://127.0.0.1:{port}", token=RIGHT[:-1]):
                pass
        assert (caught.value.cause, caught.value.retryable) == ("unreachable", False)
        async with connect(f"http://127.0.0.1:{port}", token=RIGHT) as remote:
            assert not remote.capabilities().session_store


async def test_a_turn_beside_a_subscription_is_on_its_connection(tmp_path: Path) -> None:
    """Its answer comes behind its last event, and so does the refusal of a second turn."""
    gate, heard = Gate(), list[int]()
    async with runtime(tmp_path, test=gate) as service, linked(service) as (remote, wire), trio.open_nursery() as tasks:
        session_id = (await remote.create_session(None, model="test")).session_id
        async with remote.subscribe(session_id) as reader:
            reader.notify = lambda _event: heard.extend(each.seq for each in reader.take() or ())

            async def collide() -> None:
                await gate.began.wait()
                with pytest.raises(SessionBusyError):
                    await remote.start_turn(session_id, "and another thing")
                gate.go.set()

            tasks.start_soon(collide)
            result = await remote.start_turn(session_id, "hi")
            assert (heard[-1], wire.opened) == (result.last_seq, 1)
        assert (await remote.start_turn(session_id, "again")).text == "one two"


async def test_events_that_nobody_wants_are_not_those_of_a_new_session(tmp_path: Path) -> None:
    """A turn without a callback runs on the connection on which a session is created."""
    gate, heard = Gate(), list[Envelope]()
    async with runtime(tmp_path, test=gate) as service, linked(service) as (remote, wire), trio.open_nursery() as tasks:
        old = (await remote.create_session("hi", model="echo")).session_id
        await service.create_session(None, model="test")
        tasks.start_soon(partial(remote.create_session, "hi", model="test", on_event=heard.append))
        await gate.began.wait()
        await remote.start_turn(old, "again")
        assert wire.opened == 1
        gate.go.set()
    assert old not in {each.session_id for each in heard}
    assert isinstance(heard[-1].event, RunCompleted)


async def test_a_long_message_comes_in_pieces() -> None:
    """It is longer than what is read at once."""
    long = "word " * 300_000

    async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        return reply(long)

    async with runtime(test=FunctionModel(answer)) as service, linked(service) as (remote, _):
        assert (await remote.create_session("hi", model="test")).text == long


@pytest.mark.virtual_time
async def test_a_server_that_falls_silent_is_lost() -> None:
    """It answers neither a request nor a ping; the client tries it again, and gives up in the end."""
    opened = 0

    async def numb(stream: trio.SocketStream) -> None:
        """Answer the first request, and then nothing."""
        nonlocal opened
        opened += 1
        async with stream:
            server = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
            async for data in stream:
                server.receive_data(bytes(data))
                for event in server.events():
                    if isinstance(event, wsproto.events.Request):
                        await stream.send_all(server.send(wsproto.events.AcceptConnection()))
                    elif isinstance(event, wsproto.events.TextMessage) and "initialize" in event.data:
                        await stream.send_all(
                            server.send(wsproto.events.TextMessage(jsonrpc.result(1, GREETING).decode()))
                        )

    async with trio.open_nursery() as tasks:
        listeners = await tasks.start(trio.serve_tcp, numb, 0)
        async with connect(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}") as remote:
            with pytest.raises(AgentError) as caught:
                await remote.read("s1")
        assert (caught.value.cause, opened) == ("connection_lost", ATTEMPTS)
        tasks.cancel_scope.cancel()


@pytest.mark.virtual_time
async def test_a_server_that_restarts_is_connected_to_again_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """It closes with 1012 and leaves the stream open: the client waits neither for its end nor for a backoff."""
    opened = 0

    async def restart(stream: trio.SocketStream) -> None:
        """Close the first connection when it is asked something, and answer on the second one."""
        nonlocal opened
        opened += 1
        number, server = opened, wsproto.WSConnection(wsproto.ConnectionType.SERVER)
        async with stream:
            async for data in stream:
                server.receive_data(bytes(data))
                for event in server.events():
                    answer: wsproto.events.Event | None = None
                    if isinstance(event, wsproto.events.Request):
                        answer = wsproto.events.AcceptConnection()
                    elif isinstance(event, wsproto.events.TextMessage) and "initialize" in event.data:
                        answer = wsproto.events.TextMessage(jsonrpc.result(1, GREETING).decode())
                    elif isinstance(event, wsproto.events.TextMessage):
                        answer = wsproto.events.CloseConnection(1012)
                        if number > 1:
                            answer = wsproto.events.TextMessage(jsonrpc.result(1, {}).decode())
                    if answer is not None:
                        await stream.send_all(server.send(answer))
            await trio.sleep_forever()

    with caplog.at_level("INFO", "warren.transport.client"):
        async with trio.open_nursery() as tasks:
            listeners = await tasks.start(trio.serve_tcp, restart, 0)
            async with connect(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}") as remote:
                before = trio.current_time()
                await remote.archive("s1")
                assert (opened, trio.current_time()) == (2, before)
            tasks.cancel_scope.cancel()
    assert "the server closed it with code 1012" in caplog.text


@pytest.mark.virtual_time
@pytest.mark.parametrize("upgrades", [False, True])
async def test_a_server_that_says_nothing(*, upgrades: bool) -> None:
    """The client waits ten seconds, whether or not the server takes the WebSocket."""

    async def silent(stream: trio.SocketStream) -> None:
        async with stream:
            if upgrades:
                async with trio.open_nursery() as serving:
                    socket = await (await wrap_server_stream(serving, stream)).accept()
                    with contextlib.suppress(ConnectionClosed):
                        while True:
                            await socket.get_message()
            else:
                async for _ in stream:
                    pass

    async with trio.open_nursery() as tasks:
        listeners = await tasks.start(trio.serve_tcp, silent, 0)
        with pytest.raises(AgentError, match="no answer in 10 s") as caught:
            async with connect(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"):
                pass
        assert (caught.value.cause, caught.value.retryable) == ("unreachable", True)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("known", [True, False])
async def test_a_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, known: bool) -> None:
    """Over TLS the client talks only to a server whose certificate it trusts, and shows its token to no other one."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    if known:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    heard = list[bytes]()

    async def terminate(stream: trio.SSLStream[trio.SocketStream]) -> None:
        """Take the TLS off, and carry the bytes to the gateway."""
        async with stream, await trio.open_tcp_stream(HOST, port) as server:

            async def back() -> None:
                async for piece in server:
                    await stream.send_all(piece)

            try:
                async with trio.open_nursery() as both:
                    both.start_soon(back)
                    async for piece in stream:
                        heard.append(bytes(piece))
                        await server.send_all(piece)
                    both.cancel_scope.cancel()
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the client has refused the certificate, or has left

    async with runtime() as service, gateway(service, token=RIGHT) as port, trio.open_nursery() as tasks:
        serve = partial(trio.serve_ssl_over_tcp, terminate, 0, context, host=HOST)
        listeners = await tasks.start(serve)
        address = f"wss://localhost:{listeners[0].transport_listener.socket.getsockname()[1]}"
        if known:
            async with connect(address, token=RIGHT) as remote:
                assert (await remote.create_session("hi", model="echo")).text == "hi"
        else:
            with pytest.raises(AgentError, match=r"certificate cannot be verified: .*SSL_CERT_FILE") as refused:
                async with connect(address, token=RIGHT):
                    pass
            assert not refused.value.retryable
            assert heard == []
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("url", ["", "ftp://here", "ws://", "ws://[", "ws://host:no"])
async def test_a_bad_address_is_named(url: str) -> None:
    """Before anything is opened."""
    with pytest.raises(InvalidParamsError) as caught:
        async with connect(url):
            pass
    assert caught.value.path == "$.url"


async def test_many_calls_at_once_get_room() -> None:
    """More turns than one connection may have in flight, and new sessions beside them: each gets its own events."""
    many, go, running = MAX_REQUESTS + 10, trio.Event(), set[str]()

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        emit(TextPiece("yes"))
        running.add(str(request.messages[-1]))
        if len(running) == many:
            go.set()
        await go.wait()
        return reply("yes")

    async with runtime(test=FunctionModel(answer)) as service, linked(service) as (remote, wire):
        ids = [(await service.create_session(None, model="test")).session_id for _ in range(many - 30)]
        found = set[str]()

        async def one(number: int, session_id: str | None) -> None:
            heard = list[Envelope]()
            if session_id is None:
                result = await remote.create_session(f"say {number}", model="test", on_event=heard.append)
            else:
                result = await remote.start_turn(session_id, f"say {number}", on_event=heard.append)
            assert {each.session_id for each in heard} == {result.session_id}
            assert isinstance(heard[-1].event, RunCompleted)
            found.add(result.session_id)

        async with trio.open_nursery() as tasks:
            for number, session_id in enumerate([*ids, *[None] * 30]):
                tasks.start_soon(one, number, session_id)
        assert len(found) == many
        assert wire.opened < 20


async def test_connections_that_are_lost_before_anything_is_sent_are_an_error() -> None:
    """However often a request finds its connection lost, the error says that it was not carried out."""

    class Broken(Links):
        async def _find(self, _fits: object) -> Connection:
            connection = Connection()
            with contextlib.suppress(RefusedError):
                await self.tasks.start(connection.run, self.dial)
            return connection

    async with httpx.AsyncClient() as http, anyio.create_task_group() as tasks:
        links = Broken(Dial(http, "ws://127.0.0.1:1/ws", {}), tasks, 0.1)
        with pytest.raises(AgentError) as caught:
            await links.ask("session/read", {"session_id": "s1"}, repeatable=False)
    assert (caught.value.cause, caught.value.retryable) == ("unreachable", True)


async def test_calls_that_wait_for_a_connection_go_on_if_the_first_gives_up(tmp_path: Path) -> None:
    """The one that opens it is cancelled; of those behind it one opens the connection, and all are answered."""
    async with runtime(tmp_path) as service, linked(service) as (remote, wire):
        session_id = (await remote.create_session("hello")).session_id
        wire.closed = True
        wire.cut()
        answered: list[str] = []

        async def call() -> None:
            answered.append((await remote.read(session_id)).state.session_id)

        async with trio.open_nursery() as tasks:
            first = trio.CancelScope()

            async def give_up() -> None:
                with first:
                    await call()

            tasks.start_soon(give_up)
            await trio.testing.wait_all_tasks_blocked(0.01)
            for _ in range(3):
                tasks.start_soon(call)
            await trio.testing.wait_all_tasks_blocked(0.01)
            first.cancel()
            wire.closed = False
            with trio.fail_after(10):
                await until(lambda: len(answered) == 3)


async def test_calls_behind_an_attempt_that_failed_fail_with_it() -> None:
    """A call waits for its own patience, not for that of all calls before it."""
    attempts = 0

    class Nowhere(Connection):
        async def run(self, dial: Dial, *, task_status: Any) -> None:  # noqa: ARG002 - it never opens
            nonlocal attempts
            attempts += 1
            await trio.sleep(1)
            self._hang_up()
            raise RefusedError("there is nothing", retryable=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warren.transport.client.links.Connection", Nowhere)
        async with httpx.AsyncClient() as http, anyio.create_task_group() as tasks:
            links = Links(Dial(http, "ws://127.0.0.1:1/ws", {}), tasks, patience=0.5)
            failed: list[str | None] = []

            async def call() -> None:
                with pytest.raises(AgentError) as refused:
                    await links.ask("session/list", {}, repeatable=True)
                failed.append(refused.value.cause)

            async with trio.open_nursery() as calls:
                for _ in range(20):
                    calls.start_soon(call)
    assert failed == ["unreachable"] * 20
    assert attempts < 5


async def test_a_reader_that_outlives_its_client_gets_an_error() -> None:
    """No connection is opened for it, and nothing is left open."""
    async with runtime() as service, gateway(service) as port:
        async with connect(f"ws://{HOST}:{port}") as remote:
            session_id = (await remote.create_session("hi")).session_id
            subscription = remote.subscribe(session_id, after_seq=0)
            reader = await subscription.__aenter__()
        with pytest.raises(AgentError) as refused:
            async for _ in reader:
                pass
        assert refused.value.cause == "unreachable"
        with pytest.raises(AgentError):
            await remote.read(session_id)
        await subscription.__aexit__(None, None, None)


async def test_a_session_as_an_object(tmp_path: Path) -> None:
    """It is that of the server, by the name of its agent; the fork is another one."""
    desk = Agent("desk", "Settle it.")
    async with (
        open_supervisor(Config(store=StoreConfig(tmp_path), agents=(desk,)), environ={}) as service,
        gateway(service) as port,
        connect(f"ws://{HOST}:{port}") as remote,
    ):
        session = remote.session(desk, labels={"a": "b"})
        assert (await session.turn("one")).text == "one"
        assert (await session.turn("two")).text == "two"
        fork = await session.fork(3)
        assert (await fork.turn("three")).text == "three"
        assert len((await fork.history()).messages) == 5
        state = (await service.read(session.id)).state
        assert (state.message_count, state.labels, state.agent) == (5, {"a": "b"}, desk.pin.ref)
        (found,) = (await remote.agents()).agents
        assert (found.name, found.version, found.here) == ("desk", desk.version, True)
        with pytest.raises(InvalidParamsError, match=r"\$\.agent: there is no agent 'clerk' here"):
            await remote.session(Agent("clerk")).turn("hi")
