"""The proxies of the environment, and the servers that NO_PROXY takes from them."""

from urllib.parse import urlsplit

import pytest

from warren.actors.io.proxies import EnvironmentProxies

PORTS = {"http": 80, "https": 443}


def proxy_for(monkeypatch: pytest.MonkeyPatch, url: str, **variables: str) -> str | None:
    """Return the proxy for an address in an environment of these variables."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    parts = urlsplit(url)
    return EnvironmentProxies.of_environment().proxy_for(
        parts.scheme, parts.hostname or "", parts.port or PORTS[parts.scheme]
    )


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({}, "http://far.example", None),
        ({"HTTP_PROXY": "http://one:1"}, "http://far.example", "http://one:1"),
        ({"HTTP_PROXY": "http://one:1"}, "https://far.example", None),
        ({"https_proxy": "http://two:2"}, "https://far.example", "http://two:2"),
        ({"ALL_PROXY": "http://all:3", "HTTP_PROXY": "one:1"}, "http://far.example", "http://one:1"),
        ({"ALL_PROXY": "http://all:3", "HTTP_PROXY": "one:1"}, "https://far.example", "http://all:3"),
        ({"ALL_PROXY": "http://all:3"}, "http://127.0.0.1:8080", None),
        ({"ALL_PROXY": "http://all:3"}, "http://127.8.0.1", None),
        ({"ALL_PROXY": "http://all:3"}, "http://LOCALHOST", None),
        ({"ALL_PROXY": "http://all:3"}, "https://[::1]:8443", None),
        ({"ALL_PROXY": "http://all:3"}, "https://127.example", "http://all:3"),
    ],
)
def test_the_proxy_of_a_server(
    variables: dict[str, str], url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheme's own variable is asked before ALL_PROXY, and this machine needs no proxy."""
    assert proxy_for(monkeypatch, url, **variables) == proxy


@pytest.mark.parametrize(
    ("entries", "direct", "through"),
    [
        ("10.0.0.0/8", ["10.255.255.1:9", "10.0.0.7"], ["11.0.0.1", "10.example", "a10.0.0.1"]),
        ("10.1.2.3/8", ["10.255.0.1"], ["11.0.0.1"]),
        ("192.168.1.128/25,10.0.0.7", ["192.168.1.200", "10.0.0.7"], ["192.168.1.5", "10.0.0.70"]),
        ("10.0.0.0/8:8080", ["10.1.1.1:8080"], ["10.1.1.1:8081"]),
        ("fd00::/8", ["[fd12::1]:9", "[FD00::1]"], ["[fe80::1]"]),
        ("[fd00::]/8", ["[fd12::1]"], ["[fe80::1]"]),
        ("[::8]:80 ::7", ["[::8]", "[::7]:81", "[0:0:0:0:0:0:0:7]"], ["[::8]:81"]),
        ("far.example", ["far.example", "a.far.example", "FAR.example", "far.example.:80"], ["notfar.example"]),
        (".deep.example", ["deep.example", "so.deep.example"], ["adeep.example"]),
        ("*.wild.example", ["wild.example", "x.wild.example"], ["xwild.example"]),
        ("dot.example.", ["dot.example", "x.dot.example."], ["example"]),
        ("near.example:8080", ["near.example:8080", "x.near.example:8080"], ["near.example:8081", "near.example"]),
        (
            "one.example,two.example three.example ,\t,FOUR.example",
            ["one.example", "three.example", "four.example"],
            [],
        ),
        ("b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example", ["www.xn--bcher-kva.example"], ["bcher.example"]),
        ("http://only.example", ["only.example"], ["x.example"]),
        ("https://only.example", [], ["only.example"]),
        ("not a host:x,10.0.0.0/99,[::zz],:,/8,..,far.example", ["far.example"], ["10.0.0.1", "other.example"]),
        ("far.example,*", ["far.example", "other.example", "10.0.0.1", "[::9]"], []),
        ("", [], ["far.example"]),
    ],
)
def test_servers_without_a_proxy(
    entries: str, direct: list[str], through: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NO_PROXY names hosts with their subdomains, networks and ports; entries that name nothing are passed over."""
    for host in [*direct, *through]:
        found = proxy_for(monkeypatch, f"http://{host}", ALL_PROXY="http://all:3", NO_PROXY=entries)
        assert (found is None) == (host in direct), host
