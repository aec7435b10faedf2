"""The one table of methods: name, parameters, handler, a line of documentation. Every surface calls these."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import attrs

from warren import codec
from warren.errors import InvalidParamsError
from warren.options import SessionRequest, TurnRequest, given
from warren.records import CompactionEntry
from warren.service import Capabilities, Health, OnEvent, SessionService
from warren.tools import Tool, ToolSpec
from warren.transport.rpc.params import (
    ApproveTool,
    CompactSession,
    CreateSession,
    ForkSession,
    Initialize,
    InjectContext,
    LabelSession,
    ListSessions,
    NoParams,
    ReadHistory,
    RegisterTools,
    SearchMemory,
    SendToPeer,
    SessionParams,
    StartTurn,
    Subscribe,
    WithdrawInput,
)
from warren.transport.rpc.results import (
    Archived,
    Decided,
    Deleted,
    Greeting,
    Injected,
    Inputs,
    Interrupted,
    MemoryHits,
    Nothing,
    Peers,
    Registered,
    Sent,
    ServerInfo,
    Subscribed,
    Unsubscribed,
    Withdrawn,
)
from warren.transport.rpc.settings import Settings
from warren.views import HistoryPage, SessionPage, SessionView, TurnResult

PROTOCOL: Final = "2.0"
Capability = Literal["session-store", "session-compaction", "memory-store"]

P = TypeVar("P")
R = TypeVar("R")


class Caller(Protocol):
    """The side of a surface that made a call: where its events go."""

    async def stream(self, session_id: str | None, run: Callable[[OnEvent], Awaitable[TurnResult]]) -> TurnResult:
        """Run a turn whose events go to the caller; returns or raises after the caller's last event of it.

        `session_id` is None for a session that is yet to be created.
        """
        ...

    async def subscribe(self, session_id: str, after_seq: int | None) -> None:
        """Send the caller a session's events, from now on or from the log after `after_seq`.

        Raises what `SessionService.subscribe` raises, and CapacityExceededError for one subscription too many.
        """
        ...

    def unsubscribe(self, session_id: str) -> bool:
        """Stop it; return whether there was a subscription. Events of the caller's own turns go on."""
        ...

    def tools(self) -> Sequence[Tool]:
        """Return the tools that the caller runs itself: they are offered in the turns it starts."""
        return ()

    def register(self, tools: Sequence[ToolSpec]) -> None:
        """Take tools that the caller runs itself; one of a name that is known replaces it.

        Raises InvalidParamsError where the caller cannot be asked to run any.
        """
        if tools:
            raise InvalidParamsError("$.tools: this surface cannot ask its clients to run tools", path="$.tools")


@attrs.frozen
class Host:
    """What the methods act on.

    Attributes:
        service: the runtime.
        settings: what `config/get` shows.
    """

    service: SessionService
    settings: Settings = attrs.field(factory=Settings)


@attrs.frozen
class Method(Generic[P, R]):
    """One row of the table.

    Attributes:
        name: what clients call.
        params: the class of its parameters.
        result: the class of its result, which `codec.to_data` shows.
        handler: does it.
        doc: one line for people.
        capability: what has to be on for all of it to work; None for what works everywhere. Without it the error is
            that of the capability, at once or for a session that is not in memory.
        urgent: whether it is let through where other calls are refused for being too many.
        bulky: whether its result may be large: of one connection few such calls run at once, and none while its client
            has much to read.
    """

    name: str
    params: type[P]
    result: type[R]
    handler: Callable[[Host, Caller, P], Awaitable[R]]
    doc: str
    capability: Capability | None = None
    urgent: bool = False
    bulky: bool = False

    def decode(self, params: object) -> P:
        """Return checked parameters. Raises InvalidParamsError that names the bad field, as in `$.budget.max_steps`."""
        return codec.from_data(self.params, params)

    async def call(self, host: Host, caller: Caller, params: P) -> Any:
        """Return the result as plain data. Raises WarrenError."""
        return codec.to_data(await self.handler(host, caller, params))


async def _initialize(host: Host, _caller: Caller, _params: Initialize) -> Greeting:
    server = ServerInfo("warren", metadata.version("warren"))
    return Greeting(server, PROTOCOL, tuple(METHODS), host.service.capabilities())


async def _initialized(_host: Host, _caller: Caller, _params: NoParams) -> Nothing:
    return Nothing()


async def _create(host: Host, caller: Caller, params: CreateSession) -> TurnResult:
    said, tools = given(SessionRequest, params), caller.tools()
    return await caller.stream(
        None,
        lambda on_event: host.service.create_session(**{"prompt": None} | said, extra_tools=tools, on_event=on_event),
    )


async def _resume(host: Host, _caller: Caller, params: SessionParams) -> SessionView:
    return await host.service.resume(params.session_id)


async def _read(host: Host, _caller: Caller, params: SessionParams) -> SessionView:
    return await host.service.read(params.session_id)


async def _list(host: Host, _caller: Caller, params: ListSessions) -> SessionPage:
    return await host.service.list(**attrs.asdict(params, recurse=False))


async def _history(host: Host, _caller: Caller, params: ReadHistory) -> HistoryPage:
    return await host.service.history(params.session_id, offset=params.offset, limit=params.limit)


async def _archive(host: Host, _caller: Caller, params: SessionParams) -> Archived:
    await host.service.archive(params.session_id)
    return Archived(archived=True)


async def _delete(host: Host, _caller: Caller, params: SessionParams) -> Deleted:
    await host.service.delete(params.session_id)
    return Deleted(deleted=True)


async def _compact(host: Host, _caller: Caller, params: CompactSession) -> CompactionEntry:
    return await host.service.compact(params.session_id, instructions=params.instructions)


async def _fork(host: Host, _caller: Caller, params: ForkSession) -> SessionView:
    return await host.service.fork(params.session_id, at=params.at, labels=params.labels, title=params.title)


async def _label(host: Host, _caller: Caller, params: LabelSession) -> SessionView:
    return await host.service.label(params.session_id, params.labels, title=params.title)


async def _subscribe(_host: Host, caller: Caller, params: Subscribe) -> Subscribed:
    await caller.subscribe(params.session_id, params.after_seq)
    return Subscribed(subscribed=True)


async def _unsubscribe(_host: Host, caller: Caller, params: SessionParams) -> Unsubscribed:
    return Unsubscribed(caller.unsubscribe(params.session_id))


async def _start_turn(host: Host, caller: Caller, params: StartTurn) -> TurnResult:
    said, tools = given(TurnRequest, params), caller.tools()
    return await caller.stream(
        params.session_id, lambda on_event: host.service.start_turn(**said, extra_tools=tools, on_event=on_event)
    )


async def _interrupt(host: Host, _caller: Caller, params: SessionParams) -> Interrupted:
    await host.service.interrupt(params.session_id)
    return Interrupted(interrupted=True)


async def _approve(host: Host, _caller: Caller, params: ApproveTool) -> Decided:
    allow = params.decision == "allow"
    await host.service.approve_tool(params.session_id, params.call_id, allow=allow, reason=params.reason)
    return Decided(decided=True)


async def _inject(host: Host, _caller: Caller, params: InjectContext) -> Injected:
    await host.service.inject_context(**attrs.asdict(params))
    return Injected(injected=True)


async def _inputs(host: Host, _caller: Caller, params: SessionParams) -> Inputs:
    return Inputs(await host.service.inputs(params.session_id))


async def _withdraw(host: Host, _caller: Caller, params: WithdrawInput) -> Withdrawn:
    await host.service.withdraw(params.session_id, params.input_id)
    return Withdrawn(withdrawn=True)


async def _send(host: Host, _caller: Caller, params: SendToPeer) -> Sent:
    return Sent(await host.service.send_message(params.session_id, params.to, params.message()))


async def _peers(host: Host, _caller: Caller, params: SessionParams) -> Peers:
    return Peers(await host.service.peers(params.session_id))


async def _search(host: Host, _caller: Caller, params: SearchMemory) -> MemoryHits:
    return MemoryHits(await host.service.search_memory(**attrs.asdict(params)))


async def _capabilities(host: Host, _caller: Caller, _params: NoParams) -> Capabilities:
    return host.service.capabilities()


async def _config(host: Host, _caller: Caller, _params: NoParams) -> Settings:
    return host.settings


async def _health(host: Host, _caller: Caller, _params: NoParams) -> Health:
    return host.service.health()


async def _register(_host: Host, caller: Caller, params: RegisterTools) -> Registered:
    caller.register(params.tools)
    return Registered(len(params.tools))


_STORE: Final = "session-store"
_TABLE: Final[tuple[Method[Any, Any], ...]] = (
    Method(
        "initialize", Initialize, Greeting, _initialize, "Say hello; the answer names the server and what it can do."
    ),
    Method(
        "initialized", NoParams, Nothing, _initialized, "Notification that the client is ready; nothing depends on it."
    ),
    Method(
        "session/create",
        CreateSession,
        TurnResult,
        _create,
        "Create a session and run its first turn, if there is a prompt.",
    ),
    Method(
        "session/resume", SessionParams, SessionView, _resume, "Load a stored session without running a turn.", _STORE
    ),
    Method("session/read", SessionParams, SessionView, _read, "Show a session as of its last finished turn."),
    Method("session/list", ListSessions, SessionPage, _list, "List sessions, the one changed last first.", bulky=True),
    Method(
        "session/history",
        ReadHistory,
        HistoryPage,
        _history,
        "Show messages of finished turns, oldest first.",
        bulky=True,
    ),
    Method("session/archive", SessionParams, Archived, _archive, "Retire a session; a running turn ends first."),
    Method("session/delete", SessionParams, Deleted, _delete, "Remove a session and all that it stored.", _STORE),
    Method(
        "session/compact",
        CompactSession,
        CompactionEntry,
        _compact,
        "Summarise what the model sees of a session, now.",
        "session-compaction",
    ),
    Method(
        "session/fork",
        ForkSession,
        SessionView,
        _fork,
        "Make a session of the beginning of another one; nothing is run again.",
    ),
    Method(
        "session/label", LabelSession, SessionView, _label, "Set labels or the title of a session, or take labels away."
    ),
    Method(
        "session/inject_context",
        InjectContext,
        Injected,
        _inject,
        "Tell a session's model something that nobody said; it begins no turn.",
    ),
    Method(
        "session/inputs",
        SessionParams,
        Inputs,
        _inputs,
        "Show what waits to be said to a session, in order.",
        bulky=True,
    ),
    Method(
        "session/withdraw",
        WithdrawInput,
        Withdrawn,
        _withdraw,
        "Take back what waits; a turn that has taken it is not touched.",
    ),
    Method(
        "session/subscribe",
        Subscribe,
        Subscribed,
        _subscribe,
        "Get a session's events; again to go on from another place.",
    ),
    Method("session/unsubscribe", SessionParams, Unsubscribed, _unsubscribe, "Stop a subscription."),
    Method("turn/start", StartTurn, TurnResult, _start_turn, "Run a turn; the answer comes after its last event."),
    Method(
        "turn/interrupt",
        SessionParams,
        Interrupted,
        _interrupt,
        "End the running turn; the answer comes when it ended.",
        urgent=True,
    ),
    Method(
        "tool/approve",
        ApproveTool,
        Decided,
        _approve,
        "Let a tool call that waits for it run, or refuse it.",
        urgent=True,
    ),
    Method("peer/send", SendToPeer, Sent, _send, "Say something to another session, in a session's name."),
    Method("peer/list", SessionParams, Peers, _peers, "Show whom a session trusts, and whom of them it can reach."),
    Method(
        "tools/register",
        RegisterTools,
        Registered,
        _register,
        "Offer tools that the client runs itself, in the turns it starts from now on.",
    ),
    Method(
        "memory/search",
        SearchMemory,
        MemoryHits,
        _search,
        "Find what was said before; one session, or the whole project.",
        "memory-store",
        bulky=True,
    ),
    Method("capabilities/get", NoParams, Capabilities, _capabilities, "Tell which optional capabilities are on."),
    Method("config/get", NoParams, Settings, _config, "Show the settings that are no secrets."),
    Method("health", NoParams, Health, _health, "Tell how the runtime does."),
)

METHODS: Final[Mapping[str, Method[Any, Any]]] = {method.name: method for method in _TABLE}
"""Every method by its name, in the order of the documentation."""
