"""The fence: without a proved lease a turn shows nothing, starts nothing, acknowledges nothing; it goes on with one."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.compacting import assert_whole_compactions, compacting, wants_summary, whole_log
from tests.support.faulty_store import Faults
from tests.support.models import FunctionModel, reply, says
from tests.support.runtime import new_session, open_runtime, replay, storage_of
from warren.actors.calls.service import Service
from warren.actors.events.fence import Fence, Guard
from warren.base.errors import AgentError, ProviderError, StoreError
from warren.conversation.categories import Gates
from warren.conversation.events import (
    CompactionCompleted,
    CompactionStarted,
    Event,
    Retrying,
    RunFailed,
    RunStarted,
    TextDelta,
    ToolApprovalRequested,
    ToolApprovalResolved,
)
from warren.conversation.messages import ToolUseBlock
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.models.tools import Tool, ToolOutput, current_call, tool
from warren.settings.config import Config

pytestmark = pytest.mark.virtual_time


@attrs.define(eq=False)
class Steps:
    """A model that says one word a step when the test lets it, and a tool that notes its calls."""

    script: list[ModelReply]
    asked: int = 0
    ran: list[str] = attrs.field(factory=list)
    gate: trio.Event = attrs.field(factory=trio.Event)

    async def answer(self, _request: ModelRequest, emit: Any) -> ModelReply:
        self.asked += 1
        given = self.script.pop(0)
        await self.gate.wait()
        self.gate = trio.Event()
        emit(TextPiece(given.message.text))
        await trio.lowlevel.checkpoint()
        return given

    def model(self) -> FunctionModel:
        """Return the model."""
        return FunctionModel(self.answer)

    async def go(self) -> None:
        """Let the model's call that runs, or the next one, end."""
        self.gate.set()
        await trio.testing.wait_all_tasks_blocked()


def freeze(service: Service) -> None:
    """Let the proof of a runtime's leases run out, as while its process stands still."""
    storage_of(service).fence.until = -math.inf


async def thaw(service: Service) -> None:
    """Renew the leases of a runtime."""
    await storage_of(service).renew()
    await trio.testing.wait_all_tasks_blocked()


def note(steps: Steps) -> Tool:
    """Return a tool that notes its calls."""

    @tool
    async def note(text: Annotated[str, "any"]) -> str:
        """Note."""
        steps.ran.append(text)
        await trio.lowlevel.checkpoint()
        return text

    return note


@asynccontextmanager
async def watched(service: Service) -> AsyncIterator[tuple[str, list[Event]]]:
    """Follow a new session; gives its id and the events that its subscriber has got."""
    session_id, seen = await new_session(service), list[Event]()

    async def follow() -> None:
        async with service.subscribe(session_id, after_seq=0) as events:
            async for envelope in events:
                seen.append(envelope.event)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        yield session_id, seen
        nursery.cancel_scope.cancel()


CALL = ToolUseBlock("c1", "note", {"text": "hello"})


async def test_nothing_is_shown_or_started_until_the_lease_is_proved_again(tmp_path: Path) -> None:
    """The model's answer comes meanwhile: its text is shown, and its tool is called, after the next renewal."""
    steps = Steps([reply("one", CALL), reply("two")])
    async with (
        open_runtime(steps.model(), store=tmp_path, tools=[note(steps)]) as service,
        watched(service) as (session_id, seen),
        trio.open_nursery() as nursery,
    ):
        turn = ask(nursery, service.start_turn, session_id, "go")
        await trio.testing.wait_all_tasks_blocked()
        before = list(seen)
        freeze(service)
        await steps.go()
        assert (seen, steps.ran, steps.asked) == (before, [], 1)
        await thaw(service)
        assert TextDelta("one") in seen
        assert (steps.ran, steps.asked) == (["hello"], 2)
        freeze(service)
        await steps.go()
        assert not any(event == TextDelta("two") for event in seen)
        assert service.health().running_turns == 1
        await thaw(service)
        assert (await turn.value()).text == "two"
        events = await replay(service, session_id)
        assert [each.seq for each in events] == list(range(1, len(events) + 1))
        assert [each.event for each in events] == seen


async def test_a_turn_that_begins_meanwhile_waits(tmp_path: Path) -> None:
    """It shows no first event and asks no model."""
    steps = Steps([reply("one")])
    async with (
        open_runtime(steps.model(), store=tmp_path) as service,
        watched(service) as (session_id, seen),
        trio.open_nursery() as nursery,
    ):
        freeze(service)
        turn = ask(nursery, service.start_turn, session_id, "go")
        await trio.testing.wait_all_tasks_blocked()
        assert (seen, steps.asked) == ([], 0)
        await thaw(service)
        assert (steps.asked, seen[0]) == (1, RunStarted(session_id, "go"))
        await steps.go()
        assert (await turn.value()).first_seq == 1


@pytest.mark.parametrize("begun", [False, True])
async def test_a_turn_waits_for_a_proof_for_as_long_as_for_the_store(tmp_path: Path, begun: bool) -> None:  # noqa: FBT001
    """Then it fails, shows nothing more and is not stored; its prompt waits on, and its key finds it."""
    steps, faults = Steps([reply("one"), reply("two")]), Faults()
    async with (
        open_runtime(steps.model(), store=tmp_path, faults=faults) as service,
        watched(service) as (session_id, seen),
        trio.open_nursery() as nursery,
    ):
        faults.unrenewed = StoreError("no answer", cause="unreachable")
        if not begun:
            freeze(service)
        turn = ask(nursery, service.start_turn, session_id, "go", mode="queue", idempotency_key="k")
        await trio.testing.wait_all_tasks_blocked()
        if begun:
            freeze(service)
            await steps.go()
        before = trio.current_time()
        failed = await turn.failure(StoreError)
        assert (failed.cause, failed.retryable) == ("unreachable", True)
        assert trio.current_time() - before <= (await storage_of(service).reader()).patience
        assert not any(isinstance(event, TextDelta) for event in seen)
        assert [each.text for each in await service.inputs(session_id)] == ["go"]
        faults.unrenewed = None
        await thaw(service)
        again = ask(nursery, service.start_turn, session_id, "go", mode="queue", idempotency_key="k")
        await trio.testing.wait_all_tasks_blocked()
        await steps.go()
        assert (await again.value()).text == ("two" if begun else "one")
        assert (await service.history(session_id)).total == 2


async def test_a_turn_that_gives_up_names_the_fault_of_the_store() -> None:
    """The leases could not be renewed on a full disk: that is what its caller can do something about."""
    fence = Fence(clock=trio.current_time, until=-math.inf, patience=5.0)
    fence.fault = StoreError("the disk is full", cause="disk_full")

    async def has_lease() -> bool:
        await trio.lowlevel.checkpoint()
        return True

    guard = Guard("a", fence, lambda _event: 0, has_lease)
    for _ in range(2):
        with pytest.raises(StoreError, match="the disk is full") as refused:
            await guard.wait()
        assert (refused.value.cause, refused.value.retryable) == ("disk_full", True)
        fence.renewed(trio.current_time(), 60.0, 0)  # comes too late: the turn has heard that it is over


async def test_a_turn_that_waits_can_be_interrupted(tmp_path: Path) -> None:
    """It does not take the return of the store for that."""
    steps = Steps([reply("one", CALL)])
    async with (
        open_runtime(steps.model(), store=tmp_path, tools=[note(steps)]) as service,
        watched(service) as (session_id, _),
        trio.open_nursery() as nursery,
    ):
        turn = ask(nursery, service.start_turn, session_id, "go")
        await trio.testing.wait_all_tasks_blocked()
        freeze(service)
        await steps.go()
        await service.interrupt(session_id)
        assert (await turn.failure(AgentError)).cause == "cancelled"
        assert steps.ran == []


async def test_a_session_that_was_taken_over_shows_no_more(tmp_path: Path) -> None:
    """The turn of the process that stood still ends as lost; the other one's goes on, and its numbers are higher."""
    steps = Steps([reply("one", CALL)])
    async with (
        open_runtime(steps.model(), store=tmp_path, tools=[note(steps)]) as zombie,
        open_runtime(says(["mine"]), store=tmp_path) as other,
        watched(zombie) as (session_id, seen),
        trio.open_nursery() as nursery,
    ):
        turn = ask(nursery, zombie.start_turn, session_id, "go")
        await trio.testing.wait_all_tasks_blocked()
        before = list(seen)
        freeze(zombie)
        await late(zombie)
        assert (await other.start_turn(session_id, "and here")).text == "mine"
        await steps.go()
        assert (seen, steps.ran) == (before, [])
        await thaw(zombie)
        assert (await turn.failure(StoreError)).cause == "lease_lost"
        shown = [event for event in seen if not isinstance(event, RunFailed)]
        assert TextDelta("one") not in shown
        assert steps.ran == []
        numbers = [each.seq for each in await replay(other, session_id)]
        assert min(numbers) > 1_000_000


async def test_a_session_that_was_taken_over_refuses_nothing_for_good(tmp_path: Path) -> None:
    """The process that stood still cannot know of the other one's turn: a request that concerns it is sent again."""
    tokens = list[str]()

    @tool
    async def lend() -> ToolOutput:
        """Hand a token out, and never come to an end."""
        tokens.append(current_call().token(expires=3600))
        await trio.sleep_forever()
        raise AssertionError

    async with (
        open_runtime(says(["one"]), store=tmp_path, tools=[lend]) as zombie,
        open_runtime(says(reply("", ToolUseBlock("c1", "lend", {}))), store=tmp_path, tools=[lend]) as other,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(zombie)
        await zombie.start_turn(session_id, "go")
        freeze(zombie)
        await late(zombie)
        turn = ask(nursery, other.start_turn, session_id, "and here")
        while not tokens:
            await trio.testing.wait_all_tasks_blocked()
        requests = (
            partial(zombie.complete_tool, tokens[0], "done"),
            partial(zombie.interrupt, session_id),
            partial(zombie.wait_turn, session_id),
        )
        for request in requests:
            with pytest.raises(StoreError, match="cannot tell") as refused:
                await request()
            assert refused.value.retryable
        await other.interrupt(session_id)
        assert (await turn.failure(AgentError)).cause == "cancelled"


async def late(service: Service) -> None:
    """Let a runtime's leases expire in the store, as when its process stood still for too long."""
    store: Any = await storage_of(service).reader()
    me = store.behind.me
    clock, me.clock = me.clock, lambda: 0.0
    await store.behind.renew()
    me.clock, me.lapses = clock, 0


async def test_a_late_renewal_without_a_takeover_costs_nothing(tmp_path: Path) -> None:
    """Nobody else wanted the session: the turn goes on and is stored, and so is the next one."""
    steps = Steps([reply("one"), reply("two")])
    async with (
        open_runtime(steps.model(), store=tmp_path) as service,
        watched(service) as (session_id, _),
        trio.open_nursery() as nursery,
    ):
        turn = ask(nursery, service.start_turn, session_id, "go")
        await trio.testing.wait_all_tasks_blocked()
        await late(service)
        await thaw(service)
        assert storage_of(service).lapses == 1
        await steps.go()
        assert (await turn.value()).text == "one"
        turn = ask(nursery, service.start_turn, session_id, "go on")
        await steps.go()
        assert (await turn.value()).text == "two"


async def test_a_compaction_is_stored_with_all_its_events(tmp_path: Path) -> None:
    """The proof runs out while the model summarises: the new head waits, as events that are held back precede it."""
    asked = 0

    async def answer(request: ModelRequest, _emit: Any) -> ModelReply:
        nonlocal asked
        await trio.lowlevel.checkpoint()
        if not wants_summary(request):
            return reply("word " * 1_000, usage=Usage(2_000, 100))
        asked += 1
        freeze(service)
        if asked == 1:
            raise ProviderError("too busy", retryable=True)
        return reply("a summary", usage=Usage(100, 10))

    async with compacting(FunctionModel(answer), tmp_path) as service:
        session_id = await new_session(service)
        for _ in range(3):
            await service.start_turn(session_id, "go")
        events = [each.event for each in await whole_log(service, session_id)]
    told = [type(each) for each in events if isinstance(each, CompactionStarted | Retrying | CompactionCompleted)]
    assert told[:3] == [CompactionStarted, Retrying, CompactionCompleted]
    assert_whole_compactions(events)


async def test_a_decision_counts_and_nothing_runs_meanwhile(tmp_path: Path) -> None:
    """The store takes it from whoever has the lease by its epoch; the call runs once the lease is proved again."""
    steps = Steps([reply("", CALL), reply("done")])
    config = Config(gates=Gates(callback="ask"))
    async with (
        open_runtime(steps.model(), store=tmp_path, tools=[note(steps)], config=config) as service,
        watched(service) as (session_id, seen),
        trio.open_nursery() as nursery,
    ):
        turn = ask(nursery, service.start_turn, session_id, "go")
        await steps.go()
        assert any(isinstance(event, ToolApprovalRequested) for event in seen)
        freeze(service)
        await service.approve_tool(session_id, "c1", "allow")
        await trio.testing.wait_all_tasks_blocked()
        assert not any(isinstance(event, ToolApprovalResolved) for event in seen)
        assert steps.ran == []
        await thaw(service)
        await steps.go()
        assert (await turn.value()).text == "done"
        assert steps.ran == ["hello"]


async def test_events_keep_their_order_behind_the_fence() -> None:
    """Those that were held back come first, whether the turn waits or just goes on."""
    fence, shown = Fence(clock=trio.current_time), list[Event]()

    def publish(event: Event) -> int:
        shown.append(event)
        return len(shown)

    async def has_lease() -> bool:
        await trio.lowlevel.checkpoint()
        return True

    guard = Guard("a", fence, publish, has_lease)
    one, two, three, four = (TextDelta(text) for text in ("1", "2", "3", "4"))
    assert emit(guard, one) == 1
    fence.renewed(trio.current_time(), 5.0, 0)
    await trio.sleep(5.0)
    assert (guard.open, emit(guard, two)) == (False, 0)
    fence.renewed(trio.current_time(), 5.0, 0)
    assert emit(guard, three) == 3
    await trio.sleep(6.0)
    emit(guard, four)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.wait)
        await trio.testing.wait_all_tasks_blocked()
        assert shown == [one, two, three]
        fence.renewed(trio.current_time(), 5.0, 1)
    assert shown == [one, two, three, four]


def emit(guard: Guard, event: Event) -> int:
    """Publish an event as a log does."""
    return guard.emit(event)


async def test_a_store_that_cannot_be_read_proves_nothing() -> None:
    """After a lapse the turn waits until the store says who has the session."""
    fence, asked = Fence(clock=trio.current_time), 0

    async def has_lease() -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise StoreError("away", cause="unreachable")
        return asked == 2

    guard = Guard("a", fence, lambda _event: 0, has_lease)
    fence.renewed(trio.current_time(), 5.0, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.wait)
        await trio.testing.wait_all_tasks_blocked()
        assert asked == 1
        fence.renewed(trio.current_time(), 5.0, 1)
    assert asked == 2
    fence.renewed(trio.current_time(), 5.0, 2)
    with pytest.raises(StoreError) as lost:
        await guard.wait()
    assert lost.value.cause == "lease_lost"


async def test_events_that_were_held_back_are_shown_before_the_turn_goes_on() -> None:
    """Also if the lease was proved again before the turn came to wait for it: the commit has to have all of them."""
    shown = list[Event]()

    async def has_lease() -> bool:
        await trio.lowlevel.checkpoint()
        return True

    def publish(event: Event) -> int:
        shown.append(event)
        return len(shown)

    fence = Fence(clock=trio.current_time, until=-math.inf)
    guard = Guard("a", fence, publish, has_lease)
    emit(guard, TextDelta("held"))
    fence.renewed(trio.current_time(), 5.0, 0)
    assert (guard.open, shown) == (True, [])
    await guard.wait()
    assert shown == [TextDelta("held")]
