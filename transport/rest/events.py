"""Server-sent events: a session's log, and the changes of the list of sessions, as streams of an answer."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

import trio
from starlette.types import Receive, Scope, Send

from warren.base.errors import InvalidParamsError
from warren.base.values import frozen
from warren.calls.base import SessionRef
from warren.calls.facade import RuntimeService
from warren.calls.reading import SubscribeRequest, WatchRequest
from warren.calls.streams import ChangeReader, EventReader
from warren.conversation import codec
from warren.conversation.events import Envelope
from warren.transport.http.leaving import until_gone
from warren.transport.http.shutdown import Shutdown
from warren.transport.rest.answers import failure
from warren.transport.rpc.dialect import missing
from warren.transport.rpc.feeds import session_over
from warren.transport.rpc.shares import Shares, counted

LAST_ID: Final = "$.headers.last-event-id"
AFTER: Final = "$.after_seq"
"""The two ways to say after which event a stream begins; the header is the one that counts."""
KINDS: Final = {cls: name for name, cls in codec.EVENT_TYPES.items()}
END: Final = "end"
"""The kind of the last message once the session is over; it has no id, for it is no event of the log."""
BATCH: Final = 32
"""Most events that leave in one piece."""
FAILED: Final = "session %s: a stream of its events failed"
logger: Final = logging.getLogger(__name__)
MEDIA_TYPE: Final = "text/event-stream"
HEARTBEAT: Final = b":\n\n"
HEADERS: Final = (
    (b"content-type", MEDIA_TYPE.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy that collects what it passes on would keep events from the client
)
Tell = Callable[[bytes], Awaitable[None]]
"""Sends a part of the stream."""
KIND: Final = b"event: changes\ndata: "


def last_event_id(value: str) -> int:
    """Return the seq that a client has seen last. Raises InvalidParamsError."""
    if value.isascii() and value.isdigit() and len(value) < len(str(2**63)):
        return int(value)
    raise InvalidParamsError.at(LAST_ID, "must be the id of an event")


def frame(envelope: Envelope) -> bytes:
    """Return an event as it goes out; one that JSON cannot hold is reported missing."""
    try:
        data = codec.encode_envelope(envelope)
    except Exception:
        logger.exception("session %s: event %d cannot be sent", envelope.session_id, envelope.seq)
        envelope = missing(envelope)
        data = codec.encode_envelope(envelope)
    kind = KINDS.get(type(envelope.event), "message")
    return f"id: {envelope.seq}\nevent: {kind}\ndata: ".encode() + data + b"\n\n"


def last_frame(session_id: str) -> bytes:
    """Return the message that tells a client not to come back."""
    return f"event: {END}\ndata: ".encode() + codec.encode(SessionRef(session_id)) + b"\n\n"


@frozen
class Streaming:
    """The bounds of a stream.

    Attributes:
        heartbeat: seconds of silence before `HEARTBEAT` says that the stream is there; whoever relays sends it.
        shutdown: its begin ends the stream.
        stays: calls a function once the client may not stay, during a block: the stream ends then, too.
        head_only: whether the stream ends before its first part.
    """

    heartbeat: float
    shutdown: Shutdown
    stays: Callable[[Callable[[], None]], AbstractContextManager[None]]
    head_only: bool = False

    async def answer(self, receive: Receive, send: Send, relay: Callable[[Tell], Awaitable[None]]) -> None:
        """Send a response whose parts come from `relay`, until that returns or one of them ends the stream."""

        async def tell(body: bytes) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        if self.head_only:
            await send({"type": "http.response.body"})
            return
        async with trio.open_nursery() as tasks:
            end = tasks.cancel_scope.cancel
            with self.shutdown.cancels(tasks.cancel_scope), self.stays(end):
                tasks.start_soon(until_gone, receive, tasks.cancel_scope)
                await relay(tell)
                end()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@frozen
class EventStream:
    """The response that brings a session's events until the session, the client or the gateway ends.

    If the session ends, archived or deleted, `end` is the last message: a client comes back to a stream that ends
    without it.

    Entering the subscription raises the errors of the service: nothing has been answered then. No more is read from the
    log than the client reads: a slow one misses nothing.

    Attributes:
        service: the runtime.
        wanted: the session, and after which event to begin.
        streaming: the bounds of the stream.
        shares: the sessions that all clients follow.
        by_header: whether `Last-Event-ID` says after which event: an error names it then.
    """

    service: RuntimeService
    wanted: SubscribeRequest
    streaming: Streaming
    shares: Shares
    by_header: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            with counted(self.shares, self.service):
                async with self.service.subscribe(self.wanted.session_id, after_seq=self.wanted.after_seq) as reader:
                    await self.streaming.answer(receive, send, partial(self._relay, reader))
        except InvalidParamsError as exc:
            if self.by_header and exc.path == AFTER:
                exc = InvalidParamsError(exc.message.replace(AFTER, LAST_ID), path=LAST_ID)
            await failure(exc, 409)(scope, receive, send)  # the form was right: the log has no such event

    async def _relay(self, reader: EventReader, tell: Tell) -> None:
        """Send events, and a sign of life after each silence, until there are no more."""
        while not reader.over:
            page = await self._page(reader)
            if page is None:
                return
            for start in range(0, len(page), BATCH):
                await tell(b"".join(map(frame, page[start : start + BATCH])))
                if len(page) > 1:  # this reader is behind, and a send is no checkpoint if the kernel has room
                    await trio.lowlevel.checkpoint()
            if not page and not reader.over:
                await tell(HEARTBEAT)
        if last := await self._last_word():
            await tell(last)

    async def _page(self, reader: EventReader) -> Sequence[Envelope] | None:
        """Return the next events, none after a silence, None if they cannot be read: the client comes back for more."""
        try:
            page = reader.take()
            if page is not None and not page:
                news = trio.Event()
                reader.notify = lambda _event: news.set()
                with trio.move_on_after(self.streaming.heartbeat):
                    await news.wait()
                page = reader.take()
            return await reader.load() if page is None else page
        except Exception:
            logger.exception(FAILED, self.wanted.session_id)
            return None

    async def _last_word(self) -> bytes | None:
        """Return the message of the end if the session is over. If that cannot be found out, the client comes back."""
        session_id = self.wanted.session_id
        try:
            return last_frame(session_id) if await session_over(self.service, session_id) else None
        except Exception:
            logger.exception(FAILED, session_id)
            return None


@frozen
class ChangeStream:
    """The response that brings the changes of the list of sessions until the client or the gateway ends.

    The messages have no ids: a client that comes back lists the sessions again.

    Attributes:
        service: the runtime.
        wanted: the filter.
        streaming: the bounds of the stream.
        shares: the watches of all clients.
    """

    service: RuntimeService
    wanted: WatchRequest
    streaming: Streaming
    shares: Shares

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        wanted = self.wanted
        with counted(self.shares, self.service):
            async with self.service.watch(labels=wanted.labels, include_archived=wanted.include_archived) as reader:
                await self.streaming.answer(receive, send, partial(self._relay, reader))

    async def _relay(self, reader: ChangeReader, tell: Tell) -> None:
        """Send changes, and a sign of life after each silence, until the runtime ends."""
        while True:
            body = HEARTBEAT
            with trio.move_on_after(self.streaming.heartbeat):
                try:
                    body = KIND + codec.encode(await anext(reader)) + b"\n\n"
                except StopAsyncIteration:
                    return
            await tell(body)
