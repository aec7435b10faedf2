"""The refusals of a web service: answers by HTTP alone, in place of an answer to a request of the protocol."""

import json
import re
from collections.abc import Callable
from http.client import responses
from typing import Any, Final, Self

import mcp_types as types
import msgspec
from mcp.shared.exceptions import MCPError

from warren.base.values import frozen
from warren.conversation import codec

KEY: Final = "warren/refusal"
"""The member of an error's data that has a refusal on its way through the official client."""
OUTSIDE: Final = (401, 403, 405, 410)
"""Statuses that nothing but HTTP gives, whatever the body says."""
GONE: Final = (404, 410)
"""Statuses by which a service says that a session has ended."""
REFUSALS: Final = 400
"""The lowest status of a refusal."""
FAILURES: Final = 500
"""The lowest status of a failure that is not the request's."""
NO_CALL: Final = (-32_000, -32_001, types.INVALID_REQUEST)
"""Codes with which servers refuse a request, with its id or without, before they look at the call in it."""
SHOWN: Final = 500
"""Characters of a service's own text that are shown."""
_SESSION: Final = re.compile(
    r"\b(no|not a|unknown|invalid|expired|missing|bad|stale|terminated)\W{1,3}(valid\W)?(mcp\W)?session"
    r"|\bsession\W{0,3}(id\W{0,3})?(\S{1,64}\W{1,3})?((is|was|has|does)\W)?"
    r"(been |header )?(not (found|exist|known|valid)|unknown|invalid|expired|missing|required|terminated|closed|ended)"
    r"|not initialized",
    re.IGNORECASE,
)


class _Error(msgspec.Struct):
    code: int
    message: str = ""
    data: Any = None


class _Reply(msgspec.Struct):
    error: _Error | None = None
    id: int | str | None = None


class _Request(msgspec.Struct):
    method: str | None = None
    id: int | str | None = None


_request_of: Final[Callable[[bytes], _Request | None]] = codec.parser_of(_Request, b"jsonrpc")
_reply_of: Final[Callable[[bytes], _Reply | None]] = codec.parser_of(_Reply, b"jsonrpc")


@frozen
class Refusal:
    """A refusal.

    Attributes:
        text: the status and what the service says, or the error of the connection.
        status: the status; None if there is no answer.
        code: the protocol's number of the error.
        begun: whether the request may have reached the tool.
        gone: whether the service says that it does not know the session.
    """

    text: str
    status: int | None = None
    code: int = types.INTERNAL_ERROR
    begun: bool = False
    gone: bool = False

    @classmethod
    def of_answer(cls, asked: int | str, status: int, body: bytes, challenge: str, *, in_session: bool) -> Self | None:
        """Return the refusal in an answer by HTTP; None if it is an answer to the request.

        A status below 500 is of something in front of the tool: a check of the session, of the token, of the size. One
        of 500 and above may be of a proxy that has lost the service in the midst of a call.

        Args:
            asked: the number of the request.
            status: the status of the answer.
            body: its body; empty if it is a page.
            challenge: its header `WWW-Authenticate`; empty without one.
            in_session: whether the request named a session.
        """
        reply = _reply_of(body)
        error = None if reply is None else reply.error
        refused = status >= REFUSALS
        if reply is None or error is None:
            if not refused:
                return None
            code = types.METHOD_NOT_FOUND if status in GONE and not in_session else types.INTERNAL_ERROR
        elif reply.id == asked and not (refused and (status in OUTSIDE or error.code in NO_CALL)):
            return None
        else:
            code = error.code
        said = body.decode(errors="replace") if error is None else error.message
        parts = (
            f"HTTP {status} {responses.get(status, '')}".rstrip(),
            " ".join(said.split())[:SHOWN],
            challenge[:SHOWN],
        )
        begun = status >= FAILURES or (error is not None and _is_lost(error))
        gone = in_session and (status in GONE or (refused and status < FAILURES and _SESSION.search(said) is not None))
        return cls(": ".join(filter(None, parts)), status, code, begun, gone)

    @classmethod
    def of_error(cls, error: MCPError) -> Self | None:
        """Return the refusal that an error of the official client is about; None for an answer of the protocol."""
        data = error.data
        return cls(**data[KEY]) if isinstance(data, dict) and KEY in data else None

    def of(self, what: str) -> str:
        """Return what happened, as a text that continues after the server's name."""
        return f"cannot be talked to: {self.text}" if self.status is None else f"refused {what}: {self.text}"

    @property
    def passing(self) -> bool:
        """Whether the same request may be accepted if it is sent again in the same session."""
        return self.status is None or self.status >= FAILURES

    def encode(self) -> bytes:
        """Return the refusal as an error of the protocol, which the official client gives to its caller."""
        named = {field: getattr(self, field) for field in ("text", "status", "code", "begun", "gone")}
        error = {"code": self.code, "message": self.text, "data": {KEY: named}}
        return json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()


def id_of(request: bytes) -> int | str | None:
    """Return the number of a request of the protocol; None for a notification, and for an answer to the server."""
    head = _request_of(request)
    return None if head is None or head.method is None else head.id


def is_answer(request: bytes) -> bool:
    """Return whether the body of a request answers one of the server's."""
    head = _request_of(request)
    return head is not None and head.method is None


def _is_lost(error: _Error) -> bool:
    """Tell whether the outcome is unknown: a server of Warren says so if it has lost the process of the session."""
    details = error.data.get("details") if isinstance(error.data, dict) else None
    return isinstance(details, dict) and details.get("cause") == "connection_lost"
