"""The HTTP application: from a request to its answer."""

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final

import attrs
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warren.base.errors import AgentError, InvalidParamsError, WarrenError
from warren.base.extras import installed
from warren.base.fields import CAN_CONFLICT, FieldValueError
from warren.base.principals import WRITE, Principal, check_right
from warren.base.values import frozen
from warren.calls.facade import Capabilities, RuntimeService
from warren.calls.reading import WatchRequest
from warren.conversation import codec
from warren.conversation.views import TurnResult
from warren.reports.audit import calling_from
from warren.reports.metrics import Metrics
from warren.transport.access.access import Access
from warren.transport.access.addresses import LOOPBACK
from warren.transport.access.auth import NODE_PROOF, AccessPolicy
from warren.transport.access.config import GatewayConfig
from warren.transport.access.logins import PASSED_ON, PRINCIPAL, SIGN_IN, Authenticator, Login, unauthorized
from warren.transport.access.pace import paced, paced_body, wait_for_all
from warren.transport.access.places import PLACE
from warren.transport.access.refusals import JSON, RefusedError
from warren.transport.access.watched import Stays
from warren.transport.http.connection import ALLOW
from warren.transport.http.leaving import until_gone
from warren.transport.http.shutdown import Shutdown
from warren.transport.rest import parameters
from warren.transport.rest.answers import LargeAnswer, Unread, answer, failure, file_answer, internal_error, refusal
from warren.transport.rest.completions import COMPLETION_PATH, Completion
from warren.transport.rest.events import ChangeStream, EventStream, Streaming, last_event_id
from warren.transport.rest.forms import FILES, FORM, Form
from warren.transport.rest.oauth import WELL_KNOWN, Metadata
from warren.transport.rest.openapi import document, missing
from warren.transport.rest.routes import ROUTES, TRIGGER_PATH, WITH_BODY, RestRoute
from warren.transport.rest.site import Site
from warren.transport.rest.triggers import TriggerDoor
from warren.transport.rpc.behalf import BEHALF_HEADER, TENANT_HEADER, carried
from warren.transport.rpc.endpoint import BULKY
from warren.transport.rpc.jsonrpc import abandoned
from warren.transport.rpc.methods import METHODS, Caller, Host, Method, RunTurn
from warren.transport.rpc.outbox import is_large
from warren.transport.rpc.params import NoParams
from warren.transport.rpc.shares import owner_of

MOST_FILES: Final = 4
"""The bytes of a request with files, as a multiple of those that a file may have."""
Answer = Response | EventStream | ChangeStream
METRICS_PATH: Final = "/metrics"

logger: Final = logging.getLogger(__name__)


def rest_app(
    host_of: Callable[[Login], Host],
    access: Access,
    config: GatewayConfig,
    shutdown: Shutdown,
    *,
    mounts: Mapping[str, ASGIApp],
    pages: Mapping[str, ASGIApp],
) -> ASGIApp:
    """Return the application that serves the table of routes, and other applications at paths of their own.

    Args:
        host_of: returns the host whose methods a client calls.
        access: the access rules. They guard all applications but the pages.
        config: the bounds of a request.
        shutdown: its begin ends streams, and calls that wait.
        mounts: the other applications. They find the principal of a request in its scope, under `PRINCIPAL`.
        pages: applications that need no token.
    """
    rest = _Rest(host_of, access, config, shutdown)
    by_path = groupby(sorted(ROUTES, key=lambda row: row.path), key=lambda row: row.path)
    apps: dict[str, ASGIApp] = {path: rest.resource(tuple(rows)) for path, rows in by_path}
    apps["/openapi.json"] = _readable(access, rest.openapi)
    apps[COMPLETION_PATH] = Completion(rest.service, access, shutdown)
    of_clients = rest.resource([row for row in ROUTES if row.path == TRIGGER_PATH])
    others = attrs.evolve(of_clients, allowed=("POST", *of_clients.allowed))
    apps[TRIGGER_PATH] = TriggerDoor(rest.service, access, shutdown, others)
    if installed("metrics"):
        apps[METRICS_PATH] = _metrics(access, host_of)
    apps |= pages
    for path, app in mounts.items():
        metadata = Metadata(path, config)
        apps[path] = _Guarded(access, metadata, app)
        if not access.policy.authenticator.is_open:
            # The address of the metadata has the path of the application behind it, also that below which a proxy is.
            apps[WELL_KNOWN + config.prefix + path] = apps[WELL_KNOWN + path] = apps[WELL_KNOWN] = metadata
    return Site(access.policy, config.pages, apps)


def metrics_app(host_of: Callable[[Login], Host], principal: Principal) -> ASGIApp:
    """Return the application for a port of this machine that has the metrics alone, as a principal may see them.

    It asks for no token.
    """
    authenticator = Authenticator(unnamed=Login(principal))
    policy = AccessPolicy(authenticator, (), LOOPBACK)
    return Site(policy, (), {METRICS_PATH: _metrics(Access(policy, Stays(authenticator)), host_of)})


def _metrics(access: Access, host_of: Callable[[Login], Host]) -> "_Resource":
    async def scrape(request: Request, login: Login) -> Response:
        metrics = await METHODS["metrics/get"].handler(host_of(login), Unheard(), NoParams())
        # In a thread: with many models and tools it takes a while, and the library is imported at the first request.
        body, media_type = await trio.to_thread.run_sync(_exposed, metrics, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": media_type})

    return _readable(access, scrape)


def _exposed(metrics: Metrics, accept: str) -> tuple[bytes, str]:
    from warren.transport.prometheus import exposed  # noqa: PLC0415 - it has an extra of its own

    return exposed(metrics, accept)


class Unheard(Caller):
    """A caller that gets the result of its turn and none of its events: they are at the session's own route."""

    async def stream(self, _session_id: str | None, run: RunTurn) -> TurnResult:
        """Run a turn."""
        return await run(None)

    async def subscribe(self, session_id: str, _after_seq: int | None) -> int:
        """Refuse: a response cannot be followed by events."""
        raise InvalidParamsError.at("$", f"events are at /sessions/{session_id}/events")

    def unsubscribe(self, _session_id: str) -> bool:
        """Return False: there is nothing to stop."""
        return False


@frozen
class _Guarded:
    """An application for clients that are let in.

    It is called once the body is there, whole: a body that breaks off is answered before. It is cancelled soon after
    the token of its client ends, in the middle of its answer. A request that another node passes on is on behalf of
    the principal that the other one has found.
    """

    access: Access
    metadata: Metadata
    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        scope[SIGN_IN] = self.metadata
        proof = self.access.policy.proof_for(request.headers.getlist("authorization"))
        if proof is not None:
            calling_from.set(None)  # the client is one of the other node
            scope[PASSED_ON] = True
            scope[PRINCIPAL], _ = carried(codec.parse(request.headers.get(BEHALF_HEADER, "{}")))
            await self._serve_node(request, receive, _proved(send, proof))
            return
        try:
            login = await _login(self.access, request)
        except RefusedError as exc:
            raise self.metadata.demand(request, exc) from None
        if paces := self.access.paces.of(login):
            await wait_for_all(paces, 1)
            receive, send = paced_body(receive, paces), paced(send, paces)
            request = Request(scope, receive)
        body = await parameters.whole_body(request)
        scope[PRINCIPAL] = login.principal
        answering = trio.CancelScope()
        with self.access.stays.ends(login, answering.cancel), answering:
            await self.app(scope, _begun_with(body, receive), send)

    async def _serve_node(self, request: Request, receive: Receive, send: Send) -> None:
        """Answer a request of another node; for as long its connection is one of the principal that it is for."""
        scope, place = request.scope, request.scope[PLACE]
        try:
            self.access.places.take(place, scope[PRINCIPAL])
        except RefusedError as exc:  # with the proof, so that the client gets it
            await refusal(exc)(scope, receive, send)
            return
        try:
            await self.app(scope, _begun_with(await parameters.whole_body(request), receive), send)
        finally:
            place.leave()  # the connection waits for a request for anybody


async def _login(access: Access, request: Request) -> Login:
    """Return the login of the client of a request. Raises RefusedError (400, 401, 403 or 429)."""
    headers = request.headers
    login = await access.policy.login(headers.getlist("authorization"), tenants=headers.getlist(TENANT_HEADER))
    access.places.take(request.scope[PLACE], login.principal)
    return login


def _proved(send: Send, proof: str) -> Send:
    """Return a `send` whose answers prove to another node that this is the node that it has asked."""

    async def send_proved(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (NODE_PROOF.lower().encode(), proof.encode())]}
        await send(message)

    return send_proved


def _begun_with(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that brings a body in one piece, and later messages after it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message


OFF: Final = 501
"""The status of errors that say that a capability is off."""
Endpoint = Callable[[Request, Login], Awaitable[Answer]]


@frozen
class _Resource:
    """Everything at one path, by HTTP method; HEAD is GET without its body.

    Attributes:
        access: the access rules.
        endpoints: the endpoint of each HTTP method.
        allowed: the HTTP methods that `Allow` names.
    """

    access: Access
    endpoints: Mapping[str, Endpoint]
    allowed: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        endpoint = self.endpoints.get(request.method)
        allow = ("Allow", ", ".join(self.allowed))
        if endpoint is None:
            raise RefusedError(405, f"{request.method} is not for this path", allow, field="$.method")
        login = await _login(self.access, request)
        if paces := self.access.paces.of(login):
            await wait_for_all(paces, 1)
            receive, send = paced_body(receive, paces), paced(send, paces)
            request = Request(scope, receive)
        try:
            response = await endpoint(request, login)
        except WarrenError as exc:
            if request.method in self.allowed or exc.numbers.http != OFF:
                raise
            raise RefusedError(405, exc.message, allow, error=exc) from exc  # the path has other methods
        await response(scope, receive, send)


def _readable(access: Access, endpoint: Endpoint) -> _Resource:
    """Return the resource at a path that can only be read."""
    endpoints = {"GET": endpoint, "HEAD": endpoint}
    return _Resource(access, endpoints, tuple(endpoints))


@frozen
class _Rest:
    """Runs the methods of the table for requests."""

    host_of: Callable[[Login], Host]
    access: Access
    config: GatewayConfig
    shutdown: Shutdown
    unread: Unread = attrs.field(factory=Unread)

    async def openapi(self, _request: Request, _login: Login) -> Response:
        """Return the OpenAPI document."""
        found = document(self._capabilities())
        return answer({**found, "servers": [{"url": base}]} if (base := self.config.base) else found)

    def service(self) -> RuntimeService:
        """Return the service of a client without a token, for what needs no right of a client."""
        return self.host_of(self.access.policy.authenticator.unnamed).service

    def _capabilities(self) -> Capabilities:
        return self.service().capabilities()

    def resource(self, rows: Sequence[RestRoute]) -> _Resource:
        """Return the resource at a path; a method of a capability that is off is refused, and not in `Allow`."""
        off = missing(self._capabilities())
        there = [row for row in rows if row.method.capability not in off]
        return _Resource(self.access, self._endpoints(rows), tuple(self._endpoints(there or rows)))

    def _endpoints(self, rows: Iterable[RestRoute]) -> Mapping[str, Endpoint]:
        """Return the endpoint of each HTTP method of a path."""
        found: dict[str, Endpoint] = {}
        for row in rows:
            found[row.verb] = self._streaming(row) if row.streams else self._calling(row)
            if row.verb == "GET":
                found["HEAD"] = found["GET"]
        return found

    def _calling(self, row: RestRoute) -> Endpoint:
        making = trio.CapacityLimiter(BULKY)

        takes_files = FILES in attrs.fields_dict(row.method.params)

        async def call(request: Request, login: Login) -> Answer:
            if takes_files and request.headers.get("content-type", "").startswith(FORM):
                return await self._with_files(row, request, login)
            params = codec.from_data(row.method.decoded, await _parameters(row, request))
            try:  # from here on the form is right
                if row.method.bulky:
                    async with making:
                        return await self._page(row, request, login, params)
                if row.method.costly:
                    return self._answered(row, await self._while_heard(request, row.method, login, params))
                return self._answered(row, await self._call(row.method, login, params))
            except InvalidParamsError as exc:
                return failure(exc, _refusal(row, exc))
            except (WarrenError, RefusedError):
                raise
            except Exception:
                logger.exception("%s failed", row.method.name)
                return internal_error()

        return call

    async def _with_files(self, row: RestRoute, request: Request, login: Login) -> Answer:
        """Run a method whose request is a form, with its files. They are in memory once, until the method returns."""
        host = self.host_of(login)
        check_right(host.service.principal, WRITE)  # before its body takes room
        most = self.config.max_message_bytes + MOST_FILES * host.max_attachment
        request.scope[ALLOW](most)
        place = host.opened.room.begin(owner_of(host.service.principal))
        try:
            form = Form(request.headers["content-type"], self.config.max_message_bytes, host.max_attachment)
            await parameters.read_form(request, form, partial(host.opened.room.take, place))
            place.users += 1
            takes = row.method.params
            data = parameters.with_whole_numbers(takes, parameters.with_key(takes, form.params(), request.headers))
            asked = codec.from_data(row.method.decoded, parameters.with_path(data, request.path_params))
            try:
                params = attrs.evolve(asked, **{FILES: (*asked.attachments, *form.files())})
                return self._answered(row, await self._call(row.method, login, params))
            except FieldValueError as exc:
                raise exc.refusal() from None
            except InvalidParamsError as exc:
                found = form.renamed(exc, len(asked.attachments))
                return failure(found, _refusal(row, exc))
        finally:
            host.opened.room.drop(place)

    async def _page(self, row: RestRoute, request: Request, login: Login, params: object) -> Answer:
        result = await self._call(row.method, login, params)
        if row.content:
            return file_answer(result, self.unread, request.headers)
        if not is_large(result):
            return self._answered(row, result)
        self.unread.check()
        body = await trio.to_thread.run_sync(codec.encode_in_pieces, result)
        return LargeAnswer(self.unread, body, row.status, None, JSON)

    async def _while_heard(self, request: Request, method: Method[Any, Any], login: Login, params: object) -> Any:
        """Return a method's result; end the call if its client leaves. Raises as `_call`."""
        result: Any = None
        failed: WarrenError | RefusedError = AgentError("the client has closed its side", cause="cancelled")
        async with trio.open_nursery() as tasks:
            tasks.start_soon(until_gone, request.receive, tasks.cancel_scope)
            try:
                result = await self._call(method, login, params)
            except (WarrenError, RefusedError) as exc:  # a nursery would wrap it in an exception group
                failed = exc
            tasks.cancel_scope.cancel()
        if result is None:
            raise failed
        return result

    def _answered(self, row: RestRoute, result: object) -> Response:
        data, headers = codec.to_data(result), None
        if row.status == 201:  # noqa: PLR2004 - Created
            made = data.get("state", data)  # a turn's result names the session, or a view does
            headers = {"Location": f"{self.config.prefix}/sessions/{made['session_id']}"}
        return Response(codec.encode_whole(data), _status(row, data), headers, JSON)

    async def _call(self, method: Method[Any, Any], login: Login, params: object) -> Any:
        """Return a method's result. A turn that the call has started goes on if the call ends before it.

        Raises AgentError if the gateway ends before the result is there, RefusedError (401) if the client's token does.
        """
        host = self.host_of(login)
        if not method.waits:  # a scope would take a twelfth of the time of `GET /health`
            return await method.handler(host, Unheard(), params)
        scope = trio.CancelScope()
        with self.shutdown.cancels(scope), self.access.stays.ends(login, scope.cancel), scope:
            return await method.handler(host, Unheard(), params)
        raise abandoned() if self.shutdown.begun else unauthorized("ended")

    def _streaming(self, row: RestRoute) -> Endpoint:
        async def stream(request: Request, login: Login) -> Answer:
            wanted = codec.from_data(row.method.decoded, await _parameters(row, request))
            seen = request.headers.get("last-event-id")
            host = self.host_of(login)
            stays = partial(self.access.stays.ends, login)
            streaming = Streaming(self.config.heartbeat, self.shutdown, stays, head_only=request.method == "HEAD")
            if isinstance(wanted, WatchRequest):
                return ChangeStream(host.service, wanted, streaming, host.opened.watches)
            if seen:
                wanted = attrs.evolve(wanted, after_seq=last_event_id(seen))
            return EventStream(host.service, wanted, streaming, host.opened.subscriptions, by_header=bool(seen))

        return stream


async def _parameters(row: RestRoute, request: Request) -> dict[str, Any]:
    """Return the parameters of a request. Raises RefusedError and InvalidParamsError."""
    query: bytes = request.scope["query_string"]
    if row.verb in WITH_BODY:
        if query:
            raise InvalidParamsError.at("$.query", f"the parameters of a {row.verb} are in its body")
        body = parameters.with_key(row.method.params, await parameters.from_body(request), request.headers)
        return parameters.with_path(parameters.with_whole_numbers(row.method.params, body), request.path_params)
    if parameters.announces_body(request) and await request.body():
        raise RefusedError(400, f"a {row.verb} of this path has no body", field="$.body")
    data = parameters.from_query(row.method.params, request.query_params) if query else {}
    return parameters.with_path(data, request.path_params)


def _refusal(row: RestRoute, exc: InvalidParamsError) -> int:
    """Return the status of a request whose parameters were good one by one, and do not fit this server."""
    if exc.cause is not None:
        return exc.numbers.http
    name = re.split(r"[.\[]", str(exc.path).removeprefix("$."))[0]
    if f"{{{name}}}" in row.path:
        return 409 if name == "session_id" else 404  # an unknown session has an error of its own
    field = attrs.fields_dict(row.method.params).get(name)
    return 409 if field is not None and CAN_CONFLICT.items() <= field.metadata.items() else 422


def _status(row: RestRoute, result: Any) -> int:
    return row.status if row.failed is None or result["status"] != "failed" else row.failed
