"""The reads of a store in a database for the callers of one tenant."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol, TypeVar

from psycopg import errors

from warren.attachments import Attachment
from warren.audit import AuditPage, AuditRequest
from warren.creation import Created
from warren.inputs import Numbered
from warren.ledger import By, Figures
from warren.nodes import Node
from warren.records import SessionRecord
from warren.storage.postgres import attachments, audit, ledger, queries
from warren.storage.postgres.driver import Connection, LostError
from warren.storage.postgres.guard import Guard, Guarded
from warren.storage.postgres.inbox import waiting
from warren.storage.postgres.lease import Holder
from warren.storage.results import Lost, Rows, StoredPage
from warren.values import frozen

R = TypeVar("R")


class _Read(Protocol):
    """Runs a query on a connection that reads. Raises StoreError."""

    async def __call__(self, query: Callable[[Connection], Awaitable[R]]) -> R: ...


class _Home(Protocol):
    """The store: the holder that this process is in it, and the guard of the database; None as long as that is away."""

    holder: Holder
    guard: Guard | None


@frozen
class PostgresTenant:
    """See `warren.storage.store.TenantReads`."""

    tenant: str
    _home: _Home
    _read: _Read

    @property
    def _me(self) -> Holder:
        return self._home.holder

    async def has(self, session_id: str) -> bool:
        """See TenantReads."""
        return await self._guarded(partial(queries.is_of, tenant=self.tenant, session_id=session_id))

    async def record(self, session_id: str) -> SessionRecord | None:
        """See TenantReads."""
        return await self._guarded(partial(queries.record, session_id=session_id, tenant=self.tenant))

    async def holder(self, session_id: str) -> Node | None:
        """See TenantReads."""
        query = partial(queries.holder, session_id=session_id, me=self._me.key, tenant=self.tenant)
        return await self._guarded(query)

    async def inbox(self, session_id: str) -> Rows[Numbered]:
        """See TenantReads."""
        return await self._guarded(partial(waiting, session_id=session_id, tenant=self.tenant))

    async def lost(self, session_id: str, seq: int) -> Lost | None:
        """See TenantReads."""
        query = partial(queries.lost, session_id=session_id, tenant=self.tenant, seq=seq, me=self._me)
        return await self._guarded(query)

    async def list(
        self,
        *,
        offset: int = 0,
        limit: int = 50,
        labels: Mapping[str, str] | None = None,
        include_archived: bool = False,
    ) -> Rows[SessionRecord]:
        """See TenantReads."""
        page = partial(queries.listing, tenant=self.tenant, limit=limit, include_archived=include_archived)
        if not labels:
            return await self._guarded(partial(page, offset=offset))

        async def labelled(db: Connection) -> Rows[SessionRecord]:
            found = partial(queries.marked, db, self.tenant, offset=offset, limit=limit, labels=labels)
            keys = await found(include_archived=include_archived)
            return await page(self._on(db), offset=0, keys=keys)

        return await self._read(labelled)

    async def history(self, session_id: str, *, offset: int = 0, limit: int = 100) -> StoredPage:
        """See TenantReads."""
        query = partial(queries.history, session_id=session_id, tenant=self.tenant, offset=offset, limit=limit)
        return await self._guarded(query)

    async def attachment(self, session_id: str, sha256: str) -> Attachment | None:
        """See TenantReads."""
        query = partial(attachments.find, tenant=self.tenant, session_id=session_id, sha256=sha256)
        return await self._guarded(query)

    async def blob(self, session_id: str, sha256: str, start: int, size: int) -> bytes | None:
        """See TenantReads."""
        query = partial(attachments.read, tenant=self.tenant, session_id=session_id, sha256=sha256)
        return await self._guarded(partial(query, start=start, size=size))

    async def named(self, peer: str) -> str | None:
        """See TenantReads."""
        return await self._guarded(partial(queries.named, tenant=self.tenant, peer=peer))

    async def creation(self, key: str) -> Created | None:
        """See TenantReads."""
        return await self._guarded(partial(queries.creation, tenant=self.tenant, key=key))

    async def sessions(self, owner: str | None = None) -> int:
        """See TenantReads."""
        return await self._guarded(partial(queries.sessions, tenant=self.tenant, owner=owner))

    async def owned(self, owner: str) -> Sequence[str]:
        """See TenantReads."""
        return await self._guarded(partial(queries.owned, tenant=self.tenant, owner=owner))

    async def stored_bytes(self, owner: str | None = None) -> int:
        """See TenantReads. It is read without row-level security, whose conditions would be asked for each row."""
        return await self._read(partial(queries.stored_bytes, tenant=self.tenant, owner=owner))

    async def usage(self, by: By, since: datetime | None = None, until: datetime | None = None) -> dict[str, Figures]:
        """See TenantReads."""
        return await self._guarded(partial(ledger.usage, by=by, tenant=self.tenant, since=since, until=until))

    async def tokens_since(self, hour: datetime, payer: str | None = None) -> int:
        """See TenantReads."""
        return await self._guarded(partial(ledger.tokens_since, tenant=self.tenant, hour=hour, payer=payer))

    async def audit(self, wanted: AuditRequest) -> AuditPage:
        """See TenantReads."""
        return await self._guarded(partial(audit.page, wanted=wanted, tenant=self.tenant))

    async def _guarded(self, query: Callable[[Connection | Guarded], Awaitable[R]]) -> R:
        """Run a query behind row-level security."""
        return await self._read(partial(self._asked, query))

    async def _asked(self, query: Callable[[Connection | Guarded], Awaitable[R]], db: Connection) -> R:
        try:
            return await query(self._on(db))
        except errors.InsufficientPrivilege as exc:  # a restore gives the rights last of all
            raise LostError(str(exc).strip()) from exc

    def _on(self, db: Connection) -> Connection | Guarded:
        if self._home.guard is None:  # the store has gone back while this call waited for a connection
            raise LostError("the database is being looked at anew")
        return self._home.guard.on(db, self.tenant)
