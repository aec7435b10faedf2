"""The interface of a store: a home of sessions, their messages, their events and their inboxes."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from warren.attachments import Attachment
from warren.audit import AuditPage, AuditRequest
from warren.creation import Created
from warren.errors import WarrenError
from warren.inputs import Numbered
from warren.ledger import By, Figures
from warren.nodes import Announcement, Node
from warren.records import MessageRow, SessionRecord
from warren.storage.operations import Operation
from warren.storage.results import Context, Held, Lost, News, Replay, Rows, StoredPage, StoredSession


class Store(Protocol):
    """Sessions as the actors store and read them; safe to call from any task.

    Each call sees one state of the store, and none waits for a write. Every read raises StoreError if the store cannot
    be read; its `cause` says why: "locked", "io_error", "corrupt", "closed" and so on.
    """

    @property
    def group(self) -> int:
        """Operations that one call of `write` should have, if not many more wait; it applies more as well."""
        ...

    @property
    def lease(self) -> float:
        """Seconds for which this process keeps its sessions unless it calls `renew`."""
        ...

    @property
    def proof(self) -> float:
        """Seconds for which a renewal proves that this process has its leases, from the moment in which it was sent."""
        ...

    @property
    def patience(self) -> float:
        """Seconds that a turn waits for a store that is away, or takes no write."""
        ...

    @property
    def renewal(self) -> float:
        """Seconds between two renewals of the leases."""
        ...

    @property
    def key(self) -> int | None:
        """The number of this process in the store; None before it is registered there."""
        ...

    @property
    def lapses(self) -> int:
        """How often this process renewed its leases too late, so that others may have taken its sessions over."""
        ...

    @property
    def went_back(self) -> int:
        """How often the store was found to have gone back: a standby without the newest changes, or a backup.

        Each time this process has died as a holder, and nothing that it knows of the store counts any more. Writes of
        that moment fail with StoreError(cause="lease_lost"), and changed nothing.
        """
        ...

    @property
    def clock_ahead(self) -> float | None:
        """Seconds by which the store's clock is ahead of this machine's, by the newest renewal; None if it has none."""
        ...

    @property
    def read_fault(self) -> WarrenError | None:
        """The error of the newest read; None if it succeeded."""
        ...

    async def aclose(self, *, leave: bool = True) -> None:
        """Let running calls end, close. Idempotent, cannot be cancelled.

        With `leave` the sessions that this process still has become free for other processes. Calls that come later
        fail with StoreError(cause="closed").
        """
        ...

    async def write(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        """Apply the operations and return the result or the error of each, in order.

        An operation that failed changed nothing, and does not keep the others from succeeding. Never raises for a fault
        of the store; cannot be cancelled.
        """
        ...

    async def renew(self, announcement: Announcement | None = None) -> bool:
        """Keep the leases that this process has; return whether this node was asked to drain. Raises StoreError.

        Before its first write a process is not registered in the store. It has no leases then, so this does nothing,
        unless there is an announcement: then it is registered.

        Args:
            announcement: what this process says of itself as a node; None leaves what it has said before.
        """
        ...

    async def nodes(self) -> Sequence[Node]:
        """Return the living processes that are registered in the store, the oldest first, this one among them."""
        ...

    async def holder(self, session_id: str) -> Node | None:
        """Return the living process that has a session, which may be this one.

        None if no living process has it, or if there is no such session.
        """
        ...

    async def held(self, session_ids: Collection[str]) -> Mapping[str, Held]:
        """Return the holder of each session and the number of its last event, by one query for all of them.

        A session that is not here or was deleted is left out.
        """
        ...

    async def ask_to_drain(self, name: str) -> bool:
        """Ask all living nodes of that name to drain; return whether there is one. Raises StoreError.

        A node finds that out by its next renewal.
        """
        ...

    async def secret(self) -> bytes:
        """Return the 32 bytes by which the nodes of this store know each other. Raises StoreError.

        They are made at the first call of any process, and stay the same. Trap: never show or log them.
        """
        ...

    def of(self, tenant: str) -> "TenantReads":
        """Return the reads for the callers of a tenant. It takes no time: make one for each call."""
        ...

    async def load(self, session_id: str) -> StoredSession | None:
        """Return a session's record and the last event number; None for a session that is not here or was deleted."""
        ...

    async def record(self, session_id: str) -> SessionRecord | None:
        """Return a session's record; None for a session that is not here or was deleted."""
        ...

    async def context(self, session_id: str, head: int, count: int) -> Context:
        """Return the messages for the model of a session of `count` messages with its head at `head`."""
        ...

    async def messages(self, session_id: str, *, offset: int = 0, limit: int = 100) -> tuple[Rows[MessageRow], int]:
        """Return the messages at the `limit` positions from `offset` on that are there, and how many the session has.

        None and 0 for a session that is not here or was deleted.
        """
        ...

    async def replay(self, session_id: str, *, after_seq: int = 0, limit: int = 1000) -> Replay:
        """Return rows of the event log that end above `after_seq`, in order, and how much of it is gone.

        There are at most `limit`, fewer if they are long, and none only if there are no more. A row of merged deltas
        may begin at or below `after_seq`: `warren.journal.envelopes` cuts it.
        """
        ...

    async def last_stored(self, session_id: str, up_to: int) -> int | None:
        """Return the number of the last event up to a number that is stored, or that retention has removed.

        None for a session that is not here or was deleted.
        """
        ...

    async def inbox(self, session_id: str) -> Rows[Numbered]:
        """Return the inputs that wait for a session, in order."""
        ...

    async def sessions_that_wait(self) -> Sequence[str]:
        """Return the sessions for which an input waits that begins a turn, and that no other living process has.

        The tenants take turns, so that a tenant with many of them does not hold up the others.
        """
        ...

    async def was_told(self, session_id: str, input_id: str, source: str, beginning: str) -> bool:
        """Tell whether a peer's input waits for a session, or is in its conversation as a text that begins so."""
        ...

    async def tenants(self) -> list[str]:
        """Return the tenants that have sessions or are in the ledger, by their names."""
        ...

    async def usage(
        self, by: By, since: datetime | None = None, until: datetime | None = None
    ) -> Mapping[str, Figures]:
        """Return the figures of the ledger of all tenants together; see `TenantReads.usage`."""
        ...

    async def erasures(self) -> Rows[str]:
        """Return the deleted sessions of which something may be left elsewhere."""
        ...

    async def unsure_files(self) -> bool:
        """Return whether there are files that the operation `Sweep` has to look at."""
        ...

    async def version_of_others(self) -> int:
        """Return a number that changes with every commit of another process, and with no commit of this one.

        It means something only beside other numbers of this same opening.
        """
        ...

    async def news(self, watched: Sequence[str], inbox_after: int) -> News:
        """Return the changes of other processes that concern this one; see `News`."""
        ...

    async def handed_over(self, session_id: str) -> bool | None:
        """Return whether a session that was asked for is free now; None as long as there is no answer."""
        ...

    async def audit(self, wanted: AuditRequest) -> AuditPage:
        """Return a part of the audit of all tenants, and of none; the tenant of the request does not matter here."""
        ...


class TenantReads(Protocol):
    """The reads of a store for the callers of one tenant: a session of another tenant is as one that is not here.

    Each raises StoreError as those of `Store` do.
    """

    async def has(self, session_id: str) -> bool:
        """Return whether a session is the tenant's, also if it was deleted since."""
        ...

    async def record(self, session_id: str) -> SessionRecord | None:
        """Return a session's record; None for a session that is not here or was deleted."""
        ...

    async def holder(self, session_id: str) -> Node | None:
        """Return the living process that has a session; see `Store.holder`."""
        ...

    async def inbox(self, session_id: str) -> Rows[Numbered]:
        """Return the inputs that wait for a session, in order."""
        ...

    async def lost(self, session_id: str, seq: int) -> Lost | None:
        """Return the lost events around an event that a reader was shown; None if it is stored, or may be some day."""
        ...

    async def list(
        self,
        *,
        offset: int = 0,
        limit: int = 50,
        labels: Mapping[str, str] | None = None,
        include_archived: bool = False,
    ) -> Rows[SessionRecord]:
        """Return a page of the sessions that carry all of `labels`: newest `updated_at` first, then by id.

        A damaged row takes a place of the page, and is named beside it.
        """
        ...

    async def history(self, session_id: str, *, offset: int = 0, limit: int = 100) -> StoredPage:
        """Return the messages at the `limit` positions from `offset` on, and the compactions that moved the head there.

        Positions do not change when retention removes messages: a page of positions that are gone is empty.
        """
        ...

    async def attachment(self, session_id: str, sha256: str) -> Attachment | None:
        """Return the file of a session with that hash; None for a session without it, also if another one has it."""
        ...

    async def blob(self, session_id: str, sha256: str, start: int, size: int) -> bytes | None:
        """Return the `size` bytes of a session's file from `start` on, fewer at its end; None if it has none."""
        ...

    async def named(self, peer: str) -> str | None:
        """Return the session that has a name among the peers of the tenant."""
        ...

    async def creation(self, key: str) -> Created | None:
        """Return the session that was created under an idempotency key, also if it was deleted since."""
        ...

    async def sessions(self, owner: str | None = None) -> int:
        """Return how many sessions are neither archived nor deleted: all, or those that a principal has created."""
        ...

    async def owned(self, owner: str) -> Sequence[str]:
        """Return the ids of the sessions that a principal has created and that are not deleted."""
        ...

    async def stored_bytes(self, owner: str | None = None) -> int:
        """Return the bytes of all messages, inputs, events and files, or of those of an owner's sessions.

        A file that sessions of several owners have counts for each of them. Trap: it takes the longer the more there
        are.
        """
        ...

    async def usage(
        self, by: By, since: datetime | None = None, until: datetime | None = None
    ) -> Mapping[str, Figures]:
        """Return the figures of the ledger, summed by a group, by their keys.

        By `session` and `label`, they are the whole figures of the sessions that are stored, and whose last turn ended
        within the time. The key of a label is its name and value, as in `team=red`.

        Args:
            by: the group.
            since: a time in the first hour that counts; None for all from the beginning on.
            until: hours that begin then or later do not count; None for all up to now.
        """
        ...

    async def tokens_since(self, hour: datetime, payer: str | None = None) -> int:
        """Return the input and output tokens that the ledger has since the hour of a time, this hour included.

        With a `payer`, they are those that count for its limit. It reads a row for each hour, payer, model and process,
        by the primary key.
        """
        ...

    async def audit(self, wanted: AuditRequest) -> AuditPage:
        """Return a part of the audit of the tenant; that of the request does not matter here."""
        ...
