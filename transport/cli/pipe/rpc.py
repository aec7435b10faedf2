"""`warren rpc`: JSON-RPC on the standard streams, until its client or a signal ends it."""

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar
from uuid import uuid4

import attrs
import click

from warren.base.database_url import DatabaseUrl
from warren.base.errors import InvalidParamsError, WarrenError
from warren.base.values import frozen
from warren.transport.cli.command import command
from warren.transport.cli.failures import error_of
from warren.transport.cli.pipe.serving import PipeClient, serve_pipe
from warren.transport.cli.settings.options import Options, contract_option, serving_options
from warren.transport.cli.settings.values import folder_of, realm_of
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.contracts import dialect_of
from warren.transport.rpc.dialect import Dialect
from warren.transport.rpc.stdio_server import StdioConfig, serve_stdio

F = TypeVar("F", bound=Callable[..., Any])
REALMS: Final = "realms"
IGNORED: Final = "An option of rkat-rpc that has no meaning here."
IGNORED_VALUES: Final = (
    *("instance", "realm_backend", "context_root", "user_config_root"),
    *("tcp", "live_ws", "live_ws_scheme", "live_tool_timeout_ms", "realtime_ws"),
)
IGNORED_FLAGS: Final = ("allow_remote", "live_webrtc")
LISTENING: Final = ("tcp", "live_ws", "realtime_ws", "live_webrtc")
"""The options that ask for another transport. They are accepted with a warning, because the SDKs pass them."""
PATIENCE: Final = 1.0
"""Seconds of silence after which no request is expected any more: clients send the first one at once."""
MOST_TIME: Final = 5.0
"""Seconds in which the first request has to come, whatever comes before it."""
MOST_LINES: Final = 100
MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes up to the end of the first request: those that a line may have when the server runs."""
MOST_REQUESTS: Final = 256
"""Messages of a batch, as when the server runs."""
PIECE: Final = 64 * 1024
STDIN: Final = 0
STDOUT: Final = 1


def _ignored_options(function: F) -> F:
    """Accept the options of rkat-rpc that have no meaning here."""
    for name in IGNORED_VALUES:
        function = click.option(f"--{name.replace('_', '-')}", hidden=True, help=IGNORED)(function)
    for name in IGNORED_FLAGS:
        function = click.option(f"--{name.replace('_', '-')}", is_flag=True, hidden=True, help=IGNORED)(function)
    return function


@frozen
class Realm:
    """The choice of a store, in the terms of rkat-rpc.

    Attributes:
        name: sessions of one name do not see those of another; None is the store itself.
        isolated: use a new store.
        root: the folder of all stores, instead of the usual one.
    """

    name: str | None = None
    isolated: bool = False
    root: Path | None = None

    @contextmanager
    def opened(self, options: Options) -> Iterator[Options]:
        """Yield the options with the chosen store; an isolated one without a root is removed at the end."""
        named = options.store_named or self.root is not None
        if self.isolated and self.root is None and options.store is not None:
            with TemporaryDirectory(prefix="warren-", ignore_cleanup_errors=True) as own:
                yield attrs.evolve(options, store=Path(own), store_named=False)
            return
        root = self.root or options.store
        if isinstance(root, DatabaseUrl) and self.name is not None:
            problem = f"a realm is a folder within that of the store, and the store is the database {root}"
            raise InvalidParamsError.at("$.realm", problem)
        if isinstance(root, DatabaseUrl):
            yield options
            return
        name = uuid4().hex if self.isolated else self.name
        folder = root if root is None or name is None else root / REALMS / name
        yield attrs.evolve(options, store=folder, store_named=named)


class AnsweringCommand(click.Command):
    """A command that serves JSON-RPC on stdin and stdout: if it fails, it answers the next request with the reason."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the arguments; the client gets an error of them as its answer."""
        with _telling():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the server; the client gets the error of one that cannot start as its answer."""
        with _telling():
            return super().invoke(ctx)


@contextmanager
def _telling() -> Iterator[None]:
    """If the body fails, answer one request on stdin with its error, and raise the error on."""
    streams: list[int] = []
    with suppress(OSError):  # if one of them was closed from the start there is no client
        # Serving takes both from the process, and leaves it empty ones.
        streams += [os.dup(STDIN), os.dup(STDOUT)]
    try:
        yield
    except (Exception, BaseExceptionGroup) as exc:
        if len(streams) > 1 and not isinstance(exc, click.exceptions.Exit | click.Abort):
            _tell(exc, *streams)
        raise
    finally:
        for each in streams:
            os.close(each)


def _tell(failure: BaseException, source: int, sink: int) -> None:
    try:
        if os.isatty(source):
            return
        error, deadline = error_of(failure), time.monotonic() + MOST_TIME
        for line in islice(_lines(source, deadline), MOST_LINES):
            if (reply := _reply(line, error)) is not None:
                _write(sink, reply + b"\n", deadline)
                break
    except OSError:
        return  # the client has gone


def _reply(line: bytes, error: WarrenError) -> bytes | None:
    """Return the error as the reply to a request, or to each request of a batch; None for a line without one."""
    message = jsonrpc.read_batch(line, MOST_REQUESTS)
    if isinstance(message, list):
        replies = [jsonrpc.error(each.id, error) for each in message if isinstance(each, jsonrpc.Request)]
        return jsonrpc.batch(replies) if replies else None
    return jsonrpc.error(message.id, error) if isinstance(message, jsonrpc.Request) else None


def _lines(source: int, deadline: float) -> Iterator[bytes]:
    """Yield the lines from a pipe, up to its end or a bound. The last one may be a part of a line."""
    left, line = MOST_BYTES, bytearray()
    while left > 0:
        patience = min(PATIENCE, deadline - time.monotonic())
        if not select.select([source], [], [], max(0.0, patience))[0]:
            break
        data = os.read(source, PIECE)
        if not data:
            break
        left -= len(data)
        *ends, rest = data.split(b"\n")
        for end in ends:
            yield bytes(line + end)
            line.clear()
        line += rest
    yield bytes(line)


def _write(sink: int, data: bytes, deadline: float) -> None:
    """Write to a pipe as much as it takes in time, so that no client can hold up the end of the process."""
    while data and select.select([], [sink], [], max(0.0, deadline - time.monotonic()))[1]:
        written = os.write(sink, data[: select.PIPE_BUF])  # a pipe that is ready takes so many bytes at once
        data = data[written:]


@command(
    "warren rpc --model claude-sonnet-5",
    """echo '{"jsonrpc":"2.0","id":1,"method":"session/list","params":{}}' | warren rpc""",
    cls=AnsweringCommand,
)
@contract_option
@click.option("--realm", type=realm_of, metavar="NAME", help="Use the store of this name, below the usual one.")
@click.option(
    "--isolated", is_flag=True, help="Use a new store; without --state-root it is gone at the end of the process."
)
@click.option("--state-root", type=folder_of, metavar="DIR", help="The folder of the stores, instead of --store.")
@_ignored_options
@serving_options
def rpc(
    contract: str | None,
    realm: str | None,
    *,
    isolated: bool,
    state_root: Path | None,
    options: Options,
) -> None:
    """Serve sessions to the program that starts this one.

    It speaks JSON-RPC over stdin and stdout, one message a line. The end of stdin, SIGTERM and Ctrl-C end it in order:
    running turns are parked, or interrupted and stored if they cannot be; a second signal exits at once.

    With --contract it stands in for rkat-rpc, whose options it accepts: point Meerkat's clients at a script with `exec
    warren rpc --contract 0.9 "$@"` in it.

    If the server cannot start, the client's first request is answered with the error.
    """
    params = click.get_current_context().params
    listening = [name for name in LISTENING if params[name] not in (None, False)]
    if listening:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in listening)
        click.echo(f"Note: {named}: not available here; only stdin and stdout are served.", err=True)
    dialect = dialect_of(contract)
    with Realm(realm, isolated, state_root).opened(options) as chosen:
        serve_pipe(chosen, lambda client: _serve(client, dialect))


async def _serve(client: PipeClient, dialect: Dialect) -> None:
    stdio = StdioConfig(linger=client.config.limits.drain, runtime=client.config)
    streams = (client.incoming, client.outgoing)
    await serve_stdio(client.service, stdio, streams, dialect, client.stop, end_turns=client.service.stop)
