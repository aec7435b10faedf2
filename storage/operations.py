"""The changes that a store can be asked to make: each operation is one value, applied whole or not at all.

The values know nothing of the store that applies them: each home of sessions (`warren.storage.sqlite` and others) has
code of its own for each kind of operation.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, Generic, Protocol, TypeVar

import attrs

from warren.agents.spec import AgentSpec
from warren.base.principals import LOCAL
from warren.base.values import frozen, value
from warren.calls.creation import Creation
from warren.calls.sessions import ForkRequest
from warren.conversation.attachments import Blob
from warren.conversation.delegation import Delegation
from warren.conversation.inputs import Input, Numbered
from warren.conversation.log_rows import LogItem, row_of
from warren.conversation.open_turn import KeptCall
from warren.conversation.records import CompactionEntry, EventRow, MessageRow, SessionRecord, Spoken
from warren.conversation.schedules import Run, Schedule
from warren.conversation.triggers import Delivery, Trigger
from warren.conversation.waits import Wait
from warren.conversation.webhooks import Candidate, Post, Webhook
from warren.reports.audit import AuditEntry
from warren.reports.ledger import Charge

R_co = TypeVar("R_co", covariant=True)
MAX_OUTCOMES: Final = 1_000
"""Inputs with a key of which a session remembers the outcome, besides that of the prompt that it was created with."""
UNKNOWN: Final = b""
"""The outcome of an input that a turn took and that has not ended."""


class Operation(ABC, Generic[R_co]):
    """One change of a store; `R_co` is the type of its result."""

    @property
    @abstractmethod
    def session_id(self) -> str:
        """The session it changes."""


class OfNoSession(Operation[R_co]):
    """A change of no session, or of several."""

    @property
    def session_id(self) -> str:
        """No session."""
        return ""


@frozen
class Lease:
    """The right of a process to write a session, until another process takes the session over.

    Attributes:
        epoch: rises whenever the holder changes; a write under an older epoch is refused.
    """

    epoch: int


FIRST: Final = Lease(1)
"""The lease of a session that its process has just created."""


@frozen
class InputOutcome:
    """The numbers of inputs that no longer wait, and their outcome.

    Attributes:
        numbers: the inputs' numbers in the session's inbox.
        outcome: the ending of their turn as JSON, or `UNKNOWN` while the turn runs.
    """

    numbers: tuple[int, ...] = ()
    outcome: bytes = UNKNOWN


NOTHING: Final = InputOutcome()


@frozen
class Sent:
    """A notice for another session, which the change that it is a part of puts into the inbox of that one.

    It is dropped if the session is not there, or is archived.

    Attributes:
        session_id: the session.
        input: the notice.
    """

    session_id: str
    input: Input


@value
class Commit(Operation[None]):
    """Store the end of a turn: the session's record and the rows that the turn added.

    The first commit of a session creates it, and gives its lease to the process that writes. Fails with
    SessionNotFoundError for a deleted session, with StoreError(cause="lease_lost") if another process has taken the
    session over, with StoreError(cause="conflict") if a message of that position or an event of that number is there
    already, and with StoreError(cause="key_used") if the creation's key has created a session. Fails with
    InvalidParamsError if another session has the record's name among peers.

    Attributes:
        record: the session as it is from now on; `created_at` and `labels` count on the first commit only, and a
            session that is archived in the store stays archived.
        messages: new messages.
        events: new rows of the event log, or events that are to be encoded as rows.
        compaction: the move of the record's head, if this commit moves it.
        lease: the lease under which the session is written.
        inputs: the inputs that the turn took, with its outcome.
        creation: the key under which the session is created; on its first commit only.
        charges: entries for the ledger that are stored with it, in the hour of the record's `updated_at`.
        hurried: whether the lock of another process is waited for a moment only: the caller has waited for it before.
        audit: the entry of the audit for the creation of the session; on its first commit only.
        calls: tool calls of an open turn whose states change with it.
        waits: things that tool calls wait for, which are new or have changed.
        settles: whether the states of all tool calls go: their results are in the messages, or the turn has ended. All
            waits of the turn are settled with it; those of the reason `background` are not of the turn any more.
        base: the `message_count` and the `last_seq` of the record that it follows. Fails with
            StoreError(cause="conflict") if the store has another one, or none. None on the first commit.
        sends: notices for other sessions.
    """

    record: SessionRecord
    messages: tuple[MessageRow, ...] = ()
    events: tuple[EventRow | LogItem, ...] = ()
    compaction: CompactionEntry | None = None
    lease: Lease = FIRST
    inputs: InputOutcome = NOTHING
    creation: Creation | None = None
    charges: tuple[Charge, ...] = ()
    hurried: bool = False
    audit: AuditEntry | None = None
    calls: tuple[KeptCall, ...] = ()
    waits: tuple[Wait, ...] = ()
    settles: bool = False
    base: tuple[int, int] | None = None
    sends: tuple[Sent, ...] = ()

    @property
    def session_id(self) -> str:
        """The session it changes."""
        return self.record.session_id

    @property
    def size(self) -> int:
        """The bytes that it adds to the store, about. Trap: this encodes the events."""
        bodies = [each.body for each in self.messages] + [row_of(each).body for each in self.events]
        text = self.record.last_assistant_text or ""
        results = [*(each.result for each in self.calls), *(each.result for each in self.waits)]
        kept = sum(len(each.content) for each in results if each is not None)
        return sum(map(len, bodies)) + len(self.inputs.outcome) + len(text) + kept


@frozen
class Claimed:
    """The state of a session for the actor that has taken its lease.

    Attributes:
        record: the session.
        lease: the lease under which it is written.
        inbox: the inputs that wait for it.
        inbox_to: inputs up to this number were given to the inbox before; those that do not wait have their outcome.
        lost: a description of each damaged input, and of what is damaged of an open turn; such inputs no longer wait,
            and such a turn is open without anybody who could go on with it.
        calls: the tool calls of its open turn that have a state, in the order of the answer.
        waits: the waits of its calls that are not settled.
    """

    record: SessionRecord
    lease: Lease
    inbox: tuple[Numbered, ...] = ()
    inbox_to: int = 0
    lost: tuple[str, ...] = ()
    calls: tuple[KeptCall, ...] = ()
    waits: tuple[Wait, ...] = ()


@frozen
class LeaseHeld:
    """The answer to a claim if another process has the lease. `holder` is the name of that process."""

    holder: str


@frozen
class Claim(Operation[Claimed | LeaseHeld | None]):
    """Take a session's lease; None if there is no such session.

    A lease is free if its holder put it back, or if its holder is dead; after a dead holder new events are numbered far
    above those that it may have shown. Taking a lease that this process has changes nothing.

    Attributes:
        session_id: the session.
        went_back_at: the time at which the store was found to have gone back; None if it was not. Events and epochs of
            a session that has not changed since are numbered as after a dead holder: the later ones are gone.
    """

    session_id: str
    went_back_at: datetime | None = None


@frozen
class Release(Operation[None]):
    """Put a session's lease back: all that was shown of it is stored. Without effect on a lease that was lost."""

    session_id: str
    lease: Lease


@frozen
class Archive(Operation[None]):
    """Retire a session. Idempotent; fails with SessionNotFoundError if there is none.

    Fails with StoreError(cause="leased") if another process has the session, with StoreError(cause="lease_lost") if one
    had it since: it may have left a turn open, which has to be ended first. Each child of the session that is not
    archived gets the notice `archive`.

    Attributes:
        session_id: the session.
        audit: the entry of the audit, which is added if the session was not retired before.
        lease: the lease under which the session was loaded.
        sends: notices for other sessions, which are sent if the session was not retired before.
    """

    session_id: str
    audit: AuditEntry | None = None
    lease: Lease = FIRST
    sends: tuple[Sent, ...] = ()


@frozen
class Attach(Operation[None]):
    """Store the bytes of files for messages of a session, whichever process has that.

    Bytes that a session of the tenant has already are not stored again. They stay until the last session that has them
    is deleted. Fails with SessionNotFoundError if there is no such session.
    """

    session_id: str
    blobs: tuple[Blob, ...] = attrs.field(repr=False)


@frozen
class Sweep(OfNoSession[None]):
    """Remove the files that dead processes have attached for messages that were never stored.

    A file stays if a message, an event, an input, a tool call or a wait of its session names it, and if a living
    process has the session.
    """


@frozen
class Reserve(Operation[None]):
    """Find out whether the store has room for a turn of `size` bytes, and change nothing.

    Fails with the StoreError that a commit of this size would fail with.
    """

    session_id: str
    size: int


@frozen
class Labelled:
    """A session with its new labels and title, and the number of the change, by which newer ones are known."""

    record: SessionRecord
    change: int


@frozen
class Label(Operation[Labelled]):
    """Change a session's labels, its title and its allowed tools; None removes a label. A running turn goes on.

    Fails with SessionNotFoundError if there is no such session or it is archived, with StoreError(cause="leased") if
    another process has the session: that one would go on showing the old labels. A process that counts as dead stores
    nothing more under the lease that it had if tools are named: it would allow them again.

    Attributes:
        session_id: the session.
        changes: the labels to change.
        title: the new title; None leaves it as it is.
        ask_again: names of tools that are no longer allowed, also by answers that their calls have not got yet.
    """

    session_id: str
    changes: Mapping[str, str | None]
    title: str | None = None
    ask_again: Collection[str] = ()


@frozen
class Delete(Operation[None]):
    """Remove a session and all that is stored of it, except its id: no later write brings it back.

    Copies kept elsewhere, as in the semantic memory, are due to be erased until `Erased` says that they were. Deleting
    a session again does nothing. Fails with SessionNotFoundError for an id that was never here, with
    StoreError(cause="leased") if another process has the session. Each child of the session gets the notice `delete`.

    Attributes:
        session_id: the session.
        audit: the entry of the audit, which is added if the session was not deleted before.
        sends: notices for other sessions, which are sent if the session was not deleted before.
    """

    session_id: str
    audit: AuditEntry | None = None
    sends: tuple[Sent, ...] = ()


@frozen
class Erased(Operation[None]):
    """Note that nothing is left of a deleted session anywhere."""

    session_id: str


@frozen
class Fork(Operation[SessionRecord]):
    """Make a session of the beginning of another one, whichever process has that; returns its record.

    Fails with SessionNotFoundError if there is no such session, and with InvalidParamsError if it cannot be cut there.

    Attributes:
        session_id: id of the fork.
        now: time of its creation (UTC).
        wanted: the original, and the fork's own values.
        owner: the name of the principal that makes it. The tenant is that of the original.
        audit: the entry of the audit.
        spoken: what the original has had of its agent at the wanted place; None takes what it has now.
    """

    session_id: str
    now: datetime
    wanted: ForkRequest
    owner: str = LOCAL.name
    audit: AuditEntry | None = None
    spoken: Spoken | None = None


@frozen
class Enqueued:
    """The answer of an inbox to an input.

    Attributes:
        numbered: the input and its number; if an earlier input has the same key, that one.
        fresh: whether the input is new.
        outcome: the stored outcome of an earlier input with the same key; None while that one waits.
        elsewhere: whether another process has the session: that one finds the input in the store.
    """

    numbered: Numbered
    fresh: bool = True
    outcome: bytes | None = None
    elsewhere: bool = False


@frozen
class Enqueue(Operation[Enqueued]):
    """Put an input into a session's inbox with the bytes of its new files, once for each key.

    Fails with SessionNotFoundError, with CapacityExceededError if `limit` inputs wait, with StoreError(cause="leased")
    if another process has the session, unless `anywhere` is true, and with StoreError(cause="lease_lost") if the lease
    under which an input is put in has been taken over.
    """

    session_id: str
    input: Input
    limit: int
    anywhere: bool = False
    blobs: tuple[Blob, ...] = attrs.field(default=(), repr=False)
    lease: Lease | None = None


@frozen
class EndInputs(Operation[None]):
    """Remove inputs without a turn from a session's inbox, with their outcome. Ignores inputs that are not there.

    Without effect on a session that is archived or deleted: its end has told others all that they hear of it. Fails
    with StoreError(cause="lease_lost") if the lease under which the inputs are removed has been taken over.

    Attributes:
        session_id: the session.
        inputs: the inputs and their outcome.
        sends: notices for other sessions.
        lease: the lease of the session, if its turns must not have the inputs meanwhile; None for any.
    """

    session_id: str
    inputs: InputOutcome
    sends: tuple[Sent, ...] = ()
    lease: Lease | None = None


@frozen
class Delegate(Operation[int | None]):
    """Make a session that works for another one, with the prompt of its first turn, and take its lease, `FIRST`.

    Returns the number of the prompt; None if a session of its id is here already: then nothing changes. Fails with
    SessionNotFoundError if the parent is not here or is archived, with CapacityExceededError if the parent has `limit`
    children whose first turn has not ended, and with StoreError(cause="conflict") if the call of the parent no longer
    waits.

    Attributes:
        record: the session; its `delegation` names the parent.
        messages: its first messages.
        prompt: the prompt, under the key `FIRST_PROMPT`.
        limit: the most children of the parent whose end is still to come.
        waits: whether the store has the wait of the parent's call.
        audit: the entry of the audit, which is added if it is new.
        lends: whether it gets a part of the parent's budget here, at most what its own says: see `lending`. Then it
            fails with BudgetExhaustedError if nothing is left, and the parent gets the notice `lend`.
    """

    record: SessionRecord
    messages: tuple[MessageRow, ...]
    prompt: Input
    limit: int
    waits: bool = False
    audit: AuditEntry | None = None
    lends: bool = False

    @property
    def session_id(self) -> str:
        """The new session."""
        return self.record.session_id

    @property
    def place(self) -> Delegation:
        """Its place below its parent."""
        place = self.record.delegation
        if place is None:
            raise ValueError("a child has a parent")
        return place


@frozen
class StoreAnswer(Operation[None]):
    """Store the answer to a wait, beside whatever else the session does: its open turn goes on at once then.

    Stores the wait as it is given, and sets the `wakes` of the session's turn to None, unless the reason of the wait is
    `background`: that one is not of the turn, or the turn `sleeps` on, as it waits for more. Fails with
    StoreError(cause="lease_lost") if another process has taken the session over, and with SessionNotFoundError if it
    was archived or deleted: its calls wait for nothing.

    Attributes:
        session_id: the session.
        wait: the wait with its answer.
        lease: the lease under which the session is written.
        audit: the entries of the audit.
        others: the other waits of the turn that the answer is one to, too, with it.
        inputs: the notices that have brought the answer.
        sleeps: whether the turn does not go on as yet.
    """

    session_id: str
    wait: Wait
    lease: Lease
    audit: tuple[AuditEntry, ...] = ()
    others: tuple[Wait, ...] = ()
    inputs: InputOutcome = NOTHING
    sleeps: bool = False


@frozen
class RequestHandover(Operation[bool]):
    """Ask the process that has a session to hand it over; return whether there is one, alive, to be asked.

    Fails with SessionNotFoundError if there is no such session.
    """

    session_id: str


@frozen
class DeclineHandover(Operation[None]):
    """Refuse to hand a session over: it is at work."""

    session_id: str


@frozen
class Audit(OfNoSession[None]):
    """Add entries to the audit about something that is no change of the store."""

    entries: tuple[AuditEntry, ...]


class Owned(Protocol):
    """Something that a tenant has made, and that may be of one session: a schedule, a trigger, a webhook."""

    @property
    def tenant(self) -> str:
        """The tenant."""

    @property
    def session_id(self) -> str | None:
        """The one session; None if it is of none, or of several."""

    @property
    def key(self) -> str | None:
        """The idempotency key under which it was made."""


Thing = TypeVar("Thing", bound=Owned)


@frozen
class Put(Operation[Thing]):
    """Store something that a tenant has made, new or in the place of the one with its id; return what is stored.

    Fails with SessionNotFoundError if its session is not there, is archived or of another tenant, with
    CapacityExceededError if the tenant has `limit` of its kind, and with InvalidParamsError if there is none to
    replace.

    Attributes:
        thing: the thing. If another one of its kind was made under its key, that one is returned, and nothing changes.
        limit: the most of its kind that a tenant has.
        replaces: whether it is there already.
        audit: the entry of the audit, which is added if something changes.
    """

    thing: Thing
    limit: int
    replaces: bool = False
    audit: AuditEntry | None = None

    @property
    def session_id(self) -> str:
        """Its one session; empty if it has none."""
        return self.thing.session_id or ""


@frozen
class PutSchedule(Put[Schedule]):
    """Store a schedule: see `Put`."""


@frozen
class DropSchedule(OfNoSession[bool]):
    """Remove a schedule with its runs; return whether it was there.

    Attributes:
        tenant: the tenant of the caller.
        schedule_id: its id.
        audit: the entry of the audit, which is added if it was there.
    """

    tenant: str
    schedule_id: str
    audit: AuditEntry | None = None


@frozen
class DueSchedule:
    """A schedule that is due.

    Attributes:
        schedule: the schedule, with the time at which it is due.
        busy: whether the run before has not ended.
    """

    schedule: Schedule
    busy: bool = False


@frozen
class Taken:
    """The answer to `TakeDue`.

    Attributes:
        due: the schedules that are due, the oldest first.
        following: the earliest time after now at which a schedule is due; None if none is.
    """

    due: Sequence[DueSchedule]
    following: datetime | None


@frozen
class TakeDue(OfNoSession[Taken]):
    """Take schedules that are due by the store's clock, for this process alone while it lives; the oldest first.

    Those that it has taken before are among them until they advance.

    Attributes:
        limit: the most of them.
        without: the ids of those that it deals with already.
    """

    limit: int
    without: tuple[str, ...] = ()


@frozen
class Advance(OfNoSession[None]):
    """Let a schedule be due at its next time, and keep what became of the run.

    If the schedule is due at another time meanwhile, it stays so, and a run is kept only if it has fired.

    Attributes:
        schedule_id: the schedule.
        run: the run, by whose time the schedule was due.
        following: the time at which it is due next; None for none.
        problem: the reason why it has ended, if it is another one than its times.
    """

    schedule_id: str
    run: Run
    following: datetime | None
    problem: str | None = None


@frozen
class PutTrigger(Put[Trigger]):
    """Store a trigger: see `Put`."""


@frozen
class DropTrigger(OfNoSession[bool]):
    """Remove a trigger with its deliveries; return whether it was there.

    Attributes:
        tenant: the tenant of the caller.
        trigger_id: its id.
        audit: the entry of the audit, which is added if it was there.
    """

    tenant: str
    trigger_id: str
    audit: AuditEntry | None = None


@frozen
class KeepDelivery(OfNoSession[None]):
    """Keep what became of a delivery. Without effect if the trigger is gone, or the delivery has fired already.

    Attributes:
        trigger_id: the trigger.
        delivery: the delivery.
        problem: the reason why the trigger has ended; None if it has not.
    """

    trigger_id: str
    delivery: Delivery
    problem: str | None = None


@frozen
class PutWebhook(Put[Webhook]):
    """Store a webhook: see `Put`."""


@frozen
class DropWebhook(OfNoSession[bool]):
    """Remove a webhook with its deliveries; return whether it was there.

    Attributes:
        tenant: the tenant of the caller.
        webhook_id: its id.
        audit: the entry of the audit, which is added if it was there.
    """

    tenant: str
    webhook_id: str
    audit: AuditEntry | None = None


@frozen
class TakenDeliveries:
    """The answer to `TakeDeliveries`.

    Attributes:
        due: the deliveries to attempt now, each with its webhook.
        more: whether others are due for which there was no room.
        following: the earliest time after now at which a delivery is due; None if none is.
    """

    due: Sequence[tuple[Post, Webhook]]
    more: bool
    following: datetime | None


@frozen
class TakeDeliveries(OfNoSession[TakenDeliveries]):
    """Take deliveries that are due by the store's clock, for this process alone while it lives.

    Attributes:
        at_work: those that it attempts already, by their ids: they take up room.
    """

    at_work: Mapping[str, Candidate]


@frozen
class EndAttempt(Operation[None]):
    """Store what became of an attempt to deliver. Without effect on a delivery that was removed.

    Attributes:
        delivery: the delivery as it is from now on.
        failed_at: the time at which it failed (UTC); None if it succeeded.
        pauses: the reason why the webhook is paused from now on; None if it goes on.
    """

    delivery: Post
    failed_at: datetime | None
    pauses: str | None = None

    @property
    def session_id(self) -> str:
        """The session of the delivery."""
        return self.delivery.session_id


@frozen
class Resend(OfNoSession[int]):
    """Let dead deliveries be due now, as if they were new; return how many there were.

    Attributes:
        tenant: the tenant of the caller.
        webhook_id: the webhook.
        delivery_id: the one delivery; None for all of the webhook.
    """

    tenant: str
    webhook_id: str
    delivery_id: str | None = None


@frozen
class KeepAgent(OfNoSession[None]):
    """Keep a version of an agent, of which a session of a tenant is to be made, unless it is kept already.

    Attributes:
        tenant: the tenant.
        spec: the agent.
        created_at: the time (UTC).
    """

    tenant: str
    spec: AgentSpec
    created_at: datetime


@frozen
class TidyDeliveries(OfNoSession[int]):
    """Let each webhook keep as many deliveries as it may, the oldest pending and the newest others.

    Pending ones beyond that are dead from now on, others are removed. Returns how many are dead now.
    """
