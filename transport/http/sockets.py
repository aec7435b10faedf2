"""The files of Unix sockets: made in the place of dead ones, and removed."""

import os
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import trio

MODE: Final = 0o660
"""The permissions of a socket: its owner and its group may connect."""
BACKLOG: Final = 128
YOUNG: Final = 0.25
"""Seconds for which a socket on which nobody listens may be that of a process which is about to."""


def listen_at(path: str, mode: int = MODE) -> socket.socket:
    """Listen at a path, in the place of a socket that a killed process has left. Raises OSError.

    It waits a moment if that one was made just now.
    """
    if remove_dead(path):
        time.sleep(YOUNG)
        remove_dead(path)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(path)
        os.chmod(path, mode)  # noqa: PTH101 - as the calls around it. Nobody can connect yet: it does not listen
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def remove_dead(path: str) -> bool:
    """Remove the socket at a path if no process listens on it, unless it was made just now; return whether it was."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.setblocking(False)  # a full backlog would block, and shows that somebody listens
        try:
            probe.connect(path)
        except ConnectionRefusedError:  # so does every other kind of file
            file = os.stat(path)  # noqa: PTH116 - as above
            if stat.S_ISSOCK(file.st_mode):
                if 0 <= time.time() - file.st_mtime < YOUNG:
                    return True
                os.unlink(path)  # noqa: PTH108 - as above
    return False


@contextmanager
def removing(listeners: Sequence[trio.SocketListener]) -> Iterator[None]:
    """Remove the files of Unix sockets after a body, unless other processes have put theirs in their places."""
    paths = [each.socket.getsockname() for each in listeners if each.socket.family == socket.AF_UNIX]
    own = [(path, _file_at(path)) for path in paths]
    try:
        yield
    finally:
        for path, file in own:
            with suppress(OSError):
                if _file_at(path) == file:
                    os.unlink(path)  # noqa: PTH108 - as above


def _file_at(path: str) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116 - as above
    return found.st_dev, found.st_ino


def port_of(listener: trio.SocketListener) -> int:
    """Return the port of a listener; 0 of a Unix socket."""
    sock = listener.socket
    port: int = 0 if sock.family == socket.AF_UNIX else sock.getsockname()[1]
    return port
