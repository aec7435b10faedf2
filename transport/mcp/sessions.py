"""The MCP sessions of clients over HTTP: each is a transport of the official library, under an id and bounds of ours.

An id names the process that has the session: the number of its node, before a dot. So another node that gets a request
of the session can pass it on.
"""

import logging
import math
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import attrs
import trio
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_loop
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.transport_security import TransportSecuritySettings

from warren.base.values import define
from warren.transport.mcp.client import McpClient
from warren.transport.rpc.shares import Owner, Part, Shares

IDLE: Final = 30 * 60.0
"""Seconds without a request, an open stream or a call after which a session ends."""
SECRET: Final = 24
"""Random bytes in the id of a session."""
LONGEST: Final = 20
"""Digits of the number of a node, at least one more than any has."""

logger: Final = logging.getLogger(__name__)


def node_of(session_id: str) -> int | None:
    """Return the number of the node that an id names; None if it names none."""
    number = session_id.partition(".")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) < LONGEST else None


@define(eq=False)
class McpSession(McpClient):
    """One MCP session. It is idle while it has no request, no open stream and no call that runs.

    Attributes:
        id: its id.
        owner: the principal that has opened it; it is open to no other one.
        transport: carries its messages.
        sessions: the sessions of the process.
        begun: whether its client has got its id.
        scope: the task that serves it; its deadline is the end of an idle session.
    """

    id: str = attrs.field(kw_only=True)
    owner: Owner = attrs.field(kw_only=True)
    transport: StreamableHTTPServerTransport = attrs.field(kw_only=True)
    sessions: "McpSessions" = attrs.field(kw_only=True)
    begun: bool = attrs.field(default=False, init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _uses: int = attrs.field(default=0, init=False)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        self._uses += 1
        self.sessions.used(self)
        try:
            yield
        finally:
            self._uses -= 1
            if not self._uses:
                self.sessions.rests(self)


@define(eq=False)
class McpSessions:
    """The MCP sessions of one process, within their bounds.

    A session beyond the bound of its principal takes the place of the principal's own session that has been idle
    longest. Beyond the bound of the tenant it is one of the principal that has most in it, and beyond that of the
    process one of the tenant that has most; but no session of one who has fewer gives way, and none that is not idle.

    Attributes:
        server: answers the messages.
        lifespan: the state of the server, which lives for as long as the sessions.
        security: the rule for the headers Host and Origin; None if a server in front checks them.
        shares: the room for sessions.
        tasks: serves the sessions.
    """

    server: Server[dict[str, Any]]
    lifespan: dict[str, Any]
    security: TransportSecuritySettings | None
    shares: Shares
    tasks: trio.Nursery
    _sessions: dict[str, McpSession] = attrs.field(factory=dict, init=False)
    _idle: dict[Owner, dict[McpSession, None]] = attrs.field(factory=dict, init=False)

    def find(self, session_id: str, owner: Owner) -> McpSession | None:
        """Return the session of a principal with an id; None if there is none, or it is another one's."""
        found = self._sessions.get(session_id)
        return None if found is None or found.owner != owner or found.scope.cancel_called else found

    @asynccontextmanager
    async def opened(self, owner: Owner, node: int | None) -> AsyncIterator[McpSession]:
        """Open a session for the request that begins it, the block; end it unless it has begun by then.

        Raises CapacityExceededError if there is no room for it, and no idle session that gives way.

        Args:
            owner: the principal.
            node: the number of this process among the nodes; None if it is no node.
        """
        while (part := self.shares.full(owner)) is not None:
            gives_way = self._gives_way(owner, part)
            if gives_way is None:
                raise self.shares.refusal(owner, part)
            self.end(next(iter(self._idle[gives_way])))
        session_id = f"{'' if node is None else node}.{secrets.token_urlsafe(SECRET)}"
        transport = StreamableHTTPServerTransport(session_id, security_settings=self.security)
        session = McpSession(id=session_id, owner=owner, transport=transport, sessions=self)
        self.shares.add(owner, 1)
        self._sessions[session_id] = session
        try:
            with session.in_use():
                await self.tasks.start(self._serve, session)
                yield session
        finally:
            if not session.begun:
                self.end(session)

    def end(self, session: McpSession) -> None:
        """Let a session end; from now on its id is unknown. Idempotent."""
        session.scope.cancel()
        if self._sessions.pop(session.id, None) is not None:
            self.shares.add(session.owner, -1)
            self.used(session)

    async def _serve(self, session: McpSession, *, task_status: trio.TaskStatus[None]) -> None:
        transport = session.transport
        try:
            async with transport.connect() as (requests, answers):
                try:
                    with session.scope:
                        task_status.started()
                        await serve_loop(
                            self.server, requests, answers, lifespan_state=self.lifespan, session_id=session.id
                        )
                finally:
                    self.end(session)
                    session.watched.close()
                    with trio.CancelScope(shield=True):  # its streams end, and its requests that wait
                        await transport.terminate()
        except Exception:
            logger.exception("an MCP session failed")

    # -- which of them are idle

    def used(self, session: McpSession) -> None:
        """Note that a session is not idle, or no more."""
        session.scope.deadline = math.inf
        idle = self._idle.get(session.owner)
        if idle is not None:
            idle.pop(session, None)
            if not idle:
                del self._idle[session.owner]

    def rests(self, session: McpSession) -> None:
        """Note that a session is idle from now on."""
        if session.id in self._sessions:
            session.scope.deadline = trio.current_time() + IDLE
            self._idle.setdefault(session.owner, {})[session] = None

    def _gives_way(self, owner: Owner, part: Part) -> Owner | None:
        """Return the principal whose oldest idle session ends for one of `owner`; None if there is none."""
        if part == "token":
            among = [owner] if owner in self._idle else []
        else:
            own = self._weight(owner)
            among = [each for each in self._idle if each == owner or self._weight(each) > own]
            if part == "tenant":
                among = [each for each in among if each[0] == owner[0]]
        return max(among, key=self._weight, default=None)

    def _weight(self, owner: Owner) -> tuple[int, int]:
        """Return how much a principal has: those who have most give way first."""
        return self.shares.of_tenant(owner[0]), self.shares.of(owner)
