"""Turns of an MCP client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.transport.mcp.clients import Program

PLAIN = ["run_started", "turn_started", "text_delta", "text_complete", "turn_completed", "run_completed"]


@asynccontextmanager
async def under_way(program: Program, name: str, /, **arguments: Any) -> AsyncIterator[trio.CancelScope]:
    """Run a watched call beside the body; the scope cancels it."""
    scope = trio.CancelScope()

    async def call() -> None:
        with scope:
            await program.call(name, watch=True, **arguments)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        yield scope
