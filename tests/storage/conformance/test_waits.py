"""What tool calls wait for in any home: who asks, who has answered, and when a turn goes on."""

from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.storage.conformance.homes import Home, done, put
from tests.storage.files import blob
from tests.storage.samples import NOW, TEXTS, kept, step, turn, updated, wait
from warren.base.errors import SessionNotFoundError, StoreError
from warren.calls.operators import AuditRequest
from warren.calls.sessions import ForkRequest
from warren.conversation.categories import Decision
from warren.conversation.messages import ToolResult
from warren.conversation.records import SessionRecord
from warren.conversation.waits import WAIT_REASONS, Wait, WaitReason
from warren.reports.audit import AuditEntry
from warren.storage.ephemeral import EphemeralStore
from warren.storage.operations import (
    Archive,
    Claim,
    Claimed,
    Commit,
    Delete,
    Fork,
    Label,
    Lease,
    Release,
    StoreAnswer,
)
from warren.storage.queries import (
    ANY_TENANT,
    AuditEntries,
    NextWake,
    OpenWaits,
    SessionRow,
    StoredBytes,
    StoredWait,
    WaitingSessions,
    WaitList,
)
from warren.storage.store import Store

PAST = datetime(2026, 1, 1, tzinfo=UTC)
FUTURE = datetime(2126, 1, 1, 0, 0, 0, 654321, tzinfo=UTC)


async def claimed(store: Store, session_id: str = "a") -> Claimed:
    """Claim a session."""
    found = await done(store, Claim(session_id))
    assert isinstance(found, Claimed)
    return found


def waiting(session_id: str, *waits: Any, **changes: Any) -> Commit:
    """Return the first step of a session with waits; `changes` are those of the open turn."""
    return attrs.evolve(step(session_id, calls=(kept(0, "waiting"),), **changes), waits=waits)


def after(first: Commit, record: SessionRecord, **changes: Any) -> Commit:
    """Return a commit of a record alone that follows another one."""
    base = first.record.message_count, first.record.last_seq
    return attrs.evolve(Commit(record, lease=first.lease, base=base), **changes)


async def test_all_of_a_wait_is_kept(home: Home, tmp_path: Path) -> None:
    """Its arguments, its answer and its data, for each reason, and any text of a caller."""
    result = ToolResult("call \0", "it \0 rains", True, (blob().attachment,))
    asked = tuple(
        wait(
            at,
            reason,
            wait_id=f"id {text}",
            name=text,
            args={text: [text, 1.5, None]},
            category="mcp",
            question_of=text,
            may_have_run=True,
            decision=Decision(False, text),
            result=result,
            data={"server": text},
            state="answered",
        )
        for at, (text, reason) in enumerate(zip(TEXTS, WAIT_REASONS * 2, strict=False))
    )
    async with home(tmp_path) as store:
        await done(store, waiting("a", *asked))
        assert (await claimed(store)).waits == asked
        for each in asked:
            assert await store.read(StoredWait("a", ANY_TENANT, each.wait_id, WAIT_REASONS)) == each


async def test_a_wait_takes_the_place_of_itself(home: Home, tmp_path: Path) -> None:
    """It is known by its session, its reason and its id; others stay as they are."""
    first = waiting("a", wait(0), wait(0, "client"), wait(1))
    changed = wait(0, "client", state="answered", result=ToolResult("call-0", "done"))
    async with home(tmp_path) as store:
        await store.write([first, waiting("b", wait(0))])
        await done(store, after(first, first.record, waits=(changed, wait(2, "outside"))))
        assert (await claimed(store)).waits == (wait(0), changed, wait(1), wait(2, "outside"))
        assert (await claimed(store, "b")).waits == (wait(0),)


async def test_a_tool_that_is_taken_back_is_not_remembered(home: Home, tmp_path: Path) -> None:
    """By an answer that its call has not got yet: whoever goes on with the turn would allow the tool anew."""
    remembers = Decision(allow=True, reason="why \0", remember=True)
    answered = [wait(at, state="answered", decision=remembers) for at in range(2)]
    dig, fill = answered[0], answered[1].changed(name="fill")
    first = waiting("a", wait(0), wait(1).changed(name="fill"))
    async with home(tmp_path) as store:
        await done(store, first)
        for each in (dig, fill):
            await done(store, StoreAnswer("a", each, first.lease))
        await done(store, Label("a", {"n": "1"}))
        assert (await claimed(store)).waits == (dig, fill)
        await done(store, Label("a", {}, ask_again=(dig.name, "none")))
        forgets = attrs.evolve(remembers, remember=False)
        assert (await claimed(store)).waits == (dig.changed(decision=forgets), fill)


async def test_the_newest_of_an_id_is_found(home: Home, tmp_path: Path) -> None:
    """Among those of the wanted reasons, for callers of the tenant alone."""
    async with home(tmp_path) as store:
        await done(store, waiting("a", wait(0), wait(0, "client"), wait(1, "question")))
        wanted: list[tuple[list[WaitReason], Wait | None]] = [
            (["approval", "client"], wait(0, "client")),
            (["approval", "question"], wait(0)),
            (["outside"], None),
        ]
        for reasons, expected in wanted:
            assert await store.read(StoredWait("a", "default", "call-0", reasons)) == expected
        assert await store.read(StoredWait("a", "other", "call-0", ["approval"])) is None
        assert await store.read(StoredWait("gone", "default", "call-0", ["approval"])) is None


async def test_the_waits_of_a_turn_are_settled_with_it(home: Home, tmp_path: Path) -> None:
    """They stay with their answers; one in the background is not of the turn, and one of the same commit is new."""
    answered = wait(1, state="answered", decision=Decision(True))
    in_background = wait(2, "background")
    first = waiting("a", wait(0), answered, in_background)
    async with home(tmp_path) as store:
        await store.write([first, waiting("b", wait(0))])
        again = wait(0, since=NOW + timedelta(hours=1))
        await done(store, after(first, first.record, settles=True, waits=(again,)))
        assert sorted((await claimed(store)).waits, key=attrgetter("wait_id")) == [again, in_background]
        await done(store, after(first, turn("a").record, settles=True))
        assert (await claimed(store)).waits == (in_background,)
        for each in (again, answered):
            found = await store.read(StoredWait("a", "default", each.wait_id, ["approval"]))
            assert found == each.changed(state="settled")
        assert (await claimed(store, "b")).waits == (wait(0),)


async def test_an_answer_wakes_the_turn(home: Home, tmp_path: Path) -> None:
    """It is stored with its entries of the audit while the turn sleeps, and its session is one to go on with.

    It may be one to several waits.
    """
    entry = AuditEntry(at=PAST, action="approve", who="ann", tenant="default", by="principal", session_id="a")
    answered, other = (wait(number, state="answered", decision=Decision(True)) for number in (0, 2))
    async with home(tmp_path) as store:
        await done(store, waiting("a", wait(0), wait(1), wait(2), wakes=FUTURE))
        await done(store, Release("a", Lease(1)))
        assert list(await store.read(WaitingSessions())) == []
        lease = (await claimed(store)).lease
        await done(store, StoreAnswer("a", answered, lease, (entry, entry), (other,)))
        found = await claimed(store)
        assert (found.waits, found.record) == ((answered, wait(1), other), step("a").record.changed(last_seq=3))
        assert list(await store.read(WaitingSessions())) == ["a"]
        assert await store.read(NextWake()) is None
        entries = (await store.read(AuditEntries("default", AuditRequest()))).entries
        assert [attrs.evolve(each, number=entry.number) for each in entries] == [entry, entry]


async def test_the_end_of_a_call_in_the_background_wakes_no_turn(home: Home, tmp_path: Path) -> None:
    """It is not of the turn, whose own calls wait on."""
    async with home(tmp_path) as store:
        await done(store, waiting("a", wait(0), wait(1, "background"), wakes=FUTURE))
        lease = Lease(1)
        await done(store, StoreAnswer("a", wait(1, "background", state="settled"), lease))
        await done(store, Release("a", lease))
        assert await store.read(NextWake()) == FUTURE
        assert list(await store.read(WaitingSessions())) == []


async def test_a_late_process_answers_nothing(home: Home, tmp_path: Path) -> None:
    """Neither one that has lost the lease, nor one whose session was deleted; nothing changes."""
    answered = wait(0, state="answered", decision=Decision(True))
    async with home(tmp_path) as store:
        await store.write([waiting("a", wait(0), wakes=FUTURE), waiting("b", wait(0))])
        await done(store, Release("a", Lease(1)))
        lease = (await claimed(store)).lease
        await done(store, Delete("b"))
        late = [StoreAnswer("a", answered, Lease(1)), StoreAnswer("b", answered, Lease(1))]
        lost, gone = [(await store.write([each]))[0] for each in late]
        assert isinstance(lost, StoreError)
        assert lost.cause == "lease_lost"
        assert isinstance(gone, SessionNotFoundError)
        assert (await claimed(store)).waits == (wait(0),)
        assert await store.read(NextWake()) == FUTURE
        await done(store, StoreAnswer("a", answered, lease))


async def test_an_archived_session_takes_no_answer(home: Home, tmp_path: Path) -> None:
    """None of its calls waits any more, also if the answer is in the group of the archive."""
    changed = wait(0, "background", data={"later": True})
    async with home(tmp_path) as store:
        await done(store, waiting("a", wait(0, "background"), wakes=FUTURE))
        _, refused = await store.write([Archive("a"), StoreAnswer("a", changed, Lease(1))])
        assert isinstance(refused, SessionNotFoundError)
        found = await store.read(StoredWait("a", "default", "call-0", ["background"]))
        assert found in (None, wait(0, "background", state="settled"))  # a store in memory has it no more


async def test_a_turn_that_sleeps_is_left_alone_until_it_wakes(home: Home, tmp_path: Path) -> None:
    """And so are the inputs of its session, unless a call of it runs in the background."""
    async with home(tmp_path) as store:
        for name, waits, wakes in (
            ("asleep", (wait(0),), FUTURE),
            ("steered", (wait(0),), FUTURE),
            ("due", (wait(0),), PAST),
            ("awake", (wait(0, state="answered", decision=Decision(True)),), None),
            ("works", (wait(0), wait(1, "background")), FUTURE),
            ("worked", (wait(0), wait(1, "background", state="settled")), FUTURE),
        ):
            await done(store, waiting(name, *waits, wakes=wakes))
        background = attrs.evolve(turn("ended"), waits=(wait(0, "background", state="answered"),))
        await store.write([background, turn("said"), turn("quiet")])
        for name in ("steered", "said"):
            await done(store, put("hello", session_id=name))
        expected = {"due", "awake", "works", "ended", "said"}
        assert set(await store.read(WaitingSessions())) == expected
        for name in ("asleep", "steered", "due", "awake", "works", "worked", "ended", "said", "quiet"):
            await done(store, Release(name, Lease(1)))
        assert set(await store.read(WaitingSessions())) == expected


async def test_the_earliest_time_of_a_turn_is_known(home: Home, tmp_path: Path) -> None:
    """To the microsecond, in the record and over all sessions, until it comes, or the turn goes on or has ended."""
    async with home(tmp_path) as store:
        assert await store.read(NextWake()) is None
        later = FUTURE + timedelta(days=1)
        await store.write([waiting("a", wakes=FUTURE), waiting("b", wakes=later), step("c"), turn("d")])
        await done(store, waiting("due", wakes=PAST))
        found = await store.read(SessionRow("a", ANY_TENANT))
        assert found == step("a", wakes=FUTURE).record
        assert await store.read(NextWake()) == FUTURE
        await done(store, after(step("a"), step("a").record))
        assert await store.read(NextWake()) == later
        await done(store, after(step("b"), turn("b").record, settles=True))
        assert await store.read(NextWake()) is None


async def test_waits_that_nobody_has_answered_are_listed(home: Home, tmp_path: Path) -> None:
    """Page by page, those of a tenant for some reasons, the oldest first over all sessions; and those of sessions."""
    async with home(tmp_path) as store:
        answered = wait(2, state="answered", decision=Decision(True))
        await done(store, waiting("a", wait(4), wait(0), answered, wait(3, "client")))
        await done(
            store,
            updated(waiting("b", wait(1, "question"), wait(2, "background"), wait(5, state="settled")), title="t \0"),
        )
        await done(store, updated(waiting("other", wait(0)), tenant="two"))
        decisions = [("a", wait(0), None), ("b", wait(1, "question"), "t \0"), ("a", wait(4), None)]
        reasons: list[WaitReason] = ["approval", "question"]
        assert await store.read(WaitList("default", reasons)) == decisions
        for at, one in enumerate(decisions):
            assert await store.read(WaitList("default", reasons, at, 1)) == [one]
        assert await store.read(WaitList("default", reasons, 3, 1)) == []
        assert await store.read(WaitList("default", ["background"])) == [("b", wait(2, "background"), "t \0")]
        assert await store.read(WaitList("two", reasons)) == [("other", wait(0), None)]
        found = await store.read(OpenWaits(["b", "a", "gone", "other"]))
        assert {each: list(waits) for each, waits in found.items()} == {
            "a": [wait(0), wait(3, "client"), wait(4)],
            "b": [wait(1, "question"), wait(2, "background")],
            "other": [wait(0)],
        }


async def test_a_wait_whose_time_is_over_is_not_listed(home: Home, tmp_path: Path) -> None:
    """No process has to live that ends it: the clock of the store does."""
    async with home(tmp_path) as store:
        late = wait(0).changed(until=store.now() + timedelta(seconds=0.2))
        over = wait(1).changed(until=PAST)
        await done(store, waiting("a", late, over, wait(2)))
        assert await store.read(WaitList("default", ["approval"])) == [("a", late, None), ("a", wait(2), None)]
        await trio.sleep(0.4)
        assert await store.read(WaitList("default", ["approval"])) == [("a", wait(2), None)]
        assert await store.read(WaitList("default", ["approval"], 1)) == []


async def test_waits_count_for_the_bytes_of_a_tenant(home: Home, tmp_path: Path) -> None:
    """They stay with their session once they are settled, and go with it."""
    async with home(tmp_path) as store:
        if isinstance(store, EphemeralStore):
            return  # it counts messages and files alone
        big = wait(0, "client", state="answered", result=ToolResult("call-0", "word " * 1000))
        first = waiting("a")
        await done(store, first)
        before = await store.read(StoredBytes("default"))
        await done(store, after(first, first.record, waits=(big,)))
        await done(store, after(first, turn("a").record, settles=True))
        assert await store.read(StoredBytes("default")) - before > 5000
        assert await store.read(StoredBytes("other")) == 0
        await done(store, Delete("a"))
        assert await store.read(StoredBytes("default")) == 0


@pytest.mark.parametrize("end", [Archive, Delete])
async def test_a_session_that_has_ended_waits_for_nothing(
    home: Home, tmp_path: Path, end: type[Archive | Delete]
) -> None:
    """Nobody is asked any more, and no time wakes it."""
    async with home(tmp_path) as store:
        await done(store, waiting("a", wait(0), wait(1, "background"), wakes=FUTURE))
        await done(store, Release("a", Lease(1)))
        await done(store, end("a"))
        assert list(await store.read(WaitingSessions())) == []
        assert await store.read(NextWake()) is None
        assert await store.read(WaitList("default", WAIT_REASONS)) == []
        assert await store.read(OpenWaits(["a"])) == {}
        left = await store.read(StoredWait("a", "default", "call-0", ["approval"]))
        assert left in (None, wait(0, state="settled"))


async def test_a_fork_waits_for_nothing(home: Home, tmp_path: Path) -> None:
    """What the calls of the original wait for is its own."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await done(store, attrs.evolve(step("a", 1, wakes=FUTURE), waits=(wait(0), wait(1, "background"))))
        fork = await done(store, Fork("f", NOW, ForkRequest("a", at=3)))
        assert fork.turn is None
        found = await claimed(store, "f")
        assert (found.record.turn, found.waits) == (None, ())
        assert set(await store.read(OpenWaits(["a", "f"]))) == {"a"}
