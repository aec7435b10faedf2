"""Telling a client on stdin and stdout why it is not served: many programs that start a server hide its stderr."""

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import click

PATIENCE: Final = 1.0
"""Seconds that the first request may take to come: clients send it at once."""
LONGEST: Final = 64 * 1024
STDIN: Final = 0
STDOUT: Final = 1


class AnsweringCommand(click.Command):
    """A command that serves JSON-RPC on stdin and stdout: if it fails, the next request is answered with the reason."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """See click; bad arguments are told to the client too."""
        with _telling():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """See click; a server that cannot start says so to the client too."""
        with _telling():
            return super().invoke(ctx)


@contextmanager
def _telling() -> Iterator[None]:
    """Answer one request on stdin if the body fails, and let the failure go on to stderr and the exit code."""
    streams: list[int] = []
    with suppress(OSError):  # if one of them was closed from the start there is nobody to tell
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
    """Return what comes on a pipe up to the end of a line, of the pipe or of the patience."""
    deadline, line = time.monotonic() + PATIENCE, b""
    while b"\n" not in line and len(line) < LONGEST:
        if not select.select([source], [], [], max(0.0, deadline - time.monotonic()))[0]:
            break
        data = os.read(source, LONGEST)
        if not data:
            break
        line += data
    return line.partition(b"\n")[0]
