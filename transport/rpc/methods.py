"""The table of methods: name, parameters, result, handler and documentation of each. Every surface calls these."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Generic, Literal, ParamSpec, Protocol, TypeVar

import attrs

from warren.base.errors import InvalidParamsError
from warren.base.principals import Principal
from warren.base.values import frozen
from warren.base.version import VERSION
from warren.calls.requests import (
    ApproveRequest,
    AttachmentRequest,
    CompactRequest,
    ContextRequest,
    DrainRequest,
    ForgetRequest,
    ForkRequest,
    HistoryRequest,
    LabelRequest,
    ListRequest,
    SearchRequest,
    SessionRef,
    SubscribeRequest,
    UsageRequest,
    WatchRequest,
    WithdrawRequest,
)
from warren.calls.service import Capabilities, Health, OnBegin, RuntimeService, SessionService
from warren.calls.tenants import TenantsPage, TenantsRequest
from warren.conversation import codec
from warren.conversation.attachments import AttachmentContent, File
from warren.conversation.options import SessionRequest, TurnRequest, given
from warren.conversation.peers import PeerMessage
from warren.conversation.records import CompactionEntry
from warren.conversation.views import ContextView, HistoryPage, SessionPage, SessionView, TurnResult
from warren.models.tools import Tool, ToolSpec
from warren.reports.audit import AuditPage, AuditRequest
from warren.reports.ledger import UsageReport
from warren.reports.metrics import History, Metrics
from warren.reports.reports import StoreReport
from warren.settings.config import Limits
from warren.transport.rpc.opened import Opened
from warren.transport.rpc.params import Initialize, NoParams, PutFile, RegisterTools
from warren.transport.rpc.results import (
    Archived,
    Asked,
    CallerInfo,
    Decided,
    Deleted,
    FileReceived,
    Forgotten,
    Greeting,
    Injected,
    Inputs,
    Interrupted,
    MemoryHits,
    Nodes,
    Nothing,
    PeerMessageSent,
    Peers,
    Registered,
    ServerInfo,
    Subscribed,
    Unsubscribed,
    Unwatched,
    Watching,
    Withdrawn,
)
from warren.transport.rpc.settings import Settings
from warren.transport.rpc.shares import owner_of
from warren.transport.rpc.unread import UnreadReplies
from warren.transport.rpc.uploads import Uploads

PROTOCOL: Final = "2.0"
Capability = Literal["session-store", "session-compaction", "memory-store"]

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")
A = ParamSpec("A")


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
        ...

    async def subscribe(self, session_id: str, after_seq: int | None) -> int:
        """Send the caller the events of a session above `after_seq`, or from now on if it is None.

        Return the number after which they begin.

        Raises:
            CapacityExceededError: if the caller has as many subscriptions as it may have.
            WarrenError: the errors of `SessionService.subscribe`.
        """
        ...

    def unsubscribe(self, session_id: str) -> bool:
        """End a subscription; return whether there was one. Events of the caller's own turns go on."""
        ...

    async def watch(self, wanted: WatchRequest) -> None:
        """Send the caller the changes of the list of sessions from now on, in place of those of an earlier watch.

        Raises InvalidParamsError if the caller cannot be sent anything but answers, and as `SessionService.watch`.
        """
        raise InvalidParamsError(f"$: this surface tells of no changes: {wanted}", path="$")

    def unwatch(self) -> bool:
        """End the watch; return whether there was one."""
        return False

    @property
    def uploads(self) -> Uploads | None:
        """The files that the caller has sent ahead of its prompts; None if it cannot send any."""
        return None

    def tools(self) -> Sequence[Tool]:
        """Return the tools that the caller runs itself; they are offered in the turns that it starts."""
        return ()

    def register(self, tools: Sequence[ToolSpec]) -> None:
        """Add tools that the caller runs itself; a tool replaces the one of the same name.

        Raises InvalidParamsError if the caller cannot be asked to run tools.
        """
        if tools:
            raise InvalidParamsError("$.tools: this surface cannot ask its clients to run tools", path="$.tools")


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
    """

    name: str
    params: type[P]
    result: type[R]
    handler: Callable[[Host, Caller, P], Awaitable[R]]
    doc: str
    capability: Capability | None = None
    urgent: bool = False
    bulky: bool = False
    waits: bool = True
    costly: bool = False

    def decode(self, params: object) -> P:
        """Return checked parameters. Raises InvalidParamsError that names the bad field: `$.budget.max_steps`."""
        return codec.from_data(self.params, params)

    async def call(self, host: Host, caller: Caller, params: P) -> Any:
        """Return the result as plain data. Raises WarrenError."""
        return codec.to_data(await self.handler(host, caller, params))


async def _initialize(host: Host, _caller: Caller, _params: Initialize) -> Greeting:
    server, principal = ServerInfo("warren", VERSION), host.service.principal
    caller = CallerInfo(principal.tenant, principal.name, tuple(sorted(principal.scopes)))
    return Greeting(server, PROTOCOL, tuple(METHODS), host.service.capabilities(), caller, host.max_message_bytes)


async def _initialized(_host: Host, _caller: Caller, _params: NoParams) -> Nothing:
    return Nothing()


async def _put(host: Host, caller: Caller, params: PutFile) -> FileReceived:
    from warren.actors.calls.access import check_scope  # noqa: PLC0415 - the help of commands does without the runtime

    check_scope(host.service.principal, "start_turn")
    if caller.uploads is None:
        raise InvalidParamsError("$: this surface takes no files ahead of their prompts", path="$")
    return caller.uploads.put(owner_of(host.service.principal), params, host.max_attachment)


def _files(host: Host, caller: Caller, given_files: Sequence[File]) -> AbstractContextManager[Sequence[File]]:
    """Return the files of a prompt for a body, with the bytes of those that the caller has sent ahead."""
    if not given_files or caller.uploads is None:
        return nullcontext(given_files)
    return caller.uploads.lent(host.service.principal.tenant, given_files)


async def _create(host: Host, caller: Caller, params: SessionRequest) -> TurnResult:
    options, tools = given(SessionRequest, params), caller.tools()
    with _files(host, caller, params.attachments) as files:
        options |= {"attachments": files} if files else {}
        return await caller.stream(
            None,
            lambda on_begin: host.service.create_session(**options, extra_tools=tools, on_begin=on_begin),
        )


async def _start_turn(host: Host, caller: Caller, params: TurnRequest) -> TurnResult:
    options, tools = given(TurnRequest, params), caller.tools()
    with _files(host, caller, params.attachments) as files:
        options |= {"attachments": files} if files else {}
        return await caller.stream(
            params.session_id,
            lambda on_begin: host.service.start_turn(**options, extra_tools=tools, on_begin=on_begin),
        )


async def _subscribe(_host: Host, caller: Caller, params: SubscribeRequest) -> Subscribed:
    return Subscribed(True, await caller.subscribe(params.session_id, params.after_seq))


async def _unsubscribe(_host: Host, caller: Caller, params: SessionRef) -> Unsubscribed:
    return Unsubscribed(caller.unsubscribe(params.session_id))


async def _watch(_host: Host, caller: Caller, params: WatchRequest) -> Watching:
    await caller.watch(params)
    return Watching(watching=True)


async def _unwatch(_host: Host, caller: Caller, _params: NoParams) -> Unwatched:
    return Unwatched(caller.unwatch())


async def _capabilities(host: Host, _caller: Caller, _params: NoParams) -> Capabilities:
    return host.service.capabilities()


async def _config(host: Host, _caller: Caller, _params: NoParams) -> Settings:
    return host.settings


async def _health(host: Host, _caller: Caller, _params: NoParams) -> Health:
    return host.service.health() if host.health is None else await host.health()


async def _metrics(host: Host, _caller: Caller, _params: NoParams) -> Metrics:
    own = host.service.metrics()
    return own if host.metrics is None else await host.metrics(own)


async def _history(host: Host, _caller: Caller, _params: NoParams) -> History:
    return host.service.load() if host.load is None else await host.load()


async def _nodes(host: Host, _caller: Caller, _params: NoParams) -> Nodes:
    return Nodes(await host.service.nodes())


async def _drain(host: Host, _caller: Caller, params: DrainRequest) -> Asked:
    await host.service.drain_node(params.name)
    return Asked(params.name)


async def _check(host: Host, _caller: Caller, _params: NoParams) -> StoreReport:
    return await host.service.check_store()


async def _register(_host: Host, caller: Caller, params: RegisterTools) -> Registered:
    caller.register(params.tools)
    return Registered(len(params.tools))


def _row(
    name: str,
    params: Callable[A, P],
    result: type[R],
    method: Callable[[SessionService], Callable[A, Awaitable[T]]],
    doc: str,
    *,
    show: Callable[[T], R] | None = None,
    **more: Any,
) -> Method[P, R]:
    """Return the row of a method of the service that takes the fields of `params`.

    `show` makes the result of the value that the service returns; None if the value is the result.
    """

    async def handle(host: Host, _caller: Caller, wanted: P) -> Any:
        call: Callable[..., Awaitable[Any]] = method(host.service)
        found = await call(**{name: getattr(wanted, name) for name in names})
        return found if show is None else show(found)

    cls: Any = params
    names = tuple(attrs.fields_dict(cls))
    return Method(name, cls, result, handle, doc, **more)


_STORE: Final = "session-store"
_TABLE: Final[tuple[Method[Any, Any], ...]] = (
    Method(
        "initialize",
        Initialize,
        Greeting,
        _initialize,
        "Greet the server; the answer has its name, its methods, its capabilities, and the rights of the caller.",
    ),
    Method(
        "initialized", NoParams, Nothing, _initialized, "Notification that the client is ready; nothing depends on it."
    ),
    Method(
        "session/create",
        SessionRequest,
        TurnResult,
        _create,
        "Create a session and run its first turn, if there is a prompt.",
    ),
    _row(
        "session/resume",
        SessionRef,
        SessionView,
        lambda service: service.resume,
        "Load a stored session without running a turn.",
        capability=_STORE,
    ),
    _row(
        "session/read",
        SessionRef,
        SessionView,
        lambda service: service.read,
        "Show a session as of its last finished turn.",
    ),
    _row(
        "session/list",
        ListRequest,
        SessionPage,
        lambda service: service.list,
        "List sessions, the most recently changed one first.",
        bulky=True,
    ),
    _row(
        "session/history",
        HistoryRequest,
        HistoryPage,
        lambda service: service.history,
        "Show messages of finished turns, oldest first.",
        bulky=True,
    ),
    Method(
        "file/put",
        PutFile,
        FileReceived,
        _put,
        "Send a file ahead of its prompt, in pieces if it is too large for a message.",
    ),
    _row(
        "session/attachment",
        AttachmentRequest,
        AttachmentContent,
        lambda service: service.attachment,
        "Read a file that the messages of a session have, by its hash.",
        bulky=True,
    ),
    _row(
        "session/context",
        SessionRef,
        ContextView,
        lambda service: service.context,
        "Show what the model sees of a session now, by part, with its tokens.",
        bulky=True,
    ),
    _row(
        "session/archive",
        SessionRef,
        Archived,
        lambda service: service.archive,
        "Archive a session; a running turn ends first.",
        show=lambda _: Archived(archived=True),
    ),
    _row(
        "session/delete",
        SessionRef,
        Deleted,
        lambda service: service.delete,
        "Delete a session and all that it stored.",
        show=lambda _: Deleted(deleted=True),
        capability=_STORE,
    ),
    _row(
        "session/compact",
        CompactRequest,
        CompactionEntry,
        lambda service: service.compact,
        "Summarise the context of a session now.",
        capability="session-compaction",
    ),
    _row(
        "session/fork",
        ForkRequest,
        SessionView,
        lambda service: service.fork,
        "Make a session of the first messages of another one; no model is called.",
    ),
    _row(
        "session/label",
        LabelRequest,
        SessionView,
        lambda service: service.label,
        "Change the labels or the title of a session.",
    ),
    _row(
        "session/inject_context",
        ContextRequest,
        Injected,
        lambda service: service.inject_context,
        "Give a session's model a text that is no prompt; no turn begins.",
        show=lambda _: Injected(injected=True),
    ),
    _row(
        "session/inputs",
        SessionRef,
        Inputs,
        lambda service: service.inputs,
        "Show the inputs that wait in a session's inbox, oldest first.",
        show=Inputs,
        bulky=True,
    ),
    _row(
        "session/withdraw",
        WithdrawRequest,
        Withdrawn,
        lambda service: service.withdraw,
        "Take back an input that waits; a turn that has taken it is not touched.",
        show=lambda _: Withdrawn(withdrawn=True),
    ),
    Method(
        "session/subscribe",
        SubscribeRequest,
        Subscribed,
        _subscribe,
        "Get the events of a session; a second call moves the subscription to another event.",
    ),
    Method("session/unsubscribe", SessionRef, Unsubscribed, _unsubscribe, "End a subscription."),
    Method(
        "session/watch",
        WatchRequest,
        Watching,
        _watch,
        "Get the changes of the list of sessions; a second call begins anew, with another filter.",
    ),
    Method("session/unwatch", NoParams, Unwatched, _unwatch, "End the watch of the list of sessions."),
    Method("turn/start", TurnRequest, TurnResult, _start_turn, "Run a turn; the answer comes after its last event."),
    _row(
        "turn/interrupt",
        SessionRef,
        Interrupted,
        lambda service: service.interrupt,
        "End the running turn; the answer comes when it has ended.",
        show=lambda _: Interrupted(interrupted=True),
        urgent=True,
    ),
    _row(
        "tool/approve",
        ApproveRequest,
        Decided,
        lambda service: service.approve_tool,
        "Allow or deny a tool call that waits for approval.",
        show=lambda _: Decided(decided=True),
        urgent=True,
    ),
    _row(
        "peer/send",
        PeerMessage,
        PeerMessageSent,
        lambda service: service.send_message,
        "Send a message to another session, in the name of a session.",
        show=PeerMessageSent,
    ),
    _row(
        "peer/list",
        SessionRef,
        Peers,
        lambda service: service.peers,
        "Show the peers that a session trusts, and whether each can be reached.",
        show=Peers,
    ),
    Method(
        "tools/register",
        RegisterTools,
        Registered,
        _register,
        "Offer tools that the client runs itself, in the turns that it starts from now on.",
    ),
    _row(
        "memory/search",
        SearchRequest,
        MemoryHits,
        lambda service: service.search_memory,
        "Search the remembered texts of one session, or of all.",
        show=MemoryHits,
        capability="memory-store",
        bulky=True,
    ),
    _row(
        "memory/forget",
        ForgetRequest,
        Forgotten,
        lambda service: service.forget_memory,
        "Remove remembered texts for good: one, those of a turn, or all that are remembered of a session.",
        show=Forgotten,
        capability="memory-store",
    ),
    _row(
        "audit/list",
        AuditRequest,
        AuditPage,
        lambda service: service.audit,
        "Show entries of the audit, oldest first.",
        bulky=True,
    ),
    _row(
        "usage/get",
        UsageRequest,
        UsageReport,
        lambda service: service.usage,
        "Show the tokens and the cost of models, summed by hour, day, model, tenant, session or label.",
        bulky=True,
    ),
    Method("nodes/list", NoParams, Nodes, _nodes, "Show the living processes that have the store open."),
    Method(
        "nodes/drain",
        DrainRequest,
        Asked,
        _drain,
        "Ask a node to end in order: its sessions go on at the others. The answer does not wait for that.",
    ),
    _row(
        "tenants/list",
        TenantsRequest,
        TenantsPage,
        lambda service: service.tenants,
        "Show the figures of the tenant, or of all: sessions, running turns, limits and what counts against them.",
        bulky=True,
    ),
    Method(
        "store/check",
        NoParams,
        StoreReport,
        _check,
        "Examine the store beside the sessions, as `warren doctor` does; that may take minutes.",
        capability=_STORE,
        costly=True,
    ),
    Method(
        "capabilities/get",
        NoParams,
        Capabilities,
        _capabilities,
        "Show which optional capabilities are on.",
        waits=False,
    ),
    Method("config/get", NoParams, Settings, _config, "Show the settings, without secrets.", waits=False),
    Method("health", NoParams, Health, _health, "Show the health of the runtime.", waits=False),
    Method("metrics/get", NoParams, Metrics, _metrics, "Show the metrics of the runtime.", waits=False),
    Method(
        "metrics/history",
        NoParams,
        History,
        _history,
        "Show the load of the last hour, of all processes on the store, a sample for every ten seconds.",
        bulky=True,
    ),
)

METHODS: Final[Mapping[str, Method[Any, Any]]] = {method.name: method for method in _TABLE}
"""Every method by its name, in the order of the documentation."""
