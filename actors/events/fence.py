"""The fence around turns: without a proved lease a turn shows nothing, starts nothing and acknowledges nothing.

A process whose machine stood still, or that lost the store, does not know whether others have taken its sessions over.
A late commit is refused by the store, whatever this process believes. Events, calls of models and calls of tools are
not seen by the store: they wait here until the leases are proved again, for as long as calls wait for the store.
"""

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
import trio

from warren.base.errors import StoreError
from warren.base.values import define
from warren.conversation.events import Event
from warren.conversation.messages import ToolUseBlock
from warren.storage.membership import boot_time

R = TypeVar("R")


@define(eq=False)
class Fence:
    """The proof that this process has the leases that it believes to have. The storage actor owns it.

    Attributes:
        clock: returns seconds on a clock that never goes back.
        until: the time up to which the leases are proved; endless as long as this process has none.
        lapses: how often the leases were renewed too late, so that others may have taken sessions over.
        patience: seconds that a turn waits for a proof.
        fault: the error of the newest renewal; None if it succeeded.
    """

    clock: Callable[[], float] = boot_time
    until: float = math.inf
    lapses: int = 0
    patience: float = math.inf
    fault: StoreError | None = None
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
        self.until, self.lapses, self.fault = sent + seconds, lapses, None
        self._news.set()
        self._news = trio.Event()

    async def news(self) -> None:
        """Wait for the next renewal."""
        await self._news.wait()

    def unproved(self, session_id: str) -> StoreError:
        """Return the error of a request that is not taken while the lease of its session is not proved."""
        problem, fault = "this process cannot tell just now whether it still has the session: try again", self.fault
        if fault is None or fault.unknown:
            return StoreError(problem, session_id=session_id, cause="unreachable")
        return StoreError(f"{problem} ({fault.message})", session_id=session_id, cause=fault.cause, retryable=True)


@define(eq=False)
class Guard:
    """The fence as one turn meets it.

    Attributes:
        session_id: the session.
        fence: the fence.
        publish: publishes an event; returns its number.
        has_lease: asks the store whether this process has had the session all the time.
        refusal: the error of a turn that may not go on, and that the store is not asked to take; None as yet.
        lapses: the lapses of the fence up to which this process is known to have kept the session.
        held: events that may not be shown as yet, in order.
    """

    session_id: str
    fence: Fence
    publish: Callable[[Event], int]
    has_lease: Callable[[], Awaitable[bool]]
    refusal: StoreError | None = None
    lapses: int = attrs.field(init=False)
    held: list[Event] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.lapses = self.fence.lapses

    @property
    def open(self) -> bool:
        """Whether the turn may go on."""
        fence = self.fence
        return fence.clock() < fence.until and fence.lapses == self.lapses

    def emit(self, event: Event) -> int:
        """Publish an event and return its number, or hold it back and return 0 if the turn may not go on."""
        fence = self.fence
        # as `open`, without its call for each event
        if fence.clock() >= fence.until or fence.lapses != self.lapses:
            self.held.append(event)
            return 0
        if self.held:
            self._flush()
        return self.publish(event)

    async def wait(self) -> None:
        """Return when the turn may go on; then the events that were held back are published.

        Raises StoreError with `cause` "lease_lost" if another process has taken the session over. If the lease is not
        proved in time, its cause is that of the newest renewal, or "unreachable".
        """
        if self.refusal is None and not self.open:
            with trio.move_on_after(self.fence.patience) as waiting:
                await self.prove()
            if waiting.cancelled_caught and self.refusal is None:
                self.refusal = self.fence.unproved(self.session_id)
        if self.refusal is not None:
            raise self.refusal.copy()
        if self.held:
            self._flush()

    async def around(self, proceed: Callable[[], Awaitable[R]]) -> R:
        """Let a step begin only when the turn may go on: a wrapper of its seam. Raises as `wait`."""
        await self.wait()
        return await proceed()

    async def around_tool(self, _call: ToolUseBlock, proceed: Callable[[], Awaitable[R]]) -> R:
        """Let a tool begin only when the turn may go on: a wrapper of its seam. Raises as `wait`."""
        return await self.around(proceed)

    async def prove(self) -> None:
        """Wait until the lease is proved, or lost, however long that takes."""
        while not self.open and self.refusal is None:
            if not self.fence.proved:
                await self.fence.news()
                continue
            lapses = self.fence.lapses
            try:
                kept = await self.has_lease()
            except StoreError:  # it cannot be read just now
                await self.fence.news()
                continue
            if kept:
                self.lapses = lapses
            else:
                problem = "another process has taken the session over: nothing of this was stored"
                self.refusal = StoreError(problem, session_id=self.session_id, cause="lease_lost")

    def _flush(self) -> None:
        held, self.held = self.held, []
        for event in held:
            self.publish(event)
