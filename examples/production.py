"""The settings of a runtime that people rely on: a store, a memory, retries, limits, and what it may restart."""

import os
import tempfile
from pathlib import Path

import trio

from warren import (
    Budget,
    CompactionConfig,
    Config,
    Gates,
    Intensity,
    Limits,
    McpServer,
    MemoryConfig,
    PostgresConfig,
    RetryPolicy,
    StoreConfig,
    Switches,
    ToolsConfig,
    open_supervisor,
)


def settings(folder: Path, model: str) -> Config:
    """Return the settings: the database that DATABASE_URL names, or else a file in a folder."""
    url = os.environ.get("DATABASE_URL")
    orders = os.environ.get("ORDERS_MCP")  # the address of an MCP server
    return Config(
        store=PostgresConfig(url) if url else StoreConfig(folder),
        memory=MemoryConfig(folder / "memory"),
        model=model,
        system_prompt="You help people with their orders.",
        budget=Budget(max_cost=0.50),
        compaction=CompactionConfig(auto_compact_threshold=100_000),
        retry=RetryPolicy(max_attempts=5, max_delay=60.0),
        limits=Limits(max_sessions=3_000, turn=Budget(max_steps=30, max_seconds=600.0), approval_timeout=7 * 86_400.0),
        intensity=Intensity(restarts=10, seconds=60.0),
        switches=Switches(builtins="enable", mcp="enable"),
        gates=Gates(mcp="ask"),
        tools=ToolsConfig(mcp_servers=(McpServer("orders", url=orders),) if orders else ()),
    )


async def main() -> None:
    """Open it for a moment, with a model that repeats what it hears; `anthropic:claude-sonnet-4-5` is a real one."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_supervisor(settings(Path(folder), "echo")) as service:
            print(service.health().status)


if __name__ == "__main__":
    trio.run(main)
