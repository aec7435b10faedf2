"""Meerkat's protocol, as its clients speak it to `rkat-rpc`: its own table of methods, on top of ours."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final, TypeVar

import attrs

from warren.errors import InvalidParamsError, MemoryDisabledError, SessionNotRunningError
from warren.events import Envelope, StreamTruncated
from warren.fields import FieldValueError
from warren.transport import jsonrpc
from warren.transport.contracts import meerkat_params as asked
from warren.transport.contracts import meerkat_views as shown
from warren.transport.contracts.meerkat_catalog import Catalog, providers
from warren.transport.contracts.meerkat_events import enveloped, flat
from warren.transport.dialect import EVENT, missing
from warren.transport.methods import METHODS, Caller, Host, Method
from warren.transport.params import Initialize, InjectContext, ListSessions, ReadHistory, SessionParams
from warren.views import TurnResult

STREAM_EVENT: Final = "session/stream_event"
STREAM_END: Final = "session/stream_end"
DEFAULT_PAGE: Final = 100
ENVELOPED_SINCE: Final = (0, 8, 1)
"""From this version on, the events of own turns come in an envelope too."""
SAME: Final = ("initialized", "session/archive", "tools/register", "health")
ENABLED: Final = {"enable_builtins": "builtins", "enable_shell": "shell"}
"""Options of `session/create` that switch a kind of tools on."""
MISSING: Final = "unavailable"
"""Methods that are the same in both protocols."""

Version = tuple[int, int, int]
P = TypeVar("P")
R = TypeVar("R")

logger: Final = logging.getLogger(__name__)


@attrs.define(eq=False)
class Meerkat:
    """Meerkat's protocol on one connection.

    Attributes:
        version: of the contract, as the client knows it.
        methods: what the client can call, by name.
    """

    version: Version
    methods: Mapping[str, Method[Any, Any]] = attrs.field(init=False)
    _streams: dict[str, str] = attrs.field(factory=dict, init=False)
    _numbers: "count[int]" = attrs.field(factory=lambda: count(1), init=False)

    def __attrs_post_init__(self) -> None:
        rows = (*(METHODS[name] for name in SAME), *self._rows())
        self.methods = {row.name: row for row in rows}

    def frames(self, envelope: Envelope) -> Sequence[bytes]:
        """Return the event for whoever runs the turn, and once more for each stream of its session."""
        try:
            return self._frames(envelope)
        except Exception:
            if isinstance(envelope.event, StreamTruncated):
                raise
            logger.exception("session %s: event %d cannot be sent", envelope.session_id, envelope.seq)
            return self._frames(missing(envelope))

    def _frames(self, envelope: Envelope) -> Sequence[bytes]:
        event = flat(envelope.event)
        if event is None:
            return ()
        wrapped = enveloped(envelope, event)
        own = wrapped if self.version >= ENVELOPED_SINCE else event
        frames = [jsonrpc.notification(EVENT, {"session_id": envelope.session_id, "event": own})]
        for stream_id in self._streams_of(envelope.session_id):
            params = {"stream_id": stream_id, "session_id": envelope.session_id, "sequence": envelope.seq}
            frames.append(jsonrpc.notification(STREAM_EVENT, params | {"event": wrapped}))
        return frames

    def ended(self, session_id: str) -> Sequence[bytes]:
        """Return the end of each stream of the session."""
        ended = self._streams_of(session_id)
        for stream_id in ended:
            del self._streams[stream_id]
        return [jsonrpc.notification(STREAM_END, {"stream_id": each, "session_id": session_id}) for each in ended]

    def _streams_of(self, session_id: str) -> list[str]:
        return [stream_id for stream_id, of in self._streams.items() if of == session_id]

    @property
    def _contract(self) -> str:
        return ".".join(map(str, self.version))

    def _rows(self) -> tuple[Method[Any, Any], ...]:
        return (
            _row("initialize", Initialize, shown.Hello, self._initialize),
            _row("capabilities/get", asked.ReadConfig, shown.CapabilityList, self._capabilities),
            _row("config/get", asked.ReadConfig, shown.Config, _config),
            _row("models/catalog", asked.ReadConfig, Catalog, self._catalog),
            _row("session/create", asked.Create, TurnResult, _create),
            _row("session/list", asked.Page, shown.Rows, _list),
            _row("session/read", SessionParams, shown.Details, _read),
            _row("session/history", asked.HistoryPage, shown.Transcript, _history),
            _row("session/inject_context", InjectContext, shown.Staged, _inject),
            _row("session/stream_open", asked.OpenStream, shown.StreamOpened, self._open),
            _row("session/stream_close", asked.CloseStream, shown.StreamClosed, self._close),
            _row("turn/start", asked.Start, TurnResult, _start),
            attrs.evolve(_row("turn/interrupt", SessionParams, shown.InterruptedOrNot, _interrupt), urgent=True),
        )

    async def _initialize(self, host: Host, caller: Caller, params: Initialize) -> shown.Hello:
        hello = await METHODS["initialize"].handler(host, caller, params)
        return shown.Hello(attrs.asdict(hello.server_info), self._contract, tuple(self.methods))

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
        return shown.StreamClosed(params.stream_id, closed=True, already_closed=session_id is None)


def _row(
    name: str, params: type[P], result: type[R], handler: Callable[[Host, Caller, P], Awaitable[R]]
) -> Method[P, R]:
    async def checked(host: Host, caller: Caller, params: P) -> R:
        try:
            return await handler(host, caller, params)
        except FieldValueError as exc:  # said in our words, a field has bounds that it has not in theirs
            raise InvalidParamsError(f"$.{exc.field}: {exc.problem}", path=f"$.{exc.field}") from exc

    return Method(name, params, result, checked, METHODS[name].doc if name in METHODS else f"Meerkat's {name}.")


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
    result: TurnResult = await METHODS["session/create"].handler(host, caller, request)
    return result


async def _start(host: Host, caller: Caller, params: asked.Start) -> TurnResult:
    result: TurnResult = await METHODS["turn/start"].handler(host, caller, params.translated())
    return result


async def _inject(host: Host, caller: Caller, params: InjectContext) -> shown.Staged:
    await METHODS["session/inject_context"].handler(host, caller, params)
    return shown.Staged("staged")


async def _interrupt(host: Host, _caller: Caller, params: SessionParams) -> shown.InterruptedOrNot:
    try:
        await host.service.interrupt(params.session_id)
    except SessionNotRunningError:
        return shown.InterruptedOrNot(params.session_id, interrupted=False)
    return shown.InterruptedOrNot(params.session_id, interrupted=True)


async def _list(host: Host, caller: Caller, params: asked.Page) -> shown.Rows:
    page = ListSessions(params.offset or 0, params.limit or DEFAULT_PAGE, params.labels)
    found = await METHODS["session/list"].handler(host, caller, page)
    return shown.Rows(tuple(map(shown.row, found.sessions)))


async def _read(host: Host, _caller: Caller, params: SessionParams) -> shown.Details:
    return shown.details(await host.service.read(params.session_id))


async def _history(host: Host, _caller: Caller, params: asked.HistoryPage) -> shown.Transcript:
    page = ReadHistory(params.session_id, params.offset, params.limit or DEFAULT_PAGE)
    found = await host.service.history(page.session_id, offset=page.offset, limit=page.limit)
    return shown.transcript(found, page.limit)
