"""REST with a service in the test's hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.transport.rest.clients import rest
from warren.calls.facade import RuntimeService
from warren.settings.config import Config, StoreConfig
from warren.transport.embed import open_supervisor


@asynccontextmanager
async def served(
    folder: Path | None = None, *, config: Config | None = None, **providers: Any
) -> AsyncIterator[tuple[RuntimeService, httpx.AsyncClient]]:
    """A runtime behind a gateway; yields the service and a client."""
    config = config or Config(store=StoreConfig(folder) if folder is not None else None)
    async with open_supervisor(config, providers=providers, environ={}) as service, rest(service) as http:
        yield service, http
