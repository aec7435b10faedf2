"""Whole runs against the real thing: a runtime in memory, one with a store, a gateway as a process of its own."""

import json
import math
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import attrs
import pytest
import trio

from tests.transport.client.cable import Cable
from tests.transport.clients import gateway
from warren.base.errors import InvalidParamsError
from warren.settings.config import Config
from warren.transport.embed import open_supervisor
from warren.transport.load.address import address_of
from warren.transport.load.local import local_target
from warren.transport.load.plan import LoadPlan, Mix, Profile
from warren.transport.load.remote import remote_target
from warren.transport.load.run import RunProgress, run_load
from warren.transport.load.target import LOST, TargetError

EVERYTHING = Mix(interrupts=0.15, busy=0.2, disconnects=0.2, tools=0.3, compactions=0.1, subscribers=0.3)
SPEAKING = Profile(latency=0.01, chunks=8, chunk_delay=0.005)


@pytest.mark.virtual_time
async def test_a_runtime_in_memory_keeps_its_promises() -> None:
    """With everything mixed in, on a virtual clock: forty sessions take no time."""
    plan = LoadPlan(sessions=40, turns=6, think=1, profile=SPEAKING, mix=EVERYTHING)
    async with local_target(plan) as target:
        result = await run_load(plan, target)
    assert result.violations == ()
    assert result.errors == {}
    assert all(result.figures[name] > 0 for name in ("busy", "interrupted", "disconnects", "followed", "compactions"))
    assert result.figures["turns"] + result.figures["interrupted"] + result.figures["disconnects"] >= 40 * 6


async def test_a_store_has_every_row(tmp_path: Path) -> None:
    """The rows that the sessions claim are in the file; a row that somebody takes away is found."""
    plan = LoadPlan(sessions=20, turns=3, profile=SPEAKING, mix=EVERYTHING)
    async with local_target(plan, tmp_path) as target:
        result = await run_load(plan, target)
        assert result.violations == ()
        rows = await target.rows([])
        assert rows == {}
    with apsw.Connection(str(tmp_path / "sessions.sqlite3")) as db:
        assert db.execute("SELECT count(*) FROM sessions").get == 20


async def test_a_lost_row_is_found(tmp_path: Path) -> None:
    """A message that is gone from the file breaks a promise, though the runtime still has it in memory."""
    plan = LoadPlan(sessions=2, turns=2, profile=SPEAKING)

    async with local_target(plan, tmp_path) as target:

        @attrs.frozen
        class Thief:
            """Takes a row away before the rows are counted."""

            name: str = "thief"
            tagged: bool = True
            line = staticmethod(target.line)
            crowded = staticmethod(target.crowded)

            async def rows(self, session_ids: list[str]) -> object:
                with apsw.Connection(str(tmp_path / "sessions.sqlite3")) as db:
                    db.execute("DELETE FROM messages WHERE position = 3 AND session = (SELECT min(key) FROM sessions)")
                return await target.rows(session_ids)

        result = await run_load(plan, Thief())  # type: ignore[arg-type]
    assert {violation.rule for violation in result.violations} >= {"rows"}
    assert len({violation.session_id for violation in result.violations}) == 1


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[int, trio.Process]]:
    """Run `warren serve` as a process with a scripted model; yields its port and the process."""
    script = folder / "script.json"
    step = {"chunks": ["well "] * 12, "chunk_delay": 0.05}
    script.write_text(json.dumps({"loop": True, "steps": [step]}))
    command = [sys.executable, "-m", "warren", "serve", "--port", "0", "--store", str(folder / "store")]
    process = await trio.lowlevel.open_process([*command, "--model", f"scripted:{script}"], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            chunk = await process.stdout.receive_some()
            assert chunk, "the gateway has ended"
            line += chunk
        yield int(line.rsplit(b":", 1)[1]), process
    finally:
        with trio.CancelScope(shield=True):
            process.terminate()
            await process.wait()


async def test_a_gateway_keeps_its_promises_to_fifty_clients(tmp_path: Path) -> None:
    """Over real connections, some of which are cut in the middle of a turn; its file is read beside it."""
    plan = LoadPlan(sessions=50, turns=2, mix=attrs.evolve(EVERYTHING, tools=0.0))
    async with served(tmp_path) as (port, _):
        address = address_of(f"http://127.0.0.1:{port}")
        async with remote_target(plan, address, tmp_path / "store") as target:
            result = await run_load(plan, target)
    assert result.violations == ()
    assert result.errors == {}
    assert result.figures["sessions"] == 50
    assert all(result.figures[name] > 0 for name in ("busy", "interrupted", "disconnects", "followed"))


async def test_a_gateway_whose_connections_are_cut_breaks_no_promise(tmp_path: Path) -> None:
    """Half of the connections end after a moment, as those of an overloaded gateway: clients come back, and go on."""
    plan = LoadPlan(sessions=10, turns=2, think=0.05, mix=attrs.evolve(EVERYTHING, tools=0.0), turn_limit=20)
    chance = random.Random(1)  # noqa: S311 - a plan, not a secret
    async with served(tmp_path) as (port, _), trio.open_nursery() as nursery:

        async def carried(client: trio.SocketStream) -> None:
            with trio.move_on_after(0.3 * chance.random() if chance.random() < 0.5 else math.inf):
                await Cable(port).serve(client)

        listeners = await nursery.start(trio.serve_tcp, carried, 0)
        address = address_of(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}")
        async with remote_target(plan, address) as target:
            result = await run_load(plan, target)
        nursery.cancel_scope.cancel()
    assert result.violations == ()
    assert result.errors.keys() <= {LOST, "SESSION_BUSY"}


async def test_a_gateway_that_dies_is_told_of(tmp_path: Path) -> None:
    """Every client loses its connection; the sessions cannot be read back, and so were not checked."""
    plan = LoadPlan(sessions=3, turns=1_000)
    async with served(tmp_path) as (port, process), trio.open_nursery() as nursery:

        async def kill(progress: RunProgress) -> None:
            while progress.recorder.counts["turns"] < 10:  # noqa: ASYNC110 - the run has no event for it
                await trio.sleep(0.01)
            process.kill()

        async with remote_target(plan, address_of(f"127.0.0.1:{port}")) as target:
            result = await run_load(plan, target, lambda progress: nursery.start_soon(kill, progress))
    assert result.errors[LOST] == 3
    assert result.violations == ()
    assert result.untried[0].startswith("3 of 3 sessions were not checked: CONNECTION_LOST: ")
    assert not result.passed


async def test_nobody_there_is_one_error() -> None:
    """If no session can be created there is nothing to measure."""
    plan = LoadPlan(sessions=2, turns=1)
    with pytest.RaisesGroup(TargetError) as caught:
        async with remote_target(plan, address_of("ws://127.0.0.1:1")) as target:
            await run_load(plan, target)
    assert LOST in str(caught.value.exceptions)


async def test_a_token_opens_the_gateway() -> None:
    """Without it, or with another one, the connection is refused with the status."""
    plan = LoadPlan(sessions=1, turns=1)
    async with open_supervisor(Config(), environ={}) as service, gateway(service, token="secret") as port:  # noqa: S106
        async with remote_target(plan, address_of(f"127.0.0.1:{port}", "secret")) as target:
            assert (await run_load(plan, target)).passed
        async with remote_target(plan, address_of(f"127.0.0.1:{port}", "guess")) as target:
            with pytest.raises(TargetError, match="HTTP_401"):
                await run_load(plan, target)


@pytest.mark.parametrize("url", ["ftp://host", "ws://", "127.0.0.1:99999", "http://[::1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    """The error names the parameter."""
    with pytest.raises(InvalidParamsError) as caught:
        address_of(url)
    assert caught.value.details == {"path": "$.url"}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("127.0.0.1:8420", "ws://127.0.0.1:8420/ws"),
        ("http://host:1", "ws://host:1/ws"),
        ("https://host/", "wss://host/ws"),
        ("ws://host:2/other", "ws://host:2/other/ws"),
    ],
)
def test_addresses_are_as_people_write_them(url: str, address: str) -> None:
    """The address as `warren serve` prints it, as a browser shows it, and as host and port alone."""
    assert address_of(url).url == address
