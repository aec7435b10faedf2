"""The queries that an in-memory store answers."""

import heapq
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, TypeVar

import attrs

from warren.agents.spec import StoredAgent
from warren.base.nodes import Node
from warren.calls.creation import FIRST_PROMPT, Created
from warren.conversation import codec
from warren.conversation.attachments import Attachment, Blob
from warren.conversation.inputs import Numbered
from warren.conversation.messages import ContextMessage, UserMessage
from warren.conversation.records import MessageRow, SessionRecord
from warren.conversation.schedules import Run, Schedule
from warren.conversation.triggers import Delivery, Trigger
from warren.conversation.triggers import key_of as key_of_delivery
from warren.conversation.views import ChildCount
from warren.conversation.waits import Wait
from warren.conversation.webhooks import Post, Webhook
from warren.reports.audit import AuditPage, cursor_of
from warren.reports.ledger import OF_SESSIONS, Figures, figures_of, hour_of, keys_of
from warren.storage import queries as ask
from warren.storage.ephemeral.contents import Contents
from warren.storage.ephemeral.sessions import EphemeralSession
from warren.storage.ledger import added, bounds_of, figures_from, key_in
from warren.storage.membership import node_of, status_text
from warren.storage.operations import UNKNOWN
from warren.storage.queries import Query
from warren.storage.refusals import not_found
from warren.storage.results import Context, Held, News, Replay, Rows, StoredPage, StoredSession
from warren.storage.rows import in_background, key_of, microseconds

R = TypeVar("R")
_since: Final = attrgetter("since")


def _has(store: Contents, query: ask.HasSession) -> bool:
    session = store.sessions.get(query.session_id)
    tenant = store.ended.get(query.session_id, ("",))[0] if session is None else session.record.tenant
    return tenant == query.tenant


def _record(store: Contents, query: ask.SessionRow) -> SessionRecord | None:
    session = _session(store, query)
    return None if session is None else session.record


def _load(store: Contents, query: ask.SessionStart) -> StoredSession | None:
    session = store.sessions.get(query.session_id)
    return None if session is None else StoredSession(session.record, session.record.last_seq)


def _children(store: Contents, query: ask.Children) -> ChildCount:
    children = [each for each in _of(store, query.tenant) if each.is_child_of(query.session_id)]
    there = [each for each in children if not each.record.archived]
    return ChildCount(len(there), sum(each.works_first for each in there))


def _holder(store: Contents, query: ask.SessionHolder) -> Node | None:
    session = _session(store, query)
    return _node(store) if session is not None and session.held else None


def _waiting(store: Contents, query: ask.WaitingInputs) -> Rows[Numbered]:
    session = _session(store, query)
    return _rows(() if session is None else session.inbox.waiting())


def _notices(store: Contents, query: ask.WaitingNotices) -> Rows[tuple[str, Numbered]]:
    found = [
        (session_id, each)
        for session_id in query.session_ids
        if session_id in store.sessions
        for each in store.sessions[session_id].inbox.waiting()
        if each.input.is_notice or each.input.key == FIRST_PROMPT
    ]
    return _rows(sorted(found, key=lambda each: each[1].number))


def _history(store: Contents, query: ask.StoredHistory) -> StoredPage:
    session, offset, limit = _session(store, query), query.offset, query.limit
    if session is None:
        return StoredPage(_rows(()), 0, 0, _rows(()), ())
    moved = [entry for entry in session.compactions if offset < entry.head <= offset + limit]
    rows, record = _rows(session.messages[offset : offset + limit]), session.record
    return StoredPage(rows, record.message_count, 0, _rows(moved), (*record.left_out, *record.parts_left_out))


def _attachment(store: Contents, query: ask.StoredAttachment) -> Attachment | None:
    found = _file(store, query)
    return None if found is None else found.attachment


def _bytes(store: Contents, query: ask.AttachmentBytes) -> bytes | None:
    found = _file(store, query)
    return None if found is None else found.data[query.start : query.start + query.size]


def _file(store: Contents, query: ask.StoredAttachment | ask.AttachmentBytes) -> Blob | None:
    session = _session(store, query)
    return None if session is None else session.files.get(query.sha256)


def _session(store: Contents, query: ask.OfSession[Any]) -> EphemeralSession | None:
    session = store.sessions.get(query.session_id)
    return session if session is not None and query.tenant in (None, session.record.tenant) else None


def _context(store: Contents, query: ask.ModelContext) -> Context:
    session = store.sessions.get(query.session_id)
    if session is None:
        raise not_found(query.session_id)
    newest = session.compactions[-1] if query.head else None
    bodies = [row.body for row in session.messages[query.head : query.count]]
    first = session.messages[query.system].body if query.head or query.system else None
    return Context(first, newest, bodies)


def _instructions(store: Contents, query: ask.InstructionsBefore) -> MessageRow | None:
    session = store.sessions.get(query.session_id)
    rows = () if session is None else reversed(session.messages[: query.at])
    return next((row for row in rows if row.body.startswith(codec.SYSTEM)), None)


def _messages(store: Contents, query: ask.StoredMessages) -> tuple[Rows[MessageRow], int]:
    session = store.sessions.get(query.session_id)
    if session is None:
        return _rows(()), 0
    return _rows(session.messages[query.offset : query.offset + query.limit]), session.record.message_count


def _events(store: Contents, query: ask.StoredEvents) -> Replay:
    session = store.sessions.get(query.session_id) or store.ended_logs.get(query.session_id)
    if session is None:
        return Replay([], None)
    return Replay(session.events_after(query.after_seq, query.limit), session.gone)


def _last_stored(store: Contents, query: ask.LastStored) -> int | None:
    session = store.sessions.get(query.session_id)
    return None if session is None else min(query.up_to, session.record.last_seq)


def _was_told(store: Contents, query: ask.WasTold) -> bool:
    session = store.sessions.get(query.session_id)
    if session is None:
        return False
    waits = session.inbox.find(query.input_id)
    if waits is not None:
        return waits.source == query.source and waits.text.startswith(query.beginning)
    newest_first = map(session.message, reversed(range(len(session.messages))))
    texts = (each.content for each in newest_first if isinstance(each, UserMessage | ContextMessage))
    return any(text.startswith(query.beginning) for text in texts)


def _list(store: Contents, query: ask.SessionList) -> Rows[SessionRecord]:
    wanted = query.labels.items()
    matching = (each.record for each in _of(store, query.tenant) if wanted <= each.record.labels.items())
    if (parent := query.delegated_by) is not None:
        children = {each.record.session_id for each in store.sessions.values() if each.is_child_of(parent)}
        matching = (each for each in matching if each.session_id in children)
    if query.agent is not None:
        matching = (each for each in matching if each.agent is not None and each.agent.name == query.agent)
    if (turn := query.in_turn) is not None:
        matching = (each for each in matching if _is_in(each, turn))
    return _rows(heapq.nsmallest(query.offset + query.limit, matching, key=_newest_first)[query.offset :])


def _is_in(record: SessionRecord, turn: ask.InTurn) -> bool:
    if record.turn is None or record.session_id in (*turn.here, *turn.others):
        return record.session_id in turn.here
    return turn.state == ("parked" if record.turn.wakes is None else "waiting")  # no other process can run it


def _newest_first(record: SessionRecord) -> tuple[float, str]:
    return -record.updated_at.timestamp(), record.session_id


def _named(store: Contents, query: ask.PeerNamed) -> str | None:
    return store.names.get((query.tenant, query.name))


def _creation(store: Contents, query: ask.CreatedUnder) -> Created | None:
    created = store.created.get((query.tenant, query.key))
    session = None if created is None else store.sessions.get(created.session_id)
    first = None if session is None else session.inbox.known(FIRST_PROMPT)
    if created is None or first is None:
        return created
    return attrs.evolve(created, outcome=first.outcome)


def _count(store: Contents, query: ask.SessionCount) -> int:
    return len(_of(store, query.tenant, query.owner))


def _owned(store: Contents, query: ask.OwnedSessions) -> Sequence[str]:
    return [each.record.session_id for each in _of(store, query.tenant, query.owner)]


def _stored_bytes(store: Contents, query: ask.StoredBytes) -> int:
    own = _of(store, query.tenant, query.owner)
    files = {hashed: len(blob.data) for each in own for hashed, blob in each.files.items()}
    return sum(each.bytes for each in own) + sum(files.values())


def _of(store: Contents, tenant: str | None, owner: str | None = None) -> Sequence[EphemeralSession]:
    own = (each for each in store.sessions.values() if tenant in (None, each.record.tenant))
    return [each for each in own if owner in (None, each.record.owner)]


def _tokens_since(store: Contents, query: ask.TokensSince) -> int:
    first = microseconds(hour_of(query.hour))
    return sum(
        figures_from(each).tokens
        for (tenant, at, of, _), each in store.ledger.items()
        if tenant == query.tenant and at >= first and query.payer in (None, of)
    )


def _sums(store: Contents, query: ask.LedgerSums) -> dict[str, Figures]:
    first, end = bounds_of(query.since, query.until)
    if query.by in OF_SESSIONS:
        return added(_of_sessions(store, query, first, end))
    return added(
        (key_in(query.by, tenant, hour, model), figures_from(sums))
        for (tenant, hour, _, model), sums in store.ledger.items()
        if query.tenant in (None, tenant) and first <= hour < end
    )


def _of_sessions(store: Contents, query: ask.LedgerSums, first: int, end: int) -> Iterator[tuple[str, Figures]]:
    for record in (each.record for each in _of(store, query.tenant)):
        if first <= microseconds(record.updated_at) < end:
            figures = figures_of(record.usage, record.turns)
            yield from ((key, figures) for key in keys_of(query.by, record.session_id, record.labels))


def _entries(store: Contents, query: ask.AuditEntries) -> AuditPage:
    """Return the wanted entries, in the order of their times."""
    wanted = query.wanted
    fitting = {
        (microseconds(each.at), each.number): each
        for each in store.audit
        if query.tenant in (None, each.tenant)
        and (wanted.since is None or each.at >= wanted.since)
        and (wanted.until is None or each.at < wanted.until)
        and (wanted.action is None or each.action == wanted.action)
        and (wanted.session_id is None or each.session_id == wanted.session_id)
    }
    behind = (place for place in fitting if wanted.after is None or place > wanted.after)
    page = heapq.nsmallest(wanted.limit, behind)
    return AuditPage(tuple(map(fitting.__getitem__, page)), cursor_of(*page[-1]) if page else wanted.cursor)


def _nodes(store: Contents, _query: ask.LivingNodes) -> Sequence[Node]:
    return [_node(store)]


def _node(store: Contents) -> Node:
    status = status_text(store.started_at, store.said)
    return node_of(store.key, f"the only process ({os.getpid()})", status)


def _held(store: Contents, query: ask.Holders) -> dict[str, Held]:
    found = ((each, store.sessions[each]) for each in query.session_ids if each in store.sessions)
    return {
        session_id: Held(store.key if session.held else None, session.record.last_seq, session.epoch)
        for session_id, session in found
    }


def _waiting_sessions(store: Contents, _query: ask.WaitingSessions) -> dict[str, str]:
    at_now = store.now()
    return {session_id: each.record.tenant for session_id, each in store.sessions.items() if _has_work(each, at_now)}


def _has_work(session: EphemeralSession, at_now: datetime) -> bool:
    if any(map(in_background, session.open_waits)) or any(one.input.is_notice for one in session.inbox.waiting()):
        return True
    inputs = (one.input for one in session.inbox.waiting())
    begun = session.record.turn is not None or any(
        one.starts and (one.not_before is None or one.not_before <= at_now) for one in inputs
    )
    return begun and not session.sleeps(at_now)


def _next_wake(store: Contents, _query: ask.NextWake) -> datetime | None:
    at_now, sessions = store.now(), store.sessions.values()
    wakes = [each.record.turn.wakes for each in sessions if each.record.turn is not None]
    dues = [one.input.not_before for each in sessions for one in each.inbox.waiting()]
    return min((each for each in (*wakes, *dues) if each is not None and each > at_now), default=None)


def _stored_wait(store: Contents, query: ask.StoredWait) -> Wait | None:
    session = _session(store, query)
    every = () if session is None else reversed(session.waits.values())
    fitting = (each for each in every if each.wait_id == query.wait_id and each.reason in query.reasons)
    return max(fitting, key=_since, default=None)


def _open_waits(store: Contents, query: ask.OpenWaits) -> dict[str, Sequence[Wait]]:
    found = {each: store.sessions[each].unanswered for each in query.session_ids if each in store.sessions}
    return {session_id: sorted(waits, key=_since) for session_id, waits in found.items() if waits}


def _wait_list(store: Contents, query: ask.WaitList) -> Rows[tuple[str, Wait, str | None]]:
    at_now = store.now()
    found = [
        (each.record.session_id, wait, each.record.title)
        for each in _of(store, query.tenant)
        for wait in each.unanswered
        if wait.reason in query.reasons and wait.until > at_now
    ]
    found.sort(key=lambda one: one[1].since)
    return _rows(found[query.offset : query.offset + query.limit])


def _schedule(store: Contents, query: ask.ScheduleRow) -> Schedule | None:
    found = store.schedules.get(query.schedule_id)
    return None if found is None or found[0].tenant != query.tenant else found[0]


def _schedules(store: Contents, query: ask.ScheduleList) -> Rows[tuple[Schedule, Sequence[tuple[Run, bytes | None]]]]:
    found = [
        (schedule, [(run, _outcome_of(store, schedule, run)) for _, run in sorted(runs.items(), reverse=True)])
        for schedule, runs in store.schedules.values()
        if schedule.tenant == query.tenant
        and query.session_id in (None, schedule.session_id)
        and query.schedule_id in (None, schedule.schedule_id)
    ]
    return _rows(found[query.offset : query.offset + query.limit])


def _outcome_of(store: Contents, schedule: Schedule, run: Run) -> bytes | None:
    session = store.sessions.get(run.session_id or "")
    found = None if session is None else session.inbox.known(key_of(schedule.schedule_id, run.due))
    return None if found is None else found.outcome or UNKNOWN


def _next_due(store: Contents, _query: ask.NextDue) -> datetime | None:
    return min((each.due for each, _ in store.schedules.values() if each.due is not None), default=None)


def _agents(store: Contents, query: ask.AgentVersions) -> Rows[StoredAgent]:
    own = [each for each in store.agents.values() if each.tenant == query.tenant]
    if query.name is None:
        found = [each for _, each in sorted({each.spec.name: each for each in own}.items())]
    else:
        found = [each for each in reversed(own) if each.spec.name == query.name]
    return _rows([each for each in found if query.version in (None, each.version)][: query.limit])


def _trigger(store: Contents, query: ask.TriggerRow) -> Trigger | None:
    found = store.triggers.get(query.trigger_id)
    return None if found is None or query.tenant not in (None, found[0].tenant) else found[0]


def _triggers(store: Contents, query: ask.TriggerList) -> Rows[tuple[Trigger, Sequence[tuple[Delivery, bytes | None]]]]:
    found = [
        (trigger, [(each, _prompt_outcome(store, trigger, each)) for each in reversed(deliveries.values())])
        for trigger, deliveries in store.triggers.values()
        if trigger.tenant == query.tenant
        and query.session_id in (None, trigger.session_id)
        and query.trigger_id in (None, trigger.trigger_id)
    ]
    return _rows(found[query.offset : query.offset + query.limit])


def _prompt_outcome(store: Contents, trigger: Trigger, delivery: Delivery) -> bytes | None:
    session = store.sessions.get(delivery.session_id or "")
    found = None if session is None else session.inbox.known(key_of_delivery(trigger.trigger_id, delivery.delivery_id))
    return None if found is None else found.outcome or UNKNOWN


def _delivery(store: Contents, query: ask.DeliveryOf) -> tuple[Delivery | None, bool]:
    trigger, deliveries = store.triggers.get(query.trigger_id, (None, dict[str, Delivery]()))
    if trigger is None or trigger.tenant != query.tenant:
        return None, False
    others = [each for each in deliveries.values() if each.delivery_id != query.delivery_id]
    return deliveries.get(query.delivery_id), any(_is_busy(store, trigger, each) for each in others)


def _is_busy(store: Contents, trigger: Trigger, delivery: Delivery) -> bool:
    """Return whether the prompt of a delivery waits, or its turn runs."""
    session = store.sessions.get(delivery.session_id or "")
    found = None if session is None else session.inbox.known(key_of_delivery(trigger.trigger_id, delivery.delivery_id))
    if session is None or found is None:
        return False
    return found.outcome is None or (found.outcome == UNKNOWN and session.record.turn is not None)


def _webhook(store: Contents, query: ask.WebhookRow) -> Webhook | None:
    found = store.webhooks.get(query.webhook_id)
    return None if found is None or found.tenant != query.tenant else found


def _webhooks(store: Contents, query: ask.WebhookList) -> Rows[tuple[Webhook, int, int]]:
    found = [
        each
        for each in store.webhooks.values()
        if each.tenant == query.tenant
        and query.session_id in (None, each.session_id)
        and query.webhook_id in (None, each.webhook_id)
    ]
    counted = Counter((each.webhook_id, each.state) for each in store.deliveries.values())
    of = [(each, counted[each.webhook_id, "pending"], counted[each.webhook_id, "dead"]) for each in found]
    return _rows(of[query.offset : query.offset + query.limit])


def _deliveries(store: Contents, query: ask.DeliveryList) -> Rows[Post]:
    found = [
        each
        for each in reversed(store.deliveries.values())
        if each.tenant == query.tenant and each.webhook_id == query.webhook_id and query.state in (None, each.state)
    ]
    return _rows(found[query.offset : query.offset + query.limit])


def _next_delivery(store: Contents, _query: ask.NextDelivery) -> datetime | None:
    active = {each.webhook_id for each in store.webhooks.values() if not each.paused}
    due = (each.due for each in store.deliveries.values() if each.due is not None and each.webhook_id in active)
    return min(due, default=None)


def _pending(store: Contents, _query: ask.PendingDeliveries) -> int:
    return sum(each.state == "pending" for each in store.deliveries.values())


def _open_turns(store: Contents, query: ask.OpenTurns) -> Counter[str]:
    left = (each.record for each in _of(store, query.tenant) if not each.held)
    return Counter(record.tenant for record in left if record.turn is not None and record.turn.wakes is None)


def _sleeping(store: Contents, _query: ask.SleepingTurns) -> int:
    turns = (each.record.turn for each in _of(store, None))
    return sum(turn is not None and turn.wakes is not None for turn in turns)


def _news(store: Contents, query: ask.StoreNews) -> News:
    found = {each: store.sessions[each].record.last_seq for each in query.watched if each in store.sessions}
    return News((), (), store.last_input, {**found})


def _tenants(store: Contents, _query: ask.KnownTenants) -> Sequence[str]:
    return sorted({*(each.record.tenant for each in store.sessions.values()), *(key[0] for key in store.ledger)})


def _rows(found: Iterable[R]) -> Rows[R]:
    """Return rows of which none is damaged."""
    return Rows(found, lambda row: row, str)


QUERIES: Final[Mapping[type[Query[Any]], Callable[[Contents, Any], Any]]] = {
    ask.HasSession: _has,
    ask.SessionRow: _record,
    ask.Children: _children,
    ask.SessionHolder: _holder,
    ask.WaitingInputs: _waiting,
    ask.WaitingNotices: _notices,
    ask.StoredWait: _stored_wait,
    ask.OpenWaits: _open_waits,
    ask.LostEvents: lambda *_: None,  # a process that stored nothing took the store with it
    ask.StoredHistory: _history,
    ask.StoredAttachment: _attachment,
    ask.AttachmentBytes: _bytes,
    ask.SessionStart: _load,
    ask.ModelContext: _context,
    ask.InstructionsBefore: _instructions,
    ask.StoredMessages: _messages,
    ask.StoredEvents: _events,
    ask.LastStored: _last_stored,
    ask.WasTold: _was_told,
    ask.HandoverAnswer: lambda *_: True,  # every session is of this process
    ask.SessionList: _list,
    ask.WaitList: _wait_list,
    ask.ScheduleRow: _schedule,
    ask.ScheduleList: _schedules,
    ask.NextDue: _next_due,
    ask.AgentVersions: _agents,
    ask.TriggerRow: _trigger,
    ask.TriggerList: _triggers,
    ask.DeliveryOf: _delivery,
    ask.WebhookRow: _webhook,
    ask.WebhookList: _webhooks,
    ask.DeliveryList: _deliveries,
    ask.NextDelivery: _next_delivery,
    ask.PendingDeliveries: _pending,
    ask.PeerNamed: _named,
    ask.CreatedUnder: _creation,
    ask.SessionCount: _count,
    ask.OwnedSessions: _owned,
    ask.StoredBytes: _stored_bytes,
    ask.TokensSince: _tokens_since,
    ask.LedgerSums: _sums,
    ask.AuditEntries: _entries,
    ask.LivingNodes: _nodes,
    ask.Holders: _held,
    ask.WaitingSessions: _waiting_sessions,
    ask.NextWake: _next_wake,
    ask.OpenTurns: _open_turns,
    ask.SleepingTurns: _sleeping,
    ask.StoreNews: _news,
    ask.KnownTenants: _tenants,
    ask.DueErasures: lambda *_: _rows(()),
    ask.UnsureFiles: lambda *_: False,
}
