"""The MCP servers of a runtime, and those of single sessions."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import attrs
import trio

from warren.actors.supervision import background
from warren.actors.tools.mcp.pool import McpPool
from warren.base.errors import InvalidParamsError, WarrenError
from warren.base.values import define, frozen
from warren.calls.facade import SessionService
from warren.models.tools import Tool
from warren.reports.health import McpHealth
from warren.settings.tool_config import McpServer


class SessionTools(Protocol):
    """Gives single sessions MCP servers of their own."""

    async def add_servers(self, session_id: str, servers: Sequence[McpServer]) -> None:
        """Add servers to a session; a server of a known name replaces the old one.

        Their tools are offered in this session alone, from its next turn on. It returns when each server has connected
        or failed to, at the latest after some seconds; tools of a server that connects later are offered then. The
        servers last until `drop_servers`, until the session is archived or deleted, or until the runtime ends; they are
        not stored. A cancellation drops all servers of the session.

        Raises:
            SessionNotFoundError: if the session is unknown; nothing has changed.
            InvalidParamsError: if two servers have one name, or the extra `mcp` is not installed; nothing has changed.
        """

    async def drop_servers(self, session_id: str) -> None:
        """End all servers of a session, and return when their processes have ended. A session may have none."""


@asynccontextmanager
async def open_pool(servers: Sequence[McpServer]) -> AsyncIterator["RuntimeServers"]:
    """Connect to the servers of all sessions for a body. Raises InvalidParamsError as `McpPool.running` does."""
    async with McpPool.running(servers) as pool:
        yield RuntimeServers(pool, len(servers))


@frozen
class RuntimeServers:
    """The connected servers of a runtime.

    Attributes:
        pool: the connections.
        count: number of the runtime's own servers.
    """

    pool: McpPool
    count: int

    def tools(self, session_id: str | None, taken: Collection[str]) -> Mapping[str, Tool]:
        """Return the present tools of the runtime's servers and of a session's, by name, none under a `taken` one."""
        return {each.spec.name: each for each in self.pool.tools(session_id, taken)}

    def origin_of(self, session_id: str, name: str) -> tuple[str, str] | None:
        """Return the server of a tool of a session, and the tool's own name there; None if it is of none."""
        return self.pool.origin_of(session_id, name)

    def untried(self, session_id: str) -> list[trio.Event]:
        """Return an event for each server of a session whose first attempt to connect goes on, set at its end."""
        return self.pool.untried(session_id)

    def health(self) -> Sequence[McpHealth]:
        """Return the states of the runtime's own servers."""
        return self.pool.health()[: self.count]


@asynccontextmanager
async def open_session_tools(servers: RuntimeServers, service: SessionService) -> AsyncIterator[SessionTools]:
    """Give sessions servers of their own for a body."""
    async with background() as nursery:
        yield _Pooled(servers.pool, service, nursery)


@define(eq=False)
class _Own:
    """The servers of one session.

    Attributes:
        servers: by name.
        watch: the scope of the task that waits for the end of the session.
    """

    servers: dict[str, McpServer]
    watch: trio.CancelScope = attrs.field(factory=trio.CancelScope)


@define(eq=False)
class _Pooled:
    """The tools of sessions, from the runtime's pool of MCP servers."""

    _pool: McpPool
    _service: SessionService
    _nursery: trio.Nursery
    _own: dict[str, _Own] = attrs.field(factory=dict)

    async def add_servers(self, session_id: str, servers: Sequence[McpServer]) -> None:
        wanted = _by_name(servers)
        await self._service.read(session_id)
        known = self._own.get(session_id)
        before = {} if known is None else known.servers
        after = {**before, **wanted}
        if after == before:
            return
        self._watch(session_id, after)
        added = False
        try:
            if before.keys() & wanted.keys():  # the pool drops all servers of a session, not single ones
                await self._pool.drop(session_id)
                await self._pool.add(session_id, list(after.values()))
            else:
                await self._pool.add(session_id, list(wanted.values()))
            added = True
        finally:
            if not added:
                self._forget(session_id)

    async def drop_servers(self, session_id: str) -> None:
        self._forget(session_id)
        await self._pool.drop(session_id)

    def _watch(self, session_id: str, servers: dict[str, McpServer]) -> None:
        own = self._own.get(session_id)
        if own is not None:
            own.servers = servers
            return
        self._own[session_id] = own = _Own(servers)
        self._nursery.start_soon(self._drop_at_the_end, session_id, own)

    async def _drop_at_the_end(self, session_id: str, own: _Own) -> None:
        """Drop the servers when the session is archived or deleted, which ends its events."""
        with own.watch:
            try:
                async with self._service.subscribe(session_id) as events:
                    async for _ in events:
                        pass
            except WarrenError:  # the session or the runtime has ended already
                pass
            await self.drop_servers(session_id)

    def _forget(self, session_id: str) -> None:
        own = self._own.pop(session_id, None)
        if own is not None:
            own.watch.cancel()


def _by_name(servers: Sequence[McpServer]) -> dict[str, McpServer]:
    found: dict[str, McpServer] = {}
    for index, server in enumerate(servers):
        if server.name in found:
            raise InvalidParamsError.at(f"$.mcp_servers[{index}].name", "two servers have this name")
        found[server.name] = server
    return found
