"""The counts of the store that limits of tenants and tokens need: read when they are asked for and too old."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import attrs
import trio

from warren.actors.storage import Storage
from warren.actors.tenancy import DAY, NEVER, Account, Accounts, Stored, Tenancy
from warren.errors import StoreError
from warren.memory import Index
from warren.messages import Message
from warren.values import define

if TYPE_CHECKING:
    from warren.actors.memory import Memory

FRESH: Final = 2.0
"""Seconds for which a count of the store is used. Rows of other processes count after that time at the latest."""
SHARE: Final = 20
"""A count is used for at least so many times as long as it takes, so that counting costs at most this share."""
FOR_TURN: Final[Sequence[Stored]] = ("tokens_per_day", "stored_bytes")
FOR_SESSION: Final[Sequence[Stored]] = ("sessions", "stored_bytes")


@define(eq=False)
class Limiter:
    """Brings the counts of accounts up to date, and holds requests against their limits.

    Attributes:
        tenancy: the accounts.
    """

    tenancy: Tenancy
    _storage: Storage
    _memory: "Memory"
    _locks: dict[Account, trio.Lock] = attrs.field(factory=dict)

    # -- the counts

    async def look(self, by: Accounts, wanted: Sequence[Stored]) -> None:
        """Bring counts of the store up to date, if they have a limit. Raises StoreError."""
        for account in by:
            for name in wanted:
                if account.limit(name) is not None:
                    await self._refresh(account, name)

    async def count(self, tenant: str, name: Stored) -> int:
        """Return a count of a tenant, with limits or without, as old as those that limits use. Raises StoreError."""
        account = self.tenancy.observed(tenant)
        await self._refresh(account, name)
        return account.figure(name).value

    async def _refresh(self, account: Account, name: Stored) -> None:
        figure = account.figure(name)
        if not self._is_old(account, name):
            return
        async with self._locks.setdefault(account, trio.Lock()):
            if not self._is_old(account, name):  # another caller has waited for it
                return
            began, figure.moved = trio.current_time(), False
            figure.day = self.tenancy.day()
            figure.value = await self._count(account, name)
            figure.took = trio.current_time() - began
            figure.read_at = NEVER if figure.moved else began

    async def _count(self, account: Account, name: Stored) -> int:
        store = (await self._storage.reader()).of(account.tenant)
        match name:
            case "sessions":
                return await store.sessions(account.name)
            case "tokens_per_day":
                return await store.tokens_since(datetime.fromtimestamp(account.figure(name).day * DAY, UTC))
            case "stored_bytes":
                return await store.stored_bytes()
            case "memory_texts":
                return await self._memory.texts(account.tenant)

    def _is_old(self, account: Account, name: Stored) -> bool:
        """Return whether a count has to be read before it is used again."""
        figure = account.figure(name)
        if figure.read_at == NEVER:
            return True
        if name == "tokens_per_day" and figure.day != self.tenancy.day():
            return True
        if account.creating:  # a session whose creation is on its way would count twice, or not at all
            return False
        return trio.current_time() - figure.read_at > max(FRESH, SHARE * figure.took)

    # -- sessions, turns and texts

    @contextmanager
    def accepting(self, by: Accounts, session_id: str) -> Iterator[None]:
        """Count a turn of a session while the body lets it wait for its beginning.

        Raises CapacityExceededError if a limit is reached; the counts of the store have to be up to date.
        """
        self.tenancy.check_turn(by, session_id, trio.current_time())
        self.tenancy.began_turn(by)
        for account in by:
            account.hold(session_id)
        if by:
            self.tenancy.senders[session_id] = by
        try:
            yield
        finally:
            if by and self.tenancy.senders.get(session_id) is by:
                del self.tenancy.senders[session_id]
            for account in by:
                account.let_go(session_id)

    def bounded(self, index: Index | None, tenant: str) -> Index | None:
        """Return the function that remembers texts of a tenant, which remembers none beyond the tenant's limit."""
        account = self.tenancy.of_tenant(tenant)
        limit = None if account is None else account.limit("memory_texts")
        if index is None or account is None or limit is None:
            return index

        async def remember(first: int, messages: Sequence[Message]) -> None:
            await self.look((account,), ("memory_texts",))
            figure = account.figure("memory_texts")
            if figure.value >= limit:
                self.tenancy.count_refusal(account, "memory_texts")
            else:
                await index(first, messages)
                figure.expire()

        return remember

    # -- the nodes

    async def count_nodes(self) -> None:
        """Follow the number of living nodes among which limits are shared out, for ever."""
        while True:
            store = await self._storage.reader()
            with contextlib.suppress(StoreError):  # it cannot be read just now: the number stays
                serving = [node for node in await store.nodes() if node.address is not None]
                self.tenancy.nodes = max(1, len(serving))
            await trio.sleep(store.renewal)
