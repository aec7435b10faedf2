"""How many values a message of a server may have: the official client checks each of them, on the event loop."""

from collections.abc import Callable
from typing import Any, Final

import mcp_types as types
import msgspec

from warren.conversation import codec

MAX_VALUES: Final = 50_000
"""Values of one message, counted by the commas and opening brackets outside of its texts."""
LARGE: Final = 64 * 1024
"""Bytes of a message from which on its values are counted."""
PART: Final = 64 * 1024
"""Bytes that are looked through at once."""
TOO_MANY: Final = f"its answer has more than {MAX_VALUES} values"


class _Head(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None


_head: Final[Callable[[bytes], _Head | None]] = codec.parser_of(_Head, b"jsonrpc")


def has_too_many(message: bytes) -> bool:
    """Tell whether a message has too many values. Call it in a thread for a large one: others run between its parts."""
    plain, count, inside = message.replace(rb"\\", b"").replace(rb"\"", b""), 0, False
    for start in range(0, len(plain), PART):
        parts = plain[start : start + PART].split(b'"')
        for part in parts[inside::2]:
            count += part.count(b",") + part.count(b"[") + part.count(b"{")
        if count > MAX_VALUES:
            return True
        inside ^= len(parts) % 2 == 0
    return False


def refusal(message: bytes) -> types.JSONRPCError | None:
    """Return the error in place of an answer with too many values; None for a message that answers no call."""
    head = _head(message)
    return None if head is None or head.id is None or head.method is not None else refusal_of(head.id)


def refusal_of(request: int | str | None) -> types.JSONRPCError:
    """Return the error in place of the answer to a request."""
    problem = types.ErrorData(code=types.INTERNAL_ERROR, message=TOO_MANY)
    return types.JSONRPCError(jsonrpc="2.0", id=request, error=problem)


def are_too_many(data: Any) -> bool:
    """Tell whether parsed data has too many values, without a walk over all of them."""
    waiting, count = [data], 0
    while waiting:
        each = waiting.pop()
        inner = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        count += len(inner)
        if count > MAX_VALUES:
            return True
        waiting += inner
    return False
