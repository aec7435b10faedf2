"""The standard streams of this process, kept for the protocol alone."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2


@asynccontextmanager
async def open_stdio() -> AsyncIterator[tuple[trio.abc.ReceiveStream, trio.abc.SendStream]]:
    """Take stdin and stdout of this process as streams, for protocol alone.

    Meanwhile, and after it, stdin is empty to everybody else and what others print to stdout goes to stderr: neither a
    tool's `print` nor a child process can break into the protocol.

    Trap: whoever shares the terminal or pipe finds it non-blocking until the body has ended.
    """
    source, sink = os.dup(STDIN), os.dup(STDOUT)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, STDIN)
    os.close(nowhere)
    os.dup2(STDERR, STDOUT)
    async with trio.lowlevel.FdStream(source) as incoming, trio.lowlevel.FdStream(sink) as outgoing:
        yield incoming, outgoing
