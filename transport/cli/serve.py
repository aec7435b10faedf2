"""`warren serve`: the gateway in front of a runtime, until a signal ends it."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import click
import trio

from warren.config import Config
from warren.errors import InvalidParamsError
from warren.extras import missing
from warren.fields import FieldValueError
from warren.transport.cli.ending import until_told
from warren.transport.cli.options import Options
from warren.transport.cli.process import allow_files, tune
from warren.transport.cli.runtime import execute, open_runtime, served_config_of
from warren.transport.cli.streams import Streams
from warren.transport.cli.turns import NO_MODEL
from warren.transport.providers.registry import ECHO

if TYPE_CHECKING:
    from warren.transport.http.config import GatewayConfig

ANSWERS: Final = "answers sessions that name no model; --model names another one"


@attrs.frozen
class Address:
    """The address of the gateway, and the clients that it admits.

    Attributes:
        host: the address to bind.
        port: its port; 0 picks a free one.
        token_file: the file with the token of the clients.
        origins: web pages that may connect.
        max_connections: the most clients at once.
    """

    host: str
    port: int
    token_file: Path | None
    origins: tuple[str, ...]
    max_connections: int

    def url(self, port: int) -> str:
        """Return the address of the gateway for clients."""
        return f"http://[{self.host}]:{port}" if ":" in self.host else f"http://{self.host}:{port}"


def serve(options: Options, address: Address) -> None:
    """Serve until SIGTERM or SIGINT, then end in order; a second signal ends the process at once.

    After SIGTERM running turns have the drain time to finish, and new ones are refused; then the others are
    interrupted.

    Raises as `served_config_of`, and InvalidParamsError for an address that may not be served, before anything is
    made; OSError if the address cannot be bound.
    """
    if problem := missing("gateway", "warren serve needs"):
        raise click.ClickException(problem)
    config = served_config_of(options)
    gateway = _gateway_config(options, address, config)
    tune()
    allow_files(address.max_connections)
    unnamed = options.model is None and options.provider is None
    execute(lambda: _serve(config, gateway, address, unnamed=unnamed), options, log_level=logging.WARNING)


def _gateway_config(options: Options, address: Address, runtime: Config) -> "GatewayConfig":
    from warren.transport.gateway.server import read_token  # noqa: PLC0415 - it has an extra of its own
    from warren.transport.http.config import GatewayConfig  # noqa: PLC0415 - it has an extra of its own

    token = read_token(address.token_file) if address.token_file is not None else None
    try:
        config = GatewayConfig(
            address.host,
            address.port,
            token,
            address.origins,
            max_connections=address.max_connections,
            runtime=runtime,
            **options.gateway,
        )
    except FieldValueError as exc:
        raise InvalidParamsError(f"$.{exc.field}: {exc.problem}", path=f"$.{exc.field}") from None
    config.check_exposure()
    return config


async def _serve(config: Config, gateway: "GatewayConfig", address: Address, *, unnamed: bool) -> None:
    from warren.transport.gateway.server import serve_gateway  # noqa: PLC0415 - it has an extra of its own

    async with until_told(config.limits.drain) as stop, open_runtime(config) as service:
        stop.service = service
        with stop.serving:
            async with trio.open_nursery() as serving:
                try:
                    port = await serving.start(serve_gateway, service, gateway)
                except OSError as exc:
                    problem = f"cannot listen on {address.url(address.port)}: {exc.strerror or exc}"
                    raise OSError(exc.errno, problem) from exc
                streams = Streams()
                streams.write(f"listening on {address.url(port)}\n")
                if unnamed:
                    streams.note(NO_MODEL if config.model == ECHO else f"{config.model} {ANSWERS}")
