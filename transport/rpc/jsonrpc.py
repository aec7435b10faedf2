"""JSON-RPC 2.0 as plain functions: reads one message, writes requests, results, errors and notifications. No I/O."""

import functools
import re
from collections.abc import Iterable
from typing import Any, Final, cast

from warren.base.errors import AgentError, InvalidParamsError, WarrenError
from warren.base.values import frozen
from warren.conversation import codec

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INTERNAL_ERROR: Final = -32603
NAMES: Final = {PARSE_ERROR: "PARSE_ERROR", INVALID_REQUEST: "INVALID_REQUEST", METHOD_NOT_FOUND: "METHOD_NOT_FOUND"}
"""The values of `data.code` for messages that reach no method. Methods have the codes of `warren.errors`."""
MEMBERS: Final = frozenset({"jsonrpc", "id", "method", "params"})
IDS: Final = frozenset({str, int, float})
"""The types of ids that the parser makes. Booleans are no ids, although bool is a subclass of int in Python."""
SHOWN: Final = 80

_ID: Final = rb'("(?:[^"\\]|\\.)*+"|-?\d[\d.eE+-]*+|null)'
_MEMBER: Final = re.compile(rb'\s*[{,]\s*"(jsonrpc|id|method)"\s*:\s*' + _ID + rb"(?=\s*[,}])")
_LONG: Final = re.compile(rb'\s*[{,]\s*"(params|result|error)"')
_LAST: Final = re.compile(rb'"id"\s*:\s*' + _ID + rb'\s*(?:,\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*)*}\s*$')

Id = str | int | float | None
"""The id of a request and of the reply to it; None in the reply to a request whose id could not be read."""


@frozen
class Request:
    """A call that gets exactly one reply, under its `id`. `params` is the JSON value, `{}` if the call has none."""

    id: Id
    method: str
    params: Any


@frozen
class Notification:
    """A call that gets no reply, even if it fails. `params` is the JSON value, `{}` if the call has none."""

    method: str
    params: Any


@frozen
class Response:
    """The response to a request of this side: the `id` of the request, and a result or an error as JSON values."""

    id: Id
    result: Any
    error: Any


@frozen
class Malformed:
    """A message that is no valid request: `number` and `error` say why, for a reply under `id`."""

    id: Id
    number: int
    error: WarrenError


Incoming = Request | Notification | Response | Malformed
"""A parsed message."""


def read(raw: str | bytes) -> Incoming:
    """Parse one message; never raises. `bytes` must be UTF-8.

    Unknown members are refused, as are batches, and null ids: the reply to a null id could not be told apart from the
    reply to a message that was not read. A response is never refused: that would be a reply to a reply.
    """
    return cast("Incoming", read_batch(raw, 0))  # no batch has zero messages


def read_batch(raw: str | bytes, limit: int) -> Incoming | list[Incoming]:
    """Parse one message, as `read` does, or each message of a batch.

    A batch is refused as a whole if it is empty or has more than `limit` messages.
    """
    try:
        data = codec.parse(raw)
    except ValueError as exc:
        return _refusal(None, f"$: not JSON: {exc}", "$", PARSE_ERROR)
    if not isinstance(data, list):
        return _read(data, "$")
    if not data:
        return _refusal(None, "$: a batch must not be empty", "$")
    if not limit:
        return _refusal(None, "$: batches are not supported: send one request a message", "$")
    if len(data) > limit:
        return _refusal(None, f"$: a batch may have {limit} messages, not {len(data)}: send several", "$")
    return [_read(each, f"$[{index}]") for index, each in enumerate(data)]


def outline(head: bytes, tail: bytes) -> tuple[Id, bool]:
    """Return the id of a message that is too long to be read, and whether it is a response; the id is None if unknown.

    Args:
        head: the beginning of the message.
        tail: its end. Members that come behind the parameters are looked for there.
    """
    at, found = 0, dict[bytes, bytes]()
    while (member := _MEMBER.match(head, at)) is not None:
        found[member[1]] = member[2]
        at = member.end()
    long = _LONG.match(head, at)
    if b"id" not in found and (last := _LAST.search(tail)) is not None:
        found[b"id"] = last[1]
    try:
        request_id = codec.parse(found.get(b"id", b"null"))
    except ValueError:
        request_id = None
    answers = long is not None and long[1] != b"params" and b"method" not in found
    return request_id if type(request_id) in IDS else None, answers


def request(request_id: Id, method: str, params: object) -> bytes:
    """Return a request of this side; `params` is an object as plain data, or a domain object."""
    return codec.encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def result(request_id: Id, value: object) -> bytes:
    """Return the reply with a result; `value` is plain data or a domain object."""
    return b'{"jsonrpc":"2.0","id":' + codec.encode_whole(request_id) + b',"result":' + codec.encode(value) + b"}"


def large_result(request_id: Id, value: object) -> bytes:
    """Return the same as `result`. It encodes in pieces, for large values in a thread, so that other threads run."""
    return codec.encode_in_pieces({"jsonrpc": "2.0", "id": request_id, "result": value})


def error(request_id: Id, exc: WarrenError, number: int | None = None) -> bytes:
    """Return the reply with an error: its body as `data`, and as its code `number`, or else that of the error table."""
    code = exc.numbers.jsonrpc if number is None else number
    shown = {"code": code, "message": exc.message, "data": body(exc, code)}
    return codec.encode({"jsonrpc": "2.0", "id": request_id, "error": shown})


def body(exc: WarrenError, number: int) -> dict[str, Any]:
    """Return the `data` of an error. If the message itself is bad, its code is the name of JSON-RPC's number."""
    named = isinstance(exc, InvalidParamsError) and number in NAMES
    return exc.body() | ({"code": NAMES[number]} if named else {})


def batch(replies: Iterable[bytes]) -> bytes:
    """Return the reply to a batch."""
    return b"[" + b",".join(replies) + b"]"


def notification(method: str, params: object) -> bytes:
    """Return a message that asks for no reply; `params` is an object as plain data or a domain object."""
    return _head(method) + codec.encode(params) + b"}"


@functools.cache  # there are few methods
def _head(method: str) -> bytes:
    return b'{"jsonrpc":"2.0","method":' + codec.encode(method) + b',"params":'


def unknown_method(request_id: Id, method: str) -> bytes:
    """Return the reply to a request for an unknown method."""
    exc = InvalidParamsError.at("$.method", f"unknown method {shorten(method)}")
    return error(request_id, exc, METHOD_NOT_FOUND)


def internal_error(request_id: Id) -> bytes:
    """Return the reply to a request whose handler has a bug. It does not describe the bug: the log does."""
    return error(request_id, AgentError("internal error", cause="internal"), INTERNAL_ERROR)


def abandoned(session_id: str | None = None) -> AgentError:
    """Return the error of a request that still runs at the shutdown of the server."""
    problem = "the server is shutting down; the outcome of this request is unknown"
    return AgentError(problem, session_id=session_id, cause="shutting_down")


def invalid_request(message: str, request_id: Id = None) -> bytes:
    """Return the reply to a message that is not a request, or cannot be read as one."""
    return error(request_id, InvalidParamsError.at("$", message), INVALID_REQUEST)


def shorten(text: str) -> str:
    """Return a client's text in quotes, cut to a length that fits into an error message."""
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")


def _read(data: Any, path: str) -> Incoming:  # noqa: PLR0911 - one return a rule of JSON-RPC
    if not isinstance(data, dict):
        return _refusal(None, f"{path}: a request must be an object", path)
    request_id = data.get("id")
    is_id = type(request_id) in IDS
    if "method" not in data and ("result" in data or "error" in data):
        return Response(request_id if is_id else None, data.get("result"), data.get("error"))
    if "id" in data and not is_id:
        return _refusal(None, f"{path}.id: must be a string or a number", f"{path}.id")
    if data.get("jsonrpc") != "2.0":
        return _refusal(request_id, f'{path}.jsonrpc: must be "2.0"', f"{path}.jsonrpc")
    if not isinstance(data.get("method"), str):
        return _refusal(request_id, f"{path}.method: must be a string", f"{path}.method")
    if unknown := data.keys() - MEMBERS:
        path = f"{path}.{min(unknown)}"
        return _refusal(request_id, f"{path}: is not a member of a request", path)
    params = data.get("params", {})
    return Request(request_id, data["method"], params) if "id" in data else Notification(data["method"], params)


def _refusal(request_id: Id, message: str, path: str, number: int = INVALID_REQUEST) -> Malformed:
    return Malformed(request_id, number, InvalidParamsError(message, path=path))
