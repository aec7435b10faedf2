"""The rows that retention removes, those that it leaves, and readers that do not notice."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import attrs
import pytest

from tests.storage.filled import filled
from tests.storage.samples import NOW, entry, moved, opened, step, turn, updated, wait, written
from tests.support.compacting import Model, compacting, talk
from tests.support.runtime import new_session, replay
from warren.base.errors import StoreError
from warren.base.fields import FieldValueError
from warren.base.retention import Retention
from warren.conversation.events import StreamTruncated
from warren.conversation.waits import WAIT_REASONS
from warren.models.model import ModelRequest
from warren.settings.config import StoreConfig
from warren.storage.maintenance.doctor import examine
from warren.storage.maintenance.plans import BatchSize, Plan, Pruned
from warren.storage.maintenance.retention import Drop, plan, prune, rewrite
from warren.storage.operations import Archive, Claim, Delete, Lease, Release
from warren.storage.queries import (
    ANY_TENANT,
    DueErasures,
    ModelContext,
    SessionList,
    SessionRow,
    StoredEvents,
    StoredHistory,
    StoredWait,
)
from warren.storage.sqlite import SqliteStore
from warren.storage.sqlite.file import FILE_NAME, VERSION, open_writer
from warren.storage.sqlite.lease import Holder

DAY = 86_400.0
LATER = NOW + timedelta(days=100)
NOTHING = Pruned(0, 0, (), 0, 0)


def never(_seconds: float) -> None:
    """Leave no room for others: there are none."""


def pruned(path: Path, retention: Retention, now: Any = LATER) -> Pruned:
    """Prune the store below a folder."""
    config = StoreConfig(path / "store")
    return prune(config, plan(config, retention, now), rest=never)


def counted(path: Path) -> dict[str, int]:
    """Return how many rows the file has."""
    db = apsw.Connection(str(path / "store" / FILE_NAME), flags=apsw.SQLITE_OPEN_READONLY)
    found = {name: db.execute(f"SELECT count(*) FROM {name}").get for name in ("messages", "events", "erasures")}  # noqa: S608
    db.close()
    return found


@asynccontextmanager
async def looking(path: Path) -> AsyncIterator[SqliteStore]:
    """Open the store, for a look at what is left."""
    async with opened(path) as store:
        yield store


# -- superseded messages


async def test_what_a_summary_stands_for_goes(tmp_path: Path) -> None:
    """Messages before the head go, the first and those from the head on stay, each in its place."""
    await filled(tmp_path)
    async with looking(tmp_path) as store:
        before = await store.read(StoredHistory("a", "default"))
        context = await store.read(ModelContext("a", 11, 20))
    done = pruned(tmp_path, Retention(superseded=DAY))
    assert (done.messages, done.events, done.sessions) == (10, 0, ())
    async with looking(tmp_path) as store:
        after = await store.read(StoredHistory("a", "default"))
        assert await store.read(ModelContext("a", 11, 20)) == context
    assert after.rows == [before.rows[0], *before.rows[11:]]
    assert (after.total, after.kept_from, after.compactions) == (20, 11, before.compactions)
    assert examine(StoreConfig(tmp_path / "store"), full=True).findings == ()


async def test_what_calls_of_these_messages_waited_for_goes(tmp_path: Path) -> None:
    """With the messages, once it is settled; what began later stays, and what a call in the background waits for."""
    waits = wait(0, state="settled"), wait(1, "background"), wait(2, state="settled"), wait(9, state="settled")
    async with opened(tmp_path) as store:
        turns = [turn("a", number) for number in range(4)]
        turns[-1] = attrs.evolve(moved(turns[-1], entry(4, 7)), waits=waits)
        await written(store, *turns, Release("a", Lease(1)))
    assert pruned(tmp_path, Retention(superseded=DAY)).messages > 0
    async with looking(tmp_path) as store:
        found = [await store.read(StoredWait("a", "default", each.wait_id, WAIT_REASONS)) for each in waits]
        assert found == [None, waits[1], None, waits[3]]


async def test_what_a_model_sees_never_goes(tmp_path: Path) -> None:
    """Whatever was planned: only an archived session loses messages from its head on."""
    await filled(tmp_path)
    async with opened(tmp_path) as store:
        assert await written(store, Drop("a", "messages", 20, 100)) == [10]
        assert await written(store, Drop("a", "messages", 20, 100)) == [0]
        assert [row.position for row in (await store.read(StoredHistory("a", "default"))).rows] == [0, *range(11, 20)]
        await written(store, Archive("a"))
        assert await written(store, Drop("a", "messages", 20, 100)) == [9]
    assert examine(StoreConfig(tmp_path / "store"), full=True).findings == ()


async def test_what_is_young_stays(tmp_path: Path) -> None:
    """The age is that of the message: the oldest go first, and the rest when its time has come."""
    await filled(tmp_path)
    age = Retention(superseded=60.0)
    assert pruned(tmp_path, age, NOW + timedelta(minutes=1)).messages == 0
    assert pruned(tmp_path, age, NOW + timedelta(minutes=3, seconds=1)).messages == 5
    assert pruned(tmp_path, age, NOW + timedelta(minutes=3, seconds=1)).messages == 0
    assert pruned(tmp_path, age).messages == 5
    assert counted(tmp_path)["messages"] == 10


async def test_a_session_that_was_never_compacted_loses_nothing(tmp_path: Path) -> None:
    """Without a summary there is nothing that stands for a message."""
    async with opened(tmp_path) as store:
        await written(store, *(turn("a", number) for number in range(5)))
    assert attrs.evolve(pruned(tmp_path, Retention(superseded=1.0)), bytes_before=0, bytes_after=0) == NOTHING
    assert counted(tmp_path)["messages"] == 10


async def test_pages_keep_their_positions(tmp_path: Path) -> None:
    """Whoever pages by adding the limit to the offset sees each message once and comes to the end."""
    await filled(tmp_path)
    pruned(tmp_path, Retention(superseded=DAY))
    async with looking(tmp_path) as store:
        pages = [await store.read(StoredHistory("a", "default", offset=offset, limit=4)) for offset in range(0, 20, 4)]
    assert [[row.position for row in page.rows] for page in pages] == [
        [0],
        [],
        [11],
        [12, 13, 14, 15],
        [16, 17, 18, 19],
    ]
    assert {(page.total, page.kept_from) for page in pages} == {(20, 11)}


async def test_another_process_goes_on_with_a_session_that_is_pruned(tmp_path: Path) -> None:
    """A process that holds the session need not let go of it; its next turns are stored, and go in time."""
    async with opened(tmp_path) as store:
        await written(store, *(turn("a", number) for number in range(9)))
        await written(store, moved(turn("a", 9), entry(10, 11)))
        assert pruned(tmp_path, Retention(superseded=DAY, events=DAY)).messages == 10
        await written(store, moved(turn("a", 10), entry(11, 15)))
        assert (await store.read(StoredHistory("a", "default"))).kept_from == 11
        assert pruned(tmp_path, Retention(superseded=DAY, events=DAY)).messages == 4
        assert [row.position for row in (await store.read(StoredHistory("a", "default"))).rows] == [0, *range(15, 22)]
        await written(store, Release("a", Lease(1)))
    assert examine(StoreConfig(tmp_path / "store"), full=True).findings == ()


@pytest.mark.virtual_time
async def test_a_resumed_session_goes_on_the_same(tmp_path: Path) -> None:
    """A session continued after everything that may go is gone sends its model exactly what one does that kept it."""
    asked: list[list[ModelRequest]] = []
    for name, age in (("kept", None), ("gone", 1e-6)):
        model, path = Model(), tmp_path / name
        async with compacting(model, path) as service:
            session_id = await new_session(service, system_prompt="be brief")
            await talk(service, session_id, 7)
        config = StoreConfig(path)
        done = prune(config, plan(config, Retention(age, age), LATER.replace(year=2100)), rest=never)
        assert (done.messages > 0, done.events > 0) == (age is not None, age is not None)
        model = Model()
        async with compacting(model, path) as service:
            await talk(service, session_id, 5)
            page = await service.history(session_id, limit=1000)
            assert page.kept_from == (0 if age is None else done.messages + 1)
            assert len(page.messages) == page.total - done.messages
        asked.append(model.asked)
    kept, gone = asked
    assert [request.messages for request in kept] == [request.messages for request in gone]
    assert len(kept) > 5


# -- events


async def test_old_events_go(tmp_path: Path) -> None:
    """The log begins later; what is left is as it was, and a follower of the store is told to look again."""
    await filled(tmp_path)
    async with looking(tmp_path) as store:
        before = (await store.read(StoredEvents("a"))).rows
    changes = _change(tmp_path)
    assert pruned(tmp_path, Retention(events=60.0), NOW + timedelta(minutes=4)).events == 9
    async with looking(tmp_path) as store:
        found = await store.read(StoredEvents("a", after_seq=2))
    assert (found.rows, found.gone) == (before[9:], 9)
    assert _change(tmp_path) > changes
    assert pruned(tmp_path, Retention(events=DAY)).events == 21
    async with looking(tmp_path) as store:
        assert (await store.read(StoredEvents("a"))).gone == 30
        await written(store, Claim("a"))
        last = updated(turn("a", 10), head=11)
        await written(store, attrs.evolve(last, lease=Lease(2)))
        assert [row.seq for row in (await store.read(StoredEvents("a"))).rows] == [31, 32, 33]


def _change(path: Path) -> int:
    db = apsw.Connection(str(path / "store" / FILE_NAME), flags=apsw.SQLITE_OPEN_READONLY)
    found: int = db.execute("SELECT max(change) FROM sessions").get
    db.close()
    return found


@pytest.mark.virtual_time
async def test_a_subscriber_behind_what_is_kept_is_told(tmp_path: Path) -> None:
    """It gets one marker of what is gone, then what there is, then what comes."""
    config = StoreConfig(tmp_path)
    async with compacting(Model(), tmp_path) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 1)
        cut = (await replay(service, session_id))[-1]
        await talk(service, session_id, 1)
        # From another process, between two turns of this one.
        prune(config, plan(config, Retention(events=1e-6), cut.timestamp + timedelta(microseconds=2)), rest=never)
        await talk(service, session_id, 1)
        found = await replay(service, session_id, 2)
    assert (found[0].seq, found[0].event) == (2, StreamTruncated(cut.seq - 2, 2))
    assert (found[1].first_seq or found[1].seq) == cut.seq + 1
    assert all(one.seq < two.seq for one, two in pairwise(found))


# -- archived sessions


async def test_archived_sessions_go_whole(tmp_path: Path) -> None:
    """A session archived long ago leaves a tombstone, as if it had been deleted; open and young ones stay."""
    for session_id in ("old", "open", "young"):
        await filled(tmp_path, session_id=session_id)
    async with opened(tmp_path) as store:
        await written(store, Archive("old"), Archive("young"))
        await written(store, Claim("young"))
        await written(store, attrs.evolve(updated(turn("young", 20_000), head=11), lease=Lease(2)))
        await written(store, Release("young", Lease(2)))
    done = pruned(tmp_path, Retention(archived=90 * DAY))
    assert (done.sessions, done.messages, done.events) == (("old",), 19, 30)
    async with looking(tmp_path) as store:
        assert await store.read(SessionRow("old", ANY_TENANT)) is None
        assert await store.read(DueErasures()) == ["old"]
        (late,) = await store.write([turn("old")])
        assert isinstance(late, Exception)
        listed = await store.read(SessionList("default", include_archived=True))
    assert {record.session_id for record in listed} == {"open", "young"}
    assert counted(tmp_path) == {"messages": 42, "events": 63, "erasures": 1}


async def test_what_a_living_process_holds_is_not_deleted(tmp_path: Path) -> None:
    """An archived session whose lease another process has stays, whole, until it is put back or that one is dead."""
    await filled(tmp_path)
    config = StoreConfig(tmp_path / "store")
    store = await SqliteStore.open(config)
    await written(store, Archive("a"), Claim("a"))
    assert plan(config, Retention(archived=DAY), LATER) == Plan()
    # Or it takes the session between the plan and the deed.
    await written(store, Release("a", Lease(2)))
    late = plan(config, Retention(archived=DAY), LATER)
    await written(store, Claim("a"))
    assert prune(config, attrs.evolve(late, shares=()), rest=never).sessions == ()
    assert (await store.read(StoredHistory("a", "default"))).total == 20
    await store.aclose()
    assert pruned(tmp_path, Retention(archived=DAY)).sessions == ("a",)


async def test_an_open_turn_keeps_all_of_its_session(tmp_path: Path) -> None:
    """Neither messages nor events go, however old they are, until the turn has ended."""
    first = step("a", 2)
    async with opened(tmp_path) as store:
        await written(store, turn("a"), turn("a", 1), moved(first, entry(3, 4)))
    everything = Retention(superseded=1.0, events=1.0, archived=1.0)
    config = StoreConfig(tmp_path / "store")
    assert plan(config, everything, LATER).shares == ()
    async with opened(tmp_path) as store:
        (claimed,) = await written(store, Claim("a"))
        end = moved(turn("a", 2), entry(3, 4))
        base = first.record.message_count, claimed.record.last_seq
        await written(store, attrs.evolve(end, messages=(), events=(), lease=claimed.lease, base=base, settles=True))
    done = pruned(tmp_path, everything)
    assert (done.messages, done.events) == (3, 9)


@pytest.mark.parametrize("version", range(7, VERSION + 1))
async def test_a_file_of_an_older_version_can_be_planned(tmp_path: Path, version: int) -> None:
    """Nothing is changed by that: the file keeps its version."""
    shutil.copy(Path(__file__).parent / "versions" / f"{version}.sqlite3", tmp_path / FILE_NAME)
    before = (tmp_path / FILE_NAME).read_bytes()
    shares = plan(StoreConfig(tmp_path), Retention(events=1.0), LATER).shares
    assert {each.table for each in shares} == {"events"}
    assert (tmp_path / FILE_NAME).read_bytes() == before


# -- how


async def test_the_file_shrinks(tmp_path: Path) -> None:
    """The room of removed rows is given back to the disk: the file's size says so."""
    await filled(tmp_path, turns=2_000, head=3_990)
    done = pruned(tmp_path, Retention(superseded=DAY, events=DAY))
    size = (tmp_path / "store" / FILE_NAME).stat().st_size
    assert done.bytes_after == size < done.bytes_before / 7
    assert (done.messages, done.events) == (3_989, 6_000)


@pytest.mark.parametrize("anew", [False, True])
async def test_the_log_counts(tmp_path: Path, *, anew: bool) -> None:
    """The sizes are those of the file with its log, which is emptied, unless somebody reads it all the time."""
    file = tmp_path / "store" / FILE_NAME
    log = file.with_name(f"{FILE_NAME}-wal")
    await filled(tmp_path, turns=500, head=900)
    reader = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM messages").get == 1_000
    before = file.stat().st_size + (log.stat().st_size if log.exists() else 0)
    done = pruned(tmp_path, Retention(superseded=DAY, events=DAY))
    assert done.bytes_before == before
    assert done.log_bytes == log.stat().st_size > 0
    assert done.bytes_after == file.stat().st_size + log.stat().st_size
    reader.execute("ROLLBACK")
    if anew:
        rewrite(StoreConfig(tmp_path / "store"))
    else:
        assert pruned(tmp_path, Retention(superseded=DAY)).log_bytes == 0
    assert log.stat().st_size == 0
    reader.close()


async def test_a_file_of_the_first_version_shrinks_once_it_is_rewritten(tmp_path: Path) -> None:
    """It keeps its empty pages until then; from then on it gives them back by itself."""
    folder = tmp_path / "store"
    folder.mkdir()
    old = apsw.Connection(str(folder / FILE_NAME))
    old.execute((Path(__file__).parents[2] / "storage" / "sqlite" / "schema_1.sql").read_text())
    old.pragma("application_id", 0x57415252)
    old.pragma("user_version", 1)
    old.close()
    await filled(tmp_path, turns=700, head=1300)
    assert [found.check for found in examine(StoreConfig(folder)).findings] == ["free"]
    done = pruned(tmp_path, Retention(superseded=DAY))
    assert done.bytes_after >= done.bytes_before
    rewrite(StoreConfig(folder))
    assert (folder / FILE_NAME).stat().st_size < done.bytes_before * 0.6
    before = (folder / FILE_NAME).stat().st_size
    assert pruned(tmp_path, Retention(events=DAY)).bytes_after < before
    assert examine(StoreConfig(folder), full=True).findings == ()


async def test_nobody_is_kept_from_writing_by_a_rewrite(tmp_path: Path) -> None:
    """It is refused while a process lives that may write, and names it."""
    async with opened(tmp_path, holder=(rival := Holder(tmp_path / "store" / "holders", "the gateway", 15.0))) as store:
        await written(store, turn("a"))
        with pytest.raises(StoreError, match="the gateway") as caught:
            rewrite(StoreConfig(tmp_path / "store"))
        assert caught.value.cause == "leased"
    rival.die()
    rewrite(StoreConfig(tmp_path / "store"))


async def test_interrupted_it_goes_on_where_it_was(tmp_path: Path) -> None:
    """Ended after any transaction, the store is whole, and the next time does the rest."""
    await filled(tmp_path, turns=400, head=700)
    config = StoreConfig(tmp_path / "store")
    async with opened(tmp_path) as store:
        await written(store, Archive("a"))

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    wanted = plan(config, Retention(archived=DAY), LATER)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            prune(config, plan(config, Retention(archived=DAY), LATER), rest=interrupt)
        assert examine(config, full=True).findings == ()
    done = pruned(tmp_path, Retention(archived=DAY))
    assert done.messages + done.events < wanted.rows("messages") + wanted.rows("events") == 799 + 1200
    assert (done.sessions, counted(tmp_path)) == (("a",), {"messages": 0, "events": 0, "erasures": 1})


async def test_planning_changes_nothing(tmp_path: Path) -> None:
    """The rows and bytes that would go are counted, and the file stays as it is."""
    await filled(tmp_path)
    path = tmp_path / "store" / FILE_NAME
    before = path.read_bytes()
    found = plan(StoreConfig(path.parent), Retention(DAY, DAY, DAY), LATER)
    assert (found.rows("messages"), found.rows("events"), found.sessions) == (10, 30, ())
    assert found.size == sum(share.size for share in found.shares) > 5 * 500
    assert path.read_bytes() == before


async def test_progress(tmp_path: Path) -> None:
    """It tells after each transaction how many rows are gone, up to all."""
    await filled(tmp_path, turns=300, head=500)
    config, told = StoreConfig(tmp_path / "store"), list[tuple[int, int]]()
    prune(config, plan(config, Retention(DAY, DAY), LATER), lambda *figures: told.append(figures), never)
    assert told == sorted(told)
    assert (told[-1], len(told) > 1) == ((499 + 900, 499 + 900), True)


def test_the_pace() -> None:
    """Work that takes long is done in smaller pieces and is followed by a longer rest; neither goes out of bounds."""
    pace = BatchSize(1_000)
    assert (pace.took(0.02), pace.amount) == (0.03, 500)
    assert (pace.took(0.04), pace.amount) == (0.04, 125)
    assert (pace.took(10.0), pace.amount) == (0.1, 31)
    for _ in range(20):
        pace.took(10.0)
    assert pace.amount == 20
    for _ in range(20):
        assert pace.took(0.0) == 0.03
    assert pace.amount == 5_000


@pytest.mark.parametrize("field", ["superseded", "events", "archived"])
def test_an_age_is_above_nothing(field: str) -> None:
    """An age of 0 or below would remove what was just said."""
    for age in (0.0, -1.0):
        with pytest.raises(FieldValueError, match=field):
            Retention(**{field: age})


async def test_an_age_beyond_all_time(tmp_path: Path) -> None:
    """Nothing is that old."""
    await filled(tmp_path)
    assert plan(StoreConfig(tmp_path / "store"), Retention(1e15, 1e15, 1e15), LATER) == Plan()


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_no_store_is_made(tmp_path: Path, what: str) -> None:
    """If there is no store, there is an error and still none."""
    if what == "empty":
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / FILE_NAME).touch()
    with pytest.raises(StoreError) as caught:
        plan(StoreConfig(tmp_path / "store"), Retention(events=DAY), LATER)
    assert caught.value.cause == ("missing" if what == "missing" else "not_a_store")
    assert [each.name for each in tmp_path.rglob("*") if each.is_file()] == ([FILE_NAME] if what == "empty" else [])


async def test_a_deleted_session_is_none_of_its_business(tmp_path: Path) -> None:
    """A session that was deleted between the plan and the deed is gone already."""
    await filled(tmp_path)
    config = StoreConfig(tmp_path / "store")
    wanted = plan(config, Retention(DAY, DAY), LATER)
    async with opened(tmp_path) as store:
        await written(store, Delete("a"))
    done = prune(config, wanted, rest=never)
    assert (done.messages, done.events) == (0, 0)
    open_writer(config).close()
