"""The doors of a server that is only opening its store: probes are answered, and all other clients wait."""

import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import attrs
import trio

from warren.actors.io.streams import GONE
from warren.actors.supervision import supervised_nursery
from warren.base.values import define
from warren.transport.http.accepting import OpenFiles, accept
from warren.transport.http.probes import LIVE, READY

PROBE: Final = re.compile(rb"(?:GET|HEAD) (" + f"{LIVE}|{READY}".encode() + rb")(?:\?\S*)? HTTP/1\.[01]\r?\n")
LOOK: Final = 4096
"""Bytes of a request that tell whether it is a probe."""
ANSWERS: Final = {LIVE.encode(): b"200 OK", READY.encode(): b"503 Service Unavailable"}
ANSWER: Final = b"HTTP/1.1 %s\r\nContent-Length: 0\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"


@define(eq=False)
class Starting:
    """The clients that came too early.

    Attributes:
        files: the files that the server may open.
        held: their connections, the oldest first, of which nothing was read; whoever takes them closes them.
    """

    files: OpenFiles = attrs.field(factory=OpenFiles)
    held: dict[trio.SocketStream, None] = attrs.field(factory=dict)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _ended: trio.Event = attrs.field(factory=trio.Event)

    async def take(self) -> Sequence[trio.SocketStream]:
        """End, and return the connections that are held."""
        self._scope.cancel()
        await self._ended.wait()
        held, self.held = self.held, {}
        return list(held)

    async def accept(self, listeners: Sequence[trio.SocketListener], most: int) -> None:
        """Accept clients until `take`, and hold a bounded number: the oldest one makes room for a new one."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(self._accept_from, listener, most, nursery)
        self._ended.set()

    async def _accept_from(self, listener: trio.SocketListener, most: int, nursery: trio.Nursery) -> None:
        # What is held may be what the process lacks, and the store needs files, too.
        make_room = partial(self._make_room, 0)
        while True:
            stream = await accept(listener, self.files, make_room)
            self._make_room(most)
            self.held[stream] = None
            nursery.start_soon(self._look_at, stream)

    def _make_room(self, most: int) -> None:
        """Close the oldest connection if no more may be held: its client may have left, which is not seen here."""
        if self.held and len(self.held) >= most:
            oldest = next(iter(self.held))
            del self.held[oldest]
            oldest.socket.close()

    async def _look_at(self, stream: trio.SocketStream) -> None:
        with suppress(OSError, *GONE):
            begun = await stream.socket.recv(LOOK, socket.MSG_PEEK)
            found = PROBE.match(begun)
            if found is None and begun:
                return  # whoever takes it reads it
            self.held.pop(stream, None)  # it is out already if it has made room for another one
            async with stream:
                if found is not None:
                    await stream.socket.recv(LOOK)  # unread bytes would turn the end of the connection into a reset
                    await stream.send_all(ANSWER % ANSWERS[found[1]])


@asynccontextmanager
async def starting(
    listeners: Sequence[trio.SocketListener], most: int, files: OpenFiles | None = None
) -> AsyncIterator[Starting]:
    """Answer probes during a body until the clients are taken; close those that are not."""
    doors = Starting(files or OpenFiles())
    async with supervised_nursery() as nursery:
        nursery.start_soon(doors.accept, listeners, most)
        try:
            yield doors
        finally:
            nursery.cancel_scope.cancel()
            for stream in doors.held:
                stream.socket.close()
