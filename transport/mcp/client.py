"""The state that the server keeps for one client of MCP."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import mcp_types as types

from warren.base.values import define
from warren.transport.mcp import logs
from warren.transport.mcp.resources import Watched

CLIENT: Final = "warren.mcp.client"
"""The key in the scope of a request (ASGI) whose value is its client."""


@define(eq=False)
class McpClient:
    """One client: over HTTP an MCP session, or a request that belongs to none; else the other end of two streams.

    Attributes:
        level: the level of the log messages that it gets.
        watched: its subscriptions.
        calls: its calls of tools that are not answered.
    """

    level: types.LoggingLevel = logs.USUAL
    watched: Watched = attrs.field(factory=Watched)
    calls: int = attrs.field(default=0, init=False)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the client from counting as idle during the block."""
        yield
