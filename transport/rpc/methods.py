"""The table of methods: name, parameters, result, handler and documentation of each. Every surface calls these.

Most are the calls of `warren.calls.facade`, which the service performs. What a connection has of its own is here: its
greeting, its files and tools, its subscriptions, and what it tells of the process.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import attrs

from warren.base.errors import InvalidParamsError
from warren.base.principals import WRITE, Principal, Scope, check_right
from warren.base.values import frozen
from warren.base.version import VERSION
from warren.calls.base import Call, Capability, SessionRef, answer_of
from warren.calls.facade import CALLS, Capabilities, Health, RuntimeService
from warren.calls.reading import SubscribeRequest, WatchRequest
from warren.calls.streams import OnBegin
from warren.calls.turns import SessionCall, TurnCall, WaitRequest
from warren.conversation import codec
from warren.conversation.views import TurnResult
from warren.models.tools import ToolSpec
from warren.reports.metrics import History, Metrics
from warren.settings.config import Limits
from warren.transport.rpc import results
from warren.transport.rpc.client_tools import ClientTools
from warren.transport.rpc.opened import Opened
from warren.transport.rpc.params import Initialize, NoParams, PutFile, RegisterTools
from warren.transport.rpc.settings import Settings
from warren.transport.rpc.shares import owner_of
from warren.transport.rpc.unread import UnreadReplies
from warren.transport.rpc.uploads import Uploads

PROTOCOL: Final = "2.0"

P = TypeVar("P")
R = TypeVar("R")


RunTurn = Callable[[OnBegin | None], Awaitable[TurnResult]]
"""Runs a turn, and gives the function a reader of its events. None asks for no events."""


class Caller(Protocol):
    """The client that made a call. It gets the events of its turns and subscriptions."""

    async def stream(self, session_id: str | None, run: RunTurn) -> TurnResult:
        """Run a turn whose events go to the caller.

        Return its result, or raise its error, when the reply can be sent behind the turn's last event.

        Args:
            session_id: the session; None if `run` creates one.
            run: runs the turn.
        """

    async def subscribe(self, session_id: str, after_seq: int | None) -> int:
        """Send the caller the events of a session above `after_seq`, or from now on if it is None.

        Return the number after which they begin.

        Raises:
            CapacityExceededError: if the caller has as many subscriptions as it may have.
            WarrenError: the errors of `SessionService.subscribe`.
        """

    def unsubscribe(self, session_id: str) -> bool:
        """End a subscription; return whether there was one. Events of the caller's own turns go on."""

    async def watch(self, wanted: WatchRequest) -> None:
        """Send the caller the changes of the list of sessions from now on, in place of those of an earlier watch.

        Raises InvalidParamsError if the caller cannot be sent anything but answers, and as `SessionService.watch`.
        """
        raise InvalidParamsError.at("$", f"this surface tells of no changes: {wanted}")

    def unwatch(self) -> bool:
        """End the watch; return whether there was one."""
        return False

    @property
    def uploads(self) -> Uploads | None:
        """The files that the caller has sent ahead of its prompts; None if it cannot send any."""
        return None

    @property
    def tools(self) -> ClientTools | None:
        """The tools that the caller runs itself, in the turns that it starts; None if it cannot be asked to."""
        return None


@frozen
class Host:
    """The runtime behind a surface.

    Attributes:
        service: the runtime.
        settings: the answer to `config/get`.
        health: asks for the health of all processes that serve together; None if this one serves alone.
        metrics: adds the metrics of the surface, and those of all processes that serve together, to the runtime's own;
            None adds nothing.
        load: asks for the load of all processes on the store; None if this one serves alone.
        of_nodes: whether its callers are other nodes, which say on whose behalf they call.
        max_message_bytes: bytes that a message of a client may have; None for no bound.
        max_attachment: bytes that a file may have.
        unread: counts the replies that clients have not read; None for one client alone, and for nodes.
        opened: what the clients of the process have open.
    """

    service: RuntimeService
    settings: Settings = attrs.field(factory=Settings)
    health: Callable[[], Awaitable[Health]] | None = None
    metrics: Callable[[Metrics], Awaitable[Metrics]] | None = None
    load: Callable[[], Awaitable[History]] | None = None
    of_nodes: bool = False
    max_message_bytes: int | None = None
    max_attachment: int = Limits().max_attachment
    unread: UnreadReplies | None = attrs.field(default=None, eq=False)
    opened: Opened = attrs.field(factory=Opened, eq=False)

    def of(self, principal: Principal | None) -> "Host":
        """Return the host of a client: its service is that of the principal; None leaves it as it is."""
        return self if principal is None else attrs.evolve(self, service=self.service.as_(principal))


@frozen
class Method(Generic[P, R]):
    """One row of the table.

    Attributes:
        name: the name that clients call.
        params: the class of its parameters.
        result: the class of its result, which `codec.to_data` turns into JSON.
        handler: the function that runs a call.
        doc: one line for people.
        capability: the capability that the method needs; None if it needs none. If the capability is off, calls fail
            with its error, at once or for a session that is not in memory.
        urgent: whether a call is accepted when too many other calls are unanswered.
        bulky: whether the result may be large. A connection runs few such calls at once, and none while its client has
            much to read.
        waits: whether the handler may wait for more than a moment. A call of one that does not cannot be cut off by a
            shutdown.
        costly: whether a call costs much, and is in vain without its client: it ends if the client leaves.
        scope: the right that a call needs.
        decoded: the class of the parameters once they are decoded; it may have fields that only this process gives.
    """

    name: str
    params: type[Any]
    result: type[R]
    handler: Callable[[Host, Caller, P], Awaitable[R]]
    doc: str
    capability: Capability | None = None
    urgent: bool = False
    bulky: bool = False
    waits: bool = True
    costly: bool = False
    scope: Scope | None = None
    decoded: type[P] = attrs.field(
        default=attrs.Factory(lambda self: cast("Method[Any, Any]", self).params, takes_self=True), kw_only=True
    )

    async def call(self, host: Host, caller: Caller, params: P) -> Any:
        """Return the result as plain data. Raises WarrenError."""
        return codec.to_data(await self.handler(host, caller, params))


async def _initialize(host: Host, _caller: Caller, _params: Initialize) -> results.Greeting:
    """Greet the server; the answer has its name, its methods, its capabilities, and the rights of the caller."""
    server, principal = results.ServerInfo("warren", VERSION), host.service.principal
    caller = results.CallerInfo(principal.tenant, principal.name, tuple(sorted(principal.scopes)))
    return results.Greeting(
        server, PROTOCOL, tuple(METHODS), host.service.capabilities(), caller, host.max_message_bytes
    )


async def _initialized(_host: Host, _caller: Caller, _params: NoParams) -> results.Nothing:
    """Notification that the client is ready; nothing depends on it."""
    return results.Nothing()


async def _put(host: Host, caller: Caller, params: PutFile) -> results.FileReceived:
    """Send a file ahead of its prompt, in pieces if it is too large for a message."""
    check_right(host.service.principal, WRITE)
    if caller.uploads is None:
        raise InvalidParamsError.at("$", "this surface takes no files ahead of their prompts")
    return caller.uploads.put(owner_of(host.service.principal), params, host.max_attachment)


async def _run_turn(host: Host, caller: Caller, call: SessionCall | TurnCall) -> TurnResult:
    """Perform a call that runs a turn, with the tools and the files that the caller brings."""
    # The call was decoded for this request alone. Its checks have seen all but these, which the connection has made.
    add, files, uploads = partial(object.__setattr__, call), call.attachments, caller.uploads

    def run(on_begin: OnBegin | None) -> Awaitable[TurnResult]:
        add("on_begin", on_begin)
        return host.service.perform(call)

    if caller.tools is not None:
        add("extra_tools", caller.tools.offered)
    lent = uploads.lent(host.service.principal.tenant, files) if files and uploads is not None else nullcontext(files)
    with lent as attachments:
        add("attachments", attachments)
        return await caller.stream(call.session_id if isinstance(call, TurnCall) else None, run)


async def _perform(host: Host, caller: Caller, call: Call[Any]) -> Any:
    tools = caller.tools if isinstance(call, WaitRequest) else None
    if tools is not None and WRITE in host.service.principal.scopes:  # who runs a tool tells the model its result
        object.__setattr__(call, "extra_tools", tools.offered)
    return call.answer(await host.service.perform(call))


async def _subscribe(_host: Host, caller: Caller, params: SubscribeRequest) -> results.Subscribed:
    """Get the events of a session; a second call moves the subscription to another event."""
    return results.Subscribed(True, await caller.subscribe(params.session_id, params.after_seq))


async def _unsubscribe(_host: Host, caller: Caller, params: SessionRef) -> results.Unsubscribed:
    """End a subscription."""
    return results.Unsubscribed(caller.unsubscribe(params.session_id))


async def _watch(_host: Host, caller: Caller, params: WatchRequest) -> results.Watching:
    """Get the changes of the list of sessions; a second call begins anew, with another filter."""
    await caller.watch(params)
    return results.Watching(watching=True)


async def _unwatch(_host: Host, caller: Caller, _params: NoParams) -> results.Unwatched:
    """End the watch of the list of sessions."""
    return results.Unwatched(caller.unwatch())


async def _capabilities(host: Host, _caller: Caller, _params: NoParams) -> Capabilities:
    """Show which optional capabilities are on."""
    return host.service.capabilities()


async def _config(host: Host, _caller: Caller, _params: NoParams) -> Settings:
    """Show the settings, without secrets."""
    return host.settings


async def _health(host: Host, _caller: Caller, _params: NoParams) -> Health:
    """Show the health of the runtime."""
    return host.service.health() if host.health is None else await host.health()


async def _metrics(host: Host, _caller: Caller, _params: NoParams) -> Metrics:
    """Show the metrics of the runtime."""
    own = host.service.metrics()
    return own if host.metrics is None else await host.metrics(own)


async def _history(host: Host, _caller: Caller, _params: NoParams) -> History:
    """Show the load of the last hour, of all processes on the store, a sample for every ten seconds."""
    return host.service.load() if host.load is None else await host.load()


def register(caller: Caller, tools: Sequence[ToolSpec]) -> None:
    """Add tools that a caller runs itself; a tool replaces the one of the same name.

    Raises InvalidParamsError if the caller cannot be asked to run tools.
    """
    if caller.tools is not None:
        caller.tools.register(tools)
    elif tools:
        raise InvalidParamsError.at("$.tools", "this surface cannot ask its clients to run tools")


async def _register(_host: Host, caller: Caller, params: RegisterTools) -> results.Registered:
    """Offer tools that the client runs itself, in the turns that it starts from now on."""
    register(caller, params.tools)
    return results.Registered(len(params.tools))


def _of(cls: type[Call[Any]]) -> Method[Any, Any]:
    """Return the row of a class of calls."""
    facts = cls.facts
    return Method(
        facts.name,
        facts.params or cls,
        answer_of(cls),
        _run_turn if cls in (SessionCall, TurnCall) else _perform,
        facts.doc,
        decoded=cls,
        capability=facts.needs,
        urgent=facts.urgent,
        bulky=facts.bulky,
        costly=facts.costly,
        scope=facts.scope,
    )


def _own(name: str, handler: Callable[[Host, Caller, Any], Awaitable[Any]], **facts: Any) -> Method[Any, Any]:
    """Return the row of a method whose handler says by its signature what it takes and returns, and has its line."""
    _, _, params, result = handler.__annotations__.values()
    return Method(name, params, result, handler, handler.__doc__ or "", **facts)


_OWN: Final[Mapping[str, Sequence[Method[Any, Any]]]] = {
    "session/create": (_own("initialize", _initialize), _own("initialized", _initialized)),
    "session/attachment": (_own("file/put", _put),),
    "turn/start": (
        _own("session/subscribe", _subscribe),
        _own("session/unsubscribe", _unsubscribe),
        _own("session/watch", _watch),
        _own("session/unwatch", _unwatch),
    ),
    "memory/search": (_own("tools/register", _register),),
}
"""The methods that a connection has of its own, by the call before which the documentation has them."""
_OF_PROCESS: Final[Sequence[Method[Any, Any]]] = (
    _own("capabilities/get", _capabilities, waits=False),
    _own("config/get", _config, waits=False),
    _own("health", _health, waits=False),
    _own("metrics/get", _metrics, waits=False),
    _own("metrics/history", _history, bulky=True),
)

METHODS: Final[Mapping[str, Method[Any, Any]]] = {
    method.name: method
    for method in (*(row for name, cls in CALLS.items() for row in (*_OWN.get(name, ()), _of(cls))), *_OF_PROCESS)
}
"""Every method by its name, in the order of the documentation."""
