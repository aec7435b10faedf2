"""Answers a client on stdin and stdout if its server cannot start: many programs hide the stderr of their servers."""

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Final

import click

from warren.base.errors import WarrenError
from warren.transport.cli.failures import error_of
from warren.transport.rpc import jsonrpc

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


class AnsweringCommand(click.Command):
    """A command that serves JSON-RPC on stdin and stdout: if it fails, it answers the next request with the reason."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """See click; the client gets errors of bad arguments too."""
        with _telling():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """See click; the client gets the error of a server that cannot start."""
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
