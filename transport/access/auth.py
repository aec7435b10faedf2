"""Access to the gateway: bearer tokens, origins of web pages, addresses that only this machine reaches. No network."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from warren.base.errors import PermissionDeniedError
from warren.base.fields import FieldValueError
from warren.base.principals import Principal
from warren.base.values import frozen
from warren.reports.audit import Action, Outcome
from warren.transport.access.logins import HEADER, REALM, Authenticator, Login, unauthorized
from warren.transport.access.refusals import RefusedError
from warren.transport.rpc.behalf import TENANT_HEADER, TENANT_PREFIX

OWN_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
OWN_ORIGINS: Final = tuple(f"{scheme}://{name}:*" for scheme in ("http", "https") for name in OWN_NAMES)
"""Pages of this machine."""
SUBPROTOCOL: Final = "warren"
TOKEN_PREFIX: Final = "bearer."  # noqa: S105 - what stands before a token
NODE_PREFIX: Final = "node."
"""The beginning of the tokens by which nodes of a cluster know each other."""
NODE_CHALLENGE: Final = "Warren-Node-Challenge"
"""The header with a text that a node has to sign before it is let in."""
NODE_PROOF: Final = "Warren-Node"
"""The header by which a node proves that it is the one that a token is meant for."""
MAX_SHOWN: Final = 64
"""Characters of a tenant's name that the audit has if the client may not work there."""
MAX_OFFERED: Final = 2
"""Tokens that one request may have: one for each way to send it."""
ANY_PORT: Final = ":*"
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[^\s/:*]+)(:([0-9]+|\*))?")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s/?#@:\[\]]+))(?::[0-9]*)?", re.ASCII)


def is_origin_pattern(pattern: str) -> bool:
    """Return whether a text can stand in the allow-list: `scheme://host`, `scheme://host:port` or `scheme://host:*`."""
    return _ORIGIN.fullmatch(pattern) is not None


def origin_allowed(origin: str, patterns: Iterable[str]) -> bool:
    """Return whether the allow-list has a page's origin; `:*` at a pattern's end stands for any port or none."""
    return any(_matches(origin.lower(), pattern) for pattern in patterns)


def subprotocol_of(offered: Sequence[str]) -> str | None:
    """Return the subprotocol to answer with, None for none.

    It is ours, or else one that carries the token or the tenant: a browser that has offered any fails unless one is
    answered.
    """
    if SUBPROTOCOL in offered:
        return SUBPROTOCOL
    return next((value for value in offered if value.startswith((TOKEN_PREFIX, TENANT_PREFIX))), None)


@lru_cache(maxsize=1024)
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


Noted = Callable[[Principal | None, Action, Outcome, Mapping[str, str]], None]


def _unheard(_principal: Principal | None, _action: Action, _outcome: Outcome, _details: Mapping[str, str]) -> None:
    """Note nothing."""


@frozen
class AccessPolicy:
    """The clients that are let in, over WebSocket and over HTTP.

    Attributes:
        authenticator: knows the tokens of clients.
        origins: pages whose scripts may call, besides those of this machine. A request without an origin comes from
            no page.
        host: the gateway's own name, besides those of this machine.
        noted: adds an entry to the audit: its principal, None for a client that is not known, its action, its outcome
            and its details.
        proves_node: returns the proof for the owner of a token that is another node of the cluster, and None for any
            other token; None if the runtime is no node.
        public_host: the name by which clients reach the gateway through a proxy; empty if it is not known.
    """

    authenticator: Authenticator
    origins: tuple[str, ...]
    host: str
    proves_node: Callable[[str], str | None] | None = None
    noted: Noted = _unheard
    public_host: str = ""

    def proof_for(self, authorization: Iterable[str]) -> str | None:
        """Return the proof for another node of the cluster, if one asks; else None.

        Raises RefusedError for a bad token of a node (401), for one of another release (409), and to give a challenge.
        """
        token = next((each for each in _offered(authorization) if each.startswith(NODE_PREFIX)), None)
        if self.proves_node is None or token is None:
            return None
        proof = self.proves_node(token)
        if proof is None:
            self._refuse("node")
            raise RefusedError(401, "a valid token of a node is needed", REALM, field=HEADER)
        return proof

    def check_source(self, origins: Sequence[str], hosts: Sequence[str]) -> None:
        """Raise RefusedError (403) for a page that is not on the list or, without a token, a foreign name of the host.

        A page may have a name that leads to this machine; its browser then takes the gateway for the page's own
        origin and sends none.
        """
        patterns = (*OWN_ORIGINS, *self.origins) if origins else ()
        if not all(origin_allowed(origin, patterns) for origin in origins):
            raise RefusedError(403, "this origin is not on the gateway's allow-list", field="$.headers.origin")
        if self.authenticator.is_open and not all(self._is_own(host_of(host)) for host in hosts):
            problem = "without a token, only this machine's own names lead here"
            raise RefusedError(403, problem, field="$.headers.host")

    async def login(
        self, authorization: Iterable[str], subprotocols: Sequence[str] = (), tenants: Sequence[str] = ()
    ) -> Login:
        """Return the login of a client, from its `Authorization` and its `Sec-WebSocket-Protocol` values.

        A client may send one token in each way; one of them has to be good.

        Args:
            authorization: the values of that header.
            subprotocols: the offered subprotocols; one of them may be the tenant that the client wants to work in.
            tenants: the values of `Warren-Tenant`, which name that tenant too.

        Raises RefusedError: 401, or 403 for the tenant of others without the right to it.
        """
        login = await self._login(authorization, subprotocols)
        offered = [value.removeprefix(TENANT_PREFIX) for value in subprotocols if value.startswith(TENANT_PREFIX)]
        path = f"$.headers.{TENANT_HEADER if tenants else 'sec-websocket-protocol'}"
        tenants = [*tenants, *offered]
        if not tenants:
            return login
        if len(tenants) > 1:
            raise RefusedError(400, f"{path}: must be there once", field=path)
        try:
            acting = login.within(tenants[0])
        except PermissionDeniedError as exc:
            self.noted(login.principal, "read", "refused", {"tenant": tenants[0][:MAX_SHOWN]})
            raise RefusedError(403, exc.message, error=exc.copy()) from None
        except FieldValueError as exc:
            raise RefusedError(400, f"{path}: {exc.problem}", field=path) from None
        if acting is not login:
            self.noted(acting.principal, "read", "done", {})
        return acting

    async def _login(self, authorization: Iterable[str], subprotocols: Iterable[str]) -> Login:
        offered = _offered(authorization)
        offered += [value.removeprefix(TOKEN_PREFIX) for value in subprotocols if value.startswith(TOKEN_PREFIX)]
        if len(offered) > MAX_OFFERED:  # each may cost a signature
            self._refuse("many_tokens")
            raise unauthorized(offered[0])
        for token in offered[:-1]:
            try:
                return await self.authenticator.authenticate(token)
            except RefusedError:
                continue
        last = offered[-1] if offered else None
        try:
            return await self.authenticator.authenticate(last)
        except RefusedError:
            ended = None if last is None else self.authenticator.ended(last)
            self._refuse("no_token" if last is None else "bad_token" if ended is None else "expired_token", ended)
            raise

    def _refuse(self, reason: str, principal: Principal | None = None) -> None:
        self.noted(principal, "login", "refused", {"reason": reason})

    def _is_own(self, name: str) -> bool:
        return is_loopback(name) or (name != "" and name.lower() in (self.host.lower(), self.public_host))


def _offered(authorization: Iterable[str]) -> list[str]:
    return [value[7:].strip() for value in authorization if value[:7].lower() == "bearer "]


def _matches(origin: str, pattern: str) -> bool:
    base = pattern.removesuffix(ANY_PORT)
    if origin == base:
        return True
    host, _, port = origin.rpartition(":")
    return base != pattern and host == base and port.isascii() and port.isdigit()
