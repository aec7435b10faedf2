"""`connect`, and the service that it opens."""

import copy
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from types import NoneType
from typing import Any, Final, Self, TypeVar, cast
from urllib.parse import urlsplit

import anyio
import attrs
import httpx
from anyio.abc import TaskGroup

from warren.base.errors import AgentError, InvalidParamsError, WarrenError
from warren.base.fields import FieldValueError
from warren.base.principals import LOCAL, Principal
from warren.base.values import frozen
from warren.calls.base import Call, SessionRef, answer_of, made, result_of, unwrapped
from warren.calls.facade import Capabilities, Health, SessionService
from warren.calls.reading import (
    SubscribeRequest,
    WatchRequest,
)
from warren.calls.sessions import DelegateRequest
from warren.calls.streams import EventReader, OnEvent, notify_nobody
from warren.calls.turn_stream import StreamedTurn, TurnStream
from warren.calls.turns import (
    ContextRequest,
    SessionCall,
    TurnCall,
    WaitRequest,
)
from warren.conversation import codec
from warren.conversation.events import Envelope, Event
from warren.conversation.options import SessionRequest, TurnRequest, given
from warren.conversation.views import TurnResult
from warren.models.tools import Tool
from warren.reports.metrics import History, Metrics
from warren.transport.access.addresses import LONGEST, OVER_UNIX, WEBSOCKET_PATH, is_path, path_in
from warren.transport.client.connection import CONNECT_TIMEOUT, NO_ANSWER, Dial, RunTool
from warren.transport.client.links import Links
from warren.transport.client.readers import RemoteLog, TurnPlace
from warren.transport.client.tools import running
from warren.transport.client.watching import RemoteWatch
from warren.transport.rpc.behalf import TENANT_HEADER, carrying
from warren.transport.rpc.params import RegisterTools
from warren.transport.rpc.results import Greeting

T = TypeVar("T")
logger: Final = logging.getLogger(__name__)
PATIENCE: Final = 30.0
"""Seconds for which a call waits for a server that cannot be reached, unless `connect` is told otherwise."""
SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


@asynccontextmanager
async def connect(
    url: str, *, token: str | None = None, tenant: str | None = None, patience: float = PATIENCE
) -> AsyncIterator["RemoteService"]:
    """Open the service of a gateway for the body of an `async with`.

    The service is a `SessionService`: the same calls, values and errors as in the process of the runtime. A lost
    connection is opened again when a call or a subscription needs it. Leaving the block closes the connections; turns
    that run go on. An exception of the body is raised as it is, never in an exception group.

    Proxies and certificates are those of the environment, as httpx takes them: `SSL_CERT_FILE`, `ALL_PROXY`,
    `NO_PROXY`. It works on trio and on asyncio. Use it in the task that entered it and in tasks of the same event loop.

    Args:
        url: the address of the gateway: `ws://host:port`, `wss://…`, `http://…` or `https://…`, with the path below
            which a proxy serves it, if there is one. The WebSocket is at `/ws` below it; the address of that may be
            given, too. Or `unix:PATH`, a Unix socket.
        token: the token of the gateway's clients; None if it has none.
        tenant: the tenant to work in; None for that of the token. Another one needs the scope `tenant:admin`.
        patience: seconds for which a call waits while the server cannot be reached.

    Raises:
        InvalidParamsError: if the address is bad.
        AgentError: with the cause `unreachable` if the server cannot be reached or refuses the connection. It is tried
            once.
    """
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if tenant is not None:
        headers[TENANT_HEADER] = tenant
    address = address_of(url)
    path = path_in(address)
    async with open_http(address) as http:
        dial = Dial(http, address if path is None else OVER_UNIX, headers, socket=path)
        async with open_links(dial, patience) as (links, capabilities):
            yield RemoteService(links, capabilities)


def open_http(address: str) -> httpx.AsyncClient:
    """Return the client that opens connections to an address of `address_of`, to be entered with `async with`."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    path = path_in(address)
    transport = None if path is None else httpx.AsyncHTTPTransport(uds=path, limits=limits, verify=False)
    # Without TLS no certificates are read, which takes longer than all the rest of the connection.
    encrypted = address.startswith("wss:")
    return httpx.AsyncClient(limits=limits, timeout=CONNECT_TIMEOUT, verify=encrypted, transport=transport)


@asynccontextmanager
async def open_links(dial: Dial, patience: float) -> AsyncIterator[tuple[Links, Capabilities]]:
    """Open the first connection for a body; yields the connections and the capabilities of the server.

    Raises as `connect`; an exception of the body is raised as it is.
    """
    async with background() as tasks:
        links = Links(dial, tasks, patience)
        try:
            await links.open()
            greeting = await _greeting(links)
            links.bound(greeting.max_message_bytes)
            yield links, greeting.capabilities
        finally:
            links.closed = True


@asynccontextmanager
async def background(*tasks: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[TaskGroup]:
    """Run tasks for a body, which may start more; cancel them at its end. Raises what the body raises, as it is."""
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:
        for each in tasks:
            group.start_soon(each)
        try:
            yield group
        except BaseException as exc:  # noqa: BLE001 - raised below: a task group would wrap it in an exception group
            failure = exc
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _greeting(links: Links) -> Greeting:
    """Return the answer to the first request. Raises AgentError(cause="unreachable") if it is not a gateway's."""
    try:
        with anyio.fail_after(CONNECT_TIMEOUT):
            found = await links.ask("initialize", {"client_info": {"name": "warren.client"}}, repeatable=True)
        return codec.from_server(Greeting, found)
    except TimeoutError:
        problem = f"{links.dial.place} cannot be reached: {NO_ANSWER}"
        raise AgentError(problem, cause="unreachable", retryable=True) from None
    except ValueError as exc:
        raise AgentError(f"{links.dial.place} is no gateway: {exc}", cause="unreachable") from None


def address_of(url: str) -> str:
    """Return the address of the WebSocket, or of the Unix socket. Raises InvalidParamsError (path `$.url`)."""
    if (path := path_in(url)) is not None:
        if not is_path(path):
            raise InvalidParamsError.at("$.url", f"{url!r} needs a path of 1 to {LONGEST} bytes")
        return url
    try:
        parts = urlsplit(url if "://" in url else f"ws://{url}")
        scheme, _port, host = SCHEMES.get(parts.scheme), parts.port, parts.hostname
    except ValueError:
        scheme = host = None
    if not (scheme and host):
        raise InvalidParamsError.at("$.url", f"{url!r} is not like ws://127.0.0.1:8420")
    return parts._replace(
        scheme=scheme, path=parts.path.rstrip("/").removesuffix(WEBSOCKET_PATH) + WEBSOCKET_PATH
    ).geturl()


class _Told:
    """Calls the `on_event` of a turn with each event; a function that raises is not called again."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event: OnEvent | None = on_event

    def begin(self, reader: EventReader) -> None:
        """Pass the events of a turn on as they come: an `on_begin`."""

        def hear(_event: Event | None) -> None:
            for envelope in reader.take() or ():
                self.tell(envelope)

        reader.notify = hear

    def tell(self, envelope: Envelope) -> None:
        """Pass an event on."""
        if self._on_event is not None:
            try:
                self._on_event(envelope)
            except Exception:
                logger.exception("on_event of session %s raised: it gets no more of this turn", envelope.session_id)
                self._on_event = None


@frozen
class _Turn:
    """The request of a turn; `repeatable` if it may be sent again when its outcome is unknown."""

    method: str
    params: Mapping[str, Any]
    session_id: str | None
    repeatable: bool


class RemoteService(SessionService):
    """A gateway's sessions. `connect` makes it.

    Its methods do what those of `SessionService` say. In addition:

    * Every method may raise AgentError(cause="unreachable") if the server cannot be reached, and those that must not
      be carried out twice AgentError(cause="connection_lost") if the connection is lost before the answer. All others
      are sent again. So are new sessions and prompts in the modes `queue` and `steer`: they have an idempotency key,
      their caller's or one of the client.
    * `tools` are names, `compactor` has to be None and `hooks` empty: other tools are given as `extra_tools`, which run
      in this process while a call lasts.
    """

    def __init__(self, links: Links, capabilities: Capabilities) -> None:
        self._links = links
        self._capabilities = capabilities
        self._principal = LOCAL

    def as_(self, principal: Principal) -> Self:
        """Return the same service on behalf of a principal. Only the link of a node may carry one."""
        bound = copy.copy(self)
        bound._principal = principal  # noqa: SLF001 - a copy of this object
        return bound

    @property
    def links(self) -> Links:
        """The connections to the gateway."""
        return self._links

    async def perform(self, call: Call[T]) -> T:
        """Return the answer of the server to a call."""
        if isinstance(call, SessionCall | TurnCall):
            return cast("T", await self._run_turn(call))
        if isinstance(call, ContextRequest | DelegateRequest) and call.idempotency_key is None:
            call = cast("Call[T]", attrs.evolve(call, idempotency_key=new_key()))
        if isinstance(call, WaitRequest) and call.extra_tools:
            return cast("T", await self._wait_with_tools(call))
        cls, facts = type(call), call.facts
        answer = await self._sent(facts.name, call, repeatable=facts.repeatable)
        if result_of(cls) is NoneType:
            return cast("T", None)
        return unwrapped(cls, codec.from_server(answer_of(cls), answer))

    async def _run_turn(self, call: SessionCall | TurnCall) -> TurnResult:
        """Run a turn, or create a session; it is sent again if its outcome is unknown and it cannot be taken twice."""
        name = call.facts.name
        if isinstance(call, TurnCall):
            turn = _Turn(name, given(TurnRequest, call), call.session_id, repeatable=call.mode != "busy")
        else:
            _check_objects(call)
            turn = _Turn(name, given(SessionRequest, call), None, repeatable=True)
        return await (self._repeated(turn, call) if turn.repeatable else self._turn(turn, call))

    @asynccontextmanager
    async def stream(self, call: SessionCall | TurnCall) -> AsyncIterator[TurnStream]:
        """Stream a turn across lost connections: its events come from the log then."""
        turn = StreamedTurn(call, self.perform, self.subscribe, anyio.Event)
        async with background(turn.run), turn.opened() as events:
            yield events

    @asynccontextmanager
    async def subscribe(self, session_id: str, *, after_seq: int | None = None) -> AsyncIterator[EventReader]:
        """Subscribe to a session's events across lost connections: no event is missed, none comes twice."""
        log = await self.follow(session_id, after_seq=after_seq)
        try:
            yield log.reader
        finally:
            log.reader.close()

    async def follow(self, session_id: str, *, after_seq: int | None = None) -> RemoteLog:
        """Return the log of a subscription, for a caller that closes its reader itself. Raises as `subscribe` does."""
        wanted = made(SubscribeRequest, session_id, after_seq=after_seq)
        log = RemoteLog(self._links, wanted.session_id, wanted.after_seq, self._principal)
        try:
            await log.connect()
        except BaseException:
            log.reader.close()
            raise
        return log

    @asynccontextmanager
    async def watch(
        self, *, labels: Mapping[str, str] | None = None, include_archived: bool = False
    ) -> AsyncIterator[RemoteWatch]:
        """Watch the list of sessions across lost connections: the next changes say that some were missed."""
        wanted = made(WatchRequest, labels=labels, include_archived=include_archived)
        watch = RemoteWatch(self._links, wanted, self._principal)
        try:
            await watch.connect()
            yield watch
        finally:
            await watch.aclose()

    def capabilities(self) -> Capabilities:
        """Return the optional capabilities that were on when the client connected."""
        return self._capabilities

    async def health(self) -> Health:
        """Return the health of the runtime behind the server."""
        return await self._ask(Health, "health", {}, repeatable=True)

    async def load(self) -> History:
        """Return the load of the last hour of all processes on the store of the server."""
        return await self._ask(History, "metrics/history", {}, repeatable=True)

    async def metrics(self) -> Metrics:
        """Return the metrics of the runtime behind the server."""
        return await self._ask(Metrics, "metrics/get", {}, repeatable=True)

    async def _ask(self, cls: type[T], method: str, params: object, *, repeatable: bool = False) -> T:
        return codec.from_server(cls, await self._sent(method, params, repeatable=repeatable))

    async def _sent(self, method: str, params: object, *, repeatable: bool) -> Any:
        return await self._links.ask(method, carrying(params, self._principal), repeatable=repeatable)

    async def _repeated(self, turn: "_Turn", call: SessionCall | TurnCall) -> TurnResult:
        """Run a turn whose request may be sent again, under a key of its own unless the caller has given one."""
        if call.idempotency_key is not None:
            return await self._turn(turn, call)
        params = {**turn.params, "idempotency_key": new_key()}
        try:
            return await self._turn(attrs.evolve(turn, params=params), call)
        except WarrenError as exc:
            exc.forget_key()
            raise

    async def _turn(self, turn: "_Turn", call: SessionCall | TurnCall) -> TurnResult:
        """Run a turn, and pass its events on before its result or its error."""
        turn = attrs.evolve(turn, params=carrying(turn.params, self._principal))
        told = None if call.on_event is None else _Told(call.on_event)
        place = TurnPlace(self._links, self._principal, call.on_begin if told is None else told.begin)
        goes_on = False
        try:
            result = codec.from_server(TurnResult, await self._run(turn, place, call.extra_tools))
        except WarrenError as exc:
            if exc.session_id is not None:
                first, last = exc.details.get("first_seq"), exc.details.get("last_seq")
                await self._complete(place, told, exc.session_id, first, last)
            raise
        except anyio.get_cancelled_exc_class():
            goes_on = told is not None and place.live  # the turn runs on, and so does its callback, until the answer
            raise
        else:
            await self._complete(place, told, result.session_id, result.first_seq, result.last_seq)
            return result
        finally:
            if not goes_on:
                place.lost()
                if told is not None and place.log is not None:
                    place.log.reader.close()

    async def _run(self, turn: "_Turn", place: TurnPlace, tools: Sequence[Tool]) -> Any:
        asked = False

        async def send() -> Any:
            nonlocal asked
            if asked:  # the events of another connection do not follow those that came before
                place.lost()
            asked = True
            if tools:
                return await self._run_with_tools(turn, place, tools, run)
            if turn.session_id is not None and place.on_begin is None:
                return await self._links.run(turn.session_id, turn.method, turn.params)
            # Of a session that is created once more the log may follow the first turn on another connection already.
            known = turn.session_id if place.log is None else place.log.session_id
            claim = await self._links.claim(known, place)
            return await claim.ask(turn.method, turn.params)

        with running(tools, self._links.tasks) as run:
            return await self._links.repeat(send, repeatable=turn.repeatable)

    async def _run_with_tools(self, turn: "_Turn", place: TurnPlace, tools: Sequence[Tool], run: RunTool) -> Any:
        """Run a turn on a connection of its own: the server asks it to run the tools."""
        async with self._links.own(run) as connection:
            await connection.ask("tools/register", RegisterTools(tuple(each.spec for each in tools)))
            connection.follow(turn.session_id, place)
            return await connection.ask(turn.method, turn.params)

    async def _wait_with_tools(self, call: WaitRequest) -> TurnResult:
        """Wait for the end of a turn on a connection of its own: the server asks it to run the tools."""

        async def send() -> Any:
            async with self._links.own(run) as connection:
                await connection.ask("tools/register", RegisterTools(tuple(each.spec for each in call.extra_tools)))
                return await connection.ask(call.facts.name, carrying(SessionRef(call.session_id), self._principal))

        with running(call.extra_tools, self._links.tasks) as run:
            return codec.from_server(TurnResult, await self._links.repeat(send, repeatable=True))

    async def _complete(
        self, place: TurnPlace, told: _Told | None, session_id: str, first: int | None, last: int | None
    ) -> None:
        """Pass on the events of a turn that did not come by themselves: those after a lost connection."""
        if place.live or first is None or last is None or place.on_begin is None:
            return
        reader = (place.log or place.begin(session_id, first - 1)).reader
        if told is None:  # the owner of the reader reads on
            return
        reader.notify = notify_nobody
        seen = reader.cursor
        while seen < last:
            envelope = await anext(reader)
            told.tell(envelope)
            seen = envelope.seq


def new_key() -> str:
    """Return an idempotency key that nobody else uses."""
    return secrets.token_urlsafe(16)


def _check_objects(call: SessionCall) -> None:
    """Refuse objects that only a runtime in the same process can use. Raises InvalidParamsError."""
    for index, each in enumerate(call.tools or ()):
        if isinstance(each, Tool):
            raise FieldValueError(f"tools[{index}]", "must be a name: a client runs its tools as extra_tools").refusal()
    if call.compactor is not None:
        raise FieldValueError("compactor", "must be None: it runs in the process of the runtime").refusal()
    if call.hooks:
        raise FieldValueError("hooks", "must be empty: they run in the process of the runtime").refusal()
