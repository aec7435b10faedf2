"""The connections to all MCP servers of a runtime and of its sessions."""

from collections.abc import AsyncIterator, Collection, Hashable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import attrs
import trio

from warren.actors.supervision import supervised_nursery
from warren.actors.tools.mcp.naming import names, origin
from warren.base.backoff import Backoff
from warren.base.errors import InvalidParamsError
from warren.base.extras import missing
from warren.base.values import define
from warren.models.tools import Tool
from warren.reports.health import McpHealth
from warren.settings.tool_config import McpServer

if TYPE_CHECKING:
    from warren.actors.tools.mcp.connection import McpConnection

STARTUP: Final = 5.0
BACKOFF: Final = Backoff(first=0.5, longest=30.0, jitter=0.2)
"""The waits between attempts to connect, which go on for ever."""


@define(eq=False)
class _Held:
    """A connection, and the sessions that use it; None is the runtime itself."""

    connection: "McpConnection"
    owners: set[Hashable | None]


@define(eq=False)
class McpPool:
    """The MCP servers of a runtime and of its sessions.

    The failure of a server ends nothing else: its calls get errors, and the connection is retried for ever.

    Attributes:
        startup: seconds to wait for servers to connect; a server that takes longer is used as soon as it is ready.
    """

    _nursery: trio.Nursery
    _backoff: Backoff
    startup: float = STARTUP
    _held: list[_Held] = attrs.field(factory=list, init=False)
    _each: tuple[McpServer, ...] = attrs.field(default=(), init=False)

    @classmethod
    @asynccontextmanager
    async def running(
        cls, servers: Sequence[McpServer] = (), *, backoff: Backoff = BACKOFF, startup: float = STARTUP
    ) -> AsyncIterator[Self]:
        """Connect to the servers of a runtime for a body; when it is left, all of them have ended.

        The body begins when each server has connected or failed to, at the latest after `startup` seconds. An
        unshared server gets a connection for each session that is added.

        Raises:
            InvalidParamsError: if two servers have one name, or the extra `mcp` is not installed.
        """
        _check(servers)
        async with supervised_nursery() as nursery:
            pool = cls(nursery, backoff, startup)
            pool._each = tuple(server for server in servers if not server.shared)
            try:
                await pool._wait_tried([pool._hold(server, None) for server in servers if server.shared])
                yield pool
            finally:
                for held in pool._held:
                    held.connection.close()

    async def add(self, owner: Hashable, servers: Sequence[McpServer] = ()) -> None:
        """Connect to the given servers, and to the runtime's unshared ones, for one session.

        Sessions that add equal shared servers have one connection. It waits and raises as `running` does. A
        cancellation drops the session's servers.
        """
        _check(servers)
        added = [self._hold(server, owner) for server in (*self._each, *servers)]
        try:
            await self._wait_tried(added)
        except trio.Cancelled:
            self._let_go(owner)
            raise

    async def drop(self, owner: Hashable) -> None:
        """End the connections that only this session has, and return when they have ended, even if it is cancelled."""
        # Shielded: a session that is gone may leave no server process behind.
        with trio.CancelScope(shield=True):
            for held in self._let_go(owner):
                await held.connection.ended.wait()

    def tools(self, owner: Hashable | None = None, taken: Collection[str] = ()) -> Sequence[Tool]:
        """Return the present tools of the runtime's servers and of a session's.

        Tools of one name, or of a name that is `taken`, are called `server_tool`. A call while the server is away
        gets an error at once.
        """
        mine = [held for held in self._held if held.owners & {None, owner}]
        offers = [(held, spec) for held in mine for spec in held.connection.tools]
        called = names([(held.connection.server.name, spec.name) for held, spec in offers], taken)
        return [
            Tool(
                attrs.evolve(spec, name=name),
                partial(held.connection.call, spec.name),
                is_async=True,
                timeout=held.connection.timeout_of(spec.name),
                category="mcp",
                # A server of the settings that is not shared has a connection for each session.
                of_client=None not in held.owners and held.connection.server not in self._each,
                restart=held.connection.restart_of(spec.name),
                remote=held.connection,
            )
            for (held, spec), name in zip(offers, called, strict=True)
        ]

    def origin_of(self, owner: Hashable | None, name: str) -> tuple[str, str] | None:
        """Return the server of an owner's tool, and the tool's own name there; None if it is of none."""
        mine = [held for held in self._held if held.owners & {None, owner}]
        return origin(
            name, [(held.connection.server.name, spec.name) for held in mine for spec in held.connection.tools]
        )

    def untried(self, owner: Hashable | None) -> list[trio.Event]:
        """Return an event for each server of an owner and the runtime that has not connected or failed to, set then."""
        tried = [held.connection.tried for held in self._held if held.owners & {None, owner}]
        return [each for each in tried if not each.is_set()]

    def health(self) -> Sequence[McpHealth]:
        """Return the state of each connection, the runtime's first."""
        return [held.connection.health() for held in self._held]

    def _hold(self, server: McpServer, owner: Hashable | None) -> "McpConnection":
        for held in self._held:
            if server.shared and held.connection.server == server:
                held.owners.add(owner)
                return held.connection
        from warren.actors.tools.mcp.connection import McpConnection  # noqa: PLC0415 - it has an extra of its own

        connection = McpConnection(server, self._backoff)
        self._held.append(_Held(connection, {owner}))
        self._nursery.start_soon(connection.run)
        return connection

    def _let_go(self, owner: Hashable) -> list[_Held]:
        mine = [held for held in self._held if owner in held.owners]
        for held in mine:
            held.owners.discard(owner)
        unwanted = [held for held in mine if not held.owners]
        for held in unwanted:
            self._held.remove(held)
            held.connection.close()
        return unwanted

    async def _wait_tried(self, connections: Sequence["McpConnection"]) -> None:
        with trio.move_on_after(self.startup):
            for connection in connections:
                await connection.tried.wait()


def _check(servers: Sequence[McpServer]) -> None:
    if servers and (problem := missing("mcp", "MCP servers need")):
        raise InvalidParamsError(problem, path="mcp_servers")
    seen: set[str] = set()
    for index, server in enumerate(servers):
        if server.name in seen:
            raise InvalidParamsError("two servers have this name", path=f"mcp_servers[{index}].name")
        seen.add(server.name)
