"""Fetching pages: what is refused, what is bounded, and that no connection stays open."""

import gzip
import ipaddress
import ssl
from typing import Any

import pytest
import trio

from tests.actors.tools.pages import Handler, Names, certificate, open_sockets, page
from tests.transport.providers.byte_server import Request, serve
from warren.actors.tools.fetch import FetchLimits, fetch_tool, is_public
from warren.base.fields import FieldValueError
from warren.models.tools import ToolError

LOCAL = ("127.0.0.0/8",)


async def fetch(url: str, limits: FetchLimits | None = None, **args: Any) -> str:
    """Fetch as the model does, with this machine's own addresses allowed."""
    text: str = await fetch_tool(allow=LOCAL, limits=limits).call(url, **args)
    return text


async def fetch_from(handler: Handler, limits: FetchLimits | None = None, **args: Any) -> str:
    """Fetch a page of a server that lives as long as that."""
    async with serve(handler) as url:
        return await fetch(f"{url}/page", limits, **args)


async def test_page() -> None:
    """Status, address and content type come first, then the text in the page's own encoding."""
    text = await fetch_from(page("schön".encode("latin-1"), "text/html; charset=ISO-8859-1"))
    first, empty, body = text.split("\n")
    assert first.startswith("HTTP 200 OK; http://127.0.0.1:")
    assert first.endswith("/page; text/html")
    assert (empty, body) == ("", "schön")


async def test_status_of_an_error_is_told() -> None:
    """A page that is not there is an answer, with its text."""
    text = await fetch_from(page(b"gone", status="404 Not Found"))
    assert text.startswith("HTTP 404 Not Found; ")
    assert text.endswith("\ngone")


@pytest.mark.parametrize("charset", ["punycode", "idna", "unicode_escape", "rot13", "zlib", "none", "utf-7"])
async def test_charset_that_is_none(charset: str) -> None:
    """A server cannot choose a codec that is slow or no encoding: the text is read as UTF-8."""
    assert (await fetch_from(page("é+AGE-".encode(), f"text/plain; charset={charset}"))).endswith("\né+AGE-")


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",  # noqa: S104 - an example "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.9.9.9", "168.63.129.16",
        "169.254.169.254", "172.16.0.1", "192.0.0.8", "192.0.2.1", "192.168.1.1", "198.18.0.1", "224.0.0.1",
        "239.1.1.1", "240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:10.0.0.1", "::ffff:127.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::1",
        "2002:a00:1::", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%lo", "2600::1%lo",
        "fec0::1", "ff02::1", "ff0e::1",
    ],
)  # fmt: skip
def test_address_that_is_not_public(address: str) -> None:
    """Addresses of this machine, of its network, of no one, and those that hide such a one."""
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1", "2002:101:101::1"]
)
def test_address_that_is_public(address: str) -> None:
    """Addresses of the internet, also in the forms that hold an IPv4 one."""
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "2130706433", "0177.0.0.1", "0x7f.1", "127.1", "0x7f000001", "0", "[::1]",
     "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]",
     "\N{FULLWIDTH DIGIT ONE}\N{FULLWIDTH DIGIT TWO}\N{FULLWIDTH DIGIT SEVEN}.0.0.1"],
)  # fmt: skip
async def test_forms_of_this_machine(host: str) -> None:
    """However this machine is written, nothing connects to it."""
    reached = False

    async def handle(_: Request, stream: trio.SocketStream) -> None:
        nonlocal reached
        reached = True
        await stream.aclose()

    async with serve(handle) as url:
        port = url.rpartition(":")[2]
        with pytest.raises(ToolError, match=r"^url: "):
            await fetch_tool().call(f"http://{host}:{port}/")
    assert not reached


async def test_name_that_changes_its_meaning() -> None:
    """A name is looked up once a hop, and the address that was checked is the one connected to."""
    names = Names("127.0.0.1", "10.255.255.1")
    trio.socket.set_custom_hostname_resolver(names)
    hosts = []

    async def handle(request: Request, stream: trio.SocketStream) -> None:
        hosts.append(request.headers["host"])
        await page(b"pinned")(request, stream)

    async with serve(handle) as url:
        port = url.rpartition(":")[2]
        assert (await fetch(f"http://rebind.example:{port}/")).endswith("\npinned")
    assert names.asked == ["rebind.example"]
    assert hosts == [f"rebind.example:{port}"]


async def test_name_with_one_private_address() -> None:
    """A name that has a private address beside a public one is refused."""
    trio.socket.set_custom_hostname_resolver(Names("93.184.216.34 192.168.0.1"))
    with pytest.raises(ToolError, match=r"mixed\.example is 192\.168\.0\.1, which is not a public address"):
        await fetch_tool().call("http://mixed.example/")


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("http://192.168.0.1/", "not a public address"),
        ("file:///etc/passwd", "must begin with http"),
        ("http://me:secret@127.0.0.1/", "must not have a user name"),
        ("http://[", "cannot be found"),
        ("/page", "redirects more than 5 times"),
    ],
)
async def test_redirect_that_is_refused(target: str, problem: str) -> None:
    """Every hop is checked like the first, and there are not many."""
    with pytest.raises(ToolError, match=problem):
        await fetch_from(page(b"", status="302 Found", location=target))


async def test_redirect() -> None:
    """The page a redirect leads to is what is returned, under its own address."""

    async def handle(request: Request, stream: trio.SocketStream) -> None:
        moved = page(b"", status="301 Moved", location="../there?a=1")
        await (page(b"here") if request.path == "/there?a=1" else moved)(request, stream)

    text = await fetch_from(handle)
    assert "/there?a=1; " in text
    assert text.endswith("\nhere")


@pytest.mark.parametrize(
    "url",
    ["", "example.org", "ftp://example.org/", "http://", "https://me@example.org/", "http://:pw@example.org/",
     "http://a b/", "http://example.org:99999/", "http://[::1", "http://x/" + "y" * 9000, "http://\ud800/", "http://a..b/"],
)  # fmt: skip
async def test_bad_url(url: str) -> None:
    """A text that is no address of a page is refused by a text that names the argument."""
    with pytest.raises(ToolError, match=r"^url: "):
        await fetch(url)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"\x89PNG", "image/png"),
        (b"%PDF", "application/pdf"),
        (b"a\0b", "text/plain"),
        (b"\xff\xfe\xfa", "application/octet-stream"),
    ],
)
async def test_binary(body: bytes, kind: str) -> None:
    """A page that is no text is refused, whatever the server calls it."""
    with pytest.raises(ToolError, match=rf"^url: the page is .*{kind}"):
        await fetch_from(page(body, kind))


async def test_endless_page_is_cut() -> None:
    """A page without an end is read up to the limit, and its connection closed."""
    closed = trio.Event()

    async def handle(_: Request, stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        try:
            while True:
                await stream.send_all(b"x" * 10_000)
        finally:
            closed.set()

    async with serve(handle) as url:
        text = await fetch(url, FetchLimits(size=100_000), max_chars=200_000)
        with trio.fail_after(30):
            await closed.wait()
    assert "truncated to 100000 characters" in text
    assert text.count("x") == 100_000 + "text/plain".count("x")


async def test_compressed_page() -> None:
    """A page that comes compressed is unpacked, a bomb no further than the limit."""
    small = await fetch_from(page(gzip.compress(b"hello"), content_encoding="gzip"))
    assert small.endswith("\nhello")
    bomb = gzip.compress(b"x" * 5_000_000)
    text = await fetch_from(page(bomb, content_encoding="gzip"), FetchLimits(size=1000))
    assert "truncated to 1000 characters" in text
    for body, encoding in ((b"no", "gzip"), (b"", "br")):
        with pytest.raises(ToolError, match="compress"):
            await fetch_from(page(body, content_encoding=encoding))


@pytest.mark.virtual_time
async def test_slow_page() -> None:
    """A server that sends a byte now and then is given up after the time for everything together."""

    async def handle(_: Request, stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        while True:
            await trio.sleep(1)
            await stream.send_all(b".")

    began = trio.current_time()
    with pytest.raises(ToolError, match=r"took longer than 30 s"):
        await fetch_from(handle)
    assert trio.current_time() - began < 32


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n\r\nbegin"])
async def test_interrupt_closes_the_socket(head: bytes) -> None:
    """Cancelled before or within the answer, no socket of the call is left, and the server sees it close."""
    arrived, closed = trio.Event(), trio.Event()

    async def handle(_: Request, stream: trio.SocketStream) -> None:
        await stream.send_all(head)
        arrived.set()
        assert await stream.receive_some() == b""
        await stream.aclose()
        closed.set()

    async with serve(handle) as url:
        before = open_sockets()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch, url)
            await arrived.wait()
            assert open_sockets() == before + 2
            nursery.cancel_scope.cancel()
        with trio.fail_after(30):
            await closed.wait()
        assert open_sockets() == before


async def test_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that the environment names is not asked."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await fetch_from(page(b"direct"))).endswith("\ndirect")


@pytest.mark.parametrize("name", ["secure.example", "other.example"])
async def test_tls_is_checked_against_the_name(name: str) -> None:
    """The name that was asked for is what the server is told and what its certificate must be for."""
    trio.socket.set_custom_hostname_resolver(Names("127.0.0.1"))
    server_tls, pem = certificate("secure.example")
    client_tls = ssl.create_default_context(cadata=pem)
    told: list[str | None] = []
    server_tls.sni_callback = lambda _object, asked, _context: told.append(asked)

    async def answer(stream: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\r\nsafe")
        except trio.BrokenResourceError:
            return

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_ssl_over_tcp_listeners(0, server_tls, host="127.0.0.1", https_compatible=True)
        nursery.start_soon(trio.serve_listeners, answer, listeners)
        listener = listeners[0].transport_listener
        assert isinstance(listener, trio.SocketListener)
        port = listener.socket.getsockname()[1]
        call = fetch_tool(allow=LOCAL, tls=client_tls).call
        if name == "secure.example":
            assert (await call(f"https://{name}:{port}/")).endswith("\nsafe")
        else:
            with pytest.raises(ToolError, match=r"[Hh]ostname mismatch"):
                await call(f"https://{name}:{port}/")
        nursery.cancel_scope.cancel()
    assert told == [name]


def test_networks_are_checked_when_the_tool_is_made() -> None:
    """A text that is no network is an error that names the setting."""
    with pytest.raises(FieldValueError, match=r"^allow must be networks"):
        fetch_tool(allow=["10.0.0.1/8"])
