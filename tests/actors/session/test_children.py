"""Sessions that work for other sessions: the end of a child is the result of the call that waits for it."""

import shutil
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.checks import assert_valid_transcript
from tests.support.crashing import crash
from tests.support.faulty_store import Faults, FaultyStore
from tests.support.hanging import expire_leases, store_of
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import new_session, open_runtime, replay, supervisor_of, transcript
from warren.actors.calls.service import Service
from warren.actors.session.children import Wanted
from warren.base.errors import (
    AgentError,
    BudgetExhaustedError,
    CapacityExceededError,
    InvalidParamsError,
    ProviderError,
    SessionNotFoundError,
    SessionNotRunningError,
    StoreError,
    WarrenError,
)
from warren.base.principals import Principal
from warren.base.tenant_limits import TenantLimits, TokenLimits
from warren.calls.creation import FIRST_PROMPT
from warren.conversation.budget import Budget, Expense
from warren.conversation.categories import Gates
from warren.conversation.events import ToolExecutionStarted
from warren.conversation.messages import AssistantMessage, ToolResult, ToolResultsMessage, ToolUseBlock, UserMessage
from warren.conversation.options import Durability
from warren.conversation.usage import Usage
from warren.conversation.views import ChildCount, SessionState, SessionSummary
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import Tool, ToolContext, tool
from warren.settings.config import Config, Limits, StoreConfig
from warren.settings.tool_config import ToolsConfig
from warren.storage.maintenance.doctor import examine, fix
from warren.storage.operations import Commit, EndInputs, Operation
from warren.storage.queries import SessionRow, WaitingInputs
from warren.storage.sqlite.file import FILE_NAME

pytestmark = pytest.mark.virtual_time
CONFIG = Config(tools=ToolsConfig(delegate=True))
DAY = 24 * 3600.0


@attrs.define(eq=False)
class Office:
    """A model whose answers follow from the words of the prompt.

    `delegate A; B` has a child for each piece, `then A` has one for the rest, `fail` fails, `hang` never ends, and
    `pay` asks for a tool that needs approval. All else is done at once.

    Attributes:
        asked: the prompts of the model calls, in order.
        offered: the names of the tools of each model call, by the prompt.
        options: arguments of each call of `delegate`, besides the prompt.
        ahead: seconds by which the clock of the store was put forward.
        usage: the tokens of each model call.
    """

    asked: list[str] = attrs.field(factory=list)
    offered: dict[str, list[str]] = attrs.field(factory=dict)
    options: dict[str, Any] = attrs.field(factory=dict)
    ahead: float = 0.0
    usage: Usage = attrs.field(factory=lambda: Usage(5, 5))

    async def answer(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        """Answer by the newest prompt."""
        await trio.lowlevel.checkpoint()
        messages = list(request.messages)
        at = max(at for at, each in enumerate(messages) if isinstance(each, UserMessage))
        prompt = messages[at]
        assert isinstance(prompt, UserMessage)
        step = sum(isinstance(each, AssistantMessage) for each in messages[at:])
        self.asked.append(prompt.content)
        self.offered[prompt.content] = [spec.name for spec in request.tools]
        word, _, rest = prompt.content.partition(" ")
        if word == "fail":
            raise ProviderError("it is broken", cause="scripted", retryable=False)
        if word == "hang":
            await trio.sleep_forever()
        if word == "pay" and not step:
            return attrs.evolve(reply("", ToolUseBlock("pay-1", "pay", {})), usage=self.usage)
        if word == "delegate" and not step:
            pieces = [each.strip() for each in rest.split(";")]
            calls = [
                ToolUseBlock(f"call-{at}", "delegate", {"prompt": each, **self.options})
                for at, each in enumerate(pieces)
            ]
            return attrs.evolve(reply("", *calls), usage=self.usage)
        if word == "then" and not step:
            return attrs.evolve(reply("", ToolUseBlock("call-then", "delegate", {"prompt": rest})), usage=self.usage)
        return attrs.evolve(reply(f"done: {prompt.content}"), usage=self.usage)

    @property
    def tools(self) -> list[Tool]:
        """The tool that needs approval."""

        @tool(description="Pay.", category="memory")
        async def pay() -> str:
            await trio.lowlevel.checkpoint()
            return "paid"

        return [pay]

    def open(self, store: Path | None, config: Config = CONFIG, **options: Any) -> AbstractAsyncContextManager[Service]:
        """Open a runtime whose store has the virtual clock."""
        model = FunctionModel(self.answer)
        return open_runtime(model, store=store, tools=self.tools, config=config, clock=self.clock, **options)

    def clock(self) -> float:
        """Return the time of the store, in seconds since 1970."""
        return self.ahead + trio.current_time()


async def results(service: Service, session_id: str) -> list[ToolResult]:
    """Return all results of a session's tools."""
    found = await transcript(service, session_id)
    assert_valid_transcript(found)
    return [each for message in found if isinstance(message, ToolResultsMessage) for each in message.results]


async def texts(service: Service, session_id: str) -> list[str]:
    """Return the texts of all results of a session's tools."""
    return [each.content for each in await results(service, session_id)]


async def children(service: Service, session_id: str) -> list[SessionSummary]:
    """Return the other sessions than one, the oldest first."""
    listed = (await service.list(include_archived=True, limit=500)).sessions
    return sorted((each for each in listed if each.session_id != session_id), key=lambda each: each.title or "")


async def settled(service: Service, session_id: str) -> None:
    """Return once a session has no turn, nor a notice in its inbox."""
    while (await service.read(session_id)).state.turn is not None:  # noqa: ASYNC110 - there are no events of it
        await trio.sleep(0.1)


async def test_a_turn_waits_for_ten_children(store: Path | None) -> None:
    """They work at once; each call gets the answer of its own child."""
    office = Office()
    async with office.open(store) as service:
        result = await service.create_session("delegate " + "; ".join(f"part {at}" for at in range(10)))
        assert await texts(service, result.session_id) == [f"done: part {at}" for at in range(10)]
        assert result.text.startswith("done: delegate")
        found = await children(service, result.session_id)
        assert [each.title for each in found] == [f"part {at}" for at in range(10)]
        assert {each.tenant for each in found} == {"default"}
        assert await service.inputs(result.session_id) == ()
    assert len(office.asked) == 12


async def test_a_failed_child_is_an_error_result(store: Path | None) -> None:
    """The model learns why, and the turn goes on."""
    async with Office().open(store) as service:
        result = await service.create_session("delegate fail; part")
        failed, done = await results(service, result.session_id)
    assert failed.is_error
    assert "ended without an answer" in failed.content
    assert "it is broken" in failed.content
    assert (done.content, done.is_error) == ("done: part", False)


async def test_children_have_children(store: Path | None) -> None:
    """The answer of the deepest comes up; at the bound of the depth the call fails."""
    config = attrs.evolve(CONFIG, limits=Limits(child_depth=2))
    async with Office().open(store, config) as service:
        result = await service.create_session("then then part")
        assert await texts(service, result.session_id) == ["done: then part"]
        await service.create_session("then then then again")
        (child,) = [each for each in (await service.list()).sessions if each.title == "then again"]
        (bound,) = await results(service, child.session_id)
    assert bound.is_error
    assert "limits.child_depth" in bound.content


async def test_a_waiting_parent_needs_no_process(tmp_path: Path) -> None:
    """It leaves memory, also by a restart, and goes on where its children's ends come."""
    office = Office()
    config = attrs.evolve(CONFIG, gates=Gates(memory="ask"), limits=Limits(approval_timeout=30 * DAY))
    async with office.open(tmp_path, config) as service:
        session_id = await new_session(service)
        async with trio.open_nursery() as nursery:
            asked = ask(
                nursery, service.start_turn, session_id, "delegate pay; part", mode="queue", idempotency_key="k"
            )
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(1)
            turn = (await service.read(session_id)).state.turn
            assert turn is not None
            assert turn.state == "waiting"
            assert {each.reason for each in turn.waiting_for} == {"child"}
            nursery.cancel_scope.cancel()
        del asked
        (paying,) = [each for each in await children(service, session_id) if each.title == "pay"]
    office.ahead = 3 * DAY
    async with office.open(tmp_path, config) as service:
        await service.approve_tool(paying.session_id, "pay-1", "allow")
        with trio.fail_after(30):
            result = await service.start_turn(session_id, "delegate pay; part", mode="queue", idempotency_key="k")
        assert result.text == "done: delegate pay; part"
        assert await texts(service, session_id) == ["done: pay", "done: part"]
    assert office.asked.count("part") == 1


async def test_an_interrupted_parent_interrupts_its_children(store: Path | None) -> None:
    """And theirs, within a second; what has ended stays."""
    async with Office().open(store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        asked = ask(nursery, service.start_turn, session_id, "delegate hang; then hang; part")
        await trio.sleep(2)
        with trio.fail_after(1):
            await service.interrupt(session_id)
            for each in await children(service, session_id):
                await settled(service, each.session_id)
        assert isinstance(asked.error, AgentError)
        for each in await children(service, session_id):
            view = await service.read(each.session_id)
            assert (view.state.last_assistant_text is not None) == (each.title == "part"), each.title
        assert [each.is_error for each in await results(service, session_id)] == [True, True, False] or store is None
        result = await service.start_turn(session_id, "part")
        assert result.text == "done: part"


async def test_a_child_that_is_interrupted_answers(store: Path | None) -> None:
    """Its parent goes on with an error."""
    async with Office().open(store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        asked = ask(nursery, service.start_turn, session_id, "delegate hang")
        await trio.sleep(1)
        (child,) = await children(service, session_id)
        await service.interrupt(child.session_id)
        assert (await asked.value()).text == "done: delegate hang"
        (result,) = await results(service, session_id)
    assert result.is_error
    assert "interrupted" in result.content


@pytest.mark.parametrize("how", ["archive", "delete"])
async def test_a_child_that_is_retired_answers(tmp_path: Path, how: str) -> None:
    """While it waits, too, when it has no turn that runs."""
    config = attrs.evolve(CONFIG, gates=Gates(memory="ask"))
    async with Office().open(tmp_path, config) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        asked = ask(nursery, service.start_turn, session_id, "delegate pay")
        await trio.sleep(1)
        (child,) = await children(service, session_id)
        await getattr(service, how)(child.session_id)
        with trio.fail_after(2):
            assert (await asked.value()).text == "done: delegate pay"
        (result,) = await results(service, session_id)
    assert result.is_error


async def test_a_child_that_the_store_cannot_load_is_not_deleted(tmp_path: Path) -> None:
    """Its parent would never hear of it, and wait for ever: the next delete is one of a child that answers."""
    config, faults = attrs.evolve(CONFIG, gates=Gates(memory="ask")), Faults()
    async with Office().open(tmp_path, config) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, service.start_turn, session_id, "delegate pay", mode="queue", idempotency_key="k")
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    async with Office().open(tmp_path, config, faults=faults) as service:
        (child,) = await children(service, session_id)
        faults.crash_before = 1
        with pytest.raises(StoreError, match="crash"):
            await service.delete(child.session_id)
        await service.delete(child.session_id)
        with trio.fail_after(2):
            ended = await service.start_turn(session_id, "delegate pay", mode="queue", idempotency_key="k")
        assert ended.text == "done: delegate pay"
        (result,) = await results(service, session_id)
    assert result.is_error


@pytest.mark.parametrize("how", ["archive", "delete"])
async def test_a_retired_parent_takes_its_children_along(tmp_path: Path, how: str) -> None:
    """All of them and theirs; deleted with archived ones."""
    config = attrs.evolve(CONFIG, gates=Gates(memory="ask"))
    async with Office().open(tmp_path, config) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        asked = ask(nursery, service.start_turn, session_id, "delegate part; then pay; other")
        await trio.sleep(1)
        found = await children(service, session_id)
        assert len(found) == 4
        (other,) = [each for each in found if each.title == "other"]
        await service.archive(other.session_id)
        await getattr(service, how)(session_id)
        await trio.sleep(2)
        assert isinstance(asked.error, WarrenError)
        for each in found:
            if how == "archive":
                assert (await service.read(each.session_id)).state.lifecycle == "archived", each.title
            else:
                with pytest.raises(SessionNotFoundError):
                    await service.read(each.session_id)


async def test_a_time_limit_ends_the_wait_and_the_child(store: Path | None) -> None:
    """The call gets an error, and the child is interrupted."""
    office = Office(options={"time_limit": 60})
    async with office.open(store) as service:
        with trio.fail_after(70):
            result = await service.create_session("delegate hang; part")
        late, done = await results(service, result.session_id)
        assert late.is_error
        assert "did not end in time" in late.content
        assert done.content == "done: part"
        await trio.sleep(1)
        for each in await children(service, result.session_id):
            assert (await service.read(each.session_id)).state.turn is None


@pytest.mark.parametrize("durability", ["step", "turn"])
async def test_a_time_limit_ends_a_child_at_once(store: Path | None, durability: Durability) -> None:
    """Not only once the other calls of the answer have their results, or the turn ends."""
    ended = dict[str, float]()

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        (prompt,) = [each.content for each in request.messages if isinstance(each, UserMessage)]
        if prompt == "go" and not any(isinstance(each, AssistantMessage) for each in request.messages):
            short = ToolUseBlock("call-1", "delegate", {"prompt": "short", "time_limit": 5})
            return reply("", short, ToolUseBlock("call-2", "delegate", {"prompt": "long"}))
        try:
            await trio.sleep(0 if prompt == "go" else 50)
        finally:
            ended[prompt] = trio.current_time()
        return reply("done")

    config = attrs.evolve(CONFIG, durability=durability)
    clock = trio.current_time
    async with open_runtime(FunctionModel(answer), store=store, config=config, clock=clock) as service:
        began = trio.current_time()
        result = await service.create_session("go")
        assert [each.is_error for each in await results(service, result.session_id)] == [True, False]
    assert ended["short"] - began < 10
    assert ended["long"] - began >= 50


async def test_children_share_what_the_budget_leaves(store: Path | None) -> None:
    """Together they spend no more than the parent has, and what they spend counts."""
    office = Office()
    async with office.open(store) as service:
        made = await service.create_session(None, budget=Budget(max_tokens=100))
        await service.start_turn(made.session_id, "delegate a; b")
        for each in await children(service, made.session_id):
            assert each.total_tokens == 10
        for _ in range(6):  # after 2 x 10 of its own, and 2 x 10 of children
            await service.start_turn(made.session_id, "more")
        with pytest.raises(BudgetExhaustedError):
            await service.start_turn(made.session_id, "more")
        view = await service.read(made.session_id)
        assert view.billing.total_tokens == 80


async def test_a_child_that_takes_too_long_has_used_its_part_of_the_budget(store: Path | None) -> None:
    """Nobody learns what it has spent: else a model could spend beyond its budget by children that it gives up."""
    calls = 0

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        nonlocal calls
        await trio.lowlevel.checkpoint()
        if [each.content for each in request.messages if isinstance(each, UserMessage)] == ["go"]:
            calls += 1
            asked = {"prompt": "work", "time_limit": 5, "budget": {"max_tokens": 100}}
            return attrs.evolve(reply("", ToolUseBlock(f"call-{calls}", "delegate", asked)), usage=Usage(50, 50))
        return attrs.evolve(reply("", ToolUseBlock("pay-1", "pay", {})), usage=Usage(50, 50))

    config = attrs.evolve(CONFIG, gates=Gates(memory="ask"))
    clock = trio.current_time
    async with open_runtime(FunctionModel(answer), store=store, tools=Office().tools, config=config, clock=clock) as it:
        with pytest.raises(BudgetExhaustedError):
            await it.create_session("go", budget=Budget(max_tokens=1000))
        await trio.sleep(60)
        spent = sum(each.total_tokens for each in (await it.list()).sessions)
    assert 1000 <= spent <= 1200  # the last calls of a parent and a child may go beyond


async def test_a_child_has_the_budget_that_its_call_asks_for(store: Path | None) -> None:
    """Also of whole numbers."""
    office = Office(options={"budget": {"max_steps": 1, "max_seconds": 60}})
    async with office.open(store) as service:
        result = await service.create_session("delegate part; then part")
        done, spent = await results(service, result.session_id)
    assert (done.content, done.is_error) == ("done: part", False)
    assert spent.is_error
    assert "budget" in spent.content


async def test_the_store_has_the_child_once(tmp_path: Path) -> None:
    """A process that dies after the child was made, and before the call waits, finds it again."""
    office = Office()
    async with office.open(tmp_path) as service:
        session_id = await new_session(service)
        async with trio.open_nursery() as nursery:
            ask(nursery, service.start_turn, session_id, "delegate hang; part", mode="queue", idempotency_key="k")
            await trio.sleep(1)
            crash(service, session_id)
            await trio.sleep(20)
            (hanging,) = [each for each in await children(service, session_id) if each.title == "hang"]
            await service.interrupt(hanging.session_id)
            await trio.sleep(20)
            nursery.cancel_scope.cancel()
        result = await service.start_turn(session_id, "delegate hang; part", mode="queue", idempotency_key="k")
        assert result.text == "done: delegate hang; part"
        assert len(await children(service, session_id)) == 2


async def test_a_call_that_is_made_again_has_the_one_end_of_its_child(tmp_path: Path) -> None:
    """If the child is deleted meanwhile, its end is in the inbox: the answer that it gave before, or the deletion."""
    async with Office().open(tmp_path) as service:
        parent = (await service.create_session(None)).session_id
        child = await service.delegate(parent, "part")
        await ended(service, child)
        await service.delete(child)
        record = await service.local.read(SessionRow(parent, "default"))
        assert record is not None
        call = ToolContext(parent, 1, 0, "call-0", "delegate", {})
        again = partial(
            supervisor_of(service).children.begin, record, Wanted("part"), child, by=(), payer="", call=call
        )
        await again(waits=True)
        with pytest.raises(SessionNotFoundError):  # nobody else knows what the turn has heard that was lost
            await again(waits=False)


async def test_a_crash_of_the_store_as_a_parent_suspends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its turn is not stored as one that waits, and is not taken for such a one: no process has died of it."""
    faults, write, parked = Faults(), FaultyStore.write, list[int]()

    async def crashing(store: FaultyStore, operations: Sequence[Operation[Any]]) -> list[Any]:
        turns = [each.record.turn for each in operations if isinstance(each, Commit)]
        if any(turn is not None and turn.parked for turn in turns):
            parked.append(len(operations))
            faults.crash_before = len(parked) == 1
        return await write(store, operations)

    monkeypatch.setattr(FaultyStore, "write", crashing)
    async with Office().open(tmp_path, faults=faults) as service, trio.open_nursery() as nursery:
        parent = await new_session(service)
        ask(nursery, service.start_turn, parent, "delegate hang", mode="queue", idempotency_key="k")
        await trio.sleep(100)
        record = await service.local.read(SessionRow(parent, "default"))
        assert record is not None
        assert record.turn is not None
        assert (record.turn.parked, record.turn.deaths, len(parked)) == (True, 0, 2)
        nursery.cancel_scope.cancel()


async def test_the_events_name_the_child(store: Path | None) -> None:
    """Of the call that delegates."""
    async with Office().open(store) as service:
        result = await service.create_session("delegate part")
        (child,) = await children(service, result.session_id)
        events = [each.event for each in await replay(service, result.session_id)]
        assert [each.child for each in events if isinstance(each, ToolExecutionStarted)] == [child.session_id]


async def test_no_webhook_is_asked_for_the_end_of_a_child(store: Path | None) -> None:
    """`call.waiting` is for those who can answer."""
    async with Office().open(store) as service:
        webhook = await service.create_webhook("https://example.org/hooks")
        await service.create_session("delegate part 1; part 2")
        deliveries = (await service.deliveries(webhook.webhook_id)).deliveries
    assert [each.type for each in deliveries] == ["turn.completed"] * 3


async def test_views_say_who_has_delegated(store: Path | None) -> None:
    """A child's own view, its row, and the list of the children of a session."""
    async with Office().open(store) as service:
        result = await service.create_session("delegate then part; other")
        listed = (await service.list(delegated_by=result.session_id)).sessions
        assert sorted(str(each.title) for each in listed) == ["other", "then part"]
        assert {each.delegated_by for each in listed} == {result.session_id}
        (child,) = [each for each in listed if each.title == "then part"]
        (deepest,) = (await service.list(delegated_by=child.session_id)).sessions
        state = (await service.read(deepest.session_id)).state
        assert (state.delegated_by, state.depth) == (child.session_id, 2)
        state = (await service.read(result.session_id)).state
        assert (state.delegated_by, state.depth) == (None, 0)


async def test_views_say_how_the_newest_turn_has_ended(store: Path | None) -> None:
    """Of a child and of any session, from its row and its own view, also after a restart; a fork has had no turn."""
    office = Office()
    async with office.open(store) as service:
        parent = await new_session(service)
        assert (await service.read(parent)).state.last_outcome is None
        made = {prompt: await service.delegate(parent, prompt) for prompt in ("part", "fail", "hang")}
        for prompt in ("part", "fail"):
            await ended(service, made[prompt])
        rows = {each.session_id: each.last_outcome for each in (await service.list(delegated_by=parent)).sessions}
        assert rows == {made["part"]: "completed", made["fail"]: "provider_error", made["hang"]: None}
        await service.interrupt(made["hang"])
        assert (await ended(service, made["hang"])).last_outcome == "cancelled"
        with pytest.raises(ProviderError):
            await service.start_turn(made["part"], "fail")
        assert (await service.read(made["part"])).state.last_outcome == "provider_error"
        await service.start_turn(made["part"], "part")
        assert (await service.fork(made["part"])).state.last_outcome is None
    if store is None:
        return
    async with office.open(store) as service:
        rows = {each.session_id: each.last_outcome for each in (await service.list(delegated_by=parent)).sessions}
        assert rows == {made["part"]: "completed", made["fail"]: "provider_error", made["hang"]: "cancelled"}


async def test_the_tool_is_off_unless_it_is_named(store: Path | None) -> None:
    """By the settings, or by the session's list of tools."""
    office = Office()
    async with office.open(store, Config()) as service:
        await service.create_session("plain")
        await service.create_session("named", tools=["delegate"])
    assert "delegate" not in office.offered["plain"]
    assert office.offered["named"] == ["delegate"]


async def test_a_child_has_no_more_tools_than_its_parent(store: Path | None) -> None:
    """A tool that the parent has not cannot be asked for."""
    office = Office(options={"tools": ["pay"]})
    async with office.open(store) as service:
        result = await service.create_session("delegate part", tools=["delegate"])
        (refused,) = await results(service, result.session_id)
        assert refused.is_error
        assert "no tool 'pay'" in refused.content
        result = await service.create_session("delegate other", tools=["delegate", "pay"])
        assert await texts(service, result.session_id) == ["done: other"]
    assert office.offered["other"] == ["pay"]


async def test_no_more_children_than_may_be(store: Path | None) -> None:
    """The calls beyond fail, and say why."""
    config = attrs.evolve(CONFIG, limits=Limits(children=2))
    async with Office(options={"time_limit": 5}).open(store, config) as service:
        result = await service.create_session("delegate hang; hang 2; hang 3")
        found: Sequence[ToolResult] = await results(service, result.session_id)
    assert sum("limits.children" in each.content for each in found) == 1


@pytest.mark.parametrize("durability", ["step", "turn"])
async def test_children_get_the_room_of_parents_that_wait(store: Path | None, durability: Durability) -> None:
    """Also of those that wait in their tasks: else a parent would wait for a child that waits for its room."""
    config = attrs.evolve(CONFIG, limits=Limits(max_sessions=1), durability=durability)
    async with Office().open(store, config) as service:
        with trio.fail_after(60):
            result = await service.create_session("delegate part 1; then part 2; part 3")
        assert await texts(service, result.session_id) == ["done: part 1", "done: then part 2", "done: part 3"]
        scheduler = supervisor_of(service).scheduler
        assert (scheduler.running, scheduler.resting) == (set(), set())


async def test_a_call_that_failed_holds_nobody_up(tmp_path: Path) -> None:
    """The turn goes on with the end of its other child, though the failed call has a wait in the store."""
    config = attrs.evolve(CONFIG, gates=Gates(memory="ask"), limits=Limits(children=1, approval_timeout=DAY))
    async with Office().open(tmp_path, config) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        asked = ask(nursery, service.start_turn, session_id, "delegate pay; pay")
        await trio.sleep(1)
        (child,) = await children(service, session_id)
        await service.approve_tool(child.session_id, "pay-1", "allow")
        with trio.fail_after(5):
            assert (await asked.value()).text == "done: delegate pay; pay"
        assert sum(each.is_error for each in await results(service, session_id)) == 1


async def test_a_turn_that_waits_in_its_task_hears_of_an_end_after_a_lapse_of_its_lease(tmp_path: Path) -> None:
    """It begins nothing meanwhile that would have the lease proved again."""
    office = Office()
    async with office.open(tmp_path, attrs.evolve(CONFIG, durability="turn")) as service, trio.open_nursery() as tasks:
        session_id = (await service.create_session(None, approvals=Gates(memory="ask"))).session_id
        turn = ask(tasks, service.start_turn, session_id, "delegate pay for it")
        await trio.sleep(1)
        (asked,) = (await service.approvals()).approvals
        lapses = supervisor_of(service).shared.storage.lapses
        office.ahead += 60
        await trio.sleep(30)
        assert supervisor_of(service).shared.storage.lapses > lapses
        await service.approve_tool(asked.session_id, asked.call_id, "allow")
        with trio.fail_after(60):
            await turn.value()
        (result,) = await results(service, session_id)
        assert result.content == "done: pay for it"


async def test_a_turn_that_waits_in_its_task_hears_of_an_end_that_could_not_be_stored(tmp_path: Path) -> None:
    """The answer was there, and the store full: nothing else would have it looked at again while the turn runs."""
    faults = Faults(refuse_kinds=(EndInputs,))
    async with Office().open(tmp_path, attrs.evolve(CONFIG, durability="turn"), faults=faults) as service:
        session_id = (await service.create_session(None, approvals=Gates(memory="ask"))).session_id
        async with trio.open_nursery() as nursery:
            turn = ask(nursery, service.start_turn, session_id, "delegate pay for it")
            await trio.sleep(1)
            (asked,) = (await service.approvals()).approvals
            faults.refuse = apsw.FullError("full")
            await service.approve_tool(asked.session_id, asked.call_id, "allow")
            await trio.sleep(1)
            faults.refuse = None
            with trio.fail_after(60):
                await turn.value()
        (result,) = await results(service, session_id)
    assert result.content == "done: pay for it"


@pytest.mark.parametrize("part", ["part 1", "fail"])
async def test_a_turn_that_is_run_again_gets_the_ends_of_its_children_again(tmp_path: Path, part: str) -> None:
    """With `durability = "turn"` nobody else knows what the lost turn had heard."""
    office, config = Office(), attrs.evolve(CONFIG, durability="turn")
    async with office.open(tmp_path / "killed", config) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        prompt = f"delegate {part}; hang"
        ask(nursery, service.start_turn, session_id, prompt, mode="queue", idempotency_key="k")
        await trio.sleep(5)
        shutil.copytree(tmp_path / "killed", tmp_path / "next")
        nursery.cancel_scope.cancel()
    office.ahead = 3600
    async with office.open(tmp_path / "next", config) as service:
        await trio.sleep(5)
        for child in await children(service, session_id):
            if child.turn is not None:
                await service.interrupt(child.session_id)
        with trio.fail_after(60):
            await service.start_turn(session_id, prompt, mode="queue", idempotency_key="k")
        first, second = await results(service, session_id)
    assert first.is_error if part == "fail" else first.content == "done: part 1"
    assert second.is_error
    assert office.asked.count(part) == 1


async def ended(service: Service, session_id: str) -> SessionState:
    """Return a session once its turn has ended."""
    while (found := await service.read(session_id)).state.last_outcome is None:  # noqa: ASYNC110 - as above
        await trio.sleep(0.1)
    return found.state


async def test_a_program_delegates(store: Path | None) -> None:
    """The parent runs no turn, and hears nothing; the same key finds the same child, and only the archive ends it."""
    office = Office()
    async with office.open(store) as service:
        parent = await new_session(service)
        asked: dict[str, Any] = {"title": "The part", "system_prompt": "Be short.", "idempotency_key": "k"}
        child = await service.delegate(parent, "part", **asked)
        assert await service.delegate(parent, "part", **asked) == child
        state = await ended(service, child)
        assert (state.delegated_by, state.depth, state.title) == (parent, 1, "The part")
        assert state.last_assistant_text == "done: part"
        other = await service.delegate(parent, "another part")
        assert other != child
        await ended(service, other)
        listed = (await service.list(delegated_by=parent)).sessions
        assert {each.session_id for each in listed} == {child, other}
        assert await service.inputs(parent) == ()
        await service.start_turn(parent, "work")
        assert (await service.read(parent)).state.message_count == 2
        await service.archive(parent)
        while (await service.list(delegated_by=parent)).sessions:  # noqa: ASYNC110 - as above
            await trio.sleep(0.1)
        with pytest.raises(SessionNotFoundError):
            await service.delegate(parent, "another part")
        with pytest.raises(SessionNotFoundError):
            await service.delegate("nobody", "part")
    assert office.asked.count("part") == 1


async def test_the_end_of_a_child_is_waited_for_before_and_after(store: Path | None) -> None:
    """Its work may have ended before the wait, well or not, and later turns change nothing; no other session has it."""
    office = Office()
    async with office.open(store) as service:
        parent = await new_session(service)
        child = await service.delegate(parent, "part")
        result = await service.wait_turn(child)
        assert (result.session_id, result.text) == (child, "done: part")
        assert await service.wait_turn(child) == result
        await service.start_turn(child, "more")
        assert await service.wait_turn(child) == result
        failed = await service.delegate(parent, "fail")
        for _ in range(2):
            with pytest.raises(ProviderError, match="it is broken") as caught:
                await service.wait_turn(failed)
            assert (caught.value.session_id, caught.value.retryable) == (failed, False)
        stopped = await service.delegate(parent, "hang")
        while "hang" not in office.asked:  # noqa: ASYNC110 - as above
            await trio.sleep(0.1)
        await service.interrupt(stopped)
        with pytest.raises(AgentError) as cancelled:
            await service.wait_turn(stopped)
        assert cancelled.value.cause == "cancelled"
        await service.start_turn(parent, "work")
        with pytest.raises(SessionNotRunningError):
            await service.wait_turn(parent)
    if store is not None:
        async with office.open(store) as service:
            assert await service.wait_turn(child) == result


async def test_a_parent_shows_how_many_children_it_has(store: Path | None) -> None:
    """If asked: those of its calls and those of programs, live or not, and nothing for a session without any."""
    office = Office()
    async with office.open(store) as service:
        parent = (await service.create_session("delegate part 1; part 2")).session_id
        child = await service.delegate(parent, "hang")

        async def count(session_id: str) -> ChildCount | None:
            return (await service.read(session_id, children=True)).state.children

        assert (await count(parent), await count(child)) == (ChildCount(3, 1), None)
        assert (await service.read(parent)).state.children is None
        while "hang" not in office.asked:  # noqa: ASYNC110 - as above
            await trio.sleep(0.1)
        await service.interrupt(child)
        assert await count(parent) == ChildCount(3, 0)
        await service.archive(child)
        assert await count(parent) == ChildCount(2, 0)
    if store is not None:
        async with office.open(store) as service:
            assert await count(parent) == ChildCount(2, 0)


async def test_what_a_program_may_delegate(store: Path | None) -> None:
    """No more than the parent may do: its tools, its provider, its budget, and the bounds."""
    config = attrs.evolve(CONFIG, limits=Limits(child_depth=1, children=1))
    office = Office()
    async with office.open(store, config) as service:
        parent = (await service.create_session("work", tools=["pay"], budget=Budget(max_tokens=30))).session_id
        for given, path in (
            ({"tools": ["pay", "delegate"]}, "$.tools[1]"),
            ({"model": "nobody's/model"}, "$.model"),
            ({"title": " "}, "$.title"),
        ):
            with pytest.raises(InvalidParamsError) as caught:
                await service.delegate(parent, "part", **given)
            assert caught.value.path == path
        first = await service.delegate(parent, "part", budget=Budget(max_tokens=500, max_steps=2))
        await ended(service, first)
        second = await service.delegate(parent, "hang")
        with pytest.raises(CapacityExceededError) as full:
            await service.delegate(parent, "part")
        assert full.value.cause == "children"
        with pytest.raises(InvalidParamsError, match=r"limits\.child_depth") as deep:
            await service.delegate(first, "part")
        assert deep.value.path == "$.session_id"
        actor = service.local.supervisor.find(first)
        assert actor is not None
        assert actor.record is not None
        assert actor.record.options.budget == Budget(max_tokens=20, max_steps=2)
        assert office.offered["part"] == ["pay"]
        await service.interrupt(second)
        await service.archive(second)
        with suppress(WarrenError):
            await service.start_turn(parent, "more")
            await service.start_turn(parent, "and more")
        with pytest.raises(BudgetExhaustedError) as used:
            await service.delegate(parent, "part")
        assert (used.value.cause, used.value.session_id) == ("tokens", parent)


async def delegated(service: Service, session_id: str) -> Expense:
    """Return what the children of a session have spent of its budget, once no notice of that is on its way."""
    local = service.local
    waiting = WaitingInputs(session_id, "default")
    while any(each.input.is_notice for each in await local.read(waiting)):  # noqa: ASYNC110 - as above
        await trio.sleep(0.1)
    record = await local.read(SessionRow(session_id, "default"))
    assert record is not None
    return record.delegated


async def test_children_of_programs_share_the_budget(store: Path | None) -> None:
    """However many are made at once: what one may spend counts at once, and what it has spent in the end."""
    office = Office()
    async with office.open(store) as service, trio.open_nursery() as nursery:
        parent = (await service.create_session(None, budget=Budget(max_tokens=100, max_steps=50))).session_id
        asked = [ask(nursery, service.delegate, parent, f"part {at}", budget=Budget(max_tokens=25)) for at in range(9)]
        await trio.sleep(5)
        made = [each.result for each in asked if each.result is not None]
        errors = [each.error for each in asked if each.error is not None]
        assert len(made) == 4
        assert {type(each) for each in errors} == {BudgetExhaustedError}
        for child in made:
            await ended(service, child)
        assert await delegated(service, parent) == Expense(tokens=40, steps=4)
        for _ in range(6):
            await service.start_turn(parent, "work")
        with pytest.raises(BudgetExhaustedError):
            await service.start_turn(parent, "work")
        with pytest.raises(BudgetExhaustedError):
            await service.delegate(parent, "more")


def left_of(service: Service, session_id: str) -> float:
    """Return the tokens that the budget of a running turn leaves."""
    actor = supervisor_of(service).find(session_id)
    assert actor is not None
    turn = actor._turn  # noqa: SLF001 - no view has it
    assert turn is not None
    return turn.plan.meter.left["max_tokens"]


@pytest.mark.parametrize("durability", ["step", "turn"])
async def test_a_program_delegates_while_the_parent_works(store: Path | None, durability: Durability) -> None:
    """The running turn counts what its session's children spend, and the record has it after that, once."""
    office = Office()
    async with office.open(store) as service, trio.open_nursery() as nursery:
        made = await service.create_session(None, budget=Budget(max_tokens=100), durability=durability)
        parent = made.session_id
        turn = ask(nursery, service.start_turn, parent, "hang")
        await trio.sleep(1)
        child = await service.delegate(parent, "part", idempotency_key="k")
        await ended(service, child)
        await trio.sleep(1)
        assert left_of(service, parent) == 90
        other = await service.delegate(parent, "hang")
        await trio.sleep(1)
        assert left_of(service, parent) == 45
        await service.interrupt(other)
        await trio.sleep(1)
        assert left_of(service, parent) == 90
        await service.interrupt(parent)
        await turn.ended.wait()
        assert isinstance(turn.error, AgentError)
        assert (await delegated(service, parent)).tokens == 10
        assert await service.delegate(parent, "part", idempotency_key="k") == child
        await service.start_turn(parent, "work")
        assert (await delegated(service, parent)).tokens == 10


async def test_a_child_that_another_process_has_counted_counts_once(tmp_path: Path) -> None:
    """The process whose running turn had counted it in memory has lost the session, and gets it back."""
    office = Office()
    async with office.open(tmp_path) as service, trio.open_nursery() as nursery:
        parent = (await service.create_session(None, budget=Budget(max_tokens=100))).session_id
        turn = ask(nursery, service.start_turn, parent, "hang", mode="queue", idempotency_key="k")
        await trio.sleep(1)
        await ended(service, await service.delegate(parent, "part"))
        await trio.sleep(1)
        await expire_leases(service)
        async with office.open(tmp_path) as other:
            await trio.sleep(60)
            await other.interrupt(parent)
            assert (await delegated(other, parent)).tokens == 10
        (await store_of(service)).me.clock = office.clock
        await service.interrupt(parent)
        await turn.ended.wait()
        ask(nursery, service.start_turn, parent, "hang again", mode="queue")
        await trio.sleep(1)
        assert left_of(service, parent) == 90
        nursery.cancel_scope.cancel()


async def test_the_children_of_a_parent_that_waits_count(tmp_path: Path) -> None:
    """Its open turn waits for somebody, in no process; it goes on with what they have left."""
    config = attrs.evolve(CONFIG, gates=Gates(memory="ask"), limits=Limits(approval_timeout=30 * DAY))
    office = Office()
    async with office.open(tmp_path, config) as service:
        parent = (await service.create_session(None, budget=Budget(max_tokens=40))).session_id
        async with trio.open_nursery() as nursery:
            ask(nursery, service.start_turn, parent, "pay", mode="queue", idempotency_key="k")
            await trio.sleep(1)
            await ended(service, await service.delegate(parent, "part"))
            assert (await delegated(service, parent)).tokens == 10
            nursery.cancel_scope.cancel()
    async with office.open(tmp_path, config) as service:
        assert (await delegated(service, parent)).tokens == 10
        await service.approve_tool(parent, "pay-1", "allow")
        await ended(service, parent)
        assert (await delegated(service, parent)).tokens == 10
        await service.start_turn(parent, "work")
        with pytest.raises(BudgetExhaustedError):  # 30 of its own, and 10 of the child
            await service.start_turn(parent, "work")


@pytest.mark.parametrize("how", ["archive", "delete", "withdraw"])
async def test_a_child_that_does_nothing_gives_its_part_back(tmp_path: Path, how: str) -> None:
    """Archived or deleted while it waits, or its prompt withdrawn before."""
    config = attrs.evolve(CONFIG, gates=Gates(memory="ask"), limits=Limits(max_sessions=1))
    async with Office().open(tmp_path, config) as service, trio.open_nursery() as nursery:
        parent = (await service.create_session(None, budget=Budget(max_tokens=1000))).session_id
        if how == "withdraw":
            busy = await new_session(service)
            ask(nursery, service.start_turn, busy, "hang")
            await trio.sleep(1)
        child = await service.delegate(parent, "pay")
        await trio.sleep(1)
        assert (await delegated(service, parent)).tokens == 500
        if how == "withdraw":
            (prompt,) = await service.inputs(child)
            await service.withdraw(child, prompt.input_id)
            nursery.cancel_scope.cancel()
        else:
            await getattr(service, how)(child)
        await trio.sleep(1)
        assert (await delegated(service, parent)).tokens == (0 if how == "withdraw" else 10)


@pytest.mark.parametrize("durability", ["step", "turn"])
async def test_the_children_of_an_interrupted_parent_count(store: Path | None, durability: Durability) -> None:
    """Their parts at once, and what they have spent once they have ended."""
    async with Office().open(store) as service, trio.open_nursery() as nursery:
        made = await service.create_session(None, budget=Budget(max_tokens=1000), durability=durability)
        parent = made.session_id
        ask(nursery, service.start_turn, parent, "delegate then part; pay; hang")
        await trio.sleep(1)
        await service.interrupt(parent)
        await trio.sleep(1)
        assert (await delegated(service, parent)).tokens == 30 + 20  # one and its child, and one with a tool
        await service.start_turn(parent, "delegate part")
        assert (await delegated(service, parent)).tokens == 60


async def test_the_children_of_a_waiting_turn_that_is_interrupted_count(tmp_path: Path) -> None:
    """No task of it is there that could count them, nor has been since the restart."""
    config = attrs.evolve(CONFIG, gates=Gates(memory="ask"), limits=Limits(approval_timeout=30 * DAY))
    office = Office()
    async with office.open(tmp_path, config) as service:
        parent = (await service.create_session(None, budget=Budget(max_tokens=1000))).session_id
        async with trio.open_nursery() as nursery:
            ask(nursery, service.start_turn, parent, "delegate pay; part", mode="queue", idempotency_key="k")
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
    async with office.open(tmp_path, config) as service:
        await service.interrupt(parent)
        await trio.sleep(1)
        assert (await delegated(service, parent)).tokens == 20


SPOILS = """
    CREATE TRIGGER spoil AFTER INSERT ON inbox WHEN NEW.notice AND NEW.body LIKE '%"answer"%'
    BEGIN UPDATE inbox SET body = 'no JSON' WHERE number = NEW.number; END
"""
"""Damages each notice of a child's end."""


def damage(path: Path, sql: str, *values: object) -> None:
    """Change a store, with its rows or its triggers."""
    with closing(apsw.Connection(str(path / FILE_NAME))) as db:
        db.execute(sql, values)


@pytest.mark.parametrize("by", ["doctor", "claim"])
async def test_a_child_whose_prompt_is_damaged_answers(tmp_path: Path, by: str) -> None:
    """Its prompt is set aside, so it never has a turn that could end."""
    office, path = Office(), tmp_path / "next"
    async with office.open(tmp_path / "killed") as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, service.start_turn, session_id, "delegate hang", mode="queue", idempotency_key="k")
        await trio.sleep(5)
        shutil.copytree(tmp_path / "killed", path)
        nursery.cancel_scope.cancel()
    damage(path, "UPDATE inbox SET body = 'no JSON' WHERE key = ?", FIRST_PROMPT)
    office.ahead = 3600
    if by == "doctor":
        config = StoreConfig(str(path))
        fix(config, examine(config))
    async with office.open(path) as service:
        with trio.fail_after(60):
            await service.start_turn(session_id, "delegate hang", mode="queue", idempotency_key="k")
        (result,) = await results(service, session_id)
    assert result.is_error
    assert "damaged" in result.content


@pytest.mark.parametrize("by", ["doctor", "claim"])
async def test_a_damaged_notice_is_made_up_for(tmp_path: Path, by: str) -> None:
    """The parent looks itself how its child has ended."""
    config = attrs.evolve(CONFIG, gates=Gates(memory="ask"), limits=Limits(approval_timeout=30 * DAY))
    office = Office()
    async with office.open(tmp_path, config) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, service.start_turn, session_id, "delegate pay; pay it", mode="queue", idempotency_key="k")
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    damage(tmp_path, SPOILS)
    async with office.open(tmp_path, config) as service:
        for each in (await service.approvals()).approvals:
            await service.approve_tool(each.session_id, each.call_id, "allow")
            await ended(service, each.session_id)
    damage(tmp_path, "DROP TRIGGER spoil")
    if by == "doctor":
        store = StoreConfig(str(tmp_path))
        fix(store, examine(store))
    async with office.open(tmp_path, config) as service:
        with trio.fail_after(60):
            await service.start_turn(session_id, "delegate pay; pay it", mode="queue", idempotency_key="k")
        assert await texts(service, session_id) == ["done: pay", "done: pay it"]


@pytest.mark.parametrize("how", ["archive", "delete"])
async def test_a_turn_that_is_run_again_misses_a_child_that_is_gone(tmp_path: Path, how: str) -> None:
    """With `durability = "turn"`: the child had told the turn that was lost."""
    office, config, path = Office(), attrs.evolve(CONFIG, durability="turn"), tmp_path / "next"
    async with office.open(tmp_path / "killed", config) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        ask(nursery, service.start_turn, session_id, "delegate hang", mode="queue", idempotency_key="k")
        await trio.sleep(5)
        (child,) = await children(service, session_id)
        shutil.copytree(tmp_path / "killed", path)
        nursery.cancel_scope.cancel()
    state = 1 if how == "archive" else 2
    damage(path, "UPDATE sessions SET state = ? WHERE session_id = ?", state, child.session_id)
    damage(path, "DELETE FROM inbox WHERE session = (SELECT key FROM sessions WHERE state > 0)")
    office.ahead = 3600
    async with office.open(path, config) as service:
        with trio.fail_after(60):
            await service.start_turn(session_id, "delegate hang", mode="queue", idempotency_key="k")
        (result,) = await results(service, session_id)
    assert result.is_error
    assert f"{how}d" in result.content


@pytest.mark.parametrize("durability", ["step", "turn"])
@pytest.mark.parametrize("turns", [1, 2])
async def test_children_wait_for_the_running_turns_of_their_tenant(
    store: Path | None, durability: Durability, turns: int
) -> None:
    """None is refused, and no parent takes the place of the child that it waits for."""
    tenants = {"default": TenantLimits(running_turns=turns)}
    config = attrs.evolve(CONFIG, durability=durability, tenants=tenants)
    async with Office().open(store, config) as service:
        with trio.fail_after(60):
            result = await service.create_session("delegate a; b; then c; then then d; e")
        parts = ["a", "b", "then c", "then then d", "e"]
        assert await texts(service, result.session_id) == [f"done: {part}" for part in parts]
        account = supervisor_of(service).shared.limiter.tenancy.of_tenant("default")
        assert account is not None
        await trio.testing.wait_all_tasks_blocked()
        assert (account.moment.running, account.moment.busy) == (0, {})
        await service.create_session("work")


async def test_children_count_for_the_token_of_their_owner(store: Path | None) -> None:
    """A model makes no more sessions than its owner may, nor begins more turns."""
    for limits, cause in (
        (TokenLimits(sessions=2), "token_sessions"),
        (TokenLimits(turns_per_minute=2), "token_turns_per_minute"),
    ):
        async with Office().open(None if store is None else store / cause) as service:
            ann = service.as_(Principal(name="ann", limits=limits))
            result = await ann.create_session("delegate a; b; c")
            found = await results(service, result.session_id)
            assert [each.is_error for each in found].count(False) == 1, cause
            assert sum("the token 'ann'" in each.content for each in found) == 2
            other = await service.create_session("delegate a; b; c")
            assert not any(each.is_error for each in await results(service, other.session_id))
