"""The standard streams of this process, kept for the protocol alone."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2


@asynccontextmanager
async def open_stdio() -> AsyncIterator[tuple[trio.abc.ReceiveStream, trio.abc.SendStream]]:
    """Yield stdin and stdout of this process as streams, reserved for the protocol.

    For all other code of the process and its children, stdin is empty and stdout is stderr, during the body and after
    it: neither a tool's `print` nor a child process can write into the protocol.

    Trap: the terminal or pipe is non-blocking until the body ends, for other processes that share it too.
    """
    source, sink = os.dup(STDIN), os.dup(STDOUT)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, STDIN)
    os.close(nowhere)
    sys.stdout.flush()
    os.dup2(STDERR, STDOUT)
    sys.stdout = sys.stderr  # which may be one that makes no writer wait
    async with trio.lowlevel.FdStream(source) as incoming, trio.lowlevel.FdStream(sink) as outgoing:
        yield incoming, outgoing
