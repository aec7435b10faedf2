"""A turn whose steps are kept goes on from them: after a stop, a crash, and a refusal of the store."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import apsw
import attrs
import pytest
import trio
import trio.lowlevel
import trio.testing

from tests.support.asking import ask
from tests.support.checks import assert_valid_transcript, name, names
from tests.support.crashing import actor_of, crash
from tests.support.faulty_store import Faults
from tests.support.models import Emit, FunctionModel, reply, says, stuck
from tests.support.runtime import Recorder, new_session, open_runtime, replay, transcript
from warren.actors.calls.service import Service
from warren.base.errors import (
    AgentError,
    InvalidParamsError,
    SessionBusyError,
    SessionNotRunningError,
    StoreError,
    WarrenError,
)
from warren.conversation.budget import Budget
from warren.conversation.events import TurnResumed
from warren.conversation.messages import AssistantMessage, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.conversation.open_turn import OpenTurn
from warren.conversation.options import TurnMode
from warren.conversation.views import TurnResult
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import Tool, current_call, tool
from warren.settings.config import Config, Limits
from warren.storage.operations import Commit

pytestmark = pytest.mark.virtual_time


@attrs.define(eq=False)
class Bench:
    """Tools that note each of their runs, and a model that asks for them one after the other.

    Attributes:
        runs: the keys of all runs, each with the name of its tool.
        stuck: the names of tools that hang once, when they are run next.
        asked: the number of model calls.
        steps: the calls that the model asks for, answer by answer; then it says "done".
    """

    steps: list[list[str]] = attrs.field(factory=lambda: [["note"]])
    runs: list[tuple[str, str]] = attrs.field(factory=list)
    stuck: set[str] = attrs.field(factory=set)
    asked: int = 0
    hangs_at: int | None = None

    async def run(self, tool_name: str) -> str:
        """Note a run."""
        self.runs.append((tool_name, current_call().key))
        if tool_name in self.stuck:
            self.stuck.discard(tool_name)
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return f"{tool_name} ran"

    @property
    def tools(self) -> list[Tool]:
        """The tools: one for each restart class, and one more."""

        @tool(description="Note.")
        async def note() -> str:
            return await self.run("note")

        @tool(description="Look.", restart="replay")
        async def look() -> str:
            return await self.run("look")

        @tool(description="Pay.", restart="ask")
        async def pay() -> str:
            return await self.run("pay")

        @tool(description="Quick.")
        async def quick() -> str:
            return await self.run("quick")

        return [note, look, pay, quick]

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Ask for the tools of the next step that the context does not have yet."""
        self.asked += 1
        if self.hangs_at == self.asked:
            await stuck(request, emit)
        await trio.lowlevel.checkpoint()
        messages = list(request.messages)
        prompt = max(at for at, each in enumerate(messages) if isinstance(each, UserMessage) and not each.steered)
        step = sum(isinstance(each, AssistantMessage) for each in messages[prompt:])
        if step == len(self.steps):
            return reply("done")
        return reply("", *(ToolUseBlock(f"call-{step}-{at}", each) for at, each in enumerate(self.steps[step])))

    def open(self, store: Path, **options: Any) -> AbstractAsyncContextManager[Service]:
        """Open a runtime with the model and the tools."""
        return open_runtime(FunctionModel(self.answer), store=store, tools=self.tools, **options)


def open_turn_of(service: Service, session_id: str) -> OpenTurn | None:
    """Return the open turn of a live session."""
    actor = actor_of(service, session_id)
    assert actor is not None
    assert actor.record is not None
    return actor.record.turn


async def results(service: Service, session_id: str) -> list[str]:
    """Return the texts of all results of a session's tools."""
    found = await transcript(service, session_id)
    assert_valid_transcript(found)
    return [each.content for message in found if isinstance(message, ToolResultsMessage) for each in message.results]


async def stop_within(bench: Bench, store: Path, *, key: str | None = None, **options: Any) -> str:
    """Begin a turn, and stop the runtime when everything waits; return the session."""
    async with trio.open_nursery() as nursery:
        async with bench.open(store, **options) as service:
            session_id = await new_session(service)
            mode: TurnMode = "busy" if key is None else "queue"
            turn = ask(nursery, service.start_turn, session_id, "go", mode=mode, idempotency_key=key)
            await trio.testing.wait_all_tasks_blocked()
        assert (await turn.failure(AgentError)).cause == "shutting_down"
        assert turn.error.retryable is (key is not None)  # type: ignore[union-attr]
    return session_id


async def test_a_stop_parks_a_turn_and_the_next_process_goes_on(tmp_path: Path) -> None:
    """Without a request, from the step that was kept: only the call of the model that was cut off is made again."""
    bench = Bench([["note"], ["quick"]], hangs_at=3)
    session_id = await stop_within(bench, tmp_path)
    assert (bench.asked, len(bench.runs)) == (3, 2)
    async with bench.open(tmp_path) as service:
        assert (await service.wait_turn(session_id)).text == "done"
        assert (bench.asked, len(bench.runs)) == (4, 2)
        assert await results(service, session_id) == ["note ran", "quick ran"]
        log = await replay(service, session_id)
        assert names(log).count("run_started") == names(log).count("run_completed") == 1
        (resumed,) = (each for each in log if isinstance(each.event, TurnResumed))
        gone = [name(each.event) for each in log if resumed.event.kept_seq < each.seq < resumed.seq]  # type: ignore[union-attr]
        assert "text_delta" in gone
        assert not {"run_started", "tool_result_received"} & set(gone)
        assert (await service.read(session_id)).state.message_count == 6


async def test_a_turn_of_which_nothing_was_kept_is_parked(tmp_path: Path) -> None:
    """The prompt of a caller that waited is stored by the stop, and answered by the next process."""
    bench = Bench([], hangs_at=1)
    session_id = await stop_within(bench, tmp_path)
    async with bench.open(tmp_path) as service:
        assert (await service.wait_turn(session_id)).text == "done"
        assert [type(each) for each in await transcript(service, session_id)] == [UserMessage, AssistantMessage]


async def test_a_key_is_settled_by_the_end_of_the_turn(tmp_path: Path) -> None:
    """The same request gets the answer from the next process, and from the one after, and the turn runs once."""
    bench = Bench(hangs_at=2)
    session_id = await stop_within(bench, tmp_path, key="k")
    for _ in range(2):
        async with bench.open(tmp_path) as service:
            again = await service.start_turn(session_id, "go", mode="queue", idempotency_key="k")
            assert (again.text, again.steps, again.tool_calls) == ("done", 2, 1)
    assert (bench.asked, len(bench.runs)) == (3, 1)


@pytest.mark.parametrize(
    ("called", "runs", "told"),
    [("note", 1, "not known: the process ended"), ("look", 2, "look ran")],
)
async def test_what_becomes_of_a_call_that_ran(tmp_path: Path, called: str, runs: int, told: str) -> None:
    """A call without a kept result is reported to the model, or runs again under the same key, as its tool says."""
    bench = Bench([["quick", called]], stuck={called})
    session_id = await stop_within(bench, tmp_path)
    async with bench.open(tmp_path) as service:
        assert (await service.wait_turn(session_id)).text == "done"
        first, second = await results(service, session_id)
    assert first == "quick ran"
    assert second.startswith(told)
    of_called = [key for each, key in bench.runs if each == called]
    assert len(of_called) == runs
    assert len(set(of_called)) == 1
    assert [each for each, _ in bench.runs].count("quick") == 1


@pytest.mark.parametrize("allow", [True, False])
async def test_a_person_decides_on_a_call_that_may_have_run(tmp_path: Path, *, allow: bool) -> None:
    """The class `ask` lets the call wait for approval, though calls of its kind need none otherwise."""
    bench = Bench([["pay"]], stuck={"pay"})
    session_id = await stop_within(bench, tmp_path)
    async with bench.open(tmp_path) as service:
        await trio.sleep(1)
        (pending,) = (await service.read(session_id)).state.pending_approvals
        assert (pending.call_id, pending.name, pending.may_have_run) == ("call-0-0", "pay", True)
        await service.approve_tool(session_id, pending.call_id, "allow" if allow else "deny")
        assert (await service.wait_turn(session_id)).text == "done"
    assert len(bench.runs) == (2 if allow else 1)
    assert len({key for _, key in bench.runs}) == 1


async def test_a_session_that_crashes_goes_on(tmp_path: Path) -> None:
    """After the pause of its failures, in the same process: the kept results are not asked for again."""
    bench, recorder = Bench([["note"], ["quick"]], hangs_at=3), Recorder()
    async with bench.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go", on_event=recorder)
        await trio.testing.wait_all_tasks_blocked()
        crash(service, session_id)
        assert (await turn.failure(AgentError)).cause == "crash"
        assert "run_failed" not in names(recorder.envelopes)
        await trio.sleep(60)
        assert [each for each, _ in bench.runs] == ["note", "quick"]
        log = names(await replay(service, session_id))
        assert (log.count("turn_resumed"), log[-1]) == (1, "run_completed")


@pytest.mark.parametrize("which", [1, 2, 3])
async def test_a_refused_step_is_no_end(tmp_path: Path, which: int) -> None:
    """The caller gets the error of the store, and the turn goes on from what is kept once the store takes it."""
    bench, faults = Bench([["note"]]), Faults(refuse_kinds=(Commit,))
    commits = 0

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        nonlocal commits
        commits += 1
        if commits == {1: 1, 3: 2}.get(which):
            faults.refuse = apsw.FullError("full")
        return await bench.answer(request, emit)

    tools = bench.tools
    if which == 2:

        @tool(name="note", description="Note.")
        async def note() -> str:
            faults.refuse = apsw.FullError("full")
            return await bench.run("note")

        tools = [note]
    async with open_runtime(FunctionModel(answer), store=tmp_path, tools=tools, faults=faults) as service:
        session_id = await new_session(service)
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "go")
        faults.refuse = None
        if which == 1:  # nothing is kept: the caller knows that it has to ask again
            with pytest.raises(SessionNotRunningError):
                await service.wait_turn(session_id)
            assert not bench.runs
            return
        if which == 3:
            commits = 10
        assert (await service.wait_turn(session_id)).text == "done"
        (result,) = await results(service, session_id)
        assert len(bench.runs) == 1
        assert result == "note ran" if which == 3 else result.startswith("not known")
        assert open_turn_of(service, session_id) is None
        usage = (await service.read(session_id)).billing.usage
        assert usage.output_tokens == 2 * bench.asked


async def test_no_other_turn_begins_while_one_is_open(tmp_path: Path) -> None:
    """A prompt finds the session busy, and one that may wait comes after the turn that was left open."""
    bench = Bench([["note"]], hangs_at=2)
    session_id = await stop_within(bench, tmp_path)
    bench.hangs_at = 3
    async with bench.open(tmp_path) as service, trio.open_nursery() as nursery:
        with pytest.raises(SessionBusyError):
            await service.start_turn(session_id, "me first")
        later = ask(nursery, service.start_turn, session_id, "later", mode="queue")
        await trio.sleep(1)
        assert not later.ended.is_set()
        await service.interrupt(session_id)
        assert (await later.value()).text == "done"
        prompts = [each.content for each in await transcript(service, session_id) if isinstance(each, UserMessage)]
        assert prompts == ["go", "later"]


@pytest.mark.parametrize("how", ["interrupt", "archive", "delete"])
async def test_a_parked_turn_ends_from_the_store(tmp_path: Path, how: str) -> None:
    """Its calls get results, its end is told, its key is settled, and no model is asked."""
    bench = Bench([["note"]], stuck={"note"})
    session_id = await stop_within(bench, tmp_path, key="k")
    asked = bench.asked
    config = Config(limits=Limits(max_sessions=1))
    busy = FunctionModel(stuck)
    async with (
        open_runtime(busy, store=tmp_path, tools=bench.tools, config=config) as service,
        trio.open_nursery() as nursery,
    ):
        ask(nursery, service.start_turn, (await new_session(service)), "take the room")
        await trio.lowlevel.checkpoint()
        await getattr(service, how)(session_id)
        assert bench.asked == asked
        metrics = service.metrics()
        assert metrics.total("warren_turns_total", "cancelled") == metrics.total("warren_turn_duration_seconds") == 1
        assert metrics.total("warren_turns_resumed_total") == 0
        if how != "delete":
            assert (await results(service, session_id))[0].startswith("not known")
            assert names(await replay(service, session_id))[-1] == "run_failed"
            assert (await service.read(session_id)).state.lifecycle != "live" or how == "interrupt"
        if how == "interrupt":
            with pytest.raises(AgentError) as caught:
                await service.start_turn(session_id, "go", mode="queue", idempotency_key="k")
            assert (caught.value.cause, caught.value.retryable) == ("cancelled", False)
        nursery.cancel_scope.cancel()


async def test_a_turn_that_ends_its_process_each_time_fails(tmp_path: Path) -> None:
    """After as many deaths as it may have, with all that it has kept; a stop is no death."""
    bench = Bench([["note"], ["look"]])
    config = Config(limits=Limits(resumptions=2))

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        if any(isinstance(each, ToolResultsMessage) for each in request.messages):
            crash(service, session_id)
            await trio.sleep_forever()
        return await bench.answer(request, emit)

    async with open_runtime(FunctionModel(answer), store=tmp_path, tools=bench.tools, config=config) as service:
        session_id = await new_session(service)
        with pytest.raises(AgentError):
            await service.start_turn(session_id, "go")
        await trio.sleep(3600)
        log = names(await replay(service, session_id))
        assert (log.count("turn_resumed"), log[-2:]) == (3, ["turn_resumed", "run_failed"])
        assert service.metrics().total("warren_turns_resumed_total") == 2
        assert service.metrics().total("warren_turns_total", "crash") == 1
        assert await results(service, session_id) == ["note ran"]
        assert [each for each, _ in bench.runs] == ["note"]


async def test_a_death_counts_though_the_next_life_stores_nothing(tmp_path: Path) -> None:
    """The store refuses the first step after a death: who goes on with the turn then still knows of the death."""
    bench, faults = Bench(stuck={"note"}, hangs_at=2), Faults(refuse_kinds=(Commit,))
    async with bench.open(tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go")
        await trio.sleep(1)
        crash(service, session_id)
        faults.refuse = apsw.FullError("full")
        await turn.ended.wait()
        await trio.sleep(60)
        faults.refuse = None
        await trio.sleep(60)
        kept = open_turn_of(service, session_id)
        assert kept is not None
        assert (bench.asked, kept.deaths) == (2, 1)
        nursery.cancel_scope.cancel()


async def test_budgets_count_running_time_alone(tmp_path: Path) -> None:
    """The time in which no process runs the turn is free, the time before counts, and so do steps and calls."""
    bench = Bench([["note"], ["note"]], hangs_at=2)
    async with trio.open_nursery() as nursery:
        async with bench.open(tmp_path) as service:
            session_id = await new_session(service)
            budget = Budget(max_seconds=100, max_tool_calls=1)
            turn = ask(nursery, service.start_turn, session_id, "go", budget=budget)
            await trio.sleep(60)
        await turn.failure(AgentError)
    await trio.sleep(1_000)
    bench.hangs_at = 3
    async with bench.open(tmp_path) as service:
        began = trio.current_time()
        with pytest.raises(WarrenError) as caught:
            await service.wait_turn(session_id)
        assert trio.current_time() - began == pytest.approx(40, abs=2)
        assert caught.value.cause == "time"


async def test_the_answer_as_data_is_asked_for_again_and_the_answer_is_not(tmp_path: Path) -> None:
    """A process that ends while the answer is brought into the form of a schema leaves the answer to the next."""
    asked = 0

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        nonlocal asked
        asked += 1
        if asked == 2:
            await stuck(request, emit)
        await trio.lowlevel.checkpoint()
        return reply("42") if asked == 1 else reply('{"n": 42}')

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with trio.open_nursery() as nursery:
        async with open_runtime(FunctionModel(answer), store=tmp_path) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "go", output_schema=schema)
            await trio.testing.wait_all_tasks_blocked()
        await turn.failure(AgentError)
    async with open_runtime(FunctionModel(answer), store=tmp_path) as service:
        result = await service.wait_turn(session_id)
        assert (result.text, result.structured_output, asked) == ("42", {"n": 42}, 3)
        assert len(await transcript(service, session_id)) == 2


async def test_a_text_turn_is_one_commit(tmp_path: Path) -> None:
    """Keeping steps costs a turn without tools nothing; a call of a tool costs two commits more."""
    faults = Faults()
    commits: dict[str, list[int]] = {}
    for durability in ("turn", "step"):
        bench = Bench([["note"]])
        async with bench.open(tmp_path / durability, faults=faults) as service:
            session_id = await new_session(service)
            for steps in ([], [["note"]]):
                bench.steps = steps
                before = len(faults.groups)
                await service.start_turn(session_id, "go", durability=durability)
                commits.setdefault(durability, []).append(len(faults.groups) - before)
    assert commits == {"turn": [1, 1], "step": [1, 3]}


async def test_a_turn_goes_on_with_another_model_and_other_tools(tmp_path: Path) -> None:
    """What has changed in between holds for the rest of the turn: a tool that is gone may have run."""
    bench = Bench([["look"]], stuck={"look"})
    session_id = await stop_within(bench, tmp_path)
    async with open_runtime(says(["another one"]), store=tmp_path) as service:
        assert (await service.wait_turn(session_id)).text == "another one"
        assert (await results(service, session_id))[0].startswith("not known")


async def test_a_slip_in_the_settings_ends_no_turn(tmp_path: Path) -> None:
    """A process that does not know the model of an open turn says so, and the next one that knows it goes on."""
    bench = Bench(hangs_at=2)
    session_id = await stop_within(bench, tmp_path, key="k")
    async with open_runtime(store=tmp_path) as service:
        with pytest.raises(InvalidParamsError) as caught:
            await service.start_turn(session_id, "go", mode="queue", idempotency_key="k")
        assert caught.value.retryable
        await trio.sleep(3600)
        assert "run_failed" not in names(await replay(service, session_id))
    async with bench.open(tmp_path) as service:
        assert (await service.start_turn(session_id, "go", mode="queue", idempotency_key="k")).text == "done"
    assert len(bench.runs) == 1


async def test_steering_enters_a_turn_that_goes_on(tmp_path: Path) -> None:
    """A text that came while no process ran the turn is read at its next step, and answered with it."""
    bench = Bench([["note"], ["quick"]], hangs_at=2)
    session_id = await stop_within(bench, tmp_path)
    bench.hangs_at = 3
    async with trio.open_nursery() as nursery:
        async with bench.open(tmp_path) as service:
            steered = ask(nursery, service.start_turn, session_id, "and quickly", mode="steer")
            await trio.sleep(1)
            assert not steered.ended.is_set()
        await steered.failure(AgentError)
    bench.hangs_at = None
    async with bench.open(tmp_path) as service:
        result: TurnResult = await service.wait_turn(session_id)
        assert result.text == "done"
        prompts = [each.content for each in await transcript(service, session_id) if isinstance(each, UserMessage)]
        assert prompts == ["go", "and quickly"]
