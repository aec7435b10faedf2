"""HTTP clients of the gateway: httpx, one that reads events, and bytes in a test's hand."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import h11
import httpx
import trio

from tests.support.fake_service import FakeService
from tests.transport.clients import HOST, gateway
from warren.calls.facade import RuntimeService

TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Never used; without it each client would read the certificates of the world."""


@asynccontextmanager
async def rest(service: RuntimeService, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve sessions for a body; yields a client of the gateway."""
    async with gateway(service, **settings) as port, client(port) as http:
        yield http


@asynccontextmanager
async def client(port: int, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """Make a client for a body; it keeps its connections."""
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}", headers=headers, timeout=10, verify=TLS) as http:
        yield http


def port_of(http: httpx.AsyncClient) -> int:
    """Return the port that a client talks to."""
    port = http.base_url.port
    assert port is not None
    return port


async def create(http: httpx.AsyncClient, **params: Any) -> str:
    """Create a session, without a turn unless there is a prompt; return its id."""
    response = await http.post("/sessions", json={"prompt": None, **params})
    assert response.status_code == 201, response.text
    session_id = response.json()["session_id"]
    assert isinstance(session_id, str)
    return session_id


async def free(port: int) -> bool:
    """Return whether there is a place for one more connection."""
    async with client(port) as http:
        return (await http.get("/health")).status_code == 200


async def until_free(port: int) -> None:
    """Return once there is a place for one more connection; fail where there will be none soon."""
    with trio.fail_after(5):
        while not await free(port):
            pass


async def when_free(http: httpx.AsyncClient, path: str) -> httpx.Response:
    """Return the answer of the first request that has a place: who asked before may just be leaving its own."""
    with trio.fail_after(5):
        while (answer := await http.get(path)).status_code == 503:
            pass
    return answer


async def unwatched(service: FakeService, session_id: str) -> None:
    """Return once nobody follows a session."""
    while service.readers(session_id):  # noqa: ASYNC110 - what is looked at has no event
        await trio.sleep(0.01)


def problem(response: httpx.Response) -> tuple[int, str, str | None]:
    """Return what an error says: status, code, and the path of the bad field."""
    body = response.json()
    assert body.keys() <= {"code", "message", "retryable", "session_id", "details"}, body
    assert {"code", "message", "retryable"} <= body.keys(), body
    assert response.headers["content-type"] == "application/json"
    return response.status_code, body["code"], body.get("details", {}).get("path")


@attrs.frozen
class Event:
    """A server-sent event; its `id` is 0 if it has none."""

    id: int
    kind: str
    data: Any


@attrs.define(eq=False)
class Events:
    """A stream of events as its client sees it.

    Attributes:
        stream: the connection.
        head: of the response.
        comments: how many comments came.
        last_word: what said that there is nothing to come back for; None where nothing did.
    """

    stream: trio.SocketStream
    head: h11.Response | None = None
    comments: int = 0
    last_word: Any = None
    _protocol: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.CLIENT))
    _buffer: bytearray = attrs.field(factory=bytearray)
    _searched: int = 0

    async def open(self, path: str, **headers: str) -> "Events":
        """Ask for the stream and read the head of the answer."""
        fields = {"Host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
        request = h11.Request(method="GET", target=path, headers=list(fields.items()))
        data = self._protocol.send(request)
        assert data is not None
        await self.stream.send_all(data + (self._protocol.send(h11.EndOfMessage()) or b""))
        head = await self._next()
        assert isinstance(head, h11.Response)
        self.head = head
        return self

    async def next(self) -> Event | None:
        """Return the next event; None at the end of the stream."""
        while (end := self._buffer.find(b"\n\n", self._searched)) < 0:
            self._searched = max(0, len(self._buffer) - 1)
            data = await self._next()
            if isinstance(data, h11.EndOfMessage):
                return None
            assert isinstance(data, h11.Data), data
            self._buffer += data.data
        block = self._buffer[:end].decode()
        del self._buffer[: end + 2]
        self._searched = 0
        if block.startswith(":"):
            self.comments += 1
            return await self.next()
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        if fields["event"] == "end":
            assert "id" not in fields
            self.last_word = json.loads(fields["data"])
            return await self.next()
        return Event(int(fields.get("id", 0)), fields["event"], json.loads(fields["data"]))

    async def until(self, kind: str) -> list[Event]:
        """Return events up to the next one of a kind."""
        found: list[Event] = []
        while not found or found[-1].kind != kind:
            event = await self.next()
            assert event is not None, found
            found.append(event)
        return found

    async def rest(self) -> list[Event]:
        """Return events up to the end of the stream."""
        found: list[Event] = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found

    async def _next(self) -> Any:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            self._protocol.receive_data(await self.stream.receive_some())
        return event


@asynccontextmanager
async def events(port: int, session_id: str, query: str = "", **headers: str) -> AsyncIterator[Events]:
    """Follow a session's events for a body."""
    async with await trio.open_tcp_stream(HOST, port) as stream:
        followed = await Events(stream).open(f"/sessions/{session_id}/events{query}", **headers)
        assert followed.head is not None
        assert followed.head.status_code == 200
        yield followed


def seqs(found: list[Event]) -> list[int]:
    """Return every seq that events stand for."""
    return [seq for event in found for seq in range(event.data.get("first_seq", event.id), event.id + 1)]


def text(found: list[Event]) -> str:
    """Join the text that events bring."""
    return "".join(event.data["event"].get("delta", "") for event in found)
