"""`POST /complete/{token}`: the result of a tool call, from a service whose completion token is all that it has."""

import logging
from collections.abc import Callable
from typing import Final, NoReturn

import trio
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from warren.base.errors import AgentError, InvalidParamsError, SessionNotFoundError, SessionNotRunningError, WarrenError
from warren.base.values import frozen
from warren.calls.facade import RuntimeService
from warren.calls.turns import CompleteRequest
from warren.conversation import codec
from warren.conversation.completion import FIELD
from warren.transport.access.access import Access
from warren.transport.access.logins import Login
from warren.transport.access.pace import paced, paced_body, wait_for_all
from warren.transport.access.places import PLACE
from warren.transport.access.refusals import RETRY, RefusedError
from warren.transport.http.shutdown import Shutdown
from warren.transport.rest import parameters
from warren.transport.rest.answers import answer, internal_error
from warren.transport.rpc.jsonrpc import abandoned

COMPLETION_PATH: Final = f"/complete/{{{FIELD}}}"
OVER: Final = "the call waits for no result any more"
logger: Final = logging.getLogger(__name__)


@frozen
class Completion:
    """Takes results of tool calls under their completion tokens, without other credentials.

    A token that was not made here gets the answer of a path where nothing is, before the body is read and without a
    look into the store. An error after that says what its sender has to do, and nothing of sessions and nodes.

    Attributes:
        service: the sessions.
        access: the limits of tenants, and the audit of refusals.
        shutdown: its begin ends calls that wait.
    """

    service: Callable[[], RuntimeService]
    access: Access
    shutdown: Shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method != "POST":
            raise RefusedError(405, f"{request.method} is not for this path", ("Allow", "POST"), field="$.method")
        service = self.service()
        try:
            bearer = await service.bearer(request.path_params[FIELD])
        except InvalidParamsError:
            self.access.policy.noted(None, "complete", "refused", {"reason": "bad_token"})
            raise RefusedError(404, "$.path: nothing is here", field="$.path") from None
        except WarrenError as exc:
            self._fail(exc)
        place = scope[PLACE]
        self.access.places.take(place, bearer)
        try:
            if paces := self.access.paces.of(Login(bearer)):
                await wait_for_all(paces, 1)
                request, send = Request(scope, paced_body(receive, paces)), paced(send, paces)
            await self._complete(request, service.as_(bearer))
            response = answer({"completed": True})
        except (RefusedError, WarrenError):
            raise
        except Exception:  # here, as others would log the path, and so the token
            logger.exception("a result from outside could not be taken")
            response = internal_error()
        finally:
            place.leave()  # the connection waits for a request of anybody
        await response(scope, receive, send)

    async def _complete(self, request: Request, service: RuntimeService) -> None:
        data = await parameters.from_body(request)
        call = codec.from_data(CompleteRequest, parameters.with_path(data, request.path_params))
        waiting = trio.CancelScope()
        with self.shutdown.cancels(waiting), waiting:
            try:
                await service.perform(call)
            except InvalidParamsError as exc:
                if exc.path != f"$.{FIELD}":
                    raise
                raise RefusedError(410, exc.message, field=f"$.{FIELD}") from None
            except (SessionNotFoundError, SessionNotRunningError):
                raise RefusedError(410, f"$.{FIELD}: {OVER}", field=f"$.{FIELD}") from None
            except WarrenError as exc:
                self._fail(exc)
            return
        raise abandoned()

    @staticmethod
    def _fail(exc: WarrenError) -> NoReturn:
        """Refuse a request for now, whatever the reason."""
        logger.warning("a result from outside could not be taken: %s", exc)
        error = AgentError("the result cannot be taken now: send it again", cause="unreachable", retryable=True)
        raise RefusedError(503, error.message, RETRY, error=error) from None
