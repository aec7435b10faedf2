"""Room for turns: how many may run, and which sessions wait for it to begin one of theirs."""

import attrs
import trio

from warren.actors.supervisor.gauge import MemoryGauge
from warren.config import Limits
from warren.errors import AgentError, CapacityExceededError


@attrs.define(eq=False)
class Room:
    """Counts turns. Where memory is short one at a time may run, so that what there is to do gets done.

    Attributes:
        limits: how many may run.
        memory: how much the process has.
        running: turns admitted and not ended.
        closed: whether no more are admitted.
    """

    limits: Limits
    memory: MemoryGauge = attrs.field(init=False)
    running: int = 0
    closed: bool = False
    _hungry: dict[str, None] = attrs.field(factory=dict)
    _quiet: trio.Event = attrs.field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.memory = MemoryGauge(self.limits.max_memory)

    @property
    def full(self) -> bool:
        """Whether no turn would be admitted now, or only one at a time."""
        return self.closed or self.running >= self.limits.max_sessions or self.memory.full

    def check(self) -> None:
        """Raise CapacityExceededError where no more turns may run, AgentError where it is closed."""
        if self.closed:
            raise shutting_down()
        if self.running >= self.limits.max_sessions:
            raise CapacityExceededError(f"{self.limits.max_sessions} turns run already")
        self.check_memory(self.running)

    def check_memory(self, others: int) -> None:
        """Raise CapacityExceededError where memory is too short for one more beside the others of its kind."""
        if self.memory.full and others:
            raise CapacityExceededError("the process has as much memory as it may", cause="memory")

    def take(self) -> None:
        """Count a turn in."""
        self.running += 1

    def give_back(self) -> None:
        """Count a turn out."""
        self.running -= 1
        if not self.running:
            self._quiet.set()

    def take_or_wait(self, session_id: str) -> bool:
        """Count a turn in that begins by itself, if there is room; else its session is `next_waiting` some time."""
        if self.closed:
            return False
        if not self._there_is_some():
            self._hungry[session_id] = None
            return False
        self.take()
        return True

    def next_waiting(self) -> str | None:
        """Return, and forget, the session that waits longest, where there is room for it."""
        if self.closed or not self._hungry or not self._there_is_some():
            return None
        session_id = next(iter(self._hungry))
        del self._hungry[session_id]
        return session_id

    async def drained(self) -> None:
        """Admit no more; return when those that run have ended."""
        self.closed = True
        while self.running:
            self._quiet = trio.Event()
            await self._quiet.wait()

    def _there_is_some(self) -> bool:
        return self.running < self.limits.max_sessions and not (self.running and self.memory.full)


def shutting_down() -> AgentError:
    """Return the error for what is asked of a runtime that ends."""
    return AgentError("the runtime is shutting down", cause="shutting_down", retryable=True)
