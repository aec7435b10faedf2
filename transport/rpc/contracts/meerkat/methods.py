"""The handlers of Meerkat's methods that need no more of a connection than its caller."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import attrs
import trio

from warren.base.errors import (
    InvalidParamsError,
    MemoryDisabledError,
    SessionNotFoundError,
    SessionNotRunningError,
    WarrenError,
)
from warren.base.fields import FieldValueError
from warren.base.ids import new_session_id
from warren.base.values import frozen
from warren.calls.base import SessionRef
from warren.calls.turns import TurnCall
from warren.conversation.views import TurnResult
from warren.transport.rpc.client_tools import ClientTools
from warren.transport.rpc.contracts.meerkat import results
from warren.transport.rpc.contracts.meerkat.catalog import provider_of
from warren.transport.rpc.contracts.meerkat.params import (
    BLANK_LINE,
    NOT_SUPPORTED,
    ConfigParams,
    CreateParams,
    HistoryParams,
    ListParams,
    text_of,
)
from warren.transport.rpc.methods import METHODS, Caller, Host, Method, RunTurn, register

DEFAULT_PAGE: Final = 100
SWITCHES: Final = {"enable_builtins": "builtins", "enable_shell": "shell"}
"""Options of `session/create` that switch a kind of tools on."""
DEFERRED: Final = "meerkat:deferred-prompt:"
"""The prefix of the idempotency key under which the prompt of a deferred session waits in the inbox."""

P = TypeVar("P")
R = TypeVar("R")


@frozen
class WithoutEvents(Caller):
    """A caller that gets only the results of the turns that it starts, and not their events."""

    _caller: Caller

    async def stream(self, _session_id: str | None, run: RunTurn) -> TurnResult:
        """Run the turn without its events. A subscription of the caller still gets them."""
        return await run(None)

    async def subscribe(self, session_id: str, after_seq: int | None) -> int:
        return await self._caller.subscribe(session_id, after_seq)

    def unsubscribe(self, session_id: str) -> bool:
        return self._caller.unsubscribe(session_id)

    @property
    def tools(self) -> ClientTools | None:
        return self._caller.tools


def row_of(
    name: str, params: type[P], result: type[R], handler: Callable[[Host, Caller, P], Awaitable[R]]
) -> Method[P, R]:
    """Return the row of a method of Meerkat; one that Warren has as well keeps its description and its limits."""
    doc = METHODS[name].doc if name in METHODS else f"Meerkat's {name}."
    bulky = name in METHODS and METHODS[name].bulky
    return Method(name, params, result, with_meerkats_errors(handler), doc, bulky=bulky)


def with_meerkats_errors(
    handler: Callable[[Host, Caller, P], Awaitable[R]],
) -> Callable[[Host, Caller, P], Awaitable[R]]:
    """Return a handler whose errors have Meerkat's texts: some of its clients compare them."""

    async def worded(host: Host, caller: Caller, params: P) -> R:
        try:
            return await handler(host, caller, params)
        except SessionNotFoundError as exc:
            if exc.cause is not None:
                raise  # archived or deleted: the error says so
            raise SessionNotFoundError(f"Session not found: {exc.session_id}", session_id=exc.session_id) from exc
        except FieldValueError as exc:  # the field has bounds here that it does not have in Meerkat's protocol
            raise exc.refusal() from exc

    return worded


async def config(host: Host, _caller: Caller, _params: ConfigParams) -> results.ConfigResult:
    """Return the settings that clients may know."""
    return results.ConfigResult(host.settings, 0)


async def create(host: Host, caller: Caller, params: CreateParams) -> TurnResult:
    """Create a session, and run its first turn unless that is deferred: then the prompt waits for the next one.

    Raises MemoryDisabledError and InvalidParamsError for a feature that is asked for and not there.
    """
    if params.enable_memory and not host.service.capabilities().memory_store:
        raise MemoryDisabledError("semantic memory is disabled: the runtime was started without it")
    tools = host.service.capabilities().tools
    for field, category in SWITCHES.items():
        if getattr(params, field) and tools.get(category, "unavailable") == "unavailable":
            raise InvalidParamsError.at(f"$.{field}", NOT_SUPPORTED)
    request = params.request()
    register(caller, params.external_tools or ())
    events_to = WithoutEvents(caller) if params.session_events is False else caller
    result: TurnResult = await METHODS["session/create"].handler(host, events_to, request)
    if params.initial_turn == "deferred" and (deferred := text_of(params.prompt)).strip():
        await _defer(host, result.session_id, deferred)
    return result


async def start_turn(host: Host, caller: Caller, params: TurnCall) -> TurnResult:
    """Run a turn. In the first one of a deferred session, the prompt of `session/create` comes before that of the turn.

    The prompt waits in the session's inbox, so that it survives the process. It is put back if the turn fails and
    leaves nothing in the history, or if the caller goes away before the turn has begun.
    """
    service = host.service
    deferred = next(
        (each for each in await service.inputs(params.session_id) if (each.key or "").startswith(DEFERRED)), None
    )
    if deferred is None:
        result: TurnResult = await METHODS["turn/start"].handler(host, caller, params)
        return result
    before = (await service.read(params.session_id)).state.message_count
    await service.withdraw(params.session_id, deferred.input_id)
    whole = attrs.evolve(params, prompt=BLANK_LINE.join(filter(str.strip, (deferred.text, params.prompt))))
    try:
        result = await METHODS["turn/start"].handler(host, caller, whole)
    except WarrenError:
        if (await service.read(params.session_id)).state.message_count == before:
            await _defer(host, params.session_id, deferred.text)
        raise
    except trio.Cancelled:
        # Shielded, for nobody else has the prompt now. A turn that runs has taken it, and goes on.
        with trio.CancelScope(shield=True), contextlib.suppress(WarrenError):
            state = (await service.read(params.session_id)).state
            if state.message_count == before and not state.is_active:
                await _defer(host, params.session_id, deferred.text)
        raise
    return result


async def _defer(host: Host, session_id: str, prompt: str) -> None:
    await host.service.inject_context(session_id, prompt, idempotency_key=f"{DEFERRED}{new_session_id()}")


async def interrupt(host: Host, _caller: Caller, params: SessionRef) -> results.InterruptResult:
    """Interrupt the running turn; it is no error if there is none."""
    try:
        await host.service.interrupt(params.session_id)
    except SessionNotRunningError:
        return results.InterruptResult(params.session_id, interrupted=False)
    return results.InterruptResult(params.session_id, interrupted=True)


async def list_sessions(host: Host, _caller: Caller, params: ListParams) -> results.ListResult:
    """Return a page of sessions."""
    found = await host.service.list(offset=params.offset or 0, limit=params.limit or DEFAULT_PAGE, labels=params.labels)
    return results.ListResult(tuple(map(results.session_row, found.sessions)))


async def read(host: Host, _caller: Caller, params: SessionRef) -> results.ReadResult:
    """Return the state of a session."""
    view = await host.service.read(params.session_id)
    return results.read_result(view, view.state.provider or provider_of(view.state.model))


async def history(host: Host, _caller: Caller, params: HistoryParams) -> results.HistoryResult:
    """Return a page of a session's messages."""
    limit = params.limit or DEFAULT_PAGE
    found = await host.service.history(params.session_id, offset=params.offset, limit=limit)
    return results.history_result(found, limit)
