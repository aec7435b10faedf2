"""A whole runtime under a script: what is done to it, what everybody saw of it, and what has to hold afterwards."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import attrs
import trio
import trio.testing

from tests.support.asking import Asked, ask
from tests.support.checks import assert_valid_transcript, name, numbers
from tests.support.compacting import assert_whole, summarise, wants_summary
from tests.support.crashing import crash
from tests.support.faulty_store import Faults, Trouble
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import Recorder, open_runtime, replay, transcript
from warren.actors.calls.service import Service
from warren.base.errors import ProviderError, SessionNotFoundError, WarrenError
from warren.compaction import CompactionConfig
from warren.conversation.events import (
    DELTAS,
    CompactionCompleted,
    CompactionFailed,
    CompactionStarted,
    Envelope,
    RunFailed,
)
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock, UserMessage
from warren.conversation.views import TurnResult
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.models.tools import tool
from warren.settings.config import Config, Intensity, Limits, RetryPolicy

Verb = Literal[
    "create", "start", "talk", "compact", "interrupt", "read", "list", "history", "resume", "subscribe", "give up",
    "archive", "delete", "crash", "crash storage", "crash storage after", "crash load", "refuse", "slow", "fast",
    "restart", "wait",
]  # fmt: skip
PATIENCE = 500.0
CONFIG = Config(
    retry=RetryPolicy(max_attempts=3, jitter=0),
    intensity=Intensity(restarts=1000),
    limits=Limits(interrupt_grace=30, drain=30),
    compaction=CompactionConfig(100, recent_turn_budget=0, min_turns_between_compactions=1),
    durability="turn",  # each turn ends in its life; tests/simulation has turns that go on in the next one
)
LENGTHY = ", and so on" * 40
"""Makes two turns more than a context may hold."""
NO_TURNS_OWN = (CompactionStarted, CompactionCompleted, CompactionFailed, RunFailed)
"""Events in a log that no turn's caller got: compactions by hand, the end of a turn whose process died."""


@attrs.frozen
class Step:
    """One line of a script: a verb, the session it is about, and how."""

    verb: Verb
    session: int = 0
    how: Any = None

    def __repr__(self) -> str:
        """Show only what matters: scripts are read when they fail."""
        rest = [str(each) for each in (self.session, self.how) if each is not None]
        return f"<{self.verb} {' '.join(rest)}>"


@tool
async def nap(seconds: float) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return "rested"


async def play(request: ModelRequest, emit: Emit) -> ModelReply:
    """Answer by the first word of the prompt; summarise where that is asked for."""
    last = request.messages[-1]
    if wants_summary(request):
        await trio.sleep(5)
        return await summarise(request, emit)
    if isinstance(last, ToolResultsMessage):
        emit(TextPiece("after tools"))
        return reply("after tools")
    assert isinstance(last, UserMessage)
    await trio.lowlevel.checkpoint()
    emit(TextPiece("I say: "))
    match last.content.split()[0]:
        case "slow":
            await trio.sleep(20)
        case "tool":
            calls = [ToolUseBlock(f"{last.content} {n}", "nap", {"seconds": n * 20}) for n in range(3)]
            return reply("I say: ", *calls)
        case "fail":
            raise ProviderError("it broke", retryable=False)
        case "retry":
            raise ProviderError("overloaded", retryable=True)
    emit(TextPiece(last.content))
    return reply(f"I say: {last.content}" + LENGTHY)


@attrs.define(eq=False)
class Turn:
    """A turn that was asked for."""

    prompt: str
    asked: Asked[TurnResult]
    recorder: Recorder
    over: bool = False
    """Whether the life of the runtime in which it was asked for is over."""

    @property
    def cause(self) -> str | None:
        """How the turn failed, as its last event says; None for one that did not."""
        last = self.recorder.events[-1] if self.recorder.events else None
        return last.cause if isinstance(last, RunFailed) else None

    @property
    def stored(self) -> list[Envelope]:
        """The events that have to be in the store: all, or of a turn that was lost those up to its last compaction."""
        shown = self.recorder.envelopes
        if self.cause not in ("store_error", "crash"):
            return shown
        moves = [at for at, each in enumerate(shown, 1) if isinstance(each.event, CompactionCompleted)]
        return shown[: max(moves, default=0)]


@attrs.define(eq=False)
class Follower:
    """A subscriber that reads on at once."""

    after_seq: int
    found: list[Envelope] = attrs.field(factory=list)
    failed: bool = False

    async def run(self, service: Service, session_id: str) -> None:
        """Follow until the stream ends."""
        try:
            async with service.subscribe(session_id, after_seq=self.after_seq) as events:
                async for envelope in events:
                    self.found.append(envelope)
        except WarrenError:
            self.failed = True


@attrs.define(eq=False)
class Session:
    """A session of the script and all that was seen of it."""

    session_id: str = ""
    turns: list[Turn] = attrs.field(factory=list)
    followers: list[Follower] = attrs.field(factory=list)
    endings: list[Asked[None]] = attrs.field(factory=list)
    lost: bool = False

    def seen(self) -> dict[int, Envelope]:
        """Return every event that any turn's caller was handed, by number; no number stands for two."""
        found: dict[int, Envelope] = {}
        for turn in self.turns:
            for envelope in turn.recorder.envelopes:
                assert envelope.seq not in found, f"number {envelope.seq} twice"
                found[envelope.seq] = envelope
        return found


@attrs.define(eq=False)
class World(Trouble):
    """Carries out scripts."""

    store: Path | None
    faults: Faults = attrs.field(factory=Faults)
    sessions: list[Session] = attrs.field(factory=lambda: [Session(), Session()])
    asks: list[Asked[Any]] = attrs.field(factory=list)
    numbers: int = 0
    _impossible: set[str] = attrs.field(factory=set)

    async def run(self, script: Sequence[Step]) -> None:
        """Carry out a script, then check everything."""
        verbs = {step.verb for step in script}
        self._impossible = set() if verbs & {"crash", "crash load"} else {"crash"}
        self._impossible |= set() if verbs & {"refuse", "crash storage", "crash storage after"} else {"store_error"}
        tasks = trio.lowlevel.current_statistics().tasks_living
        rest = list(script)
        while True:
            cut = next((at for at, step in enumerate(rest) if step.verb == "restart"), len(rest))
            await self._live(rest[:cut])
            if cut == len(rest):
                break
            if self.store is None:
                self.sessions = [Session(), Session()]
            rest = rest[cut + 1 :]
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        if self.store is not None:
            await self._check_what_is_stored()

    # -- doing

    async def _live(self, script: Sequence[Step]) -> None:
        """Live one life of the runtime: open it, do what the script says, close it."""
        with trio.fail_after(PATIENCE * (2 + len(script))):
            async with trio.open_nursery() as nursery:
                async with open_runtime(
                    FunctionModel(play), store=self.store, tools=[nap], config=CONFIG, faults=self.faults
                ) as service:
                    for session in self.sessions:
                        if session.session_id:
                            self._follow(nursery, service, session, 0)
                    for step in script:
                        await self._do(nursery, service, step)
                    await self._settle(service)
                await self._end()

    async def _do(self, nursery: trio.Nursery, service: Service, step: Step) -> None:
        session = self.sessions[step.session]
        if not session.session_id and step.verb not in ("wait", "refuse", "slow", "fast"):
            self._calm()
            session.session_id = (await service.create_session(None)).session_id
            self._follow(nursery, service, session, 0)
        action = getattr(self, "_" + step.verb.replace(" ", "_"), None)
        if action is not None:
            await action(nursery, service, session, step.how)
        else:
            self._ask(nursery, partial(getattr(service, step.verb), session.session_id))

    def _ask(self, nursery: trio.Nursery, call: Callable[[], Awaitable[Any]]) -> Asked[Any]:
        asked = ask(nursery, call)
        self.asks.append(asked)
        return asked

    async def _create(self, nursery: trio.Nursery, service: Service, session: Session, how: Any) -> None:
        """Creation is what the first step about a session does anyway."""

    async def _start(self, nursery: trio.Nursery, service: Service, session: Session, how: str) -> None:
        self.numbers += 1
        prompt, recorder = f"{how or 'quick'} {self.numbers}", Recorder()
        asked = self._ask(nursery, partial(service.start_turn, session.session_id, prompt, on_event=recorder))
        session.turns.append(Turn(prompt, asked, recorder))

    async def _talk(self, nursery: trio.Nursery, service: Service, session: Session, how: Any) -> None:
        """Run two turns to their ends, whatever those are: contexts grow by it."""
        for _ in range(2):
            await self._start(nursery, service, session, how)
            await self.asks[-1].ended.wait()

    async def _list(self, nursery: trio.Nursery, service: Service, _session: Session, _how: Any) -> None:
        self._ask(nursery, service.list)

    async def _archive(self, nursery: trio.Nursery, service: Service, session: Session, _how: Any) -> None:
        session.endings.append(self._ask(nursery, partial(service.archive, session.session_id)))

    async def _delete(self, nursery: trio.Nursery, service: Service, session: Session, _how: Any) -> None:
        session.endings.append(self._ask(nursery, partial(service.delete, session.session_id)))

    async def _subscribe(self, nursery: trio.Nursery, service: Service, session: Session, how: Any) -> None:
        seen = sorted(session.seen())
        self._follow(nursery, service, session, seen[(how or 0) % len(seen)] if seen else 0)

    def _follow(self, nursery: trio.Nursery, service: Service, session: Session, after_seq: int) -> None:
        follower = Follower(after_seq)
        session.followers.append(follower)
        nursery.start_soon(follower.run, service, session.session_id)

    async def _give_up(self, *_: Any) -> None:
        for asked in reversed(self.asks):
            if not asked.ended.is_set():
                asked.scope.cancel()
                return

    async def _crash(self, _nursery: trio.Nursery, service: Service, session: Session, _how: Any) -> None:
        if crash(service, session.session_id) and self.store is None:
            session.lost = True

    async def _crash_load(self, *_: Any) -> None:
        self.faults.crash_load += 1

    async def _wait(self, _nursery: trio.Nursery, _service: Service, _session: Session, how: Any) -> None:
        await trio.sleep(how or 0)

    def _calm(self) -> None:
        self.faults.refuse, self.faults.refusals = None, None
        self.faults.delay = self.faults.delay_after = 0.0
        self.faults.crash_before = self.faults.crash_after = self.faults.crash_load = 0

    async def _settle(self, service: Service) -> None:
        """Wait for an end of everything half of the time; else the shutdown has to cope."""
        if self.numbers % 2:
            return
        with trio.move_on_after(PATIENCE):
            for asked in self.asks:
                await asked.ended.wait()
            while service.health().running_turns:  # noqa: ASYNC110 - the health tells nobody that it changes
                await trio.sleep(1)
        for asked in self.asks:
            assert asked.ended.is_set(), f"{asked.what} never ended"
        assert service.health().running_turns == 0

    async def _end(self) -> None:
        """Nobody waits once the runtime has ended."""
        await trio.testing.wait_all_tasks_blocked()
        for asked in self.asks:
            assert asked.ended.is_set(), f"{asked.what} outlived the runtime"
        for session in self.sessions:
            self._check_streams(session)

    # -- checking

    def _check_streams(self, session: Session) -> None:
        seen = session.seen()
        fresh = [envelope.seq for turn in session.turns if not turn.over for envelope in turn.recorder.envelopes]
        for turn in session.turns:
            self._check_turn(turn)
            turn.over = True
        for follower in session.followers:
            assert_same_events(follower.found, seen)
            if not follower.failed and not session.endings and not session.lost:
                missing = [seq for seq in fresh if seq > follower.after_seq and seq not in numbers(follower.found)]
                assert not missing, f"a subscriber from {follower.after_seq} on missed {missing}"
        session.followers.clear()

    def _check_turn(self, turn: Turn) -> None:
        assert_whole(turn.recorder.envelopes)
        assert turn.cause not in self._impossible, f"{turn.prompt}: {turn.recorder.events[-1]}"
        last = turn.recorder.events[-1:]
        if turn.asked.result is not None:
            assert [name(event) for event in last] == ["run_completed"], f"{turn.prompt}: {last}"
        elif turn.asked.error is not None:
            assert not last or isinstance(last[0], RunFailed), f"{turn.prompt}: {turn.asked.error!r}, {last}"

    async def _check_what_is_stored(self) -> None:
        """Open the store once more, with nothing going wrong: what was acknowledged is there."""
        self._calm()
        async with open_runtime(FunctionModel(play), store=self.store, tools=[nap], faults=self.faults) as service:
            for session in self.sessions:
                if session.session_id:
                    await self._check_stored(service, session)

    async def _check_stored(self, service: Service, session: Session) -> None:
        try:
            messages = await transcript(service, session.session_id)
        except SessionNotFoundError:
            assert session.endings, "a session is gone that nobody ended"
            return
        assert_valid_transcript(messages)
        prompts = [message.content for message in messages if isinstance(message, UserMessage)]
        view = await service.read(session.session_id)
        assert view.state.message_count == len(messages)
        log = await replay(service, session.session_id)
        assert_whole(log)
        moved = sum(isinstance(each.event, CompactionCompleted) for each in log)
        page = await service.history(session.session_id, limit=1000)
        assert view.state.compactions == len(page.compactions) == moved
        seen = session.seen()
        assert_same_events(log, seen)
        there = set(numbers(log))
        for turn in session.turns:
            assert prompts.count(turn.prompt) <= 1
            assert (turn.prompt in prompts) is bool(turn.stored), f"{turn.prompt} of {prompts}"
            missing = {envelope.seq for envelope in turn.stored} - there
            assert not missing, f"{turn.prompt}: {missing} are not in the log"
        await self._check_that_it_goes_on(service, session, view.state.lifecycle, log)

    async def _check_that_it_goes_on(
        self, service: Service, session: Session, lifecycle: str, log: Sequence[Envelope]
    ) -> None:
        if lifecycle == "archived":
            return
        recorder = Recorder()
        await service.start_turn(session.session_id, "quick and last", on_event=recorder)
        first = recorder.envelopes[0].seq
        assert first > max([0, *session.seen(), *(each.seq for each in log)]), "a number was given out twice"


def assert_same_events(found: Sequence[Envelope], seen: dict[int, Envelope]) -> None:
    """Fail where a stream or a log has an event that the turn's caller was not handed, or another one."""
    last = 0
    for each in found:
        first = each.first_seq or each.seq
        assert first > last, f"{first} follows {last}"
        last = each.seq
        originals = [seen[seq].event for seq in range(first, each.seq + 1) if seq in seen]
        if not originals:
            assert isinstance(each.event, NO_TURNS_OWN), f"nobody was handed {each}"
        elif isinstance(each.event, DELTAS):
            assert len(originals) == each.seq + 1 - first
            assert each.event.delta == "".join(event.delta for event in originals if isinstance(event, DELTAS))
        else:
            assert [each.event] == originals
