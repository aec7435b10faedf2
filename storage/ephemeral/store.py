"""The in-memory store: the interface of a store on dicts."""

import math
import secrets
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, TypeVar

import attrs
import trio

from warren.agents.spec import StoredAgent
from warren.base.errors import StoreError, WarrenError
from warren.base.nodes import Announcement
from warren.base.values import define
from warren.calls.creation import Created
from warren.calls.forking import forked, relabelled
from warren.conversation.attachments import Blob
from warren.conversation.inputs import Numbered, retiring
from warren.conversation.records import SessionRecord
from warren.conversation.schedules import KEPT_RUNS, Run, Schedule
from warren.conversation.triggers import KEPT_DELIVERIES, Delivery, Trigger
from warren.conversation.waits import forgetting
from warren.conversation.webhooks import (
    KEPT_DEAD,
    KEPT_DELIVERED,
    KEPT_PENDING,
    Candidate,
    Webhook,
    choose,
)
from warren.reports.audit import AuditEntry
from warren.storage.ephemeral.contents import Contents
from warren.storage.ephemeral.queries import QUERIES
from warren.storage.ephemeral.sessions import Entered, EphemeralSession
from warren.storage.ledger import add_charges
from warren.storage.lending import lend
from warren.storage.membership import SECRET_BYTES, SECRETS, SecretOf
from warren.storage.noticing import notices_of
from warren.storage.operations import (
    FIRST,
    UNKNOWN,
    Advance,
    Archive,
    Attach,
    Audit,
    Claim,
    Claimed,
    Commit,
    DeclineHandover,
    Delegate,
    Delete,
    DropSchedule,
    DropTrigger,
    DropWebhook,
    DueSchedule,
    EndAttempt,
    EndInputs,
    Enqueue,
    Enqueued,
    Erased,
    Fork,
    KeepAgent,
    KeepDelivery,
    Label,
    Labelled,
    Lease,
    Operation,
    Put,
    PutSchedule,
    PutTrigger,
    PutWebhook,
    Release,
    RequestHandover,
    Resend,
    Reserve,
    Sent,
    StoreAnswer,
    Sweep,
    TakeDeliveries,
    TakeDue,
    Taken,
    TakenDeliveries,
    Thing,
    TidyDeliveries,
)
from warren.storage.queries import Query
from warren.storage.refusals import (
    built_on_sand,
    inbox_full,
    key_used,
    name_taken,
    no_schedule,
    no_trigger,
    no_webhook,
    not_found,
    taken_over,
    too_many_children,
    too_many_schedules,
    too_many_triggers,
    too_many_webhooks,
    waits_no_more,
)
from warren.storage.rows import TOO_MANY, in_background, key_of

R = TypeVar("R")
ENDED: Final = 1_000
"""Sessions of which it is remembered that they have ended, with the keys that created them."""
KEEP_EVENTS: Final = 10_000
KEEP_OUTCOMES: Final = 16 * 1024 * 1024


@define(eq=False)
class EphemeralStore(Contents):
    """Sessions in dicts. A session that is archived is gone, as one that is deleted.

    No other process can write here: leases are always free or this process's own.

    Attributes:
        keep_events: rows of each session's event log that are kept, the newest ones.
        keep_outcomes: bytes of the outcomes of inputs with keys that are kept, the newest ones of all sessions.
        noted: see Store.
    """

    keep_events: int = KEEP_EVENTS
    keep_outcomes: int = KEEP_OUTCOMES
    noted: int = 0
    _ended_rows: int = 0
    _outcomes: deque[Entered] = attrs.field(factory=deque)
    _outcome_bytes: int = 0
    _entries: int = 0
    _changes: int = 0
    _closed: bool = False
    _leaves: bool = False
    _secrets: dict[SecretOf, bytes] = attrs.field(
        factory=lambda: {of: secrets.token_bytes(SECRET_BYTES) for of in SECRETS}, repr=False
    )

    lease: ClassVar[float] = 15.0
    group: ClassVar[int] = sys.maxsize
    renewal: ClassVar[float] = 5.0
    proof: ClassVar[float] = math.inf
    patience: ClassVar[float] = math.inf
    lapses: ClassVar[int] = 0
    went_back: ClassVar[int] = 0
    clock_ahead: ClassVar[float | None] = None
    read_fault: ClassVar[WarrenError | None] = None

    # -- writing

    async def aclose(self, *, leave: bool = True) -> None:  # noqa: ARG002 - no other process could take the sessions
        self._closed = True
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def write(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        await trio.lowlevel.cancel_shielded_checkpoint()
        return [self._outcome(operation) for operation in operations]

    def _outcome(self, operation: Operation[Any]) -> Any | WarrenError:
        try:
            return self.apply(operation)
        except WarrenError as exc:
            return exc

    def apply(self, operation: Operation[R]) -> R:
        """Apply one operation, whole or not at all, and return its result. Raises its refusal, as a WarrenError."""
        if self._closed:
            raise _closed()
        result: R = _APPLIERS[type(operation)](self, operation)
        return result

    async def renew(self, announcement: Announcement | None = None) -> bool:
        await self._checkpoint()
        self.announce(announcement)
        return self._leaves

    async def read(self, query: Query[R]) -> R:
        await self._checkpoint()
        found: R = QUERIES[type(query)](self, query)
        return found

    async def ask_to_drain(self, name: str) -> bool:
        await self._checkpoint()
        self._leaves = self._leaves or name == self.said.name
        return name == self.said.name

    async def secret(self, of: SecretOf = "nodes") -> bytes:
        await self._checkpoint()
        return self._secrets[of]

    def commit(self, operation: Commit) -> None:
        """Apply the operation."""
        record, session = operation.record, self.sessions.get(operation.record.session_id)
        self._check_commit(operation, session)
        if session is None:
            session = self._begin(operation)
        else:
            session.record = _merged(session.record, record)
        session.messages.extend(operation.messages)
        session.add_events(operation.events, self.keep_events)
        if operation.compaction is not None:
            session.compactions.append(operation.compaction)
        if operation.inputs.numbers:
            self._keep(session.inbox.store_outcome(operation.inputs))
        if operation.sends:
            self._send(operation.sends)
        if self.webhooks:
            self._note(operation, session)
        if operation.calls or operation.settles:
            session.set_calls(operation.calls, settles=operation.settles)
        if operation.waits:
            session.set_waits(operation.waits)
        if operation.charges:
            add_charges(self.ledger, operation)
        self._changes += 1

    def _send(self, sends: Iterable[Sent]) -> None:
        for each in sends:
            session = self.sessions.get(each.session_id)
            if session is not None:
                session.inbox.add(Numbered(self.next_input(), each.input))

    def _send_down(self, session_id: str, kind: Literal["archive", "delete"]) -> None:
        children = [each for each in self.sessions.values() if each.is_child_of(session_id)]
        self._send([Sent(each.record.session_id, retiring(kind)) for each in children])

    def delegate(self, operation: Delegate) -> int | None:
        """Apply the operation."""
        record, place = operation.record, operation.place
        if record.session_id in self.sessions or record.session_id in self.ended:
            return None
        parent = self._session(place.session_id)
        if operation.waits and not any(
            (each.reason, each.wait_id) == ("child", place.call_id) for each in parent.unanswered
        ):
            raise waits_no_more(place.session_id)
        at_work = sum(each.is_child_of(place.session_id) and each.works_first for each in self.sessions.values())
        if at_work >= operation.limit:
            raise too_many_children(place.session_id, operation.limit)
        if operation.lends:
            inputs, waits = parent.inbox.waiting(), parent.open_waits
            record, notice = lend(operation, parent.record, inputs, waits)
            self._send((notice,))
        self.sessions[record.session_id] = session = EphemeralSession(
            record, list(operation.messages), epoch=FIRST.epoch, held=True
        )
        number = self.next_input()
        session.inbox.add(Numbered(number, operation.prompt))
        self._add(operation.audit)
        self._changes += 1
        return number

    def _check_commit(self, operation: Commit, session: EphemeralSession | None) -> None:
        """Raise the refusal of a commit: it changes nothing."""
        record, creation = operation.record, operation.creation
        if creation is not None and (record.tenant, creation.key) in self.created:
            raise key_used()
        if (
            record.options.peer is not None
            and self.names.get((record.tenant, record.options.peer.name), record.session_id) != record.session_id
        ):
            raise name_taken(record.options.peer.name)
        if session is None:
            if record.session_id in self.ended:
                raise not_found(record.session_id)
            if operation.base is not None:
                raise built_on_sand(record.session_id)
            return
        self._check_lease(session, operation.lease)
        if operation.base not in (None, (session.record.message_count, session.record.last_seq)):
            raise built_on_sand(record.session_id)
        messages, events = operation.messages, operation.events
        if messages and messages[0].position != len(session.messages):
            raise _conflict(record.session_id, f"message {messages[0].position}")
        if events and events[0].seq <= session.last_event:
            raise _conflict(record.session_id, f"event {events[0].seq}")

    def _check_lease(self, session: EphemeralSession, lease: Lease) -> None:
        if not session.held or session.epoch != lease.epoch:
            raise taken_over(session.record.session_id, None)

    def _begin(self, operation: Commit) -> EphemeralSession:
        record, creation = operation.record, operation.creation
        session = EphemeralSession(record, epoch=operation.lease.epoch, held=True)
        self.sessions[record.session_id] = session
        if record.options.peer is not None:
            self.names[record.tenant, record.options.peer.name] = record.session_id
        if creation is not None:
            session.creation = creation.key
            self.created[record.tenant, creation.key] = Created(record.session_id, creation.params)
        self._add(operation.audit)
        return session

    def claim(self, operation: Claim) -> Claimed | None:
        """Apply the operation."""
        session = self.sessions.get(operation.session_id)
        if session is None:
            return None
        if not session.held:
            session.held = True
            session.epoch += 1
        inbox = tuple(session.inbox.waiting()), self.last_input
        kept = session.open_calls, session.open_waits
        return Claimed(session.record, Lease(session.epoch), *inbox, (), *kept)

    def release(self, operation: Release) -> None:
        """Apply the operation."""
        session = self.sessions.get(operation.session_id)
        if session is not None and session.epoch == operation.lease.epoch:
            session.held = False

    def label(self, operation: Label) -> Labelled:
        """Apply the operation."""
        session = self._session(operation.session_id)
        session.record = relabelled(session.record, operation.changes, operation.title, operation.ask_again)
        session.set_waits(forgetting(session.open_waits, operation.ask_again))
        self._changes += 1
        return Labelled(session.record, self._changes)

    def end(self, operation: Archive | Delete) -> None:
        """Drop a session, and remember for a while that it was here."""
        session_id = operation.session_id
        if session_id in self.ended:
            return
        session = self._session(session_id)
        if isinstance(operation, Archive) and session.epoch != operation.lease.epoch:
            raise taken_over(session_id, None)
        del self.sessions[session_id]
        for schedule_id in [each.schedule_id for each, _ in self.schedules.values() if each.session_id == session_id]:
            del self.schedules[schedule_id]
        for trigger_id in [each.trigger_id for each, _ in self.triggers.values() if each.session_id == session_id]:
            del self.triggers[trigger_id]
        if isinstance(operation, Delete):
            self._drop_webhooks_of(session_id)
        tenant, peer = session.record.tenant, session.record.options.peer
        if peer is not None:
            self.names.pop((tenant, peer.name), None)
        self.ended[session_id] = tenant, session.creation
        self._send(operation.sends)
        self._send_down(session_id, "archive" if isinstance(operation, Archive) else "delete")
        self._add(operation.audit)
        if isinstance(operation, Archive):
            self._keep_log(session)
        while len(self.ended) > ENDED:
            oldest = next(iter(self.ended))
            tenant, key = self.ended.pop(oldest)
            self._drop_log(oldest)
            if key is not None:
                del self.created[tenant, key]

    def _keep_log(self, session: EphemeralSession) -> None:
        """Keep the log of a session that is archived; those of all ended sessions have `keep_events` rows at most."""
        logs = self.ended_logs
        logs[session.record.session_id] = EphemeralSession(session.record, events=session.events, gone=session.gone)
        self._ended_rows += len(session.events)
        while self._ended_rows > self.keep_events:
            self._drop_log(next(iter(logs)))

    def _drop_log(self, session_id: str) -> None:
        log = self.ended_logs.pop(session_id, None)
        if log is not None:
            self._ended_rows -= len(log.events)

    def enqueue(self, operation: Enqueue) -> Enqueued:
        """Apply the operation."""
        session = self._session(operation.session_id)
        if operation.lease is not None:
            self._check_lease(session, operation.lease)
        inbox = session.inbox
        known = inbox.known(operation.input.key)
        if known is not None:
            return Enqueued(known.numbered, False, known.outcome)
        if sum(not each.input.is_notice for each in inbox.waiting()) >= operation.limit:
            raise inbox_full(operation.session_id, operation.limit)
        if operation.blobs:
            self.attach(Attach(operation.session_id, operation.blobs))
        numbered = Numbered(self.next_input(), operation.input)
        inbox.add(numbered)
        return Enqueued(numbered)

    def end_inputs(self, operation: EndInputs) -> None:
        """Apply the operation."""
        if operation.session_id not in self.ended:
            session = self._session(operation.session_id)
            if operation.lease is not None:
                self._check_lease(session, operation.lease)
            self._keep(session.inbox.store_outcome(operation.inputs))
            self._send(operation.sends)

    def _keep(self, ended: Sequence[Entered]) -> None:
        """Keep the outcomes of inputs, and forget the oldest ones of all sessions beyond `keep_outcomes` bytes."""
        for each in ended:
            if each.outcome:  # none while the turn runs on
                self._outcomes.append(each)
                self._outcome_bytes += len(each.outcome)
        while self._outcome_bytes > self.keep_outcomes:
            oldest = self._outcomes.popleft()
            self._outcome_bytes -= len(oldest.outcome or UNKNOWN)
            oldest.outcome = UNKNOWN

    def answer(self, operation: StoreAnswer) -> None:
        """Apply the operation."""
        session = self._session(operation.session_id)
        self._check_lease(session, operation.lease)
        session.set_waits((operation.wait, *operation.others))
        if session.record.turn is not None and not (operation.sleeps or in_background(operation.wait)):
            session.record = session.record.changed(turn=session.record.turn.changed(wakes=None))
        self._keep(session.inbox.store_outcome(operation.inputs))
        for entry in operation.audit:
            self._add(entry)
        self._changes += 1

    def fork(self, operation: Fork) -> SessionRecord:
        """Apply the operation."""
        original = self._session(operation.wanted.session_id)
        wanted, owner = operation.wanted, operation.owner
        record = forked(original, wanted, operation.session_id, operation.now, owner=owner, spoken=operation.spoken)
        self.sessions[record.session_id] = original.cut(record)
        self._add(operation.audit)
        self._changes += 1
        return record

    def attach(self, operation: Attach) -> None:
        """Apply the operation. Sessions of a tenant share the bytes that are equal."""
        session = self._session(operation.session_id)
        mine = (each for each in self.sessions.values() if each.record.tenant == session.record.tenant)
        shared = [each.files for each in mine if each.files]
        for blob in operation.blobs:
            hashed = str(blob.attachment.sha256)
            same = next((files[hashed].data for files in shared if hashed in files), blob.data)
            session.files.setdefault(hashed, Blob(blob.attachment, same))

    def request(self, operation: RequestHandover) -> bool:
        """Return that there is no other process to be asked."""
        self._session(operation.session_id)
        return False

    def _known(
        self,
        operation: Put[Thing],
        stored: Iterable[Thing],
        missing: WarrenError | None,
        too_many: Callable[[int], WarrenError],
    ) -> Thing | None:
        """Return the thing that was made under the key of one to store; None if that may be stored, which is audited.

        Raises the refusals of `Put`.
        """
        thing = operation.thing
        mine = [each for each in stored if each.tenant == thing.tenant]
        known = next((each for each in mine if each.key is not None and each.key == thing.key), None)
        if known is not None and not operation.replaces:
            return known
        if thing.session_id is not None and self._session(thing.session_id).record.tenant != thing.tenant:
            raise not_found(thing.session_id)
        if operation.replaces and missing is not None:
            raise missing
        if not operation.replaces and len(mine) >= operation.limit:
            raise too_many(operation.limit)
        self._add(operation.audit)
        return None

    def put_schedule(self, operation: PutSchedule) -> Schedule:
        """Apply the operation."""
        schedule, stored = operation.thing, [each for each, _ in self.schedules.values()]
        there = any((each.schedule_id, each.tenant) == (schedule.schedule_id, schedule.tenant) for each in stored)
        missing = None if there else no_schedule(schedule.schedule_id)
        if (known := self._known(operation, stored, missing, too_many_schedules)) is not None:
            return known
        _, runs = self.schedules.get(schedule.schedule_id, (schedule, {}))
        self.schedules[schedule.schedule_id] = schedule, runs
        return schedule

    def drop_schedule(self, operation: DropSchedule) -> bool:
        """Apply the operation."""
        found = self.schedules.get(operation.schedule_id)
        if found is None or found[0].tenant != operation.tenant:
            return False
        del self.schedules[operation.schedule_id]
        self._add(operation.audit)
        return True

    def take_due(self, operation: TakeDue) -> Taken:
        """Apply the operation: no other process takes any."""
        now = self.now()
        found = ((each, runs) for each, runs in self.schedules.values() if each.schedule_id not in operation.without)
        due = [(each.due, each, runs) for each, runs in found if each.due and each.due <= now]
        due.sort(key=lambda found: found[0])
        later = [each.due for each, _ in self.schedules.values() if each.due and each.due > now]
        taken = [DueSchedule(each, self._is_busy(each, runs)) for _, each, runs in due[: operation.limit]]
        return Taken(taken, min(later, default=None))

    def _is_busy(self, schedule: Schedule, runs: Mapping[datetime, Run]) -> bool:
        """Return whether the prompt of a run waits, or its turn runs."""
        for due, run in runs.items():
            session = self.sessions.get(run.session_id or "")
            found = None if session is None else session.inbox.known(key_of(schedule.schedule_id, due))
            if session is not None and found is not None:
                waits = found.outcome is None
                if waits or (found.outcome == UNKNOWN and session.record.turn is not None):
                    return True
        return False

    def advance(self, operation: Advance) -> None:
        """Apply the operation."""
        found = self.schedules.get(operation.schedule_id)
        if found is None:
            return
        (schedule, runs), run = found, operation.run
        if schedule.due == run.due:
            schedule = schedule.changed(due=operation.following, problem=operation.problem)
        elif run.state != "fired":
            return
        newest = sorted({run.due: run, **runs}.items())[-KEPT_RUNS:]
        self.schedules[operation.schedule_id] = schedule, dict(newest)

    def keep_agent(self, operation: KeepAgent) -> None:
        """Apply the operation."""
        spec = operation.spec
        stored = StoredAgent(operation.tenant, spec.version, operation.created_at, spec)
        self.agents.setdefault((operation.tenant, spec.name, spec.version), stored)

    def put_trigger(self, operation: PutTrigger) -> Trigger:
        """Apply the operation."""
        trigger, stored = operation.thing, [each for each, _ in self.triggers.values()]
        there = any((each.trigger_id, each.tenant) == (trigger.trigger_id, trigger.tenant) for each in stored)
        missing = None if there else no_trigger(trigger.trigger_id)
        if (known := self._known(operation, stored, missing, too_many_triggers)) is not None:
            return known
        _, deliveries = self.triggers.get(trigger.trigger_id, (trigger, dict[str, Delivery]()))
        self.triggers[trigger.trigger_id] = trigger, deliveries
        return trigger

    def drop_trigger(self, operation: DropTrigger) -> bool:
        """Apply the operation."""
        found = self.triggers.get(operation.trigger_id)
        if found is None or found[0].tenant != operation.tenant:
            return False
        del self.triggers[operation.trigger_id]
        self._add(operation.audit)
        return True

    def keep_delivery(self, operation: KeepDelivery) -> None:
        """Apply the operation."""
        found = self.triggers.get(operation.trigger_id)
        if found is None:
            return
        trigger, deliveries = found
        before, delivery = deliveries.get(operation.delivery.delivery_id), operation.delivery
        if before is None or before.state != "fired":
            deliveries = {**deliveries, delivery.delivery_id: delivery}
        newest = sorted(deliveries.items(), key=lambda each: each[1].at)[-KEPT_DELIVERIES:]
        self.triggers[operation.trigger_id] = (
            trigger.changed(problem=operation.problem or trigger.problem),
            dict(newest),
        )

    def _note(self, operation: Commit, session: EphemeralSession) -> None:
        """Write the deliveries of a commit."""
        tenant, now = operation.record.tenant, self.now()
        listening = [each for each in self.webhooks.values() if each.tenant == tenant and not each.paused]
        for notice in notices_of(operation, listening):
            wait = notice.wait
            known = None if wait is None else session.waits.get(wait.key)
            if wait is None or known is None or known.since != wait.since:
                self.deliveries[notice.delivery.delivery_id] = notice.delivery.changed(due=now)
                self.noted += 1

    def _drop_webhooks_of(self, session_id: str) -> None:
        for webhook_id in [each.webhook_id for each in self.webhooks.values() if each.session_id == session_id]:
            self._drop_webhook(webhook_id)
        for each in [each for each in self.deliveries.values() if each.session_id == session_id]:
            del self.deliveries[each.delivery_id]

    def _drop_webhook(self, webhook_id: str) -> None:
        del self.webhooks[webhook_id]
        for each in [each for each in self.deliveries.values() if each.webhook_id == webhook_id]:
            del self.deliveries[each.delivery_id]

    def put_webhook(self, operation: PutWebhook) -> Webhook:
        """Apply the operation."""
        webhook, stored = operation.thing, list(self.webhooks.values())
        there = any((each.webhook_id, each.tenant) == (webhook.webhook_id, webhook.tenant) for each in stored)
        missing = None if there else no_webhook(webhook.webhook_id)
        if (known := self._known(operation, stored, missing, too_many_webhooks)) is not None:
            return known
        self.webhooks[webhook.webhook_id] = webhook
        return webhook

    def drop_webhook(self, operation: DropWebhook) -> bool:
        """Apply the operation."""
        found = self.webhooks.get(operation.webhook_id)
        if found is None or found.tenant != operation.tenant:
            return False
        self._drop_webhook(operation.webhook_id)
        self._add(operation.audit)
        return True

    def take_deliveries(self, operation: TakeDeliveries) -> TakenDeliveries:
        """Apply the operation: no other process takes any."""
        now = self.now()
        active = {each.webhook_id: each for each in self.webhooks.values() if not each.paused}
        waiting = [each for each in self.deliveries.values() if each.due is not None and each.webhook_id in active]
        due = sorted((each for each in waiting if each.due and each.due <= now), key=lambda each: each.due or now)
        found = [
            Candidate(
                each.delivery_id,
                each.webhook_id,
                each.tenant,
                active[each.webhook_id].failing_since is not None,
            )
            for each in due
        ]
        chosen, more = choose(found, operation.at_work)
        later = min((each.due for each in waiting if each.due and each.due > now), default=None)
        taken = [(self.deliveries[each.delivery_id], active[each.webhook_id]) for each in chosen]
        return TakenDeliveries(taken, more, later)

    def end_attempt(self, operation: EndAttempt) -> None:
        """Apply the operation."""
        delivery = operation.delivery
        if delivery.delivery_id not in self.deliveries:
            return
        self.deliveries[delivery.delivery_id] = delivery
        webhook, failed_at = self.webhooks[delivery.webhook_id], operation.failed_at
        webhook = webhook.changed(failing_since=failed_at and (webhook.failing_since or failed_at))
        if operation.pauses is not None and not webhook.paused:
            webhook = webhook.changed(paused=True, problem=operation.pauses)
        self.webhooks[delivery.webhook_id] = webhook

    def resend(self, operation: Resend) -> int:
        """Apply the operation."""
        dead = [
            each
            for each in self.deliveries.values()
            if each.tenant == operation.tenant
            and each.webhook_id == operation.webhook_id
            and operation.delivery_id in (None, each.delivery_id)
            and each.state == "dead"
        ]
        for each in dead:
            again = each.changed(state="pending", due=self.now(), attempts=0)
            self.deliveries[each.delivery_id] = again
        return len(dead)

    def tidy(self, _operation: TidyDeliveries) -> int:
        """Apply the operation."""
        dead = 0
        for webhook_id in self.webhooks:
            mine = [each for each in self.deliveries.values() if each.webhook_id == webhook_id]
            for each in [each for each in mine if each.state == "pending"][KEPT_PENDING:]:
                self.deliveries[each.delivery_id] = each.changed(state="dead", due=None, problem=TOO_MANY)
                dead += 1
            for state, kept in (("dead", KEPT_DEAD), ("delivered", KEPT_DELIVERED)):
                for each in [each for each in mine if each.state == state][:-kept]:
                    del self.deliveries[each.delivery_id]
        return dead

    def nothing(self, operation: DeclineHandover | Erased) -> None:
        """Do nothing: no other process asks, and no copy is due to be erased."""

    def note(self, operation: Audit) -> None:
        """Apply the operation."""
        for entry in operation.entries:
            self._add(entry)

    def _add(self, entry: AuditEntry | None) -> None:
        if entry is not None:
            self._entries += 1
            self.audit.append(attrs.evolve(entry, number=self._entries))

    async def version_of_others(self) -> int:
        await self._checkpoint()
        return 0

    async def _checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise _closed()

    def _session(self, session_id: str) -> EphemeralSession:
        session = self.sessions.get(session_id)
        if session is None:
            raise not_found(session_id)
        return session


_APPLIERS: Final[Mapping[type[Operation[Any]], Any]] = {
    Commit: EphemeralStore.commit,
    Claim: EphemeralStore.claim,
    Release: EphemeralStore.release,
    Archive: EphemeralStore.end,
    Attach: EphemeralStore.attach,
    Sweep: EphemeralStore.nothing,
    Reserve: EphemeralStore.nothing,
    Label: EphemeralStore.label,
    Delete: EphemeralStore.end,
    Erased: EphemeralStore.nothing,
    Enqueue: EphemeralStore.enqueue,
    EndInputs: EphemeralStore.end_inputs,
    StoreAnswer: EphemeralStore.answer,
    Fork: EphemeralStore.fork,
    Delegate: EphemeralStore.delegate,
    RequestHandover: EphemeralStore.request,
    DeclineHandover: EphemeralStore.nothing,
    Audit: EphemeralStore.note,
    PutSchedule: EphemeralStore.put_schedule,
    DropSchedule: EphemeralStore.drop_schedule,
    TakeDue: EphemeralStore.take_due,
    Advance: EphemeralStore.advance,
    KeepAgent: EphemeralStore.keep_agent,
    PutTrigger: EphemeralStore.put_trigger,
    DropTrigger: EphemeralStore.drop_trigger,
    KeepDelivery: EphemeralStore.keep_delivery,
    PutWebhook: EphemeralStore.put_webhook,
    DropWebhook: EphemeralStore.drop_webhook,
    TakeDeliveries: EphemeralStore.take_deliveries,
    EndAttempt: EphemeralStore.end_attempt,
    Resend: EphemeralStore.resend,
    TidyDeliveries: EphemeralStore.tidy,
}


def _merged(old: SessionRecord, new: SessionRecord) -> SessionRecord:
    """Return a session's next record: its labels, its title and its beginning may be newer here than in a turn's."""
    title = old.title or new.title
    if new.labels is old.labels and new.title == title and new.created_at == old.created_at:
        return new
    return new.changed(labels=old.labels, title=title, created_at=old.created_at)


def _conflict(session_id: str, row: str) -> StoreError:
    problem = f"{row} is in the session store already"
    return StoreError(problem, session_id=session_id, cause="conflict")


def _closed() -> StoreError:
    return StoreError("the session store is closed", cause="closed", retryable=False)
