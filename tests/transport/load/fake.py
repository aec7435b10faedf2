"""A target in memory that keeps every promise, except for the one that a test makes it break."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeVar

import attrs
import trio

from warren.base.errors import ErrorCode
from warren.transport.load.plan import BadClients
from warren.transport.load.target import LOST, OnSeen, RowCounts, Said, Seen, TargetConnection, TargetError

T = TypeVar("T")
Change = Callable[[T], T]


def same(value: Any) -> Any:
    """Change nothing."""
    return value


@attrs.frozen(kw_only=True)
class Faults:
    """The changes of the target's events, each by itself.

    Attributes:
        live: to the events of a session's second turn, as they happen.
        log: to all events, as they are replayed.
        reply: to the answer of a turn.
        early: whether the answer comes before the last event.
        history: to the messages.
        count: to their number.
        rows: to what is stored.
        busy: whether a second turn is let in.
        cursor: to the number from which a client goes on that comes back.
        resume: to what takes its events then.
        drop: the connections that are dropped, the first ones.
        full: the most sessions; 0 for any number.
        lose: the turn of a session, from 1, whose request is lost with its connection; 0 for none.
        watch: to what takes the events of somebody who follows, as they happen.
    """

    live: Change[list[Seen]] = same
    log: Change[list[Seen]] = same
    reply: Change[str] = same
    early: bool = False
    history: Change[list[Said]] = same
    count: Change[int] = same
    rows: Change[RowCounts] = same
    busy: bool = False
    cursor: Change[int] = same
    resume: Change[OnSeen] = same
    watch: Change[OnSeen] = same
    drop: int = 0
    full: int = 0
    lose: int = 0


@attrs.define(eq=False)
class Session:
    """A conversation: its log, its messages, and who is told."""

    session_id: str
    log: list[Seen] = attrs.field(factory=list)
    messages: list[Said] = attrs.field(factory=list)
    told: list[OnSeen] = attrs.field(factory=list)
    running: bool = False
    turns: int = 0
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)


@attrs.define(eq=False)
class FakeTarget:
    """Sessions that answer each word with itself, a tenth of a second apart."""

    tasks: trio.Nursery
    faults: Faults = attrs.field(factory=Faults)
    sessions: dict[str, Session] = attrs.field(factory=dict)
    name: str = "fake"
    tagged: bool = True
    capacity: int = 1_000
    running: int = 0
    dropped: int = 0
    created: list[float] = attrs.field(factory=list)

    @asynccontextmanager
    async def line(self, on_seen: OnSeen) -> AsyncIterator[TargetConnection]:
        self.dropped += 1
        if self.dropped <= self.faults.drop:
            raise TargetError(LOST, "the gateway hung up")
        line = FakeLine(self, on_seen)
        try:
            yield line
        finally:
            line.leave()

    def crowded(self, bad_clients: BadClients, counts: Counter[str]) -> AbstractAsyncContextManager[None]:
        del bad_clients, counts
        return nullcontext()

    async def rows(self, session_ids: Sequence[str]) -> Mapping[str, RowCounts] | None:
        return {each: self.faults.rows(_rows(self.sessions[each])) for each in session_ids}


@attrs.define(eq=False)
class FakeLine:
    """One client."""

    target: FakeTarget
    on_seen: OnSeen
    left: bool = False

    def leave(self) -> None:
        self.left = True

    def hear(self, seen: Seen) -> None:
        if not self.left:
            self.on_seen(seen)

    async def create(self, model: str | None) -> str:
        del model
        await trio.lowlevel.checkpoint()
        if self.target.faults.full and len(self.target.sessions) >= self.target.faults.full:
            raise TargetError(ErrorCode.CAPACITY_EXCEEDED, "too many sessions")
        session_id = f"session-{len(self.target.sessions)}"
        self.target.created.append(trio.current_time())
        self.target.sessions[session_id] = Session(session_id)
        return session_id

    async def turn(self, session_id: str, prompt: str) -> str:
        session = self.target.sessions[session_id]
        if session.turns == self.target.faults.lose - 1:
            raise TargetError(LOST, "the cable was pulled")
        if session.running and not self.target.faults.busy:
            raise TargetError(ErrorCode.SESSION_BUSY, "a turn runs")
        if self.target.running >= self.target.capacity:
            raise TargetError(ErrorCode.CAPACITY_EXCEEDED, "too many turns")
        session.running = True
        self.target.running += 1
        done = trio.Event()
        outcome: list[str] = []
        self.target.tasks.start_soon(self._run, session, prompt, outcome, done)
        if self.target.faults.early:
            return f"{prompt} "
        await done.wait()
        if not outcome:
            raise TargetError(ErrorCode.AGENT_ERROR, "interrupted", "cancelled")
        return self.target.faults.reply(outcome[0])

    async def interrupt(self, session_id: str) -> None:
        await trio.lowlevel.checkpoint()
        session = self.target.sessions[session_id]
        if not session.running:
            raise TargetError(ErrorCode.SESSION_NOT_RUNNING, "no turn")
        session.scope.cancel()

    async def compact(self, session_id: str) -> None:
        raise TargetError(ErrorCode.AGENT_ERROR, f"nothing to shorten in {session_id}", "compaction_failed")

    async def follow(self, session_id: str, after_seq: int) -> None:
        await trio.lowlevel.checkpoint()
        session, faults = self.target.sessions[session_id], self.target.faults
        hear = faults.resume(self.hear) if after_seq else self.hear
        start = faults.cursor(after_seq) if after_seq else 0
        if session.log:
            for seen in faults.log([seen for seen in session.log if seen.seq > start]):
                hear(seen)
        session.told.append(hear if after_seq else faults.watch(hear))

    async def history(self, session_id: str) -> Sequence[Said]:
        await trio.lowlevel.checkpoint()
        return self.target.faults.history(list(self.target.sessions[session_id].messages))

    async def message_count(self, session_id: str) -> int:
        await trio.lowlevel.checkpoint()
        return self.target.faults.count(len(self.target.sessions[session_id].messages))

    async def _run(self, session: Session, prompt: str, outcome: list[str], done: trio.Event) -> None:
        session.told.append(self.hear)
        session.scope = trio.CancelScope()
        words = [f"{word} " for word in prompt.split()]
        session.messages.append(Said("user", prompt))
        self._tell(session, "run_started", prompt)
        self._tell(session, "turn_started", ref=session.turns)
        with session.scope:
            for word in words:
                await trio.sleep(0.1)
                self._tell(session, "text_delta", word)
        self._end(session, words, outcome)
        session.told.remove(self.hear)
        session.turns += 1
        session.running = False
        self.target.running -= 1
        done.set()

    def _end(self, session: Session, words: list[str], outcome: list[str]) -> None:
        if session.scope.cancelled_caught:
            begun = max(seen.seq for seen in session.log if seen.kind == "turn_started")
            deltas = [seen.text for seen in session.log if seen.kind == "text_delta" and seen.seq > begun]
            session.messages.append(Said("assistant", "".join(deltas), stop_reason="cancelled"))
            self._tell(session, "run_failed", "cancelled")
            return
        text = "".join(words)
        outcome.append(text)
        session.messages.append(Said("assistant", text))
        for kind, said in (("text_complete", text), ("turn_completed", ""), ("run_completed", text)):
            self._tell(session, kind, said)

    def _tell(self, session: Session, kind: str, text: str = "", ref: int | str = "") -> None:
        seq = len(session.log) + 1
        seen = Seen(seq, seq, kind, text, ref, session.session_id)
        session.log.append(seen)
        told = self.target.faults.live([seen]) if session.turns == 1 else [seen]
        for hear in [*session.told]:
            for each in told:
                hear(each)


def _rows(session: Session) -> RowCounts:
    total, turns = len(session.messages), sum(seen.kind in ("run_completed", "run_failed") for seen in session.log)
    return RowCounts(total, total, total, session.log[-1].seq if session.log else 0, turns)
