"""The WebSocket of a client: opened by an HTTP client, with its proxies and certificates, and read in one task.

The frames are wsproto's. There is no queue between its reader and its user, because that would be most of the price of
an event.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
import attrs
import httpcore
import httpx
from wsproto.connection import Connection as Protocol
from wsproto.connection import ConnectionState, ConnectionType
from wsproto.events import CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import ProtocolError, generate_accept_token, generate_nonce

from warren.base.values import define

CHUNK: Final = 256 * 1024
"""Bytes that are read at once."""
GOODBYE: Final = 1.0
"""Seconds that the last frame may take."""
UPGRADED: Final = 101


class UpgradeRefusedError(Exception):
    """The server answered the request for a WebSocket with another status than 101."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class ClosedError(Exception):
    """The server closed the WebSocket: with 1012 if it leaves and the client is to connect again."""

    def __init__(self, code: int, reason: str | None) -> None:
        super().__init__(f"the server closed it with code {code:d}" + (f": {reason}" if reason else ""))
        self.code = code
        self.reason = reason


FAILURES: Final = (
    UpgradeRefusedError,
    ClosedError,
    httpx.HTTPError,
    httpcore.NetworkError,
    ProtocolError,
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    OSError,
)
"""The exceptions of a connection that is lost, or that does not open."""


@define(eq=False)
class Socket:
    """An open WebSocket, for one task that reads and one that writes.

    Attributes:
        stream: the bytes under it.
        heard: whether something came since the owner set this to False.
    """

    stream: httpcore.AsyncNetworkStream
    heard: bool = True
    _protocol: Protocol = attrs.field(factory=lambda: Protocol(ConnectionType.CLIENT))
    _pieces: list[str] = attrs.field(factory=list)
    _writing: bool = False

    async def read(self) -> tuple[list[str], list[Event]]:
        """Wait for bytes; return the messages that they complete, and the answers to send. Raises FAILURES."""
        data = await self.stream.read(CHUNK)
        if not data:
            raise anyio.EndOfStream
        self.heard = True
        self._protocol.receive_data(data)
        messages, answers = list[str](), list[Event]()
        for event in self._protocol.events():
            if isinstance(event, TextMessage):
                self._pieces.append(event.data)
                if event.message_finished:
                    messages.append("".join(self._pieces))
                    self._pieces.clear()
            elif isinstance(event, Ping | CloseConnection):
                answers.append(event.response())
        return messages, answers

    async def write(self, event: Event) -> None:
        """Send an event. Raises FAILURES. Cancelling it may leave half a frame: nothing can be sent afterwards."""
        data = self._protocol.send(event)
        self._writing = True
        await self.stream.write(data)
        self._writing = False

    async def say_goodbye(self) -> None:
        """Tell the server that the client leaves, if it can be told."""
        if self._protocol.state is ConnectionState.OPEN and not self._writing:
            # Shielded: clients often leave by cancellation, and without a goodbye the server takes them for silent.
            with anyio.move_on_after(GOODBYE, shield=True), suppress(*FAILURES):
                await self.write(CloseConnection(1000))


@asynccontextmanager
async def open_socket(http: httpx.AsyncClient, url: str, headers: Mapping[str, str]) -> AsyncIterator[Socket]:
    """Open a WebSocket for a body, and close it. Raises FAILURES."""
    nonce = generate_nonce()
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": nonce.decode(),
        "Sec-WebSocket-Version": "13",
    }
    async with http.stream("GET", url, headers={**headers, **upgrade}) as response:
        if response.status_code != UPGRADED:
            raise UpgradeRefusedError(response.status_code)
        if response.headers.get("Sec-WebSocket-Accept", "").encode() != generate_accept_token(nonce):
            raise httpx.RemoteProtocolError("its answer to the WebSocket handshake is wrong")
        socket = Socket(response.extensions["network_stream"])
        try:
            yield socket
        finally:
            await socket.say_goodbye()
