"""Meerkat's protocol, for the clients of `rkat-rpc`: a table of its methods, which call those of Warren."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final, TypeVar

import attrs

from warren.errors import (
    InvalidParamsError,
    MemoryDisabledError,
    SessionNotFoundError,
    SessionNotRunningError,
    WarrenError,
)
from warren.events import Envelope, StreamTruncated
from warren.fields import FieldValueError
from warren.ids import new_session_id
from warren.options import TurnRequest
from warren.requests import SessionRef
from warren.tools import Tool
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.contracts import meerkat_params as asked
from warren.transport.rpc.contracts import meerkat_views as shown
from warren.transport.rpc.contracts.meerkat_catalog import Catalog, provider_of, providers
from warren.transport.rpc.contracts.meerkat_events import enveloped, flat
from warren.transport.rpc.contracts.meerkat_versions import Version, version_said
from warren.transport.rpc.dialect import EVENT, missing
from warren.transport.rpc.methods import METHODS, Caller, Host, Method, RunTurn
from warren.transport.rpc.params import Initialize
from warren.values import define, frozen
from warren.views import TurnResult

STREAM_EVENT: Final = "session/stream_event"
STREAM_END: Final = "session/stream_end"
DEFAULT_PAGE: Final = 100
ENVELOPED_SINCE: Final = (0, 8, 1)
"""From this version on, the events of turns that the client started come in an envelope too."""
IN_CONTENT_SINCE: Final = (0, 7, 0)
"""From this version on, the injected context is in `content`; in earlier ones it is in `text`."""
APPLIED_SINCE: Final = (0, 8, 11)
"""From this version on, the status of injected context is `applied`; in earlier ones it is `staged`."""
SAME: Final = ("initialized", "session/archive", "tools/register", "health")
"""Methods that are the same in both protocols."""
ENABLED: Final = {"enable_builtins": "builtins", "enable_shell": "shell"}
"""Options of `session/create` that switch a kind of tools on."""
MISSING: Final = "unavailable"
DEFERRED: Final = "meerkat:deferred-prompt:"
"""The prefix of the idempotency key under which the prompt of a deferred session waits in the inbox."""

P = TypeVar("P")
R = TypeVar("R")

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class Meerkat:
    """Meerkat's protocol on one connection.

    Attributes:
        version: the version of the protocol that the client speaks.
        pinned: whether a client that names a version of another line is refused. If not, its version is taken.
        methods: the methods that the client can call, by name.
    """

    version: Version
    pinned: bool = True
    methods: Mapping[str, Method[Any, Any]] = attrs.field(init=False)
    _streams: dict[str, str] = attrs.field(factory=dict, init=False)
    _numbers: "count[int]" = attrs.field(factory=lambda: count(1), init=False)
    _quiet: set[str] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        same = (attrs.evolve(METHODS[name], handler=_worded(METHODS[name].handler)) for name in SAME)
        rows = (*same, *self._rows())
        self.methods = {row.name: row for row in rows}

    def frames(self, envelope: Envelope) -> Sequence[bytes]:
        """Return the event for the client that started the turn, and once more for each stream of the session."""
        try:
            return self._frames(envelope)
        except Exception:
            if isinstance(envelope.event, StreamTruncated):
                raise
            logger.exception("session %s: event %d cannot be encoded", envelope.session_id, envelope.seq)
            return self._frames(missing(envelope))

    def _frames(self, envelope: Envelope) -> Sequence[bytes]:
        event = flat(envelope.event, self.version)
        if event is None:
            return ()
        wrapped = enveloped(envelope, event)
        frames = []
        if envelope.session_id not in self._quiet:
            own = wrapped if self.version >= ENVELOPED_SINCE else event
            frames.append(jsonrpc.notification(EVENT, {"session_id": envelope.session_id, "event": own}))
        for stream_id in self._streams_of(envelope.session_id):
            params = {"stream_id": stream_id, "session_id": envelope.session_id, "sequence": envelope.seq}
            frames.append(jsonrpc.notification(STREAM_EVENT, params | {"event": wrapped}))
        return frames

    def ended(self, session_id: str) -> Sequence[bytes]:
        """Return a notification of its end for each stream of the session."""
        ended = self._streams_of(session_id)
        for stream_id in ended:
            del self._streams[stream_id]
        self._quiet.discard(session_id)
        return [jsonrpc.notification(STREAM_END, {"stream_id": each, "session_id": session_id}) for each in ended]

    def _streams_of(self, session_id: str) -> list[str]:
        return [stream_id for stream_id, of in self._streams.items() if of == session_id]

    @property
    def _contract(self) -> str:
        return ".".join(map(str, self.version))

    def _rows(self) -> tuple[Method[Any, Any], ...]:
        return (
            _row("initialize", asked.Hello, shown.Hello, self._initialize),
            _row("capabilities/get", asked.ReadConfig, shown.CapabilityList, self._capabilities),
            _row("config/get", asked.ReadConfig, shown.Config, _config),
            _row("models/catalog", asked.ReadConfig, Catalog, self._catalog),
            _row("session/create", asked.Create, TurnResult, _create),
            _row("session/list", asked.Page, shown.Rows, _list),
            _row("session/read", SessionRef, shown.Details, _read),
            _row("session/history", asked.HistoryPage, shown.Transcript, _history),
            _row("session/inject_context", asked.InjectContext, shown.Staged, self._inject),
            _row("session/stream_open", asked.OpenStream, shown.StreamOpened, self._open),
            _row("session/stream_close", asked.CloseStream, shown.StreamClosed, self._close),
            _row("turn/start", asked.Start, TurnResult, self._start),
            attrs.evolve(_row("turn/interrupt", SessionRef, shown.InterruptedOrNot, _interrupt), urgent=True),
        )

    async def _initialize(self, host: Host, caller: Caller, params: asked.Hello) -> shown.Hello:
        version = version_said(params.contract_version, params.client_info)
        if version is not None:
            self._agree(version)
        hello = await METHODS["initialize"].handler(host, caller, Initialize(params.client_info))
        return shown.Hello(attrs.asdict(hello.server_info), self._contract, tuple(self.methods))

    def _agree(self, version: Version) -> None:
        """Take the client's version. Raises InvalidParamsError if the command line names another line of versions."""
        if self.pinned and version[:2] != self.version[:2]:
            named = ".".join(map(str, version))
            problem = f"the client speaks {named}, this server was started with --contract {self._contract}"
            raise InvalidParamsError(f"$.contract_version: {problem}", path="$.contract_version")
        self.version = version

    async def _capabilities(self, host: Host, _caller: Caller, _params: asked.ReadConfig) -> shown.CapabilityList:
        return shown.CapabilityList(self._contract, shown.capability_rows(host.service.capabilities()))

    async def _catalog(self, host: Host, _caller: Caller, _params: asked.ReadConfig) -> Catalog:
        return Catalog(self._contract, providers(host.settings))

    async def _open(self, _host: Host, caller: Caller, params: asked.OpenStream) -> shown.StreamOpened:
        await caller.subscribe(params.session_id, None)
        stream_id = f"stream-{next(self._numbers)}"
        self._streams[stream_id] = params.session_id
        return shown.StreamOpened(stream_id, opened=True)

    async def _close(self, _host: Host, caller: Caller, params: asked.CloseStream) -> shown.StreamClosed:
        session_id = self._streams.pop(params.stream_id, None)
        if session_id is not None and not self._streams_of(session_id):
            caller.unsubscribe(session_id)
            self._quiet.discard(session_id)
        return shown.StreamClosed(params.stream_id, closed=True, already_closed=session_id is None)

    async def _start(self, host: Host, caller: Caller, params: asked.Start) -> TurnResult:
        if params.session_events is False:
            caller = _Quiet(caller)
            if self._streams_of(params.session_id):
                self._quiet.add(params.session_id)
        else:
            self._quiet.discard(params.session_id)
        return await _start_turn(host, caller, params.translated())

    async def _inject(self, host: Host, _caller: Caller, params: asked.InjectContext) -> shown.Staged:
        words = params.context("content" if self.version >= IN_CONTENT_SINCE else "text")
        fresh = await host.service.inject_context(
            params.session_id, words, source=params.source, idempotency_key=params.idempotency_key
        )
        taken = "applied" if self.version >= APPLIED_SINCE else "staged"
        return shown.Staged(taken if fresh else "duplicate")


@frozen
class _Quiet(Caller):
    """A caller that gets only the results of the turns that it starts, and not their events."""

    _caller: Caller

    async def stream(self, _session_id: str | None, run: RunTurn) -> TurnResult:
        """Run the turn without its events. A subscription of the caller still gets them."""
        return await run(None)

    async def subscribe(self, session_id: str, after_seq: int | None) -> None:
        """See Caller."""
        await self._caller.subscribe(session_id, after_seq)

    def unsubscribe(self, session_id: str) -> bool:
        """See Caller."""
        return self._caller.unsubscribe(session_id)

    def tools(self) -> Sequence[Tool]:
        """See Caller."""
        return self._caller.tools()


def _row(
    name: str, params: type[P], result: type[R], handler: Callable[[Host, Caller, P], Awaitable[R]]
) -> Method[P, R]:
    doc = METHODS[name].doc if name in METHODS else f"Meerkat's {name}."
    bulky = name in METHODS and METHODS[name].bulky
    return Method(name, params, result, _worded(handler), doc, bulky=bulky)


def _worded(handler: Callable[[Host, Caller, P], Awaitable[R]]) -> Callable[[Host, Caller, P], Awaitable[R]]:
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


async def _config(host: Host, _caller: Caller, _params: asked.ReadConfig) -> shown.Config:
    return shown.Config(host.settings, 0)


async def _create(host: Host, caller: Caller, params: asked.Create) -> TurnResult:
    if params.enable_memory and not host.service.capabilities().memory_store:
        raise MemoryDisabledError("semantic memory is disabled: the runtime was started without it")
    there = host.service.capabilities().tools
    for field, category in ENABLED.items():
        if getattr(params, field) and there.get(category, MISSING) == MISSING:
            raise InvalidParamsError(f"$.{field}: {asked.NOT_HERE}", path=f"$.{field}")
    request = params.translated()
    caller.register(params.external_tools or ())
    teller = _Quiet(caller) if params.session_events is False else caller
    result: TurnResult = await METHODS["session/create"].handler(host, teller, request)
    if params.initial_turn == "deferred" and (kept := asked.text_of(params.prompt)).strip():
        await _keep_prompt(host, result.session_id, kept)
    return result


async def _start_turn(host: Host, caller: Caller, params: TurnRequest) -> TurnResult:
    """Run a turn. In the first one of a deferred session, the prompt of `session/create` comes before that of the turn.

    The prompt waits in the session's inbox, so that it survives the process. If the turn fails and leaves nothing in
    the history, the prompt is put back.
    """
    service = host.service
    kept = next(
        (each for each in await service.inputs(params.session_id) if (each.key or "").startswith(DEFERRED)), None
    )
    if kept is None:
        result: TurnResult = await METHODS["turn/start"].handler(host, caller, params)
        return result
    before = (await service.read(params.session_id)).state.message_count
    await service.withdraw(params.session_id, kept.input_id)
    whole = attrs.evolve(params, prompt=asked.BLANK_LINE.join(filter(str.strip, (kept.text, params.prompt))))
    try:
        result = await METHODS["turn/start"].handler(host, caller, whole)
    except WarrenError:
        if (await service.read(params.session_id)).state.message_count == before:
            await _keep_prompt(host, params.session_id, kept.text)
        raise
    return result


async def _keep_prompt(host: Host, session_id: str, prompt: str) -> None:
    await host.service.inject_context(session_id, prompt, idempotency_key=f"{DEFERRED}{new_session_id()}")


async def _interrupt(host: Host, _caller: Caller, params: SessionRef) -> shown.InterruptedOrNot:
    try:
        await host.service.interrupt(params.session_id)
    except SessionNotRunningError:
        return shown.InterruptedOrNot(params.session_id, interrupted=False)
    return shown.InterruptedOrNot(params.session_id, interrupted=True)


async def _list(host: Host, _caller: Caller, params: asked.Page) -> shown.Rows:
    found = await host.service.list(offset=params.offset or 0, limit=params.limit or DEFAULT_PAGE, labels=params.labels)
    return shown.Rows(tuple(map(shown.row, found.sessions)))


async def _read(host: Host, _caller: Caller, params: SessionRef) -> shown.Details:
    view = await host.service.read(params.session_id)
    return shown.details(view, view.state.provider or provider_of(view.state.model))


async def _history(host: Host, _caller: Caller, params: asked.HistoryPage) -> shown.Transcript:
    limit = params.limit or DEFAULT_PAGE
    found = await host.service.history(params.session_id, offset=params.offset, limit=limit)
    return shown.transcript(found, limit)
