"""A compaction that is cut short, at each of its steps: wholly old or wholly new, and told of once."""

from pathlib import Path
from typing import Any

import apsw
import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import Asked, ask
from tests.support.checks import assert_valid_transcript, name, names
from tests.support.compacting import (
    SUMMARY,
    FakeMemory,
    Model,
    assert_whole,
    at_the_end,
    chatty,
    compacting,
    settings,
    summaries,
    summarise,
    talk,
)
from tests.support.crashing import actor_of, crash
from tests.support.faulty_store import Faults
from tests.support.models import Emit, reply
from tests.support.runtime import Recorder, new_session, replay, transcript
from warren.actors.calls.service import Service
from warren.base.errors import AgentError, BudgetExhaustedError, StoreError
from warren.compaction import estimate, size_of
from warren.conversation.budget import Budget
from warren.conversation.events import Envelope, RunFailed
from warren.conversation.messages import UserMessage
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest
from warren.settings.config import Limits
from warren.storage.operations import Commit

pytestmark = pytest.mark.virtual_time
STAGES = ["summary", "index", "commit", "confirmation"]
NEW = ("commit", "confirmation")
SOON = 1.0


@attrs.define(eq=False)
class Stage:
    """A compaction that stops for ten seconds at one of its steps.

    Attributes:
        where: the step.
        armed: whether it stops there.
    """

    where: str
    armed: bool = False
    memory: FakeMemory = attrs.field(factory=FakeMemory)
    faults: Faults = attrs.field(factory=Faults)
    model: Model = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.model = Model(summary=self._summarise)

    async def _summarise(self, request: ModelRequest, emit: Emit) -> ModelReply:
        reply = await summarise(request, emit)
        if self.armed and self.where == "summary":
            await trio.sleep(10)
        self.memory.gate = trio.Event() if self.armed and self.where == "index" else None
        self.faults.delay = 10.0 * (self.armed and self.where == "commit")
        self.faults.delay_after = 10.0 * (self.armed and self.where == "confirmation")
        return reply

    def stop_faults(self) -> None:
        """Let everything go on as it should."""
        self.armed, self.faults.delay, self.faults.delay_after = False, 0, 0
        if self.memory.gate is not None:
            self.memory.gate.set()


async def prepared(service: Service, session_id: str, stage: Stage, recorder: Recorder) -> None:
    """Let the context grow to the threshold; the next turn's compaction stops at the stage."""
    await talk(service, session_id, 4, on_event=recorder)
    stage.armed = True


async def check_end(service: Service, session_id: str, stage: Stage, recorder: Recorder, *, new: bool) -> None:
    """Fail where the history is neither the old nor the new one, or the session does not go on from it."""
    view, history = await service.read(session_id), await transcript(service, session_id)
    assert_valid_transcript(history)
    assert history[8] == UserMessage("go on")
    assert view.state.compactions == len((await service.history(session_id)).compactions) == int(new)
    kept = 6 if new else 0
    stage.stop_faults()
    await service.start_turn(session_id, "and on", on_event=recorder)
    context = stage.model.contexts[-1]
    assert list(context[-len(history) - 1 + kept :]) == [*history[kept:], UserMessage("and on")]
    assert summaries(context) == (["SECRET summary"] if new else [])
    assert_whole(recorder.envelopes)
    log = await replay(service, session_id)
    assert_whole(log)
    assert names(log).count("compaction_started") == names(recorder.envelopes).count("compaction_started")


# The guard is armed by the attempt that was cut short: the turn after it does not compact.
CONFIG = settings(min_turns_between_compactions=2)


@pytest.mark.parametrize(
    ("stored", "where"), [(False, "summary"), (False, "index"), *((True, where) for where in STAGES)]
)
async def test_an_interrupt_at_each_step(tmp_path: Path, *, stored: bool, where: str) -> None:
    """Before the commit nothing has changed; from then on everything has; the turn ends as cancelled either way."""
    stage, recorder, store = Stage(where), Recorder(), tmp_path if stored else None
    async with (
        compacting(stage.model, store, config=CONFIG, faults=stage.faults, memory=stage.memory) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        await prepared(service, session_id, stage, recorder)
        before = (await service.read(session_id)).billing.usage
        turn = ask(nursery, service.start_turn, session_id, "go on", on_event=recorder)
        await trio.sleep(SOON)
        await service.interrupt(session_id) if where not in NEW else await _interrupt_late(service, session_id)
        assert (await turn.failure(AgentError)).cause == "cancelled"
        # With the new context the next step may have begun: it ends at its first wait.
        end = ["compaction_completed", "turn_started"] if where in NEW else ["compaction_failed"]
        assert names(recorder.envelopes)[-2 - len(end) :] == ["compaction_started", *end, "run_failed"]
        spent = (await service.read(session_id)).billing.usage
        if where == "summary":  # the part that had arrived counts by an estimate
            asked = estimate(sum(map(size_of, stage.model.compactions[-1].messages)))
            assert spent == before + Usage(asked, estimate(len("SECRET summary")), estimated=True)
        else:
            assert spent == before + SUMMARY
        await check_end(service, session_id, stage, recorder, new=where in NEW)


async def _interrupt_late(service: Service, session_id: str) -> None:
    """Interrupt what cannot be cut short: the grace period passes, the turn ends a little later."""
    with pytest.raises(AgentError, match="has not ended"):
        await service.interrupt(session_id)


@pytest.mark.parametrize("where", STAGES)
async def test_a_crash_of_the_session_at_each_step(tmp_path: Path, where: str) -> None:
    """Its callers get AGENT_ERROR and one terminal event; whoever comes next finds the old history or the new one."""
    stage, recorder = Stage(where), Recorder()
    async with (
        compacting(
            stage.model, tmp_path, config=at_the_end(CONFIG), faults=stage.faults, memory=stage.memory
        ) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        await prepared(service, session_id, stage, recorder)
        turn = ask(nursery, service.start_turn, session_id, "go on", on_event=recorder)
        await trio.sleep(SOON)
        crash(service, session_id)
        assert (await turn.failure(AgentError)).cause == "crash"
        assert [event.cause for event in recorder.only(RunFailed)] == ["crash"]
        stage.stop_faults()
        if where in NEW:  # the beginning of the turn is stored, so whoever takes the session ends it
            await service.resume(session_id)
            assert (await service.read(session_id)).state.last_outcome == "crash"
        await service.start_turn(session_id, "and on", on_event=recorder)
        assert (await service.read(session_id)).state.compactions == 1
        assert_valid_transcript(await transcript(service, session_id))
        assert ("go on" in repr(stage.model.contexts[-1])) is (where in NEW)
        assert_whole(recorder.envelopes)
        log = await replay(service, session_id)
        assert_whole(log)
        assert _without_deltas(log) == _without_deltas(recorder.envelopes)


def _without_deltas(envelopes: list[Envelope]) -> list[tuple[int, str]]:
    return [(each.seq, name(each.event)) for each in envelopes if name(each.event) != "text_delta"]


async def test_a_crash_in_a_compacted_turn(tmp_path: Path) -> None:
    """A turn whose beginning a compaction had stored ends once, for those who watch on and those who come back."""
    model, recorder, followed = Model(), Recorder(), list[Envelope]()
    async with compacting(model, tmp_path, config=at_the_end()) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)

        async def follow() -> None:
            async with service.subscribe(session_id, after_seq=0) as events:
                async for envelope in events:
                    followed.append(envelope)

        nursery.start_soon(follow)
        await talk(service, session_id, 4, on_event=recorder)
        answer, model.answer = model.answer, never_answer
        turn = ask(nursery, service.start_turn, session_id, "go on", on_event=recorder)
        await trio.testing.wait_all_tasks_blocked()
        crash(service, session_id)
        await turn.failure(AgentError)
        model.answer = answer
        await service.start_turn(session_id, "and on", on_event=recorder)
        await trio.testing.wait_all_tasks_blocked()
        for stream in (recorder.envelopes, followed, await replay(service, session_id)):
            assert_whole(stream)
            assert names(stream).count("run_failed") == 1
        nursery.cancel_scope.cancel()
    async with compacting(model, tmp_path) as service:
        assert _without_deltas(await replay(service, session_id)) == _without_deltas(recorder.envelopes)


@pytest.mark.parametrize("later", [0, 60])
async def test_a_compacted_turn_whose_end_could_not_be_stored(tmp_path: Path, later: int) -> None:
    """It has ended once, as its caller was told, also for a session that left memory before the store had room."""
    model, faults = Model(), Faults()
    config = at_the_end(attrs.evolve(CONFIG, limits=attrs.evolve(CONFIG.limits, idle_after=5.0)))
    async with compacting(model, tmp_path, config=config, faults=faults) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 4)

        async def fill(request: ModelRequest, emit: Emit) -> ModelReply:
            faults.refuse, faults.refuse_kinds = apsw.FullError("full"), (Commit,)
            return await chatty(request, emit)

        model.answer = fill
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "go on")
        assert len(model.compactions) == 1
        faults.refuse, model.answer = None, chatty
        await trio.sleep(later)
        await service.start_turn(session_id, "and on")
        stream = await replay(service, session_id)
        assert_whole(stream)
        assert names(stream).count("run_failed") == 1
        usage = await service.usage()
        actor = actor_of(service, session_id)
        assert actor is not None
        assert actor.record is not None
        assert usage.total.turns == actor.record.turns == names(stream).count("run_started")


async def never_answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
    """Never answer."""
    await trio.sleep_forever()
    raise AssertionError("unreachable")


async def lose_a_compacted_turn(service: Service, session_id: str, model: Model) -> None:
    """Run a turn that compacts, and let the session crash in the step after that."""
    answer, model.answer = model.answer, never_answer
    async with trio.open_nursery() as nursery:
        turn = ask(nursery, service.start_turn, session_id, "go on")
        await trio.sleep(60)
        crash(service, session_id)
        await turn.failure(AgentError)
    model.answer = answer


async def test_a_lost_turns_compaction_has_reset_the_providers_figure(tmp_path: Path) -> None:
    """The provider's count before the new head is no reason to compact again."""

    async def report(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        return reply("word " * 80, usage=Usage(5_000, 10))

    model = Model(report)
    async with compacting(model, tmp_path, config=at_the_end()) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 1)
        await lose_a_compacted_turn(service, session_id, model)
        assert len(model.compactions) == 1
        await talk(service, session_id, 1)
        assert len(model.compactions) == 1


async def test_a_lost_turns_time_is_booked_with_its_compaction(tmp_path: Path) -> None:
    """Up to the commit of the new head the session's clock has run."""

    async def slow(request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.sleep(30)
        return await summarise(request, emit)

    model = Model(summary=slow)
    async with compacting(model, tmp_path, config=at_the_end(CONFIG)) as service:
        session_id = await new_session(service, budget=Budget(max_seconds=100))
        await talk(service, session_id, 4)
        await lose_a_compacted_turn(service, session_id, model)
        model.answer = never_answer
        began = trio.current_time()
        with pytest.raises(BudgetExhaustedError):
            await service.start_turn(session_id, "and on")
        assert trio.current_time() - began == pytest.approx(70)


@pytest.mark.parametrize("where", STAGES)
async def test_a_shutdown_at_each_step(tmp_path: Path, where: str) -> None:
    """The runtime waits for a commit and for nothing else; the next one finds the turn ended, once."""
    stage, recorder = Stage(where), Recorder()
    config = at_the_end(attrs.evolve(CONFIG, limits=Limits(drain=1)))
    asked: list[Asked[Any]] = []
    async with trio.open_nursery() as nursery:
        async with compacting(stage.model, tmp_path, config=config, faults=stage.faults, memory=stage.memory) as first:
            session_id = await new_session(first)
            await prepared(first, session_id, stage, recorder)
            asked.append(ask(nursery, first.start_turn, session_id, "go on", on_event=recorder))
            await trio.sleep(SOON)
        await asked[0].failure(AgentError)
    stage.stop_faults()
    assert_whole(recorder.envelopes)
    assert len(recorder.only(RunFailed)) == 1
    async with compacting(stage.model, tmp_path, config=CONFIG, memory=stage.memory) as service:
        assert (await service.read(session_id)).state.compactions == int(where in NEW)
        assert_valid_transcript(await transcript(service, session_id))
        await service.start_turn(session_id, "and on", on_event=recorder)
        assert len(summaries(stage.model.contexts[-1])) == int(where in NEW)
        log = await replay(service, session_id)
        assert_whole(log)
        assert names(log).count("run_failed") == 1


@pytest.mark.parametrize("where", STAGES)
async def test_an_archive_waits_for_the_compaction_and_the_turn(tmp_path: Path, where: str) -> None:
    """Retiring drains: the compaction succeeds, the turn is answered, then the session is archived."""
    stage, recorder = Stage(where), Recorder()
    async with (
        compacting(stage.model, tmp_path, config=CONFIG, faults=stage.faults, memory=stage.memory) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        await prepared(service, session_id, stage, recorder)
        turn = ask(nursery, service.start_turn, session_id, "go on", on_event=recorder)
        await trio.sleep(SOON)
        archived = ask(nursery, service.archive, session_id)
        await trio.sleep(SOON)
        stage.stop_faults()
        assert (await turn.value()).text
        await archived.ended.wait()
        view = await service.read(session_id)
        assert (archived.error, view.state.lifecycle, view.state.compactions) == (None, "archived", 1)
        assert_whole(recorder.envelopes)


async def test_a_session_that_is_deleted_while_it_compacts(tmp_path: Path) -> None:
    """The turn is interrupted, the session is gone with its compactions, nothing brings it back."""
    stage, recorder = Stage("summary"), Recorder()
    async with compacting(stage.model, tmp_path, config=CONFIG) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        await prepared(service, session_id, stage, recorder)
        turn = ask(nursery, service.start_turn, session_id, "go on", on_event=recorder)
        await trio.sleep(SOON)
        await service.delete(session_id)
        assert (await turn.failure(AgentError)).cause == "cancelled"
        assert_whole(recorder.envelopes)
        assert (await service.list(include_archived=True)).sessions == ()
