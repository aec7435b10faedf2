"""Reading: pages, order, labels, replay, and that no read waits for a write."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import apsw
import attrs
import pytest
import trio

from tests.storage.samples import NOW, opened, turn, updated, written
from warren.base.errors import StoreError
from warren.conversation import codec
from warren.conversation.events import TextDelta
from warren.conversation.log_rows import envelopes
from warren.conversation.records import EventRow, SessionRecord
from warren.storage.operations import Archive, Commit
from warren.storage.queries import (
    ANY_TENANT,
    ModelContext,
    SessionList,
    SessionRow,
    SessionStart,
    StoredEvents,
    StoredMessages,
)
from warren.storage.runner import thread_runner
from warren.storage.sqlite import Holder, queries
from warren.storage.sqlite.file import FILE_NAME
from warren.storage.sqlite.writer import SqliteOperation, apply


def ids(records: Sequence[SessionRecord]) -> list[str]:
    """Return the records' ids, in order."""
    return [record.session_id for record in records]


def at(session_id: str, minute: int, **labels: str) -> Commit:
    """Return a first turn that ended in that minute."""
    return updated(turn(session_id, labels=labels), updated_at=NOW + timedelta(minutes=minute))


async def test_list_is_newest_first_then_by_id(tmp_path: Path) -> None:
    """Sessions come by the end of their last turn, the newest first, and by id where that is the same."""
    async with opened(tmp_path) as store:
        await written(store, at("c", 5), at("a", 5), at("old", 1), at("b", 5), at("new", 9))
        assert ids(await store.read(SessionList("default"))) == ["new", "a", "b", "c", "old"]
        await written(store, turn("old", 30))
        assert ids(await store.read(SessionList("default")))[0] == "old"


async def test_list_pages_meet(tmp_path: Path) -> None:
    """Pages of any size put together are the whole list, archived ones merged where they belong."""
    async with opened(tmp_path) as store:
        commits = [at(f"s{n:02}", n % 7) for n in range(23)]
        await written(store, *commits, *(Archive(f"s{n:02}") for n in range(0, 23, 3)))
        for archived, count in ((False, 15), (True, 23)):
            whole = ids(await store.read(SessionList("default", include_archived=archived)))
            assert len(whole) == count
            for size in (1, 4, 23):
                pages = [
                    await store.read(SessionList("default", offset=offset, limit=size, include_archived=archived))
                    for offset in range(0, count, size)
                ]
                assert [name for page in pages for name in ids(page)] == whole
        by_hand = sorted(commits, key=lambda commit: (-commit.record.updated_at.timestamp(), commit.session_id))
        assert whole == [commit.session_id for commit in by_hand]


async def test_list_finds_sessions_that_carry_all_labels(tmp_path: Path) -> None:
    """A session is listed when it has every label asked for, whatever others it has."""
    async with opened(tmp_path) as store:
        await written(
            store, at("a", 1, team="red", app="x"), at("b", 2, team="red"), at("c", 3, team="blue", app="x"), at("d", 4)
        )
        assert ids(await store.read(SessionList("default", labels={"team": "red"}))) == ["b", "a"]
        assert ids(await store.read(SessionList("default", labels={"app": "x", "team": "red"}))) == ["a"]
        assert ids(await store.read(SessionList("default", labels={"app": "red"}))) == []
        await written(store, Archive("b"))
        assert ids(await store.read(SessionList("default", labels={"team": "red"}))) == ["a"]
        assert ids(await store.read(SessionList("default", labels={"team": "red"}, include_archived=True))) == [
            "b",
            "a",
        ]
        assert ids(
            await store.read(SessionList("default", labels={"team": "red"}, include_archived=True, limit=1, offset=1))
        ) == ["a"]


async def test_list_costs_the_same_however_long_the_histories(tmp_path: Path) -> None:
    """A page of the list takes SQLite the same steps beside sessions of 1 turn and of 200."""
    steps = []
    for turns in (1, 200):
        async with opened(tmp_path / str(turns)) as store:
            for number in range(turns):
                await written(store, *(turn(f"s{n}", number, text="x" * 500) for n in range(20)))
            reader = apsw.Connection(str(tmp_path / str(turns) / "store" / FILE_NAME))
            steps.append(_steps_of_a_page(reader))
            reader.close()
    assert steps[1] <= 1.05 * steps[0]


def _steps_of_a_page(db: apsw.Connection) -> int:
    count = 0

    def tick() -> bool:
        nonlocal count
        count += 1
        return False

    db.set_progress_handler(tick, 1)
    queries.answer(db, Holder(Path(), "me", 15.0), SessionList("default", limit=10, include_archived=True))
    return count


async def test_messages_are_paged_by_position(tmp_path: Path) -> None:
    """A page begins at its offset, ends at its limit or at the end, and tells the total."""
    commits = [turn("a", number, text=f"answer {number}") for number in range(4)]
    rows = [row for commit in commits for row in commit.messages]
    async with opened(tmp_path) as store:
        await written(store, *commits, turn("b"))
        assert await store.read(StoredMessages("a")) == (rows, 8)
        assert await store.read(StoredMessages("a", offset=3, limit=2)) == (rows[3:5], 8)
        assert await store.read(StoredMessages("a", offset=7, limit=5)) == (rows[7:], 8)
        assert await store.read(StoredMessages("a", offset=8)) == ([], 8)


async def test_a_count_beyond_all_messages_is_damage(tmp_path: Path) -> None:
    """A session that claims a trillion messages fails at once: nobody makes up a message for each."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"))
        with pytest.raises(StoreError, match="messages are missing") as caught:
            await store.read(ModelContext("a", 0, 2**40))
        assert caught.value.cause == "corrupt"


async def test_events_after_a_number(tmp_path: Path) -> None:
    """Replay gives what ends above the number, in order, at most as many rows as asked for."""
    commits = [turn("a", number) for number in range(3)]
    rows = [row for commit in commits for row in commit.events]
    async with opened(tmp_path) as store:
        await written(store, *commits, turn("b"))
        assert (await store.read(StoredEvents("a"))).rows == rows
        assert (await store.read(StoredEvents("a", after_seq=4, limit=3))).rows == rows[4:7]
        assert (await store.read(StoredEvents("a", after_seq=9))).rows == []


async def test_a_merged_row_is_cut_where_the_reader_stands(tmp_path: Path) -> None:
    """A row of deltas that lies across the number is given, and its reader cuts it to the rest."""
    merged = EventRow(2, 4, NOW, codec.encode(TextDelta("onetwothree")), b"[3,3,5]")
    commit = attrs.evolve(turn("a"), events=(EventRow(1, 1, NOW, b'{"type":"turn_started","turn_number":0}'), merged))
    async with opened(tmp_path) as store:
        await written(store, commit)
        assert (await store.read(StoredEvents("a", after_seq=1))).rows == [merged]
        rows = (await store.read(StoredEvents("a", after_seq=2))).rows
        assert rows == [merged]
        (envelope,) = envelopes("a", rows, 2)
        assert envelope.event == TextDelta("twothree")
        assert (await store.read(StoredEvents("a", after_seq=4))).rows == []


async def test_reads_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    """While another connection holds the write lock, every read answers from the state before it."""
    async with opened(tmp_path, runner=thread_runner, busy_timeout=30) as store:
        await written(store, turn("a"))
        other = apsw.Connection(str(tmp_path / "store" / FILE_NAME))
        other.execute("BEGIN IMMEDIATE; DELETE FROM messages; DELETE FROM events; UPDATE sessions SET turns = 99")
        with trio.fail_after(5):
            stored = await store.read(SessionStart("a"))
            assert stored is not None
            assert len((await store.read(ModelContext("a", 0, 2))).rows) == 2
            assert await store.read(SessionRow("a", ANY_TENANT)) == turn("a").record
            assert await store.read(SessionList("default")) == [turn("a").record]
            assert (await store.read(StoredMessages("a")))[1] == 2
            assert len((await store.read(StoredEvents("a"))).rows) == 3
        other.execute("ROLLBACK")
        other.close()


@attrs.frozen
class _Slow(SqliteOperation[None]):
    """Stays in its transaction until it is let go."""

    session_id: str
    begun: trio.Event
    token: trio.lowlevel.TrioToken
    release: trio.Event

    def apply(self, db: apsw.Connection, holder: Holder) -> None:
        apply([Archive(self.session_id)], db, holder)
        trio.from_thread.run_sync(self.begun.set, trio_token=self.token)
        trio.from_thread.run(self.release.wait, trio_token=self.token)


async def test_reads_do_not_wait_for_a_long_group(tmp_path: Path) -> None:
    """While the store itself is in the middle of a group, reads are answered and see nothing of it."""
    async with opened(tmp_path, runner=thread_runner) as store:
        await written(store, turn("a"))
        slow = _Slow("a", trio.Event(), trio.lowlevel.current_trio_token(), trio.Event())
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(written, store, turn("b"), slow)
                await slow.begun.wait()
                assert await store.read(SessionList("default", include_archived=True)) == [turn("a").record]
                assert await store.read(SessionStart("b")) is None
                slow.release.set()
        assert ids(await store.read(SessionList("default", include_archived=True))) == ["a", "b"]


async def test_more_readers_than_connections_take_turns(tmp_path: Path) -> None:
    """Many reads at once on one connection are all answered; one that is cancelled in the queue harms nobody."""
    async with opened(tmp_path, runner=thread_runner, readers=1) as store:
        await written(store, turn("a"))
        answers = []

        async def read() -> None:
            answers.append(await store.read(SessionRow("a", ANY_TENANT)))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(read)
            with trio.move_on_after(0):
                await read()
        assert answers == [turn("a").record] * 20


async def test_a_damaged_row_names_its_session(tmp_path: Path) -> None:
    """A record that cannot be decoded is StoreError(cause="corrupt") with the session's id; others stay readable."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"), turn("b"))
        other = apsw.Connection(str(tmp_path / "store" / FILE_NAME))
        other.execute("UPDATE sessions SET details = '{\"usage\": 3}' WHERE session_id = 'a'")
        other.close()
        with pytest.raises(StoreError, match=r"session a is damaged.*usage") as raised:
            await store.read(SessionRow("a", ANY_TENANT))
        assert (raised.value.cause, raised.value.session_id, raised.value.retryable) == ("corrupt", "a", False)
        assert await store.read(SessionRow("b", ANY_TENANT)) == turn("b").record
