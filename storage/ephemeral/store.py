"""The in-memory store: the interface of a store on dicts."""

import math
import os
import secrets
import sys
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, TypeVar

import attrs
import trio

from warren.attachments import Blob
from warren.audit import AuditEntry, AuditPage, AuditRequest
from warren.creation import Created
from warren.errors import StoreError, WarrenError
from warren.forking import forked, relabelled
from warren.inputs import Numbered
from warren.ledger import By, Figures
from warren.messages import ContextMessage, UserMessage
from warren.nodes import Announcement, Node
from warren.records import MessageRow, SessionRecord
from warren.storage.ephemeral.sessions import Entered, EphemeralSession
from warren.storage.ephemeral.tenant import EphemeralTenant, entries_of, rows_of, sums_by
from warren.storage.ledger import Key, Sums, add_charges
from warren.storage.membership import SECRET_BYTES, node_of, now, status_text
from warren.storage.operations import (
    UNKNOWN,
    Archive,
    Attach,
    Audit,
    Claim,
    Claimed,
    Commit,
    DeclineHandover,
    Delete,
    EndInputs,
    Enqueue,
    Enqueued,
    Erased,
    Fork,
    Label,
    Labelled,
    Lease,
    Operation,
    Release,
    RequestHandover,
    Reserve,
    Sweep,
)
from warren.storage.refusals import built_on_sand, inbox_full, key_used, name_taken, not_found, taken_over
from warren.storage.results import Context, Held, News, Replay, Rows, StoredSession
from warren.values import define

R = TypeVar("R")
ENDED: Final = 1_000
"""Sessions of which it is remembered that they have ended, with the keys that created them."""
KEEP_EVENTS: Final = 10_000
KEEP_OUTCOMES: Final = 16 * 1024 * 1024
KEEP_ENTRIES: Final = 10_000
"""Entries of the audit that are kept, the newest ones."""


@define(eq=False)
class EphemeralStore:
    """Sessions in dicts. A session that is archived is gone, as one that is deleted.

    No other process can write here: leases are always free or this process's own.

    Attributes:
        keep_events: rows of each session's event log that are kept, the newest ones.
        keep_outcomes: bytes of the outcomes of inputs with keys that are kept, the newest ones of all sessions.
    """

    keep_events: int = KEEP_EVENTS
    keep_outcomes: int = KEEP_OUTCOMES
    _sessions: dict[str, EphemeralSession] = attrs.field(factory=dict)
    _names: dict[tuple[str, str], str] = attrs.field(factory=dict)  # by tenant and name
    _created: dict[tuple[str, str], Created] = attrs.field(factory=dict)  # by tenant and key
    _ended: dict[str, tuple[str, str | None]] = attrs.field(factory=dict)  # the tenant and the creation key of each
    _ended_logs: dict[str, EphemeralSession] = attrs.field(
        factory=dict
    )  # for readers that are behind as the session ends
    _ended_rows: int = 0
    _ledger: dict[Key, Sums] = attrs.field(factory=dict)
    _outcomes: deque[Entered] = attrs.field(factory=deque)
    _outcome_bytes: int = 0
    _audit: deque[AuditEntry] = attrs.field(factory=lambda: deque(maxlen=KEEP_ENTRIES))
    _entries: int = 0
    _last_input: int = 0
    _changes: int = 0
    _closed: bool = False
    _started_at: datetime = attrs.field(factory=now)
    _said: Announcement = attrs.field(factory=Announcement)
    _leaves: bool = False
    _secret: bytes = attrs.field(factory=lambda: secrets.token_bytes(SECRET_BYTES), repr=False)

    key: ClassVar[int] = 1
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
        """See Store."""
        self._closed = True
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def write(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        """See Store."""
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
        """See Store."""
        await self._checkpoint()
        self._said = announcement or self._said
        return self._leaves

    async def nodes(self) -> Sequence[Node]:
        """Return this process, the only one."""
        await self._checkpoint()
        return [self._node()]

    async def holder(self, session_id: str) -> Node | None:
        """See Store."""
        await self._checkpoint()
        session = self._sessions.get(session_id)
        return self._node() if session is not None and session.held else None

    async def held(self, session_ids: Collection[str]) -> dict[str, Held]:
        """See Store."""
        await self._checkpoint()
        found = ((each, self._sessions.get(each)) for each in session_ids)
        return {
            session_id: Held(self.key if session.held else None, session.record.last_seq)
            for session_id, session in found
            if session is not None
        }

    def _node(self) -> Node:
        status = status_text(self._started_at, self._said)
        return node_of(self.key, f"the only process ({os.getpid()})", status)

    async def ask_to_drain(self, name: str) -> bool:
        """See Store."""
        await self._checkpoint()
        self._leaves = self._leaves or name == self._said.name
        return name == self._said.name

    async def secret(self) -> bytes:
        """See Store."""
        await self._checkpoint()
        return self._secret

    def commit(self, operation: Commit) -> None:
        """Apply the operation."""
        record, session = operation.record, self._sessions.get(operation.record.session_id)
        self._check_commit(operation, session)
        if session is None:
            session = self._begin(operation)
        else:
            session.record = _merged(session.record, record)
        session.add_messages(operation.messages)
        session.add_events(operation.events, self.keep_events)
        if operation.compaction is not None:
            session.compactions.append(operation.compaction)
        if operation.inputs.numbers:
            self._keep(session.inbox.store_outcome(operation.inputs))
        if operation.charges:
            add_charges(self._ledger, operation)
        self._changes += 1

    def _check_commit(self, operation: Commit, session: EphemeralSession | None) -> None:
        """Raise the refusal of a commit: it changes nothing."""
        record, creation = operation.record, operation.creation
        if creation is not None and (record.tenant, creation.key) in self._created:
            raise key_used()
        if (
            record.options.peer is not None
            and self._names.get((record.tenant, record.options.peer.name), record.session_id) != record.session_id
        ):
            raise name_taken(record.options.peer.name)
        if session is None:
            if record.session_id in self._ended:
                raise not_found(record.session_id)
            if operation.base is not None:
                raise built_on_sand(record.session_id)
            return
        if not session.held or session.epoch != operation.lease.epoch:
            raise taken_over(record.session_id, None)
        if operation.base not in (None, (session.record.message_count, session.record.last_seq)):
            raise built_on_sand(record.session_id)
        messages, events = operation.messages, operation.events
        if messages and messages[0].position != len(session.bodies):
            raise _conflict(record.session_id, f"message {messages[0].position}")
        if events and events[0].seq <= session.last_event:
            raise _conflict(record.session_id, f"event {events[0].seq}")

    def _begin(self, operation: Commit) -> EphemeralSession:
        record, creation = operation.record, operation.creation
        session = EphemeralSession(record, epoch=operation.lease.epoch, held=True)
        self._sessions[record.session_id] = session
        if record.options.peer is not None:
            self._names[record.tenant, record.options.peer.name] = record.session_id
        if creation is not None:
            session.creation = creation.key
            self._created[record.tenant, creation.key] = Created(record.session_id, creation.params)
        self._add(operation.audit)
        return session

    def claim(self, operation: Claim) -> Claimed | None:
        """Apply the operation."""
        session = self._sessions.get(operation.session_id)
        if session is None:
            return None
        if not session.held:
            session.held = True
            session.epoch += 1
        return Claimed(session.record, Lease(session.epoch), tuple(session.inbox.waiting()), self._last_input)

    def release(self, operation: Release) -> None:
        """Apply the operation."""
        session = self._sessions.get(operation.session_id)
        if session is not None and session.epoch == operation.lease.epoch:
            session.held = False

    def label(self, operation: Label) -> Labelled:
        """Apply the operation."""
        session = self._session(operation.session_id)
        session.record = relabelled(session.record, operation.changes, operation.title)
        self._changes += 1
        return Labelled(session.record, self._changes)

    def end(self, operation: Archive | Delete) -> None:
        """Drop a session, and remember for a while that it was here."""
        session_id = operation.session_id
        if session_id in self._ended:
            return
        session = self._session(session_id)
        del self._sessions[session_id]
        tenant, peer = session.record.tenant, session.record.options.peer
        if peer is not None:
            self._names.pop((tenant, peer.name), None)
        self._ended[session_id] = tenant, session.creation
        self._add(operation.audit)
        if isinstance(operation, Archive):
            self._keep_log(session)
        while len(self._ended) > ENDED:
            oldest = next(iter(self._ended))
            tenant, key = self._ended.pop(oldest)
            self._drop_log(oldest)
            if key is not None:
                del self._created[tenant, key]

    def _keep_log(self, session: EphemeralSession) -> None:
        """Keep the log of a session that is archived; those of all ended sessions have `keep_events` rows at most."""
        logs = self._ended_logs
        logs[session.record.session_id] = EphemeralSession(session.record, events=session.events, gone=session.gone)
        self._ended_rows += len(session.events)
        while self._ended_rows > self.keep_events:
            self._drop_log(next(iter(logs)))

    def _drop_log(self, session_id: str) -> None:
        log = self._ended_logs.pop(session_id, None)
        if log is not None:
            self._ended_rows -= len(log.events)

    def enqueue(self, operation: Enqueue) -> Enqueued:
        """Apply the operation."""
        inbox = self._session(operation.session_id).inbox
        known = inbox.known(operation.input.key)
        if known is not None:
            return Enqueued(known.numbered, False, known.outcome)
        if len(inbox.waiting()) >= operation.limit:
            raise inbox_full(operation.session_id, operation.limit)
        if operation.blobs:
            self.attach(Attach(operation.session_id, operation.blobs))
        self._last_input += 1
        numbered = Numbered(self._last_input, operation.input)
        inbox.add(numbered)
        return Enqueued(numbered)

    def end_inputs(self, operation: EndInputs) -> None:
        """Apply the operation."""
        if operation.session_id not in self._ended:
            self._keep(self._session(operation.session_id).inbox.store_outcome(operation.inputs))

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

    def fork(self, operation: Fork) -> SessionRecord:
        """Apply the operation."""
        original = self._session(operation.wanted.session_id)
        record = forked(original, operation.wanted, operation.session_id, operation.now, operation.owner)
        self._sessions[record.session_id] = original.cut(record)
        self._add(operation.audit)
        self._changes += 1
        return record

    def attach(self, operation: Attach) -> None:
        """Apply the operation. Sessions of a tenant share the bytes that are equal."""
        session = self._session(operation.session_id)
        mine = (each for each in self._sessions.values() if each.record.tenant == session.record.tenant)
        shared = [each.files for each in mine if each.files]
        for blob in operation.blobs:
            hashed = str(blob.attachment.sha256)
            same = next((files[hashed].data for files in shared if hashed in files), blob.data)
            session.files.setdefault(hashed, Blob(blob.attachment, same))

    def request(self, operation: RequestHandover) -> bool:
        """Return that there is no other process to be asked."""
        self._session(operation.session_id)
        return False

    def nothing(self, operation: DeclineHandover | Erased) -> None:
        """Do nothing: no other process asks, and no copy is due to be erased."""

    def note(self, operation: Audit) -> None:
        """Apply the operation."""
        for entry in operation.entries:
            self._add(entry)

    def _add(self, entry: AuditEntry | None) -> None:
        if entry is not None:
            self._entries += 1
            self._audit.append(attrs.evolve(entry, number=self._entries))

    # -- reading

    def of(self, tenant: str) -> EphemeralTenant:
        """See Store."""
        parts = (self._checkpoint, self._sessions, self._names, self._created, self._ended, self._node, self._ledger)
        return EphemeralTenant(tenant, *parts, self._audit)

    async def load(self, session_id: str) -> StoredSession | None:
        """See Store."""
        record = await self.record(session_id)
        return None if record is None else StoredSession(record, record.last_seq)

    async def record(self, session_id: str) -> SessionRecord | None:
        """See Store."""
        await self._checkpoint()
        session = self._sessions.get(session_id)
        return None if session is None else session.record

    async def context(self, session_id: str, head: int, count: int) -> Context:
        """See Store."""
        await self._checkpoint()
        session = self._session(session_id)
        newest = session.compactions[-1] if head else None
        return Context(session.bodies[0] if head else None, newest, session.bodies[head:count])

    async def messages(self, session_id: str, *, offset: int = 0, limit: int = 100) -> tuple[Rows[MessageRow], int]:
        """See Store."""
        await self._checkpoint()
        session = self._sessions.get(session_id)
        if session is None:
            return rows_of(()), 0
        return rows_of(session.rows(offset, limit)), session.record.message_count

    async def replay(self, session_id: str, *, after_seq: int = 0, limit: int = 1000) -> Replay:
        """See Store."""
        await self._checkpoint()
        session = self._sessions.get(session_id) or self._ended_logs.get(session_id)
        return Replay([], None) if session is None else Replay(session.events_after(after_seq, limit), session.gone)

    async def inbox(self, session_id: str) -> Rows[Numbered]:
        """See Store."""
        await self._checkpoint()
        session = self._sessions.get(session_id)
        return rows_of(() if session is None else session.inbox.waiting())

    async def sessions_that_wait(self) -> Sequence[str]:
        """See Store."""
        await self._checkpoint()
        rounds: list[list[str]] = []
        before = Counter[str]()
        for session_id, each in self._sessions.items():
            if any(one.input.starts for one in each.inbox.waiting()):
                at = before[each.record.tenant]
                before[each.record.tenant] += 1
                rounds += [[]] if at == len(rounds) else []
                rounds[at].append(session_id)
        return [session_id for found in rounds for session_id in found]

    async def last_stored(self, session_id: str, up_to: int) -> int | None:
        """See Store."""
        await self._checkpoint()
        session = self._sessions.get(session_id)
        return None if session is None else min(up_to, session.record.last_seq)

    async def was_told(self, session_id: str, input_id: str, source: str, beginning: str) -> bool:
        """See Store."""
        await self._checkpoint()
        session = self._sessions.get(session_id)
        if session is None:
            return False
        waits = session.inbox.find(input_id)
        if waits is not None:
            return waits.source == source
        newest_first = map(session.message, reversed(range(len(session.bodies))))
        texts = (each.content for each in newest_first if isinstance(each, UserMessage | ContextMessage))
        return any(text.startswith(beginning) for text in texts)

    async def tenants(self) -> list[str]:
        """See Store."""
        await self._checkpoint()
        return sorted({*(each.record.tenant for each in self._sessions.values()), *(key[0] for key in self._ledger)})

    async def usage(self, by: By, since: datetime | None = None, until: datetime | None = None) -> dict[str, Figures]:
        """See Store."""
        await self._checkpoint()
        return sums_by(by, self._ledger, [each.record for each in self._sessions.values()], since, until)

    async def erasures(self) -> Rows[str]:
        """See Store."""
        await self._checkpoint()
        return rows_of(())

    async def unsure_files(self) -> bool:
        """See Store."""
        await self._checkpoint()
        return False

    async def version_of_others(self) -> int:
        """See Store."""
        await self._checkpoint()
        return 0

    async def news(self, watched: Sequence[str], inbox_after: int) -> News:  # noqa: ARG002 - none come from elsewhere
        """See Store."""
        await self._checkpoint()
        found = {each: self._sessions[each].record.last_seq for each in watched if each in self._sessions}
        return News((), (), self._last_input, {**found})

    async def audit(self, wanted: AuditRequest) -> AuditPage:
        """See Store."""
        await self._checkpoint()
        return entries_of(self._audit, wanted)

    async def handed_over(self, session_id: str) -> bool | None:  # noqa: ARG002 - every session is this process's
        """See Store."""
        await self._checkpoint()
        return True

    async def _checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise _closed()

    def _session(self, session_id: str) -> EphemeralSession:
        session = self._sessions.get(session_id)
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
    Fork: EphemeralStore.fork,
    RequestHandover: EphemeralStore.request,
    DeclineHandover: EphemeralStore.nothing,
    Audit: EphemeralStore.note,
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
