"""The counts of the store that limits of tenants and tokens need: read when they are asked for and too old."""

import contextlib
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary

import attrs
import trio

from warren.actors.limits.tenancy import DAY, NEVER, Acceptance, Account, Accounts, Counts, Stored, Tenancy
from warren.actors.resources.storage import Storage
from warren.base.errors import StoreError, WarrenError
from warren.base.values import define
from warren.conversation.memory import Index
from warren.conversation.messages import Message
from warren.storage.queries import LivingNodes, OwnedSessions, SessionCount, StoredBytes, TokensSince

if TYPE_CHECKING:
    from warren.actors.resources.memory import Memory

R = TypeVar("R")
FRESH: Final = 2.0
"""Seconds for which a count of the store is used. Rows of other processes count after that time at the latest."""
SHARE: Final = 20
"""A count is used for this many times as long as it took, so that counting has a bounded share of the time."""
FOR_TURN: Final[Sequence[Stored]] = ("tokens_per_day", "stored_bytes")
FOR_SESSION: Final[Sequence[Stored]] = ("sessions", "stored_bytes")
FOR_STEP: Final[Sequence[Stored]] = ("tokens_per_day",)


@define(eq=False)
class Limiter:
    """Brings the counts of accounts up to date, and holds requests against their limits.

    Attributes:
        tenancy: the accounts.
    """

    tenancy: Tenancy
    _storage: Storage
    _memory: "Memory"
    _locks: WeakKeyDictionary[Counts, trio.Lock] = attrs.field(factory=WeakKeyDictionary)
    _remembering: dict[str, trio.Lock] = attrs.field(factory=dict)
    # `trio.current_time` without its look for the clock: each turn of a caller with limits asks twice.
    _now: Callable[[], float] = attrs.field(factory=lambda: trio.lowlevel.current_clock().current_time)

    # -- the counts

    async def look(self, by: Accounts, wanted: Sequence[Stored]) -> None:
        """Bring counts of the store up to date, if they have a limit. Raises StoreError."""
        now = self._now()
        for account in by:
            for name in wanted:
                if now > account.figures[name].good_until and account.limit(name) is not None:
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
        async with self._locks.setdefault(account.counts, trio.Lock()):
            if not self._is_old(account, name):  # another caller has waited for it
                return
            began, figure.moved = trio.current_time(), False
            figure.day = self.tenancy.day()
            figure.value = await self._count(account, name)
            fresh = max(FRESH, SHARE * (trio.current_time() - began))
            if name == "tokens_per_day":
                fresh = min(fresh, self.tenancy.left_of_day())
            figure.good_until = NEVER if figure.moved else began + fresh

    async def _count(self, account: Account, name: Stored) -> int:
        storage, tenant, owner = self._storage, account.tenant, account.name
        match name:
            case "sessions":
                return await storage.read(SessionCount(tenant, owner))
            case "tokens_per_day":
                midnight = datetime.fromtimestamp(account.figure(name).day * DAY, UTC)
                return await storage.read(TokensSince(tenant, midnight, owner))
            case "stored_bytes":
                return await storage.read(StoredBytes(tenant, owner))
            case "memory_texts":
                sessions = None if owner is None else await storage.read(OwnedSessions(tenant, owner))
                return await self._memory.texts(tenant, sessions)

    def _is_old(self, account: Account, name: Stored) -> bool:
        """Return whether a count has to be read before it is used again."""
        good_until = account.figure(name).good_until
        # What is on its way would count twice, or not at all.
        if account.figures["sessions"].coming and good_until != NEVER:
            return False
        return trio.current_time() > good_until

    # -- sessions, turns and texts

    def check_turn(self, by: Accounts, session_id: str, *, waits: bool = False) -> None:
        """Check that one more turn of a session may wait for its beginning; the counts of the store are up to date.

        If it `waits`, as many may run already. Raises CapacityExceededError.
        """
        self.tenancy.check_turn(by, session_id, self._now(), waits=waits)

    @contextmanager
    def accepting(self, by: Accounts, session_id: str) -> Iterator[Acceptance]:
        """Count a turn of a session while the body lets it wait for its beginning.

        The body notes on the acceptance that it gets when the turn is accepted. A turn that is not counts for no rate;
        one whose caller leaves before does, as it may have been.

        There may be no checkpoint between `check_turn` and this: another caller would take the same place.
        """
        accepted = Acceptance()
        self.tenancy.begin_turn(by, self._now())
        for account in by:
            account.moment.hold(session_id)
        if by:
            self.tenancy.senders[session_id] = by
        answered = False
        try:
            yield accepted
            answered = True
        except WarrenError:
            answered = True
            raise
        finally:
            if answered and not accepted.taken:
                self.tenancy.give_back(by)
            if by and self.tenancy.senders.get(session_id) is by:
                del self.tenancy.senders[session_id]
            for account in by:
                account.moment.let_go(session_id)

    async def check_step(self, by: Accounts) -> None:
        """Check that one more model call may be made, for accounts with a limit of tokens.

        Raises CapacityExceededError, and StoreError.
        """
        now = self._now()
        for account in by:
            figure, limit = account.figures["tokens_per_day"], account.limits.tokens_per_day
            if now > figure.good_until:
                await self.look(by, FOR_STEP)
            if limit is not None and figure.value + figure.coming >= limit:
                self.tenancy.check_tokens(by)

    async def around_step(self, by: Accounts, proceed: Callable[[], Awaitable[R]]) -> R:
        """Hold a step of a turn against the limits of tokens: a wrapper of its seam. Raises as `check_step`."""
        await self.check_step(by)
        return await proceed()

    async def follow_tokens(self, waiting: Callable[[], Iterable[str]], changed: Callable[[], object]) -> None:
        """Look at the tokens of the tenants whose turns wait, for ever: nothing else tells that they may begin.

        Args:
            waiting: returns the tenants whose turns wait for room.
            changed: called after each look.
        """
        while True:
            found = (self.tenancy.of_tenant(each) for each in {*waiting()})
            by = [account for account in found if account is not None and account.limits.tokens_per_day is not None]
            if by:
                with contextlib.suppress(StoreError):  # it cannot be read just now
                    await self.look(by, FOR_STEP)
                changed()
            await trio.sleep(FRESH)

    def bounded(self, index: Index | None, tenant: str, owner: str) -> Index | None:
        """Return the function that remembers texts of an owner's session, up to the limits.

        Of a compaction that has more texts than may be remembered the oldest ones are taken.
        """
        if index is None:
            return None
        own = self.tenancy.strictest(tenant, owner, "memory_texts")
        by = self.tenancy.limited(tenant, own, "memory_texts")
        if not by:
            return index

        from warren.actors.resources.memory import indexable  # noqa: PLC0415 - it is there: only a memory has an index

        async def remember(first: int, messages: Sequence[Message]) -> None:
            # One compaction of a tenant after the other: two at once would fill the same room.
            async with self._remembering.setdefault(tenant, trio.Lock()):
                await self.look(by, ("memory_texts",))
                room, full = min((_room(account), place) for place, account in enumerate(by))
                texts = list(accumulate(bool(indexable(message).strip()) for message in messages))
                fitting = bisect_right(texts, room)
                if fitting < len(messages):
                    self.tenancy.count_refusal(by[full], "memory_texts")
                if fitting and texts[fitting - 1]:
                    await index(first, messages[:fitting])
                    for account in by:
                        account.figure("memory_texts").expire()

        return remember

    # -- the nodes

    async def count_nodes(self) -> None:
        """Follow the number of living nodes among which limits are shared out, for ever."""
        while True:
            store = await self._storage.reader()
            with contextlib.suppress(StoreError):  # it cannot be read just now: the number stays
                serving = [node for node in await store.read(LivingNodes()) if node.address is not None]
                self.tenancy.nodes = max(1, len(serving))
            await trio.sleep(store.renewal)


def _room(account: Account) -> int:
    """Return how many more texts an account with a limit of them may remember."""
    return max(0, (account.limit("memory_texts") or 0) - account.figure("memory_texts").value)
