"""What the tests of the gateway use in place of a runtime, and a model in a test's hand."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import attrs
import trio

from warren.errors import MemoryDisabledError, SessionNotFoundError
from warren.events import Envelope, Event, RunCompleted, RunStarted, TextDelta
from warren.inputs import Input
from warren.memory import MemoryHit
from warren.messages import AssistantMessage, TextBlock
from warren.model import ModelReply, ModelRequest, Piece, TextPiece
from warren.peers import PeerInfo, PeerMessage
from warren.records import CompactionEntry
from warren.service import Capabilities, Health, OnEvent, SessionService
from warren.usage import Usage
from warren.views import HistoryPage, SessionPage, SessionView, TurnResult

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

ENTRY = CompactionEntry(4, NOW, 6, 8, 3, "they talked", 2)

Behaviour = Callable[["FakeTurn"], Awaitable[None]]


def delta(seq: int, text: str = "x", session_id: str = "s1", first_seq: int | None = None) -> Envelope:
    """Make an envelope with text."""
    return Envelope(session_id, seq, NOW, TextDelta(text), first_seq)


def envelope(seq: int, event: Event, session_id: str = "s1") -> Envelope:
    """Make an envelope."""
    return Envelope(session_id, seq, NOW, event)


@attrs.define(eq=False)
class FakeTurn:
    """A turn as its behaviour sees it: `say` publishes a delta to the turn's caller and to the session's watchers."""

    service: "FakeService"
    session_id: str
    prompt: str
    on_event: OnEvent | None

    def publish(self, event: Event) -> Envelope:
        log = self.service.logs.setdefault(self.session_id, [])
        made = envelope(len(log) + 1, event, self.session_id)
        log.append(made)
        for watcher in self.service.watchers.get(self.session_id, []):
            watcher.send_nowait(made)
        if self.on_event is not None:
            self.on_event(made)
        return made

    def say(self, text: str) -> Envelope:
        return self.publish(TextDelta(text))


async def echo(turn: FakeTurn) -> None:
    """Say the prompt's words."""
    for word in turn.prompt.split():
        turn.say(word)
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class FakeService(SessionService):
    """Sessions in memory whose turns do what `behaviour` says; every call is noted in `calls`.

    Attributes:
        behaviour: what a turn does between its first and its last event.
        on_read: raised by `read`, where there is one.
        on_subscribe: awaited by a subscription before it begins.
        withhold: whether subscriptions bring nothing.
        hits: what a search of the memory finds; None is a runtime without one.
        view: what is shown of any session; None knows of none.
    """

    behaviour: Behaviour = echo
    on_read: BaseException | None = None
    on_subscribe: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint
    withhold: bool = False
    hits: Sequence[MemoryHit] | None = None
    view: SessionView | None = None
    calls: list[tuple[str, dict[str, Any]]] = attrs.field(factory=list)
    logs: dict[str, list[Envelope]] = attrs.field(factory=dict)
    watchers: dict[str, list[trio.MemorySendChannel[Envelope | Exception]]] = attrs.field(factory=dict)
    can: Capabilities = attrs.field(factory=lambda: Capabilities(False, False, False))

    async def create_session(
        self, prompt: str | None, *, on_event: OnEvent | None = None, **options: Any
    ) -> TurnResult:
        self.calls.append(("create_session", {"prompt": prompt, **options}))
        session_id = f"s{len(self.logs) + 1}"
        self.logs[session_id] = []
        if prompt is None:
            return TurnResult(session_id)
        return await self._run(FakeTurn(self, session_id, prompt, on_event))

    async def start_turn(
        self, session_id: str, prompt: str, *, on_event: OnEvent | None = None, **options: Any
    ) -> TurnResult:
        self.calls.append(("start_turn", {"session_id": session_id, "prompt": prompt, **options}))
        return await self._run(FakeTurn(self, session_id, prompt, on_event))

    async def compact(self, session_id: str, *, instructions: str | None = None) -> CompactionEntry:
        self.calls.append(("compact", {"session_id": session_id, "instructions": instructions}))
        return ENTRY

    async def inject_context(self, session_id: str, text: str, **options: Any) -> bool:
        self.calls.append(("inject_context", {"session_id": session_id, "text": text, **options}))
        return True

    async def inputs(self, session_id: str) -> tuple[Input, ...]:
        self.calls.append(("inputs", {"session_id": session_id}))
        return ()

    async def withdraw(self, session_id: str, input_id: str) -> None:
        self.calls.append(("withdraw", {"session_id": session_id, "input_id": input_id}))

    async def send_message(self, session_id: str, to: str, message: PeerMessage) -> str:
        self.calls.append(("send_message", {"session_id": session_id, "to": to, "message": message}))
        return "m1"

    async def peers(self, session_id: str) -> tuple[PeerInfo, ...]:
        self.calls.append(("peers", {"session_id": session_id}))
        return ()

    async def approve_tool(self, session_id: str, call_id: str, *, allow: bool, reason: str | None = None) -> None:
        self.calls.append(
            ("approve_tool", {"session_id": session_id, "call_id": call_id, "allow": allow, "reason": reason})
        )

    async def fork(
        self,
        session_id: str,
        *,
        at: int | None = None,
        labels: Mapping[str, str] | None = None,
        title: str | None = None,
    ) -> SessionView:
        self.calls.append(("fork", {"session_id": session_id, "at": at, "labels": labels, "title": title}))
        return self._shown(session_id)

    async def label(
        self, session_id: str, labels: Mapping[str, str | None] | None = None, *, title: str | None = None
    ) -> SessionView:
        self.calls.append(("label", {"session_id": session_id, "labels": labels, "title": title}))
        return self._shown(session_id)

    async def interrupt(self, session_id: str) -> None:
        self.calls.append(("interrupt", {"session_id": session_id}))

    async def archive(self, session_id: str) -> None:
        self.calls.append(("archive", {"session_id": session_id}))

    async def delete(self, session_id: str) -> None:
        self.calls.append(("delete", {"session_id": session_id}))

    async def drain(self) -> None:
        self.calls.append(("drain", {}))

    async def stop(self) -> None:
        self.calls.append(("stop", {}))

    async def resume(self, session_id: str) -> SessionView:
        self.calls.append(("resume", {"session_id": session_id}))
        return self._shown(session_id)

    async def read(self, session_id: str) -> SessionView:
        self.calls.append(("read", {"session_id": session_id}))
        if self.on_read is not None:
            raise self.on_read
        return self._shown(session_id)

    async def list(self, **options: Any) -> SessionPage:
        self.calls.append(("list", options))
        return SessionPage(())

    async def history(self, session_id: str, *, offset: int = 0, limit: int = 100) -> HistoryPage:
        self.calls.append(("history", {"session_id": session_id, "offset": offset, "limit": limit}))
        return HistoryPage(session_id, (), offset, 0)

    @asynccontextmanager
    async def subscribe(
        self, session_id: str, *, after_seq: int | None = None
    ) -> AsyncIterator[AsyncIterator[Envelope]]:
        self.calls.append(("subscribe", {"session_id": session_id, "after_seq": after_seq}))
        await self.on_subscribe()
        send, receive = trio.open_memory_channel[Envelope | Exception](10_000)
        watchers = self.watchers.setdefault(session_id, [])
        if after_seq is not None:
            for old in self.logs.get(session_id, [])[after_seq:]:
                send.send_nowait(old)
        watchers.append(send)
        try:
            async with aclosing(self._follow(receive)) as envelopes:
                yield envelopes
        finally:
            watchers.remove(send)

    async def search_memory(self, query: str, **options: Any) -> tuple[MemoryHit, ...]:
        self.calls.append(("search_memory", {"query": query, **options}))
        if self.hits is None:
            raise MemoryDisabledError("semantic memory is disabled")
        return tuple(self.hits)

    def capabilities(self) -> Capabilities:
        return self.can

    def health(self) -> Health:
        return Health("ok", len(self.logs), 0, 10)

    def _shown(self, session_id: str) -> SessionView:
        if self.view is None:
            raise SessionNotFoundError("no such session", session_id=session_id)
        return self.view

    async def _follow(self, receive: trio.MemoryReceiveChannel[Envelope | Exception]) -> AsyncGenerator[Envelope, None]:
        if self.withhold:
            await trio.sleep_forever()
        async for item in receive:
            if isinstance(item, Exception):
                raise item
            yield item

    async def _run(self, turn: FakeTurn) -> TurnResult:
        turn.publish(RunStarted(turn.session_id, turn.prompt))
        await self.behaviour(turn)
        turn.publish(RunCompleted(turn.session_id, turn.prompt, Usage()))
        return TurnResult(turn.session_id, turn.prompt, turns=1, stop_reason="end_turn")


@attrs.define(eq=False)
class Puppet:
    """A model that says what a test gives it, and stops at None.

    Attributes:
        said: where a test puts pieces.
        calls: model calls that began.
    """

    said: trio.MemorySendChannel[str | None] = attrs.field(init=False)
    calls: int = 0
    _heard: trio.MemoryReceiveChannel[str | None] = attrs.field(init=False)
    _called: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def __attrs_post_init__(self) -> None:
        self.said, self._heard = trio.open_memory_channel[str | None](10_000)

    def say(self, *pieces: str | None) -> None:
        for piece in pieces:
            self.said.send_nowait(piece)

    async def reached(self, calls: int) -> None:
        """Return once so many calls have begun."""
        while self.calls < calls:
            await self._called.park()

    async def complete(self, _request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        self.calls += 1
        self._called.unpark_all()
        text = ""
        while (piece := await self._heard.receive()) is not None:
            text += piece
            emit(TextPiece(piece))
        return ModelReply(AssistantMessage((TextBlock(text),)), Usage(input_tokens=1, output_tokens=1))


@attrs.define(eq=False)
class Flood:
    """A model that says much, in big pieces, and lets others run after each, or after each `burst` of them."""

    pieces: int
    piece: str = "0123456789abcdef" * 256
    burst: int = 1

    async def complete(self, _request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        for number in range(1, self.pieces + 1):
            emit(TextPiece(self.piece))
            if number % self.burst == 0:
                await trio.lowlevel.checkpoint()
        return ModelReply(AssistantMessage((TextBlock("enough"),)), Usage(input_tokens=1, output_tokens=1))


def texts(envelopes: Sequence[Envelope]) -> str:
    """Join the text that envelopes bring."""
    return "".join(item.event.delta for item in envelopes if isinstance(item.event, TextDelta))
