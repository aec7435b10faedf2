"""Turns that an interrupt or a time limit cuts off: each ends alone, whatever the instant, and the next one runs."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.actors.turn.waiting_tool import CALL
from tests.support.asking import Asked, ask
from tests.support.checks import assert_valid_stream
from tests.support.models import Emit, FunctionModel, GatedModel, reply
from tests.support.runtime import Recorder, new_session, open_runtime, transcript
from warren.base.errors import AgentError, BudgetExhaustedError
from warren.calls.facade import RuntimeService
from warren.conversation.budget import Budget
from warren.conversation.categories import Gates, Switches
from warren.conversation.events import RunCompleted, ToolApprovalRequested
from warren.conversation.views import TurnResult
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config

pytestmark = pytest.mark.virtual_time
LIMIT = Budget(max_seconds=1)
ASK = Config(gates=Gates(shell="ask"), switches=Switches(shell="enable"))


class Slow:
    """A model whose calls take three seconds, in which the first one does as it is told."""

    def __init__(self, first: Callable[[], Awaitable[object]]) -> None:
        self.calls = 0
        self._first = first

    async def answer(self, _request: ModelRequest, _emit: Emit) -> ModelReply:
        self.calls += 1
        if self.calls == 1:
            await self._first()
        else:
            await trio.sleep(3)
        return reply(f"answer {self.calls}")


async def deaf() -> None:
    """Hear of no cancellation, up to the end of the turn."""
    with trio.CancelScope(shield=True):
        await trio.sleep(3)


async def breaks() -> None:
    """Raise an error beside Cancelled."""

    async def broken() -> None:
        try:
            await trio.sleep(3)
        finally:
            raise ValueError("a bug")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(broken)
        await trio.sleep(3)


async def cut_off(
    service: RuntimeService, session_id: str, nursery: trio.Nursery, *, limited: bool
) -> Asked[TurnResult]:
    """Begin a turn that a limit, or else an interrupt, cuts off after a second; return it when it has ended."""
    turn: Asked[TurnResult] = ask(nursery, service.start_turn, session_id, "one", budget=LIMIT if limited else None)
    if not limited:
        await trio.sleep(1)
        await service.interrupt(session_id)
    await turn.ended.wait()
    return turn


async def assert_goes_on(service: RuntimeService, session_id: str) -> None:
    """Fail where later turns do not run to their ends."""
    for number in (2, 3):
        recorder = Recorder()
        result = await service.start_turn(session_id, "next", on_event=recorder)
        assert result.text == f"answer {number}"
        assert_valid_stream(recorder.envelopes)
        assert len(recorder.only(RunCompleted)) == 1


@pytest.mark.parametrize("does", [trio.sleep_forever, breaks])
@pytest.mark.parametrize("limited", [False, True])
async def test_the_next_turn_runs(
    limited: bool,  # noqa: FBT001
    does: Callable[[], Awaitable[None]],
    store: Path | None,
) -> None:
    """A turn that was cut off says why, also beside a crash, and leaves nothing to the turns behind it."""
    model = Slow(does)
    async with open_runtime(FunctionModel(model.answer), store=store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = await cut_off(service, session_id, nursery, limited=limited)
        assert turn.took == pytest.approx(1)
        error = await turn.failure(BudgetExhaustedError if limited else AgentError)
        assert error.cause == ("time" if limited else "cancelled")
        await assert_goes_on(service, session_id)


@pytest.mark.parametrize("limited", [False, True])
async def test_a_turn_that_hears_of_it_too_late(limited: bool, store: Path | None) -> None:  # noqa: FBT001
    """A turn that has no checkpoint left counts as finished and is stored; the turns behind it run."""
    model = Slow(deaf)
    async with open_runtime(FunctionModel(model.answer), store=store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = await cut_off(service, session_id, nursery, limited=limited)
        assert (await turn.value()).text == "answer 1"
        await assert_goes_on(service, session_id)
        assert len(await transcript(service, session_id)) == 6


async def test_a_limit_ends_with_its_turn(store: Path | None) -> None:
    """A turn that ends within its time leaves no deadline to the next one, which takes longer."""
    model = Slow(trio.lowlevel.checkpoint)
    async with open_runtime(FunctionModel(model.answer), store=store) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "one", budget=LIMIT)
        await assert_goes_on(service, session_id)


async def test_time_that_is_over_before_the_turn(store: Path | None) -> None:
    """A turn without any time left asks no model, and so does the next one."""
    model = Slow(deaf)
    async with open_runtime(FunctionModel(model.answer), store=store) as service:
        session_id = await new_session(service, budget=Budget(max_seconds=2))
        assert (await service.start_turn(session_id, "one")).text == "answer 1"
        for _ in range(2):
            recorder = Recorder()
            with pytest.raises(BudgetExhaustedError):
                await service.start_turn(session_id, "two", on_event=recorder)
            assert_valid_stream(recorder.envelopes)
        assert model.calls == 1


async def test_an_interrupt_in_the_instant_of_the_last_piece(store: Path | None) -> None:
    """Whether the interrupt or the answer comes first, the turn ends once, and the next one runs."""
    model = GatedModel()
    async with open_runtime(model, store=store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        for answers_first in (True, False) * 5:
            model.gate = trio.Event()
            turn: Asked[TurnResult] = ask(nursery, service.start_turn, session_id, "one")
            await trio.testing.wait_all_tasks_blocked()
            if answers_first:
                model.gate.set()
            interrupt = ask(nursery, service.interrupt, session_id)
            if not answers_first:
                await trio.lowlevel.checkpoint()
                model.gate.set()
            await turn.ended.wait()
            await interrupt.ended.wait()
            assert (await service.start_turn(session_id, "two")).text == "done"


async def test_the_clock_that_an_approval_has_stopped(store: Path | None) -> None:
    """An interrupt while a call waits ends the turn, and leaves the next one without its deadline."""

    @tool(category="shell")
    async def wait(seconds: float) -> str:
        """Sleep."""
        await trio.sleep(seconds)
        return "rested"

    calls = 0

    async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
        nonlocal calls
        calls += 1
        await trio.sleep(3 if calls > 1 else 0)
        return reply("", CALL) if calls == 1 else reply(f"answer {calls}")

    async with (
        open_runtime(FunctionModel(answer), store=store, tools=[wait], config=ASK) as service,
        trio.open_nursery() as nursery,
    ):
        session_id, recorder = await new_session(service), Recorder()
        turn = ask(
            nursery,
            service.start_turn,
            session_id,
            "one",
            budget=LIMIT,
            on_event=recorder,
        )
        await trio.sleep(10)
        assert len(recorder.only(ToolApprovalRequested)) == 1
        await service.interrupt(session_id)
        assert (await turn.failure(AgentError)).cause == "cancelled"
        await assert_goes_on(service, session_id)


@pytest.mark.parametrize("how", ["stop", "archive"])
async def test_the_end_of_the_session_in_a_shielded_stretch(how: str, store: Path | None) -> None:
    """A turn whose session ends while it cannot hear of it is finished and stored before the session ends."""
    model, recorder = Slow(deaf), Recorder()
    async with trio.open_nursery() as nursery:
        async with open_runtime(FunctionModel(model.answer), store=store) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "one", on_event=recorder)
            await trio.sleep(1)
            await (service.archive(session_id) if how == "archive" else service.stop())
        assert (await turn.value()).text == "answer 1"
        assert_valid_stream(recorder.envelopes)
