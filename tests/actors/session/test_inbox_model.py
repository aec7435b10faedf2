"""Random scripts of things said to sessions, crashes, refusals and restarts: whatever is acknowledged happens once."""

import itertools
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.asking import Asked, ask
from tests.support.checks import assert_valid_transcript, assert_whole_turns
from tests.support.crashing import crash
from tests.support.faulty_store import Faults, Trouble
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import new_session, open_runtime, replay, transcript
from warren.actors.calls.service import Service
from warren.base.errors import SessionNotFoundError, WarrenError
from warren.conversation.inputs import Input
from warren.conversation.messages import ContextMessage, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, Intensity, Limits

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("silent_log")]
PATIENCE: Final = 200.0
SOON: Final = 9.0
Verb = Literal[
    "start", "queue", "steer", "context", "repeat", "withdraw", "interrupt", "give up", "archive", "delete", "crash",
    "crash storage", "crash storage after", "refuse", "slow", "fast", "wait", "restart",
]  # fmt: skip
SAID: Final = ("queue", "steer", "context")


@attrs.frozen
class Step:
    """One line of a script."""

    verb: Verb
    session: int = 0
    how: int = 0

    def __repr__(self) -> str:
        """Show only what matters: scripts are read when they fail."""
        return f"<{self.verb} {self.session} {self.how}>"


def steps(verbs: Sequence[Verb]) -> st.SearchStrategy[Step]:
    """Return steps of some verbs; waits are of multiples of what models, tools and commits take."""
    return st.builds(Step, st.sampled_from(verbs), st.sampled_from([0, 0, 1]), st.sampled_from([0, 1, 3, 10]))


WORDS: Final = steps(["start", "queue", "queue", "steer", "context", "repeat", "withdraw"])
MOVES: Final = steps(["wait", "wait", "interrupt", "give up", "archive", "delete"])
FAULTS: Final = steps(["crash", "crash storage", "crash storage after", "refuse", "slow", "fast", "restart"])
CONFIGS: Final = st.builds(
    Limits,
    max_sessions=st.sampled_from([1, 2, 9]),
    idle_after=st.sampled_from([1.0, 5.0, 60.0]),
    inbox=st.sampled_from([3, 9]),
    drain=st.just(30.0),
    interrupt_grace=st.just(60.0),
)


@tool
async def nap() -> str:
    """Take ten seconds."""
    await trio.sleep(10)
    return "rested"


async def play(request: ModelRequest, _emit: Emit) -> ModelReply:
    """Take three seconds; call a tool first where the prompt's number is odd."""
    await trio.sleep(3)
    last = request.messages[-1]
    if isinstance(last, UserMessage) and int(last.content.split()[1]) % 2:
        return reply("", ToolUseBlock(last.content, "nap", {}))
    return reply("after tools" if isinstance(last, ToolResultsMessage) else "ok")


@attrs.define(eq=False)
class Said:
    """Something that was said to a session.

    Attributes:
        text: the words; no two are alike.
        kind: how it was said.
        key: its sender's.
        asked: each sending of it.
        sent: when each of them was.
        withdrawn: whether the session has confirmed that it is gone.
    """

    text: str
    kind: str
    key: str | None
    asked: list[Asked[Any]] = attrs.field(factory=list)
    sent: list[float] = attrs.field(factory=list)
    withdrawn: bool = False

    @property
    def done(self) -> bool:
        """Whether somebody was told what came of its turn, or that it was taken in."""
        return any(each.result is not None or (each.what == "inject_context" and _fine(each)) for each in self.asked)


def _fine(asked: Asked[Any]) -> bool:
    return asked.ended.is_set() and asked.error is None and not asked.scope.cancelled_caught


@attrs.define(eq=False)
class Talk:
    """One session of a script, and all that was said to it."""

    session_id: str = ""
    said: list[Said] = attrs.field(factory=list)
    ended: bool = False


@attrs.define(eq=False)
class World(Trouble):
    """Carries out scripts."""

    store: Path
    limits: Limits
    faults: Faults = attrs.field(factory=Faults)
    talks: list[Talk] = attrs.field(factory=lambda: [Talk(), Talk()])
    asks: list[Asked[Any]] = attrs.field(factory=list)
    numbers: "itertools.count[int]" = attrs.field(factory=itertools.count)

    async def run(self, script: Sequence[Step]) -> None:
        """Carry out a script, a life of the runtime at a time; then look what came of everything."""
        tasks = trio.lowlevel.current_statistics().tasks_living
        lives = [
            list(life) for last, life in itertools.groupby(script, lambda step: step.verb == "restart") if not last
        ]
        for life in lives:
            await self._live(life)
        self._calm()
        await self._live([], rest=True)
        assert trio.lowlevel.current_statistics().tasks_living == tasks

    async def _live(self, script: Sequence[Step], *, rest: bool = False) -> None:
        config = Config(limits=self.limits, intensity=Intensity(restarts=1_000))
        with trio.fail_after(PATIENCE * (2 + len(script))):
            async with trio.open_nursery() as nursery:
                async with open_runtime(
                    FunctionModel(play), store=self.store, tools=[nap], config=config, faults=self.faults
                ) as service:
                    for step in script:
                        await self._do(nursery, service, step)
                    if rest:
                        await trio.sleep(PATIENCE)
                        await self._check(service)
                await trio.testing.wait_all_tasks_blocked()
                for asked in self.asks:
                    assert asked.ended.is_set(), f"{asked.what} outlived the runtime"

    def _calm(self) -> None:
        faults = self.faults
        faults.refuse, faults.refusals, faults.delay, faults.delay_after = None, None, 0.0, 0.0
        faults.crash_before = faults.crash_after = 0

    # -- doing

    async def _do(self, nursery: trio.Nursery, service: Service, step: Step) -> None:
        talk = self.talks[step.session]
        if not talk.session_id:
            self._calm()
            talk.session_id = await new_session(service)
        if step.verb in ("start", *SAID):
            number = next(self.numbers)
            said = Said(f"{step.verb} {number}", step.verb, f"k{number}" if step.how else None)
            talk.said.append(said)
            self._say(nursery, service, talk, said)
        else:
            await getattr(self, "_" + step.verb.replace(" ", "_"))(nursery, service, talk, step.how)

    def _say(self, nursery: trio.Nursery, service: Service, talk: Talk, said: Said) -> None:
        if said.kind == "context":
            call = partial(service.inject_context, talk.session_id, said.text, idempotency_key=said.key)
            said.asked.append(ask(nursery, call))
        else:
            mode: Any = "busy" if said.kind == "start" else said.kind
            turn = partial(service.start_turn, talk.session_id, said.text, mode=mode, idempotency_key=said.key)
            said.asked.append(ask(nursery, turn if mode != "busy" else partial(turn, idempotency_key=None)))
        said.sent.append(trio.current_time())
        self.asks.append(said.asked[-1])

    async def _repeat(self, nursery: trio.Nursery, service: Service, talk: Talk, how: int) -> None:
        keyed = [said for said in talk.said if said.key is not None and said.kind != "start"]
        if keyed:
            self._say(nursery, service, talk, keyed[how % len(keyed)])

    async def _withdraw(self, nursery: trio.Nursery, service: Service, talk: Talk, how: int) -> None:
        waiting: Sequence[Input] = ()
        try:
            waiting = await service.inputs(talk.session_id)
        except WarrenError:
            return
        if waiting:
            found = waiting[how % len(waiting)]
            (said,) = [each for each in talk.said if each.text == found.text]

            async def withdraw() -> None:
                await service.withdraw(talk.session_id, found.input_id)
                said.withdrawn = True

            self.asks.append(ask(nursery, withdraw))

    async def _interrupt(self, nursery: trio.Nursery, service: Service, talk: Talk, _how: int) -> None:
        self.asks.append(ask(nursery, service.interrupt, talk.session_id))

    async def _give_up(self, *_: Any) -> None:
        for asked in reversed(self.asks):
            if not asked.ended.is_set():
                asked.scope.cancel()
                return

    async def _archive(self, nursery: trio.Nursery, service: Service, talk: Talk, _how: int) -> None:
        talk.ended = True
        self.asks.append(ask(nursery, service.archive, talk.session_id))

    async def _delete(self, nursery: trio.Nursery, service: Service, talk: Talk, _how: int) -> None:
        talk.ended = True
        self.asks.append(ask(nursery, service.delete, talk.session_id))

    async def _crash(self, _nursery: trio.Nursery, service: Service, talk: Talk, _how: int) -> None:
        crash(service, talk.session_id)

    async def _wait(self, _nursery: trio.Nursery, _service: Service, _talk: Talk, how: int) -> None:
        await trio.sleep(how)

    # -- checking, in a last life in which nothing goes wrong

    async def _check(self, service: Service) -> None:
        assert service.health().running_turns == 0
        for talk in self.talks:
            if talk.session_id:
                await self._check_talk(service, talk)

    async def _check_talk(self, service: Service, talk: Talk) -> None:
        try:
            view = await service.read(talk.session_id)
            messages = await transcript(service, talk.session_id)
        except SessionNotFoundError:
            assert talk.ended, "a session is gone that nobody ended"
            return
        assert_valid_transcript(messages)
        assert_whole_turns(each.event for each in await replay(service, talk.session_id))
        found = [each.content for each in messages if isinstance(each, UserMessage | ContextMessage)]
        left = [each.text for each in await service.inputs(talk.session_id)]
        gone = view.state.lifecycle == "archived"
        for said in talk.said:
            self._check_said(said, found.count(said.text), left.count(said.text), gone=gone)
        queued = [said for said in talk.said if said.kind == "queue" and said.text in found]
        for early, late in itertools.permutations(queued, 2):
            if early.sent[-1] + SOON < late.sent[0]:  # else it is not known which came first
                assert found.index(early.text) < found.index(late.text), "queued prompts have changed places"

    def _check_said(self, said: Said, found: int, left: int, *, gone: bool) -> None:
        assert found + left <= 1, f"{said.text} is there {found} times and waits {left} times"
        assert not left or said.kind == "context", f"{said.text} waits in an idle session with room"
        if said.withdrawn:
            assert not found + left, f"{said.text} was withdrawn"
        elif said.kind in SAID and said.done and not gone:
            assert found + left == 1, f"{said.text} was acknowledged and is lost"


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=settings().max_examples // 2)
@given(script=st.lists(WORDS | WORDS | MOVES, max_size=12), limits=CONFIGS)
async def test_what_is_said_happens_once(script: list[Step], limits: Limits) -> None:
    """Each input is taken by one turn, waits, or was withdrawn; each sender is answered; the queue keeps its order."""
    with tempfile.TemporaryDirectory() as folder:
        await World(Path(folder), limits).run(script)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(script=st.lists(WORDS | WORDS | MOVES | FAULTS, max_size=16), limits=CONFIGS)
@example([Step("queue"), Step("refuse"), Step("wait", 0, 10), Step("queue")], Limits(drain=30.0))
async def test_what_is_said_happens_once_though_much_goes_wrong(script: list[Step], limits: Limits) -> None:
    """The same with crashes of session and storage, refused commits, and restarts."""
    with tempfile.TemporaryDirectory() as folder:
        await World(Path(folder), limits).run(script)
