"""Turns to store, and a store to put them in."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import attrs

from warren.base.errors import WarrenError
from warren.calls.creation import FIRST_PROMPT, Creation
from warren.conversation import codec
from warren.conversation.budget import NOTHING_SPENT
from warren.conversation.delegation import Delegation
from warren.conversation.inputs import Input
from warren.conversation.messages import AssistantMessage, TextBlock, ToolResult, ToolUseBlock, UserMessage
from warren.conversation.open_turn import CallState, KeptCall, OpenTurn, TurnStart
from warren.conversation.records import CompactionEntry, EventRow, MessageRow, SessionRecord
from warren.conversation.usage import NO_USAGE, Usage
from warren.conversation.waits import Wait, WaitReason
from warren.reports.ledger import Charge
from warren.settings.config import StoreConfig
from warren.storage.operations import Commit, Delegate, Operation
from warren.storage.runner import Runner, inline_runner
from warren.storage.sqlite import Holder, SqliteStore

NOW: Final = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
EVENTS: Final = 3
TEXTS: Final = (
    "nul \0 in it",
    "\x01",
    "\x010",
    "\0\x01\0",
    'quo"te \\ {a,b} NULL',
    "é ߿ ࠀ ￿ 𐀀 􏿿",
    "new\nline\r\t",
    "",
    "NULL",
    "$1 %s",
)
"""Texts that some store could lose."""


def turn(session_id: str, number: int = 0, *, text: str = "hello", labels: Mapping[str, str] | None = None) -> Commit:
    """Return the end of a session's turn `number`, from 0: two messages, three events, a minute after the last."""
    at = NOW + timedelta(minutes=number)
    bodies = (UserMessage("hi"), AssistantMessage((TextBlock(text),)))
    first = EVENTS * number + 1
    record = SessionRecord(
        session_id,
        NOW,
        at,
        "echo",
        labels=labels or {},
        turns=number + 1,
        steps=number + 1,
        message_count=2 * number + 2,
        last_seq=first + EVENTS - 1,
        last_assistant_text=text,
    )
    messages = tuple(MessageRow(2 * number + n, at, codec.encode(body)) for n, body in enumerate(bodies))
    events = tuple(
        EventRow(seq, seq, at, b'{"type":"turn_started","turn_number":0}') for seq in range(first, first + 3)
    )
    return Commit(record, messages, events, charges=charges_of("echo"))


def step(session_id: str, number: int = 0, *, calls: tuple[KeptCall, ...] = (), **changes: Any) -> Commit:
    """Return the first step of a session's turn `number`, which is open: a prompt, an answer with calls, three events.

    It follows `turn` of the numbers before; `changes` are those of the open turn.
    """
    whole, uses = turn(session_id, number), tuple(ToolUseBlock(f"call-{at}", "look", {}) for at in range(3))
    first, answer = whole.messages
    before, at = 2 * number, whole.record.last_seq
    opened_turn = OpenTurn(
        began=NOW,
        first_seq=at - EVENTS + 1,
        kept_seq=at,
        prompt_at=before,
        start=TurnStart(before, number, NO_USAGE, NOTHING_SPENT),
        calls=1,
    )
    record = whole.record.changed(turns=number, turn_open=True, turn=opened_turn.changed(**changes))
    messages = first, attrs.evolve(answer, body=codec.encode(AssistantMessage(uses)))
    return attrs.evolve(whole, record=record, messages=messages, calls=calls, settles=True, charges=())


def kept(place: int, state: CallState = "begun", result: str | None = None) -> KeptCall:
    """Return the state of one of the calls of `step`; a result makes it `done`."""
    if result is not None:
        return KeptCall(f"call-{place}", place, "done", ToolResult(f"call-{place}", result))
    return KeptCall(f"call-{place}", place, state)


def wait(number: int = 0, reason: WaitReason = "approval", **changes: Any) -> Wait:
    """Return what call `number` of `step` waits for, since so many minutes after `NOW`."""
    since = NOW + timedelta(minutes=number)
    begun = Wait(f"call-{number}", reason, "waiting", "look", {}, "callback", since, since + timedelta(days=36_500))
    return begun.changed(**changes)


def charges_of(model: str, cost: Decimal | None = Decimal("0.0001")) -> tuple[Charge, ...]:
    """Return the charges of a turn with one call of a model."""
    return Charge(model, Usage(10, 5, 2, 3, cost=cost)), Charge(model, turns=1)


def updated(commit: Commit, **changes: Any) -> Commit:
    """Return a commit of another record; changes of its options are named as those of the record."""
    names = {field.name for field in attrs.fields(type(commit.record.options))}
    options = attrs.evolve(commit.record.options, **{name: changes.pop(name) for name in names & changes.keys()})
    return attrs.evolve(commit, record=attrs.evolve(commit.record, options=options, **changes))


def used(session_id: str, number: int = 0, tenant: str = "default", cost: Decimal | None = Decimal("0.0001")) -> Commit:
    """Return a turn of a tenant, an hour after the one before it; its model has a price or none."""
    commit = updated(turn(session_id, number), tenant=tenant, updated_at=NOW + timedelta(hours=number))
    return attrs.evolve(commit, charges=charges_of("echo" if cost else "free", cost))


def entry(step: int, head: int, summary: str = "so far") -> CompactionEntry:
    """Return a move of the head to a position, before a step."""
    return CompactionEntry(step, NOW, head, 9, 4, summary, 30)


def moved(commit: Commit, to: CompactionEntry, **changes: object) -> Commit:
    """Return a commit that moves the head too."""
    marks = {"head": to.head, "compactions": 1, "last_compaction_step": to.step, **changes}
    record = attrs.evolve(commit.record, **marks)  # type: ignore[arg-type]
    return attrs.evolve(commit, record=record, compaction=to)


@asynccontextmanager
async def opened(
    path: Path,
    *,
    runner: Runner = inline_runner,
    holder: Holder | None = None,
    **config: Any,
) -> AsyncIterator[SqliteStore]:
    """Open the store in a folder `store` below `path`, and close it in the end; a `holder` goes on after that."""
    store = await SqliteStore.open(StoreConfig(path / "store", **config), runner=runner, holder=holder)
    try:
        yield store
    finally:
        await store.aclose(leave=holder is None)


async def written(store: SqliteStore, *operations: Operation[Any]) -> list[Any]:
    """Write the operations as one group; each must succeed."""
    outcomes = await store.write(operations)
    assert not [outcome for outcome in outcomes if isinstance(outcome, WarrenError)], outcomes
    return outcomes


def causes(outcomes: list[Any]) -> list[str | None]:
    """Return each outcome's `cause`, "ok" for one that is no error."""
    return [outcome.cause if isinstance(outcome, WarrenError) else "ok" for outcome in outcomes]


def of_text(text: str) -> Commit:
    """Return a turn with the text wherever a caller's text can be."""
    commit = turn("id" + text, text=text, labels={"label" + text: text})
    said = MessageRow(0, commit.record.updated_at, codec.encode(UserMessage(text)))
    titled = updated(commit, title=text, model="model" + text)
    charges = charges_of("model" + text)
    return attrs.evolve(
        titled, messages=(said, *commit.messages[1:]), creation=Creation("key" + text, {"a": "b"}), charges=charges
    )


def child(session_id: str, parent: str = "a", *, limit: int = 9, waits: bool = False, **place: Any) -> Delegate:
    """Return the operation that makes a child."""
    delegation = Delegation(parent, **place)
    record = SessionRecord(session_id, NOW, NOW, "m \0", message_count=1, delegation=delegation)
    messages = tuple(attrs.evolve(each, position=at) for at, each in enumerate(turn(session_id).messages[:1]))
    prompt = Input(f"prompt of {session_id}", "queue", "work \0", NOW, FIRST_PROMPT)
    return Delegate(record, messages, prompt, limit, waits)
