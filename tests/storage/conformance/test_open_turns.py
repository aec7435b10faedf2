"""Open turns in any home: what a process goes on with, and who is to go on."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.storage.conformance.homes import DONE, HOMES, Home, done, put
from tests.storage.files import blob
from tests.storage.samples import NOW, TEXTS, kept, step, turn, updated
from warren.base.errors import InvalidParamsError, StoreError
from warren.calls.sessions import ForkRequest
from warren.conversation import codec
from warren.conversation.budget import Budget, Spent
from warren.conversation.events import Event, RunFailed, RunStarted, TurnResumed
from warren.conversation.messages import ToolResult
from warren.conversation.open_turn import KeptCall, TurnStart
from warren.conversation.options import TurnOptions
from warren.conversation.records import EventRow, SessionRecord
from warren.conversation.usage import Usage
from warren.storage.operations import (
    UNKNOWN,
    Archive,
    Claim,
    Claimed,
    Commit,
    Delete,
    Enqueued,
    Fork,
    InputOutcome,
    Lease,
    Release,
)
from warren.storage.queries import (
    ANY_TENANT,
    InTurn,
    LostEvents,
    OpenTurns,
    SessionList,
    SessionRow,
    SessionStart,
    StoredBytes,
    StoredHistory,
    StoredMessages,
    WaitingSessions,
)
from warren.storage.results import Lost
from warren.storage.store import Store


async def claimed(store: Store, session_id: str = "a") -> Claimed:
    """Claim a session."""
    found = await done(store, Claim(session_id))
    assert isinstance(found, Claimed)
    return found


def after(first: Commit, record: SessionRecord, **changes: Any) -> Commit:
    """Return a commit of a record alone that follows another one."""
    base = first.record.message_count, first.record.last_seq
    return attrs.evolve(Commit(record, lease=first.lease, base=base), **changes)


async def test_a_turn_is_kept_from_step_to_step(home: Home, tmp_path: Path) -> None:
    """The record has its state and a claim its calls, in their order; a later state of a call takes the place of it."""
    first = step("a", calls=(kept(2), kept(0), kept(1, "waiting")))
    async with home(tmp_path) as store:
        await done(store, first)
        assert await store.read(SessionRow("a", ANY_TENANT)) == first.record
        found = await claimed(store)
        assert (found.record, found.lost) == (first.record, ())
        assert found.calls == (kept(0), kept(1, "waiting"), kept(2))
        moved = step("a", kept_seq=2, resumed=3, parked=True).record
        await done(store, after(first, moved, calls=(kept(1, result="it \0 rains"), kept(0, result=""))))
        found = await claimed(store)
        assert found.record == moved
        assert found.calls == (kept(0, result=""), kept(1, result="it \0 rains"), kept(2))


@pytest.mark.parametrize("labels", [{}, {"k": "v"}])
async def test_sessions_by_the_state_of_their_turns(home: Home, tmp_path: Path, labels: dict[str, str]) -> None:
    """A turn is parked or waits as its row says, unless the process knows its state; the page is cut afterwards."""
    async with home(tmp_path) as store:
        for number, session_id in enumerate("abcdef"):
            wakes = None if session_id in "abc" else NOW
            first = step(session_id, wakes=wakes, options=TurnOptions(output_schema={"properties": {"wakes": {}}}))
            record = first.record.changed(labels=labels, updated_at=NOW - timedelta(seconds=number))
            await store.write([attrs.evolve(first, record=record)])
        await store.write([updated(turn("text"), labels=labels), turn("other")])
        other = step("z", wakes=NOW)
        await store.write([attrs.evolve(other, record=other.record.changed(tenant="acme", labels=labels))])

        async def listed(turn: InTurn, offset: int = 0, limit: int = 50) -> list[str]:
            found = await store.read(SessionList("default", offset, limit, labels, in_turn=turn))
            assert not found.damaged
            return [each.session_id for each in found]

        assert await listed(InTurn("parked")) == ["a", "b", "c"]
        assert await listed(InTurn("waiting")) == ["d", "e", "f"]
        assert await listed(InTurn("running")) == []
        assert await listed(InTurn("running", here=["text", "b", "z"], others=["a"])) == ["text", "b"]
        assert await listed(InTurn("parked", others=["a", "d"])) == ["b", "c"]
        assert await listed(InTurn("waiting", here=["a"], others=["e"])) == ["a", "d", "f"]
        assert await listed(InTurn("waiting", here=["a"]), offset=1, limit=2) == ["d", "e"]


async def test_results_of_open_turns_take_room(home: Home, tmp_path: Path) -> None:
    """Those that are not in the messages yet count for the bytes of the tenant."""
    async with home(tmp_path) as store:
        first = step("a", calls=(kept(0), kept(1)))
        await done(store, first)
        before = await store.read(StoredBytes("default"))
        await done(store, after(first, first.record, calls=(kept(0, result="x" * 10_000),)))
        assert await store.read(StoredBytes("default")) >= before + 10_000


async def test_all_of_a_turn_is_kept(home: Home, tmp_path: Path) -> None:
    """Its options, its start and its figures, and the files and texts of the results."""
    usage = Usage(1, 2, 3, 4, estimated=True, cost=Decimal("0.125"))
    options = TurnOptions(model="m", budget=Budget(max_tokens=5), output_schema={"type": "object"}, effort="low")
    first = step(
        "a",
        calls=tuple(
            KeptCall(f"id {text}", at, "done", ToolResult(f"id {text}", text, True, (blob().attachment,)))
            for at, text in enumerate(TEXTS)
        ),
        start=TurnStart(0, 0, usage, Spent(1, 0.5, 2, 3)),
        options=options,
        payer="ci",
        key="k",
        hops=2,
        traceparent="00-1-2-03",
        inputs=(3, 4),
        usage=usage,
        spent=Spent(7, 8.25, 9, 10),
        step_usage=usage,
        cuts=1,
        text="said \0 so far",
        stop_reason="max_tokens",
        deaths=2,
    )
    async with home(tmp_path) as store:
        await done(store, first)
        found = await claimed(store)
        assert found.record.turn == first.record.turn
        assert found.calls == first.calls


async def test_the_calls_of_a_new_answer_take_the_place_of_the_old(home: Home, tmp_path: Path) -> None:
    """A commit that settles removes all calls of its session before it adds its own, and those of no other session."""
    first = step("a", calls=(kept(0, result="a"), kept(1, result="b"), kept(2)))
    async with home(tmp_path) as store:
        await store.write([first, step("b", calls=(kept(0),))])
        await done(store, after(first, first.record, settles=True, calls=(kept(1),)))
        assert (await claimed(store)).calls == (kept(1),)
        await done(store, after(first, first.record, settles=True))
        assert (await claimed(store)).calls == ()
        assert (await claimed(store, "b")).calls == (kept(0),)


async def test_the_end_of_a_turn_leaves_nothing_of_it(home: Home, tmp_path: Path) -> None:
    """Neither its state nor its calls, nor anything to go on with; a text turn after it has none either."""
    first = step("a", calls=(kept(0),))
    ended = turn("a", 1)
    async with home(tmp_path) as store:
        await done(store, first)
        await done(store, attrs.evolve(ended, settles=True, base=(first.record.message_count, first.record.last_seq)))
        await done(store, Release("a", Lease(1)))
        assert list(await store.read(WaitingSessions())) == []
        found = await claimed(store)
        assert (found.record.turn, found.record.turn_open, found.calls) == (None, False, ())


async def test_groups_keep_turns_of_many_sessions(home: Home, tmp_path: Path) -> None:
    """New and open ones, with and without calls, and several of one session in their order."""
    more = after(step("b"), step("b").record, calls=(kept(0, result="x"),))
    async with home(tmp_path) as store:
        group = [
            step("a", calls=(kept(0), kept(1))),
            turn("c"),
            step("b", calls=(kept(0), kept(1))),
            more,
            after(step("a"), turn("a").record, settles=True),
            attrs.evolve(more, settles=True, calls=(kept(2),)),
            step("d"),
        ]
        assert await store.write(group) == [None] * len(group)
        assert [(await claimed(store, each)).calls for each in "abcd"] == [(), (kept(2),), (), ()]
        assert [(await claimed(store, each)).record.turn is not None for each in "abcd"] == [False, True, False, True]


async def test_a_late_process_changes_no_call(home: Home, tmp_path: Path) -> None:
    """A commit under an old lease, or after one that it has not seen, is refused with its calls."""
    first = step("a", calls=(kept(0),))
    async with home(tmp_path) as store:
        await done(store, first)
        await done(store, Release("a", Lease(1)))
        lease = (await claimed(store)).lease
        late = after(first, first.record, calls=(kept(0, result="late"),))
        unaware = attrs.evolve(late, lease=lease, base=(1, 1), settles=True)
        outcomes = await store.write([late]) + await store.write([unaware])
        assert [each.cause for each in outcomes if isinstance(each, StoreError)] == ["lease_lost", "conflict"]
        assert (await claimed(store)).calls == (kept(0),)


async def test_sessions_with_open_turns_are_found(home: Home, tmp_path: Path) -> None:
    """Beside sessions for which an input waits; figures count those that no process has."""
    async with home(tmp_path) as store:
        for number, tenant in enumerate(["one", "one", "one", "two", "two", "three"]):
            await done(store, updated(step(f"s{number}"), tenant=tenant))
        await store.write([updated(turn("said"), tenant="three"), updated(turn("ended"), tenant="two")])
        await done(store, put("hello", session_id="said"))
        assert await store.read(OpenTurns(ANY_TENANT)) == {}
        for each in (*(f"s{number}" for number in range(6)), "said", "ended"):
            await done(store, Release(each, Lease(1)))
        assert list(await store.read(WaitingSessions())) == [*(f"s{number}" for number in range(6)), "said"]
        assert await store.read(OpenTurns(ANY_TENANT)) == {"one": 3, "two": 2, "three": 1}
        assert await store.read(OpenTurns("two")) == {"two": 2}
        await claimed(store, "s3")
        assert await store.read(OpenTurns("two")) == {"two": 1}
        assert await store.read(OpenTurns("four")) == {}


@pytest.mark.parametrize("end", [Archive, Delete])
async def test_a_session_that_has_ended_has_no_open_turn(
    home: Home, tmp_path: Path, end: type[Archive | Delete]
) -> None:
    """Nobody takes it up, and nothing of the turn is counted."""
    async with home(tmp_path) as store:
        await done(store, step("a", calls=(kept(0),)))
        await done(store, Release("a", Lease(1)))
        await done(store, end("a"))
        assert list(await store.read(WaitingSessions())) == []
        assert await store.read(OpenTurns(ANY_TENANT)) == {}
        left = await store.read(SessionRow("a", ANY_TENANT))
        assert left is None or (left.archived, left.turn, left.turn_open) == (True, None, True)


async def test_a_fork_has_no_open_turn(home: Home, tmp_path: Path) -> None:
    """It is cut at the turn's prompt, or at another stored message that is not between a call and its result."""
    async with home(tmp_path) as store:
        await done(store, turn("a", text="before"))
        await done(store, step("a", 1, calls=(kept(0),)))
        fork = await done(store, Fork("f", NOW, ForkRequest("a")))
        assert (fork.message_count, fork.turn, fork.turn_open, fork.last_assistant_text) == (2, None, False, "before")
        within = await done(store, Fork("g", NOW, ForkRequest("a", at=3)))
        assert (within.message_count, within.turn, within.last_assistant_text) == (3, None, "before")
        for at, why in ((4, "the nearest place is 3"), (5, "from 0 to 4, the messages that are stored")):
            with pytest.raises(InvalidParamsError, match=why):
                await done(store, Fork("h", NOW, ForkRequest("a", at=at)))
        found = await claimed(store, "g")
        assert (found.record.turn, found.calls) == (None, ())
        assert list(await store.read(WaitingSessions())) == ["a"]


async def test_an_input_of_an_open_turn_has_no_outcome(home: Home, tmp_path: Path) -> None:
    """Its key is taken and its outcome unknown, over steps, a release and a claim, until the turn has ended."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        entered = await done(store, put("1", key="k"))
        number = entered.numbered.number
        first = attrs.evolve(step("a", 1, inputs=(number,)), inputs=InputOutcome((number,), UNKNOWN))
        await done(store, first)
        await done(store, after(first, first.record, calls=(kept(0),), inputs=InputOutcome((number,), UNKNOWN)))
        await done(store, Release("a", Lease(1)))
        found = await claimed(store)
        assert (found.inbox, found.record.turn) == ((), first.record.turn)
        again = await done(store, put("1", key="k"))
        assert isinstance(again, Enqueued)
        assert (again.fresh, again.outcome) == (False, UNKNOWN)
        end = turn("a", 2)
        base = first.record.message_count, first.record.last_seq
        inputs = InputOutcome((number,), DONE)
        await done(store, attrs.evolve(end, base=base, lease=found.lease, inputs=inputs, settles=True))
        assert (await done(store, put("1", key="k"))).outcome == DONE


async def test_readers_see_what_is_kept(home: Home, tmp_path: Path) -> None:
    """The messages of an open turn are in its history, and lists show its session."""
    first = step("a", calls=(kept(0),))
    async with home(tmp_path) as store:
        await done(store, first)
        assert (await store.read(StoredHistory("a", "default"))).total == 2
        rows, total = await store.read(StoredMessages("a"))
        assert (tuple(rows), total) == (first.messages, 2)
        assert await store.read(SessionList("default")) == [first.record]
        start = await store.read(SessionStart("a"))
        assert start is not None
        assert start.record == first.record


LATER = 1_000_000
"""The number after which the next process goes on."""
FOLLOWING: list[tuple[Event, bool]] = [
    (TurnResumed(1, 3), True),
    (RunFailed("a", "the process ended too often", "crash"), True),
    (RunStarted("a", "another prompt"), False),
]


@pytest.mark.parametrize(("event", "ended"), FOLLOWING)
@pytest.mark.parametrize("home", [HOMES["sqlite"], HOMES["postgres"]])
async def test_events_of_an_open_turn_that_were_lost(home: Home, tmp_path: Path, event: Event, *, ended: bool) -> None:
    """A reader that was shown them is not told that their turn is lost, before it goes on and after it has gone on."""
    first = step("a")
    skipped = first.record.changed(last_seq=LATER)
    row = EventRow(LATER + 1, LATER + 1, NOW, codec.encode(event))
    async with home(tmp_path) as store:
        await store.write([first, after(first, skipped)])
        assert await store.read(LostEvents("a", "default", 3)) is None
        assert await store.read(LostEvents("a", "default", 7)) == Lost(4, LATER, ended=True)
        over = skipped.changed(last_seq=LATER + 1, turn=None, turn_open=False, turns=1)
        await done(store, attrs.evolve(after(first, over), events=(row,), base=(2, LATER)))
        assert await store.read(LostEvents("a", "default", 7)) == Lost(4, LATER, ended=ended)
