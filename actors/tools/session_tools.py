"""The MCP servers of a runtime, and those that single sessions bring."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import attrs
import trio

from warren.actors.supervision import supervised_nursery
from warren.actors.tools.mcp.pool import McpPool
from warren.errors import InvalidParamsError, WarrenError
from warren.health import McpHealth
from warren.service import SessionService
from warren.tool_config import McpServer
from warren.tools import Tool


class SessionTools(Protocol):
    """A way to give single sessions MCP servers of their own."""

    async def add_servers(self, session_id: str, servers: Sequence[McpServer]) -> None:
        """Give a session servers, besides those that it has; one of a name that it knows takes that one's place.

        Their tools are offered in this session alone, from its next turn on. Returns once each is connected or failed
        to, at the latest after some seconds: one that is late, or comes back, is offered then. They last until
        `drop_servers`, or until the session is archived or deleted, or the runtime ends; no store holds them.

        Raises SessionNotFoundError, and InvalidParamsError where two have one name or the extra `mcp` is not installed;
        then nothing changed. Cancelling it drops all that the session has.
        """
        ...

    async def drop_servers(self, session_id: str) -> None:
        """End what `add_servers` began; returns when the processes are gone. A session without any is fine."""
        ...


@asynccontextmanager
async def open_pool(servers: Sequence[McpServer]) -> AsyncIterator["RuntimeServers"]:
    """Connect to the servers that all sessions get, for as long as the body lasts. Raises InvalidParamsError."""
    async with McpPool.running(servers) as pool:
        yield RuntimeServers(pool, len(servers))


@attrs.frozen
class RuntimeServers:
    """The connected servers, as a runtime asks for them.

    Attributes:
        pool: the connections.
        count: how many of them are the runtime's own.
    """

    pool: McpPool
    count: int

    def tools(self, session_id: str | None, taken: Collection[str]) -> Mapping[str, Tool]:
        """Return the tools of the runtime's servers and of a session's, by name; see `Shared.passing_tools`."""
        return {each.spec.name: each for each in self.pool.tools(session_id, taken)}

    def health(self) -> Sequence[McpHealth]:
        """Return how the runtime's own servers do."""
        return [
            McpHealth(
                each.name, "ok" if each.state == "ready" else "degraded", each.state, each.restarts, each.last_error
            )
            for each in self.pool.health()[: self.count]
        ]


@asynccontextmanager
async def open_session_tools(servers: RuntimeServers, service: SessionService) -> AsyncIterator[SessionTools]:
    """Let sessions have servers of their own, for as long as the body lasts."""
    async with supervised_nursery() as nursery:
        yield _Pooled(servers.pool, service, nursery)
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class _Own:
    """What one session brought.

    Attributes:
        servers: by name.
        watch: ends the task that looks whether the session is still there.
    """

    servers: dict[str, McpServer]
    watch: trio.CancelScope = attrs.field(factory=trio.CancelScope)


@attrs.define(eq=False)
class _Pooled:
    """Session servers on the runtime's pool; see SessionTools."""

    _pool: McpPool
    _service: SessionService
    _nursery: trio.Nursery
    _own: dict[str, _Own] = attrs.field(factory=dict)

    async def add_servers(self, session_id: str, servers: Sequence[McpServer]) -> None:
        """See SessionTools."""
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
            if before.keys() & wanted.keys():  # the pool knows sessions, no single servers of them
                await self._pool.drop(session_id)
                await self._pool.add(session_id, list(after.values()))
            else:
                await self._pool.add(session_id, list(wanted.values()))
            added = True
        finally:
            if not added:
                self._forget(session_id)

    async def drop_servers(self, session_id: str) -> None:
        """See SessionTools."""
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
        """Drop the servers of a session that is archived or deleted: its events end then."""
        with own.watch:
            try:
                async with self._service.subscribe(session_id) as events:
                    async for _ in events:
                        pass
            except WarrenError:  # it is gone already, or the runtime is
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
            path = f"$.mcp_servers[{index}].name"
            raise InvalidParamsError(f"{path}: two servers have this name", path=path)
        found[server.name] = server
    return found
