"""A server that sends message after message costs a small share of a core, and then its connection."""

from pathlib import Path

import httpx2
import pytest
import trio

from tests.actors.tools.mcp.connecting import ready
from tests.actors.tools.mcp.world import SOON, bare, call
from tests.support.waiting import until
from warren.actors.tools.mcp import pace
from warren.actors.tools.mcp.pace import MESSAGE, PATIENCE, SHARE, FloodError, Pace
from warren.actors.tools.mcp.pool import McpPool
from warren.actors.tools.mcp.refusal import id_of
from warren.actors.tools.mcp.web import Speaking


async def storm(held: Pace, seconds: float, rest: float = 0.0) -> int:
    """Receive messages for a while, one after each rest; return how many."""
    count = 0
    with trio.move_on_after(seconds):
        while True:
            await held.message()
            count += 1
            await trio.sleep(rest)
    return count


@pytest.mark.virtual_time
async def test_a_storm_is_held_back() -> None:
    """It gets its share of a core, and is over after a while."""
    held, began = Pace(), trio.current_time()
    assert 4.5 * SHARE / MESSAGE < await storm(held, 5.0) < 9.0 * SHARE / MESSAGE
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storm, held, 1_000.0)
        with pytest.raises(FloodError, match="sends more messages than 5% of a processor core"):
            await held.watch()
        nursery.cancel_scope.cancel()
    assert PATIENCE <= trio.current_time() - began < 2 * PATIENCE


@pytest.mark.virtual_time
async def test_bursts_and_answers_are_not_held_back() -> None:
    """A server may say much at times, and answer as many requests as there are."""
    held = Pace()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.watch)
        for _ in range(100):
            before = trio.current_time()
            for _ in range(350):
                await held.message(100)
            assert trio.current_time() == before
            await trio.sleep(5.0)
        assert await storm(held, 60.0, rest=0.01) > 5_000
        held.asked, before = 100_000, trio.current_time()
        for _ in range(100_000):
            await held.message(1_000, answers=True)
        assert trio.current_time() == before
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("flag", ["pings", "wrong"])
async def test_a_server_that_floods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    """It is disconnected with the reason in its health, comes back by its backoff, and works once it is quiet."""
    monkeypatch.setattr(pace, "PATIENCE", 0.3)
    (tmp_path / "a.floods").touch()
    async with ready(bare(tmp_path, "a", flag)) as pool:
        await until(lambda: pool.health()[0].restarts >= 1)
        assert "nobody has asked for them" in str(pool.health()[0].last_error)
        (tmp_path / "a.floods").unlink()
        await until(lambda: pool.health()[0].state == "ready")
        assert await call(pool, "square", n=3) == "9"


async def test_a_server_that_fills_its_stderr(tmp_path: Path) -> None:
    """It is read slowly, and its calls are answered."""
    async with McpPool.running([bare(tmp_path, "a", "chatty")], backoff=SOON, startup=50.0) as pool:
        for number in range(5):
            assert await call(pool, "square", n=number) == str(number**2)
        assert pool.health()[0].restarts == 0


class _Deaf(httpx2.AsyncBaseTransport):
    """A service that takes everything."""

    async def handle_async_request(self, _request: httpx2.Request) -> httpx2.Response:
        await trio.lowlevel.checkpoint()
        return httpx2.Response(202)


@pytest.mark.virtual_time
async def test_our_own_notifications_are_not_the_services() -> None:
    """Many cancelled calls cost a service nothing, and hold up no other call; its own requests do."""
    for said, waits in (
        (b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}', False),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}', True),
    ):
        speaking, began = Speaking(_Deaf(), Pace()), trio.current_time()
        for _ in range(300):
            await speaking.handle_async_request(httpx2.Request("POST", "http://service/", content=said))
        assert (trio.current_time() > began) == waits


def test_answers_to_a_service_are_no_requests() -> None:
    """A request of the service may have the number of one of ours: its refusal must not end ours."""
    assert id_of(b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{}}') == 3
    assert id_of(b'{"jsonrpc":"2.0","id":3,"result":{}}') is None
    assert id_of(b'{"jsonrpc":"2.0","method":"notifications/initialized"}') is None
