"""The stream of a turn: its events, to iterate over, and its result."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Generic, Protocol

import attrs

from warren.base.errors import AgentError, WarrenError
from warren.base.fields import FieldValueError
from warren.base.values import define
from warren.calls.base import Call
from warren.calls.streams import EventReader, News
from warren.calls.turns import SessionCall, TurnCall, WaitRequest
from warren.calls.typed import typed
from warren.conversation.answer_text import AnswerText
from warren.conversation.events import TERMINAL, Envelope, StreamTruncated
from warren.conversation.views import T, TurnResult, V
from warren.structured.types import TypedShape, described

GOES_ON: Final = ("connection_lost", "shutting_down")
"""The causes of errors of a call whose turn may go on without it, in another process too."""
Perform = Callable[[Call[TurnResult]], Awaitable[TurnResult]]


class Subscribe(Protocol):
    """`SessionService.subscribe`."""

    def __call__(
        self, session_id: str, *, after_seq: int | None = None
    ) -> AbstractAsyncContextManager[EventReader]: ...


class TurnStream(AsyncIterator[Envelope], Generic[T]):
    """The events of one turn, to iterate over, and its result. `SessionService.stream_turn` opens it.

    `async for` yields the events from the turn's first one on, or from the one on with which a running turn takes the
    prompt, and ends behind the turn's last event. An error of the turn is raised by `result` alone: for the iteration
    it is the event `RunFailed`. A slow reader misses nothing and slows nobody: it reads from the session's log, where
    adjacent deltas are one event.

    The iteration, `texts` and `seq` share one place: use one of the two at a time. `result` may be awaited beside them,
    in other tasks too.
    """

    def __init__(self, turn: "StreamedTurn", shape: "TypedShape[T] | None" = None) -> None:
        """Show a turn that has begun, whose result has an `output` of a shape."""
        self._turn = turn
        self._shape = shape

    @property
    def session_id(self) -> str:
        """The session."""
        return self._turn.session_id

    @property
    def seq(self) -> int:
        """The number up to which events were taken: `subscribe` goes on there with `after_seq`."""
        return self._turn.seq

    def typed(self, shape: "TypedShape[V]") -> "TurnStream[V]":
        """Return the same stream, whose result has an `output` of a shape."""
        return TurnStream(self._turn, shape)

    async def result(self) -> TurnResult[T]:
        """Return the result of the turn, once it has ended. It takes no events: await it whenever you like.

        Cancelling it leaves the turn and the stream as they are.

        Raises:
            WarrenError: the errors of `start_turn`; of `create_session` for a stream of a new session.
            RuntimeError: if the block of the stream was left before the turn had ended.
        """
        result = await self._turn.result()
        return result if self._shape is None else typed(self._shape, result)

    def texts(self) -> AsyncIterator[str]:
        """Iterate over the text that the model says, piece by piece, instead of the events.

        Printed one after the other they are the answer, with an empty line between the texts of two steps. What a model
        does not stream comes as one piece. Trap: a piece cannot be taken back. If a turn goes on after an interruption
        (`TurnResumed`), or another model begins the answer anew (`ModelSwitched`), the new text follows behind an empty
        line, and the text of `result` is the one that counts.
        """
        return _Texts(self)

    async def __anext__(self) -> Envelope:
        return await self._turn.next_event()


class _Texts(AsyncIterator[str]):
    """The text of a stream. No generator: one that is left early waits for the garbage collector."""

    def __init__(self, events: TurnStream) -> None:
        self._events = events
        self._answer = AnswerText()

    async def __anext__(self) -> str:
        while True:
            envelope = await anext(self._events)
            if text := self._answer.text_of(envelope.event):
                return text


@define(eq=False)
class StreamedTurn:
    """The turn behind a stream: its call, which is waited for beside the body that reads the events.

    It knows no event loop. Who opens a stream runs `run` in a task, enters `opened`, and cancels the task at the end:
    that cancels the wait for the turn, and never the turn.

    Attributes:
        call: the call, without `on_event` and `on_begin`.
        perform: performs it, and waits for its turn again if the connection or the server is gone meanwhile.
        subscribe: follows a turn that is over, of a prompt that is sent again under its key.
        news: makes an event of the event loop's library.
        seq: see TurnStream.
        session_id: the session; the stream has one from the beginning of the turn on.
    """

    call: SessionCall | TurnCall
    perform: Perform
    subscribe: Subscribe
    news: Callable[[], News]
    session_id: str = attrs.field(default="", init=False)
    seq: int = attrs.field(default=0, init=False)
    _first: float = attrs.field(default=math.inf, init=False)  # of the events that the reader began with
    _reader: EventReader | None = attrs.field(default=None, init=False)
    _end: TurnResult | Exception | None = attrs.field(default=None, init=False)
    _last: int | None = attrs.field(default=None, init=False)  # None also if nobody knows how far the turn reaches
    _at_end: bool = attrs.field(default=False, init=False)  # the newest event is the end of a turn
    _closed: bool = attrs.field(default=False, init=False)
    _begun: News = attrs.field(init=False)
    _ended: News = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Refuse a call without a turn, and one whose events go elsewhere. Raises InvalidParamsError."""
        self._begun, self._ended = self.news(), self.news()
        if self.call.prompt is None:
            raise FieldValueError("prompt", "must be a text: a stream is of a turn").refusal()
        for name in ("on_event", "on_begin"):
            if getattr(self.call, name) is not None:
                raise FieldValueError(name, "must be None: the stream has the events").refusal()

    # -- the task

    async def run(self) -> None:
        """Perform the call. Its errors are those of the stream."""
        try:
            end: TurnResult | Exception = await self._performed()
        except Exception as exc:  # noqa: BLE001 - `opened` or `result` raises it
            end = exc
        details = end.details if isinstance(end, WarrenError) else {}
        self._end, last = end, end.last_seq if isinstance(end, TurnResult) else details.get("last_seq")
        reader = self._reader
        # A turn that was put back has no end for its caller, except if it goes on while the reader follows it.
        if last is None and reader is not None and not _goes_on(end):
            last = reader.newest
        self._last = last
        if reader is not None and last is not None:
            self._stop_behind(reader, last)
        self._ended.set()
        self._begun.set()

    async def _performed(self) -> TurnResult:
        """Return the result of the turn, also if the call is lost while the turn goes on. Raises as the call does."""
        try:
            return await self.perform(attrs.evolve(self.call, on_begin=self._begin))
        except AgentError as exc:
            if self._reader is None or not _goes_on(exc):
                raise
            lost = exc
        try:
            result = await self.perform(WaitRequest(self.session_id, extra_tools=self.call.extra_tools))
        except WarrenError as exc:
            if exc.details.get("first_seq", math.inf) <= self._first:
                raise
            raise lost from None
        if result.first_seq is None or result.first_seq > self._first:  # another turn runs by now
            raise lost
        return result

    def _begin(self, reader: EventReader) -> None:
        if self._reader is not None or self._closed:  # the call was sent again; the first reader goes on with its turn
            reader.close()
            return
        self._read(reader)
        self._begun.set()

    def _read(self, reader: EventReader) -> None:
        self._reader, self.session_id = reader, reader.session_id
        self.seq, self._first = reader.cursor, reader.cursor + 1

    def _stop_behind(self, reader: EventReader, last: int) -> None:
        """Let the iteration end behind an event; a marker that was taken may stand for it."""
        reader.last = min(last, reader.cursor) if self.seq >= last else last
        reader.notify(None)

    # -- the body

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[TurnStream]:
        """Open the stream for a body once the turn has begun. Raises the error of a turn that does not begin."""
        try:
            await self._begun.wait()
            if self._reader is not None:
                yield self._shown()
                return
            end = self._end
            first = end.first_seq if isinstance(end, TurnResult) else getattr(end, "details", {}).get("first_seq")
            if first is None and isinstance(end, Exception):
                raise end
            session_id = getattr(end, "session_id", None)
            if first is None or session_id is None:
                yield self._shown()
                return
            async with self.subscribe(session_id, after_seq=first - 1) as reader:
                self._read(reader)
                reader.last = self._last
                yield self._shown()
        finally:
            self._closed = True
            if self._reader is not None:
                self._reader.close()
            self._ended.set()

    def _shown(self) -> TurnStream:
        wanted = self.call.output_type
        return TurnStream(self, None if wanted is None else described(wanted))

    async def result(self) -> TurnResult:
        """Return the result of the turn, once it has ended. Raises as `TurnStream.result` does."""
        await self._ended.wait()
        if self._end is None:
            problem = "the stream was left before its turn had ended: `wait_turn` waits for the result, `read` shows it"
            raise RuntimeError(problem)
        if isinstance(self._end, Exception):
            raise self._end.copy() if isinstance(self._end, WarrenError) else self._end
        return self._end

    async def next_event(self) -> Envelope:
        """Return the next event. Raises StopAsyncIteration behind the last one of the turn."""
        reader = self._reader
        if self._at_end:  # a prompt whose turn was lost with its process has another turn
            await self._ended.wait()
        if reader is None or self._closed or self._is_over():
            raise StopAsyncIteration
        envelope = await anext(reader)
        event, self.seq = envelope.event, envelope.seq
        if isinstance(event, StreamTruncated):
            self.seq = event.before + event.dropped
        self._at_end = isinstance(event, TERMINAL)
        return envelope

    def _is_over(self) -> bool:
        """Return whether the end of the turn was taken."""
        if self._last is None:
            return self._at_end
        return self.seq >= self._last


def _goes_on(end: TurnResult | Exception) -> bool:
    """Return whether a turn may go on although its caller has got an error."""
    return isinstance(end, AgentError) and end.cause in GOES_ON
