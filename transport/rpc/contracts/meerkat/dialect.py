"""Meerkat's protocol, for the clients of `rkat-rpc`: a table of its methods, which call those of Warren."""

import logging
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

import attrs

from warren.base.errors import (
    CapacityExceededError,
    InvalidParamsError,
)
from warren.base.values import define
from warren.calls.base import SessionRef
from warren.conversation.events import Envelope, StreamTruncated
from warren.conversation.views import TurnResult
from warren.transport.rpc import jsonrpc
from warren.transport.rpc.contracts.meerkat import methods, results
from warren.transport.rpc.contracts.meerkat.catalog import Catalog, providers
from warren.transport.rpc.contracts.meerkat.events import envelope_of, payload_of
from warren.transport.rpc.contracts.meerkat.params import (
    ConfigParams,
    CreateParams,
    HistoryParams,
    InitializeParams,
    InjectContextParams,
    ListParams,
    StartParams,
    StreamCloseParams,
    StreamOpenParams,
)
from warren.transport.rpc.contracts.meerkat.versions import Version, version_in
from warren.transport.rpc.dialect import EVENT, missing
from warren.transport.rpc.methods import METHODS, Caller, Host, Method
from warren.transport.rpc.params import Initialize

STREAM_EVENT: Final = "session/stream_event"
STREAM_END: Final = "session/stream_end"
MAX_STREAMS: Final = 16
"""Streams of one session that a connection may have: each of them gets every event."""
ENVELOPED_SINCE: Final = (0, 8, 1)
"""From this version on, the events of turns that the client started come in an envelope too."""
IN_CONTENT_SINCE: Final = (0, 7, 0)
"""From this version on, the injected context is in `content`; in earlier ones it is in `text`."""
APPLIED_SINCE: Final = (0, 8, 11)
"""From this version on, the status of injected context is `applied`; in earlier ones it is `staged`."""
SAME_METHODS: Final = ("initialized", "session/archive", "tools/register", "health")
"""Methods that are the same in both protocols."""

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
        same = (
            attrs.evolve(METHODS[name], handler=methods.with_meerkats_errors(METHODS[name].handler))
            for name in SAME_METHODS
        )
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
        event = payload_of(envelope.event, self.version)
        if event is None:
            return ()
        wrapped = envelope_of(envelope, event)
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
            methods.row_of("initialize", InitializeParams, results.InitializeResult, self._initialize),
            methods.row_of("capabilities/get", ConfigParams, results.CapabilitiesResult, self._capabilities),
            methods.row_of("config/get", ConfigParams, results.ConfigResult, methods.config),
            methods.row_of("models/catalog", ConfigParams, Catalog, self._catalog),
            methods.row_of("session/create", CreateParams, TurnResult, methods.create),
            methods.row_of("session/list", ListParams, results.ListResult, methods.list_sessions),
            methods.row_of("session/read", SessionRef, results.ReadResult, methods.read),
            methods.row_of("session/history", HistoryParams, results.HistoryResult, methods.history),
            methods.row_of("session/inject_context", InjectContextParams, results.InjectContextResult, self._inject),
            methods.row_of("session/stream_open", StreamOpenParams, results.StreamOpenResult, self._open),
            methods.row_of("session/stream_close", StreamCloseParams, results.StreamCloseResult, self._close),
            methods.row_of("turn/start", StartParams, TurnResult, self._start),
            attrs.evolve(
                methods.row_of("turn/interrupt", SessionRef, results.InterruptResult, methods.interrupt), urgent=True
            ),
        )

    async def _initialize(self, host: Host, caller: Caller, params: InitializeParams) -> results.InitializeResult:
        version = version_in(params.contract_version, params.client_info)
        if version is not None:
            if self.pinned and version[:2] != self.version[:2]:
                named = ".".join(map(str, version))
                problem = f"the client speaks {named}, this server was started with --contract {self._contract}"
                raise InvalidParamsError.at("$.contract_version", problem)
            self.version = version
        hello = await METHODS["initialize"].handler(host, caller, Initialize(params.client_info))
        return results.InitializeResult(attrs.asdict(hello.server_info), self._contract, tuple(self.methods))

    async def _capabilities(self, host: Host, _caller: Caller, _params: ConfigParams) -> results.CapabilitiesResult:
        return results.CapabilitiesResult(self._contract, results.capability_rows(host.service.capabilities()))

    async def _catalog(self, host: Host, _caller: Caller, _params: ConfigParams) -> Catalog:
        return Catalog(self._contract, providers(host.settings))

    async def _open(self, _host: Host, caller: Caller, params: StreamOpenParams) -> results.StreamOpenResult:
        if len(self._streams_of(params.session_id)) >= MAX_STREAMS:
            problem = f"this connection has {MAX_STREAMS} streams of the session, which is the limit: close one first"
            raise CapacityExceededError(problem, session_id=params.session_id, cause="max_subscriptions")
        await caller.subscribe(params.session_id, None)
        stream_id = f"stream-{next(self._numbers)}"
        self._streams[stream_id] = params.session_id
        return results.StreamOpenResult(stream_id, opened=True)

    async def _close(self, _host: Host, caller: Caller, params: StreamCloseParams) -> results.StreamCloseResult:
        session_id = self._streams.pop(params.stream_id, None)
        if session_id is not None and not self._streams_of(session_id):
            caller.unsubscribe(session_id)
            self._quiet.discard(session_id)
        return results.StreamCloseResult(params.stream_id, closed=True, already_closed=session_id is None)

    async def _start(self, host: Host, caller: Caller, params: StartParams) -> TurnResult:
        if params.session_events is False:
            caller = methods.WithoutEvents(caller)
            if self._streams_of(params.session_id):
                self._quiet.add(params.session_id)
        else:
            self._quiet.discard(params.session_id)
        return await methods.start_turn(host, caller, params.request())

    async def _inject(self, host: Host, _caller: Caller, params: InjectContextParams) -> results.InjectContextResult:
        words = params.context("content" if self.version >= IN_CONTENT_SINCE else "text")
        fresh = await host.service.inject_context(
            params.session_id, words, source=params.source, idempotency_key=params.idempotency_key
        )
        taken = "applied" if self.version >= APPLIED_SINCE else "staged"
        return results.InjectContextResult(taken if fresh else "duplicate")
