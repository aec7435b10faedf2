"""Tools that run in the background: the turn goes on, and their results become inputs of the session."""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import apsw
import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.checks import assert_valid_transcript
from tests.support.crashing import actor_of
from tests.support.faulty_store import Faults
from tests.support.hanging import expire_leases, store_of
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import Recorder, new_session, open_runtime, transcript
from warren.actors.calls.service import Service
from warren.base.errors import AgentError, InvalidParamsError, SessionNotFoundError, SessionNotRunningError, StoreError
from warren.conversation.attachments import File
from warren.conversation.categories import Gates
from warren.conversation.events import InputTaken, ToolExecutionCompleted
from warren.conversation.messages import (
    ContextMessage,
    Message,
    ToolResultsMessage,
    ToolUseBlock,
    UserMessage,
)
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import Handed, Restart, Tool, ToolOutput, Unfinished, current_call, tool
from warren.settings.config import Config, Limits
from warren.storage.operations import Enqueue, StoreAnswer

pytestmark = pytest.mark.virtual_time
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


@attrs.define(eq=False)
class Bench:
    """A slow tool for the background, a quick one beside it, and a model that calls what the prompt names.

    Attributes:
        keys: the keys of the runs of the slow tool.
        release: lets the slow tool end.
        result: what the slow tool then returns, or raises.
        options: the options of the slow tool.
        cancelled: how many runs of it were cancelled.
        seen: the messages of each model call.
    """

    keys: list[str] = attrs.field(factory=list)
    release: trio.Event = attrs.field(factory=trio.Event)
    result: Any = "built"
    options: dict[str, Any] = attrs.field(factory=dict)
    cancelled: int = 0
    seen: list[list[Message]] = attrs.field(factory=list)

    @property
    def tools(self) -> list[Tool]:
        """The tools."""

        @tool(background=True, **self.options)
        async def build(part: str = "all") -> Any:
            """Build it."""
            del part
            self.keys.append(current_call().key)
            try:
                await self.release.wait()
            except trio.Cancelled:
                self.cancelled += 1
                raise
            if isinstance(self.result, Exception):
                raise self.result
            return self.result

        @tool
        async def look() -> str:
            """Look."""
            await trio.sleep(1)
            return "looked"

        return [build, look]

    async def answer(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        """Call the tools that the newest prompt names, then say how many messages there are."""
        await trio.lowlevel.checkpoint()
        messages = list(request.messages)
        self.seen.append(messages)
        last = messages[-1]
        if isinstance(last, UserMessage) and last.content.startswith("call "):
            names = last.content.split()[1:]
            calls = [ToolUseBlock(f"call-{at}", name, {}) for at, name in enumerate(names)]
            return reply("", *calls)
        return reply("done")

    def open(self, store: Path | None = None, **options: Any) -> Any:
        """Open a runtime with the model and the tools."""
        return open_runtime(FunctionModel(self.answer), store=store, tools=self.tools, **options)


def results(messages: list[Message]) -> list[str]:
    """Return the texts of the results of tools."""
    return [each.content for one in messages if isinstance(one, ToolResultsMessage) for each in one.results]


async def settled(service: Service, session_id: str) -> list[Message]:
    """Return the messages of a session once nothing happens any more."""
    await trio.testing.wait_all_tasks_blocked(0.01)
    found = await transcript(service, session_id)
    assert_valid_transcript(found)
    return list(found)


STORES: list[Callable[[Path], Path | None]] = [lambda path: path, lambda _path: None]
either_store = pytest.mark.parametrize("store_at", STORES, ids=["store", "memory"])


@either_store
async def test_the_turn_goes_on_and_the_result_begins_another(
    tmp_path: Path, store_at: Callable[[Path], Path | None]
) -> None:
    """The call has a result at once; that of the tool is the prompt of a turn of its own, once."""
    bench, recorder = Bench(), Recorder()
    async with bench.open(store_at(tmp_path)) as service:
        session_id = await new_session(service)
        result = await service.start_turn(session_id, "call build", on_event=recorder)
        assert result.text == "done"
        assert recorder.only(ToolExecutionCompleted)[0].result == results(bench.seen[-1])[0]
        assert "runs in the background, as call call-0" in results(bench.seen[-1])[0]
        bench.release.set()
        messages = await settled(service, session_id)
    assert prompts(messages) == [
        "call build",
        "The call call-0 of the tool build, which ran in the background, has ended:\nbuilt",
    ]
    assert len(bench.keys) == 1


@either_store
async def test_the_result_enters_a_running_turn(tmp_path: Path, store_at: Callable[[Path], Path | None]) -> None:
    """Before its next step, as a text with the tool and the call as its source."""
    bench, recorder = Bench(), Recorder()
    bench.release.set()
    async with bench.open(store_at(tmp_path)) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "call build look", on_event=recorder)
        messages = await settled(service, session_id)
    (taken,) = recorder.only(InputTaken)
    assert (taken.kind, taken.source) == ("context", "build (background call call-0)")
    assert [each.source for each in messages if isinstance(each, ContextMessage)] == ["build (background call call-0)"]
    assert len([each for each in messages if isinstance(each, UserMessage)]) == 1


@pytest.mark.parametrize(
    ("result", "options", "text"),
    [
        (ValueError("no such part"), {}, "has failed:\nValueError: no such part"),
        ("built", {"timeout": 5}, "has failed:\ntimed out after 5 s"),
        ({"parts": 3}, {}, 'has ended:\n{"parts":3}'),
    ],
)
async def test_errors_and_data_are_told_as_those_of_other_calls(
    result: object, options: dict[str, Any], text: str
) -> None:
    """A tool for the background has a time limit only if it says so."""
    bench = Bench(result=result, options=options)
    async with bench.open() as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "call build")
        if options:
            await trio.sleep(6)
        else:
            await trio.sleep(10_000)
            bench.release.set()
        messages = await settled(service, session_id)
    assert len(prompts(messages)) == 2
    assert prompts(messages)[1].endswith(text)


@either_store
async def test_files_of_the_result_are_there(tmp_path: Path, store_at: Callable[[Path], Path | None]) -> None:
    """In a turn that the result begins, and in one that it enters."""
    for prompt in ("call build", "call build look"):
        bench = Bench(result=ToolOutput("a chart", [File(PNG, media_type="image/png")]))
        if prompt == "call build look":
            bench.release.set()
        store = store_at(tmp_path / prompt.replace(" ", "-"))
        async with bench.open(store) as service:
            session_id = await new_session(service)
            await service.start_turn(session_id, prompt)
            bench.release.set()
            messages = await settled(service, session_id)
        files = [file.media_type for each in messages if isinstance(each, UserMessage) for file in each.attachments]
        assert files == ["image/png"]


async def test_so_many_calls_run_at_once() -> None:
    """The model is told of one more that it was not run; each that has ended makes room."""
    bench, recorder = Bench(), Recorder()
    async with bench.open(config=Config(limits=Limits(background_calls=2))) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "call build build build", on_event=recorder)
        texts = [each.result for each in recorder.only(ToolExecutionCompleted)]
        assert len(texts) == 2
        assert "2 calls of this session run in the background already" in results(bench.seen[-1])[2]
        bench.release.set()
        await settled(service, session_id)
        await service.start_turn(session_id, "call build")
        await settled(service, session_id)
    assert len(bench.keys) == 3


async def test_calls_of_one_id_in_two_turns_are_told_apart() -> None:
    """Models number the calls of each turn anew."""
    bench = Bench()
    async with bench.open() as service:
        session_id = await new_session(service)
        for _ in range(2):
            await service.start_turn(session_id, "call build")
        shown = (await service.read(session_id)).state.background
        assert [(each.call_id, each.name, each.reason) for each in shown] == [
            ("call-0", "build", "background"),
            ("call-0.2.1", "build", "background"),
        ]
        bench.release.set()
        await settled(service, session_id)
        assert (await service.read(session_id)).state.background == ()
    assert len(set(bench.keys)) == 2


async def test_an_interrupt_ends_the_turn_alone() -> None:
    """The call goes on, and its result comes."""
    bench = Bench()
    async with bench.open() as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "call build look")
        await trio.sleep(0.5)
        await service.interrupt(session_id)
        await turn.failure(AgentError)
        bench.release.set()
        messages = await settled(service, session_id)
    assert "has ended:\nbuilt" in [each for each in messages if isinstance(each, UserMessage)][-1].content
    assert bench.cancelled == 0


@pytest.mark.parametrize(("how", "stored"), [("archive", True), ("archive", False), ("delete", True)])
async def test_the_end_of_the_session_ends_its_calls(tmp_path: Path, how: str, *, stored: bool) -> None:
    """They are cancelled, and nothing comes of them."""
    bench, store = Bench(), tmp_path if stored else None
    async with bench.open(store) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "call build")
        await (service.archive(session_id) if how == "archive" else service.delete(session_id))
        await trio.testing.wait_all_tasks_blocked()
        assert bench.cancelled == 1
        if how == "delete":
            with pytest.raises(SessionNotFoundError):
                await service.read(session_id)
    async with bench.open(store):
        await trio.sleep(60)
    assert len(bench.keys) == 1


async def test_a_call_that_asks_is_decided_on_before_it_begins() -> None:
    """The turn waits for the decision, not for the call; a refused one never begins."""
    for decision in ("allow", "deny"):
        bench, recorder = Bench(), Recorder()
        async with bench.open(config=Config(gates=Gates(callback="ask"))) as service, trio.open_nursery() as nursery:
            session_id = await new_session(service)
            turn = ask(nursery, partial(service.start_turn, on_event=recorder), session_id, "call build")
            await trio.testing.wait_all_tasks_blocked()
            assert bench.keys == []
            await service.approve_tool(session_id, "call-0", decision)
            assert (await turn.value()).text == "done"
            await trio.testing.wait_all_tasks_blocked()
            assert len(bench.keys) == (decision == "allow")
            nursery.cancel_scope.cancel()


async def test_an_interrupt_while_a_call_is_stored_that_was_decided_on(tmp_path: Path) -> None:
    """The call begins: nobody is told that it may have run in a process that ended."""
    bench, faults, config = Bench(), Faults(), Config(gates=Gates(callback="ask"))
    async with bench.open(tmp_path, config=config, faults=faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "call build")
        await trio.sleep(1)
        faults.delay = 1.0
        await service.approve_tool(session_id, "call-0", "allow")
        await trio.sleep(1.5)  # the step with which the call begins is on its way to the store
        await service.interrupt(session_id)
        await turn.failure(AgentError)
        bench.release.set()
        await trio.sleep(60)
        messages = await settled(service, session_id)
    assert prompts(messages)[1].endswith("built")


async def stopped_during(bench: Bench, store: Path) -> str:
    """Have a call run in the background, and stop the runtime; return the session."""
    async with bench.open(store) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "call build")
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench.keys) == 1
    assert bench.cancelled == 1
    return session_id


def prompts(messages: list[Message]) -> list[str]:
    """Return the texts with which turns have begun."""
    return [each.content for each in messages if isinstance(each, UserMessage)]


async def test_a_call_of_a_process_that_ended_is_replayed(tmp_path: Path) -> None:
    """Without a request, under the same key; its result enters once."""
    bench = Bench(options={"restart": "replay"})
    session_id = await stopped_during(bench, tmp_path)
    bench.release.set()
    async with bench.open(tmp_path) as service:
        await trio.sleep(60)
        messages = await settled(service, session_id)
    assert [text.rpartition("\n")[2] for text in prompts(messages)] == ["call build", "built"]
    assert len(bench.keys) == 2
    assert len(set(bench.keys)) == 1
    async with bench.open(tmp_path) as service:
        await trio.sleep(60)
        assert await settled(service, session_id) == messages
    assert len(bench.keys) == 2


async def test_a_call_of_a_process_that_ended_is_reported(tmp_path: Path) -> None:
    """The model hears that nobody knows what it has done, and it does not run again."""
    bench = Bench()
    session_id = await stopped_during(bench, tmp_path)
    async with bench.open(tmp_path) as service:
        await trio.sleep(60)
        messages = await settled(service, session_id)
    assert len(bench.keys) == 1
    assert "has failed:\nnot known: the process ended while this call ran" in prompts(messages)[1]


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_the_decision_on_a_call_that_may_have_run_counts_once(
    tmp_path: Path, decision: Literal["allow", "deny"]
) -> None:
    """Another one is refused, and none is the answer to a later call of the same id."""
    bench = Bench(options={"restart": "ask"})
    session_id = await stopped_during(bench, tmp_path)
    config = Config(gates=Gates(callback="ask"))
    async with bench.open(tmp_path, config=config) as service, trio.open_nursery() as nursery:
        await trio.sleep(60)
        await service.approve_tool(session_id, "call-0", decision)
        await service.approve_tool(session_id, "call-0", decision)
        with pytest.raises(InvalidParamsError, match="tool call 'call-0' was "):
            await service.approve_tool(session_id, "call-0", "deny" if decision == "allow" else "allow")
        turn = ask(nursery, service.start_turn, session_id, "call build", mode="queue")
        await trio.sleep(1)
        await service.approve_tool(session_id, "call-0", "allow")
        with trio.fail_after(10):
            assert (await turn.value()).text == "done"


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_a_call_of_a_process_that_ended_is_asked_about(
    tmp_path: Path, decision: Literal["allow", "deny"]
) -> None:
    """It runs again if it is allowed to; else the model hears what it hears of one that is not replayed."""
    bench = Bench(options={"restart": "ask"})
    session_id = await stopped_during(bench, tmp_path)
    bench.release.set()
    async with bench.open(tmp_path) as service:
        await trio.sleep(60)
        (asked,) = (await service.read(session_id)).state.pending_approvals
        assert (asked.call_id, asked.name, asked.may_have_run) == ("call-0", "build", True)
        await service.approve_tool(session_id, "call-0", decision)
        messages = await settled(service, session_id)
        assert (await service.read(session_id)).state.pending_approvals == ()
    assert len(bench.keys) == (2 if decision == "allow" else 1)
    assert prompts(messages)[1].endswith("built") == (decision == "allow")


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_the_question_whether_a_call_runs_again_stays(tmp_path: Path, decision: Literal["allow", "deny"]) -> None:
    """Two restarts later it is the same one, and its time ends when it was to; a decision is stored, then taken."""
    bench, faults = Bench(options={"restart": "ask"}), Faults(refuse_kinds=(StoreAnswer,))
    config = Config(limits=Limits(approval_timeout=100))
    session_id = await stopped_during(bench, tmp_path)
    since = set[datetime]()
    for _ in range(2):
        async with bench.open(tmp_path, config=config, clock=trio.current_time, faults=faults) as service:
            await trio.sleep(30)
            (asked,) = (await service.read(session_id)).state.pending_approvals
            since.add(asked.since)
            faults.refuse = apsw.FullError("full")
            with pytest.raises(StoreError):
                await service.approve_tool(session_id, "call-0", decision)
            faults.refuse = None
            assert (await service.read(session_id)).state.pending_approvals == (asked,)
    assert len(since) == 1
    assert len(bench.keys) == 1
    async with bench.open(tmp_path, config=config, clock=trio.current_time, faults=faults) as service:
        await trio.sleep(10)
        await service.approve_tool(session_id, "call-0", decision)
        await trio.sleep(1)
        assert len(bench.keys) == (2 if decision == "allow" else 1)
    async with bench.open(tmp_path, config=config, clock=trio.current_time) as service:
        await trio.sleep(10)
        asked_again = (await service.read(session_id)).state.pending_approvals
        assert len(asked_again) == (1 if decision == "allow" else 0)  # it may have run once more
        await trio.sleep(200)
        assert prompts(await settled(service, session_id))[1].endswith("before you make it again")


async def test_a_decision_that_was_stored_is_not_asked_for_again(tmp_path: Path) -> None:
    """A process that ends before the call runs again leaves the decision to the next one."""
    bench = Bench(options={"restart": "ask"})
    session_id = await stopped_during(bench, tmp_path)
    held = Faults(delay=5.0)
    async with bench.open(tmp_path, faults=held) as service:
        await trio.sleep(60)
        await service.approve_tool(session_id, "call-0", "allow")
    assert len(bench.keys) == 1
    bench.release.set()
    async with bench.open(tmp_path) as service:
        await trio.sleep(60)
        await service.approve_tool(session_id, "call-0", "allow")
        assert prompts(await settled(service, session_id))[1].endswith("built")
    assert len(bench.keys) == 2


async def test_a_session_stays_in_memory_as_long_as_a_call_runs(tmp_path: Path) -> None:
    """However long it is idle; it leaves after that."""
    bench = Bench()
    async with bench.open(tmp_path, config=Config(limits=Limits(idle_after=1))) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "call build")
        await trio.sleep(600)
        assert actor_of(service, session_id) is not None
        bench.release.set()
        await trio.sleep(60)
        assert actor_of(service, session_id) is None
        assert len(prompts(await settled(service, session_id))) == 2


async def test_a_drain_waits_for_the_calls(tmp_path: Path) -> None:
    """A call that ends within the time of the drain is not run again."""
    bench = Bench(options={"restart": "replay"})
    async with bench.open(tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        await service.start_turn(session_id, "call build")
        drain = ask(nursery, service.drain)
        await trio.sleep(5)
        assert not drain.ended.is_set()
        bench.release.set()
        await drain.ended.wait()
    async with bench.open(tmp_path) as service:
        await trio.sleep(60)
        messages = await settled(service, session_id)
    assert len(bench.keys) == 1
    assert prompts(messages)[1].endswith("built")


@either_store
async def test_a_result_from_outside_enters(tmp_path: Path, store_at: Callable[[Path], Path | None]) -> None:
    """The tool returns that it comes later; it may come before that, and from another process."""
    tokens = list[str]()

    @tool(background=True)
    async def order(early: bool = False) -> ToolOutput:  # noqa: FBT001, FBT002 - an argument of a model
        """Order it."""
        tokens.append(current_call().token(expires=3600))
        if early:
            await trio.sleep(30)
        return ToolOutput.later(tokens[-1])

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        last = request.messages[-1]
        if isinstance(last, UserMessage) and last.content == "go":
            return reply("", ToolUseBlock("call-0", "order", {"early": len(tokens) == 1}))
        return reply("done")

    store, opened = store_at(tmp_path), partial(open_runtime, FunctionModel(answer), tools=[order])
    async with opened(store=store) as service:
        session_id = await new_session(service)
        for at, pause in enumerate((60, 10)):  # once the tool has returned, and before that
            await service.start_turn(session_id, "go")
            await trio.sleep(pause)
            await service.complete_tool(tokens[at], f"sent {at}")
            await service.complete_tool(tokens[at], f"sent {at}")
            await trio.sleep(60)
        messages = await settled(service, session_id)
    assert [text.rpartition("\n")[2] for text in prompts(messages)] == ["go", "sent 0", "go", "sent 1"]


@either_store
async def test_a_result_is_sent_again_while_the_turn_runs_that_it_has_begun(
    tmp_path: Path, store_at: Callable[[Path], Path | None]
) -> None:
    """Its sender gets the same answer, also if that turn keeps no steps."""
    tokens, release = list[str](), trio.Event()

    @tool(background=True)
    async def order() -> ToolOutput:
        """Order it."""
        tokens.append(current_call().token(expires=3600))
        return ToolOutput.later(tokens[-1])

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        last = request.messages[-1]
        if isinstance(last, UserMessage) and last.content == "go":
            return reply("", ToolUseBlock("call-0", "order", {}))
        if not isinstance(last, ToolResultsMessage):
            await release.wait()
        return reply("done")

    config = Config(durability="turn")
    async with open_runtime(FunctionModel(answer), tools=[order], store=store_at(tmp_path), config=config) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "go")
        await service.complete_tool(tokens[0], "sent")
        await trio.sleep(1)
        await service.complete_tool(tokens[0], "sent")
        with pytest.raises(InvalidParamsError, match="another result"):
            await service.complete_tool(tokens[0], "sent elsewhere")
        release.set()
        await settled(service, session_id)


async def test_a_result_from_outside_enters_after_a_restart(tmp_path: Path) -> None:
    """The tool is not run again: its call waits on, until the token expires."""
    tokens = list[str]()

    @tool(background=True, restart="replay")
    async def order() -> ToolOutput:
        """Order it."""
        tokens.append(current_call().token(expires=3600))
        return ToolOutput.later(tokens[-1])

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        last = request.messages[-1]
        calls = isinstance(last, UserMessage) and last.content == "go"
        return reply("", ToolUseBlock("call-0", "order", {})) if calls else reply("done")

    opened = partial(open_runtime, FunctionModel(answer), tools=[order], store=tmp_path)
    sessions = list[str]()
    async with opened() as service:
        for _ in range(2):
            sessions.append(await new_session(service))
            await service.start_turn(sessions[-1], "go")
        await trio.testing.wait_all_tasks_blocked()
    async with opened() as service:
        await trio.sleep(60)
        await service.complete_tool(tokens[0], "sent")
        await trio.sleep(3600)
        first, second = [prompts(await settled(service, each)) for each in sessions]
    assert first[1:] == ["The call call-0 of the tool order, which ran in the background, has ended:\nsent"]
    assert second[1].endswith("has failed:\nnot known: the call has begun, and its result did not come in time")
    assert len(tokens) == 2


@attrs.define(eq=False)
class Elsewhere:
    """Does the work of a tool, in no process of ours.

    Attributes:
        asked: the handles whose results were waited for.
        cancelled: the handles whose work was to end.
        results: the results, by handle.
    """

    asked: list[str] = attrs.field(factory=list)
    cancelled: list[str] = attrs.field(factory=list)
    results: dict[str, str] = attrs.field(factory=dict)

    here = False

    async def look(self, handle: Mapping[str, Any], /) -> str | Unfinished:
        """Look once."""
        await trio.lowlevel.checkpoint()
        self.asked.append(handle["id"])
        return self.results.get(handle["id"]) or Unfinished(1)

    def cancel(self, handle: Mapping[str, Any], /) -> None:
        """Note it."""
        self.cancelled.append(handle["id"])


def handing(elsewhere: Elsewhere, begun: list[str], told: str | None, **options: Any) -> Tool:
    """Return a tool that hands its work over."""

    @tool(**options)
    async def build() -> Any:
        """Build it."""
        begun.append(current_call().key)
        return Handed({"id": str(len(begun))}, told)

    return attrs.evolve(build, remote=elsewhere)


@pytest.mark.parametrize("told", [None, "It is on its way."])
async def test_work_that_was_handed_over_is_found_again(tmp_path: Path, told: str | None) -> None:
    """After a restart it is not begun again; the model waits for it, or goes on with what it is told."""
    elsewhere, begun, bench = Elsewhere(), list[str](), Bench()
    model = FunctionModel(bench.answer)
    opened = partial(open_runtime, model, store=tmp_path, tools=[handing(elsewhere, begun, told)])
    async with trio.open_nursery() as nursery:
        async with opened() as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "call build")
            await trio.sleep(5)
            assert turn.ended.is_set() == (told is not None)
        await turn.ended.wait()
    elsewhere.results["1"] = "built"
    async with opened() as service:
        await trio.sleep(60)
        messages = await settled(service, session_id)
    assert len(begun) == 1
    assert set(elsewhere.asked) == {"1"}
    assert elsewhere.cancelled == []
    if told is None:
        assert results(messages) == ["built"]
    else:
        assert results(messages)[0].startswith("It is on its way.\nit runs in the background")
        assert prompts(messages)[1].endswith("has ended:\nbuilt")


async def test_work_that_nobody_wants_is_cancelled(tmp_path: Path) -> None:
    """As the turn is interrupted, the time of the call is over, or the session is archived."""
    elsewhere, begun, bench = Elsewhere(), list[str](), Bench()
    model = FunctionModel(bench.answer)
    async with trio.open_nursery() as nursery:
        async with open_runtime(model, store=tmp_path, tools=[handing(elsewhere, begun, None, timeout=50)]) as service:
            session_id = await new_session(service)
            turn = ask(nursery, service.start_turn, session_id, "call build")
            await trio.sleep(5)
            await service.interrupt(session_id)
            await turn.failure(AgentError)
            assert elsewhere.cancelled == ["1"]
            await service.start_turn(session_id, "call build")
            assert "timed out after" in results(bench.seen[-1])[-1]
            assert elsewhere.cancelled == ["1", "2"]
        async with open_runtime(model, store=tmp_path, tools=[handing(elsewhere, begun, "Wait.")]) as service:
            await service.start_turn(session_id, "call build")
            await trio.sleep(5)
            await service.archive(session_id)
            assert elsewhere.cancelled == ["1", "2", "3"]


async def test_a_result_that_has_entered_is_not_made_again(tmp_path: Path) -> None:
    """The process ends before it is stored that the call is over: the next one finds the input by its key."""
    bench, faults = Bench(options={"restart": "replay"}), Faults(refuse_kinds=(StoreAnswer,))
    async with bench.open(tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "call build")
        faults.refuse = apsw.FullError("full")
        bench.release.set()
        await trio.sleep(60)
        assert len(prompts(await settled(service, session_id))) == 2
        assert [each.call_id for each in (await service.read(session_id)).state.background] == ["call-0"]
    async with bench.open(tmp_path) as service:
        await trio.sleep(60)
        assert len(prompts(await settled(service, session_id))) == 2
        assert (await service.read(session_id)).state.background == ()
    assert len(bench.keys) == 1


async def test_a_full_store_delays_a_result(tmp_path: Path) -> None:
    """It enters once there is room."""
    bench, faults = Bench(), Faults(refuse_kinds=(Enqueue,))
    async with bench.open(tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "call build")
        faults.refuse = apsw.FullError("full")
        bench.release.set()
        await trio.sleep(60)
        assert len(prompts(await settled(service, session_id))) == 1
        faults.refuse = None
        await trio.sleep(60)
        assert len(prompts(await settled(service, session_id))) == 2
    assert len(bench.keys) == 1


@attrs.define(eq=False)
class Orders:
    """A tool for the background whose results come from outside, and a model that calls it for each prompt.

    Attributes:
        tokens: the tokens that the tool has handed out.
        expires: seconds for which they are good.
        takes: seconds that the tool takes after it has handed its token out.
        restart: what becomes of a call whose process ends.
        ahead: seconds by which the clock of the store was put forward.
    """

    tokens: list[str] = attrs.field(factory=list)
    expires: float = 3600.0
    takes: float = 0.0
    restart: Restart = "report"
    ahead: float = 0.0

    @property
    def order(self) -> Tool:
        """The tool."""

        @tool(background=True, restart=self.restart)
        async def order() -> ToolOutput:
            """Order it."""
            self.tokens.append(current_call().token(expires=self.expires))
            await trio.sleep(self.takes)
            return ToolOutput.later(self.tokens[-1])

        return order

    async def answer(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        """Call the tool for each prompt "go", under the same id."""
        await trio.lowlevel.checkpoint()
        last = request.messages[-1]
        calls = isinstance(last, UserMessage) and last.content == "go"
        return reply("", ToolUseBlock("call-0", "order", {})) if calls else reply("done")

    def open(self, store: Path, faults: Faults | None = None) -> Any:
        """Open a runtime whose store has the virtual clock."""
        model = FunctionModel(self.answer)
        return open_runtime(model, store=store, tools=[self.order], clock=self.clock, faults=faults)

    def clock(self) -> float:
        """Return the time of the store, in seconds since 1970."""
        return self.ahead + trio.current_time()

    async def ordered(self, store: Path) -> str:
        """Have a call made by a process that ends; return the session."""
        async with self.open(store) as service:
            session_id = await new_session(service)
            await service.start_turn(session_id, "go")
            await trio.testing.wait_all_tasks_blocked()
        return session_id


async def test_of_two_results_at_once_one_is_taken(tmp_path: Path) -> None:
    """The other sender hears so, also on a second try; the result that was taken enters."""
    orders, told = Orders(), dict[str, str]()

    async def give(service: Service, result: str) -> None:
        try:
            await service.complete_tool(orders.tokens[0], result)
            told[result] = "taken"
        except InvalidParamsError as exc:
            told[result] = exc.message

    async with orders.open(tmp_path) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "go")
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(give, service, "yes")
                nursery.start_soon(give, service, "no")
            (taken,) = [result for result, answer in told.items() if answer == "taken"]
            assert "has got another result" in told["no" if taken == "yes" else "yes"]
        messages = await settled(service, session_id)
    assert [text.rpartition("\n")[2] for text in prompts(messages)] == ["go", taken]


async def test_a_result_is_refused_once_the_call_is_reported(tmp_path: Path) -> None:
    """The model is about to hear that nothing is known of it: nobody is told that his result was taken."""
    orders, faults = Orders(takes=60.0), Faults(refuse_kinds=(Enqueue,))
    session_id = await orders.ordered(tmp_path)
    faults.refuse = apsw.FullError("full")
    async with orders.open(tmp_path, faults) as service:
        await trio.sleep(30)
        for refuse in (faults.refuse, None):  # while its input cannot be stored as yet, and long after it has entered
            faults.refuse = refuse
            await trio.sleep(60)
            with pytest.raises(InvalidParamsError, match="waits no more"):
                await service.complete_tool(orders.tokens[0], "sent")
        messages = await settled(service, session_id)
    assert "not known: the process ended while this call ran" in prompts(messages)[1]
    assert len(orders.tokens) == 1


async def test_a_result_is_refused_if_an_earlier_process_has_reported_the_call(tmp_path: Path) -> None:
    """That process has ended before it could store that the call is over."""
    orders, faults = Orders(takes=60.0), Faults(refuse_kinds=(StoreAnswer,))
    session_id = await orders.ordered(tmp_path)
    faults.refuse = apsw.FullError("full")
    async with orders.open(tmp_path, faults) as service:
        await trio.sleep(60)
        messages = await settled(service, session_id)
    assert "not known: the process ended while this call ran" in prompts(messages)[1]
    async with orders.open(tmp_path) as service:
        with pytest.raises(InvalidParamsError, match="waits no more"):
            await service.complete_tool(orders.tokens[0], "sent")
        assert await settled(service, session_id) == messages


async def test_a_result_is_refused_if_another_process_has_reported_the_call_meanwhile(tmp_path: Path) -> None:
    """The process of the call hung while it ran, and hears of that as the result comes."""
    orders = Orders(takes=600.0)
    async with orders.open(tmp_path) as service, orders.open(tmp_path) as other:
        session_id = await new_session(service)
        await service.start_turn(session_id, "go")
        await expire_leases(service)
        await trio.sleep(60)
        messages = await settled(other, session_id)
        assert "not known: the process ended while this call ran" in prompts(messages)[1]
        (await store_of(service)).me.clock = orders.clock
        with pytest.raises(StoreError, match="has taken the session over"):
            await service.complete_tool(orders.tokens[0], "sent")
        for _ in range(2):
            with pytest.raises(InvalidParamsError, match="waits no more"):
                await service.complete_tool(orders.tokens[0], "sent")
        await trio.sleep(600)
        assert await settled(other, session_id) == messages


async def test_a_result_that_another_process_has_taken_meanwhile_gets_the_same_answer(tmp_path: Path) -> None:
    """The process of the call hung while it ran, and gets the result that the other one has let enter."""
    orders = Orders(takes=600.0, restart="ask")
    async with orders.open(tmp_path) as service, orders.open(tmp_path) as other:
        session_id = await new_session(service)
        await service.start_turn(session_id, "go")
        await expire_leases(service)
        await trio.sleep(60)
        await other.complete_tool(orders.tokens[0], "sent")
        await trio.sleep(60)
        messages = await settled(other, session_id)
        assert prompts(messages)[1].endswith("sent")
        (await store_of(service)).me.clock = orders.clock
        with pytest.raises(StoreError, match="has taken the session over"):
            await service.complete_tool(orders.tokens[0], "sent")
        for _ in range(2):
            await service.complete_tool(orders.tokens[0], "sent")
            with pytest.raises(InvalidParamsError, match="has got another result"):
                await service.complete_tool(orders.tokens[0], "lost")
        await trio.sleep(600)
        assert await settled(other, session_id) == messages


async def test_a_result_that_was_taken_enters_though_the_process_ends(tmp_path: Path) -> None:
    """Also one that came before the tool had said that it comes later."""
    orders = Orders(takes=60.0)
    async with orders.open(tmp_path) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "go")
        await trio.testing.wait_all_tasks_blocked()
        await service.complete_tool(orders.tokens[0], "sent")
    async with orders.open(tmp_path) as service:
        await trio.sleep(60)
        await service.complete_tool(orders.tokens[0], "sent")
        messages = await settled(service, session_id)
    assert [text.rpartition("\n")[2] for text in prompts(messages)] == ["go", "sent"]


async def test_a_token_may_expire_while_no_process_runs(tmp_path: Path) -> None:
    """The call has no result then, and its session goes on."""
    orders = Orders(expires=60.0)
    session_id = await orders.ordered(tmp_path)
    orders.ahead = 3600.0
    async with orders.open(tmp_path) as service:
        await trio.sleep(60)
        messages = await settled(service, session_id)
    assert prompts(messages)[1].endswith(
        "has failed:\nnot known: the call has begun, and its result did not come in time"
    )


async def test_the_time_of_handed_work_may_end_while_no_process_runs(tmp_path: Path) -> None:
    """The work is cancelled, and the model hears that it was too late."""
    elsewhere, begun, bench, ahead = Elsewhere(), list[str](), Bench(), 0.0
    tools = [handing(elsewhere, begun, "Wait.", timeout=5)]
    opened = partial(
        open_runtime,
        FunctionModel(bench.answer),
        store=tmp_path,
        tools=tools,
        clock=lambda: ahead + trio.current_time(),
    )
    async with opened() as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "call build")
    ahead = 3600.0
    async with opened() as service:
        await trio.sleep(60)
        messages = await settled(service, session_id)
    assert "has failed:\ntimed out" in prompts(messages)[1]
    assert elsewhere.cancelled == ["1"]


async def test_a_call_that_is_replayed_can_make_tokens(tmp_path: Path) -> None:
    """Also in a process that has run no turn, and whose store cannot be read at first."""
    orders = Orders(takes=60.0, restart="replay")
    session_id = await orders.ordered(tmp_path)
    orders.takes = 0.0
    faults = Faults(no_secret=StoreError("the database cannot be reached", cause="unreachable"))
    async with orders.open(tmp_path, faults) as service:
        await trio.sleep(30)
        assert len(orders.tokens) == 1
        faults.no_secret = None
        await trio.sleep(60)
        assert len(orders.tokens) == 2
        await service.complete_tool(orders.tokens[0], "sent")
        messages = await settled(service, session_id)
    assert [text.rpartition("\n")[2] for text in prompts(messages)] == ["go", "sent"]


async def test_a_call_that_has_its_result_is_not_replayed(tmp_path: Path) -> None:
    """The result comes once the call is taken up, and before it can run: its process has no secret for tokens yet."""
    orders = Orders(takes=60.0, restart="replay")
    session_id = await orders.ordered(tmp_path)
    faults = Faults(no_secret=StoreError("the database cannot be reached", cause="unreachable"))
    async with orders.open(tmp_path, faults) as service:
        await trio.sleep(30)
        faults.no_secret = None
        await service.complete_tool(orders.tokens[0], "sent")
        await trio.sleep(60)
        messages = await settled(service, session_id)
    assert [text.rpartition("\n")[2] for text in prompts(messages)] == ["go", "sent"]
    assert len(orders.tokens) == 1


async def test_a_call_that_another_process_has_run_meanwhile_does_not_run_again(tmp_path: Path) -> None:
    """The process that had taken it up before hung until the result had entered, and had not begun it as yet."""
    orders = Orders(takes=60.0, restart="replay")
    session_id = await orders.ordered(tmp_path)
    orders.takes = 0.0
    faults = Faults(no_secret=StoreError("the database cannot be reached", cause="unreachable"))
    async with orders.open(tmp_path, faults) as service, orders.open(tmp_path) as other:
        await trio.sleep(30)
        await expire_leases(service)
        await trio.sleep(60)
        await other.complete_tool(orders.tokens[1], "sent")
        messages = await settled(other, session_id)
        (await store_of(service)).me.clock = orders.clock
        faults.no_secret = None
        await trio.sleep(60)
        assert await settled(other, session_id) == messages
    assert [text.rpartition("\n")[2] for text in prompts(messages)] == ["go", "sent"]
    assert len(orders.tokens) == 2


async def test_a_call_of_a_session_that_was_lost_unknowingly_does_not_run_again(tmp_path: Path) -> None:
    """The process that has taken the call up is about to look for its result, and its fence is open."""
    orders, faults = Orders(takes=60.0, restart="replay"), Faults(delay=100)
    session_id = await orders.ordered(tmp_path)
    orders.takes = 0.0
    async with orders.open(tmp_path, faults) as service:
        await trio.sleep(150)
        await expire_leases(service)
        async with orders.open(tmp_path) as other:
            await trio.sleep(40)
            assert len(orders.tokens) == 2
            await trio.sleep(60)
            await other.complete_tool(orders.tokens[1], "sent")
            messages = await settled(other, session_id)
    assert [text.rpartition("\n")[2] for text in prompts(messages)] == ["go", "sent"]
    assert len(orders.tokens) == 2


async def test_a_result_does_not_enter_once_another_process_has_the_session(tmp_path: Path) -> None:
    """That process has looked for the result, and is about to run the call again."""
    bench = Bench(result="late", options={"restart": "replay"})
    faults = Faults(no_secret=StoreError("the database cannot be reached", cause="unreachable"))
    async with bench.open(tmp_path) as service, bench.open(tmp_path, faults=faults) as other:
        session_id = await new_session(service)
        await service.start_turn(session_id, "call build")
        await expire_leases(service)
        await trio.sleep(60)
        bench.release.set()
        await trio.sleep(1)
        bench.result, faults.no_secret = "again", None
        await trio.sleep(60)
        messages = await settled(other, session_id)
    assert [text.rpartition("\n")[2] for text in prompts(messages)] == ["call build", "again"]
    assert len(bench.keys) == 2


async def test_a_call_that_comes_back_is_as_the_process_that_had_it_meanwhile_has_left_it(tmp_path: Path) -> None:
    """That one has run it, so that its result comes from outside: here, where it had not begun, it waits for that."""
    orders = Orders(takes=60.0, restart="replay")
    session_id = await orders.ordered(tmp_path)
    orders.takes = 0.0
    faults = Faults(no_secret=StoreError("the database cannot be reached", cause="unreachable"))
    async with orders.open(tmp_path, faults) as service:
        await trio.sleep(30)
        async with orders.open(tmp_path):
            await expire_leases(service)
            await trio.sleep(60)
        (await store_of(service)).me.clock = orders.clock
        await trio.sleep(30)
        await service.start_turn(session_id, "hello")
        faults.no_secret = None
        await trio.sleep(60)
        await service.complete_tool(orders.tokens[1], "sent")
        messages = await settled(service, session_id)
    assert [text.rpartition("\n")[2] for text in prompts(messages)] == ["go", "hello", "sent"]
    assert len(orders.tokens) == 2


async def test_a_result_ends_the_question_whether_its_call_runs_again(tmp_path: Path) -> None:
    """It enters at once, and nobody is asked any more."""
    orders = Orders(takes=60.0, restart="ask")
    session_id = await orders.ordered(tmp_path)
    async with orders.open(tmp_path) as service:
        await trio.sleep(1)
        (asked,) = (await service.read(session_id)).state.pending_approvals
        assert asked.may_have_run
        await service.complete_tool(orders.tokens[0], "sent")
        await trio.sleep(1)
        assert (await service.read(session_id)).state.pending_approvals == ()
        with pytest.raises(SessionNotRunningError):
            await service.approve_tool(session_id, "call-0", "allow")
        messages = await settled(service, session_id)
    assert [text.rpartition("\n")[2] for text in prompts(messages)] == ["go", "sent"]
    assert len(orders.tokens) == 1


async def test_a_result_given_again_gets_the_same_answer(tmp_path: Path) -> None:
    """After it has entered, after its token has expired, and if two calls had one id."""
    orders = Orders()
    async with orders.open(tmp_path) as service:
        session_id = await new_session(service)
        for _ in range(2):
            await service.start_turn(session_id, "go")
        for number in range(2):
            await service.complete_tool(orders.tokens[number], f"sent {number}")
        for pause in (0, 60, 2 * 3600):
            await trio.sleep(pause)
            for number in range(2):
                await service.complete_tool(orders.tokens[number], f"sent {number}")
        messages = await settled(service, session_id)
    assert sorted(text.rpartition("\n")[2] for text in prompts(messages)) == ["go", "go", "sent 0", "sent 1"]
