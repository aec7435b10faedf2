"""Readers of events that live on trio, and their places on the loop."""

import asyncio
import logging
from typing import Final

from warren.base.values import define
from warren.calls.streams import EventReader, OnBegin
from warren.conversation.events import Envelope, Event
from warren.transport.aio.portal import Portal

logger: Final = logging.getLogger("warren.aio")


class News(asyncio.Event):
    """An event whose `wait` lets other tasks run, also if it is set: readers rely on that."""

    async def wait(self) -> bool:  # type: ignore[override] # asyncio's has Literal[True]
        """Wait until it is set."""
        if self.is_set():
            await asyncio.sleep(0)
        return await super().wait()


def crossed(portal: Portal, inner: EventReader) -> EventReader:
    """Return the place of a reader on the loop. Closing it closes the reader. Called on the loop."""
    log = CrossedLog(portal, inner)
    log.feed_with(Feed(portal, inner, log))
    return log.reader


def begun(portal: Portal, on_begin: OnBegin, inner: EventReader) -> None:
    """Tell the program of a turn that has begun: an `on_begin` of trio, for one that is called on the loop."""
    portal.to_loop(_tell, portal, on_begin, inner)


def _tell(portal: Portal, on_begin: OnBegin, inner: EventReader) -> None:
    try:
        on_begin(crossed(portal, inner))
    except Exception:
        logger.exception("on_begin of session %s raised", inner.session_id)


@define(eq=False)
class Feed:
    """Reads on trio for a place on the loop: a page is sent there, and the next one once that was taken.

    Its methods are called on trio.
    """

    portal: Portal
    inner: EventReader
    log: "CrossedLog"
    _epoch: int = 0
    _may_send: bool = True

    def begin(self) -> None:
        """Send what there is, and what comes."""
        self.inner.notify = self._look
        self._look(None)

    def begin_beside(self, other: "Feed", cursor: int) -> None:
        """Begin as a further reader, at a place of the log."""
        self.inner = other.inner.another()
        self.inner.cursor = cursor
        self.begin()

    def go_on(self) -> None:
        """Send the next page: the last one was taken."""
        self._may_send = True
        self._look(None)

    def move(self, cursor: int, epoch: int) -> None:
        """Go on at another place."""
        self.inner.cursor, self._epoch = cursor, epoch
        self.go_on()

    async def load(self) -> None:
        """Send a page that has to be loaded. It gets to the loop also if the caller there is cancelled."""
        self._send(await self.inner.load())

    def close(self) -> None:
        """Give the place up."""
        self._may_send = False
        self.inner.close()

    def _look(self, _event: Event | None) -> None:
        if self._may_send:
            page = self.inner.take()
            if page or page is None or self.inner.over:
                self._may_send = False
                self._send(page)

    def _send(self, page: list[Envelope] | None) -> None:
        inner = self.inner
        self.portal.to_loop(self.log.deliver, self._epoch, page, inner.cursor, inner.over)


class CrossedLog:
    """The log of a place on the loop: it has a page at most."""

    def __init__(self, portal: Portal, inner: EventReader) -> None:
        self.session_id: str = inner.session_id
        self.closed: bool = False
        self.reader: EventReader = EventReader(self, inner.cursor)
        self._portal = portal
        self._shown = inner  # its numbers, which may be read from any thread
        self._page: list[Envelope] | None = []
        self._has_page = False
        self._at = self._page_ends = inner.cursor
        self._epoch = 0
        self._feed: Feed

    def feed_with(self, feed: Feed) -> None:
        """Begin to read."""
        self._feed = feed
        self._portal.to_trio(feed.begin)

    def deliver(self, epoch: int, page: list[Envelope] | None, cursor: int, over: bool) -> None:  # noqa: FBT001
        """Take what the feed has sent."""
        if epoch != self._epoch:  # the reader has moved since
            return
        self._page, self._has_page, self._page_ends, self.closed = page, True, cursor, over
        self.reader.notify(page[0].event if page else None)

    @property
    def newest(self) -> int:
        return self._shown.newest

    @property
    def settling(self) -> bool:
        return self._shown.settling

    def is_behind(self, _reader: EventReader) -> bool:
        return self._has_page and bool(self._page)

    def take(self, reader: EventReader) -> list[Envelope] | None:
        if reader.cursor != self._at:
            self._at, self._has_page, self._epoch = reader.cursor, False, self._epoch + 1
            self._portal.to_trio(self._feed.move, reader.cursor, self._epoch)
        if not self._has_page:
            return []
        page = self._page
        if page is not None:
            self._has_page = False
            self._at = reader.cursor = self._page_ends
            if not self.closed:
                self._portal.to_trio(self._feed.go_on)
        return page

    async def load(self, reader: EventReader) -> list[Envelope]:
        await self._portal.run(self._feed.load)
        return self.take(reader) or []

    def another(self, reader: EventReader) -> EventReader:
        log = CrossedLog(self._portal, self._shown)
        log._at = log._page_ends = log.reader.cursor = reader.cursor
        log._feed = feed = Feed(self._portal, self._shown, log)
        self._portal.to_trio(feed.begin_beside, self._feed, reader.cursor)
        return log.reader

    def leave(self, reader: EventReader) -> None:
        del reader
        self._portal.to_trio(self._feed.close)

    def news(self) -> News:
        return News()
