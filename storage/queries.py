"""The reads that a store answers: each query is one value, typed by its answer, that sees one state of the store.

The values know nothing of the store that answers them: each home of sessions (`warren.storage.sqlite` and others) has a
table `QUERIES` with a function for each kind of query.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, Generic, TypeVar

import attrs

from warren.agents.spec import StoredAgent
from warren.base.nodes import Node
from warren.base.values import frozen
from warren.calls.creation import Created
from warren.calls.operators import AuditRequest
from warren.conversation.attachments import Attachment
from warren.conversation.inputs import Numbered
from warren.conversation.records import MessageRow, SessionRecord
from warren.conversation.schedules import Run, Schedule
from warren.conversation.triggers import Delivery, Trigger
from warren.conversation.views import ChildCount, TurnState
from warren.conversation.waits import Wait, WaitReason
from warren.conversation.webhooks import Post, PostState, Webhook
from warren.reports.audit import AuditPage
from warren.reports.ledger import By, Figures
from warren.storage.results import Context, Held, Lost, News, Replay, Rows, StoredPage, StoredSession

R_co = TypeVar("R_co", covariant=True)
ANY_TENANT: Final = None
"""The tenant of a query that the process asks for itself, not for a caller."""


class Query(Generic[R_co]):
    """One read of a store; `R_co` is the type of its answer."""


@frozen
class OfSession(Query[R_co]):
    """A read about one session; a session of another tenant is answered as one that is not here.

    Attributes:
        session_id: the session.
        tenant: the tenant of the caller, or `ANY_TENANT`.
    """

    session_id: str
    tenant: str | None


# -- one session, for its callers and for this process


@frozen
class HasSession(Query[bool]):
    """Whether a tenant has a session, or had it before its deletion."""

    session_id: str
    tenant: str


@frozen
class SessionRow(OfSession[SessionRecord | None]):
    """A session's record; None for a session that is not here or was deleted."""


@frozen
class Children(OfSession[ChildCount]):
    """The number of child sessions that a session has. The read costs as much as all of them."""


@frozen
class SessionHolder(OfSession[Node | None]):
    """The living process that has a session, which may be this one; None if there is none, or no such session."""


@frozen
class WaitingInputs(OfSession[Rows[Numbered]]):
    """The inputs that wait for a session, in order."""


@frozen
class WaitingNotices(Query[Rows[tuple[str, Numbered]]]):
    """The notices and the first prompts that wait for some sessions, each with the id of its session, in order."""

    session_ids: Collection[str]


@frozen
class StoredWait(OfSession[Wait | None]):
    """A wait of a session in whatever state; None if there is none of that id for one of the reasons.

    Attributes:
        wait_id: its id.
        reasons: its reason is one of these; the newest counts.
    """

    wait_id: str
    reasons: Collection[WaitReason]


@frozen
class OpenWaits(Query[Mapping[str, Sequence[Wait]]]):
    """The waits of sessions that nobody has answered, the oldest first, by session; one without any is left out."""

    session_ids: Collection[str]


@frozen
class LostEvents(OfSession[Lost | None]):
    """The lost events around an event that a reader was shown; None if it is stored, or may be some day.

    An event that was shown and that no row covers belongs to a turn whose process died before the commit. A living
    process may still store the events above the last number of the session.
    """

    seq: int


@frozen
class StoredHistory(OfSession[StoredPage]):
    """The messages at the `limit` positions from `offset` on, and the compactions that moved the head there.

    Positions do not change when retention removes messages: a page of positions that are gone is empty.
    """

    offset: int = 0
    limit: int = 100


@frozen
class StoredAttachment(OfSession[Attachment | None]):
    """The file of a session with a hash; None for a session without it, even if another session has the file."""

    sha256: str


@frozen
class AttachmentBytes(OfSession[bytes | None]):
    """The `size` bytes of a session's file from `start` on, fewer at its end; None if the session has no such file."""

    sha256: str
    start: int
    size: int


# -- one session, for its actor


@frozen
class SessionStart(Query[StoredSession | None]):
    """A session's record and last event number; None for a session that is not here or was deleted."""

    session_id: str


@frozen
class ModelContext(Query[Context]):
    """The messages for the model of a session of `count` messages with its head at `head`, instructed at `system`.

    A message that cannot be read or is missing has a stand-in, so that positions stay and the session can go on.
    """

    session_id: str
    head: int
    count: int
    system: int = 0


@frozen
class InstructionsBefore(Query[MessageRow | None]):
    """The newest instructions of a session at a position before `at`; None if there are none."""

    session_id: str
    at: int


@frozen
class StoredMessages(Query[tuple[Rows[MessageRow], int]]):
    """The messages at the `limit` positions from `offset` on that are there, and how many the session has.

    None and 0 for a session that is not here or was deleted.
    """

    session_id: str
    offset: int = 0
    limit: int = 100


@frozen
class StoredEvents(Query[Replay]):
    """Rows of the event log that end above `after_seq`, in order, and the number up to which retention removed events.

    There are at most `limit`, fewer if they are long, and none only if there are no more. A row of merged deltas may
    begin at or below `after_seq`: `warren.conversation.log_rows.envelopes` cuts it.
    """

    session_id: str
    after_seq: int = 0
    limit: int = 1000


@frozen
class LastStored(Query[int | None]):
    """The number of the last event up to a number that is stored, or that retention has removed.

    None for a session that is not here or was deleted.
    """

    session_id: str
    up_to: int


@frozen
class WasTold(Query[bool]):
    """Whether a peer's input with a text that begins so waits for a session, or is in its conversation."""

    session_id: str
    input_id: str
    source: str
    beginning: str


@frozen
class HandoverAnswer(Query[bool | None]):
    """Whether a session that was asked for is free now; None as long as there is no answer."""

    session_id: str


# -- the sessions of a tenant


@frozen
class InTurn:
    """A filter of sessions by the state of their open turns.

    The store tells the state of a turn by its row, unless this process has the turn in memory.

    Attributes:
        state: the state.
        here: sessions of this process whose turns have that state in memory.
        others: sessions of this process whose turns have another state in memory.
    """

    state: TurnState
    here: Collection[str] = ()
    others: Collection[str] = ()


@frozen
class SessionList(Query[Rows[SessionRecord]]):
    """A page of the sessions that carry all of `labels`: newest `updated_at` first, then by id.

    A damaged row takes a place of the page, and is named beside it. The read costs as much as the page and `offset`,
    for histories of any length, also with `agent`; with `labels` that few of many sessions carry, as an index of all
    sessions; with `in_turn` as all sessions with an open turn, with `delegated_by` as all children of that session.
    """

    tenant: str
    offset: int = 0
    limit: int = 50
    labels: Mapping[str, str] = attrs.field(factory=dict)
    include_archived: bool = False
    in_turn: InTurn | None = None
    delegated_by: str | None = None
    agent: str | None = None


@frozen
class WaitList(Query[Rows[tuple[str, Wait, str | None]]]):
    """A page of the waits of all sessions of a tenant that nobody has answered in time, the oldest first.

    One whose time is over is left out, though no process may have told its call. Each comes with the id of its session
    before it, and the title behind it.

    Attributes:
        tenant: the tenant.
        reasons: the reasons that count.
        offset: how many are passed over.
        limit: how many are returned at most.
    """

    tenant: str
    reasons: Collection[WaitReason]
    offset: int = 0
    limit: int = 50


@frozen
class ScheduleRow(Query[Schedule | None]):
    """A schedule of a tenant; None if there is none of that id."""

    tenant: str
    schedule_id: str


@frozen
class ScheduleList(Query[Rows[tuple[Schedule, Sequence[tuple[Run, bytes | None]]]]]):
    """Schedules of a tenant, each with its runs, the newest first, and the outcomes of their prompts.

    An outcome is `UNKNOWN` while the prompt waits and while its turn runs, and None if no prompt of the run is known.

    Attributes:
        tenant: the tenant.
        session_id: only those whose prompts this session gets.
        schedule_id: only the one of this id.
        limit: the most of them.
        offset: the number of schedules to skip, from the oldest one.
    """

    tenant: str
    session_id: str | None = None
    schedule_id: str | None = None
    limit: int = 50
    offset: int = 0


@frozen
class NextDue(Query[datetime | None]):
    """The earliest time at which a schedule is due; None if none is."""


@frozen
class TriggerRow(Query[Trigger | None]):
    """A trigger of a tenant, or of `ANY_TENANT`; None if there is none of that id."""

    tenant: str | None
    trigger_id: str


@frozen
class TriggerList(Query[Rows[tuple[Trigger, Sequence[tuple[Delivery, bytes | None]]]]]):
    """Triggers of a tenant, each with its deliveries, the newest first, and the outcomes of their prompts.

    An outcome is `UNKNOWN` while the prompt waits and while its turn runs, and None if no prompt is known.

    Attributes:
        tenant: the tenant.
        session_id: only those whose prompts this session gets.
        trigger_id: only the one of this id.
        limit: the most of them.
        offset: the number of triggers to skip, from the oldest one.
    """

    tenant: str
    session_id: str | None = None
    trigger_id: str | None = None
    limit: int = 50
    offset: int = 0


@frozen
class DeliveryOf(Query[tuple[Delivery | None, bool]]):
    """A delivery of a trigger, None if it is not known, and whether the prompt of another one waits or runs."""

    tenant: str
    trigger_id: str
    delivery_id: str


@frozen
class AgentVersions(Query[Rows[StoredAgent]]):
    """Versions of agents that a tenant has made sessions of, the newest first.

    Attributes:
        tenant: the tenant.
        name: those of this agent; None for the newest one of each agent, by name.
        version: only this one.
        limit: the most of them.
    """

    tenant: str
    name: str | None = None
    version: str | None = None
    limit: int = 1_000


@frozen
class WebhookRow(Query[Webhook | None]):
    """A webhook of a tenant; None if there is none of that id."""

    tenant: str
    webhook_id: str


@frozen
class WebhookList(Query[Rows[tuple[Webhook, int, int]]]):
    """Webhooks of a tenant, each with the number of its pending deliveries and that of its dead ones.

    Attributes:
        tenant: the tenant.
        session_id: only those that are told of this session alone.
        webhook_id: only the one of this id.
        limit: the most of them.
        offset: the number of webhooks to skip, from the oldest one.
    """

    tenant: str
    session_id: str | None = None
    webhook_id: str | None = None
    limit: int = 50
    offset: int = 0


@frozen
class DeliveryList(Query[Rows[Post]]):
    """Deliveries of a webhook of a tenant, the newest first.

    Attributes:
        tenant: the tenant.
        webhook_id: the webhook.
        state: only those in this state.
        limit: the most of them.
        offset: the number of deliveries to skip.
    """

    tenant: str
    webhook_id: str
    state: PostState | None = None
    limit: int = 50
    offset: int = 0


@frozen
class NextDelivery(Query[datetime | None]):
    """The earliest time at which a delivery is due; None if none is."""


@frozen
class PendingDeliveries(Query[int]):
    """How many deliveries of all tenants wait for an attempt."""


@frozen
class PeerNamed(Query[str | None]):
    """The session that has a name among the peers of a tenant."""

    tenant: str
    name: str


@frozen
class CreatedUnder(Query[Created | None]):
    """The session that was created under an idempotency key, even if it was deleted since."""

    tenant: str
    key: str


@frozen
class SessionCount(Query[int]):
    """How many sessions are neither archived nor deleted: all of a tenant, or those that a principal has created."""

    tenant: str
    owner: str | None = None


@frozen
class OwnedSessions(Query[Sequence[str]]):
    """The ids of the sessions that a principal has created and that are not deleted."""

    tenant: str
    owner: str


@frozen
class StoredBytes(Query[int]):
    """The bytes of a tenant's messages, inputs, events, waits and files, or of those of an owner's sessions.

    A file that sessions of several owners have counts for each of them. Trap: the read takes the longer the more there
    are.
    """

    tenant: str
    owner: str | None = None


@frozen
class TokensSince(Query[int]):
    """The input and output tokens in the ledger since the hour of a time, this hour included.

    With a `payer`, those that count for its limit. It reads a row for each hour, payer, model and process, by the
    primary key.
    """

    tenant: str
    hour: datetime
    payer: str | None = None


# -- the whole store, or a tenant's part of it


@frozen
class LedgerSums(Query[Mapping[str, Figures]]):
    """The figures of the ledger, summed by a group, by their keys.

    By `session` and `label`, they are the whole figures of the sessions that are stored, and whose last turn ended
    within the time. The key of a label is its name and value, as in `team=red`.

    Attributes:
        tenant: the tenant, or `ANY_TENANT` for all together.
        by: the group.
        since: a time in the first hour that counts; None for all from the beginning on.
        until: hours that begin then or later do not count; None for all up to now.
    """

    tenant: str | None
    by: By
    since: datetime | None = None
    until: datetime | None = None


@frozen
class AuditEntries(Query[AuditPage]):
    """A part of the audit: of a tenant, or of all and of none. The tenant of the request does not matter here."""

    tenant: str | None
    wanted: AuditRequest


@frozen
class LivingNodes(Query[Sequence[Node]]):
    """The living processes that are registered in the store, the oldest first, this one among them."""


@frozen
class Holders(Query[Mapping[str, Held]]):
    """The holder of each session, with the epoch of its lease, and the number of its last event.

    A session that is not here or was deleted is left out.
    """

    session_ids: Collection[str]


@frozen
class WaitingSessions(Query[Mapping[str, str]]):
    """The sessions with an open turn, a notice, or an input that waits and begins a turn, that no other process has.

    Each has its tenant; the oldest session is the first. An input that waits for a time is left out until then. A turn
    whose calls all wait is left out until it wakes, and so is all else of its session. A session of which a call runs
    in the background is one of them.
    """


@frozen
class NextWake(Query[datetime | None]):
    """The next time at which a turn wakes whose calls all wait, or an input is due (UTC); None if there is none.

    It may be one of any process.
    """


@frozen
class OpenTurns(Query[Mapping[str, int]]):
    """How many open turns no living process has, by tenant: they go on when one takes them up.

    Turns whose calls all wait are not among them.

    Attributes:
        tenant: the tenant, or `ANY_TENANT` for all of them; a tenant without such a turn is left out.
    """

    tenant: str | None


@frozen
class SleepingTurns(Query[int]):
    """How many turns sleep whose calls all wait, whichever process has their sessions."""


@frozen
class StoreNews(Query[News]):
    """The changes of other processes that concern this one: see `News`.

    Attributes:
        watched: the sessions whose last event number is asked for.
        inbox_after: the position in the inboxes up to which the last look went.
    """

    watched: Sequence[str]
    inbox_after: int


@frozen
class KnownTenants(Query[Sequence[str]]):
    """The tenants that have sessions or are in the ledger, by their names."""


@frozen
class DueErasures(Query[Rows[str]]):
    """The deleted sessions of which something may be left elsewhere."""


@frozen
class UnsureFiles(Query[bool]):
    """Whether there are files that the operation `Sweep` has to look at."""
