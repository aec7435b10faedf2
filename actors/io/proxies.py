"""The proxies of the environment: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, and NO_PROXY as curl reads it."""

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Self
from urllib.parse import urlsplit
from urllib.request import getproxies

import attrs

from warren.base.values import frozen

LOCAL: Final = ("127.0.0.0/8", "localhost", "::1")
"""A proxy cannot reach this machine."""
SCHEMES: Final = frozenset({"http", "https", "socks5", "socks5h"})
_ENTRY: Final = re.compile(
    r"""
    (?:(?P<scheme>[a-z]+)://)?
    (?:\[(?P<six>[^]]*)\] | (?P<bare>[^/]*:[^/]*:[^/]*) | (?P<host>[^:/]+))
    (?:/(?P<bits>\d+))?
    (?::(?P<port>\d+))?
    /?
    """,
    re.VERBOSE,
)


@frozen
class DirectServers:
    """Servers that are called without a proxy, as an entry of NO_PROXY names them.

    Attributes:
        server: a network, or a name that stands for its subdomains too.
        scheme: the scheme of their addresses; None for every one.
        port: their port; None for every one.
    """

    server: str | IPv4Network | IPv6Network
    scheme: str | None = None
    port: int | None = None

    @classmethod
    def of(cls, entry: str) -> Self | None:
        """Return the servers of an entry; None if it names none."""
        found = _ENTRY.fullmatch(entry.lower())
        if found is None:
            return None
        host = found["six"] or found["bare"] or found["host"] or ""
        port = None if found["port"] is None else int(found["port"])
        try:
            network = ip_network(f"{host}/{found['bits']}" if found["bits"] else host, strict=False)
            return cls(network, found["scheme"], port)
        except ValueError:  # a name
            name = _ascii(host.lstrip("*").strip("."))
        if not name or found["bits"] or not found["host"]:
            return None
        return cls(name, found["scheme"], port)

    def has(self, scheme: str, host: str, port: int) -> bool:
        """Tell whether a server is one of them, by its scheme, its host without brackets, and its port."""
        if self.scheme not in (None, scheme) or self.port not in (None, port):
            return False
        if isinstance(self.server, str):
            return f".{host}".endswith(f".{self.server}")
        address = _address(host)
        return address is not None and address in self.server


@frozen
class EnvironmentProxies:
    """The proxies for requests.

    Attributes:
        addresses: the address of the proxy for a scheme, or for `all` others.
        direct: the servers that are called without one.
    """

    addresses: Mapping[str, str] = attrs.field(factory=dict, repr=False)  # an address may have a password
    direct: tuple[DirectServers, ...] = ()

    @classmethod
    def of_environment(cls) -> Self:
        """Return those of the environment. Entries of NO_PROXY that name no server are passed over."""
        found = getproxies()
        entries = re.split(r"[\s,]+", found.get("no", ""))
        if "*" in entries:
            return cls()
        direct = filter(None, map(DirectServers.of, (*LOCAL, *entries)))
        return cls({name: found[name] for name in ("http", "https", "all") if found.get(name)}, tuple(direct))

    def proxy_for(self, scheme: str, host: str, port: int) -> str | None:
        """Return the address of the proxy for a server; None if it is called directly.

        Raises:
            ValueError: if the environment has no address of a proxy in the place for one.
        """
        name = next((name for name in (scheme, "all") if name in self.addresses), None)
        host = host.lower().strip("[]").removesuffix(".")
        if name is None or any(each.has(scheme, host, port) for each in self.direct):
            return None
        address = self.addresses[name]
        address = address if "://" in address else f"http://{address}"
        if not _is_proxy(address):
            raise ValueError(f"{name.upper()}_PROXY is not the address of a proxy")
        return address


def _ascii(name: str) -> str:
    """Return a name as requests have it; empty if it cannot be one."""
    try:
        return name.encode("idna").decode("ascii")
    except UnicodeError:
        return ""


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_proxy(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
