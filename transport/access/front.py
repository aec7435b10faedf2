"""The proxies in front of the gateway: the address and the scheme of a client as they tell them. No I/O."""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final, Self

from warren.base.values import frozen

if TYPE_CHECKING:
    from warren.transport.access.head import Head  # the settings need these names for their checks, and no HTTP

IPAddress = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
UNIX_PEER: Final = "unix"
"""The peer of every connection over a Unix socket."""
SCHEMES: Final = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
MOST_HOPS: Final = 64
"""Proxies on the way of a request that are looked at: a client may send a head full of them."""
_NODE: Final = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[\w.-]+)?|([0-9.]+)(?::[\w.-]+)?|([0-9A-Fa-f:.]+)", re.ASCII)
"""An address with or without a port; one of IPv6 may lack its brackets if it has no port."""


@frozen
class Caller:
    """The client of a request.

    Attributes:
        address: its address; None if it is not known.
        scheme: the scheme that it has used.
    """

    address: str | None
    scheme: str = "http"


@frozen
class _Hop:
    """One way from proxy to proxy: the address of the sender, None if it is not told or not readable."""

    address: IPAddress | None
    scheme: str = ""


@frozen
class TrustedProxies:
    """The proxies that are believed what they tell of their clients.

    Attributes:
        networks: their addresses.
        unix: whether the peers of Unix sockets are some.
    """

    networks: tuple[Network, ...] = ()
    unix: bool = False

    @classmethod
    def of(cls, names: Sequence[str]) -> Self:
        """Return the proxies of a list of addresses, networks and `unix`. Raises ValueError."""
        return cls(tuple(ip_network(name) for name in names if name != UNIX_PEER), UNIX_PEER in names)

    def has(self, peer: str | None) -> bool:
        """Return whether a connection comes from a trusted proxy: from its address, or `unix`; None is unknown."""
        if peer == UNIX_PEER:
            return self.unix
        address = None if peer is None else _address(peer.partition("%")[0])  # without the name of an interface
        return address is not None and self._trusts(address)

    def caller(self, peer: str | None, head: "Head") -> Caller:
        """Return the client of a request that a trusted proxy has sent.

        The addresses are read from the right, each told by the one behind it: the client is the first that is no
        trusted proxy, whatever it claims of those before it. If an entry is no address, the client is the proxy that
        sent this entry.

        `Forwarded` and `X-Forwarded-For` tell the same if both are there; else a client has sent one of them, nobody
        knows which, and the proxy itself is taken for the client.
        """
        schemes = head.values("x-forwarded-proto")
        ways = [way for way in (_forwarded(head), _x_forwarded(head, schemes)) if way]
        callers = [self._caller(peer, way) for way in ways]
        if callers and all(each.address == callers[0].address for each in callers):
            return callers[0]
        return Caller(None if peer == UNIX_PEER else peer, _scheme(schemes[-1] if schemes else "", "http"))

    def _caller(self, peer: str | None, way: Sequence[_Hop]) -> Caller:
        found, scheme = None if peer == UNIX_PEER else peer, "http"
        for hop in reversed(way[-MOST_HOPS:]):
            scheme = _scheme(hop.scheme, scheme)
            if hop.address is None:
                break
            found = str(hop.address)
            if not self._trusts(hop.address):
                break
        return Caller(found, scheme)

    def _trusts(self, address: IPAddress) -> bool:
        return any(address in network for network in self.networks)


def _scheme(text: str, otherwise: str) -> str:
    return SCHEMES.get(text.lower(), otherwise)


def _address(text: str) -> IPAddress | None:
    """Return the address in a text, of IPv4 also if it is written as one of IPv6; None if there is none."""
    found = _NODE.fullmatch(text)
    if found is None:
        return None
    try:
        address = ip_address(next(filter(None, found.groups())))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _forwarded(head: "Head") -> Sequence[_Hop]:
    """Return the way in `Forwarded` (RFC 7239).

    A comma always ends an entry, also in quotes, in which no proxy needs one: a client that opens a quote must not get
    hold of the entry that a proxy adds.
    """
    way = list[_Hop]()
    for entry in head.values("forwarded"):
        pairs = [pair.partition("=") for pair in entry.split(";")]
        fields = {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}
        way.append(_Hop(_address(fields.get("for", "")), fields.get("proto", "")))
    return way


def _x_forwarded(head: "Head", schemes: Sequence[str]) -> Sequence[_Hop]:
    """Return the way in `X-Forwarded-For`, with schemes of `X-Forwarded-Proto`: one for each hop, or one for all."""
    addresses = head.values("x-forwarded-for")
    if len(schemes) != len(addresses):
        schemes = [schemes[-1] if schemes else ""] * len(addresses)
    return [_Hop(_address(address), scheme) for address, scheme in zip(addresses, schemes, strict=True)]
