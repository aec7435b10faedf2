"""Sessions that work for others in any home: each is made once, and notices come with the changes that they tell of."""

from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.storage.conformance.homes import DONE, Home, done
from tests.storage.samples import NOW, child, kept, step, turn, updated, wait
from warren.base.errors import BudgetExhaustedError, CapacityExceededError, SessionNotFoundError, StoreError
from warren.calls.creation import FIRST_PROMPT
from warren.conversation.budget import Budget, Expense, Spent
from warren.conversation.delegation import ChildEnd, Delegation
from warren.conversation.inputs import AnyKind, Input
from warren.conversation.messages import ToolResult
from warren.conversation.usage import NO_USAGE
from warren.storage.operations import (
    FIRST,
    UNKNOWN,
    Archive,
    Claim,
    Claimed,
    Commit,
    Delete,
    EndInputs,
    Enqueue,
    InputOutcome,
    Lease,
    Operation,
    Sent,
    StoreAnswer,
)
from warren.storage.queries import (
    ANY_TENANT,
    Children,
    SessionList,
    SessionRow,
    WaitingInputs,
    WaitingNotices,
    WaitingSessions,
)
from warren.storage.store import Store


def notice(kind: AnyKind = "answer", text: str = "it is done \0") -> Input:
    """Return a notice."""
    end = ChildEnd("b", "id 0", "key 0", True, Expense(1, 2.5, 3, 4, 0.5)) if kind == "answer" else None
    return Input(f"id of {kind}", kind, text, NOW, starts=False, end=end)


async def notices(store: Store, session_id: str) -> list[str]:
    """Return the kinds of the notices that wait for a session."""
    found = await store.read(WaitingInputs(session_id, ANY_TENANT))
    return [each.input.kind for each in found if each.input.is_notice]


async def test_a_child_is_made_once(home: Home, tmp_path: Path) -> None:
    """With its first message and its prompt; its process has its lease, and it is found by whom it works for."""
    async with home(tmp_path) as store:
        await store.write([turn("a"), turn("x")])
        place: dict[str, Any] = {"depth": 2, "call_id": "c \0", "call_key": "k", "traceparent": "t"}
        number = await done(store, child("b", **place))
        assert await done(store, child("b", **place)) is None
        assert list(await store.read(WaitingSessions())) == ["b"]
        record = await store.read(SessionRow("b", "default"))
        assert record is not None
        assert record.delegation == Delegation("a", **place)
        found = await done(store, Claim("b"))
        assert [(each.number, each.input.text, each.input.key) for each in found.inbox] == [
            (number, "work \0", FIRST_PROMPT)
        ]
        assert (found.lease, found.inbox_to) == (FIRST, number)
        await done(store, child("y", "x"))
        listed = [await store.read(SessionList("default", delegated_by=each)) for each in ("a", "x", "b")]
        assert [[each.session_id for each in page] for page in listed] == [["b"], ["y"], []]
        assert not list(await store.read(SessionList("other", delegated_by="a")))


async def test_children_are_counted(home: Home, tmp_path: Path) -> None:
    """Those at work by themselves, none that is archived or deleted, and none for another tenant."""
    async with home(tmp_path) as store:

        async def counted(session_id: str = "a", tenant: str | None = "default") -> tuple[int, int]:
            found = await store.read(Children(session_id, tenant))
            return found.total, found.working

        await store.write([turn("a"), turn("x")])
        assert await counted() == await counted("nobody") == (0, 0)
        for name in "bcde":
            await done(store, child(name))
        await done(store, child("y", "x"))
        assert await counted() == await counted(tenant=ANY_TENANT) == (4, 4)
        assert (await counted("x"), await counted("b"), await counted(tenant="other")) == ((1, 1), (0, 0), (0, 0))
        lease = (found := await done(store, Claim("b"))).lease
        await done(store, EndInputs("b", InputOutcome((found.inbox[0].number,), UNKNOWN)))
        assert await counted() == (4, 4)  # its turn has taken the prompt, and runs
        await done(store, EndInputs("b", InputOutcome((found.inbox[0].number,), DONE)))
        assert await counted() == (4, 3)
        await done(store, Archive("c", None, (await done(store, Claim("c"))).lease))
        assert await counted() == (3, 2)
        await done(store, Delete("d", None))
        assert await counted() == (2, 1)
        await done(store, Archive("b", None, lease))
        assert await counted() == (1, 1)


async def test_a_child_needs_a_parent_that_waits(home: Home, tmp_path: Path) -> None:
    """One that is open, and whose call waits if it is to; and as few children at work as it may have."""
    async with home(tmp_path) as store:
        with pytest.raises(SessionNotFoundError):
            await done(store, child("b", "nobody"))
        await store.write([turn("x"), Archive("x", None, Lease(1))])
        with pytest.raises(SessionNotFoundError):
            await done(store, child("b", "x"))
        await done(store, step("a", calls=(kept(0),)))
        with pytest.raises(StoreError, match="waits no more"):
            await done(store, child("b", call_id="id 0", waits=True))
        waits = wait(0, "child", wait_id="id 0")
        first = step("a", calls=(kept(0),))
        base = first.record.message_count, first.record.last_seq
        await done(store, Commit(first.record, waits=(waits,), base=base))
        assert await done(store, child("b", call_id="id 0", waits=True))
        with pytest.raises(CapacityExceededError, match=r"limits\.children"):
            await done(store, child("c", limit=1))
        found = await done(store, Claim("b"))
        ended = InputOutcome((found.inbox[0].number,), DONE)
        await done(store, EndInputs("b", ended))
        assert await done(store, child("c", limit=1))


async def test_a_notice_comes_with_a_commit(home: Home, tmp_path: Path) -> None:
    """It is no prompt, counts for no bound, and is found while its turn waits; a refused one sends none."""
    async with home(tmp_path) as store:
        await done(store, step("a", calls=(kept(0, "waiting"),), wakes=NOW.replace(year=2126)))
        await done(store, turn("b"))
        assert list(await store.read(WaitingSessions())) == []
        after = updated(turn("b", 1))
        sent = Sent("a", notice())
        refused = attrs.evolve(after, lease=Lease(7), sends=(sent,))
        assert isinstance((await store.write([refused]))[0], StoreError)
        assert await notices(store, "a") == []
        await done(store, attrs.evolve(after, sends=(sent, Sent("nobody", notice()))))
        assert await notices(store, "a") == ["answer"]
        (found,) = await store.read(WaitingInputs("a", ANY_TENANT))
        assert found.input == notice()
        assert list(await store.read(WaitingSessions())) == ["a"]
        claimed = await done(store, Claim("a"))
        assert isinstance(claimed, Claimed)
        assert claimed.inbox[0].input.end == notice().end
        await done(store, Enqueue("a", Input("i", "queue", "a prompt", NOW), 9))
        prompt = await done(store, child("c", "a"))
        told = await store.read(WaitingNotices(["c", "nobody", "a"]))
        assert [(session_id, each.number) for session_id, each in told] == [("a", found.number), ("c", prompt)]
        assert told[0][1] == found
        assert await store.read(WaitingNotices(["b"])) == []


@pytest.mark.parametrize("end", [Archive("b", None, Lease(1)), Delete("b", None)], ids=["archive", "delete"])
async def test_a_session_that_has_ended_tells_nobody_more(home: Home, tmp_path: Path, end: Operation[None]) -> None:
    """Its end has told its parent: a prompt that was to end without a turn meanwhile tells it nothing again."""
    async with home(tmp_path) as store:
        await store.write([turn("a"), turn("b")])
        await done(store, attrs.evolve(end, sends=(Sent("a", notice()),)))  # type: ignore[misc] # both have it
        await store.write([EndInputs("b", InputOutcome(), (Sent("a", notice()),))])
        assert await notices(store, "a") == ["answer"]


async def test_an_answer_settles_its_notice(home: Home, tmp_path: Path) -> None:
    """In the same change; the turn may sleep on until the other children have ended."""
    async with home(tmp_path) as store:
        first = step("a", calls=(kept(0, "waiting"), kept(1, "waiting")), wakes=NOW.replace(year=2126))
        waits = tuple(wait(at, "child", wait_id=f"id {at}") for at in range(2))
        await done(store, attrs.evolve(first, waits=waits))
        await done(store, turn("b"))
        await done(store, EndInputs("b", InputOutcome(), (Sent("a", notice()), Sent("a", notice()))))
        one, two = await store.read(WaitingInputs("a", ANY_TENANT))
        answers = [each.changed(state="answered", result=ToolResult(each.wait_id, "it is done")) for each in waits]
        await done(store, StoreAnswer("a", answers[0], Lease(1), inputs=InputOutcome((one.number,)), sleeps=True))
        record = await store.read(SessionRow("a", ANY_TENANT))
        assert record is not None
        assert record.turn is not None
        assert record.turn.wakes is not None
        assert [each.number for each in await store.read(WaitingInputs("a", ANY_TENANT))] == [two.number]
        await done(store, StoreAnswer("a", answers[1], Lease(1), inputs=InputOutcome((two.number,))))
        record = await store.read(SessionRow("a", ANY_TENANT))
        assert record is not None
        assert record.turn is not None
        assert record.turn.wakes is None
        assert await notices(store, "a") == []


@pytest.mark.parametrize("how", ["archive", "delete"])
async def test_the_end_of_a_parent_goes_down(home: Home, tmp_path: Path, how: AnyKind) -> None:
    """To each child, in the same change; that of a child goes up. Deleted with archived ones, where these are kept."""
    async with home(tmp_path) as store:
        await store.write([turn("p"), turn("a")])
        await store.write([child("b"), child("c"), child("d", "b")])
        claims = [await done(store, Claim(each)) for each in ("b", "c", "d")]
        sends = (Sent("p", notice()),)
        await done(store, Archive("c", None, claims[1].lease))
        await done(store, Archive("a", None, Lease(1), sends) if how == "archive" else Delete("a", None, sends))
        assert await notices(store, "p") == ["answer"]
        assert await notices(store, "b") == [how]
        assert await notices(store, "d") == []
        kept_archived = await store.read(SessionRow("c", ANY_TENANT)) is not None
        assert await notices(store, "c") == ([how] if how == "delete" and kept_archived else [])
        expected = {"p", "b", "d", *(["c"] if how == "delete" and kept_archived else [])}
        assert set(await store.read(WaitingSessions())) == expected
        await done(store, Delete("b"))
        assert await notices(store, "d") == ["delete"]
        assert (
            not list(await store.read(SessionList("default", delegated_by="a", include_archived=True))) or kept_archived
        )


async def test_a_child_that_is_archived_just_after_its_parent_was_deleted(home: Home, tmp_path: Path) -> None:
    """It is deleted too: of all that waits for it, the notice of that stays."""
    async with home(tmp_path) as store:
        await store.write([turn("a"), child("b")])
        lease = (await done(store, Claim("b"))).lease
        await done(store, EndInputs("a", InputOutcome(), (Sent("b", notice("cancel", '"kind":"delete"')),)))
        await done(store, Delete("a"))
        assert await notices(store, "b") == ["cancel", "delete"]
        await done(store, Archive("b", None, lease))
        if await store.read(SessionRow("b", ANY_TENANT)) is not None:  # where archived ones are kept
            assert await notices(store, "b") == ["delete"]
            assert list(await store.read(WaitingSessions())) == ["b"]


async def test_a_child_gets_a_part_of_the_budget(home: Home, tmp_path: Path) -> None:
    """Of what is left beside the children that the parent has not counted yet; the parent gets a notice of it."""
    async with home(tmp_path) as store:
        first = step("a", calls=(kept(0),))
        options = attrs.evolve(first.record.options, budget=Budget(max_tokens=1000, max_cost=4.0))
        record = first.record.changed(options=options, usage=NO_USAGE, spent=Spent(100), delegated=Expense(100))
        await done(store, attrs.evolve(first, record=record))
        waits = wait(0, "child", wait_id="id 0", data={"share": {"tokens": 200}})
        spent = {"share": {"tokens": 900}, "spent": {"tokens": 50}}
        answered = wait(0, "child", state="answered", wait_id="id 1", data=spent)
        base = record.message_count, record.last_seq
        await done(store, Commit(record, waits=(waits, answered), base=base))
        left = 1000 - 100 - 100 - 200 - 50
        given = list[int]()
        for at in range(3):
            assert await done(store, attrs.evolve(child(f"b{at}"), lends=True))
            assert await done(store, attrs.evolve(child(f"b{at}"), lends=True)) is None
            made = await store.read(SessionRow(f"b{at}", ANY_TENANT))
            assert made is not None
            assert made.delegation is not None
            budget, lent = made.options.budget, made.delegation.lent
            assert budget is not None
            assert budget.max_tokens is not None
            assert (budget.max_steps, budget.max_cost) == (None, 2.0 / 2**at)
            assert lent == Expense(tokens=budget.max_tokens, cost=budget.max_cost or 0)
            given.append(budget.max_tokens)
        assert given == [275, 138, 69]
        assert sum(given) < left
        assert await notices(store, "a") == ["lend"] * 3
        asks = child("c")
        record = asks.record.changed(options=attrs.evolve(asks.record.options, budget=Budget(max_tokens=500)))
        assert await done(store, attrs.evolve(asks, record=record, lends=True))
        made = await store.read(SessionRow("c", ANY_TENANT))
        assert made is not None
        assert made.options.budget == Budget(max_tokens=left - sum(given), max_cost=0.25)
        with pytest.raises(BudgetExhaustedError):
            await done(store, attrs.evolve(child("d"), lends=True))
        assert await store.read(SessionRow("d", ANY_TENANT)) is None
