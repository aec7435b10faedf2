"""Passes an HTTP request on to another node, and its answer back as it comes: a stream of events, too.

It goes to the address of the node's links, with the token of a link, and on behalf of the principal that the door of
this node has found: nothing else of the client's credentials leaves this node.
"""

import json
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import httpx
import trio

from warren.base.errors import AgentError, WarrenError
from warren.base.values import define
from warren.transport.access.logins import PRINCIPAL
from warren.transport.http.leaving import until_gone
from warren.transport.rpc.behalf import BEHALF_HEADER, carrying

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

ASKED: Final = frozenset(
    {b"accept", b"content-type", b"last-event-id", b"mcp-protocol-version", b"mcp-session-id", b"traceparent"}
)
"""The headers that go along."""
ANSWERED: Final = frozenset(
    {
        *(b"allow", b"cache-control", b"content-length", b"content-type"),
        *(b"mcp-session-id", b"retry-after", b"x-accel-buffering"),
    }
)
"""The headers that come back."""
FULL: Final = (HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
"""The statuses by which a node refuses another one and yet lives."""

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class Passing:
    """One request on its way to another node.

    Attributes:
        http: the client of the node, which adds the token.
        url: the address there.
        proves: returns whether an answer is the node's, and not that of another server at its address.
        begun: whether the client has got the head of the answer.
    """

    http: httpx.AsyncClient
    url: httpx.URL
    proves: Callable[[httpx.Response], bool]
    begun: bool = False

    async def run(self, scope: "Scope", receive: "Receive", send: "Send") -> bool:
        """Have the node answer, and return True; False if it is gone and has not got the request.

        An answer that breaks off is left without its end, so that the connection closes. If the client leaves, the
        node sees its connection end.

        Raises AgentError: with the cause `unreachable` if the node cannot be reached now, with the cause
        `connection_lost` if the outcome is unknown.
        """
        body = (await receive()).get("body", b"")
        headers = [(name, value) for name, value in scope["headers"] if name in ASKED]
        headers.append((BEHALF_HEADER.encode(), json.dumps(carrying({}, scope[PRINCIPAL])).encode()))
        patience = httpx.Timeout(self.http.timeout.connect, read=None)
        request = self.http.build_request(scope["method"], self.url, headers=headers, content=body, timeout=patience)
        lives, failure = True, None
        async with trio.open_nursery() as tasks:
            tasks.start_soon(until_gone, receive, tasks.cancel_scope)
            try:
                lives = await self._answered(request, send)
            except (httpx.HTTPError, WarrenError) as exc:
                lives, failure = self._end(exc)
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return lives

    async def _answered(self, request: httpx.Request, send: "Send") -> bool:
        response = await self.http.send(request, stream=True)
        try:
            if not self.proves(response):
                if response.status_code in FULL:
                    raise _unreachable()
                return False
            head = [(name, value) for name, value in response.headers.raw if name.lower() in ANSWERED]
            await send({"type": "http.response.start", "status": response.status_code, "headers": head})
            self.begun = True
            async for part in response.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            with trio.CancelScope(shield=True):  # closes a connection whose answer is not over, and waits for nothing
                await response.aclose()
        return True

    def _end(self, exc: httpx.HTTPError | WarrenError) -> tuple[bool, WarrenError | None]:
        """Return whether the node may live, and the error for the client, after a failure."""
        logger.info("a request that was passed on to %s failed: %r", self.url, exc)
        match exc:
            case WarrenError():
                return True, exc
            case httpx.ConnectError():
                return False, None
            case httpx.ConnectTimeout() | httpx.PoolTimeout():
                return True, _unreachable()
        if self.begun:
            return True, None
        problem = (
            "the node of the MCP session was lost before its answer: whether the request was carried out is unknown"
        )
        return True, AgentError(problem, cause="connection_lost")


def _unreachable() -> AgentError:
    return AgentError("the node of the MCP session cannot be reached now", cause="unreachable", retryable=True)
