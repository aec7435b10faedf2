"""Faults of the homes: typed errors, nothing half-written, no confirmed turn lost, and life after the fault."""

from pathlib import Path

import attrs
import pytest

from tests.storage.conformance.faults import FAULTS, Crashing, Damaged, FaultsOf, Impossible, Row, Switched, Unknown
from tests.storage.conformance.homes import HOMES, done
from tests.storage.samples import causes, turn
from warren.base.errors import StoreError
from warren.storage.operations import Claim, Claimed, Release, Reserve
from warren.storage.queries import (
    ANY_TENANT,
    ModelContext,
    SessionList,
    SessionRow,
    SessionStart,
    StoredEvents,
    StoredHistory,
    StoredMessages,
    WaitingSessions,
)


def homes_with(fault: str) -> pytest.MarkDecorator:
    """Return the mark that runs a test on each home in which a fault can exist."""
    plugs = {name: getattr(faults, fault) for name, faults in FAULTS.items()}
    possible = [pytest.param(plug, id=name) for name, plug in plugs.items() if not isinstance(plug, Impossible)]
    return pytest.mark.parametrize("plug", possible)


def test_each_home_answers_for_each_fault() -> None:
    """A home without a plug would pass this suite untested."""
    assert FAULTS.keys() == HOMES.keys()
    for faults in FAULTS.values():
        plugs = [getattr(faults, field.name) for field in attrs.fields(FaultsOf)]
        assert all(plug.reason if isinstance(plug, Impossible) else callable(plug) for plug in plugs)


@homes_with("full")
async def test_a_full_home(plug: Switched, tmp_path: Path) -> None:
    """Each operation of a group fails, may be retried, and changed nothing; with room again all are stored."""
    await _refuses_writes(plug, "disk_full", tmp_path)


@homes_with("locked")
async def test_a_locked_home(plug: Switched, tmp_path: Path) -> None:
    """Behind the lock of another process it is the same."""
    await _refuses_writes(plug, "locked", tmp_path)


async def _refuses_writes(plug: Switched, cause: str, tmp_path: Path) -> None:
    group = [turn("a", 1), turn("b")]
    async with plug(tmp_path) as (store, switch):
        await done(store, turn("a"))
        for _ in range(2):
            switch.on()
            outcomes = await store.write(group)
            assert causes(outcomes) == [cause] * 2
            assert [(outcome.retryable, outcome.session_id) for outcome in outcomes] == [(True, "a"), (True, "b")]
            assert await store.read(SessionList("default")) == [turn("a").record]
            assert (await store.read(StoredMessages("a")))[1] == 2
            assert len((await store.read(StoredEvents("a"))).rows) == 3
            switch.off()
        assert await store.write(group) == [None, None]
        assert (await store.read(StoredMessages("a")))[1] == 4
        assert len(await store.read(SessionList("default"))) == 2


@homes_with("full")
async def test_a_home_says_if_it_has_room_for_a_turn(plug: Switched, tmp_path: Path) -> None:
    """Asked for so many bytes it fails as a turn of that size would; either way nothing of it is there."""
    async with plug(tmp_path) as (store, switch):
        await done(store, turn("a"))
        before = await store.read(StoredMessages("a")), await store.read(SessionRow("a", ANY_TENANT))
        assert await store.write([Reserve("a", 300_000), turn("b")]) == [None, None]
        assert await done(store, Reserve("a", 300_000)) is None
        switch.on()
        with pytest.raises(StoreError) as raised:
            await done(store, Reserve("a", 600_000))
        assert (raised.value.cause, raised.value.retryable) == ("disk_full", True)
        switch.off()
        assert await done(store, Reserve("a", 600_000)) is None
        assert (await store.read(StoredMessages("a")), await store.read(SessionRow("a", ANY_TENANT))) == before
        assert (await store.read(StoredMessages("a")))[1] == 2


@homes_with("locked")
async def test_leases_of_a_locked_home(plug: Switched, tmp_path: Path) -> None:
    """A renewal that the lock prevents says so; the next one works, and the session is still this process's."""
    async with plug(tmp_path) as (store, switch):
        await done(store, turn("a"))
        switch.on()
        with pytest.raises(StoreError) as raised:
            await store.renew()
        assert (raised.value.cause, raised.value.retryable) == ("locked", True)
        switch.off()
        await store.renew()
        assert store.lapses == 0
        assert await done(store, turn("a", 1)) is None


@homes_with("damaged")
@pytest.mark.parametrize("row", ["record", "message", "event", "turn", "call"])
async def test_a_damaged_row_spoils_no_other(plug: Damaged, row: Row, tmp_path: Path) -> None:
    """Other sessions are read and written as ever."""
    async with plug(tmp_path, row) as store:
        assert await store.read(SessionRow("b", ANY_TENANT)) == turn("b").record
        assert (await store.read(StoredMessages("b")))[1] == 2
        assert turn("b").record in await store.read(SessionList("default"))
        claimed = await done(store, Claim("b"))
        assert isinstance(claimed, Claimed)
        assert await done(store, attrs.evolve(turn("b", 1), lease=claimed.lease)) is None


@homes_with("damaged")
async def test_a_damaged_record_is_named(plug: Damaged, tmp_path: Path) -> None:
    """The session cannot be loaded or claimed, which says why; a page names it beside the others."""
    async with plug(tmp_path, "record") as store:
        for read in (store.read(SessionStart("a")), store.read(SessionRow("a", ANY_TENANT))):
            with pytest.raises(StoreError) as raised:
                await read
            assert (raised.value.cause, raised.value.retryable, raised.value.session_id) == ("corrupt", False, "a")
        with pytest.raises(StoreError, match="session a is damaged"):
            await done(store, Claim("a"))
        page = await store.read(SessionList("default"))
        assert [each.session_id for each in page] == ["b"]
        assert [each.row for each in page.damaged] == ["a"]


@homes_with("damaged")
@pytest.mark.parametrize("row", ["turn", "call"])
async def test_an_open_turn_that_is_damaged_ends(plug: Damaged, row: Row, tmp_path: Path) -> None:
    """A claim says so, and gives the session without the turn: nobody could tell which of its calls have run."""
    async with plug(tmp_path, row) as store:
        record = await store.read(SessionRow("a", ANY_TENANT))
        assert record is not None
        assert (record.turn is None, record.turn_open) == (row == "turn", True)
        assert list(await store.read(WaitingSessions())) == ["a"]
        claimed = await done(store, Claim("a"))
        assert isinstance(claimed, Claimed)
        (problem,) = claimed.lost
        assert problem.startswith({"turn": "the open turn of", "call": "a tool call of the open turn of"}[row])
        assert "session a is damaged in the store: " in problem
        assert (claimed.record.turn, claimed.record.turn_open, claimed.calls) == (None, True, ())
        await done(store, Release("a", claimed.lease))
        assert list(await store.read(WaitingSessions())) == []
        again = await done(store, Claim("a"))
        assert (again.record.turn, again.record.turn_open, again.calls, again.lost) == (None, True, (), ())


@homes_with("damaged")
async def test_a_damaged_message_keeps_its_place(plug: Damaged, tmp_path: Path) -> None:
    """The model sees another message in its place; a page of the history names its position."""
    async with plug(tmp_path, "message") as store:
        context = await store.read(ModelContext("a", 0, 4))
        assert len(context.rows) == 4
        assert b"damaged" in context.rows[1]
        page = await store.read(StoredHistory("a", "default"))
        assert [each.position for each in page.rows] == [0, 2, 3]
        assert [each.row for each in page.rows.damaged] == ["1"]
        assert page.total == 4


@homes_with("damaged")
async def test_a_damaged_event_keeps_its_number(plug: Damaged, tmp_path: Path) -> None:
    """A replay goes on behind it."""
    async with plug(tmp_path, "event") as store:
        assert [row.seq for row in (await store.read(StoredEvents("a"))).rows] == [1, 2, 3, 4, 5, 6]


@homes_with("crashed")
async def test_a_crash_in_mid_commit(plug: Crashing, tmp_path: Path) -> None:
    """At any moment of a commit: the next process finds the turn whole or not at all, and whole if it was confirmed."""
    moment, confirmed, lost = 0, 0, 0
    reached = True
    while reached:
        moment += 1
        async with plug(tmp_path / str(moment), turn("a"), turn("a", 1), moment) as crash:
            reached = crash.reached
            async with crash.next() as store:
                claimed = await done(store, Claim("a"))
                assert isinstance(claimed, Claimed)
                stored = claimed.record.turns
                assert stored in ((2,) if crash.confirmed else (1, 2))
                assert claimed.record.last_seq >= 3 * stored
                assert (await store.read(StoredMessages("a")))[1] == 2 * stored
                assert len((await store.read(StoredEvents("a"))).rows) == 3 * stored
                await done(store, turn("b"))
                assert await done(store, attrs.evolve(turn("a", stored), lease=claimed.lease)) is None
                confirmed, lost = confirmed + crash.confirmed, lost + (stored == 1)
    assert confirmed
    assert lost


@homes_with("unknown")
@pytest.mark.parametrize("committed", [False, True])
async def test_an_unknown_outcome_can_be_read(plug: Unknown, committed: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """After a new opening the rows tell the outcome for good, and a second try does not store the turn twice."""
    async with plug(tmp_path, turn("a"), turn("a", 1), committed) as store:
        assert await store.read(SessionRow("a", ANY_TENANT)) == turn("a", int(committed)).record
        assert causes(await store.write([turn("a", 1)])) == ["conflict" if committed else "ok"]
        assert (await store.read(StoredMessages("a")))[1] == 4
        assert len((await store.read(StoredEvents("a"))).rows) == 6
