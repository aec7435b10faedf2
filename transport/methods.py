"""The one table of methods: name, parameters, handler, a line of documentation. Every surface calls these."""

from collections.abc import Awaitable, Callable, Mapping
from importlib import metadata
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import attrs

from warren import codec
from warren.budget import Budget
from warren.compaction_config import CompactionConfig
from warren.fields import FieldValueError, fits, not_negative, positive
from warren.memory import MAX_HITS
from warren.records import CompactionEntry
from warren.service import Capabilities, Health, OnEvent, SessionService
from warren.views import HistoryPage, SessionPage, SessionView, TurnResult

PROTOCOL: Final = "2.0"
MAX_PAGE: Final = 1_000

P = TypeVar("P")


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


@attrs.frozen
class Host:
    """What the methods act on.

    Attributes:
        service: the runtime.
        settings: what `config/get` shows, plain data without secrets.
    """

    service: SessionService
    settings: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class Method(Generic[P]):
    """One row of the table.

    Attributes:
        name: what clients call.
        params: the class of its parameters.
        handler: does it; what it returns is shown as `codec.to_data` has it.
        doc: one line for people.
        urgent: whether it is let through where other calls are refused for being too many.
    """

    name: str
    params: type[P]
    handler: Callable[[Host, Caller, P], Awaitable[object]]
    doc: str
    urgent: bool = False

    def decode(self, params: object) -> P:
        """Return checked parameters. Raises InvalidParamsError that names the bad field, as in `$.budget.max_steps`."""
        return codec.from_data(self.params, params)

    async def call(self, host: Host, caller: Caller, params: P) -> Any:
        """Return the result as plain data. Raises WarrenError."""
        return codec.to_data(await self.handler(host, caller, params))


def _page(_instance: object, attribute: "attrs.Attribute[Any]", value: int) -> None:
    if not 1 <= value <= MAX_PAGE:
        raise FieldValueError(attribute.name, f"must be from 1 to {MAX_PAGE}")


def _hits(_instance: object, attribute: "attrs.Attribute[Any]", value: int) -> None:
    if not 1 <= value <= MAX_HITS:
        raise FieldValueError(attribute.name, f"must be from 1 to {MAX_HITS}")


@attrs.frozen
class NoParams:
    """Of a method that takes none."""


@attrs.frozen
class Initialize:
    """Of `initialize`: `client_info` is what the client says of itself, `{name, version, …}`."""

    client_info: Mapping[str, Any] | None = None


@attrs.frozen
class SessionParams:
    """Of a method that names one session."""

    session_id: str


@attrs.frozen
class CreateSession:
    """Of `session/create`: `prompt` may be null, which creates the session without a turn; the rest has defaults."""

    prompt: str | None
    model: str | None = None
    provider: str | None = None
    system_prompt: str | None = None
    max_tokens: int | None = attrs.field(default=None, validator=[positive, fits])
    labels: Mapping[str, str] | None = None
    budget: Budget | None = None
    compaction: CompactionConfig | None = None
    tools: tuple[str, ...] | None = None


@attrs.frozen
class ListSessions:
    """Of `session/list`: a page of `limit` rows from `offset` on, of sessions that carry all of `labels`."""

    offset: int = attrs.field(default=0, validator=[not_negative, fits])
    limit: int = attrs.field(default=50, validator=_page)
    labels: Mapping[str, str] | None = None
    include_archived: bool = False


@attrs.frozen
class ReadHistory:
    """Of `session/history`: `limit` messages from `offset` on, oldest first."""

    session_id: str
    offset: int = attrs.field(default=0, validator=[not_negative, fits])
    limit: int = attrs.field(default=100, validator=_page)


@attrs.frozen
class CompactSession:
    """Of `session/compact`: `instructions` tell the model what the summary has to mind."""

    session_id: str
    instructions: str | None = None


@attrs.frozen
class Subscribe:
    """Of `session/subscribe`: from the next event on, or from the log after `after_seq` (0: everything)."""

    session_id: str
    after_seq: int | None = attrs.field(default=None, validator=[not_negative, fits])


@attrs.frozen
class StartTurn:
    """Of `turn/start`: the options hold for this turn alone."""

    session_id: str
    prompt: str
    model: str | None = None
    provider: str | None = None
    max_tokens: int | None = attrs.field(default=None, validator=[positive, fits])
    budget: Budget | None = None


@attrs.frozen
class SearchMemory:
    """Of `memory/search`: the best `limit` hits of one session, or of all where `scope` is `project`."""

    query: str
    session_id: str | None = None
    scope: Literal["session", "project"] = "session"
    limit: int = attrs.field(default=5, validator=_hits)


async def _initialize(host: Host, _caller: Caller, _params: Initialize) -> object:
    return {
        "server_info": {"name": "warren", "version": metadata.version("warren")},
        "protocol": PROTOCOL,
        "methods": list(METHODS),
        "capabilities": host.service.capabilities(),
    }


async def _initialized(_host: Host, _caller: Caller, _params: NoParams) -> object:
    return {}


async def _create(host: Host, caller: Caller, params: CreateSession) -> TurnResult:
    options = attrs.asdict(params, recurse=False)
    return await caller.stream(None, lambda on_event: host.service.create_session(**options, on_event=on_event))


async def _resume(host: Host, _caller: Caller, params: SessionParams) -> SessionView:
    return await host.service.resume(params.session_id)


async def _read(host: Host, _caller: Caller, params: SessionParams) -> SessionView:
    return await host.service.read(params.session_id)


async def _list(host: Host, _caller: Caller, params: ListSessions) -> SessionPage:
    return await host.service.list(**attrs.asdict(params, recurse=False))


async def _history(host: Host, _caller: Caller, params: ReadHistory) -> HistoryPage:
    return await host.service.history(params.session_id, offset=params.offset, limit=params.limit)


async def _archive(host: Host, _caller: Caller, params: SessionParams) -> object:
    await host.service.archive(params.session_id)
    return {"archived": True}


async def _delete(host: Host, _caller: Caller, params: SessionParams) -> object:
    await host.service.delete(params.session_id)
    return {"deleted": True}


async def _compact(host: Host, _caller: Caller, params: CompactSession) -> CompactionEntry:
    return await host.service.compact(params.session_id, instructions=params.instructions)


async def _subscribe(_host: Host, caller: Caller, params: Subscribe) -> object:
    await caller.subscribe(params.session_id, params.after_seq)
    return {"subscribed": True}


async def _unsubscribe(_host: Host, caller: Caller, params: SessionParams) -> object:
    return {"unsubscribed": caller.unsubscribe(params.session_id)}


async def _start_turn(host: Host, caller: Caller, params: StartTurn) -> TurnResult:
    options = attrs.asdict(params, recurse=False)
    return await caller.stream(
        params.session_id, lambda on_event: host.service.start_turn(**options, on_event=on_event)
    )


async def _interrupt(host: Host, _caller: Caller, params: SessionParams) -> object:
    await host.service.interrupt(params.session_id)
    return {"interrupted": True}


async def _search(host: Host, _caller: Caller, params: SearchMemory) -> object:
    return {"hits": await host.service.search_memory(**attrs.asdict(params))}


async def _capabilities(host: Host, _caller: Caller, _params: NoParams) -> Capabilities:
    return host.service.capabilities()


async def _config(host: Host, _caller: Caller, _params: NoParams) -> object:
    return host.settings


async def _health(host: Host, _caller: Caller, _params: NoParams) -> Health:
    return host.service.health()


_TABLE: Final[tuple[Method[Any], ...]] = (
    Method("initialize", Initialize, _initialize, "Say hello; the answer names the server and what it can do."),
    Method("initialized", NoParams, _initialized, "Notification that the client is ready; nothing depends on it."),
    Method("session/create", CreateSession, _create, "Create a session and run its first turn, if there is a prompt."),
    Method("session/resume", SessionParams, _resume, "Load a stored session without running a turn."),
    Method("session/read", SessionParams, _read, "Show a session as of its last finished turn."),
    Method("session/list", ListSessions, _list, "List sessions, the one changed last first."),
    Method("session/history", ReadHistory, _history, "Show messages of finished turns, oldest first."),
    Method("session/archive", SessionParams, _archive, "Retire a session; a running turn ends first."),
    Method("session/delete", SessionParams, _delete, "Remove a session and all that it stored."),
    Method("session/compact", CompactSession, _compact, "Summarise what the model sees of a session, now."),
    Method("session/subscribe", Subscribe, _subscribe, "Get a session's events; again to go on from another place."),
    Method("session/unsubscribe", SessionParams, _unsubscribe, "Stop a subscription."),
    Method("turn/start", StartTurn, _start_turn, "Run a turn; the answer comes after its last event."),
    Method("turn/interrupt", SessionParams, _interrupt, "End the running turn; the answer comes when it ended.", True),
    Method("memory/search", SearchMemory, _search, "Find what was said before; one session, or the whole project."),
    Method("capabilities/get", NoParams, _capabilities, "Tell which optional capabilities are on."),
    Method("config/get", NoParams, _config, "Show the settings that are no secrets."),
    Method("health", NoParams, _health, "Tell how the runtime does."),
)

METHODS: Final[Mapping[str, Method[Any]]] = {method.name: method for method in _TABLE}
"""Every method by its name, in the order of the documentation."""
