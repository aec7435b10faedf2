"""The state of a connection to an MCP server; plain values, no I/O."""

from typing import Literal

from warren.base.values import frozen

State = Literal["connecting", "ready", "failed"]


@frozen
class McpStatus:
    """The state of the connection to a server.

    Attributes:
        name: the server's name.
        state: `failed` during the wait for the next attempt.
        tools: number of tools in the server's last list.
        restarts: number of reconnections.
        last_error: the newest error of the connection; it stays after a reconnection.
    """

    name: str
    state: State
    tools: int = 0
    restarts: int = 0
    last_error: str | None = None
