"""Hooks around calls that wait: a person decides about a call once, over restarts, and crashes at each moment of it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.faulty_store import Faults
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import Recorder, open_runtime, transcript
from warren.actors.calls.service import Service
from warren.agents.hooks import Asked, Denied, Go, HookedCall, HookedRequest, Hooks, ToolOutcome
from warren.conversation.categories import Gates
from warren.conversation.events import ToolApprovalRequested
from warren.conversation.messages import ToolResult, ToolResultsMessage, ToolUseBlock
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import ToolOutput, current_call, tool
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time
ToolGo = Go[HookedCall, ToolOutcome]
CALL = ToolUseBlock("c1", "pay", {"order": "17"})
SOON = Limits(drain=0.01)
COMMITS = 3
"""Commits of a turn with one tool call: before the call, with its result, and at the end."""


async def pays(request: ModelRequest, _emit: Emit) -> ModelReply:
    """Make one call, then be done."""
    await trio.lowlevel.checkpoint()
    return reply("done") if isinstance(request.messages[-1], ToolResultsMessage) else reply("", CALL)


@attrs.define(eq=False)
class Stage:
    """A tool, and a hook around it.

    Attributes:
        act: what the hook does.
        seen: the calls of the hook.
        paid: the runs of the tool.
        stops: whether the tool never ends.
    """

    act: Callable[[HookedCall, ToolGo], Any]
    seen: list[HookedCall] = attrs.field(factory=list)
    paid: list[str] = attrs.field(factory=list)
    tokens: list[str] = attrs.field(factory=list)
    stops: bool = False
    later: bool = False

    def open(
        self, store: Path | None, gates: Gates | None = None, act: Callable[[HookedCall, ToolGo], Any] | None = None
    ) -> AbstractAsyncContextManager[Service]:
        """Open a runtime with both."""
        self.act = act or self.act

        @tool(restart="replay")
        async def pay(order: str) -> ToolOutput:
            """Pay money back for an order."""
            self.paid.append(order)
            if self.stops:
                await trio.sleep_forever()
            if self.later:
                self.tokens.append(current_call().token(expires=1e6))
                return ToolOutput.later(self.tokens[-1])
            await trio.lowlevel.checkpoint()
            return ToolOutput(f"paid {order}")

        stage = self

        class Guard(Hooks):
            async def on_tool(self, call: HookedCall, go: ToolGo) -> ToolOutcome | Denied | Asked:
                stage.seen.append(call)
                return await stage.act(call, go)  # type: ignore[no-any-return]

        config = Config(gates=gates or Gates(), limits=SOON)
        return open_runtime(FunctionModel(pays), store=store, tools=[pay], hooks=[Guard()], config=config)


async def asks(call: HookedCall, _go: ToolGo) -> Asked:
    """Have a person decide."""
    await trio.lowlevel.checkpoint()
    return call.ask(f"Is order {call.args['order']} lost?")


async def passes(_call: HookedCall, go: ToolGo) -> ToolOutcome:
    """Do nothing."""
    return await go()


async def denies(call: HookedCall, _go: ToolGo) -> Denied:
    """Deny."""
    await trio.lowlevel.checkpoint()
    return call.deny("no")


async def allows(call: HookedCall, go: ToolGo) -> ToolOutcome:
    """Spare the approver."""
    call.allow()
    return await go()


async def marks(call: HookedCall, go: ToolGo) -> ToolOutcome:
    """Change the result."""
    return call.result(f"[{(await go()).text}]")


async def result_in(service: Service, session_id: str) -> ToolResult:
    """Return the result of the call."""
    for each in await transcript(service, session_id):
        if isinstance(each, ToolResultsMessage):
            return each.results[0]
    raise AssertionError("the call has no result")


async def wait_idle(service: Service, session_id: str) -> None:
    """Wait for the end of the turn."""
    with trio.fail_after(100):
        await wait_all_tasks_blocked()
        while (await service.read(session_id)).state.turn is not None:  # noqa: ASYNC110 - as a client sees it
            await trio.sleep(0.1)


@pytest.fixture(params=["in memory", "stored"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Return the folder of a store, or None."""
    return tmp_path if request.param == "stored" else None


MATRIX = {
    ("auto", passes): ("runs", 0),
    ("ask", passes): ("runs", 1),
    ("deny", passes): ("gate", 0),
    ("auto", asks): ("runs", 1),
    ("ask", asks): ("runs", 1),
    ("deny", asks): ("gate", 0),
    ("auto", allows): ("runs", 0),
    ("ask", allows): ("runs", 0),
    ("deny", allows): ("gate", 0),
    ("auto", denies): ("hook", 0),
    ("ask", denies): ("hook", 0),
    ("deny", denies): ("gate", 0),
}


@pytest.mark.parametrize(("gate", "act"), MATRIX, ids=lambda each: each if isinstance(each, str) else each.__name__)
async def test_gates_and_hooks(gate: Any, act: Callable[..., Any], store: Path | None) -> None:
    """The stricter one counts, but for `allow`, and a person decides once, whoever asked."""
    outcome, asked = MATRIX[gate, act]
    stage, recorder = Stage(act), Recorder()
    async with stage.open(store, Gates(callback=gate)) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id

        async def turn() -> None:
            assert (await service.start_turn(session_id, "Pay.", on_event=recorder)).text == "done"

        nursery.start_soon(turn)
        for _ in range(asked):
            await wait_all_tasks_blocked()
            assert stage.paid == []
            (pending,) = (await service.approvals()).approvals
            assert pending.question == ("Is order 17 lost?" if act is asks else None)
            await service.approve_tool(session_id, "c1", "allow")
        await wait_idle(service, session_id)
        told = await result_in(service, session_id)
    texts = {"runs": "paid 17", "hook": "not run: no", "gate": "not run: callback tools are denied here"}
    assert told.content.startswith(texts[outcome])
    assert stage.paid == (["17"] if outcome == "runs" else [])
    requested = recorder.only(ToolApprovalRequested)
    assert len(requested) == asked
    assert [each.question for each in requested] == (["Is order 17 lost?"] if asked and act is asks else [None] * asked)
    if asked:
        assert [each.given is not None for each in stage.seen] == [False, True]


async def test_a_call_that_a_person_refuses(store: Path | None) -> None:
    """It does not run, and the hooks are not called again."""
    stage = Stage(asks)
    async with stage.open(store) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(lambda: service.start_turn(session_id, "Pay."))
        await wait_all_tasks_blocked()
        await service.approve_tool(session_id, "c1", "deny", reason="found it")
        await wait_idle(service, session_id)
        assert (await result_in(service, session_id)).content == "not run: it was refused: found it"
    assert (stage.paid, len(stage.seen)) == ([], 1)


async def test_a_question_waits_over_restarts(tmp_path: Path) -> None:
    """It is stored, a process that has it awaited does not ask again, and the call runs once that is decided."""
    stage = Stage(asks)
    async with stage.open(tmp_path) as service:
        session_id = (await service.create_session(None)).session_id
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_begins, service, session_id)
            await wait_all_tasks_blocked()
            (pending,) = (await service.approvals()).approvals
            assert (pending.call_id, pending.args) == ("c1", {"order": "17"})
            assert pending.question == "Is order 17 lost?"
            nursery.cancel_scope.cancel()
    for _ in range(2):
        async with stage.open(tmp_path) as service:
            await trio.sleep(3600)
            (listed,) = (await service.approvals()).approvals
            (shown,) = (await service.read(session_id)).state.pending_approvals
            assert listed.question == shown.question == "Is order 17 lost?"
    assert (stage.paid, len(stage.seen)) == ([], 1)
    async with stage.open(tmp_path) as service:
        await service.approve_tool(session_id, "c1", "allow")
        await wait_idle(service, session_id)
        assert (await result_in(service, session_id)).content == "paid 17"
    assert (stage.paid, len(stage.seen)) == (["17"], 2)
    assert stage.seen[0].key == stage.seen[1].key


async def _begins(service: Service, session_id: str) -> None:
    await service.start_turn(session_id, "Pay.")


async def test_a_process_that_ends_before_the_verdict(tmp_path: Path) -> None:
    """The next one calls the hooks again, and the tool has not run."""

    async def hangs(_call: HookedCall, _go: ToolGo) -> None:
        await trio.sleep_forever()

    stage = Stage(hangs)
    async with stage.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(_begins, service, session_id)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    async with stage.open(tmp_path, act=denies) as service:
        await wait_idle(service, session_id)
        assert (await result_in(service, session_id)).content == "not run: no"
    assert (stage.paid, [each.runs_again for each in stage.seen]) == ([], [False, False])


async def test_a_process_that_ends_while_the_tool_runs(tmp_path: Path) -> None:
    """A tool that may run again does so within its hooks, which are told of it."""
    stage = Stage(marks, stops=True)
    async with stage.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(_begins, service, session_id)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    stage.stops = False
    async with stage.open(tmp_path) as service:
        await wait_idle(service, session_id)
        assert (await result_in(service, session_id)).content == "[paid 17]"
    assert (stage.paid, [each.runs_again for each in stage.seen]) == (["17", "17"], [False, True])


async def test_a_replay_that_is_denied(tmp_path: Path) -> None:
    """The model is told that the call is not made again: it may have run."""
    stage = Stage(marks, stops=True)
    async with stage.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(_begins, service, session_id)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    async with stage.open(tmp_path, act=denies) as service:
        await wait_idle(service, session_id)
        assert (await result_in(service, session_id)).content == "not run again: no"
    assert stage.paid == ["17"]


async def test_a_result_from_outside_goes_through_the_hooks(tmp_path: Path) -> None:
    """The tool runs once; its result comes days later, in another process, and the hooks see it there."""
    stage = Stage(marks, later=True)
    async with stage.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(_begins, service, session_id)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    async with stage.open(tmp_path) as service:
        await trio.sleep(100)
        await service.complete_tool(stage.tokens[0], "paid by the bank")
        await wait_idle(service, session_id)
        assert (await result_in(service, session_id)).content == "[paid by the bank]"
    assert (stage.paid, [each.runs_again for each in stage.seen]) == (["17"], [False, True])


async def test_a_result_from_outside_in_memory() -> None:
    """Without a store `go` waits for it."""
    stage = Stage(marks, later=True)
    async with stage.open(None) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None)).session_id
        nursery.start_soon(_begins, service, session_id)
        await wait_all_tasks_blocked()
        await service.complete_tool(stage.tokens[0], "paid by the bank")
        await wait_idle(service, session_id)
        assert (await result_in(service, session_id)).content == "[paid by the bank]"
    assert len(stage.seen) == 1


async def test_hooks_of_a_session_end_with_their_process(tmp_path: Path) -> None:
    """A turn that goes on in the next process has the hooks of the runtime alone."""
    own = list[str]()

    class Own(Hooks):
        async def on_tool(self, call: HookedCall, go: ToolGo) -> ToolOutcome | Denied | Asked:
            own.append(call.call_id)
            return await go(call)

    stage = Stage(marks, stops=True)
    async with stage.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session(None, hooks=[Own()])).session_id
        nursery.start_soon(_begins, service, session_id)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert own == ["c1"]
    stage.stops = False
    async with stage.open(tmp_path) as service:
        await wait_idle(service, session_id)
        assert (await result_in(service, session_id)).content == "[paid 17]"
    assert (own, len(stage.seen)) == (["c1"], 2)


@pytest.mark.parametrize("hooked", [False, True])
async def test_hooks_around_other_things_cost_a_call_no_commit(hooked: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """A call is kept before its hooks are asked, and there is nothing to keep if no hook surrounds calls."""

    class Reads(Hooks):
        async def on_model(self, request: HookedRequest, go: Go[HookedRequest, ModelReply]) -> ModelReply | Denied:
            return await go(request)

    @tool
    async def pay(order: str) -> str:
        """Pay money back for an order."""
        return f"paid {order}"

    faults, hooks = Faults(), [Reads()] if hooked else []
    async with open_runtime(FunctionModel(pays), store=tmp_path, tools=[pay], faults=faults, hooks=hooks) as service:
        session_id = (await service.create_session(None)).session_id
        before = len(faults.groups)
        await service.start_turn(session_id, "go")
        assert len(faults.groups) - before == COMMITS
