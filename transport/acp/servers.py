"""The MCP servers that a client names for a session: their check, and their connection if the runtime offers it."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.base.errors import InvalidParamsError, WarrenError
from warren.base.fields import FieldValueError
from warren.base.values import define, frozen
from warren.settings.tool_config import McpServer
from warren.transport.acp.params import read

if TYPE_CHECKING:
    from warren.actors.tools.session_tools import SessionTools

NAME: Final = 64
"""Characters of a server's name in the runtime. The names that clients give are not bounded."""
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9_-]+")
_NO_SSE: Final = "is not supported: this agent speaks to MCP servers over stdio and http"

logger: Final = logging.getLogger(__name__)


@frozen
class _Pair:
    """A variable of a server's environment, or a header of its requests."""

    name: str
    value: str = attrs.field(repr=False)


@frozen
class _Stdio:
    """A server that is a program, spoken to over its standard streams."""

    name: str
    command: str
    args: tuple[str, ...]
    env: tuple[Mapping[str, Any], ...] = attrs.field(repr=False)


@frozen
class _Http:
    """A server that is reached over HTTP."""

    name: str
    url: str
    headers: tuple[Mapping[str, Any], ...] = attrs.field(repr=False)


def read_servers(given: Sequence[Mapping[str, Any]] | None) -> tuple[McpServer, ...]:
    """Return the MCP servers of a request. Their names are changed to valid ones that differ.

    Raises:
        InvalidParamsError: if a field is bad, with its path, such as `$.mcpServers[0].url`.
    """
    found: list[McpServer] = []
    for index, data in enumerate(given or ()):
        taken = {server.name for server in found}
        found.append(_server(data, f"$.mcpServers[{index}]", taken))
    return tuple(found)


def _server(data: Mapping[str, Any], root: str, taken: set[str]) -> McpServer:
    kind = data.get("type", "stdio")
    try:
        if kind == "stdio":
            program = read(_Stdio, data, root)
            env = _pairs(program.env, f"{root}.env")
            return McpServer(_name(program.name, taken), program.command, program.args, env, shared=False)
        if kind == "http":
            remote = read(_Http, data, root)
            headers = _pairs(remote.headers, f"{root}.headers")
            return McpServer(_name(remote.name, taken), url=remote.url, headers=headers, shared=False)
    except FieldValueError as exc:
        raise InvalidParamsError.at(f"{root}.{exc.field}", exc.problem) from None
    raise InvalidParamsError.at(f"{root}.type", _NO_SSE if kind == "sse" else "must be one of stdio, http")


def _pairs(pairs: Sequence[Mapping[str, Any]], root: str) -> dict[str, str]:
    read_ = [read(_Pair, pair, f"{root}[{index}]") for index, pair in enumerate(pairs)]
    return {pair.name: pair.value for pair in read_}


def _name(given: str, taken: set[str]) -> str:
    """Return a valid name like the given one, which is not taken. Errors and the names of tools contain it."""
    plain = _UNUSUAL.sub("_", given).strip("_")[:NAME] or "server"
    number, name = 1, plain
    while name in taken:
        number += 1
        name = f"{plain[: NAME - len(str(number)) - 1]}_{number}"
    return name


@define(eq=False)
class Servers:
    """The MCP servers of the client's sessions.

    Attributes:
        tools: connects sessions to servers; None if the runtime connects to none.
    """

    tools: "SessionTools | None" = None
    _of: dict[str, tuple[McpServer, ...]] = attrs.field(factory=dict)

    async def take(self, session_id: str, servers: tuple[McpServer, ...]) -> None:
        """Replace the servers of a session. A server that does not answer is logged and does not fail the session."""
        if self._of.get(session_id, ()) == servers:
            return
        await self.drop(session_id)
        if servers and self.tools is None:
            logger.warning("session %s: its MCP servers are ignored: this agent connects to none", session_id)
        self._of[session_id] = servers
        if self.tools is None or not servers:
            return
        try:
            await self.tools.add_servers(session_id, servers)
        except WarrenError as exc:
            logger.warning("session %s: no MCP servers: %s", session_id, exc)

    async def drop(self, session_id: str) -> None:
        """Disconnect a session from its servers."""
        if self._of.pop(session_id, ()) and self.tools is not None:
            await self.tools.drop_servers(session_id)

    async def drop_all(self) -> None:
        """Disconnect all sessions from their servers."""
        for session_id in tuple(self._of):
            await self.drop(session_id)
