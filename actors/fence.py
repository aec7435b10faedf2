"""The fence around turns: without a proved lease a turn shows nothing, starts nothing and acknowledges nothing.

A process whose machine stood still, or that lost the store, does not know whether others have taken its sessions over.
A late commit is refused by the store, whatever this process believes. Events, calls of models and calls of tools are
not seen by the store: they wait here until the leases are proved again.
"""

import math
from collections.abc import Awaitable, Callable

import attrs
import trio

from warren.errors import StoreError
from warren.events import Event
from warren.storage.membership import boot_time
from warren.values import define


@define(eq=False)
class Fence:
    """The proof that this process has the leases that it believes to have. The storage actor owns it.

    Attributes:
        clock: returns seconds on a clock that never goes back.
        until: the time up to which the leases are proved; endless as long as this process has none.
        lapses: how often the leases were renewed too late, so that others may have taken sessions over.
    """

    clock: Callable[[], float] = boot_time
    until: float = math.inf
    lapses: int = 0
    _news: trio.Event = attrs.field(factory=trio.Event)

    @property
    def proved(self) -> bool:
        """Whether no other process can have taken a session over since the last renewal."""
        return self.clock() < self.until

    def renewed(self, sent: float, seconds: float, lapses: int) -> None:
        """Note a renewal that the store has confirmed.

        Args:
            sent: the time by `clock` just before the renewal was sent: the store counts from a later moment.
            seconds: how long it proves the leases.
            lapses: how often the leases were renewed too late so far.
        """
        self.until, self.lapses = sent + seconds, lapses
        self._news.set()
        self._news = trio.Event()

    async def news(self) -> None:
        """Wait for the next renewal."""
        await self._news.wait()


def unproved(session_id: str) -> StoreError:
    """Return the error of a request that is not taken while the lease of its session is not proved."""
    problem = "this process cannot tell just now whether it still has the session: try again"
    return StoreError(problem, session_id=session_id, cause="unreachable")


@define(eq=False)
class Guard:
    """The fence as one turn meets it.

    Attributes:
        session_id: the session.
        fence: the fence.
        publish: publishes an event; returns its number.
        has_lease: asks the store whether this process still has the session.
    """

    session_id: str
    fence: Fence
    publish: Callable[[Event], int]
    has_lease: Callable[[str], Awaitable[bool]]
    _lapses: int = attrs.field(init=False)
    _held: list[Event] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self._lapses = self.fence.lapses

    @property
    def open(self) -> bool:
        """Whether the turn may go on."""
        fence = self.fence
        return fence.clock() < fence.until and fence.lapses == self._lapses

    def emit(self, event: Event) -> int:
        """Publish an event and return its number; an event that may not be shown now is held back, and 0 returned."""
        if not self.open:
            self._held.append(event)
            return 0
        if self._held:
            self._flush()
        return self.publish(event)

    async def wait(self) -> None:
        """Return when the turn may go on; then the events that were held back are published.

        Raises StoreError with `cause` "lease_lost" if another process has taken the session over.
        """
        while not self.open:
            if not self.fence.proved:
                await self.fence.news()
                continue
            lapses = self.fence.lapses
            try:
                kept = await self.has_lease(self.session_id)
            except StoreError:  # it cannot be read just now
                await self.fence.news()
                continue
            if not kept:
                problem = "another process has taken the session over: nothing of this was stored"
                raise StoreError(problem, session_id=self.session_id, cause="lease_lost")
            self._lapses = lapses
        if self._held:
            self._flush()

    def _flush(self) -> None:
        held, self._held = self._held, []
        for event in held:
            self.publish(event)


async def proved(guard: Guard | None) -> None:
    """Wait until a turn may go on, and publish the events that it held back; without a guard it always may.

    Raises StoreError with `cause` "lease_lost" if another process has taken the session over.
    """
    if guard is not None:
        await guard.wait()
