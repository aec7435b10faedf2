"""Retention on a store in PostgreSQL: the same rows go as from a store in files, beside the processes that use it."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.storage.conformance.faults import every, postgres_opened
from tests.storage.samples import NOW, entry, moved, opened, step, turn, wait, written
from tests.support.postgres import database, name_in, server
from warren.base.retention import Retention
from warren.conversation.waits import WAIT_REASONS, WaitState
from warren.settings.config import PostgresConfig, StoreConfig
from warren.storage.maintenance import retention as of_files
from warren.storage.maintenance.plans import Plan, Pruned
from warren.storage.maintenance.postgres.doctor import examine
from warren.storage.maintenance.postgres.retention import plan, prune
from warren.storage.operations import Archive, Lease, Operation, Release
from warren.storage.queries import (
    ANY_TENANT,
    DueErasures,
    SessionList,
    SessionRow,
    StoredEvents,
    StoredHistory,
    StoredWait,
)
from warren.storage.store import Store

DAY = 86_400.0
LATER = NOW + timedelta(days=2)
AGES = (
    Retention(superseded=DAY),
    Retention(events=DAY),
    Retention(archived=DAY),
    Retention(superseded=60.0, events=120.0),
    Retention(superseded=DAY, events=DAY, archived=DAY),
)


def history() -> list[Operation[Any]]:
    """Return the turns of a compacted session, of one that never was, and of an archived one."""
    turns = [turn("a", number, text="word " * 20) for number in range(10)]
    turns[-1] = moved(turns[-1], entry(10, 11))
    states: list[WaitState] = ["settled", "answered", "settled"]
    waits = (wait(at * 3, "background", state=state) for at, state in enumerate(states))
    turns[-1] = attrs.evolve(turns[-1], waits=tuple(waits))
    others = [turn("b\0ß", number) for number in range(3)] + [turn("c", number) for number in range(2)]
    return [*turns, *others, Release("a", Lease(1)), Release("b\0ß", Lease(1)), Archive("c"), Release("c", Lease(1))]


async def left(store: Store) -> list[Any]:
    """Return all that a store shows of the sessions."""
    found: list[Any] = []
    for session_id in ("a", "b\0ß", "c"):
        page, replay = (
            await store.read(StoredHistory(session_id, "default")),
            await store.read(StoredEvents(session_id)),
        )
        found += [await store.read(StoredWait(session_id, ANY_TENANT, f"call-{at}", WAIT_REASONS)) for at in (0, 3, 6)]
        found += [
            list(page.rows),
            page.total,
            page.kept_from,
            list(replay.rows),
            await store.read(SessionRow(session_id, ANY_TENANT)),
        ]
    return [
        *found,
        [each.session_id for each in await store.read(SessionList("default", include_archived=True))],
        list(await store.read(DueErasures())),
    ]


async def no_rest(_seconds: float) -> None:
    """Leave no room for others: there are none."""


@pytest.mark.parametrize("ages", AGES)
@pytest.mark.parametrize("now", [LATER, NOW + timedelta(minutes=5)])
async def test_the_same_rows_go_as_from_a_file(tmp_path: Path, ages: Retention, now: datetime) -> None:
    """The plan, the result, and all that is left; the doctor finds nothing wrong, and a second time nothing goes."""
    async with opened(tmp_path) as store:
        await written(store, *history())
    config = StoreConfig(tmp_path / "store")
    planned = of_files.plan(config, ages, now)
    expected = of_files.prune(config, planned, rest=lambda _: None)
    async with opened(tmp_path) as store:
        remains = await left(store)
    with database() as url:
        async with postgres_opened(url) as store:
            await every(store, *history())
        here = await plan(PostgresConfig(url), ages, now)
        assert by_name(here) == by_name(planned)
        done = await prune(PostgresConfig(url), here, rest=no_rest)
        assert without_size(done) == without_size(expected)
        async with postgres_opened(url) as store:
            assert await left(store) == remains
        again = await plan(PostgresConfig(url), ages, now)
        assert (again.shares, again.sessions) == ((), ())
        problems = [each for each in (await examine(PostgresConfig(url), full=True)).findings if each.sessions]
        assert problems == []


def by_name(planned: Plan) -> Plan:
    """Return a plan in an order that both homes have."""
    return attrs.evolve(planned, shares=tuple(sorted(planned.shares, key=lambda each: (each.session_id, each.table))))


def without_size(done: Pruned) -> Pruned:
    """Return a result without the sizes of the store."""
    return attrs.evolve(done, bytes_before=0, bytes_after=0)


async def test_a_session_that_is_written_meanwhile_goes_on() -> None:
    """Its holder keeps its lease, and each turn is stored; a plan that is out of date removes no row that is needed."""
    with database() as url:
        async with postgres_opened(url, timeout=20.0, lock_timeout=5.0, lease=60.0) as store:
            for number in range(30):
                await every(store, moved(turn("a", number), entry(number + 1, 2 * number + 1)))
            planned = await plan(PostgresConfig(url), Retention(superseded=DAY, events=DAY), LATER)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(prune, PostgresConfig(url), planned, None, trio.sleep)
                for number in range(30, 40):
                    await every(store, moved(turn("a", number), entry(number + 1, 2 * number + 1)))
            page = await store.read(StoredHistory("a", "default"))
            assert [row.position for row in page.rows] == [0, *range(59, 80)]
            replay = await store.read(StoredEvents("a"))
            assert [row.seq for row in replay.rows] == list(range(91, 121))
            assert server().run(name_in(url), "SELECT holder IS NOT NULL FROM warren.sessions") == [(True,)]


async def test_an_open_turn_keeps_all_of_its_session() -> None:
    """Neither messages nor events go, however old they are; tables of an older release have no such turn."""
    everything = Retention(superseded=1.0, events=1.0)
    with database() as url:
        async with postgres_opened(url) as store:
            await every(store, turn("a"), moved(step("a", 1), entry(2, 2)))
        assert (await plan(PostgresConfig(url), everything, LATER)).shares == ()
        server().run(name_in(url), "UPDATE warren.meta SET version = 22")
        server().run(name_in(url), "ALTER TABLE warren.sessions DROP COLUMN turn CASCADE")
        assert len((await plan(PostgresConfig(url), everything, LATER)).shares) == 2


async def test_an_archived_session_that_a_living_process_has_stays() -> None:
    """It goes once the process has let go of it."""
    with database() as url:
        async with postgres_opened(url, lease=60.0) as store:
            await every(store, turn("a"), Archive("a"))
            assert (await plan(PostgresConfig(url), Retention(archived=DAY), LATER)).sessions == ()
            await every(store, Release("a", Lease(1)))
        planned = await plan(PostgresConfig(url), Retention(archived=DAY), LATER)
        assert planned.sessions == ("a",)
        assert (await prune(PostgresConfig(url), planned, rest=no_rest)).sessions == ("a",)
