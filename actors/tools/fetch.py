"""Reads the public web, as a tool and for files by URL; refuses addresses of this machine and of its network."""

import codecs
import ipaddress
import socket
import ssl
import zlib
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from http import HTTPStatus
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Annotated, Final, TypeAlias, TypeVar

import attrs
import httpx
import msgspec
import trio

from warren.base.fields import FieldValueError, positive
from warren.base.values import frozen
from warren.models.tools import Tool, ToolError, tool

T = TypeVar("T")
Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

MAX_URL: Final = 8192
MAX_CHARS: Final = 200_000
CHARS: Final = 50_000
SAMPLE: Final = 4096
_NAT64: Final = IPv6Network("64:ff9b::/96")
_GLOBAL: Final = IPv6Network("2000::/3")
_SPECIAL: Final = tuple(
    map(
        ipaddress.ip_network,
        # protocol assignments, 6to4 relays, a cloud's metadata service, Teredo and other tunnels, documentation
        ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "2001::/23", "3fff::/20"),
    )
)
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_BINARY: Final = ("image/", "audio/", "video/", "font/", "application/pdf", "application/zip", "application/gzip")
# A server must not choose one of Python's slow codecs, or one that is no encoding of the web.
_CHARSETS: Final = (
    "utf-8",
    "utf-16",
    "utf-32",
    "iso8859",
    "cp",
    "ascii",
    "koi8",
    "shift_jis",
    "euc",
    "gb",
    "big5",
    "mac",
)
_Url = Annotated[str, "http or https address of the page"]
_Chars = Annotated[int, msgspec.Meta(ge=1, le=MAX_CHARS), "how much of the text to return at most"]


@frozen
class FetchLimits:
    """The bounds of one call.

    Attributes:
        seconds: for the whole call, with name look-ups and redirects.
        size: bytes of a page; the rest is cut off.
        redirects: number of redirects that are followed.
        connect_seconds: seconds for each address of a host.
    """

    seconds: float = attrs.field(default=30.0, validator=positive)
    size: int = attrs.field(default=2 * 1024 * 1024, validator=positive)
    redirects: int = 5
    connect_seconds: float = attrs.field(default=5.0, validator=positive)


def fetch_tool(
    *, allow: Sequence[str] = (), limits: FetchLimits | None = None, tls: ssl.SSLContext | None = None
) -> Tool:
    """Return the tool `fetch`. It connects only to public addresses and to the networks in `allow`.

    It connects to the very address that it has checked, so a DNS name that changes in between gains nothing. Proxies of
    the environment are not used. An interrupt closes the connection.

    Args:
        allow: networks such as "10.0.0.0/8" that are allowed besides the public internet.
        limits: the bounds of one call.
        tls: replaces the certificates of the system.

    Raises:
        FieldValueError: if an element of `allow` is no network.
    """
    fetcher = _fetcher(allow, limits, tls)
    return tool(timeout=fetcher.limits.seconds + 10, restart="replay")(fetcher.fetch)


def file_fetcher(
    *, allow: Sequence[str] = (), limits: FetchLimits | None = None, tls: ssl.SSLContext | None = None
) -> Callable[[str, int], Awaitable[bytes]]:
    """Return a function that gets files of the web, from the same addresses and within the same bounds as the tool.

    It gets a URL and the bytes that the file may have, and raises ToolError if there is no such file.

    `limits.size` does not count: a file that is larger than its caller allows is refused, not cut.

    Raises:
        FieldValueError: if an element of `allow` is no network.
    """
    return _fetcher(allow, limits, tls).file


def _fetcher(allow: Sequence[str], limits: FetchLimits | None, tls: ssl.SSLContext | None) -> "_Fetcher":
    networks = tuple(map(network, allow))
    return _Fetcher(networks, limits or FetchLimits(), cache(lambda: tls or httpx.create_ssl_context()))


def network(text: str) -> Network:
    """Return the network of a text. Raises FieldValueError."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as exc:
        raise FieldValueError("allow", f"must be networks, as in 10.0.0.0/8: {exc}") from exc


def is_public(address: Address) -> bool:
    """Return whether an address is public; the IPv4 address within an IPv6 address must be public too."""
    inner = _inner(address)
    if inner is not None:
        return is_public(inner)
    if any(address in network for network in _SPECIAL):
        return False
    if isinstance(address, IPv6Address) and (address.scope_id or address not in _GLOBAL):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _inner(address: Address) -> IPv4Address | None:
    """Return the IPv4 address within an IPv6 address (mapped, 6to4, NAT64), or None."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def reached_problem(address: Address, allow: Sequence[Network], *, plain: bool = False) -> str | None:
    """Return the reason why an address is not reached; None if it is.

    Args:
        address: the address.
        allow: networks that are allowed besides the public internet.
        plain: whether it is to be reached without TLS, which these networks alone are.
    """
    meant = _inner(address) or address
    if any(meant in each for each in allow):
        return None
    if not is_public(address):
        return "is not a public address; only those of the public internet can be fetched"
    return "must be reached by https://" if plain else None


async def _look_up(host: str) -> list[str]:
    return [str(each[4][0]) for each in await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


@frozen
class Pinned(httpx.AsyncBaseTransport):
    """An HTTP transport that resolves a name, checks its addresses, and connects to an address that it has checked.

    Attributes:
        allow: networks that are allowed besides the public internet.
        inner: makes the connections.
        tls_only: whether only these networks are reached without TLS.
        look_up: returns the addresses of a name. Raises OSError and UnicodeError.
    """

    allow: tuple[Network, ...]
    inner: httpx.AsyncHTTPTransport
    tls_only: bool = False
    look_up: Callable[[str], Awaitable[Sequence[str]]] = _look_up

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; see httpx. Raises ToolError if the address is refused."""
        host = request.url.host
        failure: Exception | None = None
        for address in await self._addresses(host, plain=self.tls_only and request.url.scheme == "http"):
            pinned = httpx.Request(
                request.method,
                request.url.copy_with(host=str(address)),
                headers=request.headers,  # among them Host with the name, while the URL has the address
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )
            try:
                return await self.inner.handle_async_request(pinned)
            except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
                failure = exc
        raise failure or ToolError(f"url: {host} has no address")

    async def _addresses(self, host: str, *, plain: bool) -> list[Address]:
        try:
            found = await self.look_up(host)
        except (OSError, UnicodeError) as exc:
            raise ToolError(f"url: the host {host!r} cannot be found: {exc}") from exc
        addresses = list(dict.fromkeys(map(ipaddress.ip_address, found)))
        for address in addresses:
            problem = reached_problem(address, self.allow, plain=plain)
            if problem is not None:
                raise ToolError(f"url: {host} is {address}, which {problem}")
        return addresses

    async def aclose(self) -> None:
        """Close every connection."""
        await self.inner.aclose()


@frozen
class _Fetcher:
    allow: tuple[Network, ...]
    limits: FetchLimits
    tls: Callable[[], ssl.SSLContext]

    async def fetch(self, url: _Url, max_chars: _Chars = CHARS) -> str:
        """Get a page of the web with GET. Returns its status, address and content type, then its text.

        HTML comes as it is. Redirects are followed. Binary content is refused, and so are private addresses.
        """
        return await self._within(url, "text/*, application/json, */*;q=0.1", partial(self._page, max_chars))

    async def file(self, url: str, most: int) -> bytes:
        """Return the bytes of a file, which has at most some. Raises ToolError."""
        return await self._within(url, "image/*, application/pdf, */*;q=0.1", partial(self._file, most))

    async def _within(self, url: str, accept: str, take: Callable[[httpx.Response], Awaitable[T]]) -> T:
        """Get an address within the time limit, and return what `take` makes of the answer. Raises ToolError."""
        try:
            with trio.fail_after(self.limits.seconds):
                return await self._fetch(checked(url), accept, take)
        except trio.TooSlowError:
            raise ToolError(f"url: the page took longer than {self.limits.seconds:g} s") from None
        except (httpx.HTTPError, UnicodeError) as exc:  # UnicodeError: a redirect to a host with a bad name
            raise ToolError(f"url: the page could not be fetched: {why(exc)}") from exc

    async def _fetch(self, url: httpx.URL, accept: str, take: Callable[[httpx.Response], Awaitable[T]]) -> T:
        transport = Pinned(self.allow, httpx.AsyncHTTPTransport(verify=self.tls(), trust_env=False))
        timeout = httpx.Timeout(self.limits.seconds, connect=self.limits.connect_seconds)
        headers = {"user-agent": "warren", "accept": accept, "accept-encoding": "identity"}
        async with httpx.AsyncClient(transport=transport, timeout=timeout, headers=headers, trust_env=False) as client:
            for _hop in range(self.limits.redirects + 1):
                async with client.stream("GET", url, follow_redirects=False) as response:
                    target = response.headers.get("location")
                    if response.status_code not in _REDIRECTS or target is None:
                        return await take(response)
                    url = checked(_joined(url, target))
        raise ToolError(f"url: the page redirects more than {self.limits.redirects} times; the last was to {url}")

    async def _file(self, most: int, response: httpx.Response) -> bytes:
        if response.status_code != HTTPStatus.OK:
            raise ToolError(f"url: the server answered {response.status_code} {response.reason_phrase}".rstrip())
        data = await self._read(response, most)
        if len(data) > most:
            raise ToolError(f"url: the file has more than {most} bytes")
        return data

    async def _page(self, max_chars: int, response: httpx.Response) -> str:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind.startswith(_BINARY):
            raise ToolError(f"url: the page is {kind}, which is no text and cannot be shown")
        data = await self._read(response, self.limits.size)
        cut = len(data) > self.limits.size
        text = _text(data[: self.limits.size], response.charset_encoding, kind)
        notes = [f"HTTP {response.status_code} {response.reason_phrase}".rstrip(), str(response.request.url), kind]
        if cut or len(text) > max_chars:
            notes.append(f"truncated to {min(max_chars, len(text))} characters")
        return "\n".join(["; ".join(filter(None, notes)), "", text[:max_chars]])

    async def _read(self, response: httpx.Response, size: int) -> bytes:
        """Return the content, up to one byte past a size."""
        data, most, unpack = bytearray(), size + 1, _unpacker(response)
        problem: ToolError | None = None
        # A `break` would leave httpx's generators to the garbage collector; a cancellation ends them in order.
        with trio.CancelScope() as enough:
            async for piece in response.aiter_raw():
                if not enough.cancel_called:
                    try:
                        data += _unpacked(unpack, piece, most) if unpack else piece
                    except ToolError as exc:
                        problem = exc
                    if problem or len(data) >= most:
                        enough.cancel()
        if problem:
            raise problem
        return bytes(data[:most])


def why(exc: BaseException) -> str:
    """Return the first text among an error and its causes: that of a failed handshake is three causes down."""
    cause: BaseException | None = exc
    while cause is not None and not str(cause):
        cause = cause.__cause__ or cause.__context__
    return str(cause) if cause is not None else type(exc).__name__


def _joined(url: httpx.URL, target: str) -> str:
    try:
        return str(url.join(target))
    except (httpx.InvalidURL, ValueError) as exc:
        raise ToolError(f"url: the page redirects to an invalid address: {exc}") from exc


def checked(text: str) -> httpx.URL:
    """Return the parsed address. Raises ToolError with the problem if it is not allowed."""
    if len(text) > MAX_URL:
        raise ToolError(f"url: is longer than {MAX_URL} characters")
    try:
        url = httpx.URL(text)
        host = url.host
    except (httpx.InvalidURL, ValueError) as exc:
        raise ToolError(f"url: is not an address: {exc}") from exc
    if url.scheme not in ("http", "https"):
        raise ToolError(f"url: must begin with http:// or https://, not {url.scheme!r}")
    if not host:
        raise ToolError("url: has no host; it must be as in https://example.org/page")
    if url.userinfo:
        raise ToolError("url: must not have a user name or a password in it")
    return url


def _unpacker(response: httpx.Response) -> "zlib._Decompress | None":
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(zlib.MAX_WBITS | 32)
    raise ToolError(f"url: the page is compressed with {encoding!r} although that was not asked for")


def _unpacked(unpack: "zlib._Decompress", piece: bytes, most: int) -> bytes:
    """Return the decompressed bytes up to a bound: a small compressed body may be a very large page."""
    try:
        return unpack.decompress(piece, most)
    except zlib.error as exc:
        raise ToolError(f"url: the page cannot be decompressed: {exc}") from exc


def _text(data: bytes, charset: str | None, kind: str) -> str:
    """Return the text of a page. Raises ToolError if its content is no text."""
    encoding = _encoding(charset)
    wide = encoding.startswith(("utf-16", "utf-32"))
    if not wide and (b"\0" in data[:SAMPLE] or (not charset and not kind.startswith("text/") and not _is_utf8(data))):
        raise ToolError(f"url: the page is binary ({kind or 'no content type'}) and cannot be shown as text")
    return data.decode(encoding, "replace")


def _is_utf8(data: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data[:SAMPLE])
    except UnicodeDecodeError:
        return False
    return True


def _encoding(charset: str | None) -> str:
    try:
        name = codecs.lookup(charset or "utf-8").name
    except (LookupError, ValueError):
        return "utf-8"
    return name if name.startswith(_CHARSETS) else "utf-8"
