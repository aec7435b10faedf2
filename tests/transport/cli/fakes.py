"""What the tests of the command line use in place of a runtime and a terminal."""

import io
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import trio

from warren.errors import AgentError, SessionNotRunningError, WarrenError
from warren.events import Envelope, Event, RunStarted
from warren.inputs import Input
from warren.memory import MemoryHit
from warren.peers import PeerInfo, PeerMessage
from warren.records import CompactionEntry
from warren.service import Capabilities, Health, OnEvent
from warren.views import HistoryPage, SessionPage, SessionSummary, SessionView, TurnResult

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ID = "0198a000-0000-7000-8000-00000000beef"
ENTRY = CompactionEntry(4, NOW, 6, 8, 3, "they talked", 2)


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> str:
        """What a user sees in the end."""
        return screen_of(self.getvalue())


STEERING: Final = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def screen_of(written: str) -> str:
    """Return the lines that are on a terminal after a text that draws, erases and colors was written to it."""
    lines, row, column = [""], 0, 0
    for number, command, move, text in STEERING.findall(written):
        if move == "\r":
            column = 0
        elif move == "\n":
            row, column = row + 1, 0
            lines += [""] * (row == len(lines))
        elif command == "A":
            row = max(0, row - int(number or 1))
        elif command == "J":
            lines[row:] = [lines[row][:column]]
        elif text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
    return "\n".join(lines)


def envelope(event: Event, seq: int = 1) -> Envelope:
    """Return an event as the service hands it over."""
    return Envelope(ID, seq, NOW, event)


def summary(session_id: str, **fields: Any) -> SessionSummary:
    """Return a row of `list`."""
    known: dict[str, Any] = {
        "created_at": NOW,
        "updated_at": NOW,
        "message_count": 2,
        "total_tokens": 7,
        "is_active": False,
        "lifecycle": "stored",
        "labels": {},
        "model": "echo",
    }
    return SessionSummary(session_id, **known | fields)


@attrs.define
class FakeService:
    """Sessions that say what they are told to say; only what the command line calls.

    Attributes:
        events: what a turn tells before it ends.
        ending: its result, or what it fails with; None runs until it is interrupted.
        calls: what was called, in order.
        sessions: what `list` knows, newest first.
        begin: a turn waits for it before its first event.
        compaction: what comes of a compaction; None runs until it is interrupted.
    """

    events: Sequence[Event] = ()
    ending: TurnResult | Exception | None = attrs.field(factory=lambda: TurnResult(ID, "answer", 1))
    calls: list[tuple[str, Any]] = attrs.field(factory=list)
    sessions: Sequence[SessionSummary] = ()
    begin: trio.Event | None = None
    compaction: CompactionEntry | WarrenError | None = ENTRY
    interrupt_error: WarrenError | None = None
    _interrupted: trio.Event = attrs.field(factory=trio.Event)

    async def create_session(self, prompt: str | None, **options: Any) -> TurnResult:
        self.calls.append(("create_session", prompt))
        return await self._turn(prompt or "", options)

    async def start_turn(self, session_id: str, prompt: str, **options: Any) -> TurnResult:
        self.calls.append(("start_turn", (session_id, prompt)))
        return await self._turn(prompt, options)

    async def compact(self, session_id: str, *, instructions: str | None = None) -> CompactionEntry:
        self.calls.append(("compact", (session_id, instructions)))
        if self.compaction is None:
            await self._interrupted.wait()
            raise AgentError("the turn was interrupted", session_id=ID, cause="cancelled")
        if isinstance(self.compaction, WarrenError):
            raise self.compaction
        return self.compaction

    async def approve_tool(self, session_id: str, call_id: str, *, allow: bool, reason: str | None = None) -> None:
        self.calls.append(("approve_tool", (session_id, call_id, allow, reason)))

    async def interrupt(self, session_id: str) -> None:
        self.calls.append(("interrupt", session_id))
        self._interrupted.set()
        if self.interrupt_error is not None:
            raise self.interrupt_error
        if self.ending is not None and self.compaction is not None:
            raise SessionNotRunningError("the session runs no turn")

    async def list(self, *, offset: int = 0, limit: int = 50, **options: Any) -> SessionPage:
        self.calls.append(("list", (offset, limit)))
        shown = [one for one in self.sessions if options.get("include_archived") or one.lifecycle != "archived"]
        return SessionPage(tuple(shown[offset : offset + limit]))

    def capabilities(self) -> Capabilities:
        return Capabilities(session_store=True, session_compaction=False, memory_store=False)

    def called(self, name: str) -> Sequence[Any]:
        """Return what a method was called with, each time."""
        return [arguments for called, arguments in self.calls if called == name]

    async def _turn(self, prompt: str, options: dict[str, Any]) -> TurnResult:
        on_event: OnEvent = options.pop("on_event")
        self.calls.append(("options", options))
        if self.begin is not None:
            await self.begin.wait()
        for seq, event in enumerate((RunStarted(ID, prompt), *self.events), start=1):
            on_event(envelope(event, seq))
            await trio.lowlevel.checkpoint()
        if self.ending is None:
            await self._interrupted.wait()
            raise AgentError("the turn was interrupted", session_id=ID, cause="cancelled")
        if isinstance(self.ending, Exception):
            raise self.ending
        return self.ending

    # What no command under test needs.

    async def read(self, session_id: str) -> SessionView:
        raise NotImplementedError(session_id)

    async def history(self, session_id: str, *, offset: int = 0, limit: int = 100) -> HistoryPage:
        raise NotImplementedError(session_id, offset, limit)

    async def resume(self, session_id: str) -> SessionView:
        raise NotImplementedError(session_id)

    def subscribe(
        self, session_id: str, *, after_seq: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[Envelope]]:
        raise NotImplementedError(session_id, after_seq)

    async def search_memory(self, query: str, **options: Any) -> tuple[MemoryHit, ...]:
        raise NotImplementedError(query, options)

    async def fork(self, session_id: str, **options: Any) -> SessionView:
        raise NotImplementedError(session_id, options)

    async def label(
        self, session_id: str, labels: Mapping[str, str | None] | None = None, *, title: str | None = None
    ) -> SessionView:
        raise NotImplementedError(session_id, labels, title)

    async def inject_context(self, session_id: str, text: str, **options: Any) -> bool:
        raise NotImplementedError(session_id, text, options)

    async def inputs(self, session_id: str) -> tuple[Input, ...]:
        raise NotImplementedError(session_id)

    async def withdraw(self, session_id: str, input_id: str) -> None:
        raise NotImplementedError(session_id, input_id)

    async def send_message(self, session_id: str, to: str, message: PeerMessage) -> str:
        raise NotImplementedError(session_id, to, message)

    async def peers(self, session_id: str) -> tuple[PeerInfo, ...]:
        raise NotImplementedError(session_id)

    async def archive(self, session_id: str) -> None:
        raise NotImplementedError(session_id)

    async def delete(self, session_id: str) -> None:
        raise NotImplementedError(session_id)

    async def drain(self) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    def health(self) -> Health:
        raise NotImplementedError
