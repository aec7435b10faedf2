"""Projections of a store in PostgreSQL: the files of a store in files, and no commit that they miss."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import psycopg
import pytest
import trio

from tests.storage.conformance.faults import every
from tests.storage.conformance.homes import done
from tests.storage.copies import copied
from tests.storage.files import blob
from tests.storage.projection.histories import IDS, World
from tests.storage.samples import TEXTS, turn
from tests.support.postgres import database, name_in, server
from warren.base.errors import StoreError
from warren.base.ids import new_session_id
from warren.settings.config import PostgresConfig, StoreConfig
from warren.storage.operations import Archive, Attach, Claim, Delete, Label, Lease, Release
from warren.storage.postgres import PostgresStore
from warren.storage.projection import Follower
from warren.storage.projection import database_feed as feed

MARK = re.compile(rb',"projection":\{[^}]*\}')


@pytest.fixture
def place(tmp_path: Path) -> Iterator[PostgresConfig]:
    """Make a database, and name a folder that is not there yet."""
    with database() as url:
        yield PostgresConfig(url, lease=60.0, project=tmp_path / "new" / "files")


@asynccontextmanager
async def opened(config: PostgresConfig) -> AsyncIterator[PostgresStore]:
    """Open the store for a block."""
    store = await PostgresStore.open(config)
    try:
        yield store
    finally:
        await store.aclose()


def files(folder: Path) -> dict[str, bytes]:
    """Return all files but the checkpoint, without the numbers of changes, which each home has of its own."""
    paths = [*folder.glob("**/index.jsonl"), *folder.glob("**/sessions/*/**/*")]
    return {str(path.relative_to(folder)): MARK.sub(b"", path.read_bytes()) for path in paths if path.is_file()}


def bring_forward(follower: Follower) -> dict[str, bytes]:
    """Bring the files up to date, and return them."""
    while follower.step(5).more:
        pass
    follower.finish()
    return files(follower._root)  # noqa: SLF001 - where it writes


def rebuilt(config: PostgresConfig) -> dict[str, bytes]:
    """Make the files anew, and return them."""
    follower = Follower(config)
    follower.begin_anew()
    found = bring_forward(follower)
    follower.close()
    return found


def run(config: PostgresConfig, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run a statement in the database."""
    return server().run(name_in(config.url), sql, *values)


async def test_the_files_of_a_copy_are_the_same(tmp_path: Path, place: PostgresConfig) -> None:
    """To the byte: events with their runs and times, summaries, titles that the database cannot hold as they are."""
    world = World.at(tmp_path / "store")
    for session, text in enumerate(TEXTS):
        world.turn(session, text=text, title=text, model=text or "m")
        world.turn(session)
    world.compact(1)
    world.turn(2, text="x" * 3_000_000)
    world.sql("UPDATE events SET first_seq = seq - 1 WHERE seq > 4")
    world.sql("UPDATE events SET timestamp = timestamp / 1000000 * 1000000 WHERE seq % 2 = 0")
    world.sql("UPDATE events SET timestamp = timestamp / 1000000 * 1000000 + 70 WHERE seq = 1")
    world.retain(3)
    world.write(Attach(IDS[0], (blob(), blob(b"other" * 400_000))))
    world.turn(0)
    world.archive(4)
    world.delete(5)
    expected = world.settled()
    world.close()
    await copied(StoreConfig(tmp_path / "store"), place)
    found = rebuilt(place)
    assert found == files(tmp_path / "store")
    assert set(found) == {name for name, content in expected.items() if content}
    lines = [json.loads(line) for line in found["index.jsonl"].splitlines()]
    assert [line["title"] for line in lines] == [text for number, text in enumerate(TEXTS) if number != 5]


async def test_a_transaction_that_commits_late_is_not_missed(place: PostgresConfig) -> None:
    """Its change has a lower number than one that the files show already; health counts what is held back."""
    async with opened(place) as store:
        await every(store, turn(IDS[0]), turn(IDS[1]))
        follower = Follower(place)
        bring_forward(follower)
        with psycopg.connect(place.url) as slow:
            slow.execute("UPDATE warren.sessions SET title = 'late' WHERE session_id = %s", (IDS[0],))
            await every(store, turn(IDS[1], 1))
            assert follower.step(5).more is False
            assert follower.status().lag == 1
            assert b"late" not in files(place.project)[f"sessions/{IDS[0]}/session.json"]  # type: ignore[arg-type]
        found = bring_forward(follower)
        assert b'"late"' in found[f"sessions/{IDS[0]}/session.json"]
        assert b'"late"' in found["index.jsonl"]
        assert found[f"sessions/{IDS[1]}/events.jsonl"].count(b"\n") == 6
        assert follower.status().lag == 0
        follower.close()
    assert found == rebuilt(place)


async def test_two_writers_at_once_and_nothing_is_lost(place: PostgresConfig) -> None:
    """Each writes turns of sessions of its own, as fast as it can, while two followers write a folder each."""
    other = attrs.evolve(place, project=place.project.with_name("other"))  # type: ignore[union-attr]
    followers = [Follower(each) for each in (place, other)]
    ids = [[new_session_id() for _ in range(8)] for _ in range(2)]
    ended = trio.Event()

    async def write(mine: list[str]) -> None:
        async with opened(place) as store:
            for number in range(40):
                async with trio.open_nursery() as each:
                    for session_id in mine:
                        each.start_soon(one, store, session_id, number)

    async def one(store: PostgresStore, session_id: str, number: int) -> None:
        (stored,) = await store.write([turn(session_id, number)])
        assert not isinstance(stored, Exception), stored

    async def follow(follower: Follower) -> None:
        while not ended.is_set():
            await trio.to_thread.run_sync(follower.step, 0.02)

    async with trio.open_nursery() as nursery:
        for follower in followers:
            nursery.start_soon(follow, follower)
        async with trio.open_nursery() as writers:
            for mine in ids:
                writers.start_soon(write, mine)
        ended.set()
    found = [bring_forward(follower) for follower in followers]
    for follower in followers:
        assert follower.status().lag == 0
        follower.close()
    assert found[0] == found[1] == rebuilt(place)
    assert len(found[0]) == 1 + 2 * 16
    assert {content.count(b"\n") for name, content in found[0].items() if name.endswith(".jsonl")} == {120, 16}


async def test_archived_and_deleted_sessions(place: PostgresConfig) -> None:
    """The folder of a deleted one goes, an archived one says so; a change of hands alone writes nothing."""
    async with opened(place) as store:
        await every(store, *(turn(each) for each in IDS[:3]))
        follower = Follower(place)
        before = bring_forward(follower)
        await every(store, Release(IDS[0], Lease(1)))
        assert await done(store, Claim(IDS[0])) is not None
        taken = follower.status().taken
        assert bring_forward(follower) == before
        assert follower.status().taken == taken
        await every(store, Archive(IDS[1]), Delete(IDS[2]))
        await done(store, Label(IDS[0], {"k": "v"}, "named"))
        found = bring_forward(follower)
        follower.close()
    assert not any(IDS[2] in name for name in found)
    assert b'"archived":true' in found["index.jsonl"].splitlines()[1]
    assert b'"title":"named"' in found["index.jsonl"]
    assert b'"labels":{"k":"v"}' in found["index.jsonl"]
    assert found == rebuilt(place)


async def test_the_next_process_goes_on_at_the_checkpoint(place: PostgresConfig) -> None:
    """It goes through what has changed since, and not through the sessions of the same transaction before it."""
    async with opened(place) as store:
        await every(store, *(turn(each) for each in IDS))
        follower = Follower(place)
        bring_forward(follower)
        follower.close()
        await every(store, turn(IDS[3], 1))
        follower = Follower(place)
        found = bring_forward(follower)
        assert follower.status().taken == 1
        follower.close()
    assert found == rebuilt(place)


async def test_a_dump_of_a_server_that_was_further(place: PostgresConfig) -> None:
    """Changes with numbers that this server has not reached are shown at once, and so is what follows them."""
    async with opened(place) as store:
        await every(store, *(turn(each) for each in IDS[:3]))
        for sql in ("DISABLE TRIGGER sessions_changed", "ENABLE TRIGGER sessions_changed"):
            run(place, f"ALTER TABLE warren.sessions {sql}")
            if sql.startswith("DISABLE"):
                run(place, "UPDATE warren.sessions SET changed = '9000000000'")
        follower = Follower(place)
        assert len(bring_forward(follower)) == 1 + 2 * 3
        await every(store, turn(IDS[1], 1))
        found = bring_forward(follower)
        follower.close()
    assert found[f"sessions/{IDS[1]}/events.jsonl"].count(b"\n") == 6


async def test_another_database_is_another_store(place: PostgresConfig) -> None:
    """Files of one are made anew for the other, although its sessions and changes have the same numbers."""
    async with opened(place) as store:
        await every(store, turn(IDS[0]))
    rebuilt(place)
    with database() as url:
        other = attrs.evolve(place, url=url)
        async with opened(other) as store:
            await every(store, turn(IDS[0], text="another"))
        follower = Follower(other)
        found = bring_forward(follower)
        follower.close()
        assert b"another" in found[f"sessions/{IDS[0]}/session.json"]
        assert found == rebuilt(other)


async def test_a_lost_connection(place: PostgresConfig) -> None:
    """It is an error of that step that names the store; the next one goes on."""
    async with opened(place) as store:
        await every(store, turn(IDS[0]))
        follower = Follower(place)
        bring_forward(follower)
        await every(store, turn(IDS[0], 1))
        run(place, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%%projector'")
        with pytest.raises(StoreError) as raised:
            follower.step(1)
        assert raised.value.cause == "unreachable"
        assert bring_forward(follower)[f"sessions/{IDS[0]}/events.jsonl"].count(b"\n") == 6
        follower.close()


async def test_an_event_that_is_no_json(place: PostgresConfig) -> None:
    """A marker stands for it, as in a replay; the other lines are as they were."""
    async with opened(place) as store:
        await every(store, turn(IDS[0]))
        run(place, "UPDATE warren.events SET body = '{\"type\":' WHERE seq = 2")
        lines = [json.loads(line) for line in rebuilt(place)[f"sessions/{IDS[0]}/events.jsonl"].splitlines()]
    assert [line["event"]["type"] for line in lines] == ["turn_started", "stream_truncated", "turn_started"]


async def test_a_damaged_row_is_left_out(place: PostgresConfig, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the session; all others are projected."""
    async with opened(place) as store:
        await every(store, turn(IDS[0]), turn(IDS[1]))
        run(place, "UPDATE warren.sessions SET details = '[' WHERE session_id = %s", IDS[0])
        found = rebuilt(place)
    assert any(IDS[1] in name for name in found)
    assert not any(IDS[0] in name for name in found if name.endswith("session.json"))
    assert IDS[0] in caplog.text


async def test_changes_come_from_an_index(place: PostgresConfig) -> None:
    """Looking for what has changed costs as much in a store of many sessions as in a small one."""
    run(
        place,
        "INSERT INTO warren.sessions (session_id, created_at, updated_at, state, model, turns, steps, message_count,"
        " last_seq, head, labels, marks, details) SELECT 's' || i, i, i, 0, 'm', 1, 1, 2, 3, 0, '{}', '{}', '{}'"
        " FROM generate_series(1, 20000) i",
    )
    run(place, "ANALYZE warren.sessions")
    statements = feed._CHANGES, feed._NEWEST, feed._BEHIND  # noqa: SLF001 - what it asks twice a second
    for sql, values in zip(statements, ((1, 2, 3), (), (99999, 1)), strict=True):
        plan = "\n".join(line for (line,) in run(place, f"EXPLAIN {sql}", *values))
        assert "sessions_changed" in plan
        assert "Seq Scan" not in plan
        assert "Sort" not in plan


async def test_two_tenants(place: PostgresConfig) -> None:
    """A follower gives each a folder, with its own sessions alone; a deletion changes the files of its tenant alone."""
    commits = [turn(each) for each in IDS[:3]]
    commits[:2] = [attrs.evolve(each, record=attrs.evolve(each.record, tenant="Acme")) for each in commits[:2]]
    async with opened(place) as store:
        await every(store, *commits)
        follower = Follower(place)
        before = bring_forward(follower)
        await every(store, Delete(IDS[0]))
        found = bring_forward(follower)
        follower.close()
    for files_then, sessions in ((before, IDS[:2]), (found, IDS[1:2])):
        for folder, mine in (("tenants/%41cme/", sessions), ("", IDS[2:3])):
            lines = files_then[f"{folder}index.jsonl"].splitlines()
            assert [json.loads(line)["id"] for line in lines] == list(mine)
            shown = {Path(name).parts[-2] for name in files_then if name.startswith(f"{folder}sessions/")}
            assert shown == set(mine)
    assert found == rebuilt(place)
