"""Settings of the gateway; plain values, no I/O."""

import re
from pathlib import Path
from typing import Any, Final

import attrs

from warren.base.errors import InvalidParamsError
from warren.base.fields import Between, Each, FieldValueError, not_negative, positive
from warren.base.values import frozen
from warren.settings.config import Config
from warren.transport.access import auth
from warren.transport.access.addresses import LONGEST, UNIX, is_path, path_in
from warren.transport.access.front import UNIX_PEER, TrustedProxies
from warren.transport.access.jwt_config import JwtConfig
from warren.transport.access.token_list import is_token
from warren.transport.rpc.settings import Settings, public_settings

MAX_PORT: Final = 65_535
PRIVATE: Final = (
    *("host", "port", "token", "token_file", "token_table", "jwt", "public_url", "mcp_scopes"),
    *("trusted_proxies", "origins", "console", "metrics_port", "runtime"),
)
"""Settings that clients do not see."""
_PUBLIC_URL: Final = re.compile(
    r"(https?://(?:\[[0-9a-f:.]+\]|[^\s/:*?#@\[\]]+)(?::[0-9]+)?)((?:/[\w.~!$&'()*+,;=:@%-]+)*)/*",
    re.ASCII | re.IGNORECASE,
)
"""An origin, and a path."""
TAKEN: Final = (
    *("agents", "approvals", "audit", "capabilities", "changes", "complete", "config", "health", "memory", "metrics"),
    *("metrics.json", "nodes", "openapi.json", "schedules", "sessions", "store", "tenants", "triggers", "usage"),
    *("webhooks", "console", "livez", "mcp", "readyz", "ws", ".well-known"),
)
"""The beginnings of the gateway's own paths. Below one of them nobody could tell whether a proxy has taken it away."""
_SCOPE_NAME: Final = re.compile(r"[!#-[\]-~]+")


def _host(_instance: object, attribute: "attrs.Attribute[str]", value: str) -> None:
    if not value:
        raise FieldValueError(attribute.name, "must not be empty")
    path = path_in(value)
    if path is not None and not is_path(path):
        raise FieldValueError(attribute.name, f"must have a path of 1 to {LONGEST} bytes behind {UNIX}")


def _token(_instance: object, attribute: "attrs.Attribute[str | None]", value: str | None) -> None:
    if value is not None and not is_token(value):
        raise FieldValueError(attribute.name, "must be one word of visible ASCII")


def _public_url(_instance: object, attribute: "attrs.Attribute[str | None]", value: str | None) -> None:
    if value is None:
        return
    found = _PUBLIC_URL.fullmatch(value)
    if found is None:
        problem = f"must be like https://example.org or https://example.org/warren, not {value!r}"
        raise FieldValueError(attribute.name, problem)
    if (name := found[2].split("/")[1:2]) and name[0] in TAKEN:
        raise FieldValueError(attribute.name, f"must have another path: /{name[0]} is one of the gateway's own")


def _trusted_proxies(_instance: object, attribute: "attrs.Attribute[Any]", value: tuple[str, ...]) -> None:
    for name in value:
        try:
            TrustedProxies.of([name])
        except ValueError as exc:
            problem = f"must be addresses, networks like 10.0.0.0/8, or {UNIX_PEER}: {exc}"
            raise FieldValueError(attribute.name, problem) from None


SCOPE_NAMES: Final = Each(_SCOPE_NAME.fullmatch, "must be names of OAuth scopes, not {}")
ORIGINS: Final = Each(auth.is_origin_pattern, "must be like https://example.org or http://host:*, not {}")


@frozen
class GatewayConfig:
    """The address of the gateway and the bounds of one client; times in seconds.

    Raises FieldValueError for a bad value.

    Attributes:
        host: the address to bind; another than this machine's own needs a token. `unix:PATH` is a Unix socket, for its
            owner and its group.
        port: the port to bind; 0 picks a free one. A Unix socket has none.
        token: the one secret that all clients have to know. With none of `token`, `token_file`, `token_table` and `jwt`
            every client that can connect is let in, with the rights of the service that is served.
        token_file: the file of the tokens that are let in: one word, or TOML as `warren token` writes it.
        token_table: whether to let in the tokens of the store, which has to be in a database: all servers on it share
            them.
        jwt: the signed tokens that are let in; None for none.
        public_url: the address by which clients reach the gateway, for the OpenAPI document, the header `Location` and
            the OAuth metadata of `/mcp`; its web pages may connect. Its path is that below which a proxy serves the
            gateway, whether the proxy takes it away or not; it begins like no path of the gateway. None takes the
            address that a client has used.
        trusted_proxies: the addresses and networks of the proxies that are believed the address and the scheme of a
            client, in `Forwarded`, `X-Forwarded-For` and `X-Forwarded-Proto`; `unix` stands for all peers of a Unix
            socket. Of others these headers are passed over.
        mcp_scopes: the scopes that clients of `/mcp` are told to ask the issuer for; None takes `session:read` and
            `session:write` by the issuer's names, or none if `jwt.scope_claim` is neither `scope` nor `scp`.
        origins: web pages that may connect besides those of this machine: `https://example.org`, `http://host:*`.
        max_message_bytes: a longer request is refused: under its id over WebSocket, with 413 over HTTP. A message of
            more than six times as many bytes closes its WebSocket with code 1009.
        max_in_flight: requests of one connection that may be unanswered.
        max_subscriptions: sessions that one connection may follow.
        max_connections: clients at once. One more takes the place of the client that has been longest without a
            request, or is refused with 503 if all have sent one.
        max_http: those of them that speak HTTP. One more takes the place of a request whose body comes slowly, of a
            connection without a request, or of one that is read slowly.
        outbox_events: events that may wait for one client; the others stay in the log until it has read.
        stall_timeout: how long 64 KiB may take to leave before the client is dropped, and a request's body to come.
        handshake_timeout: how long a client may take to send the head of its first request.
        keep_alive_timeout: how long an HTTP client may take to ask again. A proxy or a balancer in front has to let go
            of an unused connection earlier: it would send a request just when the gateway closes.
        heartbeat: how long a WebSocket client may be silent before it gets a ping, and how long it then has for a sign
            of life before its connection is closed with code 1011; a stream of events says after as long a silence that
            it is there. Keep it below the idle timeout of a proxy in front: that of nginx is 60 seconds, those of
            haproxy are often 30 or 50.
        close_timeout: how long a client may take to say goodbye; shutdown takes at most twice as long.
        workers: processes that serve the port together. More than one need a store. Each may run as many turns as one
            alone; one that dies is started again.
        console: whether to serve the console, a page for browsers, at /console/.
        metrics_port: a port of this machine for `/metrics` alone, which needs no token there; None serves them on the
            gateway's port only. 0 picks a free one.
        runtime: the runtime's own settings, for `config/get`; secrets and prompts are not shown.
    """

    host: str = attrs.field(default="127.0.0.1", validator=_host)
    port: int = attrs.field(default=8420, validator=Between(0, MAX_PORT))
    token: str | None = attrs.field(default=None, validator=_token, repr=False)
    token_file: Path | None = None
    token_table: bool = False
    jwt: JwtConfig | None = None
    public_url: str | None = attrs.field(default=None, validator=_public_url)
    trusted_proxies: tuple[str, ...] = attrs.field(default=(), validator=_trusted_proxies)
    mcp_scopes: tuple[str, ...] | None = attrs.field(default=None, validator=SCOPE_NAMES)
    origins: tuple[str, ...] = attrs.field(default=(), validator=ORIGINS)
    max_message_bytes: int = attrs.field(default=1024 * 1024, validator=positive)
    max_in_flight: int = attrs.field(default=256, validator=positive)
    max_subscriptions: int = attrs.field(default=1_000, validator=positive)
    max_connections: int = attrs.field(default=1_000, validator=positive)
    max_http: int = attrs.field(default=250, validator=positive)
    outbox_events: int = attrs.field(default=2_000, validator=positive)
    stall_timeout: float = attrs.field(default=30.0, validator=positive)
    handshake_timeout: float = attrs.field(default=5.0, validator=positive)
    keep_alive_timeout: float = attrs.field(default=75.0, validator=positive)
    heartbeat: float = attrs.field(default=15.0, validator=positive)
    close_timeout: float = attrs.field(default=2.0, validator=not_negative)
    workers: int = attrs.field(default=1, validator=positive)
    console: bool = True
    metrics_port: int | None = attrs.field(default=None, validator=attrs.validators.optional(Between(0, MAX_PORT)))
    runtime: Config | None = None

    @property
    def prefix(self) -> str:
        """The path of the public address, without a slash at its end; empty if it has none."""
        return self._public(2)

    @property
    def base(self) -> str:
        """The public address, without a slash at its end; empty if it is not known."""
        return self._public(1) + self.prefix

    @property
    def public_host(self) -> str:
        """The name in the public address, in lower case; empty if it is not known."""
        return auth.host_of(self._public(1).partition("://")[2]).lower()

    @property
    def pages(self) -> tuple[str, ...]:
        """The web pages that may connect besides those of this machine; the console at the public address is one."""
        return (*self.origins, own.lower()) if (own := self._public(1)) else self.origins

    def _public(self, part: int) -> str:
        found = _PUBLIC_URL.fullmatch(self.public_url or "")
        return "" if found is None else found[part]

    @property
    def lets_in_by(self) -> str | None:
        """The first setting by which tokens are let in; None if every client is."""
        given = {"token": self.token, "token_file": self.token_file, "token_table": self.token_table or None}
        return next((name for name, value in {**given, "jwt": self.jwt}.items() if value is not None), None)

    def check_exposure(self) -> None:
        """Raise InvalidParamsError if other machines could connect without a token."""
        if self.lets_in_by is None and path_in(self.host) is None and not auth.is_loopback(self.host):
            raise InvalidParamsError.at(
                "$.token", f"is required to bind {self.host}, which others can reach; without one, bind 127.0.0.1"
            )

    def public(self) -> Settings:
        """Return the settings that clients may see."""
        limits = attrs.asdict(self, filter=attrs.filters.exclude(*PRIVATE))
        return public_settings(self.runtime, gateway=limits)
