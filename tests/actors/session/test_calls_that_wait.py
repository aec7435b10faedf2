"""A durable turn whose calls all wait needs no task and no process: an answer, or the time, wakes it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw
import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.checks import assert_valid_transcript, names
from tests.support.crashing import actor_of, crash
from tests.support.faulty_store import Faults
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import Recorder, new_session, open_runtime, replay, supervisor_of, transcript
from warren.actors.calls.service import Service
from warren.actors.protocol import LeaveMemory
from warren.base.errors import (
    AgentError,
    BudgetExhaustedError,
    InvalidParamsError,
    SessionBusyError,
    SessionNotFoundError,
    SessionNotRunningError,
    StoreError,
)
from warren.conversation.budget import Budget
from warren.conversation.categories import Gates
from warren.conversation.events import ToolApprovalRequested, ToolApprovalResolved
from warren.conversation.messages import AssistantMessage, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import ClientGoneError, Tool, ToolOutput, current_call, tool
from warren.settings.config import Config, Limits
from warren.storage.operations import Commit, StoreAnswer
from warren.storage.runner import inline_runner
from warren.storage.sqlite.file import FILE_NAME

R = TypeVar("R")
pytestmark = pytest.mark.virtual_time
DAY = 24 * 3600.0
WEEK = Config(gates=Gates(callback="ask"), limits=Limits(approval_timeout=30 * DAY))


@attrs.define(eq=False)
class Desk:
    """A model that asks for a tool that needs approval, and a tool of another kind that needs none.

    Attributes:
        ran: the runs of the tools, by the ids of their calls.
        calls: the tools that the model asks for, answer by answer.
        hangs: seconds that the tool without approval takes.
        ahead: seconds by which the clock of the store was put forward while no process had it.
    """

    ran: list[str] = attrs.field(factory=list)
    calls: list[list[str]] = attrs.field(factory=lambda: [["pay"]])
    hangs: float = 0.0
    ahead: float = 0.0

    @property
    def tools(self) -> list[Tool]:
        """The tools."""

        @tool(description="Pay.")
        async def pay() -> str:
            self.ran.append(current_call().call_id)
            await trio.lowlevel.checkpoint()
            return "paid"

        @tool(description="Look.", category="memory")
        async def look() -> str:
            self.ran.append(current_call().call_id)
            await trio.sleep(self.hangs)
            return "seen"

        return [pay, look]

    async def answer(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        """Ask for the tools of the next step; then say "done"."""
        await trio.lowlevel.checkpoint()
        messages = list(request.messages)
        prompt = max(at for at, each in enumerate(messages) if isinstance(each, UserMessage) and not each.steered)
        step = sum(isinstance(each, AssistantMessage) for each in messages[prompt:])
        if step == len(self.calls):
            return reply("done")
        return reply("", *(ToolUseBlock(f"call-{step}-{at}", each) for at, each in enumerate(self.calls[step])))

    def open(self, store: Path, config: Config = WEEK, **options: Any) -> AbstractAsyncContextManager[Service]:
        """Open a runtime whose store has the virtual clock."""
        model = FunctionModel(self.answer)
        return open_runtime(model, store=store, tools=self.tools, config=config, clock=self.clock, **options)

    def clock(self) -> float:
        """Return the time of the store, in seconds since 1970."""
        return self.ahead + trio.current_time()


async def waiting(service: Service, session_id: str) -> list[tuple[str, str]]:
    """Return the calls that the session's turn waits for, with the reasons."""
    turn = (await service.read(session_id)).state.turn
    return [] if turn is None or turn.state != "waiting" else [(each.call_id, each.reason) for each in turn.waiting_for]


async def results(service: Service, session_id: str) -> list[str]:
    """Return the texts of all results of a session's tools."""
    found = await transcript(service, session_id)
    assert_valid_transcript(found)
    return [each.content for message in found if isinstance(message, ToolResultsMessage) for each in message.results]


async def left_waiting(desk: Desk, store: Path, **options: Any) -> str:
    """Begin a turn that nobody waits for, let the runtime end while it waits, and return its session."""
    async with desk.open(store, **options) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, service.start_turn, session_id, "go", mode="queue", idempotency_key="key")
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    return session_id


async def test_a_turn_that_waits_has_no_task(tmp_path: Path) -> None:
    """Its session leaves memory at once, and the approval brings it back."""
    desk, recorder = Desk(), Recorder()
    async with desk.open(tmp_path) as service:
        session_id = await new_session(service)
        async with trio.open_nursery() as nursery:
            ask(nursery, service.start_turn, session_id, "go", on_event=recorder)
            await trio.sleep(1)
            assert await waiting(service, session_id) == [("call-0-0", "approval")]
            nursery.cancel_scope.cancel()
        await trio.sleep(400)
        assert actor_of(service, session_id) is None
        health = service.health()
        assert (health.waiting_turns, health.parked_turns, health.running_turns) == (1, 0, 0)
        assert service.metrics().total("warren_turns_waiting") == 1
        assert await waiting(service, session_id) == [("call-0-0", "approval")]
        (pending,) = (await service.read(session_id)).state.pending_approvals
        await service.approve_tool(session_id, pending.call_id, "allow")
        assert (await service.wait_turn(session_id)).text == "done"
        log = names(await replay(service, session_id))
        assert (log.count("tool_approval_requested"), log.count("tool_approval_resolved")) == (1, 1)
        assert "turn_resumed" not in log
    assert desk.ran == ["call-0-0"]


async def test_its_caller_waits_on(tmp_path: Path) -> None:
    """The result comes to the one who began the turn, who has its events, too."""
    desk, recorder = Desk(), Recorder()
    async with desk.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go", on_event=recorder)
        waits = ask(nursery, service.wait_turn, session_id)
        await trio.sleep(900)
        assert not turn.ended.is_set()
        await service.approve_tool(session_id, "call-0-0", "allow")
        assert (await turn.value()).text == "done"
        assert (await waits.value()).text == "done"
        assert names(recorder.envelopes)[-1] == "run_completed"
        assert [each.seq for each in recorder.envelopes] == sorted({each.seq for each in recorder.envelopes})


@pytest.mark.parametrize("allow", [True, False])
async def test_three_restarts_and_seven_days(tmp_path: Path, *, allow: bool) -> None:
    """The call runs once, or not at all, whichever process hears the decision."""
    desk = Desk()
    session_id = await left_waiting(desk, tmp_path)
    for _ in range(2):
        desk.ahead += 3 * DAY
        async with desk.open(tmp_path) as service:
            await trio.sleep(60)
            assert await waiting(service, session_id) == [("call-0-0", "approval")]
            assert actor_of(service, session_id) is None
    desk.ahead += DAY
    async with desk.open(tmp_path) as service:
        await service.approve_tool(session_id, "call-0-0", "allow" if allow else "deny", reason="so")
        done = await service.start_turn(session_id, "go", mode="queue", idempotency_key="key")
        assert done.text == "done"
        assert await results(service, session_id) == (["paid"] if allow else ["not run: it was refused: so"])
    assert desk.ran == (["call-0-0"] if allow else [])


async def test_nobody_decides_in_time(tmp_path: Path) -> None:
    """The time of an approval ends it while no task waits for it, in whichever process."""
    desk, config = Desk(), attrs.evolve(WEEK, limits=Limits(approval_timeout=60))
    session_id = await left_waiting(desk, tmp_path, config=config)
    desk.ahead += 40
    async with desk.open(tmp_path) as service:
        await trio.sleep(15)
        assert await waiting(service, session_id) == [("call-0-0", "approval")]
        await trio.sleep(10)
        assert await waiting(service, session_id) == []
        assert await results(service, session_id) == ["not run: it was not approved in time"]
        log = await replay(service, session_id)
        assert [each.event.decision for each in log if isinstance(each.event, ToolApprovalResolved)] == ["timeout"]
        with pytest.raises(SessionNotRunningError):
            await service.approve_tool(session_id, "call-0-0", "allow")
    assert desk.ran == []


async def test_a_decision_after_its_time(tmp_path: Path) -> None:
    """It is refused, though no process was there to end the call, and the next one has not looked at it yet."""
    desk, config = Desk(), attrs.evolve(WEEK, limits=Limits(approval_timeout=60))
    session_id = await left_waiting(desk, tmp_path, config=config)
    desk.ahead += 61
    async with desk.open(tmp_path, config=config) as service:
        with pytest.raises(InvalidParamsError, match="waits no more: nobody answered in time"):
            await service.approve_tool(session_id, "call-0-0", "allow")
        assert (await service.start_turn(session_id, "go", mode="queue", idempotency_key="key")).text == "done"
        assert await results(service, session_id) == ["not run: it was not approved in time"]
    assert desk.ran == []


async def test_its_time_ends_behind_sessions_with_nothing_to_do(tmp_path: Path) -> None:
    """They are looked at first, once there is room, and none of them takes it: the next look is a lease away."""
    limits = Limits(approval_timeout=60, max_sessions=1)
    desk, config = Desk(), attrs.evolve(WEEK, limits=limits)
    session_id = await left_waiting(desk, tmp_path, config=config)
    desk.ahead, desk.calls, desk.hangs = 50, [["look"]], 20
    async with desk.open(tmp_path, config=config) as service, trio.open_nursery() as nursery:
        idle = [await new_session(service) for _ in range(3)]
        turn = ask(nursery, service.start_turn, await new_session(service), "go")
        await trio.sleep(15)
        await supervisor_of(service).recover(dict.fromkeys([*idle, session_id], "default"))
        await turn.value()
        await trio.sleep(0.1)
        assert await results(service, session_id) == ["not run: it was not approved in time"]


async def test_its_time_ends_beside_a_turn_that_cannot_go_on(tmp_path: Path) -> None:
    """A turn whose model is not known any more does not put off the time of the others."""
    desk, config = Desk(), attrs.evolve(WEEK, limits=Limits(approval_timeout=50))
    stuck = await left_waiting(desk, tmp_path, config=config)
    with closing(apsw.Connection(str(tmp_path / FILE_NAME))) as db:
        db.execute("UPDATE sessions SET details = json_set(details, '$.provider', 'gone')")
    desk.ahead += 60
    session_id = await left_waiting(desk, tmp_path, config=config)
    async with desk.open(tmp_path, config=config) as service:
        await trio.sleep(48)
        assert await waiting(service, session_id) == [("call-0-0", "approval")]
        await trio.sleep(3)
        assert await results(service, session_id) == ["not run: it was not approved in time"]
        assert await waiting(service, stuck) == [("call-0-0", "approval")]


async def test_one_of_several_calls_goes_on_alone(tmp_path: Path) -> None:
    """A call that runs beside those that wait keeps its result; each decision lets its call run, and no other one."""
    desk = Desk(calls=[["pay", "look", "pay"]])
    async with desk.open(tmp_path) as service:
        session_id = await new_session(service)
        async with trio.open_nursery() as nursery:
            turn = ask(nursery, service.start_turn, session_id, "go")
            await trio.sleep(1)
            assert desk.ran == ["call-0-1"]
            await service.approve_tool(session_id, "call-0-2", "allow")
            await trio.sleep(1)
            assert desk.ran == ["call-0-1", "call-0-2"]
            assert await waiting(service, session_id) == [("call-0-0", "approval")]
            await service.approve_tool(session_id, "call-0-0", "deny")
            await turn.value()
        assert await results(service, session_id) == ["not run: it was refused", "seen", "paid"]
        log = [each.event for each in await replay(service, session_id)]
        assert len([each for each in log if isinstance(each, ToolApprovalRequested)]) == 2
    assert desk.ran == ["call-0-1", "call-0-2"]


async def test_a_decision_while_another_call_runs(tmp_path: Path) -> None:
    """The call begins at once, beside the other one."""
    desk = Desk(calls=[["pay", "look"]], hangs=10)
    async with desk.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn, began = ask(nursery, service.start_turn, session_id, "go"), trio.current_time()
        await trio.sleep(2)
        assert [each.call_id for each in (await service.read(session_id)).state.pending_approvals] == ["call-0-0"]
        await service.approve_tool(session_id, "call-0-0", "allow")
        await trio.sleep(1)
        assert desk.ran == ["call-0-1", "call-0-0"]
        assert (await turn.value()).text == "done"
        assert trio.current_time() - began == pytest.approx(10, abs=1)


async def test_a_decision_twice(tmp_path: Path) -> None:
    """The same one has the same answer, before and after the end of the turn; another one is refused, and says why."""
    desk = Desk(calls=[["pay", "pay"]])
    async with desk.open(tmp_path) as service:
        session_id = await left(service)
        for _ in range(2):
            await service.approve_tool(session_id, "call-0-0", "allow")
        with pytest.raises(InvalidParamsError, match="was allowed at"):
            await service.approve_tool(session_id, "call-0-0", "deny")
        await service.approve_tool(session_id, "call-0-1", "deny")
        await trio.sleep(1)
        assert await waiting(service, session_id) == []
        await service.approve_tool(session_id, "call-0-0", "allow")
        with pytest.raises(InvalidParamsError, match="was denied at"):
            await service.approve_tool(session_id, "call-0-1", "allow")
        with pytest.raises(SessionNotRunningError):
            await service.approve_tool(session_id, "no-such", "allow")
    assert desk.ran == ["call-0-0"]


async def left(service: Service) -> str:
    """Begin a turn whose caller leaves once it waits; return the session."""
    session_id = await new_session(service)
    async with trio.open_nursery() as nursery:
        ask(nursery, service.start_turn, session_id, "go")
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    return session_id


async def test_a_decision_as_the_session_leaves_memory(tmp_path: Path) -> None:
    """Whoever repeats it is answered, though the session is told to leave when the store has just been asked."""
    leaves = False

    async def run(function: Callable[[], R], /) -> R:
        found = await inline_runner(function)
        if leaves and (actor := actor_of(service, session_id)) is not None:
            actor.mailbox.tell(LeaveMemory())  # in the moment in which whoever has asked the store goes on
        return found

    async with Desk().open(tmp_path, runner=run) as service:
        session_id = await left(service)
        await service.approve_tool(session_id, "call-0-0", "deny")
        await trio.sleep(1)
        leaves = True
        await service.approve_tool(session_id, "call-0-0", "deny")
        with pytest.raises(InvalidParamsError, match="was denied"):
            await service.approve_tool(session_id, "call-0-0", "allow")


async def test_prompts_meanwhile(tmp_path: Path) -> None:
    """A busy prompt hears what is waited for, a queued one waits, a steered one enters when the turn goes on."""
    desk = Desk()
    async with desk.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await left(service)
        with pytest.raises(SessionBusyError, match=r"waits: pay \(call-0-0\) for approval") as busy:
            await service.start_turn(session_id, "now")
        (told,) = busy.value.details["waiting_for"]
        assert (told["call_id"], told["name"], told["reason"]) == ("call-0-0", "pay", "approval")
        queued = ask(nursery, service.start_turn, session_id, "then", mode="queue")
        steered = ask(nursery, service.start_turn, session_id, "faster", mode="steer")
        await trio.sleep(400)
        assert not queued.ended.is_set()
        assert not steered.ended.is_set()
        await service.approve_tool(session_id, "call-0-0", "deny")
        await steered.value()
        await trio.sleep(1)
        await service.approve_tool(session_id, "call-0-0", "deny")
        await queued.value()
        found = [each.content for each in await transcript(service, session_id) if isinstance(each, UserMessage)]
        assert found == ["go", "faster", "then"]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("how", ["interrupt", "archive", "delete"])
async def test_it_ends_at_once(tmp_path: Path, how: str, *, restarted: bool) -> None:
    """An interrupt, an archive and a deletion end a turn that waits, with its caller if that is still there."""
    desk = Desk()
    async with trio.open_nursery() as nursery, desk.open(tmp_path) as service:
        session_id = await left(service)
        if not restarted:
            caller = ask(nursery, service.wait_turn, session_id)
            await trio.sleep(1)
            await getattr(service, how)(session_id)
            if how == "delete":
                gone = await caller.failure(SessionNotFoundError)
                assert (gone.cause, gone.retryable) == ("retired", False)
            else:
                assert (await caller.failure(AgentError)).cause == "cancelled"
    async with desk.open(tmp_path) as service:
        if restarted:
            await getattr(service, how)(session_id)
        await trio.sleep(1)
        if how == "delete":
            with pytest.raises(SessionNotFoundError):
                await service.read(session_id)
            return
        assert await waiting(service, session_id) == []
        if how == "interrupt":
            log = names(await replay(service, session_id))
            assert log[-3:] == ["tool_approval_resolved", "tool_result_received", "run_failed"]
        with pytest.raises((SessionNotRunningError, SessionNotFoundError)):
            await service.approve_tool(session_id, "call-0-0", "allow")
    assert desk.ran == []


async def test_a_kill_after_the_decision(tmp_path: Path) -> None:
    """A decision that was acknowledged counts, though the process ends before the call begins."""
    desk = Desk()
    session_id = await left_waiting(desk, tmp_path)
    async with desk.open(tmp_path) as service:
        supervisor_of(service).scheduler.closed = True  # no turn begins any more
        await service.approve_tool(session_id, "call-0-0", "allow")
        assert desk.ran == []
    async with desk.open(tmp_path) as service:
        await trio.sleep(20)
        assert await results(service, session_id) == ["paid"]
    assert desk.ran == ["call-0-0"]


async def test_a_refused_decision_is_none(tmp_path: Path) -> None:
    """If the store does not take it, whoever decides hears so, and the call waits on."""
    desk, faults = Desk(), Faults()
    async with desk.open(tmp_path, faults=faults) as service:
        session_id = await left(service)
        faults.refuse, faults.refuse_kinds, faults.refusals = apsw.FullError("full"), (StoreAnswer,), 1
        with pytest.raises(StoreError):
            await service.approve_tool(session_id, "call-0-0", "allow")
        assert await waiting(service, session_id) == [("call-0-0", "approval")]
        await service.approve_tool(session_id, "call-0-0", "allow")
        await trio.sleep(1)
    assert desk.ran == ["call-0-0"]


async def test_a_session_that_crashes_while_it_waits(tmp_path: Path) -> None:
    """Its turn waits on, and is no turn of a process that died."""
    desk = Desk()
    async with desk.open(tmp_path) as service:
        session_id = await new_session(service)
        async with trio.open_nursery() as nursery:
            turn = ask(nursery, service.start_turn, session_id, "go")
            await trio.sleep(1)
            crash(service, session_id)
            assert (await turn.failure(AgentError)).details.get("goes_on")
        await trio.sleep(100)
        assert await waiting(service, session_id) == [("call-0-0", "approval")]
        await service.approve_tool(session_id, "call-0-0", "allow")
        await trio.sleep(100)
        assert "turn_resumed" not in names(await replay(service, session_id))
    assert desk.ran == ["call-0-0"]


async def asked(recorder: Recorder) -> None:
    """Return when somebody is to decide, and the turn is about to be stored as one that waits."""
    while not recorder.only(ToolApprovalRequested):  # noqa: ASYNC110 - a callback of events
        await trio.sleep(0.01)
    await trio.sleep(0.1)


async def test_an_interrupt_that_comes_as_it_suspends(tmp_path: Path) -> None:
    """It ends the turn all the same, and is answered."""
    desk, faults = Desk(), Faults(delay_after=1.0)
    async with desk.open(tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id, recorder = await new_session(service), Recorder()
        turn = ask(nursery, service.start_turn, session_id, "go", on_event=recorder)
        await asked(recorder)
        await service.interrupt(session_id)
        assert (await turn.failure(AgentError)).cause == "cancelled"
        assert names(await replay(service, session_id))[-1] == "run_failed"


async def test_an_interrupt_as_it_suspends_that_finds_no_room(tmp_path: Path) -> None:
    """It needs none: nobody else waits for the turn, and another one has taken the room."""
    desk, faults, recorder = Desk(), Faults(delay_after=1.0), Recorder()
    config = attrs.evolve(WEEK, limits=attrs.evolve(WEEK.limits, max_sessions=1))
    async with desk.open(tmp_path, config, faults=faults) as service, trio.open_nursery() as nursery:
        session_id, other = await new_session(service), await new_session(service)
        async with trio.open_nursery() as callers:
            ask(callers, service.start_turn, session_id, "go", on_event=recorder)
            ask(nursery, service.start_turn, other, "go", mode="queue", idempotency_key="key")
            await asked(recorder)
            callers.cancel_scope.cancel()
        await service.interrupt(session_id)
        assert names(await replay(service, session_id))[-1] == "run_failed"
        assert await waiting(service, session_id) == []
        nursery.cancel_scope.cancel()


async def test_a_stop_as_it_suspends(tmp_path: Path) -> None:
    """The turn is stored, and waits in the next process."""
    desk, faults = Desk(), Faults(delay_after=1.0)
    async with trio.open_nursery() as nursery:
        async with desk.open(tmp_path, faults=faults) as service:
            session_id, recorder = await new_session(service), Recorder()
            turn = ask(nursery, service.start_turn, session_id, "go", on_event=recorder)
            await asked(recorder)
        assert (await turn.failure(AgentError)).cause == "shutting_down"
    async with desk.open(tmp_path) as service:
        await trio.sleep(1)
        assert await waiting(service, session_id) == [("call-0-0", "approval")]


async def test_tools_that_the_caller_brought_are_there_when_it_wakes(tmp_path: Path) -> None:
    """As long as the process lives, the session stays in memory with them."""
    desk, ran = Desk(calls=[["own"]]), list[str]()

    @tool(description="Own.")
    async def own() -> str:
        ran.append(current_call().call_id)
        await trio.lowlevel.checkpoint()
        return "mine"

    async with desk.open(tmp_path) as service:
        session_id = await new_session(service)
        async with trio.open_nursery() as nursery:
            ask(nursery, partial(service.start_turn, session_id, "go", extra_tools=[own]))
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        await trio.sleep(400)
        await service.approve_tool(session_id, "call-0-0", "allow")
        await trio.sleep(1)
        assert await results(service, session_id) == ["mine"]


@attrs.define(eq=False)
class Client:
    """A client that runs the tool `own`, while it is there.

    Attributes:
        ran: the keys of the calls that it has run.
        here: whether it is connected.
    """

    ran: list[str] = attrs.field(factory=list)
    here: bool = True

    @property
    def tool(self) -> Tool:
        """The tool as the server has it."""

        async def own() -> str:
            """Do it where the client is."""
            await trio.sleep(0.1)
            if not self.here:
                raise ClientGoneError("gone")
            self.ran.append(current_call().key)
            return "mine"

        return attrs.evolve(tool(own), of_client=True)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_client_that_comes_back_runs_its_tool(tmp_path: Path, *, restarted: bool) -> None:
    """The call waits for it, without a task, in whichever process it comes back."""
    desk, client = Desk(calls=[["own"]]), Client(here=False)
    config = attrs.evolve(WEEK, gates=Gates())
    async with desk.open(tmp_path, config=config) as service:
        session_id = await new_session(service)
        async with trio.open_nursery() as nursery:
            ask(nursery, partial(service.start_turn, session_id, "go", extra_tools=[client.tool]))
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        await trio.sleep(400)
        assert await waiting(service, session_id) == [("call-0-0", "client")]
        assert actor_of(service, session_id) is None
        if not restarted:
            client.here = True
            assert (await service.wait_turn(session_id, extra_tools=[client.tool])).text == "done"
    async with desk.open(tmp_path, config=config) as service:
        if restarted:
            await trio.sleep(30)
            client.here = True
            assert (await service.wait_turn(session_id, extra_tools=[client.tool])).text == "done"
        assert await results(service, session_id) == ["mine"]
    assert len(client.ran) == 1


@pytest.mark.parametrize("key", [None, "key"])
async def test_a_client_whose_server_stops_is_asked_again(tmp_path: Path, key: str | None) -> None:
    """A call that it was asked for when the process ended is not reported: its tool runs elsewhere."""
    desk, client = Desk(calls=[["own", "look"]], hangs=3), Client()
    config = attrs.evolve(WEEK, gates=Gates())
    async with trio.open_nursery() as nursery:
        async with desk.open(tmp_path, config=config) as service:
            session_id = await new_session(service)
            started: dict[str, Any] = {"mode": "busy" if key is None else "queue", "idempotency_key": key}
            started["extra_tools"] = [client.tool]
            turn = ask(nursery, partial(service.start_turn, session_id, "go", **started))
            await trio.sleep(0.05)
        await turn.failure(AgentError)
    async with desk.open(tmp_path, config=config) as service:
        await trio.sleep(30)
        assert await waiting(service, session_id) == [("call-0-0", "client")]
        if key is None:
            done = await service.wait_turn(session_id, extra_tools=[client.tool])
        else:
            done = await service.start_turn(session_id, "go", **started)
        assert done.text == "done"
        assert (await results(service, session_id))[0] == "mine"
    assert len(client.ran) == 1


async def test_a_client_that_stays_away(tmp_path: Path) -> None:
    """The model is told in the end, and the turn goes on."""
    desk, client = Desk(calls=[["own"]]), Client(here=False)
    config = attrs.evolve(WEEK, gates=Gates(), limits=Limits(approval_timeout=20))
    async with desk.open(tmp_path, config=config) as service:
        session_id = await new_session(service)
        done = await service.start_turn(session_id, "go", extra_tools=[client.tool])
        assert done.text == "done"
        assert await results(service, session_id) == [
            "not known: the call has begun, and its result did not come in time"
        ]


async def test_a_client_that_is_back_before_its_old_connection_breaks(tmp_path: Path) -> None:
    """It is asked once that breaks, though it came while the call had not failed yet."""
    desk, client = Desk(calls=[["own"]]), Client()
    config = attrs.evolve(WEEK, gates=Gates())

    async def breaks() -> str:
        """Break."""
        await trio.sleep(5)
        raise ClientGoneError("gone")

    old = attrs.evolve(tool(name="own")(breaks), of_client=True)
    async with desk.open(tmp_path, config=config) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, partial(service.start_turn, session_id, "go", extra_tools=[old]))
        await trio.sleep(1)
        with trio.fail_after(60):
            assert (await service.wait_turn(session_id, extra_tools=[client.tool])).text == "done"
        assert await results(service, session_id) == ["mine"]
    assert len(client.ran) == 1


@pytest.mark.parametrize("moment", range(8))
async def test_a_client_that_is_back_while_the_turn_suspends(tmp_path: Path, moment: int) -> None:
    """It is asked at whichever step of the commit it comes."""
    desk, client, broken = Desk(calls=[["own"]]), Client(), trio.Event()
    config = attrs.evolve(WEEK, gates=Gates())

    async def breaks() -> str:
        """Break."""
        await trio.sleep(1)
        broken.set()
        raise ClientGoneError("gone")

    old = attrs.evolve(tool(name="own")(breaks), of_client=True)
    async with desk.open(tmp_path, config=config) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, partial(service.start_turn, session_id, "go", extra_tools=[old]))
        await broken.wait()
        for _ in range(moment):
            await trio.lowlevel.checkpoint()
        with trio.fail_after(60):
            assert (await service.wait_turn(session_id, extra_tools=[client.tool])).text == "done"
        assert await results(service, session_id) == ["mine"]
    assert len(client.ran) == 1


async def test_an_approved_call_waits_for_its_client(tmp_path: Path) -> None:
    """The client is away when the call is allowed, in another process: it is asked once it is back."""
    desk, client = Desk(calls=[["own"]]), Client()
    async with desk.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, partial(service.start_turn, session_id, "go", extra_tools=[client.tool]))
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    async with desk.open(tmp_path) as service:
        await service.approve_tool(session_id, "call-0-0", "allow")
        await trio.sleep(1)
        assert await waiting(service, session_id) == [("call-0-0", "client")]
        assert (await service.wait_turn(session_id, extra_tools=[client.tool])).text == "done"
        assert await results(service, session_id) == ["mine"]
    assert len(client.ran) == 1


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_client_that_is_back_before_the_approval(tmp_path: Path, *, restarted: bool) -> None:
    """It is asked once the call is allowed."""
    desk, client, gone = Desk(calls=[["own"]]), Client(), Client(here=False)
    async with desk.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, partial(service.start_turn, session_id, "go", extra_tools=[gone.tool]))
        await trio.sleep(1)
        if not restarted:
            waits = ask(nursery, partial(service.wait_turn, session_id, extra_tools=[client.tool]))
            await trio.sleep(1)
            await service.approve_tool(session_id, "call-0-0", "allow")
            with trio.fail_after(60):
                assert (await waits.value()).text == "done"
        nursery.cancel_scope.cancel()
    async with desk.open(tmp_path) as service, trio.open_nursery() as nursery:
        if restarted:
            waits = ask(nursery, partial(service.wait_turn, session_id, extra_tools=[client.tool]))
            await trio.sleep(1)
            await service.approve_tool(session_id, "call-0-0", "allow")
            with trio.fail_after(60):
                assert (await waits.value()).text == "done"
        assert await results(service, session_id) == ["mine"]
    assert (len(client.ran), len(gone.ran)) == (1, 0)


async def test_a_result_from_outside(tmp_path: Path) -> None:
    """A tool that says that its result comes later is not called again after a restart."""
    desk, tokens, config = Desk(calls=[["order"]]), list[str](), attrs.evolve(WEEK, gates=Gates())

    @tool(description="Order.", restart="replay")
    async def order() -> ToolOutput:
        await trio.lowlevel.checkpoint()
        tokens.append(current_call().token(expires=DAY))
        return ToolOutput.later(tokens[-1])

    def opened() -> AbstractAsyncContextManager[Service]:
        options: dict[str, Any] = {"tools": [order], "config": config, "clock": desk.clock, "store": tmp_path}
        return open_runtime(FunctionModel(desk.answer), **options)

    async with opened() as service:
        session_id = await left(service)
        assert await waiting(service, session_id) == [("call-0-0", "outside")]
    desk.ahead += DAY / 2
    async with opened() as service:
        await trio.sleep(30)
        assert await waiting(service, session_id) == [("call-0-0", "outside")]
        for _ in range(2):
            await service.complete_tool(tokens[0], "there it is")
        await trio.sleep(1)
        assert await results(service, session_id) == ["there it is"]
        with pytest.raises(InvalidParamsError):
            await service.complete_tool(tokens[0], "another one")
    assert len(tokens) == 1


async def test_tools_of_a_turn_that_was_ended_are_not_those_of_the_next(tmp_path: Path) -> None:
    """The caller of the next one brings a tool of the same name: it is that which runs, also once it was waited for."""
    desk, ran = Desk(calls=[["own"]]), list[str]()

    def own(word: str) -> Tool:
        async def own() -> str:
            """Say whose it is."""
            await trio.lowlevel.checkpoint()
            ran.append(word)
            return word

        return tool(own)

    async with desk.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        for word in ("first", "second"):
            turn = ask(nursery, partial(service.start_turn, session_id, "go", extra_tools=[own(word)]))
            await trio.sleep(1)
            if word == "first":
                await service.interrupt(session_id)
                await turn.failure(AgentError)
        await service.approve_tool(session_id, "call-0-0", "allow")
        await turn.value()
    assert ran == ["second"]


async def test_a_budget_that_was_used_up_ends_the_turn_after_a_wait(tmp_path: Path) -> None:
    """The call beyond the budget was refused before the others waited: the turn ends with them, as it would at once."""
    desk = Desk(calls=[["pay", "pay", "pay"]])
    async with desk.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, partial(service.start_turn, session_id, "go", budget=Budget(max_tool_calls=2)))
        for call in ("call-0-0", "call-0-1"):
            await trio.sleep(1)
            await service.approve_tool(session_id, call, "allow")
        assert (await turn.failure(BudgetExhaustedError)).cause == "tool_calls"
    assert desk.ran == ["call-0-0", "call-0-1"]


async def test_a_node_that_drains_is_not_busy_with_a_session_whose_callers_wait(tmp_path: Path) -> None:
    """The session declines to leave as long as somebody waits for it here, and is not asked again and again."""
    desk, config = Desk(), attrs.evolve(WEEK, limits=Limits(approval_timeout=30 * DAY, idle_after=0))
    async with desk.open(tmp_path, config=config) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go")
        await trio.sleep(1)
        before = supervisor_of(service).scheduler.evictions
        await trio.sleep(60)
        assert supervisor_of(service).scheduler.evictions - before < 100
        await service.approve_tool(session_id, "call-0-0", "allow")
        await turn.value()


async def test_a_turn_wakes_in_time_beside_a_call_in_the_background(tmp_path: Path) -> None:
    """The session that such a call keeps in memory is looked at like any other."""
    desk = Desk(calls=[["brew", "pay"]])

    @tool(description="Brew.", background=True, category="memory")
    async def brew() -> str:
        await trio.sleep(1000)
        return "tea"

    config = attrs.evolve(WEEK, limits=Limits(approval_timeout=30))
    options: dict[str, Any] = {"tools": [*desk.tools, brew], "config": config, "clock": desk.clock, "store": tmp_path}
    async with open_runtime(FunctionModel(desk.answer), **options) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go")
        await trio.sleep(60)
        assert turn.ended.is_set()
        assert (await results(service, session_id))[1] == "not run: it was not approved in time"


@pytest.mark.parametrize("restarts", [True, False])
async def test_a_turn_warns_of_its_budget_once(tmp_path: Path, *, restarts: bool) -> None:
    """Also if it waits after the warning, and goes on in the same process or in another one."""
    desk = Desk(calls=[["look"]] * 8 + [["pay"]])
    async with desk.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, partial(service.start_turn, session_id, "go", budget=Budget(max_steps=10)))
        await trio.sleep(1)
        assert await waiting(service, session_id) == [("call-8-0", "approval")]
        assert names(await replay(service, session_id)).count("budget_warning") == 1
        if not restarts:
            await service.approve_tool(session_id, "call-8-0", "allow")
            await service.wait_turn(session_id)
        nursery.cancel_scope.cancel()
    async with desk.open(tmp_path) as service:
        if restarts:
            await service.approve_tool(session_id, "call-8-0", "allow")
            await service.wait_turn(session_id)
        assert names(await replay(service, session_id)).count("budget_warning") == 1


async def test_a_turn_goes_on_with_its_answer_although_an_earlier_one_found_no_room(tmp_path: Path) -> None:
    """The store has taken steps of the turn since: nothing speaks against another one."""
    desk, faults = Desk(), Faults()
    async with desk.open(tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        faults.refuse, faults.refuse_kinds = apsw.FullError("no room"), (Commit,)
        await trio.sleep(1)  # by then the watcher of the store has had its first look
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "go", mode="queue")
        faults.refuse = None
        turn = ask(nursery, service.start_turn, session_id, "and now?", mode="busy")
        await trio.sleep(1)
        await service.approve_tool(session_id, "call-0-0", "allow")
        with trio.fail_after(1):
            assert (await turn.value()).text == "done"
        nursery.cancel_scope.cancel()


async def test_an_answer_ends_the_pause_after_a_refusal(tmp_path: Path) -> None:
    """A turn that could not be stored as it went on is tried again with the next answer, which was stored."""
    desk, faults = Desk(calls=[["pay", "pay"]]), Faults()
    async with desk.open(tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, service.start_turn, session_id, "go", mode="queue", idempotency_key="k")
        await trio.sleep(1)
        faults.refuse, faults.refuse_kinds = apsw.FullError("no room"), (Commit,)
        await service.approve_tool(session_id, "call-0-0", "allow")
        await trio.sleep(1)
        faults.refuse = None
        await service.approve_tool(session_id, "call-0-1", "allow")
        await trio.sleep(1)
        assert await results(service, session_id) == ["paid", "paid"]
        nursery.cancel_scope.cancel()
