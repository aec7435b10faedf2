"""The reads of a store in a file for the callers of one tenant."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final, Protocol, TypeVar

import apsw

from warren.attachments import Attachment
from warren.audit import AuditPage, AuditRequest
from warren.creation import Created
from warren.inputs import Numbered
from warren.ledger import By, Figures
from warren.nodes import Node
from warren.records import SessionRecord
from warren.storage.results import Lost, Rows, StoredPage
from warren.storage.sqlite import attachments, audit, ledger, queries
from warren.storage.sqlite.inbox import named, waiting
from warren.storage.sqlite.lease import Holder
from warren.values import frozen

R = TypeVar("R")
NOBODY: Final = ""
"""An id that no session has."""


class _Read(Protocol):
    """Runs a query on a connection that reads. Raises StoreError."""

    async def __call__(self, query: Callable[[apsw.Connection], R]) -> R: ...


@frozen
class SqliteTenant:
    """See `warren.storage.store.TenantReads`."""

    tenant: str
    _me: Holder
    _read: _Read

    async def has(self, session_id: str) -> bool:
        """See TenantReads."""
        return await self._read(partial(queries.is_of, tenant=self.tenant, session_id=session_id))

    async def record(self, session_id: str) -> SessionRecord | None:
        """See TenantReads."""
        return await self._of(session_id, queries.record)

    async def holder(self, session_id: str) -> Node | None:
        """See TenantReads."""
        return await self._of(session_id, partial(queries.holder, me=self._me))

    async def inbox(self, session_id: str) -> Rows[Numbered]:
        """See TenantReads."""
        return await self._of(session_id, waiting)

    async def lost(self, session_id: str, seq: int) -> Lost | None:
        """See TenantReads."""
        return await self._of(session_id, partial(queries.lost, seq=seq, me=self._me))

    async def list(
        self,
        *,
        offset: int = 0,
        limit: int = 50,
        labels: Mapping[str, str] | None = None,
        include_archived: bool = False,
    ) -> Rows[SessionRecord]:
        """See TenantReads.

        It costs as much as the page and `offset`, for histories of any length. With `labels` that few of many sessions
        carry, it looks at all sessions of the tenant, in an index.
        """
        query = partial(queries.listing, tenant=self.tenant, offset=offset, limit=limit, labels=labels or {})
        return await self._read(partial(query, include_archived=include_archived))

    async def history(self, session_id: str, *, offset: int = 0, limit: int = 100) -> StoredPage:
        """See TenantReads."""
        return await self._of(session_id, partial(queries.history, offset=offset, limit=limit))

    async def attachment(self, session_id: str, sha256: str) -> Attachment | None:
        """See TenantReads."""
        return await self._of(session_id, partial(attachments.find, sha256=sha256))

    async def blob(self, session_id: str, sha256: str, start: int, size: int) -> bytes | None:
        """See TenantReads."""
        return await self._of(session_id, partial(attachments.read, sha256=sha256, start=start, size=size))

    async def named(self, peer: str) -> str | None:
        """See TenantReads."""
        return await self._read(partial(named, tenant=self.tenant, peer=peer))

    async def creation(self, key: str) -> Created | None:
        """See TenantReads."""
        return await self._read(partial(queries.creation, tenant=self.tenant, key=key))

    async def sessions(self, owner: str | None = None) -> int:
        """See TenantReads."""
        return await self._read(partial(queries.sessions, tenant=self.tenant, owner=owner))

    async def owned(self, owner: str) -> Sequence[str]:
        """See TenantReads."""
        return await self._read(partial(queries.owned, tenant=self.tenant, owner=owner))

    async def stored_bytes(self, owner: str | None = None) -> int:
        """See TenantReads."""
        return await self._read(partial(queries.stored_bytes, tenant=self.tenant, owner=owner))

    async def usage(self, by: By, since: datetime | None = None, until: datetime | None = None) -> dict[str, Figures]:
        """See TenantReads."""
        return await self._read(partial(ledger.usage, by=by, tenant=self.tenant, since=since, until=until))

    async def tokens_since(self, hour: datetime, payer: str | None = None) -> int:
        """See TenantReads."""
        return await self._read(partial(ledger.tokens_since, tenant=self.tenant, hour=hour, payer=payer))

    async def audit(self, wanted: AuditRequest) -> AuditPage:
        """See TenantReads."""
        return await self._read(partial(audit.page, wanted=wanted, tenant=self.tenant))

    async def _of(self, session_id: str, query: Callable[..., R]) -> R:
        """Run a query about a session, or about an id that nobody has if the session is not the tenant's."""

        def within(db: apsw.Connection) -> R:
            mine = queries.is_of(db, self.tenant, session_id)
            return query(db, session_id=session_id if mine else NOBODY)

        return await self._read(within)
