"""New connections: over TCP, with TLS, and by way of a proxy."""

import ssl
from base64 import b64encode
from functools import cached_property
from typing import Final, NamedTuple

import attrs
import h11
import httpx
import trio

from warren.base.values import define
from warren.transport.providers.http.addresses import Addresses
from warren.transport.providers.http.connection import CHUNK, ClientConnection, Sender, SilenceWatch, reason
from warren.transport.providers.http.reader import ResponseReader
from warren.transport.providers.http.writer import RequestHeads

LONGEST_REASON: Final = 100
"""Characters of a proxy's refusal that an error has."""
PORTS: Final = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """A server: connections to it may be shared, and to nothing else."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: httpx.URL) -> "Origin":
        """Return the origin of an address. Raises httpx.UnsupportedProtocol if it is not one of HTTP."""
        if url.scheme not in PORTS:
            raise httpx.UnsupportedProtocol(f"Request URL has an unsupported protocol '{url.scheme}://'.")
        return cls(url.scheme, url.raw_host.decode("ascii"), url.port or PORTS[url.scheme])


@define(eq=False)
class Connector:
    """Makes connections. TLS sessions are resumed: the second handshake with a server is a short one.

    Attributes:
        proxy: the proxy for all of them, of the scheme http or https; None goes to the servers themselves.
        trust_env: whether SSL_CERT_FILE and SSL_CERT_DIR name the certificates to trust.
    """

    proxy: httpx.Proxy | None = None
    trust_env: bool = True
    _heads: RequestHeads = attrs.field(factory=RequestHeads, repr=False)
    _silence: SilenceWatch = attrs.field(factory=SilenceWatch, repr=False)
    _sessions: dict[Origin, ssl.SSLSession] = attrs.field(factory=dict, repr=False)
    _addresses: Addresses = attrs.field(factory=Addresses, repr=False)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """The settings of TLS, made for the first server that has it: reading the certificates takes time."""
        return _speaking_http(httpx.create_ssl_context(trust_env=self.trust_env))

    async def connect(self, origin: Origin, seconds: float) -> ClientConnection:
        """Return a new connection to a server.

        Raises:
            httpx.ConnectTimeout: if it takes longer than `seconds`, names, TLS and the proxy included.
            httpx.ConnectError: if the server cannot be reached, or its certificate is not to be trusted.
            httpx.ProxyError: if the proxy refuses.
        """
        with trio.CancelScope(deadline=trio.current_time() + seconds):
            try:
                return await self._connect(origin)
            except (OSError, ValueError, trio.BrokenResourceError, trio.ClosedResourceError) as exc:
                # ValueError: a name that no server can have, such as `a..b`
                raise httpx.ConnectError(reason(exc)) from exc
        raise httpx.ConnectTimeout(f"no connection after {seconds:g} s")

    async def _connect(self, origin: Origin) -> ClientConnection:
        first = origin if self.proxy is None else Origin.of(self.proxy.url)
        socket = await self._addresses.stream_to(first.host, first.port)
        try:
            return await self._spoken(socket, origin)
        except BaseException:
            socket.socket.close()
            raise

    async def _spoken(self, socket: trio.SocketStream, origin: Origin) -> ClientConnection:
        """Do TLS and speak with the proxy: the first request comes after that."""
        stream: trio.abc.Stream = socket
        proxy = self.proxy
        if proxy is not None and proxy.url.scheme == "https":
            context = proxy.ssl_context or self._tls
            stream = await self._secured(stream, context, Origin.of(proxy.url))
        if origin.scheme == "http":
            forward = None if proxy is None else _headers(proxy)
            return ClientConnection(stream, socket, self._heads, forward, self._silence)
        if proxy is not None:
            await _tunnel(stream, origin, _headers(proxy))
        sender = Sender(stream)
        secured = await self._secured(sender, self._tls, origin)
        return ClientConnection(secured, socket, self._heads, silence=self._silence, sender=sender)

    async def _secured(
        self, stream: trio.abc.Stream, context: ssl.SSLContext, origin: Origin
    ) -> "trio.SSLStream[trio.abc.Stream]":
        secured = trio.SSLStream(stream, context, server_hostname=origin.host, https_compatible=True)
        if (session := self._sessions.get(origin)) is not None and context is self._tls:
            secured.session = session
        await secured.do_handshake()
        return secured

    def remember(self, connection: ClientConnection, origin: Origin) -> None:
        """Keep the TLS session of a connection that has served a request: its tickets come after the handshake."""
        if origin.scheme == "https" and (session := getattr(connection.stream, "session", None)) is not None:
            self._sessions[origin] = session


def _speaking_http(context: ssl.SSLContext) -> ssl.SSLContext:
    context.set_alpn_protocols(["http/1.1"])
    return context


def _headers(proxy: httpx.Proxy) -> list[tuple[bytes, bytes]]:
    """Return the headers that a proxy gets."""
    own = list(proxy.headers.raw)
    if proxy.raw_auth is not None:
        own.append((b"Proxy-Authorization", b"Basic " + b64encode(b":".join(proxy.raw_auth))))
    return own


async def _tunnel(stream: trio.abc.Stream, origin: Origin, headers: list[tuple[bytes, bytes]]) -> None:
    """Have a proxy connect to a server. Raises httpx.ProxyError if it does not."""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    target = f"{host}:{origin.port}".encode()
    writer, reader = h11.Connection(h11.CLIENT), ResponseReader()
    ask = h11.Request(method=b"CONNECT", target=target, headers=[(b"Host", target), (b"Accept", b"*/*"), *headers])
    await stream.send_all((writer.send(ask) or b"") + (writer.send(h11.EndOfMessage()) or b""))
    while not reader.begun and reader.failure is None:
        reader.feed(bytes(await stream.receive_some(CHUNK)))
    if not reader.begun:
        raise httpx.ProxyError(f"the proxy gave no answer: {reader.failure}")
    if not httpx.codes.is_success(reader.status):
        words = "".join(filter(str.isprintable, reader.reason.decode("ascii", "ignore")))
        raise httpx.ProxyError(f"{reader.status} {words[:LONGEST_REASON]}")
