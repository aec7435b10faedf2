"""A server that speaks as much of PostgreSQL's protocol as it takes to fall silent, or to refuse, at any moment."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Literal

import attrs
import trio

Stage = Literal["accept", "ssl", "handshake", "startup", "login", "session"]
STAGES: Final[tuple[Stage, ...]] = ("accept", "ssl", "handshake", "startup", "login", "session")
"""Moments of silence: the server reads nothing; leaves the request for TLS unanswered; takes it, and says nothing
more; takes no login; takes the login, and is never ready; answers no statement."""
_SSL_REQUEST: Final = 80877103
_REPORTED: Final = {"server_version": "15.4", "server_encoding": "UTF8", "client_encoding": "UTF8"}


@attrs.define(eq=False)
class Fake:
    """The server.

    Attributes:
        stage: the moment of its silence.
        code: an SQLSTATE, with which it refuses there instead of falling silent; empty for silence.
        port: its port on 127.0.0.1.
        connections: how many connections there were.
    """

    stage: Stage
    code: str = ""
    port: int = 0
    connections: int = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection, until the client ends it."""
        self.connections += 1
        try:
            await self._serve(stream)
        except (trio.BrokenResourceError, EOFError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        if self.stage == "accept":
            await trio.sleep_forever()
        code, _ = await _startup(stream)
        if code == _SSL_REQUEST:
            if self.stage == "ssl":
                await trio.sleep_forever()
            if self.stage == "handshake":
                await stream.send_all(b"S")
                await trio.sleep_forever()
            await stream.send_all(b"N")
            await _startup(stream)
        if self.stage == "startup":
            await self._end(stream)
        await stream.send_all(_message(b"R", struct.pack("!I", 0)))
        if self.stage == "login":
            await self._end(stream)
        for name, value in _REPORTED.items():
            await stream.send_all(_message(b"S", f"{name}\0{value}\0".encode()))
        await stream.send_all(_message(b"Z", b"I"))
        await _read(stream, 1)
        await self._end(stream)

    async def _end(self, stream: trio.abc.Stream) -> None:
        if not self.code:
            await trio.sleep_forever()
        fields = f"SFATAL\0VFATAL\0C{self.code}\0Mrefused with {self.code}\0\0"
        await stream.send_all(_message(b"E", fields.encode()))
        raise EOFError


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


async def _read(stream: trio.abc.Stream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = await stream.receive_some(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


async def _startup(stream: trio.abc.Stream) -> tuple[int, bytes]:
    """Return the code and the rest of a message without a kind."""
    length, code = struct.unpack("!II", await _read(stream, 8))
    return code, await _read(stream, length - 8)


@asynccontextmanager
async def fake_server(stage: Stage, code: str = "") -> AsyncIterator[Fake]:
    """Run such a server for the block."""
    fake = Fake(stage, code)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, fake.serve, 0, host="127.0.0.1"))
        fake.port = listeners[0].socket.getsockname()[1]
        yield fake
        nursery.cancel_scope.cancel()
