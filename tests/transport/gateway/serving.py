"""A gateway with a service in the test's hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.transport.clients import gateway
from warren.calls.facade import RuntimeService
from warren.settings.config import Config, StoreConfig
from warren.transport.embed import open_supervisor


@asynccontextmanager
async def runtime(store: Path | None = None, **providers: Any) -> AsyncIterator[RuntimeService]:
    """A runtime for a body; its models are `echo` and what is given."""
    config = Config(store=StoreConfig(store) if store is not None else None)
    async with open_supervisor(config, providers=providers, environ={}) as service:
        yield service


@asynccontextmanager
async def served(store: Path | None = None, **providers: Any) -> AsyncIterator[tuple[RuntimeService, int]]:
    """A runtime behind a gateway; yields the service and the port."""
    async with runtime(store, **providers) as service, gateway(service) as port:
        yield service, port
