"""The opening handshake of a WebSocket as plain data: the checks of its request, and the answer. No I/O."""

import base64
import hashlib
from typing import Final

from warren.transport.http.auth import NODE_PROOF, AccessPolicy, subprotocol_of
from warren.transport.http.head import Head
from warren.transport.http.refusals import RefusedError

KEY_BYTES: Final = 16
GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def accept(head: Head, policy: AccessPolicy, node_proof: str | None = None) -> bytes:
    """Return the answer that opens the WebSocket of an upgrade request. The token is checked elsewhere.

    Args:
        head: the head of the request.
        policy: the pages and names of the host that are let in.
        node_proof: the proof for another node, which is sent with the answer; None for a client.

    Raises:
        RefusedError: the request is no upgrade to this WebSocket (426) or has no key (400), or the policy refuses
            its page or its host (403).
    """
    _check_upgrade(head)
    key = _key(head)
    policy.check_source(head.lines("origin"), head.lines("host"))
    offered = head.values("sec-websocket-protocol")
    # A fixed hash of the client's key, as RFC 6455 has it: it proves that this is a WebSocket, and protects nothing.
    proof = hashlib.sha1(key.encode() + GUID, usedforsecurity=False).digest()
    lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
    lines.append(f"Sec-WebSocket-Accept: {base64.b64encode(proof).decode()}")
    if node_proof is not None:
        lines.append(f"{NODE_PROOF}: {node_proof}")
    subprotocol = subprotocol_of(offered)
    if subprotocol is not None:
        lines.append(f"Sec-WebSocket-Protocol: {subprotocol}")
    return "\r\n".join([*lines, "", ""]).encode()


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
