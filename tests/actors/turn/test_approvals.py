"""Tool calls that wait for somebody's word, and kinds of tools that are switched on and off."""

import math
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from tests.support.checks import assert_valid_transcript, names
from tests.support.models import Emit, FunctionModel, reply, says
from tests.support.runtime import Recorder, new_session, open_runtime, transcript
from warren.actors.turn.approvals import Approvals, RunningTime
from warren.base.errors import (
    AgentError,
    BudgetExhaustedError,
    InvalidParamsError,
    SessionNotFoundError,
    SessionNotRunningError,
)
from warren.calls.facade import SessionService
from warren.conversation import codec
from warren.conversation.budget import Budget
from warren.conversation.categories import Decision, Gates, Switches
from warren.conversation.events import Envelope, Event, ToolApprovalRequested, ToolApprovalResolved
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock
from warren.conversation.views import TurnResult, pending_approval
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import Tool, tool
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time
ASK = Config(gates=Gates(shell="ask"), switches=Switches(shell="enable"))
USED: list[str] = []


@tool(category="shell")
async def shell(command: str) -> str:
    """Run a command."""
    USED.append(command)
    return f"ran {command}"


@tool
async def plain() -> str:
    """Do nothing."""
    return "nothing done"


@pytest.fixture(autouse=True)
def _nothing_used() -> None:
    USED.clear()


def calls(*commands: str) -> ModelReply:
    """Return an answer that asks for commands, `call-1` first, and for the plain tool."""
    asked = [ToolUseBlock(f"call-{index + 1}", "shell", {"command": each}) for index, each in enumerate(commands)]
    return reply("", *asked, ToolUseBlock("other", "plain", {}))


@attrs.define
class Asked(Recorder):
    """A callback that lets a test wait for the first request for approval."""

    seen: trio.Event = attrs.field(factory=trio.Event)

    def __call__(self, envelope: Envelope) -> None:
        super().__call__(envelope)
        if isinstance(envelope.event, ToolApprovalRequested):
            self.seen.set()


async def results(service: SessionService, session_id: str) -> dict[str, tuple[str, bool]]:
    """Return what the model was told of each call, and whether as an error."""
    messages = await transcript(service, session_id)
    assert_valid_transcript(messages)
    found = [result for message in messages if isinstance(message, ToolResultsMessage) for result in message.results]
    return {result.tool_use_id: (result.content, result.is_error) for result in found}


async def test_a_call_waits_for_its_approval_while_others_run() -> None:
    """The call of a kind that asks runs once somebody allows it; nothing else waits for that."""
    recorder = Asked()
    async with (
        open_runtime(says(calls("ls"), reply("done")), tools=(shell, plain), config=ASK) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        nursery.start_soon(lambda: service.start_turn(session_id, "go", on_event=recorder))
        await recorder.seen.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert USED == []
        assert "tool_result_received" in names(recorder.envelopes)  # of the other one
        await service.approve_tool(session_id, "call-1", "allow", reason="fine")
    assert USED == ["ls"]
    (asked,) = recorder.only(ToolApprovalRequested)
    assert (asked.name, dict(asked.args), asked.category, asked.timeout_ms) == (
        "shell",
        {"command": "ls"},
        "shell",
        300_000,
    )
    assert recorder.only(ToolApprovalResolved) == [ToolApprovalResolved("call-1", "shell", "allow", "fine")]


async def test_a_late_decision_answers_no_later_call() -> None:
    """A model of one's own may use an id again: the second call has another one, about which nobody has decided."""
    recorder = Recorder()
    model = says(
        reply("", ToolUseBlock("call-1", "shell", {"command": "ls"})),
        *[reply("", ToolUseBlock("call-1", "shell", {"command": "rm"})), reply("done")],
    )
    async with open_runtime(model, tools=(shell,), config=ASK) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        nursery.start_soon(lambda: service.start_turn(session_id, "go", on_event=recorder))
        await trio.testing.wait_all_tasks_blocked()
        await service.approve_tool(session_id, "call-1", "allow")
        await trio.testing.wait_all_tasks_blocked()
        await service.approve_tool(session_id, "call-1", "allow")  # a repetition has the answer of then
        with pytest.raises(InvalidParamsError):
            await service.approve_tool(session_id, "call-1", "deny")
        await service.approve_tool(session_id, "call-1-2", "deny")
    assert USED == ["ls"]


async def test_whoever_reads_a_session_sees_the_calls_that_wait() -> None:
    """The view has the calls with all that a decision needs, the list has their number; both end with the decision."""
    recorder = Asked()
    async with (
        open_runtime(says(calls("ls"), reply("done")), tools=(shell, plain), config=ASK) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        nursery.start_soon(lambda: service.start_turn(session_id, "go", on_event=recorder))
        await recorder.seen.wait()
        await trio.testing.wait_all_tasks_blocked()
        (call,) = (await service.read(session_id)).state.pending_approvals
        assert (call.call_id, call.name, dict(call.args), call.category) == (
            "call-1",
            "shell",
            {"command": "ls"},
            "shell",
        )
        asked = next(each for each in recorder.envelopes if isinstance(each.event, ToolApprovalRequested))
        assert abs((call.until - asked.timestamp).total_seconds() - 300) < 60
        assert [each.pending_approvals for each in (await service.list()).sessions] == [1]
        await service.approve_tool(session_id, call.call_id, "allow")
        assert (await service.read(session_id)).state.pending_approvals == ()
        assert [each.pending_approvals for each in (await service.list()).sessions] == [0]


@pytest.mark.parametrize("may_have_run", [False, True])
async def test_a_call_that_may_have_run_says_so(*, may_have_run: bool) -> None:
    """The event and the view say it; for other calls neither has the member on the wire."""
    seen: list[Event] = []
    approvals = Approvals(Gates(), 60, seen.append, RunningTime(math.inf))
    call = ToolUseBlock("call-1", "shell", {"command": "ls"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(approvals.decided, approvals.wait_for(call, shell, may_have_run=may_have_run))
        await trio.testing.wait_all_tasks_blocked()
        (wait,) = approvals.waiting
        pending = pending_approval(wait)
        (asked,) = seen
        assert isinstance(asked, ToolApprovalRequested)
        assert (asked.may_have_run, pending.may_have_run, asked.stands_alone) == (may_have_run,) * 3
        for shown in (asked, pending):
            on_the_wire = codec.parse(codec.encode(shown))
            assert on_the_wire.get("may_have_run") is (True if may_have_run else None)
        approvals.answer(wait.changed(state="answered", decision=Decision(allow=True)))


async def test_waiting_for_approval_is_free() -> None:
    """The time in which a call waits for somebody's word draws from no time budget; before and after it does."""
    recorder = Asked()
    turns: list[TurnResult | BudgetExhaustedError] = []

    async def slow(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.sleep(1)
        return calls("ls") if not recorder.seen.is_set() else reply("done")

    async def turn(service: SessionService, session_id: str, seconds: float) -> None:
        try:
            turns.append(
                await service.start_turn(session_id, "go", budget=Budget(max_seconds=seconds), on_event=recorder)
            )
        except BudgetExhaustedError as exc:
            turns.append(exc)

    async with open_runtime(FunctionModel(slow), tools=(shell, plain), config=ASK) as service:
        for seconds in (2.5, 1.5):
            recorder = Asked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(turn, service, await new_session(service), seconds)
                await recorder.seen.wait()
                await trio.sleep(100)
                await service.approve_tool(recorder.envelopes[0].session_id, "call-1", "allow")
    finished, ended = turns
    assert isinstance(finished, TurnResult)
    assert isinstance(ended, BudgetExhaustedError)
    assert (ended.cause, ended.details["used"]) == ("time", pytest.approx(1.5))


async def test_a_refusal_is_told_to_the_model() -> None:
    """A call that somebody refuses is not run, and the model hears why; the turn goes on."""
    recorder = Asked()
    async with (
        open_runtime(says(calls("rm -r /"), reply("as you like")), tools=(shell, plain), config=ASK) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        nursery.start_soon(lambda: service.start_turn(session_id, "go", on_event=recorder))
        await recorder.seen.wait()
        await service.approve_tool(session_id, "call-1", "deny", reason="too bold")
        with pytest.raises(InvalidParamsError) as again:
            await service.approve_tool(session_id, "call-1", "allow")
        assert again.value.path == "$.call_id"
        await trio.testing.wait_all_tasks_blocked()
        assert (await results(service, session_id))["call-1"] == ("not run: it was refused: too bold", True)
    assert USED == []


async def test_nobody_answers() -> None:
    """A call that nobody speaks of is refused after the time that the runtime gives it."""
    config = attrs.evolve(ASK, limits=Limits(approval_timeout=20))
    recorder, began = Recorder(), trio.current_time()
    async with open_runtime(says(calls("ls"), reply("ok")), tools=(shell, plain), config=config) as service:
        done = await service.create_session("go", on_event=recorder)
        assert trio.current_time() - began == pytest.approx(20, abs=1)
        assert (await results(service, done.session_id))["call-1"] == ("not run: it was not approved in time", True)
    assert [event.decision for event in recorder.only(ToolApprovalResolved)] == ["timeout"]


async def test_an_interrupt_ends_the_waiting(tmp_path: Path) -> None:
    """While a call waits the turn can be interrupted: the call has an error result, and the next turn runs."""
    recorder = Asked()
    async with open_runtime(
        says(calls("ls"), reply("next")), tools=(shell, plain), config=ASK, store=tmp_path
    ) as service:
        session_id = await new_session(service)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def turn() -> None:
                with pytest.raises(AgentError) as caught:
                    await service.start_turn(session_id, "go", on_event=recorder)
                assert caught.value.cause == "cancelled"

            await recorder.seen.wait()
            await service.interrupt(session_id)
        with pytest.raises(SessionNotRunningError):
            await service.approve_tool(session_id, "call-1", "allow")
        assert (await results(service, session_id))["call-1"][1]
        assert (await service.start_turn(session_id, "again")).text == "next"
    assert USED == []


@pytest.mark.parametrize("path", ["config", "session", "turn"])
async def test_denied_kinds(path: str) -> None:
    """A kind that is denied anywhere above or in the turn is never run, whatever else is said."""
    deny = Gates(shell="deny")
    config = attrs.evolve(ASK, gates=deny) if path == "config" else ASK
    async with open_runtime(says(calls("ls"), reply("ok")), tools=(shell, plain), config=config) as service:
        session_id = await new_session(service, approvals=deny if path == "session" else Gates(shell="auto"))
        await service.start_turn(session_id, "go", approvals=deny if path == "turn" else None)
        assert (await results(service, session_id))["call-1"] == (
            "not run: shell tools are denied here; go on without them",
            True,
        )
    assert USED == []


def offering() -> tuple[FunctionModel, list[list[str]]]:
    """Return a model, and the names of the tools that each of its calls was offered."""
    offered: list[list[str]] = []

    async def answer(request: ModelRequest, _emit: object) -> ModelReply:
        await trio.lowlevel.checkpoint()
        offered.append([spec.name for spec in request.tools])
        return reply("ok")

    return FunctionModel(answer), offered


@pytest.mark.parametrize(
    ("runtime", "session", "turn", "expected"),
    [
        ("inherit", "inherit", "inherit", ["plain"]),
        ("enable", "inherit", "inherit", ["shell", "plain"]),
        ("enable", "disable", "inherit", ["plain"]),
        ("enable", "disable", "enable", ["shell", "plain"]),
        ("disable", "enable", "inherit", ["shell", "plain"]),
        ("disable", "enable", "disable", ["plain"]),
    ],
)
async def test_switches(tmp_path: Path, runtime: str, session: str, turn: str, expected: list[str]) -> None:
    """The turn's switch counts before the session's, and that before the runtime's; also after a restart."""
    model, offered = offering()
    config = Config(switches=Switches(shell=runtime))  # type: ignore[arg-type]
    tools: tuple[Tool, ...] = (shell, plain)
    async with open_runtime(model, tools=tools, config=config, store=tmp_path) as service:
        session_id = await new_session(service, overrides=Switches(shell=session))  # type: ignore[arg-type]
        await service.start_turn(session_id, "go", overrides=Switches(shell=turn))  # type: ignore[arg-type]
    async with open_runtime(model, tools=tools, config=config, store=tmp_path) as service:
        shown = (await service.read(session_id)).state.overrides
        assert shown == Switches(shell=session)  # type: ignore[arg-type]
        await service.start_turn(session_id, "go", overrides=Switches(shell=turn))  # type: ignore[arg-type]
    assert offered == [expected, expected]


async def test_what_is_not_there_cannot_be_enabled() -> None:
    """Enabling tools that the runtime does not have names the field; the capabilities tell which it has."""
    async with open_runtime(says(), tools=(shell,)) as service:
        with pytest.raises(InvalidParamsError) as caught:
            await service.create_session("hi", overrides=Switches(builtins="enable"))
        assert caught.value.path == "$.overrides.builtins"
        tools = service.capabilities().tools
        assert (tools["shell"], tools["callback"], tools["builtins"]) == ("off", "on", "unavailable")
        with pytest.raises(SessionNotFoundError):
            await service.approve_tool("nobody", "call-1", "allow")
