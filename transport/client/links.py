"""The connections of one client: opened when they are needed, and opened again with backoff when they are lost."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import attrs
from anyio.abc import TaskGroup

from warren.base.backoff import Backoff
from warren.base.errors import AgentError
from warren.base.values import define
from warren.transport.client.connection import Connection, Dial, Feed, LostError, OnChanges, RefusedError, RunTool

MAX_REQUESTS: Final = 200
"""Requests in flight on one connection; a gateway refuses more than 256 unless told otherwise."""
MAX_FEEDS: Final = 500
"""Sessions that one connection carries; a gateway refuses more than 1,000 subscriptions unless told otherwise."""
MAX_STARTING: Final = 8
"""Connections on which sessions are created at the same time."""
BACKOFF: Final = Backoff(first=0.05, longest=5.0, jitter=0.5)
"""The waits between attempts to connect."""
ATTEMPTS: Final = 5
"""How often one request is sent before it fails, if each connection is lost before its answer."""


@define(eq=False)
class Links:
    """The connections.

    A connection carries one stream a session: the events of a turn of this client, or a subscription. A second stream
    of the session gets another connection.

    Attributes:
        dial: opens connections.
        tasks: serves them.
        patience: seconds for which a call waits for a server that cannot be reached.
        closed: whether the client has ended: no connection is opened any more.
        most: bytes that a message may have, as the server has said; None if it was not asked.
    """

    dial: Dial
    tasks: TaskGroup
    patience: float
    closed: bool = False
    most: int | None = None
    _open: list[Connection] = attrs.field(factory=list)
    _own: set[Connection] = attrs.field(factory=set)  # those of calls with tools of their own, and of watches
    _opening: anyio.Lock = attrs.field(factory=anyio.Lock)
    _refused: tuple[float, RefusedError | None] = (0.0, None)  # the last call that got no connection
    _changed: anyio.Event = attrs.field(factory=anyio.Event)

    async def ask(self, method: str, params: object, *, repeatable: bool) -> Any:
        """Send a request on any connection, and return its result as plain data.

        If the connection is lost, or the server stops, the request is sent again; one that is not repeatable only if it
        was never sent.

        Raises:
            AgentError: with the cause `unreachable` if the server cannot be reached, with the cause `connection_lost`
                if the outcome is unknown.
            WarrenError: the error that the server answers with.
        """

        async def send() -> Any:
            connection = await self._find(lambda _each: True)
            return await connection.ask(method, params, self.tidy)

        return await self.repeat(send, repeatable=repeatable)

    async def run(self, session_id: str, method: str, params: Mapping[str, Any]) -> Any:
        """Send the request of a turn whose events nobody wants, once. Raises LostError, WarrenError.

        It takes no place of the session. On the connection of a subscription its answer comes behind its last event.
        """
        connection = await self._find(lambda each: each.may_run(session_id))
        connection.unheard[session_id] += 1

        def answered() -> None:
            connection.unheard[session_id] -= 1
            if not connection.unheard[session_id]:
                del connection.unheard[session_id]
            self.tidy()

        return await connection.ask(method, params, answered)

    async def repeat(self, send: Callable[[], Awaitable[Any]], *, repeatable: bool) -> Any:
        """Return the result of `send`; if the connection is lost under it, call it again, as `ask` says.

        A server that is told to stop leaves what it was asked for to the next one at its place.
        """
        attempt, stopped, pauses = 0, -math.inf, iter(BACKOFF)
        while attempt < ATTEMPTS:
            asked = anyio.current_time()
            try:
                return await send()
            except AgentError as exc:
                if not (repeatable and exc.retryable and exc.cause == "shutting_down"):
                    raise
                if asked > stopped + self.patience:  # not one that stops still
                    stopped, pauses = anyio.current_time(), iter(BACKOFF)
                pause = next(pauses)
                if anyio.current_time() + pause > stopped + self.patience:
                    raise
                await anyio.sleep(pause)
            except LostError as exc:
                attempt += 1
                if exc.sent and (attempt == ATTEMPTS or not repeatable):
                    problem = (
                        "the connection was lost before the answer: whether the request was carried out is unknown"
                    )
                    raise AgentError(problem, cause="connection_lost") from None
        raise AgentError("each connection was lost before the request was sent", cause="unreachable", retryable=True)

    async def claim(self, session_id: str | None, feed: Feed) -> "Claim":
        """Return a connection on which `feed` gets the events of a session; None for a session that is to be created.

        Raises AgentError(cause="unreachable").
        """
        if session_id is not None:
            connection = await self._find(
                lambda each: not (session_id in each.feeds or each.unheard[session_id]) and len(each.feeds) < MAX_FEEDS
            )
            connection.follow(session_id, feed)
            return Claim(self, connection, session_id, feed)
        while True:
            crowded = sum(not each.lost for each in self._open) >= MAX_STARTING
            free = [each for each in self._open if not each.lost and each.starting is None]
            if crowded and not free:
                await self._changed.wait()
                continue
            connection = await self._find(lambda each: each.starting is None)
            connection.follow(None, feed)
            return Claim(self, connection, None, feed)

    @asynccontextmanager
    async def own(
        self, run_tool: RunTool | None = None, on_changes: OnChanges | None = None
    ) -> AsyncIterator[Connection]:
        """Open a connection for a body: for a call with tools of its own, or for a watch of the list of sessions."""
        self._check_open()
        connection = await self._connect(Connection(run_tool, on_changes), anyio.current_time() + self.patience)
        self._own.add(connection)
        try:
            yield connection
        finally:
            self._own.discard(connection)
            connection.close()

    async def open(self) -> None:
        """Open the first connection. Raises AgentError(cause="unreachable") after one attempt."""
        try:
            await self._dial(Connection())
        except RefusedError as exc:
            raise unreachable(exc) from None

    def bound(self, most: int | None) -> None:
        """Send no message of more bytes from now on."""
        self.most = most
        for each in (*self._open, *self._own):
            each.most = most

    def close(self) -> None:
        """Close all connections; calls that wait for an answer fail. A later call opens one again."""
        for each in (*self._open, *self._own):
            each.close()

    async def cut(self) -> None:
        """Lose all connections without a word to the server, as if the network had failed."""
        for each in (*self._open, *self._own):
            await each.cut()

    def tidy(self) -> None:
        """Close connections that are no longer needed but for one, and wake the calls that wait for room."""
        self._changed.set()
        self._changed = anyio.Event()
        self._open = [each for each in self._open if not each.lost]
        for each in [each for each in self._open if each.idle][: len(self._open) - 1]:
            self._open.remove(each)
            each.close()

    async def _find(self, fits: Callable[[Connection], bool]) -> Connection:
        """Return an open connection that has room and fits, or open one. Raises AgentError(cause="unreachable")."""
        begun = anyio.current_time()
        while (found := self._open_one(fits)) is None:
            async with self._opening:
                if self._open_one(fits) is None:  # else another call has opened it meanwhile
                    self._check_open()
                    self._check_reachable(begun)
                    await self._connect(Connection(), begun + self.patience)
        return found

    def _check_open(self) -> None:
        """Raise AgentError(cause="unreachable") if the client has ended."""
        if self.closed:
            raise AgentError("the client has been closed", cause="unreachable")

    def _check_reachable(self, begun: float) -> None:
        """Raise AgentError(cause="unreachable") if another call, after this one, has not got a connection either.

        Calls wait for each other's attempts. If the server hangs, each would else wait for those of all before it.
        """
        at, refusal = self._refused
        if refusal is not None and at >= begun and anyio.current_time() >= begun + self.patience:
            raise unreachable(refusal)

    def _open_one(self, fits: Callable[[Connection], bool]) -> Connection | None:
        usable = (each for each in self._open if not each.lost and each.in_flight < MAX_REQUESTS and fits(each))
        return next(usable, None)

    async def _connect(self, connection: Connection, deadline: float) -> Connection:
        """Open a connection, with one attempt after another. Raises AgentError(cause="unreachable")."""
        pauses = iter(BACKOFF)
        while True:
            try:
                return await self._dial(connection)
            except RefusedError as exc:
                pause = next(pauses)
                if not exc.retryable or anyio.current_time() + pause > deadline:
                    self._refused = anyio.current_time(), exc
                    raise unreachable(exc) from None
            await anyio.sleep(pause)
            self._check_open()
            connection = Connection(connection.run_tool, connection.on_changes)

    async def _dial(self, connection: Connection) -> Connection:
        connection.most = self.most
        await self.tasks.start(connection.run, self.dial)
        if connection.run_tool is None and connection.on_changes is None:
            self._open.append(connection)
        return connection


@define(eq=False)
class Claim:
    """A session's place on a connection: it is given up when `release` is called, or when the connection is lost."""

    links: Links
    connection: Connection
    session_id: str | None
    feed: Feed

    async def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        """Send the request whose events the feed gets; the answer gives the place up. See `Connection.ask`."""
        return await self.connection.ask(method, params, self.release)

    def release(self) -> None:
        """Give the place up. Idempotent."""
        connection = self.connection
        if self.session_id is not None:
            if connection.feeds.get(self.session_id) is self.feed:
                del connection.feeds[self.session_id]
        elif connection.starting is self.feed:
            connection.starting = None
        else:
            for session_id in [each for each, feed in connection.feeds.items() if feed is self.feed]:
                del connection.feeds[session_id]
        self.links.tidy()


def unreachable(exc: RefusedError) -> AgentError:
    """Return the error of a call that gets no connection."""
    details = {} if exc.status is None else {"status": exc.status}
    return AgentError(str(exc), cause="unreachable", retryable=exc.retryable, details=details)
