"""The queue of the sessions that wait for room: tenants take turns, and within one the first comes first. No I/O."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator


class Rounds(dict[str, str]):
    """The tenant of each session that waits. Change it by these methods alone.

    However many sessions of one tenant wait, a session of another one waits for at most one of each tenant in front of
    it, and for those of its own. Each method takes constant time, but for tenants that may not begin: `pop_next` passes
    over them.
    """

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        super().__init__()
        # Ordered dicts, not dicts: the first key of a dict is found in linear time when many were deleted before it.
        self._queues: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()

    def in_order(self) -> Iterator[str]:
        """Iterate over the sessions, those of the tenant whose turn it is first."""
        return (session_id for queue in self._queues.values() for session_id in queue)

    def tenants(self) -> Iterable[str]:
        """Return the tenants whose sessions wait, the one whose turn it is first."""
        return self._queues

    def count(self, tenant: str) -> int:
        """Return how many sessions of a tenant wait."""
        return len(self._queues.get(tenant, ()))

    def add(self, session_id: str, tenant: str) -> None:
        """Let a session wait behind the others of its tenant; one that waits already keeps its place."""
        if session_id not in self:
            self[session_id] = tenant
            self._queues.setdefault(tenant, OrderedDict())[session_id] = None

    def discard(self, session_id: str) -> None:
        """Let a session wait no longer, if it does."""
        tenant = self.pop(session_id, None)
        if tenant is not None:
            queue = self._queues[tenant]
            del queue[session_id]
            if not queue:
                del self._queues[tenant]

    def pop_next(self, may_begin: Callable[[str], bool]) -> str | None:
        """Take out the session whose turn it is, among those of tenants that may begin; None if there is none."""
        tenant = next(filter(may_begin, self._queues), None)
        return None if tenant is None else self.pop_of(tenant)

    def pop_of(self, tenant: str) -> str:
        """Take out the first session of a tenant that has one."""
        session_id = next(iter(self._queues[tenant]))
        self._queues.move_to_end(tenant)
        self.discard(session_id)
        return session_id
