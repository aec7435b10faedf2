"""The address of a gateway, for its clients and for bad clients that speak to its port."""

import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import attrs
import trio

from warren.base.errors import InvalidParamsError
from warren.base.values import frozen
from warren.transport.access.addresses import path_in
from warren.transport.client.service import address_of as websocket_of

PORTS: Final = {"ws": 80, "wss": 443}


@frozen
class Address:
    """The address of a gateway.

    Attributes:
        url: its WebSocket.
        token: the token of its clients.
    """

    url: str
    token: str | None = attrs.field(default=None, repr=False)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of a client's request."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    @property
    def host(self) -> str:
        """The host."""
        return urlsplit(self.url).hostname or ""

    @property
    def path(self) -> str:
        """The path of the WebSocket."""
        return urlsplit(self.url).path

    async def open_stream(self) -> trio.abc.Stream:
        """Connect to the port. Raises OSError."""
        parts = urlsplit(self.url)
        stream = await trio.open_tcp_stream(self.host, parts.port or PORTS[parts.scheme])
        if parts.scheme == "ws":
            return stream
        return trio.SSLStream(stream, ssl.create_default_context(), server_hostname=self.host, https_compatible=True)


def address_of(url: str, token: str | None = None) -> Address:
    """Return the address in a URL; `http` and no scheme mean `ws`. Raises InvalidParamsError (path `$.url`)."""
    if path_in(url) is not None:
        raise InvalidParamsError.at("$.url", f"{url!r} is a Unix socket, which load cannot measure")
    return Address(websocket_of(url), token)
