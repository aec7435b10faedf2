"""The side of a service manager's protocols that a server has: sockets that it inherits, and words about its state.

systemd defined them (`sd_listen_fds`, `sd_notify`); other managers speak them too.
"""

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final, Self

import trio

from warren.base.errors import InvalidParamsError
from warren.base.values import frozen

FIRST: Final = 3
"""The file descriptor of the first inherited socket."""
READY: Final = b"READY=1"
STOPPING: Final = b"STOPPING=1"
_SOCKETS: Final = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
_FIELD: Final = "$.LISTEN_FDS"


@frozen
class Manager:
    """The service manager of this process.

    Attributes:
        notified: the address of the socket that takes words; None if nobody wants any.
        inherited: the file descriptors of the sockets to accept clients from; empty if this process binds its own.
    """

    notified: str | None = None
    inherited: tuple[int, ...] = ()

    @classmethod
    def taken_from(cls, environ: MutableMapping[str, str]) -> Self:
        """Return the manager of this process, and remove it from the environment: children have none."""
        count, process = (environ.pop(name, "") for name in _SOCKETS[:2])
        environ.pop(_SOCKETS[2], None)
        mine = process == str(os.getpid()) and count.isascii() and count.isdigit()
        inherited = tuple(range(FIRST, FIRST + int(count))) if mine else ()
        for number in inherited:
            with suppress(OSError):  # `listeners` says which one is bad
                os.set_inheritable(number, False)
        return cls(environ.pop("NOTIFY_SOCKET", None) or None, inherited)

    def listeners(self) -> list[trio.SocketListener]:
        """Return the sockets that were inherited. Raises InvalidParamsError if one is no stream socket that listens."""
        return [trio.SocketListener(trio.socket.from_stdlib_socket(_listening(number))) for number in self.inherited]

    def tell(self, word: bytes) -> None:
        """Tell the manager the state of this process, if it wants to know. One that cannot be told goes without."""
        if self.notified is None:
            return
        # A name that begins with @ is in Linux's abstract namespace.
        address = f"\0{self.notified[1:]}" if self.notified.startswith("@") else self.notified
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, suppress(OSError, ValueError):
            sock.setblocking(False)
            sock.sendto(word, address)


def _listening(number: int) -> socket.socket:
    try:
        sock = socket.socket(fileno=number)
        good = sock.type == socket.SOCK_STREAM and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as exc:
        problem = f"{_FIELD}: file descriptor {number} cannot be used: {exc.strerror}"
        raise InvalidParamsError(problem, path=_FIELD) from None
    if not good:
        problem = f"{_FIELD}: file descriptor {number} is no stream socket that listens (Accept=no)"
        raise InvalidParamsError(problem, path=_FIELD)
    return sock
