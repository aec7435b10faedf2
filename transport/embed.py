"""The way in for programs: a runtime with its store and its model providers, in one context manager."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from warren.actors.runtime import open_service
from warren.config import Config, StoreConfig
from warren.errors import MemoryDisabledError, PersistenceDisabledError
from warren.memory import Embedder, MemoryConfig
from warren.model import Provider
from warren.service import SessionService
from warren.tools import Tool
from warren.transport.providers import open_providers

if TYPE_CHECKING:
    from warren.storage import Store
    from warren.storage.memory import MemoryStore


@asynccontextmanager
async def open_supervisor(
    config: Config | None = None,
    *,
    tools: Iterable[Tool] = (),
    providers: Mapping[str, Provider] | None = None,
    embedder: Embedder | None = None,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[SessionService]:
    """Run Warren inside the calling trio program; the service works for as long as the body lasts.

    `tools` can be offered to every session. `providers` adds ways to models of your own, by name. `embedder` is a model
    of meaning for the memory, under the name in its config. `environ` is where API keys and base URLs come from, the
    process's own by default.

    On leaving, running turns are interrupted and stored. Raises StoreError where the store cannot be opened,
    PersistenceDisabledError or MemoryDisabledError where the config names a store or a memory whose extra is not
    installed, and
    `warren.actors.supervision.ActorFailedError` where an actor crashed too often. What the body raises leaves as it is,
    never in an exception group.
    """
    config = config or Config()
    store = config.store
    open_store = None if store is None else _opener(store)
    open_memory = None if config.memory is None else _memory_opener(config.memory, embedder)
    async with (
        open_providers(environ, extra=providers) as registry,
        open_service(config, registry, tools, open_store=open_store, open_memory=open_memory) as service,
    ):
        yield service


def _opener(config: StoreConfig) -> "Callable[[], Awaitable[Store]]":
    """Return what opens the store; apsw is imported only here, so that sessions without a store need none."""
    try:
        from warren.storage import Store  # noqa: PLC0415 - see above
    except ModuleNotFoundError as exc:
        raise PersistenceDisabledError("Session persistence is disabled (build without 'session-store').") from exc
    return lambda: Store.open(config)


def _memory_opener(config: MemoryConfig, embedder: Embedder | None) -> "Callable[[], Awaitable[MemoryStore]]":
    try:
        from warren.storage.memory import MemoryStore  # noqa: PLC0415 - it needs an extra of its own
    except ModuleNotFoundError as exc:
        raise MemoryDisabledError("Semantic memory is disabled (build without 'memory-store').") from exc
    return lambda: MemoryStore.open(config, embedder)
