"""The opening handshake as plain data: reads the head of an HTTP request, says who may pass, writes answers. No I/O."""

import base64
import binascii
from typing import Final

import attrs
import h11

from warren.transport import auth

PATH: Final = "/ws"
MAX_HEAD: Final = 16 * 1024
KEY_BYTES: Final = 16


class RefusedError(Exception):
    """The request gets an HTTP answer instead of a WebSocket."""

    def __init__(self, status: int, text: str, *headers: tuple[str, str]) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers

    def answer(self) -> bytes:
        """Return the whole HTTP response; the connection is to be closed after it."""
        body = f"{self.text}\n".encode()
        fields = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        lines = [f"{name}: {value}" for name, value in (*fields, *self.headers, ("Connection", "close"))]
        return "\r\n".join([f"HTTP/1.1 {self.status} {_REASONS[self.status]}", *lines, "", ""]).encode() + body


_REASONS: Final = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    426: "Upgrade Required",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


@attrs.frozen
class Head:
    """The head of a request.

    Attributes:
        method: as sent.
        path: without the query.
        headers: names in lower case, values as sent.
        rest: what the client sent after the head.
    """

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    rest: bytes

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

    def feed(self, data: bytes) -> Head | None:
        """Return the head, or None where more is needed. Raises RefusedError where it is not HTTP or too long."""
        try:
            self._connection.receive_data(data)
            event = self._connection.next_event()
        except h11.RemoteProtocolError as exc:
            status = exc.error_status_hint if exc.error_status_hint in _REASONS else 400
            raise RefusedError(status, f"not an HTTP request: {exc}") from exc
        if not isinstance(event, h11.Request):
            return None
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers)
        path = event.target.decode("latin-1").partition("?")[0]
        return Head(event.method.decode("latin-1"), path, headers, bytes(self._connection.trailing_data[0]))


@attrs.frozen
class Gate:
    """Who may open a WebSocket.

    Attributes:
        token: what a client has to know; None lets everybody in.
        origins: pages whose scripts may connect, besides those of this machine. A client without an origin is no page
            and may.
    """

    token: str | None = attrs.field(repr=False)
    origins: tuple[str, ...]

    def check(self, head: Head) -> str | None:
        """Return the subprotocol to answer with (None for none). Raises RefusedError for who may not pass."""
        _check_target(head)
        _check_key(head)
        allowed = (*auth.OWN_ORIGINS, *self.origins)
        if not all(auth.origin_allowed(origin, allowed) for origin in head.whole("origin")):
            raise RefusedError(403, "this origin is not on the gateway's allow-list")
        offered = head.values("sec-websocket-protocol")
        if self.token is not None and not auth.token_matches(self.token, head.whole("authorization"), offered):
            raise RefusedError(401, "a valid bearer token is needed", ("WWW-Authenticate", "Bearer"))
        return auth.SUBPROTOCOL if auth.SUBPROTOCOL in offered else None


def plain_upgrade(head: Head, subprotocol: str | None) -> bytes:
    """Return an upgrade request that says only what a WebSocket library has to know, and what came after it.

    A library cannot refuse it, and never sees the token.
    """
    key = head.whole("sec-websocket-key")[0]
    lines = [f"GET {PATH} HTTP/1.1", "Host: gateway", "Upgrade: websocket", "Connection: Upgrade"]
    lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13"]
    if subprotocol is not None:
        lines.append(f"Sec-WebSocket-Protocol: {subprotocol}")
    return "\r\n".join([*lines, "", ""]).encode() + head.rest


def _check_target(head: Head) -> None:
    if head.path != PATH:
        raise RefusedError(404, f"nothing here: the WebSocket is at {PATH}")
    upgrade = "websocket" in map(str.lower, head.values("upgrade"))
    if head.method != "GET" or not upgrade or "upgrade" not in map(str.lower, head.values("connection")):
        raise RefusedError(426, "this is a WebSocket: upgrade the connection", ("Upgrade", "websocket"))
    if head.values("sec-websocket-version") != ["13"]:
        raise RefusedError(426, "only version 13 of WebSocket is spoken here", ("Sec-WebSocket-Version", "13"))


def _check_key(head: Head) -> None:
    keys = head.whole("sec-websocket-key")
    try:
        good = len(keys) == 1 and len(base64.b64decode(keys[0], validate=True)) == KEY_BYTES
    except binascii.Error:
        good = False
    if not good:
        raise RefusedError(400, "Sec-WebSocket-Key must be 16 bytes in base64")
