"""The address at which a node is reached by the other nodes, and the socket of a worker's own for it.

The workers of one command accept clients from the same socket, so a link to one of them needs a socket that only this
one has: a Unix socket in the folder of the store, which serves one machine as the store does, or a port beside that of
the gateway if the store is a database.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs
import trio

from warren.base.errors import InvalidParamsError
from warren.base.values import frozen
from warren.settings.config import NodeConfig, StoreConfig
from warren.transport.access.addresses import LOOPBACK, UNIX, is_path, path_in
from warren.transport.access.config import GatewayConfig
from warren.transport.http.sockets import BACKLOG, listen_at, remove_dead

FOLDER: Final = "nodes"
WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - they are compared with
SCHEMES: Final = ("ws", "wss", "http", "https")


@frozen
class Link:
    """A socket for other nodes, and the URL that leads to it."""

    listener: trio.SocketListener
    url: str


@contextmanager
def open_link(store: StoreConfig | None, gateway: GatewayConfig, node: NodeConfig) -> Iterator[Link]:
    """Bind a socket of this process's own for a body.

    Args:
        store: the store if it is one in files; its folder gets the socket. None binds a port.
        gateway: a port is one of its host, or of this machine alone if that is a Unix socket.
        node: the host of its address is the one that other nodes are told.

    Raises OSError if no socket can be made.
    """
    with ExitStack() as stack:
        path = None if store is None else _open_path(store.path / FOLDER, stack)
        if path is not None:
            sock, url = path
        else:
            host = gateway.host if path_in(gateway.host) is None else LOOPBACK
            sock = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            sock.bind((host, 0))
            sock.listen(BACKLOG)
            url = address_of(attrs.evolve(gateway, host=host), sock.getsockname()[1], node, own_port=True)
        yield Link(trio.SocketListener(trio.socket.from_stdlib_socket(sock)), url)


def _open_path(folder: Path, stack: ExitStack) -> tuple[socket.socket, str] | None:
    """Bind a Unix socket in a folder; None if its path is too long, or the folder's file system cannot have it."""
    path = folder.absolute() / f"{os.getpid()}.sock"
    if not is_path(str(path)):
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in folder.glob("*.sock"):
            remove_dead(str(other))
        sock = stack.enter_context(listen_at(str(path), 0o600))
    except OSError:
        return None
    stack.callback(path.unlink, missing_ok=True)
    return sock, f"{UNIX}{path}"


def address_of(gateway: GatewayConfig, port: int, node: NodeConfig, *, own_port: bool = False) -> str:
    """Return the URL that other nodes are told. That of a Unix socket leads there from this machine alone.

    It is the node's address if it has one. Else it is the gateway's host, or this machine's name if the gateway listens
    on all its addresses.

    Args:
        gateway: has the host.
        port: the port that is bound.
        node: may have an address.
        own_port: whether `port` takes the place of the one in that address.
    """
    if node.address is not None and not own_port:
        return node.address
    if (path := path_in(gateway.host)) is not None:
        return f"{UNIX}{Path(path).absolute()}"
    host = None if node.address is None else urlsplit(node.address).hostname
    scheme = "ws" if node.address is None else urlsplit(node.address).scheme
    if host is None:
        host = socket.gethostname() if gateway.host in WILDCARDS else gateway.host
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_address(address: str | None) -> None:
    """Raise InvalidParamsError (path `$.node_address`) for an address that is no URL of a gateway."""
    if address is None:
        return
    try:
        parts = urlsplit(address)
        good = parts.scheme in SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise InvalidParamsError.at("$.node_address", f"{address!r} is not like ws://10.0.0.5:8420")
