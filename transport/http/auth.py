"""Access to the gateway: bearer tokens, origins of web pages, addresses that only this machine reaches. No network."""

import hmac
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import attrs

from warren.errors import InvalidParamsError
from warren.transport.http.refusals import RefusedError
from warren.values import frozen

OWN_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
OWN_ORIGINS: Final = tuple(f"{scheme}://{name}:*" for scheme in ("http", "https") for name in OWN_NAMES)
"""Pages of this machine."""
SUBPROTOCOL: Final = "warren"
TOKEN_PREFIX: Final = "bearer."  # noqa: S105 - what stands before a token
NODE_PREFIX: Final = "node."
"""The beginning of the tokens by which nodes of a cluster know each other."""
NODE_PROOF: Final = "Warren-Node"
"""The header by which a node proves that it is the one that a token is meant for."""
ANY_PORT: Final = ":*"
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[^\s/:*]+)(:([0-9]+|\*))?")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s/?#@:\[\]]+))(?::[0-9]*)?", re.ASCII)
_TOKEN: Final = re.compile(r"[!-~]+")


def read_token(path: str | Path) -> str:
    """Return the token that a file holds, without the white space around it.

    A browser can only send tokens made of letters, digits and `-._~+`, as it sends them in `Sec-WebSocket-Protocol`.
    Raises InvalidParamsError (path `$.token_file`) if the file cannot be read, is empty, or holds several words.
    """
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as exc:
        raise InvalidParamsError(f"$.token_file: cannot read {path}: {exc}", path="$.token_file") from exc
    if not token:
        raise InvalidParamsError(f"$.token_file: {path} is empty", path="$.token_file")
    if not is_token(token):
        raise InvalidParamsError(f"$.token_file: {path} must hold one word without spaces", path="$.token_file")
    return token


def is_token(token: str) -> bool:
    """Return whether a text can be a token: one word of visible ASCII."""
    return _TOKEN.fullmatch(token) is not None


def is_origin_pattern(pattern: str) -> bool:
    """Return whether a text can stand in the allow-list: `scheme://host`, `scheme://host:port` or `scheme://host:*`."""
    return _ORIGIN.fullmatch(pattern) is not None


def origin_allowed(origin: str, patterns: Iterable[str]) -> bool:
    """Return whether the allow-list has a page's origin; `:*` at a pattern's end stands for any port or none."""
    return any(_matches(origin.lower(), pattern) for pattern in patterns)


def token_matches(expected: str, authorization: Iterable[str], subprotocols: Iterable[str]) -> bool:
    """Return whether a client knows the token, from its `Authorization` or its `Sec-WebSocket-Protocol` values.

    The time it takes does not tell how much of a wrong token was right.
    """
    offered = _offered(authorization)
    offered += [value.removeprefix(TOKEN_PREFIX) for value in subprotocols if value.startswith(TOKEN_PREFIX)]
    return any(hmac.compare_digest(token.encode(), expected.encode()) for token in offered)


def subprotocol_of(offered: Sequence[str]) -> str | None:
    """Return the subprotocol to answer with, None for none.

    It is ours, or else the one that carries the token: a browser that has offered any fails unless one is answered.
    """
    if SUBPROTOCOL in offered:
        return SUBPROTOCOL
    return next((value for value in offered if value.startswith(TOKEN_PREFIX)), None)


def host_of(header: str) -> str:
    """Return the name in a `Host` header without its port; empty if the header is not a host."""
    found = _HOST.fullmatch(header)
    return "" if found is None else found[1] or found[2]


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; of names, `localhost` alone is known to be one."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@frozen
class AccessPolicy:
    """The clients that are let in, over WebSocket and over HTTP.

    Attributes:
        token: the token that each client has to know; None lets all clients in.
        origins: pages whose scripts may call, besides those of this machine. A request without an origin comes from
            no page.
        host: the gateway's own name, besides those of this machine.
        proves_node: returns the proof for the owner of a token that is another node of the cluster, and None for any
            other token; None if the runtime is no node.
    """

    token: str | None = attrs.field(repr=False)
    origins: tuple[str, ...]
    host: str
    proves_node: Callable[[str], str | None] | None = None

    def proof_for(self, authorization: Iterable[str]) -> str | None:
        """Return the proof for another node of the cluster, if one asks; else None.

        Raises RefusedError (401) for a bad token of a node.
        """
        token = next((each for each in _offered(authorization) if each.startswith(NODE_PREFIX)), None)
        if self.proves_node is None or token is None:
            return None
        proof = self.proves_node(token)
        if proof is None:
            raise _unauthorized("a valid token of a node is needed")
        return proof

    def check_source(self, origins: Iterable[str], hosts: Iterable[str]) -> None:
        """Raise RefusedError (403) for a page that is not on the list or, without a token, a foreign name of the host.

        A page may have a name that leads to this machine; its browser then takes the gateway for the page's own
        origin and sends none.
        """
        patterns = (*OWN_ORIGINS, *self.origins)
        if not all(origin_allowed(origin, patterns) for origin in origins):
            raise RefusedError(403, "this origin is not on the gateway's allow-list", field="$.headers.origin")
        if self.token is None and not all(self._is_own(host_of(host)) for host in hosts):
            problem = "without a token, only this machine's own names lead here"
            raise RefusedError(403, problem, field="$.headers.host")

    def check_token(self, authorization: Iterable[str], subprotocols: Iterable[str] = ()) -> None:
        """Raise RefusedError (401) for a client that does not know the token."""
        if self.token is not None and not token_matches(self.token, authorization, subprotocols):
            raise _unauthorized("a valid bearer token is needed")

    def _is_own(self, name: str) -> bool:
        return is_loopback(name) or (name != "" and name.lower() == self.host.lower())


def _unauthorized(problem: str) -> RefusedError:
    return RefusedError(401, problem, ("WWW-Authenticate", "Bearer"), field="$.headers.authorization")


def _offered(authorization: Iterable[str]) -> list[str]:
    return [value[7:].strip() for value in authorization if value[:7].lower() == "bearer "]


def _matches(origin: str, pattern: str) -> bool:
    base = pattern.removesuffix(ANY_PORT)
    if origin == base:
        return True
    host, _, port = origin.rpartition(":")
    return base != pattern and host == base and port.isascii() and port.isdigit()
