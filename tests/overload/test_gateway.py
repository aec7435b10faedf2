"""More than a gateway can take, from all sides: it refuses at once, serves those it has admitted, and recovers."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

from tests.overload.gateway_process import Gateway, small_gateway
from tests.support.fake_service import FakeService
from tests.transport.clients import HOST, Client, connect, gateway, healthy, knock
from warren.transport.load.address import address_of
from warren.transport.load.plan import BadClients, LoadPlan, Mix
from warren.transport.load.remote import remote_target
from warren.transport.load.run import run_load

CAPACITY = 6
CONNECTIONS = 40


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway for few turns and few connections, as a process of its own, whose model never ends an answer."""
    with small_gateway(tmp_path_factory.mktemp("gateway"), turns=CAPACITY, connections=CONNECTIONS) as made:
        yield made


@asynccontextmanager
async def full(port: int) -> AsyncIterator[list[tuple[Client, str]]]:
    """Run as many turns as may run, for a body; yields their clients and sessions."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(port)) for _ in range(CAPACITY)]
        running: list[tuple[Client, str]] = []
        for client in clients:
            session_id = (await client.call("session/create", prompt=None))["session_id"]
            await client.send("turn/start", session_id=session_id, prompt="go on for ever")
            await client.until("text_delta")
            running.append((client, session_id))
        try:
            yield running
        finally:
            for client, session_id in running:
                await client.send("turn/interrupt", session_id=session_id)
                await client.until("run_failed")


async def test_past_capacity_a_turn_is_refused_and_leaves_no_trace(target: Gateway) -> None:
    """While the turns that fill it run; reading is not refused, and once one of them ends there is room."""
    async with full(target.port) as running, connect(target.port) as other:
        mine = (await other.call("session/create", prompt=None, model="echo"))["session_id"]
        for method, params in (("turn/start", {"session_id": mine}), ("session/create", {"model": "echo"})):
            error = await other.error(method, prompt="and me?", **params)
            assert (error["code"], error["data"]["code"], error["data"]["retryable"]) == (
                -32008,
                "CAPACITY_EXCEEDED",
                True,
            )
        assert (await other.call("session/read", session_id=mine))["state"]["message_count"] == 0
        (client, session_id), *others = running
        assert await client.call("turn/interrupt", session_id=session_id) == {"interrupted": True}
        assert (await other.call("turn/start", session_id=mine, prompt="and now?"))["text"] == "and now?"
        for busy, its in others:
            assert (await busy.call("session/read", session_id=its))["state"]["is_active"]
        running.remove((client, session_id))


async def test_under_more_turns_than_it_admits_every_session_is_kept(target: Gateway) -> None:
    """Turns are refused by their hundreds, and afterwards each session gets a turn and has all it was told."""
    plan = LoadPlan(
        sessions=30,
        turns=10,
        arrival="open",
        rate=5_000,
        recovery=True,
        model=target.short,
        mix=Mix(subscribers=0.1),
    )
    async with remote_target(plan, address_of(f"{HOST}:{target.port}"), target.store) as there:
        result = await run_load(plan, there)
    assert result.violations == ()
    assert set(result.errors) == {"CAPACITY_EXCEEDED"}
    assert result.figures["turns"] + result.errors["CAPACITY_EXCEEDED"] == 300
    assert result.figures["turns"] >= CAPACITY


async def test_bad_clients_do_not_stop_it(target: Gateway) -> None:
    """Heads that never end, huge frames, idle clients and a flood: users are served, and nothing is left behind."""
    before = await target.watched.gauge()
    crowd = BadClients(idle=10, slow=10, flood=2, huge=2)
    plan = LoadPlan(sessions=CAPACITY, turns=5, think=0.02, model="echo", bad_clients=crowd)
    async with remote_target(plan, address_of(f"{HOST}:{target.port}"), target.store) as there:
        result = await run_load(plan, there)
    assert result.violations == ()
    assert (result.errors, result.figures["turns"]) == ({}, 5 * CAPACITY)
    assert all(result.figures[name] > 0 for name in ("slow heads", "visits", "huge frames"))
    assert result.figures["idle connections"] == 10
    assert "idle connections lost" not in result.figures
    await target.watched.settled(before)


async def test_a_full_gateway_refuses_with_the_code(target: Gateway) -> None:
    """Past its connections it answers 503; those that it has are served, and one that goes makes room."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(target.port)) for _ in range(CONNECTIONS - 1)]
        async with connect(target.port) as last:
            for _ in range(20):
                assert await knock(target.port) == 503
            assert await healthy(last)
            assert await healthy(clients[0])
        with trio.fail_after(30):
            while await knock(target.port) == 503:
                pass
        assert await healthy(clients[-1])


async def test_who_says_nothing_makes_room_for_who_does() -> None:
    """Connections that only hold the door are the first to go, the oldest of them."""
    async with gateway(FakeService(), max_connections=3, handshake_timeout=60) as port, AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(await trio.open_tcp_stream(HOST, port)) for _ in range(3)]
        async with connect(port) as client:
            assert await healthy(client)
            assert await silent[0].receive_some() == b""
            await silent[2].send_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in await silent[2].receive_some()
