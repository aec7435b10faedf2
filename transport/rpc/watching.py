"""The watch of one client: the changes of the list of sessions, as notifications that wait while it reads slowly."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from warren.base.values import define
from warren.calls.facade import RuntimeService
from warren.calls.reading import WatchRequest
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.dialect import CHANGED
from warren.transport.rpc.shares import Shares, counted

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class ClientWatch:
    """The watch of a client, which has at most one.

    Attributes:
        tasks: the nursery that holds it.
        tell: sends a notification, once there is room for it: changes that come meanwhile are merged.
        shares: the watches of all clients; None if this one's is not counted.
    """

    tasks: trio.Nursery
    tell: Callable[[bytes], Awaitable[None]]
    shares: Shares | None = None
    _scope: trio.CancelScope | None = attrs.field(default=None, init=False)

    async def begin(self, service: RuntimeService, wanted: WatchRequest) -> None:
        """Begin a watch, in place of an earlier one, which goes on if this raises.

        Raises CapacityExceededError if the principal has its share of watches, and as `SessionService.watch`.
        """
        scope = await self.tasks.start(self._run, service, wanted)
        self.end()
        self._scope = scope

    def end(self) -> bool:
        """End the watch; return whether there was one."""
        scope, self._scope = self._scope, None
        if scope is None:
            return False
        there: bool = not scope.cancel_called
        scope.cancel()
        return there

    async def _run(
        self,
        service: RuntimeService,
        wanted: WatchRequest,
        *,
        task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        with counted(self.shares, service, instead=self._scope is not None), trio.CancelScope() as scope:
            async with service.watch(labels=wanted.labels, include_archived=wanted.include_archived) as reader:
                task_status.started(scope)
                async for changes in reader:
                    await self.tell(jsonrpc.notification(CHANGED, changes))
