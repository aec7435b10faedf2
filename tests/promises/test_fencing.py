"""A process that stands still, or that loses its store: what its own subscriber sees, and who goes on."""

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from tests.promises.processes import soon
from tests.support.checks import numbers
from tests.support.postgres import Server, database, needs_postgres
from tests.support.postgres_proxy import wire_to
from tests.support.telling import Telling, running
from warren.base.errors import LeasedError
from warren.calls.facade import RuntimeService
from warren.conversation.events import Envelope, RunCompleted, TextDelta
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.transport.embed import open_supervisor

ROOT: Final = Path(__file__).parents[2]
STRIDE: Final = 1_000_000
Place = Path | str
"""A store's folder, or the address of its database."""


@attrs.define
class Holder:
    """A process that runs a turn step by step, and what it has told so far."""

    process: trio.Process
    telling: Telling
    told: list[dict[str, Any]] = attrs.field(factory=list)
    session_id: str = ""

    async def until(self, **what: object) -> dict[str, Any]:
        """Read what it tells, up to a line with these members."""
        with trio.fail_after(30):
            while True:
                told = await self._next()
                if what.items() <= told.items():
                    return told

    async def ending(self) -> dict[str, Any]:
        """Read what it tells, up to the end of its turn."""
        with trio.fail_after(30):
            while True:
                told = await self._next()
                if "failed" in told or "acknowledged" in told:
                    return told

    async def silence(self, seconds: float) -> None:
        """Read what it tells for a while."""
        with trio.move_on_after(seconds):
            while True:
                await self._next()

    async def _next(self) -> dict[str, Any]:
        self.told.append(await self.telling.must())
        return self.told[-1]

    @property
    def texts(self) -> list[str]:
        """The words that its subscriber was shown."""
        return [each["text"] for each in self.told if "text" in each]

    @property
    def ran(self) -> list[str]:
        """The calls of its tool."""
        return [each["ran"] for each in self.told if "ran" in each]


@asynccontextmanager
async def holder(place: Place, lease: float) -> AsyncIterator[Holder]:
    """Run the program on a store, in the middle of a turn that has said one word."""
    async with running([sys.executable, "-m", "tests.promises.stepped", str(place), str(lease)], ROOT) as (
        process,
        telling,
    ):
        found = Holder(process, telling)
        while not found.session_id:
            found.session_id = (await found._next()).get("session_id", "")  # noqa: SLF001 - its own module's
        await telling.say("turn", "say one")
        await found.until(text="one")
        yield found


@asynccontextmanager
async def another(place: Place, lease: float) -> AsyncIterator[RuntimeService]:
    """Open the store in this process, and have a session there too."""
    in_database = isinstance(place, str)
    store = PostgresConfig(str(place), lease=lease) if in_database else StoreConfig(Path(place), lease=lease)
    async with open_supervisor(Config(store=store), environ={}) as service:
        await service.create_session(None)
        yield service


async def log(service: RuntimeService, session_id: str) -> list[Envelope]:
    """Return the events of a session up to the end of its first turn."""
    found = []
    with trio.fail_after(30):
        async with service.subscribe(session_id, after_seq=0) as events:
            async for envelope in events:
                found.append(envelope)
                if isinstance(envelope.event, RunCompleted):
                    break
    return found


async def test_a_process_that_was_stopped_shows_and_starts_nothing(place: Place) -> None:
    """Its session is taken over meanwhile, with the prompt that waits in the inbox.

    It wakes up in the middle of its turn, and its model goes on: nothing of that is shown, no tool is called, and
    nothing is acknowledged.
    """
    lease = 2.0
    async with holder(place, lease) as zombie, another(place, lease) as service:
        zombie.process.send_signal(signal.SIGSTOP)
        stored = await log(service, zombie.session_id)  # without a request: the prompt is run here
        assert [each.event.result for each in stored if isinstance(each.event, RunCompleted)] == ["go"]
        assert min(numbers(stored)) > STRIDE
        shown = len(zombie.told)
        await zombie.telling.say("say two", "tool late")
        zombie.process.send_signal(signal.SIGCONT)
        await zombie.until(failed="lease_lost")
        after = [each for each in zombie.told[shown:] if each.get("seq", STRIDE) < STRIDE]
        assert [each["event"] for each in after if "event" in each] in ([], ["RunFailed"])
        assert (zombie.texts[:1], "two" in zombie.texts, zombie.ran) == (["one"], False, [])
        page = await service.history(zombie.session_id)
        assert page.total == 2


async def test_a_short_stop_moves_nothing(place: Place) -> None:
    """Stopped for less than the grace, it keeps its session, and its turn ends as if nothing had been."""
    lease = 9.0
    async with holder(place, lease) as owner, another(place, lease) as service:
        owner.process.send_signal(signal.SIGSTOP)
        with pytest.raises(LeasedError):
            await service.start_turn(owner.session_id, "mine")  # it waits for an answer to its request
        owner.process.send_signal(signal.SIGCONT)
        await owner.telling.say("say two", "tool now", "say three", "end")
        assert await owner.ending() == {"acknowledged": "three"}
        assert owner.ran == ["now"]
        stored = await log(service, owner.session_id)
        assert numbers(stored) == list(range(1, stored[-1].seq + 1))
        shown = [each["seq"] for each in owner.told if "seq" in each]
        assert shown == numbers(stored)[: len(shown)]


async def test_a_partition_that_heals_in_time_costs_a_pause() -> None:
    """Cut off for longer than its proof it shows nothing; healed before anybody took the session it goes on."""
    needs_postgres()
    lease = 6.0
    with database() as url:
        async with wire_to(url) as wire, holder(wire.url, lease) as owner, another(url, lease) as service:
            wire.hold()
            await owner.silence(lease / 3)
            await owner.telling.say("say two", "tool later")
            await owner.silence(0.5)
            assert (owner.texts, owner.ran) == (["one"], [])
            wire.go_on()
            await owner.until(ran="later")
            await owner.telling.say("say three", "end")
            assert "acknowledged" in await owner.ending()
            stored = await log(service, owner.session_id)
            assert numbers(stored) == list(range(1, stored[-1].seq + 1))
            assert "".join(each.event.delta for each in stored if isinstance(each.event, TextDelta)) == "onetwothree"


async def test_a_partition_that_heals_after_the_takeover_gives_nothing_back() -> None:
    """The session goes on elsewhere once the lease is over; the process that was cut off ends its turn as lost."""
    needs_postgres()
    lease = 2.0
    with database() as url:
        async with wire_to(url) as wire, holder(wire.url, lease) as zombie, another(url, lease) as service:
            wire.hold()
            stored = await log(service, zombie.session_id)
            assert min(numbers(stored)) > STRIDE
            await zombie.telling.say("say two", "tool late")
            wire.go_on()
            await zombie.until(failed="lease_lost")
            assert ("two" in zombie.texts, zombie.ran) == (False, [])
            assert (await service.history(zombie.session_id)).total == 2


async def test_nobody_takes_a_session_because_the_server_was_away() -> None:
    """Killed, and away for longer than a lease, the server comes back: each process keeps what it had."""
    needs_postgres()
    lease, server = 6.0, Server.make(durable=True)
    try:
        server.run("postgres", "CREATE DATABASE store")
        url = server.url("store")
        async with holder(url, lease) as owner, another(url, lease) as service:
            server.kill()
            await owner.silence(lease + 0.5)
            await owner.telling.say("say two", "tool later")
            await owner.silence(0.5)
            assert (owner.texts, owner.ran) == (["one"], [])
            await trio.to_thread.run_sync(server.start)
            await owner.until(ran="later")
            await owner.telling.say("say three", "end")
            assert await owner.ending() == {"acknowledged": "three"}
            stored = await soon(lambda: log(service, owner.session_id))
            assert numbers(stored) == list(range(1, stored[-1].seq + 1))
            assert (await service.history(owner.session_id)).total == 4
    finally:
        server.remove()


async def test_the_work_of_a_killed_process_goes_on_without_a_request(place: Place) -> None:
    """Its prompt waits in the inbox: a living process runs it, a grace and about a second later."""
    lease = 3.0
    async with another(place, lease) as service, holder(place, lease) as killed:
        killed.process.send_signal(signal.SIGKILL)
        began = trio.current_time()
        stored = await log(service, killed.session_id)
        print(f"{place}: the prompt of a killed process ran {trio.current_time() - began:.2f} s later")  # noqa: T201
        assert min(numbers(stored)) > STRIDE
        assert (await service.history(killed.session_id)).total == 2
