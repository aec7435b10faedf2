"""JSON-RPC as its clients see it, over lines or frames: replies by their ids, and what came before each of them."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair

from warren.actors.io.streams import LineReader

LATE: Final = 0.2
"""Seconds for which a slow client reads nothing."""
PAUSE: Final = 0.002
"""Seconds between two of its first messages."""
SLOWLY: Final = 50
"""How many messages it reads so."""
LONGEST: Final = 2**30
Message = dict[str, Any]
Serve = Callable[[tuple[trio.abc.ReceiveStream, trio.abc.SendStream]], Awaitable[None]]


@attrs.frozen
class Reply:
    """The reply to a request, and the notifications that came between the two, in order."""

    message: Message
    before: Sequence[Message]


@attrs.define(eq=False)
class _Asked:
    since: int
    reply: Reply | None = None
    came: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class Wire:
    """One connection.

    Attributes:
        send: sends one message.
        leave: ends the client's side.
        heard: every notification so far.
        asked: every request of the server so far.
    """

    send: Callable[[bytes], Awaitable[None]]
    leave: Callable[[], Awaitable[None]]
    heard: list[Message] = attrs.field(factory=list)
    asked: list[Message] = attrs.field(factory=list)
    _waiting: dict[int | None, _Asked] = attrs.field(factory=dict)
    _more: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _sending: trio.Lock = attrs.field(factory=trio.Lock)
    _last: int = 0

    async def request(self, method: str, params: object) -> Reply:
        """Send a request and return its reply."""
        self._last += 1
        message = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        return await self.raw(json.dumps(message).encode(), self._last)

    async def raw(self, message: bytes, request_id: int | None = None) -> Reply:
        """Send any message and return the reply under an id."""
        asked = self._waiting[request_id] = _Asked(len(self.heard))
        await self._send(message)
        await asked.came.wait()
        assert asked.reply is not None
        return asked.reply

    async def notify(self, method: str, params: object) -> None:
        """Send what gets no reply."""
        await self._send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    async def next_asked(self) -> Message:
        """Return the oldest request of the server that has no answer."""
        while not self.asked:
            await self._more.park()
        return self.asked.pop(0)

    async def answer(self, request: Message, result: object) -> None:
        """Answer a request of the server."""
        await self._send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode())

    async def heard_from(self, index: int) -> AsyncGenerator[Message, None]:
        """Yield notifications from a place on, without end."""
        while True:
            while index >= len(self.heard):
                await self._more.park()
            yield self.heard[index]
            index += 1

    async def read(self, receive: Callable[[], Awaitable[bytes | str | None]], *, slow: bool) -> None:
        """Take messages up to the end."""
        await trio.sleep(LATE if slow else 0)
        while (raw := await receive()) is not None:
            self._take(json.loads(raw))
            await trio.sleep(PAUSE if slow and len(self.heard) < SLOWLY else 0)

    async def _send(self, message: bytes) -> None:
        async with self._sending:
            await self.send(message)

    def _take(self, message: Message) -> None:
        if "method" in message:
            (self.asked if "id" in message else self.heard).append(message)
            self._more.unpark_all()
            return
        asked = self._waiting.pop(message["id"])
        asked.reply = Reply(message, self.heard[asked.since :])
        asked.came.set()


@asynccontextmanager
async def over_lines(serve: Serve, *, slow: bool = False) -> AsyncIterator[Wire]:
    """Connect to what serves two streams; what a slow client has not read cannot be written."""
    ours, theirs = lockstep_stream_pair() if slow else memory_stream_pair()
    lines = LineReader(ours, LONGEST)

    async def run() -> None:
        async with theirs:
            await serve((theirs, theirs))

    async def send(message: bytes) -> None:
        await ours.send_all(message + b"\n")

    wire = Wire(send, ours.send_stream.aclose)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        nursery.start_soon(_read_lines, wire, lines, slow)
        yield wire
        nursery.cancel_scope.cancel()


async def _read_lines(wire: Wire, lines: LineReader, slow: bool) -> None:  # noqa: FBT001 - started by a nursery
    await wire.read(lines.next, slow=slow)
