"""A tool that asks a person while it works, by its context."""

from pathlib import Path

import pytest
import trio

from tests.support.asking import ask
from tests.support.models import reply, says
from tests.support.runtime import Recorder, new_session, open_runtime
from warren.base.principals import Principal
from warren.calls.facade import SessionService
from warren.conversation.categories import Answer, Decision
from warren.conversation.events import ToolApprovalRequested, ToolApprovalResolved
from warren.conversation.messages import ToolUseBlock
from warren.models.tools import NOT_ANSWERED, ToolContext, tool
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time
CALL = ToolUseBlock("a", "book", {"seat": "3c"})
ANSWERS: list[Decision] = []


@tool
async def book(seat: str, context: ToolContext) -> str:
    """Book a seat."""
    decision = await context.ask("Is an aisle seat good?", seat=seat)
    ANSWERS.append(decision)
    return f"{seat} for {context.owner} of {context.tenant}" if decision.allow else f"no: {decision.reason}"


@tool
def book_in_a_thread(seat: str, context: ToolContext) -> str:
    """Book a seat, by a plain function."""
    decision: Decision = trio.from_thread.run(context.ask, "Is an aisle seat good?")
    return f"booked {seat}" if decision.allow else "not booked"


@pytest.fixture(autouse=True)
def no_answers() -> None:
    """Forget the answers of other tests."""
    ANSWERS.clear()


async def waiting(service: SessionService) -> str:
    """Return the id of the question that waits."""
    while not (listed := (await service.approvals()).approvals):  # noqa: ASYNC110 - as a program looks for them
        await trio.sleep(0.01)
    assert [each.question_of for each in listed] == ["a"]
    assert "aisle" in listed[0].args["question"]
    return listed[0].call_id


@pytest.mark.parametrize("home", ["memory", "store"])
@pytest.mark.parametrize("answer", ["allow", "deny"])
async def test_the_tool_gets_the_answer(answer: Answer, home: str, tmp_path: Path) -> None:
    """Although its calls need no approval. Listed, told as an event, and decided as an approval is."""
    model = says(reply("", CALL), reply("done"))
    recorder = Recorder()
    async with (
        open_runtime(model, tools=[book], store=tmp_path if home == "store" else None) as opened,
        trio.open_nursery() as nursery,
    ):
        service = opened.as_(Principal(name="ann"))
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go", on_event=recorder)
        reason = None if answer == "allow" else "by the window"
        await service.approve_tool(session_id, await waiting(service), answer, reason=reason)
        await turn.value()
    (result,) = [each.result for each in recorder.calls]
    assert result == ("3c for ann of default" if answer == "allow" else "no: by the window")
    (asked,) = recorder.only(ToolApprovalRequested)
    assert (asked.question_of, asked.args) == ("a", {"question": "Is an aisle seat good?", "seat": "3c"})
    assert [event.decision for event in recorder.only(ToolApprovalResolved)] == [answer]


async def test_nobody_answers() -> None:
    """Until the time for approvals is over: that is a no, which says so."""
    config = Config(limits=Limits(approval_timeout=30.0))
    recorder = Recorder()
    async with open_runtime(says(reply("", CALL), reply("done")), tools=[book], config=config) as service:
        await service.create_session("go", on_event=recorder)
    assert [each.result for each in recorder.calls] == [f"no: {NOT_ANSWERED}"]


async def test_outside_of_a_call_nobody_can_be_asked() -> None:
    """As in a unit test of the tool."""
    assert await book("3c", ToolContext("s", 1, 1, "a", "book", {})) == f"no: {NOT_ANSWERED}"


async def test_a_call_that_runs_again_has_its_answer(tmp_path: Path) -> None:
    """It was given before the process ended; nobody is asked twice."""
    stands = trio.Event()

    @tool(name="book", restart="replay")
    async def slow(seat: str, context: ToolContext) -> str:
        """Book a seat, slowly."""
        decision = await context.ask("Is an aisle seat good?", seat=seat)
        ANSWERS.append(decision)
        if len(ANSWERS) == 1:
            stands.set()
            await trio.sleep_forever()
        return "booked"

    async with (
        open_runtime(says(reply("", CALL)), tools=[slow], store=tmp_path) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        nursery.start_soon(service.start_turn, session_id, "go")
        await service.approve_tool(session_id, await waiting(service), "allow")
        await stands.wait()
        nursery.cancel_scope.cancel()
    async with open_runtime(says(reply("booked")), tools=[slow], store=tmp_path) as service:
        assert (await service.wait_turn(session_id)).text == "booked"
    assert [each.allow for each in ANSWERS] == [True, True]


async def test_a_plain_function_asks_from_its_thread() -> None:
    """By trio's own way from a thread to the loop."""
    call = ToolUseBlock("a", "book_in_a_thread", {"seat": "3c"})
    model, recorder = says(reply("", call), reply("done")), Recorder()
    async with open_runtime(model, tools=[book_in_a_thread]) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "go", on_event=recorder)
        await service.approve_tool(session_id, await waiting(service), "allow")
        await turn.value()
    assert [each.result for each in recorder.calls] == ["booked 3c"]
