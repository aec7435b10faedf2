"""trio-websocket on our stream: one write for many messages, fragments of long ones, and sends that are cancelled."""

import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio
from starlette.types import Receive, Scope, Send
from trio.testing import wait_all_tasks_blocked
from wsproto.events import AcceptConnection, Ping, Pong, Request, TextMessage

from tests.support.fake_service import FakeService
from tests.support.waiting import AT_ONCE
from tests.transport.clients import HEALTH, HOST, Frames, connect, frames, healthy
from tests.transport.http.serving import pair
from warren.actors.io.streams import GONE
from warren.transport.access.auth import AccessPolicy
from warren.transport.access.config import GatewayConfig
from warren.transport.access.head import Head
from warren.transport.access.logins import Authenticator
from warren.transport.access.pace import Pace
from warren.transport.gateway.handshake import Opening, check
from warren.transport.gateway.heartbeat import Heartbeat
from warren.transport.gateway.websocket import FRAGMENT, Messages, WebSocketConnection
from warren.transport.http.connection import HttpConnection
from warren.transport.http.http_server import HttpServer
from warren.transport.http.probes import probes
from warren.transport.http.shutdown import Shutdown
from warren.transport.http.wire import Wire
from warren.transport.rpc.methods import Host

MOST = 1_000


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Messages, Frames, Wire]]:
    """Open a WebSocket between two sockets for a body; yields our side, its client and its wire."""
    wire, stream = await pair()
    messages, client = Messages(wire, MOST), Frames(stream)
    head = client.protocol.send(Request(HOST, "/ws"))
    async with stream, wire, trio.open_nursery() as nursery:
        await messages.open(nursery, Opening(head, None), [])
        assert isinstance(await client.next(), AcceptConnection)
        yield messages, client, wire
        nursery.cancel_scope.cancel()


async def test_messages_leave_in_one_write() -> None:
    """What is sent together reaches the client in one piece, each message in a frame of its own."""
    async with opened() as (messages, client, _), trio.open_nursery() as nursery:
        nursery.start_soon(messages.send, [b"%d" % number for number in range(100)])
        await wait_all_tasks_blocked()
        assert await client.stream.receive_some() == b"".join(b"\x81%c%d" % (len(f"{n}"), n) for n in range(100))


async def test_a_long_message_leaves_in_fragments() -> None:
    """It is whole for the client, behind the messages before it, and a ping is answered within it."""
    long = "naïve €uro 😀 " * 200_000
    async with opened() as (messages, client, _), trio.open_nursery() as nursery:
        nursery.start_soon(messages.send, [b"first", long.encode(), b"last"])
        await wait_all_tasks_blocked()
        await client.send(Ping(b"there?"))
        await wait_all_tasks_blocked()
        fragments, texts, pongs = 0, [""], 0
        while len(texts) < 4:
            client.protocol.receive_data(await client.stream.receive_some())
            for event in client.protocol.events():
                pongs += isinstance(event, Pong)
                if isinstance(event, TextMessage):
                    fragments += event.frame_finished
                    texts[-1] += event.data
                    texts += [""] * event.message_finished
        assert (texts, pongs) == (["first", long, "last", ""], 1)
        assert fragments == 2 + -(-len(long.encode()) // FRAGMENT)


async def test_a_cancelled_send_leaves_no_torn_frame() -> None:
    """The client has whole messages, in order, and then the end of the connection; nothing can be sent after it."""
    texts = [f"{number}" * 50_000 for number in range(100)]
    read = list[str]()
    async with opened() as (messages, client, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(messages.send, [text.encode() for text in texts])
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        with pytest.raises(GONE):
            await messages.send([b"more"])
        with contextlib.suppress(trio.BrokenResourceError):
            while isinstance(event := await client.next(), TextMessage):
                read.append(event.data)
    assert 0 < len(read) < len(texts)
    assert read == texts[: len(read)]


@attrs.define(eq=False)
class _Failing(Pace):
    """A pace that has a fault, found while bytes are waited for or while a message is handled."""

    handling: bool = False

    async def wait(self, requests: float = 0.0) -> None:
        await trio.lowlevel.checkpoint()
        if requests == float(self.handling):
            raise ZeroDivisionError("boom")


@pytest.mark.parametrize("handling", [False, True])
async def test_an_exception_ends_its_connection_alone(*, handling: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A fault in the task that reads or in the one that handles ends one connection, and is logged; others stay."""
    config, opened_before = GatewayConfig(), list[Wire]()

    async def serve(http: HttpConnection, head: Head) -> None:
        wire = http.unread()
        if opened_before:
            wire.paces = [_Failing(1, handling=handling)]
        opened_before.append(wire)
        opening = check(head, AccessPolicy(Authenticator(), (), HOST))
        await WebSocketConnection(wire, Host(FakeService()), config).run(opening, [], Heartbeat(config.heartbeat))

    server = HttpServer(config, Shutdown(), not_found, probes(lambda: True), serve)
    async with trio.open_nursery() as nursery:
        connections = await nursery.start(server.hold_connections)
        [listener] = await nursery.start(
            partial(trio.serve_tcp, server.serve, 0, host=HOST, handler_nursery=connections)
        )
        port = listener.socket.getsockname()[1]
        try:
            async with connect(port) as other, frames(port) as client:
                await client.send(TextMessage(HEALTH))
                with trio.fail_after(AT_ONCE):
                    assert await client.closed() == 1006
                assert await healthy(other)
        finally:
            server.shut_down()
            nursery.cancel_scope.cancel()
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == ["a connection failed"]


async def not_found(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """No request but for a WebSocket is expected."""
    raise NotImplementedError
