"""The homes agree: a sequence of operations has the same results in each, and leaves the same behind."""

from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.conformance.homes import homes_here, put
from tests.storage.samples import NOW, kept, step, turn, wait
from warren.base.errors import WarrenError
from warren.conversation.categories import Decision
from warren.conversation.open_turn import KeptCall
from warren.conversation.waits import WAIT_REASONS, Wait
from warren.storage.operations import (
    Claim,
    Commit,
    Delete,
    EndInputs,
    InputOutcome,
    Label,
    Lease,
    Operation,
    Release,
    StoreAnswer,
)
from warren.storage.queries import (
    ANY_TENANT,
    NextWake,
    OpenTurns,
    OpenWaits,
    SessionList,
    SessionRow,
    SessionStart,
    StoredEvents,
    StoredHistory,
    StoredMessages,
    StoredWait,
    WaitingInputs,
    WaitingSessions,
    WaitList,
)
from warren.storage.store import Store

IDS = ("a", "b")
SESSIONS = st.sampled_from(IDS)
LEASES = st.builds(Lease, st.integers(1, 3))
TAKEN = st.builds(InputOutcome, st.sampled_from(((), (1,), (2,), (1, 3))), st.sampled_from((b"", b"{}")))
CALLS = st.sampled_from(((), (kept(0), kept(1, "waiting")), (kept(1, result="x"),), (kept(2), kept(0, result=""))))
ANSWERED = wait(0, state="answered", decision=Decision(allow=True))
WAITS = st.sampled_from(
    ((), (wait(0), wait(1, "client")), (ANSWERED,), (wait(2, "background"), wait(0, "client", state="settled")))
)
WAKES = st.sampled_from((None, NOW - timedelta(days=30), NOW + timedelta(days=36500)))
CHANGES = st.sampled_from(({"n": "1"}, {"n": None, "m": "2"}))


@attrs.frozen
class Turn:
    """The next turn of a session, or one that repeats an earlier one.

    Attributes:
        session_id: the session.
        lease: the lease under which it is stored.
        inputs: the inputs that it took.
        repeats: whether it is an earlier one.
        calls: the calls of a first step that leaves it open; None if it ends.
        waits: what tool calls wait for from then on.
        wakes: the time up to which the turn sleeps that is left open.
    """

    session_id: str
    lease: Lease
    inputs: InputOutcome
    repeats: bool
    calls: tuple[KeptCall, ...] | None = None
    waits: tuple[Wait, ...] = ()
    wakes: datetime | None = None

    def commit(self, stored: int) -> Commit:
        """Return it for a session of so many turns, each of two messages."""
        number = max(0, stored - 1) if self.repeats else stored
        ended = turn(self.session_id, number, labels={"of": "turn"})
        made = ended if self.calls is None else step(self.session_id, number, calls=self.calls, wakes=self.wakes)
        settles = self.calls is None or not self.repeats
        lease = self.lease if stored else Lease(1)
        return attrs.evolve(made, lease=lease, inputs=self.inputs, settles=settles, waits=self.waits)


STEPS = st.one_of(
    st.builds(Turn, SESSIONS, LEASES, TAKEN, st.booleans()),
    st.builds(Turn, SESSIONS, st.just(Lease(1)), TAKEN, st.just(value=False)),
    st.builds(Turn, SESSIONS, st.just(Lease(1)), TAKEN, st.booleans(), CALLS, WAITS, WAKES),
    st.builds(StoreAnswer, SESSIONS, st.sampled_from((ANSWERED, wait(1, "client", state="settled"))), LEASES),
    st.builds(lambda sid, key: put("say", key=key, session_id=sid, limit=2), SESSIONS, st.sampled_from((None, "k"))),
    st.builds(EndInputs, SESSIONS, TAKEN),
    st.builds(Claim, SESSIONS),
    st.builds(Release, SESSIONS, LEASES),
    st.builds(Label, SESSIONS, CHANGES, st.sampled_from((None, "title"))),
    st.builds(Delete, SESSIONS),
)


EXAMPLES: Final = settings().max_examples // (4 if len(homes_here()) > 2 else 1)
"""Fewer if one of the homes is a server, whose database takes a second for each example."""


@settings(max_examples=EXAMPLES)
@given(st.lists(STEPS, max_size=14))
async def test_every_home_does_the_same(steps: list[Turn | Operation[Any]]) -> None:
    """Results, refusals and all that can be read of the sessions are the same after each step."""
    with TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(home(Path(folder))) for home in homes_here()]
            for each in steps:
                record = await stores[0].read(SessionRow(each.session_id, ANY_TENANT))
                operation = (
                    each.commit(0 if record is None else record.message_count // 2) if isinstance(each, Turn) else each
                )
                first, *others = [await outcome(store, operation) for store in stores]
                assert all(other == first for other in others), operation
                here, *elsewhere = [await contents(store) for store in stores]
                assert all(other == here for other in elsewhere), operation


async def outcome(store: Store, operation: Operation[Any]) -> object:
    """Return the result of an operation, or the type and the cause of its refusal."""
    (found,) = await store.write([operation])
    if isinstance(found, WarrenError):
        return type(found), found.cause
    return attrs.asdict(found, filter=lambda field, _: field.name != "change") if attrs.has(type(found)) else found


async def contents(store: Store) -> list[object]:
    """Return all that can be read of the sessions."""
    found: list[object] = [await store.read(SessionList("default")), list(await store.read(WaitingSessions()))]
    found += [await store.read(OpenTurns(ANY_TENANT)), await store.read(NextWake())]
    found.append(sorted(await store.read(WaitList("default", WAIT_REASONS)), key=repr))  # many began at one time
    found.append(await store.read(OpenWaits(IDS)))
    for each in IDS:
        found += [
            await store.read(SessionStart(each)),
            await store.read(StoredMessages(each)),
            await store.read(StoredHistory(each, "default")),
        ]
        found += [await store.read(StoredEvents(each)), await store.read(WaitingInputs(each, ANY_TENANT))]
        found += [await store.read(StoredWait(each, "default", f"call-{at}", WAIT_REASONS)) for at in range(3)]
    return found
