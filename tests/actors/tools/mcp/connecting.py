"""Waiting for an MCP server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.actors.tools.mcp.world import LONG, SOON
from tests.support.waiting import until
from warren.actors.tools.mcp.pool import McpPool
from warren.settings.tool_config import McpServer


@asynccontextmanager
async def ready(*servers: McpServer) -> AsyncIterator[McpPool]:
    """Connect to servers that are there, or will be soon."""
    async with McpPool.running(servers, backoff=SOON, startup=LONG) as pool:
        await until(lambda: all(each.state == "ready" for each in pool.health()))
        yield pool
