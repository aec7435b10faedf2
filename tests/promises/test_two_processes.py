"""Real processes on one store: who dies, who hangs, and who goes on."""

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from tests.support.checks import numbers
from warren.config import Config, StoreConfig
from warren.errors import LeasedError, StoreError
from warren.events import RunCompleted
from warren.service import SessionService
from warren.transport.embed import open_supervisor

LEASE: Final = 1.0
PROGRAM: Final = """
import json, sys
from pathlib import Path
import trio
from warren import open_supervisor
from warren.config import Config, StoreConfig
from warren.errors import WarrenError

def tell(**what):
    print(json.dumps(what), flush=True)

async def main():
    store = StoreConfig(Path(sys.argv[1]), lease=float(sys.argv[2]), holder="the other program")
    async with open_supervisor(Config(store=store), environ={}) as service:
        tell(session_id=(await service.create_session("hello")).session_id)
        session_id = None
        async for line in trio.lowlevel.FdStream(0):
            for prompt in line.decode().split():
                session_id = session_id or (await service.list()).sessions[-1].session_id
                try:
                    tell(text=(await service.start_turn(session_id, prompt)).text)
                except WarrenError as exc:
                    tell(error=exc.body())

trio.run(main)
"""


@attrs.define
class Other:
    """A process of its own that has one session and takes prompts for it."""

    process: trio.Process
    session_id: str = ""
    _read: bytes = b""

    async def next(self) -> dict[str, Any]:
        """Return what it tells next."""
        assert self.process.stdout is not None
        while b"\n" not in self._read:
            chunk = await self.process.stdout.receive_some()
            assert chunk, "it ended"
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        told = json.loads(line)
        assert isinstance(told, dict)
        return told

    async def ask(self, prompt: str) -> dict[str, Any]:
        """Have it run a turn; return the answer or the error."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(prompt.encode() + b"\n")
        return await self.next()


@asynccontextmanager
async def other(folder: Path, lease: float = LEASE) -> AsyncIterator[Other]:
    """Run the other program on a store."""
    command = [sys.executable, "-c", PROGRAM, str(folder), str(lease)]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        running = Other(process)
        running.session_id = (await running.next())["session_id"]
        yield running
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    await stream.aclose()


@asynccontextmanager
async def here(folder: Path) -> AsyncIterator[SessionService]:
    """Open the store in this process."""
    async with open_supervisor(Config(store=StoreConfig(folder, lease=LEASE)), environ={}) as service:
        yield service


async def soon(holds: Callable[[], Any]) -> Any:
    """Try again until something does not raise StoreError any more."""
    with trio.fail_after(20):
        while True:
            try:
                return await holds()
            except StoreError:
                await trio.sleep(0.05)


async def refused(service: SessionService, session_id: str) -> LeasedError:
    """Return the error by which a turn is refused."""
    try:
        await service.start_turn(session_id, "go on")
    except LeasedError as exc:
        return exc
    raise AssertionError("it was not refused")


async def test_a_killed_process_frees_its_sessions_at_once(tmp_path: Path) -> None:
    """While it lives a turn elsewhere is refused in words that name it; killed, its session goes on without a wait."""
    async with other(tmp_path, lease=3600) as owner, here(tmp_path) as service:
        error = await refused(service, owner.session_id)
        assert f"the other program (process {owner.process.pid} on " in error.message
        assert error.retryable
        owner.process.send_signal(signal.SIGKILL)
        await owner.process.wait()
        assert (await service.start_turn(owner.session_id, "go on")).text == "go on"
        assert (await service.read(owner.session_id)).state.message_count == 4


async def test_a_stopped_process_is_taken_over_and_cannot_write(tmp_path: Path) -> None:
    """Stopped for longer than its lease it loses the session; woken, its turn is refused and corrupts nothing."""
    async with other(tmp_path) as owner, here(tmp_path) as service:
        await refused(service, owner.session_id)
        owner.process.send_signal(signal.SIGSTOP)
        result = await soon(lambda: service.start_turn(owner.session_id, "mine"))
        assert result.text == "mine"
        owner.process.send_signal(signal.SIGCONT)
        error = (await owner.ask("stale"))["error"]
        assert error["code"] == "SESSION_STORE_ERROR"
        assert error["retryable"]
        assert error["details"]["cause"] in ("lease_lost", "leased")
        page = await service.history(owner.session_id)
        assert "stale" not in str(page.messages)
        assert (await service.start_turn(owner.session_id, "still mine")).text == "still mine"


async def test_a_process_that_ends_in_order_hands_over(tmp_path: Path) -> None:
    """Its input at an end, it stores and leaves; the session goes on here, numbers unbroken."""
    async with other(tmp_path, lease=3600) as owner, here(tmp_path) as service:
        assert owner.process.stdin is not None
        await owner.process.stdin.aclose()
        assert await owner.process.wait() == 0
        await service.start_turn(owner.session_id, "go on")
        seen, ends = [], 0
        async with service.subscribe(owner.session_id, after_seq=0) as events:
            async for envelope in events:
                seen.append(envelope)
                ends += isinstance(envelope.event, RunCompleted)
                if ends == 2:
                    break
        assert numbers(seen) == list(range(1, seen[-1].seq + 1))
