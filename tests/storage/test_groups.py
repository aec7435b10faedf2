"""A group is one transaction, and a member that fails does not spoil the others."""

from datetime import datetime
from pathlib import Path

import apsw
import attrs
import pytest
import trio

from tests.faults import faulty_disk
from tests.storage.samples import EVENTS, causes, opened, turn, updated, written
from warren.base.errors import SessionNotFoundError, StoreError
from warren.conversation.records import EventRow
from warren.storage.operations import Archive, Commit, Delete
from warren.storage.queries import ANY_TENANT, SessionList, SessionRow, SessionStart, StoredEvents, StoredMessages
from warren.storage.runner import Runner, inline_runner, thread_runner
from warren.storage.sqlite import Holder, SqliteStore
from warren.storage.sqlite.file import FILE_NAME
from warren.storage.sqlite.writer import SqliteOperation, apply

RUNNERS = [inline_runner, thread_runner]


@pytest.mark.parametrize("runner", RUNNERS)
async def test_a_group_is_flushed_once(tmp_path: Path, runner: Runner) -> None:
    """A hundred turns in one group cost one flush of the disk."""
    with faulty_disk() as disk:
        async with opened(tmp_path, runner=runner) as store:
            await written(store, turn("first"))
            before = disk.syncs
            await written(store, *(turn(f"s{n}") for n in range(100)))
            assert disk.syncs == before + 1
            assert len(await store.read(SessionList("default", limit=1000))) == 101


async def test_an_empty_group_is_nothing(tmp_path: Path) -> None:
    """Writing no operations gives no outcomes."""
    async with opened(tmp_path) as store:
        assert await store.write([]) == []


@pytest.mark.parametrize("runner", RUNNERS)
async def test_one_that_fails_does_not_spoil_the_others(tmp_path: Path, runner: Runner) -> None:
    """Of a group with a conflict, a deleted and an unknown session, only these three fail."""
    async with opened(tmp_path, runner=runner) as store:
        await written(store, turn("taken"), turn("gone"), Delete("gone"))
        group = [turn("a"), turn("taken"), turn("gone", 1), turn("b"), Archive("unknown"), turn("a", 1)]
        outcomes = await store.write(group)
        assert [type(outcome) for outcome in outcomes] == [
            type(None),
            StoreError,
            SessionNotFoundError,
            type(None),
            SessionNotFoundError,
            type(None),
        ]
        assert [record.turns for record in await store.read(SessionList("default"))] == [2, 1, 1]


def _later(session_id: str, number: int) -> Commit:
    """Return a turn that follows another one."""
    return attrs.evolve(turn(session_id, number), base=(2 * number, EVENTS * number))


async def test_turns_of_a_group_are_stored_or_refused_each(tmp_path: Path) -> None:
    """Of 400 turns that follow others, the one without its predecessor is refused, and each other one has its rows."""
    ids = [f"s{n}" for n in range(400)]
    async with opened(tmp_path) as store:
        await written(store, *map(turn, ids), Delete("s7"))
        await written(store, turn("s300", 1))
        outcomes = await store.write([_later(session_id, 1) for session_id in ids])
        refused = {session_id: outcome for session_id, outcome in zip(ids, outcomes, strict=True) if outcome}
        assert (set(refused), causes([refused["s300"]])) == ({"s7", "s300"}, ["conflict"])
        for session_id in ("s0", "s6", "s8", "s399"):
            messages, _ = await store.read(StoredMessages(session_id))
            events = await store.read(StoredEvents(session_id))
            assert [row.position for row in messages] == [0, 1, 2, 3]
            assert [row.seq for row in events.rows] == list(range(1, 2 * EVENTS + 1))


async def test_turns_of_one_session_in_a_group_are_stored_in_order(tmp_path: Path) -> None:
    """Two turns of a session, and a change between two others, are applied one after the other."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"), turn("b"))
        await written(store, _later("a", 1), _later("a", 2), _later("b", 1), Archive("b"), _later("b", 2))
        assert [record.turns for record in await store.read(SessionList("default", include_archived=True))] == [3, 3]


UNSTORABLE = [
    pytest.param(updated(turn("bad"), last_assistant_text="lone \ud800"), id="lone surrogate"),
    pytest.param(updated(turn("bad"), turns=2**63), id="too large a number"),
    pytest.param(updated(turn("bad"), updated_at=datetime(2026, 1, 1)), id="time without a zone"),  # noqa: DTZ001
    pytest.param(
        Commit(turn("bad").record, events=(EventRow(1, 1, turn("x").record.created_at, b"\xff"),)), id="bytes"
    ),
]


@pytest.mark.parametrize("bad", UNSTORABLE)
async def test_a_value_that_cannot_be_stored_fails_alone(tmp_path: Path, bad: Commit) -> None:
    """A value that is no text, no 64-bit number or no time is that operation's error and nobody else's."""
    async with opened(tmp_path) as store:
        outcomes = await store.write([turn("a"), bad, turn("b")])
        assert causes(outcomes) == ["ok", "unstorable", "ok"]
        assert not outcomes[1].retryable
        assert outcomes[1].session_id == "bad"
        assert await store.read(SessionRow("bad", ANY_TENANT)) is None
        assert len(await store.read(SessionList("default"))) == 2


async def test_a_group_for_a_locked_file_fails_after_one_wait(tmp_path: Path) -> None:
    """Behind another process's lock every member fails as locked, after one waiting time and not one each."""
    async with opened(tmp_path, busy_timeout=0.5, runner=thread_runner) as store:
        other = apsw.Connection(str(tmp_path / "store" / FILE_NAME))
        other.execute("BEGIN IMMEDIATE")
        begun = trio.current_time()
        outcomes = await store.write([turn(f"s{n}") for n in range(20)])
        assert trio.current_time() - begun < 0.9
        assert causes(outcomes) == ["locked"] * 20
        assert all(outcome.retryable for outcome in outcomes)
        assert [outcome.session_id for outcome in outcomes] == [f"s{n}" for n in range(20)]
        other.execute("ROLLBACK")
        await written(store, turn("s0"))
        other.close()


async def test_a_lock_met_while_a_poisoned_group_is_taken_apart_is_waited_for_once(tmp_path: Path) -> None:
    """If the lock is lost between the members of a group, the rest fail together."""
    with faulty_disk() as disk:
        async with opened(tmp_path) as store:
            await written(store, turn("taken"))
            disk.write = apsw.BusyError
            outcomes = await store.write([turn("taken"), turn("b"), turn("c")])
            disk.heal()
            assert causes(outcomes) == ["conflict", "locked", "locked"]
            assert disk.faults == 1
            await written(store, turn("b"), turn("c"))


async def test_a_cancelled_write_is_done_all_the_same(tmp_path: Path) -> None:
    """Cancelling the caller neither stops nor halves its group."""
    async with opened(tmp_path, runner=thread_runner) as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            outcomes = await store.write([turn("a"), turn("b")])
            assert outcomes == [None, None]
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert len(await store.read(SessionList("default"))) == 2


async def test_writes_from_many_tasks_take_turns(tmp_path: Path) -> None:
    """Groups written at the same time are all stored, one after the other."""
    async with opened(tmp_path, runner=thread_runner) as store:

        async def write(session_id: str) -> None:
            for number in range(5):
                await written(store, turn(session_id, number))

        async with trio.open_nursery() as nursery:
            for n in range(8):
                nursery.start_soon(write, f"s{n}")
        assert [record.turns for record in await store.read(SessionList("default"))] == [5] * 8


async def test_after_closing_every_call_says_so(tmp_path: Path) -> None:
    """Closing twice is fine; later writes come to, and later reads raise, StoreError(cause="closed")."""
    async with opened(tmp_path) as store:
        await written(store, turn("a"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.aclose)
            nursery.start_soon(store.aclose)
        await store.aclose()
        assert causes(await store.write([turn("b"), turn("c")])) == ["closed", "closed"]
        for read in (
            store.read(SessionStart("a")),
            store.read(SessionRow("a", ANY_TENANT)),
            store.read(SessionList("default")),
            store.read(StoredMessages("a")),
            store.read(StoredEvents("a")),
        ):
            with pytest.raises(StoreError) as raised:
                await read
            assert (raised.value.cause, raised.value.retryable) == ("closed", True)  # a crash opens it anew


@attrs.frozen
class _Interrupted(SqliteOperation[None]):
    session_id: str

    def apply(self, db: apsw.Connection, holder: Holder) -> None:
        apply([turn("half")], db, holder)
        raise KeyboardInterrupt


async def test_what_is_no_exception_rolls_back_too(tmp_path: Path) -> None:
    """An interrupt inside a transaction leaves nothing of it, and the store goes on."""
    store: SqliteStore
    async with opened(tmp_path) as store:
        with pytest.raises(KeyboardInterrupt):
            await store.write([turn("a"), _Interrupted("x")])
        assert await store.read(SessionList("default")) == []
        await written(store, turn("a"))
