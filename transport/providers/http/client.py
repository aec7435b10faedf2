"""The client that models and embedders share: httpx's own, with the connections of `pool.py`."""

from typing import Any, Final

import attrs
import httpx

from warren.actors.io.proxies import EnvironmentProxies
from warren.base.values import define
from warren.transport.providers.http.connecting import Connector, Origin
from warren.transport.providers.http.pool import LIMITS, HttpPool

SOCKS: Final = ("socks5", "socks5h")


@define(eq=False)
class HttpRoutes(httpx.AsyncBaseTransport):
    """A transport of httpx that has a pool for direct connections, and one for each proxy.

    Attributes:
        proxies: the proxies.
        limits: the limits of each pool.
        trust_env: whether SSL_CERT_FILE and SSL_CERT_DIR name the certificates to trust.
    """

    proxies: EnvironmentProxies
    limits: httpx.Limits
    trust_env: bool
    _pools: dict[httpx.URL | None, httpx.AsyncBaseTransport] = attrs.field(factory=dict, repr=False)
    _ways: dict[Origin | None, httpx.AsyncBaseTransport] = attrs.field(factory=dict, repr=False)
    _closed: bool = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request by the way to its server. Raises httpx.ProxyError for a bad address of a proxy."""
        origin = Origin.of(request.url) if self.proxies.addresses else None  # one way is that of every server
        way = self._ways.get(origin)
        if way is None:
            way = self._ways[origin] = self._way(origin)
        return await way.handle_async_request(request)

    async def aclose(self) -> None:
        """Close all pools."""
        self._closed = True
        self._ways.clear()
        for pool in self._pools.values():
            await pool.aclose()

    def _way(self, origin: Origin | None) -> httpx.AsyncBaseTransport:
        if self._closed:
            raise RuntimeError("the client is closed")
        proxy = None if origin is None else self._proxy_for(origin)
        key = None if proxy is None else proxy.url
        if key not in self._pools:
            self._pools[key] = self._pool(proxy)
        return self._pools[key]

    def _proxy_for(self, origin: Origin) -> httpx.Proxy | None:
        try:
            address = self.proxies.proxy_for(*origin)
            return None if address is None else httpx.Proxy(address)
        except (ValueError, httpx.InvalidURL) as exc:
            raise httpx.ProxyError(str(exc)) from None

    def _pool(self, proxy: httpx.Proxy | None) -> httpx.AsyncBaseTransport:
        if proxy is None or proxy.url.scheme not in SOCKS:
            return HttpPool(Connector(proxy, trust_env=self.trust_env), self.limits)
        try:
            return httpx.AsyncHTTPTransport(proxy=proxy, limits=self.limits, trust_env=self.trust_env)
        except ImportError as exc:
            raise httpx.ProxyError(str(exc)) from exc


class Client(httpx.AsyncClient):
    """A client of httpx whose streamed requests go straight to the connections.

    Such a request follows no redirect, keeps no cookie and calls no hook. Proxies and certificates are those of the
    environment: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE, SSL_CERT_DIR. A SOCKS proxy has httpx's
    own connections.

    Args:
        limits: the limits of the connections.
        trust_env: whether proxies and certificates are those of the environment.
        headers: headers of every request that it builds.
    """

    def __init__(
        self, limits: httpx.Limits = LIMITS, *, trust_env: bool = True, headers: dict[str, str] | None = None
    ) -> None:
        proxies = EnvironmentProxies.of_environment() if trust_env else EnvironmentProxies()
        self.routes: HttpRoutes = HttpRoutes(proxies, limits, trust_env)
        super().__init__(transport=self.routes, trust_env=trust_env, headers=headers)

    async def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        """Send a request; see httpx. The body of a streamed answer is read from it, or from its `stream`."""
        if not stream or request.url.userinfo:
            return await super().send(request, stream=stream, **options)
        response = await self.routes.handle_async_request(request)
        response.request = request
        return response


def new_client() -> httpx.AsyncClient:
    """Return the client that all providers share. It has no bound on connections: the runtime bounds its calls."""
    return Client(headers={"user-agent": "warren"})
