"""Clients that do not read: they harm nobody and do not stay."""

import json
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import httpx
import pytest
import trio
from wsproto.events import Event, Ping, TextMessage

from tests.support.envelopes import NOW
from tests.support.fake_service import FakeService, FakeTurn
from tests.support.models import Flood
from tests.transport.clients import HOST, Client, Frames, connect, frames, gateway, healthy, let_in, text
from warren.calls.base import Call
from warren.calls.reading import HistoryRequest
from warren.conversation.messages import UserMessage
from warren.conversation.views import HistoryEntry, HistoryPage
from warren.settings.config import Config, Limits, StoreConfig
from warren.transport.embed import open_supervisor

R = TypeVar("R")


async def test_a_client_that_asks_without_reading_is_not_read_either() -> None:
    """A flood of requests with nobody reading the replies fills no memory: its sending comes to a halt."""
    sent = 0

    async def ask(client: Frames) -> None:
        nonlocal sent
        flood = {"jsonrpc": "2.0", "id": "x" * 10_000, "method": "no/such"}
        while True:
            await client.send(TextMessage(json.dumps(flood)))
            sent += 1

    async with (
        gateway(FakeService(), max_in_flight=5) as port,
        connect(port) as other,
        frames(port) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(ask, client)
        with trio.fail_after(20):
            before = -1
            while before < sent:
                before = sent
                await trio.sleep(0.3)
        assert await healthy(other)
        nursery.cancel_scope.cancel()


async def test_a_client_that_asks_without_reading_is_dropped() -> None:
    """A client that does not take its replies is dropped after the stall's time, and its place is free."""
    settings = {"stall_timeout": 0.3, "max_in_flight": 5, "max_connections": 1}
    async with gateway(FakeService(), **settings) as port, frames(port) as client:
        flood = {"jsonrpc": "2.0", "id": "x" * 10_000, "method": "no/such"}
        with pytest.raises(trio.BrokenResourceError), trio.fail_after(20):
            await send_on(client, TextMessage(json.dumps(flood)))
        with trio.fail_after(5):
            await let_in(port)


async def send_on(client: Frames, event: Event, pause: float = 0.0) -> None:
    """Send the same again and again, reading nothing, until that fails."""
    while True:
        await client.send(event)
        await trio.sleep(pause)


async def test_a_stuck_client_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A client that never reads is dropped; its turn goes on and is stored, and others are served meanwhile."""
    caplog.set_level(logging.DEBUG, "warren")
    flood = Flood(4000)
    config = Config(store=StoreConfig(tmp_path), limits=Limits(max_answer=2**29))
    async with open_supervisor(config, providers={"flood": flood}, environ={}) as service:  # noqa: SIM117 - long
        async with gateway(service, stall_timeout=0.5) as port, connect(port) as other, frames(port) as stuck:
            session_id = (await other.call("session/create", prompt=None, model="flood"))["session_id"]
            params = {"session_id": session_id, "prompt": "go"}
            call = {"jsonrpc": "2.0", "id": 1, "method": "turn/start", "params": params}
            await stuck.send(TextMessage(json.dumps(call)))
            worst = await slowest(other, session_id)
            assert worst < 1
            with pytest.raises(trio.BrokenResourceError), trio.fail_after(5):
                await send_on(stuck, Ping(), pause=0.05)
            view = await other.call("session/read", session_id=session_id)
            assert view["state"]["is_active"] is False
            assert (await other.call("session/create", prompt="and me?"))["text"] == "and me?"
    async with open_supervisor(config, providers={"flood": flood}, environ={}) as service:
        assert (await service.read(session_id)).state.last_assistant_text == "enough"
    assert "read nothing for 0.5 s" in caplog.text


async def jam(client: Frames) -> None:
    """Have the gateway send to a client until that is stuck."""
    params = {"session_id": "s1", "prompt": "go"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "turn/start", "params": params}
    await client.send(TextMessage(json.dumps(call)))
    await trio.sleep(0.3)


async def endless(turn: FakeTurn) -> None:
    """Say much, for ever."""
    while True:
        turn.say("x" * 20_000)
        await trio.sleep(0.0001)


async def test_a_stuck_client_does_not_hold_up_the_shutdown() -> None:
    """The gateway ends within its bound, whatever a client does not read."""
    with trio.fail_after(5):
        async with gateway(FakeService(behaviour=endless), stall_timeout=60) as port, frames(port) as stuck:
            await jam(stuck)


async def slowest(client: Client, session_id: str) -> float:
    """Read a session until its turn has ended; return the longest that an answer took, in seconds."""
    worst, view = 0.0, {"state": {"message_count": 0}}
    while not view["state"]["message_count"]:
        started = trio.current_time()
        view = await client.call("session/read", session_id=session_id)
        worst = max(worst, trio.current_time() - started)
        await trio.sleep(0.01)
    return worst


async def test_a_stuck_watcher_does_not_slow_a_turn() -> None:
    """A watcher that never reads costs the turn nothing, and a watcher that reads misses nothing."""

    async def long(turn: FakeTurn) -> None:
        for _ in range(500):
            turn.say("x" * 10_000)
            await trio.lowlevel.checkpoint()

    service = FakeService(behaviour=long)
    async with gateway(service) as port, connect(port) as reader, frames(port) as stuck:
        call = {"jsonrpc": "2.0", "id": 1, "method": "session/subscribe", "params": {"session_id": "s1"}}
        await stuck.send(TextMessage(json.dumps(call)))
        await stuck.next()
        await reader.call("session/subscribe", session_id="s1")
        with trio.fail_after(10):
            await reader.call("turn/start", session_id="s1", prompt="go")
        assert len(text(reader.events("s1"))) == 5_000_000


PAGE_TEXT = "naïve €uro 😀 " * 100_000
PAGES = 30


@attrs.define(eq=False)
class Library(FakeService):
    """Has one page of history, a large one, and counts how often it was asked for."""

    asked: int = 0

    async def perform(self, call: Call[R]) -> R:
        if not isinstance(call, HistoryRequest):
            return await super().perform(call)
        self.asked += 1
        await trio.lowlevel.checkpoint()
        entry = HistoryEntry(0, NOW, UserMessage(PAGE_TEXT))
        return cast("R", HistoryPage(call.session_id, (entry,), call.offset, 1))


def history_call(number: int) -> dict[str, Any]:
    """Return a request for the page."""
    return {"jsonrpc": "2.0", "id": number, "method": "session/history", "params": {"session_id": "s1"}}


async def test_large_replies_are_made_as_they_are_read() -> None:
    """A client that asks for many and reads none has a few of them made; then it reads, and gets every one whole."""
    service = Library()
    async with gateway(service) as port, connect(port) as other, frames(port) as client, trio.open_nursery() as nursery:
        asked = b"".join(client.protocol.send(TextMessage(json.dumps(history_call(each)))) for each in range(PAGES))
        nursery.start_soon(client.stream.send_all, asked)
        before = -1
        while before < service.asked:  # until no more are made
            before = service.asked
            for _ in range(20):
                assert await healthy(other)
        assert 0 < service.asked < PAGES // 2
        numbers = set()
        for _ in range(PAGES):
            reply = await client.next()
            assert isinstance(reply, TextMessage)
            message = json.loads(reply.data)
            assert message["result"]["messages"][0]["message"]["content"] == PAGE_TEXT
            numbers.add(message["id"])
        assert numbers == set(range(PAGES))


async def test_the_greediest_of_all_clients_is_let_go() -> None:
    """Beyond the bound of the process it is closed with 1013; one with less unread gets its reply, and others go on."""
    runtime = Config(limits=Limits(max_unread=10 * len(PAGE_TEXT)))
    async with (
        gateway(Library(), runtime=runtime, close_timeout=5) as port,
        connect(port) as other,
        frames(port) as modest,
        frames(port) as greedy,
    ):
        await modest.send(TextMessage(json.dumps(history_call(1))))
        for each in range(PAGES):
            await greedy.send(TextMessage(json.dumps(history_call(each))))
        assert await healthy(other)
        with trio.fail_after(20):
            assert await greedy.closed() == 1013
        reply = await modest.next()
        assert isinstance(reply, TextMessage)
        assert json.loads(reply.data)["id"] == 1
        assert await healthy(other)


async def test_a_batch_cannot_collect_any_number_of_large_replies() -> None:
    """Those beyond the bound are refused in their places; the others are whole."""
    async with gateway(Library()) as port, connect(port, max_message_size=2**28) as client:
        await client.raw(json.dumps([history_call(each) for each in range(PAGES)]))
        replies = [await client.next() for _ in range(PAGES)]
        refused = [reply["error"]["data"]["code"] for reply in replies if "error" in reply]
        assert 0 < len(refused) < PAGES
        assert set(refused) == {"CAPACITY_EXCEEDED"}


async def test_a_large_page_is_whole_over_http() -> None:
    """It is the same page there."""
    async with gateway(Library()) as port, httpx.AsyncClient(base_url=f"http://{HOST}:{port}") as http:
        page = (await http.get("/sessions/s1/history")).json()
    assert page["messages"][0]["message"]["content"] == PAGE_TEXT


async def test_large_pages_over_http_are_made_as_they_are_read() -> None:
    """While clients have not read many pages, more are refused; once the clients are gone, there is room again."""
    service = Library()
    request = f"GET /sessions/s1/history HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
    async with (
        gateway(service) as port,
        AsyncExitStack() as stack,
        httpx.AsyncClient(base_url=f"http://{HOST}:{port}") as http,
    ):
        clients = [await stack.enter_async_context(await trio.open_tcp_stream(HOST, port)) for _ in range(2 * PAGES)]
        heads = []
        for client in clients:
            await client.send_all(request)
            heads.append(bytes(await client.receive_some(12)))
        assert heads[0] == b"HTTP/1.1 200"
        assert heads[-1] == b"HTTP/1.1 503"
        refused = await http.get("/sessions/s1/history")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["details"]["cause"] == "unread"
        assert (await http.get("/sessions")).status_code == 200
        await stack.aclose()
        while (await http.get("/sessions/s1/history")).status_code == 503:
            await trio.lowlevel.checkpoint()
