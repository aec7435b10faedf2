"""`warren serve`: the gateway in front of a runtime, until a signal ends it."""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import trio

from warren.actors.supervision import Restarts
from warren.config import Config
from warren.errors import InvalidParamsError
from warren.extras import missing
from warren.fields import FieldValueError
from warren.transport.cli.ending import until_signalled
from warren.transport.cli.options import Options
from warren.transport.cli.process import allow_files, tune
from warren.transport.cli.runtime import execute, open_runtime, served_config_of
from warren.transport.cli.streams import Streams
from warren.transport.cli.turns import NO_MODEL
from warren.transport.cli.workers import Seat, Workers, until_workers_end
from warren.transport.http.auth import read_token
from warren.transport.http.config import GatewayConfig
from warren.transport.providers.registry import ECHO

ANSWERS: Final = "answers sessions that name no model; --model names another one"


def serve(options: Options, settings: Mapping[str, Any], token_file: Path | None) -> None:
    """Serve until SIGTERM or SIGINT, then end in order; a second signal ends the process at once.

    After SIGTERM running turns have the drain time to finish, and new ones are refused; then the others are
    interrupted.

    Args:
        options: the options that other commands have too.
        settings: the fields of `GatewayConfig` that were given.
        token_file: the file with the token of the clients.

    Raises:
        InvalidParamsError: for an address that may not be served, and as `served_config_of`, before anything is made.
        OSError: if the address cannot be bound.
    """
    if problem := missing("gateway", "warren serve needs"):
        raise click.ClickException(problem)
    seat = Seat.taken_from(os.environ)
    config = served_config_of(options)
    gateway = _gateway_config({**options.gateway, **settings}, token_file, config)
    if gateway.workers > 1 and config.store is None:
        raise InvalidParamsError("$.workers: more than one need a store that they share", path="$.workers")
    tune()
    unnamed = options.model is None and options.provider is None
    if gateway.workers > 1 and seat is None:
        execute(lambda: _serve_with_workers(config, gateway, unnamed=unnamed), options, log_level=logging.WARNING)
        return
    allow_files(gateway.max_connections)
    execute(lambda: _serve(config, gateway, seat, unnamed=unnamed), options, log_level=logging.WARNING)


def _gateway_config(settings: Mapping[str, Any], token_file: Path | None, runtime: Config) -> GatewayConfig:
    token = read_token(token_file) if token_file is not None else None
    try:
        config = GatewayConfig(token=token, runtime=runtime, **settings)
    except FieldValueError as exc:
        raise InvalidParamsError(f"$.{exc.field}: {exc.problem}", path=f"$.{exc.field}") from None
    config.check_exposure()
    return config


def _url(host: str, port: int) -> str:
    """Return the address of a gateway for clients."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _serve(config: Config, gateway: GatewayConfig, seat: Seat | None, *, unnamed: bool) -> None:
    from warren.transport.gateway.server import serve_gateway  # noqa: PLC0415 - it has an extra of its own

    listeners = await _listen(gateway) if seat is None else seat.listeners()
    async with until_signalled(config.limits.drain) as stop, open_runtime(config) as service:
        stop.service = service
        with stop.serving:
            async with trio.open_nursery() as serving:
                port = await serving.start(serve_gateway, service, gateway, listeners)
                Streams().write(f"listening on {_url(gateway.host, port)}\n")
                if seat is None:
                    _say_model(config, unnamed=unnamed)
                    return
                await seat.wait_for_parent()
                await stop.begin(config.limits.drain)


async def _serve_with_workers(config: Config, gateway: GatewayConfig, *, unnamed: bool) -> None:
    listeners = await _listen(gateway)
    sockets = tuple(each.socket.fileno() for each in listeners)
    command = [sys.executable, "-m", "warren", *sys.argv[1:]]
    workers = Workers(command, sockets, Restarts(config.intensity))
    async with until_workers_end(workers, gateway.workers):
        Streams().write(f"listening on {_url(gateway.host, listeners[0].socket.getsockname()[1])}\n")
        _say_model(config, unnamed=unnamed)


async def _listen(gateway: GatewayConfig) -> list[trio.SocketListener]:
    from warren.transport.gateway.server import listen  # noqa: PLC0415 - as above

    try:
        return await listen(gateway)
    except OSError as exc:
        problem = f"cannot listen on {_url(gateway.host, gateway.port)}: {exc.strerror or exc}"
        raise OSError(exc.errno, problem) from exc


def _say_model(config: Config, *, unnamed: bool) -> None:
    """Say on stderr which model answers the sessions that name none, if nobody has named one here either."""
    if unnamed:
        Streams().note(NO_MODEL if config.model == ECHO else f"{config.model} {ANSWERS}")
