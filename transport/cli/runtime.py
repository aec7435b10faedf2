"""From a command's options to a runtime, and from its log to stderr."""

import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from warren.base.principals import Principal
from warren.calls.facade import RuntimeService, SessionService
from warren.settings.config import Config, PostgresConfig, StoreConfig
from warren.transport.cli.ids import resolve
from warren.transport.cli.settings.options import Mode, Options
from warren.transport.cli.store.chosen import existing_store_of, is_there, memory_of, store_of
from warren.transport.cli.terminal.json_lines import json_of
from warren.transport.cli.terminal.logs import FewOfAKind, JsonLines, OneLine, WithTracebacks
from warren.transport.cli.terminal.streams import Streams
from warren.transport.embedders import open_embedder
from warren.transport.providers import default_model
from warren.transport.stores import store_opener

if TYPE_CHECKING:
    from warren.storage.store import Store
    from warren.transport.embed import Hosted

T = TypeVar("T")
IN_MEMORY: Final = "sessions are kept in memory and end with this process: the extra `session-store` is not installed"


def execute(work: Callable[[], Awaitable[T]], options: Options, *, log_level: int = logging.CRITICAL) -> T:
    """Run the work of a command on trio; log records from `log_level` on go to stderr."""
    few = _start_log(options.mode, log_level)
    try:
        return trio.run(work)
    finally:
        few.finish()


def open_service(
    options: Options, *, stored: bool = False, takes_up: bool = True, makes: bool = True
) -> AbstractAsyncContextManager[SessionService]:
    """Open the service of a command: a runtime in this process, or the gateway that the options name.

    Args:
        options: the options.
        stored: whether a runtime needs a store that exists already.
        takes_up: whether a runtime goes on with the turns that other processes have left: not for a command that looks.
        makes: whether a runtime makes a store that does not exist; else it has none.

    Raises:
        PersistenceDisabledError: if a store is needed and the options have none.
        SessionNotFoundError: if a store is needed and does not exist.
        StoreError: if the store cannot be used.
        MemoryDisabledError: if the options ask for a memory and its extra is missing.
        ProviderError: if the memory's embedder does not answer.
        AgentError: with the cause `unreachable` if the gateway cannot be reached or refuses the connection.
    """
    if options.server is not None:
        from warren.transport.cli.named_server import open_server  # noqa: PLC0415 - few commands have a server

        return open_server(options.server, options.tenant)
    store = existing_store_of(options) if stored else store_of(options)
    if not makes and store is not None and not is_there(store):
        store = None
    config = config_of(options, store)
    return _open_for(config, options.user, takes_up=takes_up)


def at_session(
    options: Options, name: str, work: Callable[[SessionService, str], Awaitable[T]], *, takes_up: bool = False
) -> T:
    """Run work on a stored session, which the user names as `ids.resolve` takes it. Raises as `open_service`."""

    async def run() -> T:
        async with open_service(options, stored=True, takes_up=takes_up) as service:
            return await work(service, await resolve(service, name))

    return execute(run, options)


@asynccontextmanager
async def open_store(config: StoreConfig | PostgresConfig) -> "AsyncIterator[Store]":
    """Open a store without a runtime."""
    store = await store_opener(config)()
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def _open_for(config: Config, user: Principal, *, takes_up: bool) -> AsyncIterator[SessionService]:
    async with open_hosted(config, takes_up=takes_up) as hosted:
        yield hosted.service.as_(user)


@asynccontextmanager
async def open_runtime(config: Config) -> AsyncIterator[RuntimeService]:
    """Open a runtime; see `open_hosted`."""
    async with open_hosted(config) as hosted:
        yield hosted.service


@asynccontextmanager
async def open_hosted(config: Config, *, takes_up: bool = True) -> "AsyncIterator[Hosted]":
    """Open a runtime with the embedder of its memory, for hosts that give single sessions MCP servers.

    With `takes_up` off it leaves the turns alone that other processes have left.
    """
    from warren.transport.embed import open_host  # noqa: PLC0415 - neither help nor a client of a server has a runtime

    name = None if config.memory is None else config.memory.embedder
    async with (
        open_embedder(name, os.environ, memory=config.memory) as embedder,
        open_host(config, embedder=embedder, takes_up=takes_up) as hosted,
    ):
        yield hosted


def config_of(options: Options, store: StoreConfig | PostgresConfig | None) -> Config:
    """Return the settings of the runtime on a store. Raises MemoryDisabledError if the memory's extra is missing."""
    config, turn = options.config, options.turn
    return attrs.evolve(
        config,
        store=store,
        model=turn.model or default_model(os.environ, config.model_servers, turn.provider),
        memory=None if config.memory is None else memory_of(options, store),
    )


def served_config_of(options: Options) -> Config:
    """Return the settings of a runtime for other programs; stderr says so if the extra of the default store is missing.

    Raises PersistenceDisabledError if the extra of a named store is missing, and raises as `config_of`.
    """
    store = store_of(options)
    if store is None and options.store is not None:
        Streams().note(IN_MEMORY)
    return config_of(options, store)


def _start_log(mode: Mode, level: int) -> FewOfAKind:
    """Send the log to stderr: with `verbose` all of it with tracebacks, else from a level on; of a kind a few lines."""
    handler = logging.StreamHandler()
    few = FewOfAKind(handler)
    handler.addFilter(few)
    handler.setFormatter(_formatter(mode))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if mode.verbose else level)
    if mode.verbose:
        logging.getLogger("warren.tools").setLevel(logging.DEBUG)  # the tracebacks of tools: they may quote a text
    return few


def _formatter(mode: Mode) -> logging.Formatter:
    if json_of(sys.stderr) is not None:
        return JsonLines()
    return WithTracebacks("%(levelname)s %(name)s: %(message)s") if mode.verbose else OneLine()
