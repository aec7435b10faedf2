"""The clients of a socket, one after another, also while the process has no file left for one."""

import errno
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Final

import attrs
import trio

from warren.base.values import define
from warren.reports.health import FilesHealth
from warren.transport.http.crowd import Crowd

OVERLOAD: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""The errors of `accept` that pass."""
PAUSE: Final = 0.1
"""Seconds before the next attempt then."""
MINUTE: Final = 60.0
"""Seconds between two lines about it in the log, and for which the health tells of it."""

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class OpenFiles:
    """The files that a server may open, as far as its clients need them.

    Attributes:
        shortage: why the server lets in fewer clients than its settings allow; None if it lets in all of them.
    """

    shortage: str | None = None
    _failed: float = -math.inf
    _noted: float = -math.inf
    _error: str = attrs.field(default="", init=False)

    def lack(self, error: OSError) -> None:
        """Note that a client could not be accepted; the log says so once a minute."""
        self._failed, self._error = trio.current_time(), error.strerror or str(error)
        if self._failed >= self._noted + MINUTE:
            self._noted = self._failed
            logger.error("clients cannot be accepted, which is tried again: %s", self._error)

    def health(self) -> FilesHealth | None:
        """Return the health of the files; None while there are enough."""
        if trio.current_time() < self._failed + MINUTE:
            return FilesHealth("degraded", f"clients cannot be accepted: {self._error}")
        return None if self.shortage is None else FilesHealth("degraded", self.shortage)


async def accept(
    listener: trio.SocketListener, files: OpenFiles, lacking: Callable[[], object] = lambda: None
) -> trio.SocketStream:
    """Return the next client. While none can be accepted, call `lacking` before each further attempt."""
    while True:
        try:
            return await listener.accept()
        except OSError as exc:
            if exc.errno not in OVERLOAD:
                raise
            files.lack(exc)
            lacking()
            await trio.sleep(PAUSE)


async def serve_all(
    serve: Callable[[trio.SocketStream], Awaitable[None]],
    listeners: Sequence[trio.SocketListener],
    files: OpenFiles,
    clients: trio.Nursery,
    crowd: Crowd | None = None,
) -> None:
    """Serve the clients of some sockets until cancelled, each in a task in `clients`; then close the sockets at once.

    `serve` closes the connection. The clients of sockets that workers share are divided evenly among the `crowd`.
    """

    async def serve_those_of(listener: trio.SocketListener) -> None:
        async with listener:
            while True:
                clients.start_soon(serve, await accept(listener, files))

    async def serve_some_of(listener: trio.SocketListener, crowd: Crowd) -> None:
        async def serve_one(stream: trio.SocketStream) -> None:
            with crowd.one_more():
                await serve(stream)

        async with listener:
            while True:
                await crowd.wait_for_client(listener)
                clients.start_soon(serve_one, await accept(listener, files))

    with nullcontext() if crowd is None else crowd.accepting():
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                if crowd is not None and listener.socket.fileno() in crowd.sockets:
                    nursery.start_soon(serve_some_of, listener, crowd)
                else:
                    nursery.start_soon(serve_those_of, listener)
