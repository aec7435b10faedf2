"""The clients of the other nodes."""

from datetime import UTC, datetime
from functools import partial
from typing import Final

import pytest
import trio
import trio.testing
import wsproto

from tests.transport.clients import HOST, gateway
from warren.base.errors import AgentError
from warren.base.nodes import Node
from warren.calls.facade import Capabilities
from warren.transport.access.auth import NODE_PROOF
from warren.transport.access.refusals import RefusedError
from warren.transport.client.links import ATTEMPTS
from warren.transport.cluster.peers import Peers
from warren.transport.cluster.token import NodeTokens
from warren.transport.embed import open_supervisor

CAPABILITIES = Capabilities(session_store=True, session_compaction=False, memory_store=False)
LEASE: Final = 12.0


async def test_a_gateway_that_has_the_port_of_a_dead_node_is_not_taken_for_it() -> None:
    """It has other sessions: it is not asked for those of the node, which have to be looked up again."""
    async with open_supervisor(environ={}) as other, gateway(other) as port, trio.open_nursery() as tasks:
        node = Node(2, "gone", f"ws://{HOST}:{port}", "1", datetime.now(UTC))
        service = Peers(NodeTokens(b"0" * 32, 1, "here"), CAPABILITIES, tasks, LEASE).service(node)
        with pytest.raises(AgentError, match="another server") as refused:
            await service.start_turn("01a20959-0000-7000-8000-000000000000", "hi", mode="queue", idempotency_key="k")
        tasks.cancel_scope.cancel()
    assert (refused.value.cause, refused.value.retryable) == ("unreachable", True)


async def test_a_body_goes_to_a_node_once() -> None:
    """A node asks for the answer to its challenge before it reads a body: the first request comes without it."""
    here, there = NodeTokens(b"0" * 32, 1, "here"), NodeTokens(b"0" * 32, 2, "there")
    bodies: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            received = b""
            while b"\r\n\r\n" not in received:
                received += await stream.receive_some()
            head, _, body = received.partition(b"\r\n\r\n")
            headers = {
                name.lower(): value for name, value in (line.split(": ") for line in head.decode().split("\r\n")[1:])
            }
            while len(body) < int(headers.get("content-length", 0)):
                body += await stream.receive_some()
            bodies.append(body)
            status = "200 OK"
            try:
                assert there.accepts(headers["authorization"].removeprefix("Bearer "))
            except RefusedError as exc:
                status = "\r\n".join(("401 Unauthorized", *map(": ".join, exc.headers)))
            await stream.send_all(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())

    async with trio.open_nursery() as tasks:
        (listener,) = await tasks.start(partial(trio.serve_tcp, serve, 0, host=HOST))
        address = f"ws://{HOST}:{listener.socket.getsockname()[1]}"
        peers = Peers(here, CAPABILITIES, tasks, LEASE)
        passing = peers.passing(Node(2, "there", address, "1", datetime.now(UTC)), "/mcp")
        answer = await passing.http.post(passing.url, content=b"hello", headers={"content-type": "text/plain"})
        assert (answer.status_code, bodies) == (200, [b"", b"hello"])
        await peers.aclose()
        tasks.cancel_scope.cancel()


async def test_a_call_to_a_node_that_is_found_to_be_gone_has_to_look_again(caplog: pytest.LogCaptureFixture) -> None:
    """Its client is closed while the call holds it: that is the node's end, not an error of this one."""
    node = Node(2, "gone", "ws://127.0.0.1:9", "1", datetime.now(UTC))
    async with trio.open_nursery() as tasks:
        peers = Peers(NodeTokens(b"0" * 32, 1, "here"), CAPABILITIES, tasks, LEASE)
        service = peers.service(node)
        peers.forget_others(())
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(AgentError) as refused:
            await service.read("01a20959-0000-7000-8000-000000000000")
        tasks.cancel_scope.cancel()
    assert refused.value.cause == "unreachable"
    assert not caplog.records


async def test_a_call_that_outlives_its_own_node_has_to_look_again() -> None:
    """It has found the session's node before the end of its own, and calls it thereafter: no connection is opened."""
    gone, known, new = (Node(number, "there", "ws://127.0.0.1:9", "1", datetime.now(UTC)) for number in (2, 3, 4))
    async with trio.open_nursery() as tasks:
        peers = Peers(NodeTokens(b"0" * 32, 1, "here"), CAPABILITIES, tasks, LEASE)
        services = [peers.service(gone), peers.service(known)]
        peers.forget_others({known.key})
        await peers.aclose()
        tasks.cancel_scope.cancel()
    for service in (*services, peers.service(new)):
        with pytest.raises(AgentError) as refused:
            await service.read("01a20959-0000-7000-8000-000000000000")
        assert refused.value.cause == "unreachable"


@pytest.mark.virtual_time
async def test_a_link_that_is_silent_for_a_lease_is_given_up() -> None:
    """A node opens each link and says nothing more: a call gives each of them up after a lease."""
    there = NodeTokens(b"0" * 32, 2, "there")

    async def numb(stream: trio.SocketStream) -> None:
        async with stream:
            server = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
            async for data in stream:
                server.receive_data(bytes(data))
                for event in server.events():
                    if isinstance(event, wsproto.events.Request):
                        token = dict(event.extra_headers)[b"authorization"].decode().removeprefix("Bearer ")
                        proof = [(NODE_PROOF.encode(), there.proof(token).encode())]
                        await stream.send_all(server.send(wsproto.events.AcceptConnection(extra_headers=proof)))

    async with trio.open_nursery() as tasks:
        listeners = await tasks.start(trio.serve_tcp, numb, 0)
        address = f"ws://{HOST}:{listeners[0].socket.getsockname()[1]}"
        node = Node(2, "there", address, "1", datetime.now(UTC))
        service = Peers(NodeTokens(b"0" * 32, 1, "here"), CAPABILITIES, tasks, LEASE).service(node)
        begun = trio.current_time()
        with pytest.raises(AgentError) as lost:
            await service.read("01a20959-0000-7000-8000-000000000000")
        assert lost.value.cause == "connection_lost"
        assert trio.current_time() - begun == pytest.approx(ATTEMPTS * LEASE)
        tasks.cancel_scope.cancel()
