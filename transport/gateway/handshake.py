"""The opening handshake of a WebSocket as plain data: the checks of its request. No I/O."""

import base64
from typing import Final

from warren.base.values import frozen
from warren.transport.access.auth import AccessPolicy, subprotocol_of
from warren.transport.access.head import Head
from warren.transport.access.refusals import RefusedError

KEY_BYTES: Final = 16


@frozen
class Opening:
    """A good upgrade request.

    Attributes:
        head: the request as trio-websocket is to read it, with nothing but what the answer is made of.
        subprotocol: the subprotocol to answer with; None for none.
    """

    head: bytes
    subprotocol: str | None


def check(head: Head, policy: AccessPolicy) -> Opening:
    """Check an upgrade request. The token is checked elsewhere.

    Args:
        head: the head of the request.
        policy: the pages and names of the host that are let in.

    Raises:
        RefusedError: the request is no upgrade to this WebSocket (426) or has no key or a bad subprotocol (400), or
            the policy refuses its page or its host (403).
    """
    _check_upgrade(head)
    key = _key(head)
    policy.check_source(head.lines("origin"), head.lines("host"))
    subprotocol = subprotocol_of(head.values("sec-websocket-protocol"))
    lines = ["GET /ws HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}"]
    if subprotocol is not None:
        if not subprotocol.isascii():
            raise RefusedError(400, "Sec-WebSocket-Protocol must be ASCII")
        lines.append(f"Sec-WebSocket-Protocol: {subprotocol}")
    return Opening("\r\n".join([*lines, "", ""]).encode(), subprotocol)


def _check_upgrade(head: Head) -> None:
    upgrade = "websocket" in map(str.lower, head.values("upgrade"))
    if head.method != "GET" or not upgrade or "upgrade" not in map(str.lower, head.values("connection")):
        raise RefusedError(426, "this is a WebSocket: upgrade the connection", ("Upgrade", "websocket"))
    if head.values("sec-websocket-version") != ["13"]:
        raise RefusedError(426, "only version 13 of WebSocket is spoken here", ("Sec-WebSocket-Version", "13"))


def _key(head: Head) -> str:
    keys = head.lines("sec-websocket-key")
    try:
        good = len(keys) == 1 and len(base64.b64decode(keys[0], validate=True)) == KEY_BYTES
    except ValueError:
        good = False
    if not good:
        raise RefusedError(400, "Sec-WebSocket-Key must be 16 bytes in base64")
    return keys[0]
