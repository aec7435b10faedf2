"""JSON-RPC 2.0 as plain functions: reads one message, writes requests, results, errors and notifications. No I/O."""

import functools
from collections.abc import Iterable
from typing import Any, Final, cast

import attrs

from warren import codec
from warren.errors import AgentError, InvalidParamsError, WarrenError

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INTERNAL_ERROR: Final = -32603
NAMES: Final = {PARSE_ERROR: "PARSE_ERROR", INVALID_REQUEST: "INVALID_REQUEST", METHOD_NOT_FOUND: "METHOD_NOT_FOUND"}
"""What `data.code` calls messages that reach no method: the codes of our own table are those of methods."""
MEMBERS: Final = frozenset({"jsonrpc", "id", "method", "params"})
IDS: Final = frozenset({str, int, float})
"""The types of ids, as the parser makes them: true and false are none, though Python takes them for integers."""
SHOWN: Final = 80

Id = str | int | float | None
"""What a request is answered under; None where its own id could not be read."""


@attrs.frozen
class Request:
    """A call that gets exactly one reply, under its `id`. `params` are as they came, `{}` where there were none."""

    id: Id
    method: str
    params: Any


@attrs.frozen
class Notification:
    """A call that gets no reply, whatever comes of it. `params` are as they came, `{}` where there were none."""

    method: str
    params: Any


@attrs.frozen
class Response:
    """What answers a request of ours: its `id`, and its `result` and `error` as they came, None where there is none."""

    id: Id
    result: Any
    error: Any


@attrs.frozen
class Refusal:
    """A message that is no request: `number` and `error` say why, for a reply under `id`."""

    id: Id
    number: int
    error: WarrenError


Said = Request | Notification | Response | Refusal
"""What one message says."""


def read(raw: str | bytes) -> Said:
    """Return what one message says; never raises. `bytes` stand for UTF-8 text.

    Members that JSON-RPC does not know are refused, as are batches and null ids: a reply to them could not be told
    apart from the reply to a message that was not understood. A response is never refused: that would be a reply to a
    reply.
    """
    return cast("Said", read_batch(raw, 0))  # no batch is as short as that


def read_batch(raw: str | bytes, limit: int) -> Said | list[Said]:
    """Return what one message says, as `read` does, or of a batch what each of its messages says.

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


def request(request_id: Id, method: str, params: object) -> bytes:
    """Return a request of ours; `params` is an object as plain data or a domain object."""
    return codec.encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def result(request_id: Id, value: object) -> bytes:
    """Return the reply of a request that went well; `value` is plain data or a domain object."""
    return codec.encode({"jsonrpc": "2.0", "id": request_id, "result": value})


def large_result(request_id: Id, value: object) -> bytes:
    """Return the same as `result`, for a large value and in a thread."""
    return codec.encode_in_pieces({"jsonrpc": "2.0", "id": request_id, "result": value})


def error(request_id: Id, exc: WarrenError, number: int | None = None) -> bytes:
    """Return the reply of a request that failed: `number` or else that of the error table, and the body as `data`."""
    code = exc.numbers.jsonrpc if number is None else number
    shown = {"code": code, "message": exc.message, "data": body(exc, code)}
    return codec.encode({"jsonrpc": "2.0", "id": request_id, "error": shown})


def body(exc: WarrenError, number: int) -> dict[str, Any]:
    """Return the data of an error; where the message itself is wrong, the code is the name of JSON-RPC's number."""
    named = isinstance(exc, InvalidParamsError) and number in NAMES
    return exc.body() | ({"code": NAMES[number]} if named else {})


def batch(replies: Iterable[bytes]) -> bytes:
    """Return the reply to a batch."""
    return b"[" + b",".join(replies) + b"]"


def notification(method: str, params: object) -> bytes:
    """Return a message that asks for no reply; `params` is an object as plain data or a domain object."""
    # One a streamed piece: put together from parts, it is not looked through once more as plain data.
    return _head(method) + codec.encode(params) + b"}"


@functools.cache  # of the few methods that are ours
def _head(method: str) -> bytes:
    return b'{"jsonrpc":"2.0","method":' + codec.encode(method) + b',"params":'


def unknown_method(request_id: Id, method: str) -> bytes:
    """Return the reply to a method that nobody knows."""
    exc = InvalidParamsError(f"$.method: unknown method {shorten(method)}", path="$.method")
    return error(request_id, exc, METHOD_NOT_FOUND)


def internal_error(request_id: Id) -> bytes:
    """Return the reply to a request whose handler failed in a way that is our fault; it says nothing of how."""
    return error(request_id, AgentError("internal error", cause="internal"), INTERNAL_ERROR)


def given_up(session_id: str | None = None) -> AgentError:
    """Return the error for a call that is not waited for any longer: the server ends, and its runtime perhaps too."""
    problem = "the server ends; what came of this is not known here"
    return AgentError(problem, session_id=session_id, cause="shutting_down")


def invalid_request(message: str) -> bytes:
    """Return the reply to what is no request at all."""
    return error(None, InvalidParamsError(f"$: {message}", path="$"), INVALID_REQUEST)


def shorten(text: str) -> str:
    """Return what a client sent in quotes, cut to a length that fits an error message."""
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")


def _read(data: Any, path: str) -> Said:  # noqa: PLR0911 - one return a rule of JSON-RPC
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


def _refusal(request_id: Id, message: str, path: str, number: int = INVALID_REQUEST) -> Refusal:
    return Refusal(request_id, number, InvalidParamsError(message, path=path))
