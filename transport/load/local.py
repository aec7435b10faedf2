"""A runtime in the tester's process, without a connection: the figures are those of the runtime alone."""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio

from warren import codec, events
from warren.compaction.config import CompactionConfig
from warren.config import Config, Limits, StoreConfig
from warren.errors import WarrenError
from warren.events import Envelope
from warren.service import SessionService
from warren.transport.embed import open_supervisor
from warren.transport.load.model import LOOKUP, MODEL, LoadModel
from warren.transport.load.plan import BadClients, LoadPlan
from warren.transport.load.target import (
    FIELDS,
    OnSeen,
    RowCounts,
    Said,
    Seen,
    Target,
    TargetConnection,
    TargetError,
    said_of,
)
from warren.values import define, frozen

T = TypeVar("T")
PAGE: Final = 1_000
KEPT_EVENTS: Final = 1_000_000
logger: Final = logging.getLogger(__name__)
NAMES: Final = {cls: name for name, cls in codec.EVENT_TYPES.items()}


def seen_of(envelope: Envelope) -> Seen:
    """Return the parts of an event for the checks."""
    event = envelope.event
    kind = event.type if isinstance(event, events.UnknownEvent) else NAMES[type(event)]
    text, ref = FIELDS.get(kind, ("", ""))
    first = envelope.seq if envelope.first_seq is None else envelope.first_seq
    content = getattr(event, text) if text else ""
    return Seen(envelope.seq, first, kind, content, getattr(event, ref) if ref else "", envelope.session_id)


async def _done(call: Awaitable[T]) -> T:
    try:
        return await call
    except WarrenError as exc:
        raise TargetError(exc.code.value, exc.message, exc.cause or "") from None


@define
class LocalLine:
    """A client that calls the runtime's service."""

    service: SessionService
    on_seen: OnSeen
    tasks: trio.Nursery
    following: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def create(self, model: str | None) -> str:
        """Create a session."""
        return (await _done(self.service.create_session(None, model=model))).session_id

    async def turn(self, session_id: str, prompt: str) -> str:
        """Run a turn."""
        return (await _done(self.service.start_turn(session_id, prompt, on_event=self._hear))).text

    async def interrupt(self, session_id: str) -> None:
        """End the running turn."""
        await _done(self.service.interrupt(session_id))

    async def compact(self, session_id: str) -> None:
        """Compact the session."""
        await _done(self.service.compact(session_id))

    async def follow(self, session_id: str, after_seq: int) -> None:
        """Follow the session until the client is left."""
        await _done(self.tasks.start(self._pump, session_id, after_seq))

    async def history(self, session_id: str) -> Sequence[Said]:
        """Return all messages."""
        found: list[Said] = []
        offset, total = 0, 1
        while offset < total:
            page = await _done(self.service.history(session_id, offset=offset, limit=PAGE))
            found += [said_of(codec.to_data(entry.message)) for entry in page.messages]
            offset, total = offset + PAGE, page.total
        return found

    async def message_count(self, session_id: str) -> int:
        """Return the number of messages by the session's own view."""
        return (await _done(self.service.read(session_id))).state.message_count

    def _hear(self, envelope: Envelope) -> None:
        if not self.following.cancel_called:  # a turn that its caller has left goes on telling
            self.on_seen(seen_of(envelope))

    async def _pump(
        self, session_id: str, after_seq: int, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        begun = False
        try:
            with self.following:
                async with self.service.subscribe(session_id, after_seq=after_seq) as envelopes:
                    begun = True
                    task_status.started()
                    async for envelope in envelopes:
                        self._hear(envelope)
        except WarrenError as exc:
            if not begun:
                raise
            logger.warning("session %s: its subscription ended: %s", session_id, exc)


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
        line = LocalLine(self.service, on_seen, self.tasks)
        try:
            yield line
        finally:
            line.following.cancel()

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
