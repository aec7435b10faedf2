"""Inboxes in any home: order, keys, bounds, outcomes."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.storage.conformance.homes import DONE, Home, done, put
from tests.storage.samples import turn
from warren.base.errors import CapacityExceededError, SessionNotFoundError, StoreError
from warren.calls.creation import FIRST_PROMPT, Creation
from warren.storage.operations import (
    FIRST,
    MAX_OUTCOMES,
    UNKNOWN,
    Archive,
    Claim,
    Commit,
    EndInputs,
    Enqueue,
    Enqueued,
    InputOutcome,
    Release,
    Sent,
)
from warren.storage.queries import ANY_TENANT, CreatedUnder, NextWake, WaitingInputs, WaitingSessions, WasTold
from warren.storage.store import Store


async def texts(store: Store, session_id: str = "a") -> list[str]:
    """Return the texts that wait for a session."""
    return [each.input.text for each in await store.read(WaitingInputs(session_id, ANY_TENANT))]


async def entered(store: Store, operation: Enqueue) -> Enqueued:
    """Put an input in."""
    found = await done(store, operation)
    assert isinstance(found, Enqueued)
    return found


async def test_inputs_wait_until_a_turn_takes_them(home: Home, tmp_path: Path) -> None:
    """They are numbered over all sessions, wait in order, are known to a claim, and are gone with their turn."""
    async with home(tmp_path) as store:
        await store.write([turn("a"), turn("b")])
        one, two = await entered(store, put("1")), await entered(store, put("2", starts=False))
        other = await entered(store, put("3", session_id="b", starts=False))
        numbers = [each.numbered.number for each in (one, two, other)]
        assert numbers == sorted(set(numbers))
        assert list(await store.read(WaitingSessions())) == ["a"]
        claim = await done(store, Claim("a"))
        assert ([each.input.text for each in claim.inbox], claim.inbox_to) == (["1", "2"], numbers[-1])
        commit = turn("a", 1)
        taken = InputOutcome((numbers[0],), DONE)
        await done(store, Commit(commit.record, commit.messages, commit.events, inputs=taken))
        assert await texts(store) == ["2"]
        assert list(await store.read(WaitingSessions())) == []


async def test_an_input_waits_for_its_time(home: Home, tmp_path: Path) -> None:
    """Until then no session waits for it, and the next time at which one does is known; it counts for the bound."""
    async with home(tmp_path) as store:
        await store.write([turn("a"), turn("b"), turn("c")])
        soon, later = store.now() + timedelta(seconds=0.3), store.now() + timedelta(days=1, microseconds=7)
        await entered(store, put("1", not_before=later))
        assert (list(await store.read(WaitingSessions())), await store.read(NextWake())) == ([], later)
        first = await entered(store, put("2", not_before=soon, session_id="b"))
        await entered(store, put("3", not_before=soon - timedelta(days=1), session_id="c"))
        assert (list(await store.read(WaitingSessions())), await store.read(NextWake())) == (["c"], soon)
        assert [each.input.not_before for each in (await done(store, Claim("a"))).inbox] == [later]
        assert [each.input.not_before for each in await store.read(WaitingInputs("b", ANY_TENANT))] == [soon]
        await trio.sleep(0.5)
        assert (list(await store.read(WaitingSessions())), await store.read(NextWake())) == (["b", "c"], later)
        await done(store, EndInputs("b", InputOutcome((first.numbered.number,), DONE)))
        assert list(await store.read(WaitingSessions())) == ["c"]
        with pytest.raises(CapacityExceededError):
            await done(store, put("4", limit=1))
        await done(store, Archive("a"))
        assert await store.read(NextWake()) is None


async def test_a_key_is_taken_once(home: Home, tmp_path: Path) -> None:
    """A second sending is the first one: while it waits, while its turn runs, and when that has ended."""
    async with home(tmp_path) as store:
        await store.write([turn("a"), turn("b")])
        first = await entered(store, put("1", key="k"))
        second = await entered(store, put("2", key="k"))
        assert (first.fresh, second.fresh, second.numbered, second.outcome) == (True, False, first.numbered, None)
        assert (await entered(store, put("3", key="k", session_id="b"))).fresh
        for outcome in (UNKNOWN, DONE):
            await done(store, EndInputs("a", InputOutcome((first.numbered.number,), outcome)))
            known = await entered(store, put("1", key="k"))
            assert (known.fresh, known.outcome) == (False, outcome)
        assert await texts(store) == []


async def test_an_input_under_a_lease_is_refused_once_that_is_over(home: Home, tmp_path: Path) -> None:
    """Also one that is known: its process may not count on anything that it has read."""
    async with home(tmp_path) as store:
        await store.write([turn("a")])
        result = attrs.evolve(put("1", key="k"), anywhere=True, lease=FIRST)
        await entered(store, result)
        assert not (await entered(store, result)).fresh
        await done(store, Release("a", FIRST))
        await done(store, Claim("a"))
        for each in (result, attrs.evolve(put("2"), anywhere=True, lease=FIRST)):
            (refused,) = await store.write([each])
            assert isinstance(refused, StoreError)
            assert refused.cause == "lease_lost"
        assert await texts(store) == ["1"]


async def test_inputs_are_not_ended_under_a_lease_that_is_over(home: Home, tmp_path: Path) -> None:
    """The turns of the process that has the session since may have them: nothing ends, and nobody is told."""
    async with home(tmp_path) as store:
        await store.write([turn("a"), turn("b")])
        first, notice = await entered(store, put("1")), attrs.evolve(put("over").input, kind="cancel", starts=False)
        end = EndInputs("a", InputOutcome((first.numbered.number,), DONE), (Sent("b", notice),), FIRST)
        await done(store, Release("a", FIRST))
        await done(store, Claim("a"))
        (refused,) = await store.write([end])
        assert isinstance(refused, StoreError)
        assert refused.cause == "lease_lost"
        assert (await texts(store), await texts(store, "b")) == (["1"], [])
        await done(store, attrs.evolve(end, lease=None))
        assert (await texts(store), await texts(store, "b")) == ([], ["over"])


async def test_a_full_inbox_takes_only_what_it_knows(home: Home, tmp_path: Path) -> None:
    """An input past the limit is refused; the second sending of one that waits is not."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await entered(store, put("1", key="k", limit=1))
        with pytest.raises(CapacityExceededError) as refused:
            await entered(store, put("2", limit=1))
        assert refused.value.cause == "inbox_full"
        assert not (await entered(store, put("1", key="k", limit=1))).fresh


async def test_old_outcomes_give_way(home: Home, tmp_path: Path) -> None:
    """Of many settled inputs with a key the newest are remembered, and the first prompt of the session."""
    async with home(tmp_path) as store:
        commit = turn("a")
        await done(store, Commit(commit.record, commit.messages, creation=Creation("made", {})))
        keys = [FIRST_PROMPT, *(str(number) for number in range(MAX_OUTCOMES + 2))]
        found: list[Any] = await store.write([put(key, key=key, limit=MAX_OUTCOMES * 2) for key in keys])
        numbers = tuple(each.numbered.number for each in found)
        await done(store, EndInputs("a", InputOutcome(numbers, DONE)))
        again = [await entered(store, put("again", key=key)) for key in (FIRST_PROMPT, "1", "2", str(MAX_OUTCOMES + 1))]
        assert [each.fresh for each in again] == [False, True, False, False]
        created = await store.read(CreatedUnder("default", "made"))
        assert created is not None
        assert created.outcome == DONE


async def test_an_answer_is_put_in_as_a_notice(home: Home, tmp_path: Path) -> None:
    """It has its session found, takes no room, and comes once under its key."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        answer = attrs.evolve(put("five", key="k").input, kind="answer", starts=False, request_id="r")
        await entered(store, put("hi", limit=1))
        taken = await entered(store, attrs.evolve(put("five", limit=2), input=answer))
        assert taken.fresh
        assert not (await entered(store, attrs.evolve(put("five", limit=2), input=answer))).fresh
        assert answer in [each.input for each in await store.read(WaitingInputs("a", ANY_TENANT))]
        assert (await entered(store, put("there is room", limit=2))).fresh


async def test_a_peers_request_is_found(home: Home, tmp_path: Path) -> None:
    """It is known while it waits, by its id and its sender, and as a text of the conversation afterwards."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        await entered(store, put("Request"))
        assert await store.read(WasTold("a", "id of Request", "peer", "Req"))
        assert not await store.read(WasTold("a", "id of Request", "peer", "-"))
        assert not await store.read(WasTold("a", "id of Request", "another", "Req"))
        assert await store.read(WasTold("a", "gone", "peer", "hi"))
        assert not await store.read(WasTold("a", "gone", "peer", "hello"))
        assert not await store.read(WasTold("x", "gone", "peer", "hi"))


async def test_an_ended_session_takes_no_input(home: Home, tmp_path: Path) -> None:
    """Its inbox is gone with it, and takes nothing more; a late settlement is nothing to speak of."""
    async with home(tmp_path) as store:
        await done(store, turn("a"))
        first = await entered(store, put("1"))
        await done(store, Archive("a"))
        await done(store, EndInputs("a", InputOutcome((first.numbered.number,), DONE)))
        for session_id in ("a", "x"):
            with pytest.raises(SessionNotFoundError):
                await entered(store, put("2", session_id=session_id))
        assert await texts(store) == []
        assert list(await store.read(WaitingSessions())) == []
