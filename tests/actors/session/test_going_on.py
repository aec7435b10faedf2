"""What a turn that goes on must not lose: events, results, answers, keys, and those who wait for it."""

import contextlib
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import apsw
import attrs
import pytest
import trio
import trio.lowlevel
import trio.testing

from tests.storage.samples import step
from tests.support.asking import ask
from tests.support.checks import names
from tests.support.compacting import wants_summary
from tests.support.crashing import crash
from tests.support.faulty_store import Faults
from tests.support.models import Emit, FunctionModel, reply, says
from tests.support.runtime import new_session, open_runtime, replay, storage_of, supervisor_of, transcript
from tests.support.waiting import until
from warren.actors.calls.service import Service
from warren.actors.events.eventlog import Beginning
from warren.actors.protocol import Arrived, Loaded, Retire
from warren.actors.resources.storage import StorageActor
from warren.actors.session.inbox import Inbox
from warren.base.errors import AgentError, LeasedError, StoreError, WarrenError
from warren.base.principals import DEFAULT_TENANT
from warren.compaction import CompactionConfig
from warren.conversation.attachments import Attachment, File
from warren.conversation.budget import Budget
from warren.conversation.categories import Gates
from warren.conversation.events import TextDelta, TurnResumed
from warren.conversation.inputs import Input, Numbered
from warren.conversation.messages import AssistantMessage, FileBlock, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.conversation.views import TurnResult
from warren.mailbox import Mail
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.models.tools import Tool, ToolOutput, current_call, tool
from warren.settings.config import Config, Limits
from warren.storage.operations import Claim, Claimed, Commit, Lease
from warren.storage.queries import SessionRow

pytestmark = pytest.mark.virtual_time
PICTURE = File(b"\x89PNG\r\n\x1a\n", media_type="image/png")
PLACED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@attrs.define(eq=False)
class Script:
    """A model that asks for tools once and then says "done", and tools that take their time.

    Attributes:
        calls: the names of the tools that it asks for.
        halts: the numbers of its calls that never end.
        asked: the number of its calls.
        runs: the names of the tools that ran, in order.
    """

    calls: tuple[str, ...] = ("soon",)
    halts: tuple[int, ...] = ()
    asked: int = 0
    runs: list[str] = attrs.field(factory=list)

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Make an answer."""
        self.asked += 1
        await trio.lowlevel.checkpoint()
        emit(TextPiece(f"try {self.asked}"))
        if self.asked in self.halts:
            await trio.sleep_forever()
        if self.calls and not any(isinstance(each, AssistantMessage) for each in request.messages):
            calls = (ToolUseBlock(f"c{at}", each) for at, each in enumerate(self.calls))
            return reply(f"try {self.asked}", *calls)
        return reply(f"try {self.asked}")

    @property
    def tools(self) -> list[Tool]:
        """Tools that end at once, soon, late, and never."""

        async def run(name: str, seconds: float) -> str:
            self.runs.append(name)
            await trio.sleep(seconds)
            return f"{name} ran"

        @tool(description="Now.")
        async def now() -> str:
            return await run("now", 0)

        @tool(description="Soon.")
        async def soon() -> str:
            return await run("soon", 0.5)

        @tool(description="Late.")
        async def late() -> str:
            return await run("late", 10)

        @tool(description="Never.")
        async def never() -> str:
            return await run("never", 10_000)

        return [now, soon, late, never]

    def open(self, store: Path, **options: Any) -> Any:
        """Open a runtime with the model and the tools."""
        return open_runtime(FunctionModel(self.answer), store=store, tools=self.tools, **options)


async def results(service: Service, session_id: str) -> list[str]:
    """Return the texts of all results of a session's tools."""
    found = await transcript(service, session_id)
    return [each.content for message in found if isinstance(message, ToolResultsMessage) for each in message.results]


def stop(service: Service, session_id: str) -> None:
    """Tell a session to stop, as the end of its runtime does."""
    actor = supervisor_of(service).find(session_id)
    assert actor is not None
    actor.mailbox.tell(Retire("stop"))


async def test_events_that_come_during_a_step_commit_are_stored_with_the_next(tmp_path: Path) -> None:
    """A call that ends while the result of another one is being stored loses none of its events."""
    script, faults = Script(("now", "soon", "late")), Faults()
    async with script.open(tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        faults.delay = faults.delay_after = 1.0
        await service.start_turn(session_id, "go")
        faults.delay = faults.delay_after = 0.0
    async with script.open(tmp_path) as service:
        log = await replay(service, session_id)
        assert names(log).count("tool_execution_completed") == 3
        assert [each.seq for each in log if not isinstance(each.event, TextDelta)] == sorted(
            {each.seq for each in log if not isinstance(each.event, TextDelta)}
        )
        assert names(log)[-1] == "run_completed"


@pytest.mark.parametrize("stop_first", [True, False])
async def test_an_interrupt_ends_a_turn_that_is_told_to_stop(tmp_path: Path, *, stop_first: bool) -> None:
    """Whichever comes first: whoever has interrupted a turn does not find it running in the next process."""
    script = Script(("never",))
    async with trio.open_nursery() as nursery:
        async with script.open(tmp_path) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "go")
            await trio.sleep(1)
            if stop_first:
                stop(service, session_id)
                await service.interrupt(session_id)
            else:
                interrupt = ask(nursery, service.interrupt, session_id)
                await trio.lowlevel.checkpoint()
                stop(service, session_id)
                await interrupt.ended.wait()
                assert interrupt.error is None
        assert (await turn.failure(AgentError)).cause == "cancelled"
    async with script.open(tmp_path) as service:
        await trio.sleep(60)
        log = names(await replay(service, session_id))
        assert (log.count("turn_resumed"), log[-1]) == (0, "run_failed")


async def test_an_interrupt_of_a_turn_that_stays_open_fails(tmp_path: Path) -> None:
    """The store refuses the end of the turn, so it goes on: its interrupter is not told that it has ended."""
    script, faults = Script(("never",)), Faults()
    async with script.open(tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go")
        await trio.sleep(1)
        faults.refuse = apsw.FullError("full")
        with pytest.raises(StoreError):
            await service.interrupt(session_id)
        await turn.failure(StoreError)
        with trio.fail_after(100), pytest.raises(StoreError):  # the store has no room: it is not waited for
            await service.interrupt(session_id)
        faults.refuse = None
        await service.interrupt(session_id)
        assert names(await replay(service, session_id))[-1] == "run_failed"


async def test_a_stop_settles_no_key_of_a_turn_that_has_not_begun(tmp_path: Path) -> None:
    """A turn that waits for the proof of its lease has done nothing: its prompt waits for the next process."""
    script, faults = Script(()), Faults()
    async with trio.open_nursery() as nursery:
        async with script.open(tmp_path, faults=faults) as service:
            session_id = await new_session(service)
            faults.unrenewed = StoreError("no answer", cause="unreachable")
            storage_of(service).fence.until = -math.inf
            turn = ask(nursery, service.start_turn, session_id, "go", mode="queue", idempotency_key="k")
            await trio.testing.wait_all_tasks_blocked()
            assert script.asked == 0
            stop(service, session_id)
            await trio.testing.wait_all_tasks_blocked()
        assert (await turn.failure(AgentError)).cause == "shutting_down"
    async with script.open(tmp_path) as service:
        assert (await service.start_turn(session_id, "go", mode="queue", idempotency_key="k")).text == "try 1"


async def test_an_answer_that_becomes_data_outlives_two_processes(tmp_path: Path) -> None:
    """The next process keeps the answer beside the turn, before it asks for the data."""
    script = Script((), halts=(2, 3))
    async with script.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go", output_schema=PLACED)
        await trio.sleep(1)
        crash(service, session_id)
        await turn.failure(AgentError)
        await trio.sleep(60)
        assert script.asked == 3
        await service.interrupt(session_id)
        said = [each.text for each in await transcript(service, session_id) if isinstance(each, AssistantMessage)]
        assert said == ["try 1"]


async def test_the_text_of_a_first_answer_that_a_stop_cuts_off_is_taken_back(tmp_path: Path) -> None:
    """Nothing of the turn was kept before, and the text has no message."""
    script = Script((), halts=(1,))
    async with trio.open_nursery() as nursery:
        async with script.open(tmp_path) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "go", budget=Budget(max_steps=1))
            await trio.sleep(1)
        await turn.failure(AgentError)
    async with script.open(tmp_path) as service:
        result = await service.wait_turn(session_id)
        assert (result.text, result.steps) == ("try 2", 1)
        log = await replay(service, session_id)
        (resumed,) = [each for each in log if isinstance(each.event, TurnResumed)]
        assert isinstance(resumed.event, TurnResumed)
        taken_back = [each for each in log if resumed.event.kept_seq < each.seq < resumed.seq]
        assert "text_delta" in names(taken_back)
        assert "run_started" not in names(taken_back)


async def test_a_call_that_a_stop_keeps_from_running_runs_in_the_next_process(tmp_path: Path) -> None:
    """It was stored that it begins, and it has not: so nobody is told that it may have run."""
    script, faults = Script(("now",)), Faults()
    async with trio.open_nursery() as nursery:
        async with script.open(tmp_path, faults=faults) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "go")
            faults.delay = 1.0
            await trio.sleep(0.5)
            stop(service, session_id)
        await turn.failure(AgentError)
        assert script.runs == []
    async with script.open(tmp_path) as service:
        await service.wait_turn(session_id)
        assert await results(service, session_id) == ["now ran"]
        log = await replay(service, session_id)
        (resumed,) = [each for each in log if isinstance(each.event, TurnResumed)]
        assert isinstance(resumed.event, TurnResumed)
        assert not {"text_delta", "text_complete"} & set(
            names([each for each in log if resumed.event.kept_seq < each.seq < resumed.seq])
        )


async def sums(service: Service, session_id: str) -> tuple[int, int, int]:
    """Return how many turns the ledger, the record and the log of a session count."""
    record = await service.local.read(SessionRow(session_id, DEFAULT_TENANT))
    assert record is not None
    log = names(await replay(service, session_id))
    assert log.count("run_started") == log.count("run_completed") + log.count("run_failed")
    return (await service.usage()).total.turns, record.turns, log.count("run_started")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("which", [1, 2, 3])
async def test_a_storage_actor_that_crashes_loses_no_step(tmp_path: Path, when: str, which: int) -> None:
    """Before the commit it refuses the step, and the turn goes on; after it, the turn finds the step in the store."""
    script, faults = Script(("now", "late")), Faults()

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        if (which, script.asked) in ((1, 0), (3, 1)):
            setattr(faults, f"crash_{when}", 1)
        return await script.answer(request, emit)

    tools = script.tools
    if which == 2:

        @tool(name="now", description="Now.")
        async def now() -> str:
            setattr(faults, f"crash_{when}", 1)
            script.runs.append("now")
            return "now ran"

        tools[0] = now
    async with open_runtime(FunctionModel(answer), store=tmp_path, tools=tools, faults=faults) as service:
        session_id = await new_session(service)
        if when == "after" or which == 1:
            with contextlib.suppress(StoreError):
                await service.start_turn(session_id, "go")
        else:
            with pytest.raises(StoreError):
                await service.start_turn(session_id, "go")
        await trio.sleep(300)
        faults.crash_before = faults.crash_after = 0
        if when == "before" and which == 1:
            assert script.runs == []
            return
        assert len(script.runs) == len(set(script.runs))
        assert (await sums(service, session_id)) == (1, 1, 1)
        log = names(await replay(service, session_id))
        assert log[-1] == "run_completed"
        if when == "after":  # else the answer of the refused commit was asked for again
            assert (await service.usage()).total.output_tokens == 2 * script.asked


async def test_turns_are_counted_once_over_all_their_lives(tmp_path: Path) -> None:
    """By the ledger, the record and the log, whatever ended each life."""
    script = Script(("now",), halts=(2, 3, 4))
    async with trio.open_nursery() as nursery:
        async with script.open(tmp_path) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "go", mode="queue", idempotency_key="k")
            await trio.sleep(1)
            crash(service, session_id)
            await trio.sleep(60)
            assert script.asked == 3
        await turn.failure(AgentError)
    async with script.open(tmp_path) as service:
        await trio.sleep(1)
        crash(service, session_id)
        again = await service.start_turn(session_id, "go", mode="queue", idempotency_key="k")
        assert (again.steps, again.tool_calls) == (2, 1)
        assert await sums(service, session_id) == (1, 1, 1)
        assert again.usage == (await service.read(session_id)).billing.usage
        assert (await service.usage()).total.output_tokens == again.usage.output_tokens


async def test_a_call_that_waited_for_approval_is_kept_as_begun(tmp_path: Path) -> None:
    """It is asked for though the gates are open in the second life, which crashes as it runs: no third one runs it."""
    script = Script(("never",))
    asking, gates = Config(gates=Gates(callback="ask")), Config()
    async with trio.open_nursery() as nursery:
        async with script.open(tmp_path, config=asking) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "go")
            await trio.sleep(1)
        await turn.failure(AgentError)
    assert script.runs == []
    async with script.open(tmp_path, config=gates) as service:
        await trio.sleep(1)
        assert script.runs == []
        (pending,) = (await service.read(session_id)).state.pending_approvals
        await service.approve_tool(session_id, pending.call_id, "allow")
        await trio.sleep(1)
        assert script.runs == ["never"]
        crash(service, session_id)
        await trio.sleep(300)
        assert script.runs == ["never"]
        assert (await results(service, session_id))[0].startswith("not known")


async def test_a_turn_goes_on_though_turns_are_no_longer_kept(tmp_path: Path) -> None:
    """The setting counts for turns that begin: one that was parked goes on, and its next stop parks it again."""
    script = Script(("now",), halts=(2, 3))
    once = Config(durability="turn")
    async with trio.open_nursery() as nursery:
        async with script.open(tmp_path) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "go")
            await trio.sleep(1)
        await turn.failure(AgentError)
    async with script.open(tmp_path, config=once) as service:
        await trio.sleep(1)
    async with script.open(tmp_path, config=once) as service:
        assert (await service.wait_turn(session_id)).text == "try 4"
        assert await sums(service, session_id) == (1, 1, 1)


async def test_each_input_of_a_turn_that_goes_on_has_one_end(tmp_path: Path) -> None:
    """Context, steering and queued prompts with keys, before and after a stop: each is answered by its turn."""
    script = Script(("late",), halts=(2, 3))
    async with trio.open_nursery() as nursery:
        async with script.open(tmp_path) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "go", mode="queue", idempotency_key="first")
            await trio.sleep(1)
            steered = ask(nursery, service.start_turn, session_id, "so", mode="steer", idempotency_key="steered")
            later = ask(nursery, service.start_turn, session_id, "later", mode="queue", idempotency_key="later")
            await service.inject_context(session_id, "by the way", idempotency_key="context")
            await trio.sleep(20)
            assert script.asked == 2
        for each in (turn, steered, later):
            await each.failure(AgentError)
    async with script.open(tmp_path) as service:
        await trio.sleep(1)
        crash(service, session_id)
        asked = {"first": ("go", "queue"), "steered": ("so", "steer"), "later": ("later", "queue")}
        found: dict[str, TurnResult] = {}

        async def again(key: str) -> None:
            text, mode = asked[key]
            found[key] = await service.start_turn(session_id, text, mode=cast("Any", mode), idempotency_key=key)

        async with trio.open_nursery() as nursery:
            for key in asked:
                nursery.start_soon(again, key)
        assert found["first"] == found["steered"]
        assert found["later"].first_seq != found["first"].first_seq
        texts = [each.content for each in await transcript(service, session_id) if isinstance(each, UserMessage)]
        assert texts == ["go", "so", "later"]
        assert await sums(service, session_id) == (2, 2, 2)


async def test_who_waits_for_an_input_of_an_open_turn_is_told_when_another_process_has_it() -> None:
    """By the error of the claim, or by the stored outcome once the turn is over: nobody waits for ever."""
    numbered = Numbered(1, Input("i", "queue", "go", datetime.now(UTC), key="k"))
    for ends in (True, False):
        inbox = Inbox("s")
        inbox.load((), 1, (1,))
        asked = Arrived(numbered, waits=True)
        mail: Mail[Any] = Mail(asked)
        inbox.arrive(mail, asked)
        assert inbox.taken == (1,)
        if ends:
            inbox.load((), 1)
            assert await mail.wait() is None
        else:
            inbox.leave_to(LeasedError("another process has it"))
            with pytest.raises(LeasedError):
                await mail.wait()


async def test_who_waits_for_an_input_hears_the_end_of_the_turn_that_another_process_began_with_it() -> None:
    """An input that waited here, and that the open turn of the store has taken, ends with that turn."""
    numbered = Numbered(1, Input("i", "queue", "go", datetime.now(UTC), key="k"))
    inbox = Inbox("s")
    asked = Arrived(numbered, waits=True, begun=Beginning(lambda _events: None))
    mail: Mail[Any] = Mail(asked)
    inbox.arrive(mail, asked)
    inbox.load((), 1, (1,))  # as this process takes the session back
    assert (inbox.taken, inbox.first(), inbox.beginning) == ((1,), None, [asked.begun])
    inbox.end_turn(ended := TurnResult("s", "gone"))
    assert await mail.wait() == ended


async def test_who_waits_for_an_input_waits_on_when_the_store_has_gone_back_to_before_its_turn() -> None:
    """The input that a turn had taken begins another one, with its text."""
    numbered = Numbered(1, Input("i", "queue", "go", datetime.now(UTC), key="k"))
    inbox = Inbox("s")
    inbox.load((), 1, (1,))
    asked = Arrived(numbered, waits=True)
    mail: Mail[Any] = Mail(asked)
    inbox.arrive(mail, asked)
    inbox.load((numbered,), 1)
    first = inbox.first()
    assert first is not None
    assert (first.input.text, first.askers) == ("go", [mail])


async def test_the_time_of_a_turn_ends_during_a_step_commit(tmp_path: Path) -> None:
    """The commit is whole, and the turn ends with it, once."""
    script, faults = Script(("now", "soon")), Faults()
    async with script.open(tmp_path, faults=faults) as service:
        for turns, delay in enumerate((3.0, 0.8), 1):
            session_id = await new_session(service)
            faults.delay = delay
            with pytest.raises(WarrenError) as caught:
                await service.start_turn(session_id, "go", budget=Budget(max_seconds=2))
            assert caught.value.cause == "time"
            faults.delay = 0.0
            assert await sums(service, session_id) == (turns, 1, 1)


async def test_a_parked_turn_is_labelled_and_forked(tmp_path: Path) -> None:
    """Neither touches the turn, which goes on; the fork has none of it that is open."""
    script = Script(("now",), halts=(2,))
    async with trio.open_nursery() as nursery:
        async with script.open(tmp_path) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "go")
            await trio.sleep(1)
        await turn.failure(AgentError)
    script.halts = (3,)
    async with script.open(tmp_path) as service:
        await service.label(session_id, {"a": "b"}, title="mine")
        forked = (await service.fork(session_id)).state.session_id
        await trio.sleep(1)
        await service.interrupt(session_id)
        view = await service.read(session_id)
        assert view.state.title == "mine"
        assert (await service.start_turn(forked, "on")).text.startswith("try")
        assert await sums(service, session_id) == (2, 1, 1)


async def test_a_turn_goes_on_after_a_compaction_has_taken_its_prompt(tmp_path: Path) -> None:
    """The head is past the prompt: its calls and results are in the summary, the counts and files in the turn."""
    compaction = CompactionConfig(auto_compact_threshold=400, min_turns_between_compactions=0, recent_turn_budget=1)
    rounds = 0

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        nonlocal rounds
        await trio.lowlevel.checkpoint()
        if wants_summary(request):
            return reply("summary")
        rounds += 1
        if rounds == 5:
            await trio.sleep_forever()
        if rounds < 7:
            said = reply("word " * 1_000, ToolUseBlock(f"r{rounds}", "now"))
            drawn = (FileBlock(Attachment("image/png")),) if rounds in {1, 6} else ()
            blocks = (*drawn, *said.message.blocks)
            return ModelReply(AssistantMessage(blocks, "tool_use"), said.usage, (PICTURE,) if drawn else ())
        return reply("done")

    script = Script()
    config = Config(compaction=compaction)
    async with trio.open_nursery() as nursery:
        async with open_runtime(FunctionModel(answer), store=tmp_path, tools=script.tools, config=config) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "go")
            await trio.sleep(1)
            assert (await service.context(session_id)).summary
        await turn.failure(AgentError)
    async with open_runtime(FunctionModel(answer), store=tmp_path, tools=script.tools, config=config) as service:
        result = await service.wait_turn(session_id)
        assert (result.text, result.tool_calls, len(script.runs)) == ("done", 5, 5)
        assert result.steps == 6
        assert [each.media_type for each in result.attachments] == ["image/png"] * 2
        assert await sums(service, session_id) == (1, 1, 1)


async def test_a_process_that_loses_its_store_again_and_again_has_not_died(tmp_path: Path) -> None:
    """The storage actor crashes in each step of the turn: that is no death of the process, and the turn ends."""
    script, faults = Script(("now", "late")), Faults()
    config = Config(limits=Limits(resumptions=1))

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        answered = await script.answer(request, emit)
        faults.crash_before = int(1 < script.asked < 6)
        return answered

    model = FunctionModel(answer)
    async with open_runtime(model, store=tmp_path, tools=script.tools, faults=faults, config=config) as service:
        session_id = await new_session(service)
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "go")
        await trio.sleep(1_000)
        log = names(await replay(service, session_id))
        assert (script.asked, log[-1]) == (6, "run_completed")
        assert sorted(script.runs) == ["late", "now"]


@tool
async def order() -> ToolOutput:
    """Order."""
    await trio.lowlevel.checkpoint()
    return ToolOutput.later(current_call().token(expires=60))


def ordering(store: Path, faults: Faults | None = None, **limits: Any) -> Any:
    """Open a runtime whose model orders once, on a store that has the virtual clock."""
    model = says(reply("", ToolUseBlock("order", "order")), ["gone on"])
    config, clock = Config(limits=Limits(**limits)), trio.current_time
    return open_runtime(model, store=store, tools=[order], faults=faults, config=config, clock=clock)


async def not_put_aside(service: Service, faults: Faults) -> str:
    """Return a session whose turn has ordered, and could not be stored as one that waits."""
    async with trio.open_nursery() as nursery:
        session_id, faults.delay = await new_session(service), 1
        turn = ask(nursery, service.start_turn, session_id, "go", mode="busy")
        await until(lambda: (actor := supervisor_of(service).find(session_id)) is not None and actor.conversation.waits)
        faults.refuse, faults.refuse_kinds, faults.delay = apsw.FullError("no room"), (Commit,), 0
        await turn.failure(StoreError)
    return session_id


@pytest.mark.parametrize("lapses", [False, True])
async def test_a_session_that_leaves_memory_before_its_turn_goes_on_has_not_died(
    tmp_path: Path, *, lapses: bool
) -> None:
    """A store that refuses to put a turn aside for longer than a session may be idle costs the turn no life."""
    faults = Faults()
    async with ordering(tmp_path, faults, resumptions=0, idle_after=1) as service:
        session_id = await not_put_aside(service, faults)
        storage_of(service).fence.lapses += lapses
        await trio.sleep(10)
        faults.refuse = None
        await trio.sleep(1_000)
        assert names(await replay(service, session_id))[-1] == "run_completed"


async def test_a_session_that_was_read_before_its_turn_goes_on_has_not_died(tmp_path: Path) -> None:
    """The process did not know whether it still had the session, and has read it anew without the right to write."""
    faults = Faults()
    async with ordering(tmp_path, faults, resumptions=0, idle_after=1) as service:
        session_id = await not_put_aside(service, faults)
        storage_of(service).fence.lapses += 1
        await service.label(session_id, title="read anew")
        await trio.sleep(10)
        faults.refuse = None
        await trio.sleep(1_000)
        assert names(await replay(service, session_id))[-1] == "run_completed"


async def test_a_turn_whose_first_step_is_stored_without_its_knowing_has_not_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage actor crashed behind the commit, and the store could not be asked what became of it."""

    async def unknown(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    faults = Faults()
    async with ordering(tmp_path, faults, resumptions=0, idle_after=1) as service:
        session_id = await new_session(service)
        monkeypatch.setattr(StorageActor, "after_crash", unknown)
        faults.crash_after = 1
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "Order")
        monkeypatch.undo()
        await trio.sleep(1_000)
        assert names(await replay(service, session_id))[-1] == "run_completed"


async def test_a_session_leaves_memory_if_another_process_has_the_turn_that_it_put_back(tmp_path: Path) -> None:
    """That process has counted the death, and has no use for what could not be stored."""
    faults = Faults()
    async with ordering(tmp_path, faults, idle_after=5) as one:
        session_id = await not_put_aside(one, faults)
        actor = supervisor_of(one).find(session_id)
        assert actor is not None
        actor.conversation.release()  # else the other process would have to wait for the end of the lease
        async with ordering(tmp_path, idle_after=1_000) as two:
            with trio.move_on_after(1):
                await two.wait_turn(session_id)
            assert supervisor_of(one).find(session_id) is not None
            await trio.sleep(10)
            assert supervisor_of(two).find(session_id) is not None
            assert supervisor_of(one).find(session_id) is None


async def test_a_turn_whose_actor_ends_as_it_cannot_be_loaded_has_not_died(tmp_path: Path) -> None:
    """The lease has lapsed while the store was away: what could not be stored is known to the process alone."""
    faults = Faults()
    async with ordering(tmp_path, faults, resumptions=0, idle_after=1_000) as service:
        session_id = await not_put_aside(service, faults)
        faults.refuse_kinds = (Commit, Claim)
        storage_of(service).fence.lapses += 1
        for _ in range(2):  # the second actor loads nothing at all
            with pytest.raises(StoreError):
                await service.start_turn(session_id, "more", mode="busy")
            assert supervisor_of(service).find(session_id) is None
        faults.refuse = None
        await trio.sleep(1_000)
        assert names(await replay(service, session_id))[-1] == "run_completed"


async def test_a_turn_does_not_have_the_deaths_of_an_earlier_one() -> None:
    """A process that knows an earlier turn of the session as parked counts the death of the one that runs the next."""
    async with open_runtime() as service:
        session_id = await new_session(service)
        actor = supervisor_of(service).revive(session_id)
        await actor.mailbox.ask(Loaded())
        conversation = actor.conversation
        earlier, later = (step(session_id, number).record.turn for number in (0, 1))
        assert earlier is not None
        assert later is not None
        conversation.record = conversation.known.changed(turn_open=True, turn=earlier.changed(parked=True))
        conversation._put_back = conversation.open_turn  # noqa: SLF001 - as of `roll_back`
        conversation._take(Claimed(conversation.known.changed(turn=later), Lease(1)))  # noqa: SLF001 - as the store has it
        assert conversation.open_turn == later
