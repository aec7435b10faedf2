"""`warren serve`: the gateway in front of a runtime, until a signal ends it."""

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import click
import trio

from warren.actors.supervision import Restarts
from warren.base.errors import InvalidParamsError
from warren.base.extras import missing
from warren.base.fields import FieldValueError
from warren.base.values import frozen
from warren.settings.config import Config, NodeConfig, PostgresConfig, StoreConfig
from warren.transport.access.addresses import UNIX, url_at
from warren.transport.access.config import GatewayConfig
from warren.transport.access.jwt_config import JwtConfig
from warren.transport.cli.command import command
from warren.transport.cli.process.ending import Stop, until_signalled
from warren.transport.cli.process.tuning import allow_files, clients_within, files_for, tune
from warren.transport.cli.runtime import execute, open_runtime, served_config_of
from warren.transport.cli.serve.systemd import READY, STOPPING, Manager
from warren.transport.cli.serve.workers import Seat, Workers, run_until_signalled
from warren.transport.cli.settings.options import Options, serving_options
from warren.transport.cli.settings.single import serve_options
from warren.transport.cli.terminal.streams import Streams
from warren.transport.cli.turns.taking import NO_MODEL
from warren.transport.cluster.door import NodeService
from warren.transport.gateway.link import address_of, check_address, open_link
from warren.transport.http.accepting import OpenFiles
from warren.transport.http.sockets import port_of, removing
from warren.transport.http.starting import starting
from warren.transport.providers.registry import ECHO

logger: Final = logging.getLogger(__name__)
ANSWERS: Final = "answers sessions that name no model; --model names another one"

OF_THE_GATEWAY: Final = ("host", "port", "token_table", "max_connections", "workers", "console", "metrics_port")
"""Options that are fields of `GatewayConfig`."""


@command(
    "warren serve",
    "warren serve --port 0 --model claude-sonnet-5 --store conversations",
    "warren serve --workers 4",
    "warren serve --host 0.0.0.0 --token-file token.txt --origin https://example.org",
    "warren serve --host unix:/run/warren/warren.sock",
)
@serve_options
@serving_options
def serve(
    token_file: Path | None,
    origin: tuple[str, ...],
    node_name: str | None,
    node_address: str | None,
    options: Options,
) -> None:
    """Serve sessions to other programs.

    They speak JSON-RPC over a WebSocket at /ws, HTTP at /sessions and so on (see /openapi.json), or the Model Context
    Protocol at /mcp. People open /console/ in a browser.

    The first line on stdout is `listening on http://HOST:PORT`, or `listening on unix:PATH`, when it accepts
    connections. systemd is told so, and may have bound the sockets itself. SIGTERM and Ctrl-C end it in order, within
    --drain: after SIGTERM running turns may finish first; the others are parked for the next server, or interrupted and
    stored if they cannot be. A second signal exits at once.
    """
    params = click.get_current_context().params
    chosen = {"origins": origin, **{name: params[name] for name in OF_THE_GATEWAY}}
    if problem := missing("gateway", "warren serve needs"):
        raise click.ClickException(problem)
    seat, manager = Seat.taken_from(os.environ), Manager.taken_from(os.environ)
    config = attrs.evolve(served_config_of(options), any_script=False)
    inherited = manager.listeners()
    settings = {**options.gateway, **{name: value for name, value in chosen.items() if value is not None}}
    places = [_place_of(each) for each in inherited] or [{}]
    gateway, *_ = [_gateway_config({**settings, **place}, token_file, config) for place in places]
    if gateway.metrics_port is not None and (problem := missing("metrics", "a port for the metrics needs")):
        raise click.ClickException(problem)
    of = _node(config, node_name, node_address, workers=gateway.workers > 1)
    serving = Serving(config, gateway, of, seat, manager, inherited, _unnamed(options))
    tune()
    if gateway.workers > 1 and seat is None:
        execute(partial(_serve_with_workers, serving), options, log_level=logging.WARNING)
        return
    execute(partial(_serve, _within_files(serving)), options, log_level=logging.WARNING)


def _within_files(serving: "Serving") -> "Serving":
    """Raise the limit of open files for the clients, or let in those alone that the system has files for."""
    gateway = serving.gateway
    files, wanted = allow_files(gateway.max_connections), gateway.max_connections
    if files is None or wanted <= (most := clients_within(files)):
        return serving
    shortage = (
        f"max_connections is {most} in place of {wanted}, as this process may open {files} files: "
        f"`ulimit -n {files_for(wanted)}` before the start lets it open enough"
    )
    gateway = attrs.evolve(gateway, max_connections=most, max_http=min(gateway.max_http, most))
    return attrs.evolve(serving, gateway=gateway, files=OpenFiles(shortage))


def _unnamed(options: Options) -> bool:
    return options.turn.model is None and options.turn.provider is None


def _node(config: Config, name: str | None, address: str | None, *, workers: bool) -> NodeConfig | None:
    """Return the settings of this process as a node; None if it serves its sessions alone.

    A store in a database makes it one, as others may use the database; so does a name or an address, or a second
    worker. Raises InvalidParamsError.
    """
    asked = "workers" if workers else "node_name" if name is not None else "node_address" if address is not None else ""
    if not asked and not isinstance(config.store, PostgresConfig):
        return None
    check_address(address)
    needs = "nodes share a store, and there is none" if config.store is None else missing("client", "nodes need")
    if needs is None:
        return NodeConfig(name, address)
    if asked:
        raise InvalidParamsError.at(f"$.{asked}", needs)
    Streams().note(f"other nodes on this database are not asked for their sessions: {needs}")
    return None


def _gateway_config(settings: Mapping[str, Any], token_file: Path | None, runtime: Config) -> GatewayConfig:
    from warren.transport.access.access import check_access  # noqa: PLC0415 - it has an extra of its own

    root = "$.jwt"
    try:
        jwt = JwtConfig(**settings["jwt"]) if "jwt" in settings else None
        root = "$"
        config = GatewayConfig(token_file=token_file, runtime=runtime, **{**settings, "jwt": jwt})
    except FieldValueError as exc:
        raise exc.refusal(root) from None
    check_access(config)
    return config


def _place_of(listener: trio.SocketListener) -> Mapping[str, Any]:
    """Return the address that a socket is bound to, as settings."""
    name = listener.socket.getsockname()
    if isinstance(name, tuple):
        return {"host": name[0], "port": name[1]}
    return {"host": f"{UNIX}{os.fsdecode(name)}".replace("\0", "@")}  # of Linux's abstract namespace


@frozen
class Serving:
    """The settings of a server.

    Attributes:
        config: the runtime.
        gateway: the gateway.
        node: this process as a node; None if it is none.
        seat: its place among the workers of one command; None if it is no worker.
        manager: the service manager.
        inherited: the sockets that it has bound, to accept clients from; without any the gateway's address is bound.
        unnamed: whether nobody has named a model.
        files: the files that it may open.
    """

    config: Config
    gateway: GatewayConfig
    node: NodeConfig | None
    seat: Seat | None
    manager: Manager
    inherited: list[trio.SocketListener]
    unnamed: bool
    files: OpenFiles = attrs.field(factory=OpenFiles)


async def _serve(settings: Serving) -> None:
    from warren.transport.gateway.gateway import serve_gateway  # noqa: PLC0415 - it has an extra of its own

    gateway, seat, files = settings.gateway, settings.seat, settings.files
    if files.shortage is not None and (seat is None or seat.number == 1):
        logger.warning("%s", files.shortage)
    listeners = await _listen(settings) if seat is None else seat.listeners()
    metrics = await _listen_for_metrics(gateway) if seat is None else seat.metrics_listeners()
    with ExitStack() as stack:
        stack.enter_context(_owned(settings, listeners))
        node = _reached(settings, listeners, stack)
        config = attrs.evolve(settings.config, node=node)
        hung_up, hangups = trio.open_memory_channel[None](1)
        crowd = None if seat is None else seat.crowd()
        serve = partial(serve_gateway, metrics=metrics, hangups=hangups, files=files, crowd=crowd)
        # Workers share their sockets: one that starts again must not hold clients that others could serve.
        own, scraped = (listeners, metrics) if seat is None else ([], [])
        async with (
            until_signalled(
                config.limits.drain, partial(_note, hung_up), begun=partial(settings.manager.tell, STOPPING)
            ) as stop,
            starting(own, gateway.max_connections, files) as clients,
            starting(scraped, gateway.max_connections, files) as scrapers,
        ):
            with stop.opening:
                async with open_runtime(config) as service:
                    stop.service = service
                    serve = partial(serve, early=await clients.take(), early_scrapers=await scrapers.take())
                    with stop.serving:
                        async with trio.open_nursery() as serving:
                            started = partial(serve, latest=stop.connections_end)
                            port = await serving.start(started, service, gateway, listeners)
                            if seat is not None:
                                serving.start_soon(_end_after, seat.wait_for_parent, stop)
                            if isinstance(service, NodeService):
                                serving.start_soon(_end_after, service.asked_to_drain, stop)
                            # At last: whoever reads it finds all tasks of the server there.
                            Streams().write(f"listening on {url_at(gateway.host, port)}\n")
                            settings.manager.tell(READY)
                            if seat is None:
                                _say_model(settings)


def _note(signals: "trio.MemorySendChannel[None]") -> None:
    """Note a signal, unless the one before it has not been heard yet."""
    with suppress(trio.WouldBlock):
        signals.send_nowait(None)


async def _end_after(reason: Callable[[], Awaitable[None]], stop: Stop) -> None:
    await reason()
    await stop.begin(waits=True)


def _reached(settings: Serving, listeners: list[trio.SocketListener], stack: ExitStack) -> NodeConfig | None:
    """Return the settings of this process as a node with its address; a worker gets a listener of its own for it."""
    node, gateway, store = settings.node, settings.gateway, settings.config.store
    if node is None:
        return None
    if settings.seat is None:
        return NodeConfig(node.name, address_of(gateway, port_of(listeners[0]), node))
    link = stack.enter_context(open_link(store if isinstance(store, StoreConfig) else None, gateway, node))
    listeners.append(link.listener)
    name = None if node.name is None else f"{node.name}-{settings.seat.number}"
    return NodeConfig(name, link.url, settings.seat.group, settings.seat.number)


async def _serve_with_workers(settings: Serving) -> None:
    config, gateway = settings.config, settings.gateway
    listeners, metrics = await _listen(settings), await _listen_for_metrics(gateway)
    sockets, scraped = (tuple(each.socket.fileno() for each in some) for some in (listeners, metrics))
    command = [sys.executable, "-m", "warren", *sys.argv[1:]]
    workers = Workers(command, sockets, scraped, Restarts(config.intensity))

    def serving() -> None:
        Streams().write(f"listening on {url_at(gateway.host, port_of(listeners[0]))}\n")
        settings.manager.tell(READY)
        _say_model(settings)

    ending = partial(settings.manager.tell, STOPPING)
    with _owned(settings, listeners):
        await run_until_signalled(workers, gateway.workers, config.limits.drain, serving=serving, ending=ending)


def _owned(settings: Serving, listeners: Sequence[trio.SocketListener]) -> AbstractContextManager[None]:
    """Remove the Unix sockets that this process has bound, after a body: those of others are theirs."""
    mine = settings.seat is None and not settings.inherited
    return removing(listeners) if mine else nullcontext()


async def _listen(settings: Serving) -> list[trio.SocketListener]:
    from warren.transport.gateway.gateway import listen  # noqa: PLC0415 - as above

    if settings.inherited:
        return settings.inherited
    gateway = settings.gateway
    try:
        return await listen(gateway)
    except OSError as exc:
        problem = f"cannot listen on {url_at(gateway.host, gateway.port)}: {exc.strerror or exc}"
        raise OSError(exc.errno, problem) from exc


async def _listen_for_metrics(gateway: GatewayConfig) -> list[trio.SocketListener]:
    """Bind the port for the metrics, if the settings have one, and note its address on stderr."""
    from warren.transport.gateway.gateway import listen_for_metrics  # noqa: PLC0415 - as above

    try:
        listeners = await listen_for_metrics(gateway)
    except OSError as exc:
        problem = f"cannot listen on port {gateway.metrics_port} for the metrics: {exc.strerror or exc}"
        raise OSError(exc.errno, problem) from exc
    for listener in listeners:
        Streams().note("metrics at http://{}:{}/metrics".format(*listener.socket.getsockname()))
    return listeners


def _say_model(settings: Serving) -> None:
    """Say on stderr which model answers the sessions that name none, if nobody has named one here either."""
    if settings.unnamed:
        model = settings.config.model
        Streams().note(NO_MODEL if model == ECHO else f"{model} {ANSWERS}")
