"""A runtime in the tester's process, without a connection: the figures are those of the runtime alone."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Final

import trio

from warren.base.values import frozen
from warren.calls.facade import SessionService
from warren.conversation.options import CompactionConfig
from warren.settings.config import Config, Limits, StoreConfig
from warren.transport.embed import open_supervisor
from warren.transport.load.line import Line
from warren.transport.load.model import LOOKUP, MODEL, LoadModel
from warren.transport.load.plan import BadClients, LoadPlan
from warren.transport.load.target import OnSeen, RowCounts, Target, TargetConnection

KEPT_EVENTS: Final = 1_000_000


@frozen
class LocalTarget:
    """A runtime in this process.

    Attributes:
        service: its sessions.
        tasks: the nursery of subscriptions.
        store: the folder of its store; None without one.
        tagged: whether it answers with the tester's own model.
    """

    service: SessionService
    tasks: trio.Nursery
    store: Path | None = None
    tagged: bool = True

    @property
    def name(self) -> str:
        """The name in reports."""
        return "in process, in memory" if self.store is None else "in process, with a store"

    @asynccontextmanager
    async def line(self, on_seen: OnSeen) -> AsyncIterator[TargetConnection]:
        """Open a client for a body; afterwards its subscriptions end."""
        line = Line(self.service, on_seen, self.tasks)
        try:
            yield line
        finally:
            line.left.cancel()

    def crowded(self, bad_clients: BadClients, counts: Counter[str]) -> AbstractAsyncContextManager[None]:  # noqa: ARG002 - nobody comes in
        """Do nothing: a runtime in this process has no port."""
        return nullcontext()

    async def rows(self, session_ids: Sequence[str]) -> Mapping[str, RowCounts] | None:
        """Count the rows in the file, on a connection of its own."""
        if self.store is None:
            return None
        from warren.transport.load.rows import count_rows  # noqa: PLC0415 - a store is an extra

        return await trio.to_thread.run_sync(count_rows, self.store, session_ids)


@asynccontextmanager
async def local_target(plan: LoadPlan, store: Path | None = None) -> AsyncIterator[Target]:
    """Open a runtime with the settings of a plan for a body; its model is scripted unless the plan names one.

    Raises as `warren.transport.embed.open_supervisor` does.
    """
    limits = Limits(event_log=KEPT_EVENTS, max_sessions=plan.capacity or Limits().max_sessions)
    config = Config(
        store=None if store is None else StoreConfig(store),
        model=plan.model or MODEL,
        compaction=CompactionConfig(),
        limits=limits,
    )
    opened = open_supervisor(config, tools=[LOOKUP], providers={MODEL: LoadModel(plan.profile)})
    async with opened as service, trio.open_nursery() as tasks:
        yield LocalTarget(service, tasks, store, tagged=plan.model in (None, MODEL))
        tasks.cancel_scope.cancel()
