"""The opening handshake as plain data: reads the head of an HTTP request, says who may pass, writes answers. No I/O."""

import base64
import hashlib
from collections.abc import Collection, Iterable
from http import HTTPStatus
from typing import Final

import attrs
import h11

from warren import codec
from warren.errors import CapacityExceededError, InvalidParamsError, WarrenError
from warren.transport.http import auth

PATH: Final = "/ws"
MAX_HEAD: Final = 16 * 1024
KEY_BYTES: Final = 16
GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
VERSIONS: Final = (b"1.0", b"1.1")
UPGRADING: Final = ("connection", "http2-settings", "upgrade")


class RefusedError(Exception):
    """The request gets an HTTP answer that says why it is refused.

    Attributes:
        status: of the answer.
        error: its body, as every surface shows it.
        headers: of the answer, besides those of its body.
    """

    def __init__(self, status: int, text: str, *headers: tuple[str, str], field: str = "$") -> None:
        """Refuse for what `field` names, as in `$.headers.origin`; with status 503 the server is what lacks."""
        super().__init__(text)
        full = status == HTTPStatus.SERVICE_UNAVAILABLE
        self.status = status
        self.error: WarrenError = (
            CapacityExceededError(text, cause="max_connections") if full else InvalidParamsError(text, path=field)
        )
        self.headers = headers

    def answer(self) -> bytes:
        """Return the whole HTTP response; the connection is to be closed after it."""
        body = codec.encode(self.error.body())
        fields = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        lines = [f"{name}: {value}" for name, value in (*fields, *self.headers, ("Connection", "close"))]
        return "\r\n".join([f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", *lines, "", ""]).encode() + body


@attrs.frozen
class Head:
    """The head of a request.

    Attributes:
        method: as sent.
        path: without the query.
        headers: names in lower case, values as sent.
        rest: what the client sent after the head.
        raw: all that the client has sent.
    """

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    rest: bytes
    raw: bytes

    def values(self, name: str) -> list[str]:
        """Return all values of a header that holds a list, in order."""
        listed = [value.split(",") for key, value in self.headers if key == name]
        return [value.strip() for values in listed for value in values if value.strip()]

    def whole(self, name: str) -> list[str]:
        """Return a header's values, one a line as sent."""
        return [value for key, value in self.headers if key == name]


class HeadReader:
    """Collects bytes until they are the head of a request."""

    def __init__(self) -> None:
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._raw = bytearray()

    def feed(self, data: bytes) -> Head | None:
        """Return the head, or None if more is needed. Raises RefusedError if it is not HTTP, too long or ambiguous."""
        self._raw += data
        try:
            self._connection.receive_data(data)
            event = self._connection.next_event()
        except h11.RemoteProtocolError as exc:
            raise RefusedError(exc.error_status_hint, f"not an HTTP request: {exc}") from exc
        if not isinstance(event, h11.Request):
            return None
        if event.http_version not in VERSIONS:
            raise RefusedError(505, "only HTTP/1.1 is spoken here")
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers)
        check_framing({name for name, _ in headers})
        path = event.target.decode("latin-1").partition("?")[0]
        rest = bytes(self._connection.trailing_data[0])
        return Head(event.method.decode("latin-1"), path, headers, rest, bytes(self._raw))


@attrs.frozen
class Gate:
    """Who may open a WebSocket.

    Attributes:
        token: what a client has to know; None lets everybody in.
        origins: pages whose scripts may connect, besides those of this machine. A client without an origin is no page
            and may.
        host: the gateway's own name, besides those of this machine.
    """

    token: str | None = attrs.field(repr=False)
    origins: tuple[str, ...]
    host: str

    def check(self, head: Head) -> str | None:
        """Return the subprotocol to answer with (None for none). Raises RefusedError for who may not pass."""
        _check_upgrade(head)
        _check_key(head)
        check_origins(head.whole("origin"), self.origins)
        if self.token is None:
            check_hosts(head.whole("host"), self.host)
        offered = head.values("sec-websocket-protocol")
        check_token(self.token, head.whole("authorization"), offered)
        return auth.subprotocol_of(offered)


def switch(head: Head, subprotocol: str | None) -> bytes:
    """Return the answer that opens the WebSocket of an upgrade request."""
    # A fixed hash of the client's key, as RFC 6455 has it: it proves that this is a WebSocket, and protects nothing.
    proof = hashlib.sha1(head.whole("sec-websocket-key")[0].encode() + GUID, usedforsecurity=False).digest()
    lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
    lines.append(f"Sec-WebSocket-Accept: {base64.b64encode(proof).decode()}")
    if subprotocol is not None:
        lines.append(f"Sec-WebSocket-Protocol: {subprotocol}")
    return "\r\n".join([*lines, "", ""]).encode()


def plain_request(head: Head) -> bytes:
    """Return a request without its wish for another protocol, and what came after it.

    A client that wishes for one has to do with HTTP/1.1, and with one request for this connection: the next one may
    have the same wish.
    """
    if not head.whole("upgrade"):
        return head.raw
    line, _, _ = head.raw.lstrip(b"\r\n").partition(b"\n")
    kept = [f"{name}: {value}" for name, value in head.headers if name not in UPGRADING]
    lines = "\r\n".join([*kept, "Connection: close", "", ""])
    return line.rstrip(b"\r") + b"\r\n" + lines.encode("latin-1") + head.rest


def check_origins(origins: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise RefusedError for a page that is neither of this machine nor on the list."""
    patterns = (*auth.OWN_ORIGINS, *allowed)
    if not all(auth.origin_allowed(origin, patterns) for origin in origins):
        raise RefusedError(403, "this origin is not on the gateway's allow-list", field="$.headers.origin")


def check_hosts(hosts: Iterable[str], own: str) -> None:
    """Raise RefusedError for a request to a host of another name, for a gateway without a token.

    A page may have a name that leads to this machine; then its browser takes the gateway for the page's own origin.
    """
    for name in map(auth.host_of, hosts):
        if not auth.is_loopback(name) and (not name or name.lower() != own.lower()):
            raise RefusedError(403, "without a token, only this machine's own names lead here", field="$.headers.host")


def check_framing(names: Collection[str]) -> None:
    """Raise RefusedError for a request whose body has two lengths: a proxy may go by the other one."""
    if "content-length" in names and "transfer-encoding" in names:
        problem = "Content-Length and Transfer-Encoding exclude each other"
        raise RefusedError(400, problem, field="$.headers.transfer-encoding")


def check_token(token: str | None, authorization: Iterable[str], subprotocols: Iterable[str] = ()) -> None:
    """Raise RefusedError for a client that does not know the token, where there is one."""
    if token is not None and not auth.token_matches(token, authorization, subprotocols):
        challenge = ("WWW-Authenticate", "Bearer")
        raise RefusedError(401, "a valid bearer token is needed", challenge, field="$.headers.authorization")


def _check_upgrade(head: Head) -> None:
    upgrade = "websocket" in map(str.lower, head.values("upgrade"))
    if head.method != "GET" or not upgrade or "upgrade" not in map(str.lower, head.values("connection")):
        raise RefusedError(426, "this is a WebSocket: upgrade the connection", ("Upgrade", "websocket"))
    if head.values("sec-websocket-version") != ["13"]:
        raise RefusedError(426, "only version 13 of WebSocket is spoken here", ("Sec-WebSocket-Version", "13"))


def _check_key(head: Head) -> None:
    keys = head.whole("sec-websocket-key")
    try:
        good = len(keys) == 1 and len(base64.b64decode(keys[0], validate=True)) == KEY_BYTES
    except ValueError:
        good = False
    if not good:
        raise RefusedError(400, "Sec-WebSocket-Key must be 16 bytes in base64")
