"""Makes the hooks of a runtime's settings."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from warren.actors.hooks.handlers import Handlers
from warren.actors.hooks.settings import entries_of
from warren.actors.hooks.watching import Watched
from warren.actors.supervision import background
from warren.actors.tools.posting import poster
from warren.base.principals import DEFAULT_TENANT
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.storage.projection.formats import EVENTS, folder_of_tenant
from warren.storage.projection.places import SESSIONS, TENANTS

if TYPE_CHECKING:
    from warren.actors.tools.session_tools import RuntimeServers


@asynccontextmanager
async def open_watched(
    config: Config, environ: Mapping[str, str] | None, servers: "RuntimeServers | None"
) -> AsyncIterator[Watched]:
    """Have the hooks of settings for a body; hooks that run in the background end with it.

    Args:
        config: the settings.
        environ: the variables that hooks may get; None is the environment of the process.
        servers: the MCP servers.

    Raises:
        InvalidParamsError: as `entries_of`.
    """
    entries = await trio.to_thread.run_sync(entries_of, config)
    async with background() as nursery:
        yield Watched(
            Handlers(
                entries,
                None if config.tools is None else config.tools.root,
                os.environ if environ is None else environ,
                () if config.tools is None else config.tools.env,
                poster(config.limits.webhook_allow),
                partial(_transcript, _projected(config)),
                nursery,
                trio.CapacityLimiter(config.limits.hook_processes),
            ),
            servers,
        )


def _projected(config: Config) -> Path | None:
    """Return the folder of the projections; None if there are none."""
    match config.store:
        case StoreConfig(path=path, projections=True):
            return path
        case PostgresConfig(project=path):
            return path
        case _:
            return None


def _transcript(folder: Path | None, tenant: str, session_id: str) -> str:
    if folder is None or (name := folder_of_tenant(tenant)) is None:
        return ""
    below = folder if tenant == DEFAULT_TENANT else folder / TENANTS / name
    return str((below / SESSIONS / session_id / EVENTS).absolute())
