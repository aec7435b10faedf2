"""`POST /triggers/{trigger_id}`: calls of other services, whose signature is the only credential."""

import logging
from collections.abc import Callable
from typing import Final

import trio
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from warren.base.errors import (
    AgentError,
    CapacityExceededError,
    InvalidParamsError,
    SessionNotFoundError,
    SessionNotRunningError,
    WarrenError,
)
from warren.base.values import define
from warren.calls.facade import Opened, RuntimeService
from warren.conversation.triggers import Delivered, SignedCall
from warren.transport.access.access import Access
from warren.transport.access.logins import Login
from warren.transport.access.pace import REQUEST_BYTES, wait_for_all
from warren.transport.access.places import PLACE
from warren.transport.access.refusals import RETRY, RefusedError
from warren.transport.http.shutdown import Shutdown
from warren.transport.rest import parameters
from warren.transport.rest.answers import answer, internal_error
from warren.transport.rpc.jsonrpc import abandoned

AT_ONCE: Final = 16
"""Signatures that a process checks at once: so many callers without one can keep the store busy."""
PAUSED: Final = ("Retry-After", "60")
NOWHERE: Final = "nothing is here, or the call was not signed with the secret of its trigger"
logger: Final = logging.getLogger(__name__)


@define(eq=False)
class TriggerDoor:
    """Takes signed calls of triggers, without other credentials; other HTTP methods of the path are for clients.

    A call of no trigger, and one with a wrong signature, get the same answer after the same work: one look into the
    store, and no write. An error after that says what its sender has to do.

    Attributes:
        service: the sessions.
        access: the limits of tenants.
        shutdown: its begin ends calls that wait.
        others: answers the other HTTP methods.
    """

    service: Callable[[], RuntimeService]
    access: Access
    shutdown: Shutdown
    others: ASGIApp
    _checks: trio.CapacityLimiter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        if request.method != "POST":
            await self.others(scope, receive, send)
            return
        body = await parameters.whole_body(request)
        call = SignedCall(request.path_params["trigger_id"], dict(request.headers), body)
        opened, place = await self._opened(call), scope[PLACE]
        self.access.places.take(place, opened.principal)
        try:
            await wait_for_all(self.access.paces.of(Login(opened.principal)), 1 + len(body) / REQUEST_BYTES)
            delivered = await self._delivered(opened)
            response = answer(delivered, 200 if delivered.state == "ping" else 202)
        except (RefusedError, WarrenError):
            raise
        except Exception:
            logger.exception("a call of a trigger could not be taken")
            response = internal_error()
        finally:
            place.leave()  # the connection waits for a request of anybody
        await response(scope, receive, send)

    async def _opened(self, call: SignedCall) -> Opened:
        if self._checks is None:  # it belongs to one event loop
            self._checks = trio.CapacityLimiter(AT_ONCE)
        try:
            async with self._checks:
                return await self.service().opened(call)
        except InvalidParamsError:
            raise RefusedError(404, f"$.path: {NOWHERE}", field="$.path") from None
        except WarrenError as exc:
            raise _later(exc) from None

    async def _delivered(self, opened: Opened) -> Delivered:
        waiting = trio.CancelScope()
        with self.shutdown.cancels(waiting), waiting:
            try:
                return await opened.deliver()
            except InvalidParamsError:
                raise
            except SessionNotFoundError as exc:
                raise RefusedError(410, exc.message, field="$.path") from None
            except SessionNotRunningError as exc:
                raise RefusedError(503, exc.message, PAUSED, error=exc) from None
            except CapacityExceededError as exc:
                wait = str(int(exc.details.get("retry_after") or 0) + 1)
                raise RefusedError(exc.numbers.http, exc.message, ("Retry-After", wait), error=exc) from None
            except WarrenError as exc:
                raise _later(exc) from None
        raise abandoned()


def _later(exc: WarrenError) -> RefusedError:
    """Return the refusal of a call for now, whatever the reason."""
    logger.warning("a call of a trigger could not be taken: %s", exc)
    error = AgentError("the call cannot be taken now: send it again", cause="unreachable", retryable=True)
    return RefusedError(503, error.message, RETRY, error=error)
