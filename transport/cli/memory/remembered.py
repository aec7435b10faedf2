"""The memory of a store, opened without a runtime."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs

from warren.conversation.memory import MemoryConfig
from warren.transport.cli.settings.options import Options
from warren.transport.cli.store.chosen import memory_of, remembers, store_of
from warren.transport.embedders import open_embedder
from warren.transport.stores import memory_opener

if TYPE_CHECKING:
    from warren.storage.memory_store import MemoryStore


async def forget(options: Options, session_id: str) -> None:
    """Delete the remembered texts of a session. If there is no memory, none is made.

    Raises MemoryDisabledError if there is a memory and the extra is missing.
    """
    store = store_of(options)
    if store is not None and remembers(store):
        # Any embedder will do: deleting needs no index, and the index skips deleted texts.
        async with open_memory(memory_of(attrs.evolve(options, memory=MemoryConfig()), store)) as memory:
            await memory.forget(session_id)


@asynccontextmanager
async def open_memory(config: MemoryConfig) -> "AsyncIterator[MemoryStore]":
    """Open a memory with its embedder."""
    async with open_embedder(config.embedder, os.environ, memory=config) as embedder:
        store = await memory_opener(config, embedder)()
        try:
            yield store
        finally:
            await store.aclose()
