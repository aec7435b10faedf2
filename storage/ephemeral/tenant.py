"""The reads of an in-memory store for the callers of one tenant."""

import heapq
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import attrs

from warren.attachments import Attachment, Blob
from warren.audit import AuditEntry, AuditPage, AuditRequest, cursor_of
from warren.creation import FIRST_PROMPT, Created
from warren.inputs import Numbered
from warren.ledger import OF_SESSIONS, By, Figures, figures_of, hour_of, keys_of
from warren.nodes import Node
from warren.records import SessionRecord
from warren.storage.ephemeral.sessions import EphemeralSession
from warren.storage.ledger import Key, Sums, added, bounds_of, figures_from, key_in
from warren.storage.results import Lost, Rows, StoredPage
from warren.storage.rows import microseconds
from warren.values import frozen

R = TypeVar("R")


@frozen
class EphemeralTenant:
    """See `warren.storage.store.TenantReads`. Its attributes are parts of the store."""

    tenant: str
    _checkpoint: Callable[[], Awaitable[None]]
    _sessions: Mapping[str, EphemeralSession]
    _names: Mapping[tuple[str, str], str]
    _created: Mapping[tuple[str, str], Created]
    _ended: Mapping[str, tuple[str, str | None]]
    _node: Callable[[], Node]
    _ledger: Mapping[Key, Sums]
    _audit: Iterable[AuditEntry]

    async def has(self, session_id: str) -> bool:
        """See TenantReads."""
        await self._checkpoint()
        return self._session(session_id) is not None or self._ended.get(session_id, ("",))[0] == self.tenant

    async def record(self, session_id: str) -> SessionRecord | None:
        """See TenantReads."""
        await self._checkpoint()
        session = self._session(session_id)
        return None if session is None else session.record

    async def holder(self, session_id: str) -> Node | None:
        """See TenantReads."""
        await self._checkpoint()
        session = self._session(session_id)
        return self._node() if session is not None and session.held else None

    async def inbox(self, session_id: str) -> Rows[Numbered]:
        """See TenantReads."""
        await self._checkpoint()
        session = self._session(session_id)
        return rows_of(() if session is None else session.inbox.waiting())

    async def lost(self, session_id: str, seq: int) -> Lost | None:  # noqa: ARG002 - a store's question
        """Return None: the process that has shown an event and did not store it has taken the store with it."""
        await self._checkpoint()
        return None

    async def list(
        self,
        *,
        offset: int = 0,
        limit: int = 50,
        labels: Mapping[str, str] | None = None,
        include_archived: bool = False,  # noqa: ARG002 - none is here
    ) -> Rows[SessionRecord]:
        """See TenantReads."""
        await self._checkpoint()
        wanted = (labels or {}).items()
        mine = (each.record for each in self._sessions.values() if each.record.tenant == self.tenant)
        matching = (record for record in mine if wanted <= record.labels.items())
        return rows_of(heapq.nsmallest(offset + limit, matching, key=_newest_first)[offset:])

    async def history(self, session_id: str, *, offset: int = 0, limit: int = 100) -> StoredPage:
        """See TenantReads."""
        await self._checkpoint()
        session = self._session(session_id)
        if session is None:
            return StoredPage(rows_of(()), 0, 0, rows_of(()), ())
        moved = [entry for entry in session.compactions if offset < entry.head <= offset + limit]
        rows, record = rows_of(session.rows(offset, limit)), session.record
        return StoredPage(rows, record.message_count, 0, rows_of(moved), (*record.left_out, *record.parts_left_out))

    async def attachment(self, session_id: str, sha256: str) -> Attachment | None:
        """See TenantReads."""
        await self._checkpoint()
        found = self._file(session_id, sha256)
        return None if found is None else found.attachment

    async def blob(self, session_id: str, sha256: str, start: int, size: int) -> bytes | None:
        """See TenantReads."""
        await self._checkpoint()
        found = self._file(session_id, sha256)
        return None if found is None else found.data[start : start + size]

    def _file(self, session_id: str, sha256: str) -> Blob | None:
        session = self._session(session_id)
        return None if session is None else session.files.get(sha256)

    async def named(self, peer: str) -> str | None:
        """See TenantReads."""
        await self._checkpoint()
        return self._names.get((self.tenant, peer))

    async def creation(self, key: str) -> Created | None:
        """See TenantReads."""
        await self._checkpoint()
        created = self._created.get((self.tenant, key))
        session = None if created is None else self._sessions.get(created.session_id)
        first = None if session is None else session.inbox.known(FIRST_PROMPT)
        if created is None or first is None:
            return created
        return attrs.evolve(created, outcome=first.outcome)

    async def sessions(self, owner: str | None = None) -> int:
        """See TenantReads."""
        await self._checkpoint()
        return len(self._of(owner))

    async def owned(self, owner: str) -> Sequence[str]:
        """See TenantReads."""
        await self._checkpoint()
        return [each.record.session_id for each in self._of(owner)]

    async def stored_bytes(self, owner: str | None = None) -> int:
        """See TenantReads."""
        await self._checkpoint()
        own = self._of(owner)
        files = {hashed: len(blob.data) for each in own for hashed, blob in each.files.items()}
        return sum(each.bytes for each in own) + sum(files.values())

    async def usage(self, by: By, since: datetime | None = None, until: datetime | None = None) -> dict[str, Figures]:
        """See TenantReads."""
        await self._checkpoint()
        ledger = {key: sums for key, sums in self._ledger.items() if key[0] == self.tenant}
        records = [each.record for each in self._sessions.values() if each.record.tenant == self.tenant]
        return sums_by(by, ledger, records, since, until)

    async def tokens_since(self, hour: datetime, payer: str | None = None) -> int:
        """See TenantReads."""
        await self._checkpoint()
        first = microseconds(hour_of(hour))
        return sum(
            figures_from(each).tokens
            for (tenant, at, of, _), each in self._ledger.items()
            if tenant == self.tenant and at >= first and payer in (None, of)
        )

    async def audit(self, wanted: AuditRequest) -> AuditPage:
        """See TenantReads."""
        await self._checkpoint()
        return entries_of((each for each in self._audit if each.tenant == self.tenant), wanted)

    def _of(self, owner: str | None) -> Sequence[EphemeralSession]:
        own = (each for each in self._sessions.values() if each.record.tenant == self.tenant)
        return [each for each in own if owner in (None, each.record.owner)]

    def _session(self, session_id: str) -> EphemeralSession | None:
        session = self._sessions.get(session_id)
        return session if session is not None and session.record.tenant == self.tenant else None


def rows_of(found: Sequence[R]) -> Rows[R]:
    """Return rows of which none is damaged."""
    return Rows(found, lambda row: row, str)


def sums_by(
    by: By,
    ledger: Mapping[Key, Sums],
    records: Iterable[SessionRecord],
    since: datetime | None,
    until: datetime | None,
) -> dict[str, Figures]:
    """Return the sums of a ledger, or of sessions, by their keys; see `TenantReads.usage`."""
    if by in OF_SESSIONS:
        return added(_of_sessions(by, records, bounds_of(since, until)))
    first, end = bounds_of(since, until)
    return added(
        (key_in(by, tenant, hour, model), figures_from(sums))
        for (tenant, hour, _, model), sums in ledger.items()
        if first <= hour < end
    )


def _of_sessions(by: By, records: Iterable[SessionRecord], bounds: tuple[int, int]) -> Iterator[tuple[str, Figures]]:
    first, end = bounds
    for record in (each for each in records if first <= microseconds(each.updated_at) < end):
        figures = figures_of(record.usage, record.turns)
        yield from ((key, figures) for key in keys_of(by, record.session_id, record.labels))


def entries_of(entries: Iterable[AuditEntry], wanted: AuditRequest) -> AuditPage:
    """Return the wanted entries, in the order of their times."""
    fitting = {
        (microseconds(each.at), each.number): each
        for each in entries
        if (wanted.since is None or each.at >= wanted.since)
        and (wanted.until is None or each.at < wanted.until)
        and (wanted.action is None or each.action == wanted.action)
        and (wanted.session_id is None or each.session_id == wanted.session_id)
    }
    behind = (place for place in fitting if wanted.after is None or place > wanted.after)
    page = heapq.nsmallest(wanted.limit, behind)
    return AuditPage(tuple(map(fitting.__getitem__, page)), cursor_of(*page[-1]) if page else wanted.cursor)


def _newest_first(record: SessionRecord) -> tuple[float, str]:
    return -record.updated_at.timestamp(), record.session_id
