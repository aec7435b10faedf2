"""The proxies of the environment, by the rules of httpx: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."""

from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, Self
from urllib.request import getproxies

import attrs
import httpx

from warren.transport.providers.http.connecting import PORTS, Origin
from warren.values import frozen

LOCAL: Final = ("127.0.0.1", "localhost", "::1")
"""A proxy cannot reach this machine."""


@frozen
class DirectServers:
    """Servers that are called without a proxy, as an entry of NO_PROXY names them.

    Attributes:
        scheme: the scheme of their addresses; `all` for every one.
        host: their name, with a `*` before it if its subdomains are meant, too, or `*.` if nothing else is.
        port: their port; None for every one.
    """

    scheme: str
    host: str
    port: int | None

    @classmethod
    def of(cls, entry: str) -> Self:
        """Return the servers of an entry. Raises httpx.InvalidURL if it names none."""
        before, address = ("", entry) if "://" in entry else _parts(entry)
        url = httpx.URL(address)
        return cls(url.scheme, before + url.raw_host.decode("ascii"), url.port)

    def has(self, origin: Origin) -> bool:
        """Return whether a server is one of them."""
        if self.scheme not in ("all", origin.scheme) or self.port not in (None, origin.port):
            return False
        if not self.host.startswith("*"):
            return origin.host == self.host
        domain = self.host.removeprefix("*").removeprefix(".")
        return origin.host.endswith(f".{domain}") or self.host == f"*{origin.host}"


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
        entries = [entry.strip() for entry in found.get("no", "").split(",")]
        if "*" in entries:
            return cls()
        direct = []
        for entry in filter(None, (*LOCAL, *entries)):
            with suppress(httpx.InvalidURL):
                direct.append(DirectServers.of(entry))
        return cls({name: found[name] for name in (*PORTS, "all") if found.get(name)}, tuple(direct))

    def proxy_for(self, origin: Origin) -> httpx.Proxy | None:
        """Return the proxy for a server; None if it is called directly.

        Raises:
            httpx.ProxyError: if the environment has no address of a proxy in the place for one.
        """
        name = next((name for name in (origin.scheme, "all") if name in self.addresses), None)
        if name is None or any(each.has(origin) for each in self.direct):
            return None
        address = self.addresses[name]
        try:
            return httpx.Proxy(address if "://" in address else f"http://{address}")
        except (ValueError, httpx.InvalidURL):
            raise httpx.ProxyError(f"{name.upper()}_PROXY is not the address of a proxy") from None


def _parts(entry: str) -> tuple[str, str]:
    """Return the stars before the host of an entry, and its address: a domain stands for its subdomains, too."""
    with suppress(ValueError):
        six = ip_address(entry.partition("/")[0]).version == 6  # noqa: PLR2004 - of IP
        return "", f"all://[{entry}]" if six else f"all://{entry}"
    if entry.startswith("[") or entry.lower() == "localhost":
        return "", f"all://{entry}"
    return "*." if entry.startswith(".") else "*", f"all://{entry.removeprefix('.')}"
