"""The backoff and the state of a connection to an MCP server; plain values, no I/O."""

from typing import Literal

import attrs

from warren.fields import not_negative, positive
from warren.tool_config import NAME, McpServer
from warren.values import frozen

__all__ = ["NAME", "ConnectBackoff", "McpServer", "McpStatus", "State"]
State = Literal["connecting", "ready", "failed"]


@frozen
class ConnectBackoff:
    """The waits between attempts to connect, which go on for ever.

    Attributes:
        initial: seconds after the first failure.
        factor: factor of each further wait.
        maximum: seconds of the longest wait.
        jitter: the random share by which a wait differs, so that servers are not retried all at once.
        healthy: after a connection of so many seconds the waits start at `initial` again.
    """

    initial: float = attrs.field(default=0.5, validator=not_negative)
    factor: float = attrs.field(default=2.0, validator=positive)
    maximum: float = attrs.field(default=30.0, validator=not_negative)
    jitter: float = attrs.field(default=0.2, validator=not_negative)
    healthy: float = attrs.field(default=10.0, validator=not_negative)

    def delay(self, failures: int, chance: float) -> float:
        """Return the seconds to wait after consecutive failures; `chance` is a random number from 0 to 1."""
        wait = self.initial
        for _ in range(failures - 1):
            wait = min(wait * self.factor, self.maximum)
            if wait == self.maximum:
                break
        return max(0.0, min(wait, self.maximum) * (1 + self.jitter * (2 * chance - 1)))


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
