"""Servers that die, hang, or never come: what calls and sessions see of it, and that nothing is left of them."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.actors.tools.mcp.connecting import ready
from tests.actors.tools.mcp.world import LONG, SOON, bare, call, descriptors, exists, pids, tool
from tests.support.waiting import until
from warren.actors.tools.mcp.pool import McpPool
from warren.base.backoff import Backoff
from warren.base.errors import InvalidParamsError
from warren.models.tools import ToolError
from warren.settings.tool_config import McpServer

NEVER = Backoff(first=10_000.0, longest=10_000.0)


@asynccontextmanager
async def servers_of(pool: McpPool, session: str, servers: Sequence[McpServer] = ()) -> AsyncIterator[None]:
    """Add servers for a session, and drop them after the body."""
    await pool.add(session, servers)
    try:
        yield
    finally:
        await pool.drop(session)


async def test_a_call_in_flight_ends_with_its_server(tmp_path: Path) -> None:
    """A server that is killed takes its calls with it, at once; it comes back, and its tools stay offered meanwhile."""
    async with ready(bare(tmp_path, "a")) as pool:
        tools = [each.spec for each in pool.tools()]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_lose, pool)
            await until((tmp_path / "a.hung").exists)
            os.kill(pids(tmp_path, "a")[0], signal.SIGKILL)
        assert [each.spec for each in pool.tools()] == tools
        await until(lambda: pool.health()[0].state == "ready" and pool.health()[0].restarts == 1)
        assert pool.health()[0].last_error == "has ended with signal 9"
        assert await call(pool, "square", n=5) == "25"


async def _lose(pool: McpPool) -> None:
    with pytest.raises(ToolError, match="the connection to the MCP server 'a' was lost during the call"):
        await call(pool, "hang")


async def test_a_message_that_is_too_long_is_the_last(tmp_path: Path) -> None:
    """A server that fills the memory is given up; the call that it answered so has an error."""
    async with McpPool.running([bare(tmp_path, "a", "huge")], backoff=NEVER, startup=LONG) as pool:
        with pytest.raises(ToolError, match="was lost during the call"):
            await call(pool, "square", n=1)
        await until(lambda: pool.health()[0].last_error)
        assert str(pool.health()[0].last_error).startswith("sent too long a message")


async def test_a_refused_call_does_not_disturb_the_others(tmp_path: Path) -> None:
    """The server that refuses it is alive, and may be too busy with another call to say so."""
    async with (
        ready(bare(tmp_path, "a", "deaf", "refused", connect_timeout=2.0)) as pool,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(partial(call, pool, "hang"))
        await until((tmp_path / "a.hung").exists)
        with pytest.raises(ToolError, match="refused the call"):
            await call(pool, "square", n=3)
        await trio.sleep(3)
        assert (pool.health()[0].state, pool.health()[0].restarts) == ("ready", 0)
        nursery.cancel_scope.cancel()


async def test_a_call_that_is_given_up_does_not_wait_for_its_server(tmp_path: Path) -> None:
    """Interrupts stay prompt where a server neither reads nor writes any more."""
    async with ready(bare(tmp_path, "a")) as pool:
        os.kill(pids(tmp_path, "a")[0], signal.SIGSTOP)
        with trio.move_on_after(0.05) as scope:
            await call(pool, "hang", text="x" * 1_000_000)
        assert scope.cancelled_caught


async def test_a_server_does_not_see_our_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of its process has what it was given, and nothing secret of ours."""
    monkeypatch.setenv("SOME_API_KEY", "ours")
    async with ready(bare(tmp_path, "a", env={"ITS_KEY": "its"})):
        environ = (await trio.Path(f"/proc/{pids(tmp_path, 'a')[0]}/environ").read_bytes()).split(b"\0")
    assert b"ITS_KEY=its" in environ
    assert not any(each.startswith(b"SOME_API_KEY") for each in environ)


async def test_a_dead_server_answers_at_once(tmp_path: Path) -> None:
    """While a server is away its tools say so, with what it said last; the other goes on."""
    servers = (bare(tmp_path, "a"), bare(tmp_path, "b"))
    async with McpPool.running(servers, backoff=NEVER, startup=LONG) as pool:
        with pytest.raises(ToolError):
            await call(pool, "a_die")
        await until(lambda: pool.health()[0].last_error)
        assert pool.health()[0].state == "failed"
        with pytest.raises(ToolError, match="the MCP server 'a' is not connected: it has ended with status 3"):
            await call(pool, "a_square", n=1)
        assert await call(pool, "b_square", n=2) == "4"


@pytest.mark.parametrize(
    ("flag", "said"),
    [("dies", "has ended with status 1: no database here"), ("mute", "did not answer within 0.3 s")],
)
async def test_a_server_that_never_comes(tmp_path: Path, flag: str, said: str) -> None:
    """The runtime starts without it, health says why, it is tried again and again, and nothing of a try is left."""
    server = bare(tmp_path, "a", flag, connect_timeout=0.3 if flag == "mute" else LONG)
    async with McpPool.running([server], backoff=SOON, startup=LONG) as pool:
        assert pool.tools() == []
        await until(lambda: pool.health()[0].restarts >= 3)
        assert pool.health()[0].last_error == said
    assert len(pids(tmp_path, "a")) >= 3
    assert not any(map(exists, pids(tmp_path, "a")))


async def test_what_is_not_there_is_no_end_of_the_runtime(tmp_path: Path) -> None:
    """A command that does not exist, and an address where nobody listens, are failures that health tells of."""
    servers = (
        McpServer("a", command=str(tmp_path / "none")),
        McpServer("b", url="http://127.0.0.1:9/mcp"),
        McpServer("c", command=sys.executable, args=["\0"]),
    )
    async with McpPool.running(servers, backoff=NEVER, startup=LONG) as pool:
        errors = [each.last_error or "" for each in pool.health()]
        assert errors[0].startswith("cannot be started: [Errno 2]")
        assert errors[1].startswith("cannot be talked to: ConnectError")
        assert errors[2].startswith("cannot be started: embedded null byte")


async def test_the_start_does_not_wait_for_ever(tmp_path: Path) -> None:
    """The runtime goes on without a server that takes too long, which may still come."""
    async with McpPool.running([bare(tmp_path, "a", "mute")], startup=0.0) as pool:
        assert pool.health()[0].state == "connecting"


async def test_a_server_that_stops_answering_is_started_anew(tmp_path: Path) -> None:
    """One that has nothing to do and answers no ping is a dead one."""
    async with ready(bare(tmp_path, "a", connect_timeout=1.0, ping_interval=0.1)) as pool:
        os.kill(pids(tmp_path, "a")[0], signal.SIGSTOP)
        await until(lambda: len(pids(tmp_path, "a")) == 2)
        assert pool.health()[0].last_error == "did not answer within 1 s"
        await until(lambda: pool.health()[0].state == "ready")
        assert not exists(pids(tmp_path, "a")[0])


@pytest.mark.parametrize("way", ["close", "crash", "cancel"])
async def test_nothing_is_left_of_a_server(tmp_path: Path, way: str) -> None:
    """However it ends, the server and what it has started end too, though they ignore SIGTERM."""
    with trio.CancelScope() as scope:
        async with McpPool.running([bare(tmp_path, "a", "stubborn", "parent")], backoff=NEVER, startup=LONG) as pool:
            server, child = pids(tmp_path, "a")
            assert exists(server)
            assert exists(child)
            if way == "crash":
                with pytest.raises(ToolError):
                    await call(pool, "die")
                await until(lambda: not exists(child))
            elif way == "cancel":
                scope.cancel()
                await trio.sleep_forever()
    assert scope.cancelled_caught == (way == "cancel")
    assert not exists(server)
    await until(lambda: not exists(child))


async def test_no_descriptor_is_left_of_restarts(tmp_path: Path) -> None:
    """A server that always dies costs nothing in the long run."""
    before = descriptors()
    async with McpPool.running([bare(tmp_path, "a", "dies")], backoff=SOON, startup=LONG) as pool:
        await until(lambda: pool.health()[0].restarts >= 5)
    assert descriptors() <= before


async def test_sessions_have_servers_of_their_own(tmp_path: Path) -> None:
    """A server that is not shared runs once for each session, and ends with it; others do not see it."""
    own = bare(tmp_path, "own", shared=False)
    async with McpPool.running([own], backoff=SOON, startup=LONG) as pool:
        assert pids(tmp_path, "own") == []
        async with servers_of(pool, "s1", [bare(tmp_path, "mine", shared=False)]), servers_of(pool, "s2"):
            assert len(pids(tmp_path, "own")) == 2
            assert len(pool.tools("s1")) == 6
            assert len(pool.tools("s2")) == 3
            assert pool.tools() == []
            assert await tool(pool, "square", "s2").call(n=3) == "9"
        assert pool.health() == []
        assert not any(map(exists, [*pids(tmp_path, "own"), *pids(tmp_path, "mine")]))


async def test_sessions_share_what_may_be_shared(tmp_path: Path) -> None:
    """Two sessions that ask for the same server have one process, which stays until the last has gone."""
    async with McpPool.running(backoff=SOON, startup=LONG) as pool:
        async with servers_of(pool, "s1", [bare(tmp_path, "a")]):
            async with servers_of(pool, "s2", [bare(tmp_path, "a")]):
                assert len(pids(tmp_path, "a")) == 1
            assert await tool(pool, "square", "s1").call(n=3) == "9"
        assert not exists(pids(tmp_path, "a")[0])


async def test_a_tool_of_a_session_that_has_ended(tmp_path: Path) -> None:
    """A call that comes too late has an error for a result."""
    async with McpPool.running(backoff=SOON, startup=LONG) as pool:
        async with servers_of(pool, "s1", [bare(tmp_path, "a")]):
            late = tool(pool, "square", "s1")
        with pytest.raises(ToolError, match="the MCP server 'a' is not connected"):
            await late.call(n=3)


async def test_giving_up_while_a_session_gets_its_servers(tmp_path: Path) -> None:
    """A session whose creation is cancelled leaves no server behind."""
    async with McpPool.running(backoff=SOON, startup=LONG) as pool:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pool.add, "s1", [bare(tmp_path, "a", "mute")])
                await until(lambda: pids(tmp_path, "a"))
                scope.cancel()
        assert pool.health() == []
        await until(lambda: not exists(pids(tmp_path, "a")[0]))


async def test_two_servers_of_one_name(tmp_path: Path) -> None:
    """They are refused with the place of the second, and nothing is started."""
    with pytest.raises(InvalidParamsError) as caught:
        async with McpPool.running([bare(tmp_path, "a"), bare(tmp_path, "a", "noisy")]):
            pass
    assert caught.value.path == "mcp_servers[1].name"
    assert pids(tmp_path, "a") == []


async def test_without_the_extra_servers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who configures a server is told what to install; one who does not needs nothing."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    async with McpPool.running() as pool:
        assert pool.tools() == []
        with pytest.raises(InvalidParamsError, match="need the extra `mcp`"):
            await pool.add("s1", [bare(tmp_path, "a")])


def test_without_servers_nothing_is_imported() -> None:
    """A runtime without servers does not pay for the protocol."""
    code = "import sys, warren.actors.tools.mcp.pool; sys.exit('mcp' in sys.modules or 'mcp_types' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
