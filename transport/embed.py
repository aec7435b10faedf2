"""The way in for programs: a runtime with its store and its model providers, in one context manager."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from warren.actors.runtime import open_service
from warren.config import Config, StoreConfig
from warren.errors import PersistenceDisabledError
from warren.model import Provider
from warren.service import SessionService
from warren.tools import Tool
from warren.transport.providers import open_providers

if TYPE_CHECKING:
    from warren.storage import Store


@asynccontextmanager
async def open_supervisor(
    config: Config | None = None,
    *,
    tools: Iterable[Tool] = (),
    providers: Mapping[str, Provider] | None = None,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[SessionService]:
    """Run Warren inside the calling trio program; the service works for as long as the body lasts.

    `tools` can be offered to every session. `providers` adds ways to models of your own, by name. `environ` is where
    API keys and base URLs come from, the process's own by default.

    On leaving, running turns are interrupted and stored. Raises StoreError where the store cannot be opened,
    PersistenceDisabledError where the config names a store and the `session-store` extra is not installed, and
    `warren.actors.supervision.ActorFailedError` where an actor crashed too often. What the body raises leaves as it is,
    never in an exception group.
    """
    config = config or Config()
    store = config.store
    open_store = None if store is None else _opener(store)
    async with (
        open_providers(environ, extra=providers) as registry,
        open_service(config, registry, tools, open_store=open_store) as service,
    ):
        yield service


def _opener(config: StoreConfig) -> "Callable[[], Awaitable[Store]]":
    """Return what opens the store; apsw is imported only here, so that sessions without a store need none."""
    try:
        from warren.storage import Store  # noqa: PLC0415 - see above
    except ModuleNotFoundError as exc:
        raise PersistenceDisabledError("Session persistence is disabled (build without 'session-store').") from exc
    return lambda: Store.open(config)
