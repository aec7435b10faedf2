"""One client of a service, in this process or behind a gateway."""

import logging
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar

import attrs
import trio

from warren.base.errors import WarrenError
from warren.base.values import define
from warren.calls.facade import SessionService
from warren.calls.streams import EventReader
from warren.conversation import codec, events
from warren.conversation.events import Envelope
from warren.transport.load.target import FIELDS, LOST, OnSeen, Said, Seen, TargetError, said_of

T = TypeVar("T")
PAGE: Final = 1_000
NAMES: Final = {cls: name for name, cls in codec.EVENT_TYPES.items()}
GONE: Final = frozenset({"unreachable", "connection_lost"})
logger: Final = logging.getLogger(__name__)


def seen_of(envelope: Envelope) -> Seen:
    """Return the parts of an event for the checks."""
    event = envelope.event
    kind = event.type if isinstance(event, events.UnknownEvent) else NAMES[type(event)]
    text, ref = FIELDS.get(kind, ("", ""))
    first = envelope.seq if envelope.first_seq is None else envelope.first_seq
    content = getattr(event, text) if text else ""
    return Seen(envelope.seq, first, kind, content, getattr(event, ref) if ref else "", envelope.session_id)


def error_of(error: WarrenError) -> TargetError:
    """Return the error of a service as the error of a target; a refused connection has the HTTP status as its code."""
    if error.cause not in GONE:
        return TargetError(error.code.value, error.message, error.cause or "")
    status = error.details.get("status")
    return TargetError(LOST if status is None else f"HTTP_{status}", error.message)


async def done(call: Awaitable[T]) -> T:
    """Return the result of a call. Raises TargetError."""
    try:
        return await call
    except WarrenError as exc:
        raise error_of(exc) from None


@define
class Line:
    """A client that calls a service.

    Attributes:
        service: the service.
        on_seen: gets the events of its turns, and of the session that it follows.
        tasks: the nursery of its subscription.
        left: ends with the client: then it gets no events.
    """

    service: SessionService
    on_seen: OnSeen
    tasks: trio.Nursery
    left: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def create(self, model: str | None) -> str:
        """Create a session."""
        return (await done(self.service.create_session(None, model=model))).session_id

    async def turn(self, session_id: str, prompt: str) -> str:
        """Run a turn."""
        return (await done(self.service.start_turn(session_id, prompt, on_event=self._hear))).text

    async def interrupt(self, session_id: str) -> None:
        """End the running turn."""
        await done(self.service.interrupt(session_id))

    async def compact(self, session_id: str) -> None:
        """Compact the session."""
        await done(self.service.compact(session_id))

    async def follow(self, session_id: str, after_seq: int | None) -> None:
        """Follow the session until the client is left."""
        await done(self.tasks.start(self._pump, session_id, after_seq))

    async def history(self, session_id: str) -> Sequence[Said]:
        """Return all messages."""
        found: list[Said] = []
        offset, total = 0, 1
        while offset < total:
            page = await done(self.service.history(session_id, offset=offset, limit=PAGE))
            found += [said_of(codec.to_data(entry.message)) for entry in page.messages]
            offset, total = offset + PAGE, page.total
        return found

    async def message_count(self, session_id: str) -> int:
        """Return the number of messages by the session's own view."""
        return (await done(self.service.read(session_id))).state.message_count

    def _hear(self, envelope: Envelope) -> None:
        if not self.left.cancel_called:  # a turn that its caller has left goes on telling
            self.on_seen(seen_of(envelope))

    async def _pump(
        self, session_id: str, after_seq: int | None, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Take the events as they come: not in a task, which would see them after the answer of their turn."""
        begun, moved = False, trio.Event()

        def look(_event: object) -> None:
            if self._take(reader):
                moved.set()

        try:
            with self.left:
                async with self.service.subscribe(session_id, after_seq=after_seq) as reader:
                    begun, reader.notify = True, look
                    task_status.started()
                    while not reader.over:
                        moved = trio.Event()
                        if self._take(reader):
                            for envelope in await reader.load():
                                self._hear(envelope)
                        else:
                            await moved.wait()
        except WarrenError as exc:
            if not begun:
                raise
            logger.warning("session %s: its subscription ended: %s", session_id, exc)
            if error_of(exc).dropped:
                self._lose(session_id)

    def _lose(self, session_id: str) -> None:
        """Tell of a subscription that its connection has ended; the next one needs a scope of its own."""
        self.left = trio.CancelScope()
        self.on_seen(Seen(0, 0, LOST, session_id=session_id))

    def _take(self, reader: EventReader) -> bool:
        """Take all events that are in memory; return whether the reader has to be looked after."""
        while page := reader.take():
            for envelope in page:
                self._hear(envelope)
        return page is None or reader.over
