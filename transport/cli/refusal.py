"""Answers a client on stdin and stdout if its server cannot start: many programs hide the stderr of their servers."""

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import click

PATIENCE: Final = 1.0
"""Seconds to wait for the first request: clients send it at once."""
LONGEST: Final = 64 * 1024
STDIN: Final = 0
STDOUT: Final = 1


class AnsweringCommand(click.Command):
    """A command that serves JSON-RPC on stdin and stdout: if it fails, the next request is answered with the reason."""

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
    # Imported late: the command's help does without them.
    from warren.transport.cli.failures import error_of  # noqa: PLC0415
    from warren.transport.rpc import jsonrpc  # noqa: PLC0415

    try:
        if os.isatty(source):
            return
        request = jsonrpc.read(_first_line(source))
        if isinstance(request, jsonrpc.Request):
            os.write(sink, jsonrpc.error(request.id, error_of(failure)) + b"\n")
    except OSError:
        return  # the client has gone


def _first_line(source: int) -> bytes:
    """Return the bytes from a pipe up to the end of a line, of the pipe or of the time."""
    deadline, line = time.monotonic() + PATIENCE, b""
    while b"\n" not in line and len(line) < LONGEST:
        if not select.select([source], [], [], max(0.0, deadline - time.monotonic()))[0]:
            break
        data = os.read(source, LONGEST)
        if not data:
            break
        line += data
    return line.partition(b"\n")[0]
