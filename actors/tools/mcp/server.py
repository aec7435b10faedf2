"""What is to be known of an MCP server, and how its connection does; plain values, no I/O."""

from typing import Literal

import attrs

from warren.fields import not_negative, positive
from warren.tool_config import NAME, McpServer

__all__ = ["NAME", "Backoff", "McpServer", "McpStatus", "State"]
State = Literal["connecting", "ready", "failed"]


@attrs.frozen
class Backoff:
    """How long a connection that failed waits before it is tried again; it is tried for ever. Times in seconds.

    Attributes:
        initial: after the first failure.
        factor: how much longer after each more.
        maximum: at most.
        jitter: the share by which a wait is longer or shorter at random, so that not all come at once.
        healthy: a connection that lasted this long starts at `initial` again.
    """

    initial: float = attrs.field(default=0.5, validator=not_negative)
    factor: float = attrs.field(default=2.0, validator=positive)
    maximum: float = attrs.field(default=30.0, validator=not_negative)
    jitter: float = attrs.field(default=0.2, validator=not_negative)
    healthy: float = attrs.field(default=10.0, validator=not_negative)

    def delay(self, failures: int, chance: float) -> float:
        """Return the wait after so many failures in a row; `chance` is from 0 to 1."""
        wait = self.initial
        for _ in range(failures - 1):
            wait = min(wait * self.factor, self.maximum)
            if wait == self.maximum:
                break
        return max(0.0, min(wait, self.maximum) * (1 + self.jitter * (2 * chance - 1)))


@attrs.frozen
class McpStatus:
    """How the connection to a server does.

    Attributes:
        name: the server's.
        state: failed while it waits to be tried again.
        tools: how many tools it has offered last.
        restarts: how often it has been connected anew.
        last_error: what ended the connection, or kept it from coming about, the last time; also where it is back.
    """

    name: str
    state: State
    tools: int = 0
    restarts: int = 0
    last_error: str | None = None
