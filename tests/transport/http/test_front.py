"""Clients behind proxies: which addresses and schemes are believed."""

import pytest

from warren.base.fields import FieldValueError
from warren.transport.access.config import GatewayConfig
from warren.transport.access.front import UNIX_PEER, Caller, TrustedProxies
from warren.transport.access.head import Head

PROXY = "10.0.0.1"
PROXIES = TrustedProxies.of([PROXY, "172.16.0.0/12", "fd00::/8", UNIX_PEER])


def head(*headers: tuple[str, str]) -> Head:
    """Make the head of a request with these headers."""
    return Head("GET", b"/", tuple((name.lower().encode(), value.encode("latin-1")) for name, value in headers), "1.1")


def of(*addresses: str) -> Head:
    """Make a head with a line of `X-Forwarded-For` for each text."""
    return head(*(("X-Forwarded-For", each) for each in addresses))


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        (PROXY, True),
        ("::ffff:10.0.0.1", True),
        ("172.31.255.255", True),
        ("fd12::1", True),
        (UNIX_PEER, True),
        ("10.0.0.2", False),
        ("fd12::1%eth0", True),
        ("fe80::1%eth0", False),
        (None, False),
        ("", False),
    ],
)
def test_the_trusted_peers(peer: str | None, trusted: bool) -> None:  # noqa: FBT001 - a case
    """A peer is trusted by its address or network, over a Unix socket by name, and never if it is not known."""
    assert PROXIES.has(peer) is trusted
    assert not TrustedProxies().has(peer)


@pytest.mark.parametrize(
    ("found", "request_head"),
    [
        (PROXY, head()),
        ("1.2.3.4", of("1.2.3.4")),
        ("1.2.3.4", of("1.2.3.4:5678")),
        ("2001:db8::1", of("2001:db8::1")),
        ("2001:db8::1", of("[2001:DB8::1]:443")),
        ("1.2.3.4", of("::ffff:1.2.3.4")),
        ("1.2.3.4", of("6.6.6.6, 1.2.3.4")),
        ("1.2.3.4", of("6.6.6.6", "1.2.3.4, 172.20.0.1")),
        ("1.2.3.4", of("nonsense, 1.2.3.4,172.20.0.1 , fd00::2")),
        ("172.20.0.2", of("172.20.0.2, 172.20.0.1")),
        (PROXY, of("unknown")),
        (PROXY, of("1.2.3.4, unknown")),
        ("172.20.0.1", of("1.2.3.4, ___, 172.20.0.1")),
        (PROXY, of("999.1.1.1")),
        (PROXY, of("fe80::1%a name of the client's own")),
        (PROXY, of("1.2.3.4\t6.6.6.6")),
        (PROXY, of("\xff\xfe")),
        (PROXY, of("")),
        (PROXY, of("," * 9_000)),
        ("172.20.0.1", of(",".join(["172.20.0.1"] * 900))),
        ("1.2.3.4", head(("Forwarded", "for=1.2.3.4"))),
        ("1.2.3.4", head(("Forwarded", 'for=6.6.6.6, For="1.2.3.4:_port";Proto=https;by=_x'))),
        ("2001:db8::1", head(("Forwarded", 'proto=http;for="[2001:db8::1]:4711"'))),
        ("1.2.3.4", head(("Forwarded", "for=6.6.6.6"), ("Forwarded", "for=1.2.3.4, for=172.20.0.1"))),
        ("1.2.3.4", head(("Forwarded", 'for=6.6.6.6;ext=", for=1.2.3.4'))),
        ("1.2.3.4", head(("Forwarded", 'for=6.6.6.6;ext=", for="1.2.3.4"'))),
        (PROXY, head(("Forwarded", "for=_hidden"))),
        (PROXY, head(("Forwarded", "proto=https"))),
        (PROXY, head(("Forwarded", ";;=;for"))),
        (PROXY, head(("Forwarded", "for=1.2.3.4"), ("X-Forwarded-For", "6.6.6.6"))),
        ("1.2.3.4", head(("Forwarded", "for=1.2.3.4"), ("X-Forwarded-For", "6.6.6.6, 1.2.3.4"))),
    ],
)
def test_the_address_of_a_client(found: str, request_head: Head) -> None:
    """The right-most address that is no trusted proxy is the client; behind nonsense it is the proxy that sent it."""
    assert PROXIES.caller(PROXY, request_head).address == found
    assert PROXIES.caller(UNIX_PEER, request_head).address == (None if found == PROXY else found)


@pytest.mark.parametrize(
    ("scheme", "headers"),
    [
        ("http", {}),
        ("https", {"X-Forwarded-Proto": "https"}),
        ("https", {"X-Forwarded-For": "1.2.3.4", "X-Forwarded-Proto": "HTTPS"}),
        ("https", {"X-Forwarded-For": "1.2.3.4, 172.20.0.1", "X-Forwarded-Proto": "https"}),
        ("https", {"X-Forwarded-For": "1.2.3.4, 172.20.0.1", "X-Forwarded-Proto": "https, http"}),
        ("http", {"X-Forwarded-For": "6.6.6.6, 1.2.3.4", "X-Forwarded-Proto": "https, http"}),
        ("https", {"X-Forwarded-For": "1.2.3.4", "X-Forwarded-Proto": "wss"}),
        ("http", {"X-Forwarded-For": "1.2.3.4", "X-Forwarded-Proto": "javascript"}),
        ("https", {"Forwarded": "for=1.2.3.4;proto=https, for=172.20.0.1;proto=http"}),
        ("http", {"Forwarded": "for=6.6.6.6;proto=https, for=1.2.3.4;proto=http"}),
    ],
)
def test_the_scheme_of_a_client(scheme: str, headers: dict[str, str]) -> None:
    """The scheme is that of the outermost trusted proxy, and one of HTTP."""
    assert PROXIES.caller(PROXY, head(*headers.items())).scheme == scheme


def test_a_client_without_words_of_proxies() -> None:
    """A trusted proxy that tells nothing is itself the client, by its address if it has one."""
    assert PROXIES.caller(PROXY, head()) == Caller(PROXY)
    assert PROXIES.caller(UNIX_PEER, head()) == Caller(None)


@pytest.mark.parametrize("name", ["proxy.example.org", "10.0.0.1/8", "10.0.0.1:80", "*", "", "unix:/run/x", "1.2.3"])
def test_names_that_are_no_proxies(name: str) -> None:
    """The setting takes addresses, networks and `unix`; anything else is refused by its name."""
    with pytest.raises(FieldValueError, match="trusted_proxies") as found:
        GatewayConfig(trusted_proxies=("127.0.0.1", name))
    assert repr(name) in str(found.value) or "host bits" in str(found.value)


@pytest.mark.parametrize(
    ("url", "base", "prefix"),
    [
        ("https://example.org", "https://example.org", ""),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080", ""),
        ("https://Example.org:8443/a/b%20c/", "https://Example.org:8443/a/b%20c", "/a/b%20c"),
        ("https://[::1]/warren", "https://[::1]/warren", "/warren"),
    ],
)
def test_the_parts_of_a_public_address(url: str, base: str, prefix: str) -> None:
    """A public address may have a path, and its origin is a page that may connect."""
    config = GatewayConfig(public_url=url, origins=("http://other.example",))
    assert (config.base, config.prefix) == (base, prefix)
    assert config.pages == ("http://other.example", base.removesuffix(prefix).lower())
    assert config.public_host in config.pages[1]


@pytest.mark.parametrize(
    "url",
    ["", "example.org", "ftp://example.org", "https://", "https://a b", "https://x/?q", "https://x/#f", "https://u@x"],
)
def test_what_is_no_public_address(url: str) -> None:
    """An address that clients cannot use is refused."""
    with pytest.raises(FieldValueError, match="public_url"):
        GatewayConfig(public_url=url)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/w/sessions?x=1", "/sessions"),
        (b"/w/", "/"),
        (b"/w", ""),
        (b"/w?x", ""),
        (b"/wide", "/wide"),
        (b"/sessions", "/sessions"),
        (b"/w/w/", "/w/"),
    ],
)
def test_a_path_below_a_prefix(target: bytes, path: str) -> None:
    """The prefix is taken off whole, once, and only where a part of the path ends."""
    assert Head("GET", target, (), "1.1").below(b"/w").path == path
