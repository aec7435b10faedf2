"""The client that models and embedders share: httpx's own, with the connections of `pool.py`."""

from typing import Any

import httpx

from warren.transport.providers.http.connecting import Connector
from warren.transport.providers.http.pool import LIMITS, HttpPool

LOCAL = ("127.0.0.1", "localhost", "[::1]")
"""A proxy cannot reach this machine."""


class Client(httpx.AsyncClient):
    """A client of httpx whose streamed requests go straight to the connections.

    Such a request follows no redirect, keeps no cookie and calls no hook. Proxies and certificates are those of the
    environment, as httpx reads it: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE, SSL_CERT_DIR. A SOCKS
    proxy has httpx's own connections.
    """

    async def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        """Send a request; see httpx. The body of a streamed answer is read from it, or from its `stream`."""
        if not stream or request.url.userinfo:
            return await super().send(request, stream=stream, **options)
        response = await self._transport_for_url(request.url).handle_async_request(request)
        response.request = request
        return response

    def _init_transport(self, *args: Any, **settings: Any) -> httpx.AsyncBaseTransport:
        """Return the way to servers: httpx calls it for the client."""
        del args
        return settings["transport"] or HttpPool(Connector(trust_env=settings["trust_env"]), settings["limits"])

    def _init_proxy_transport(self, proxy: httpx.Proxy, *args: Any, **settings: Any) -> httpx.AsyncBaseTransport:
        """Return the way through a proxy: httpx calls it for each proxy of the environment."""
        if proxy.url.scheme not in ("http", "https"):
            return super()._init_proxy_transport(proxy, *args, **settings)
        return HttpPool(Connector(proxy, trust_env=settings["trust_env"]), settings["limits"])


def new_client() -> httpx.AsyncClient:
    """Return the client that all providers share. It has no bound on connections: the runtime bounds its calls."""
    direct = {f"all://{host}": None for host in LOCAL}
    return Client(limits=LIMITS, mounts=direct, headers={"user-agent": "warren"})
