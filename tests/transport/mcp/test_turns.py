"""A turn and the call that started it: what the client hears of it, and what a cancel of the call does to it."""

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.fake_service import FakeService, FakeTurn, until_interrupted
from tests.support.models import Flood, Puppet
from tests.support.runtime import new_session, open_runtime, transcript
from tests.transport.mcp.clients import ERAS, at_rest, connected
from tests.transport.mcp.turning import PLAIN, under_way
from warren.base.errors import SessionBusyError
from warren.calls.base import Call
from warren.calls.facade import SessionService
from warren.calls.streams import OnBegin
from warren.calls.turns import InterruptRequest
from warren.conversation.events import Envelope, RunCompleted, StreamTruncated, TextDelta, TurnStarted
from warren.conversation.messages import AssistantMessage, TextBlock, UserMessage
from warren.conversation.views import TurnResult
from warren.transport.mcp.calls import ToolCall
from warren.transport.mcp.client import McpClient
from warren.transport.mcp.mcp_server import Tools

R = TypeVar("R")

LONG: Final = 768
"""Pieces of a long answer."""


@pytest.mark.parametrize("era", ERAS)
async def test_progress_tells_every_event_before_the_result(era: str) -> None:
    """A watched call brings the turn's events in order, in words and as data, the last one before its result."""
    model = Puppet()
    async with open_runtime(model) as service, connected(service, era) as program:
        model.say("hello", None)
        session_id = (await program.ask("warren_run", watch=True, prompt="hi"))["session_id"]
        assert program.told == [
            "run started",
            "turn started",
            "hello",
            "text complete",
            "turn completed",
            "run completed",
        ]
        assert [event["type"] for event in program.events] == PLAIN
        assert program.events[0]["session_id"] == session_id
        model.say("again", None)
        await program.ask("warren_resume", watch=True, session_id=session_id, prompt="more")
        assert [event["type"] for event in program.events] == PLAIN * 2


async def test_progress_comes_while_the_turn_runs() -> None:
    """The text is heard piece by piece, long before there is a result."""
    model = Puppet()
    async with open_runtime(model) as service, connected(service) as program:
        async with under_way(program, "warren_run", prompt="hi"):
            model.say("one")
            await program.hear("one")
            model.say("two")
            await program.hear("two")
            model.say(None)
        assert program.told[-1] == "run completed"


async def test_who_asks_for_no_progress_gets_none() -> None:
    """Without a progress token a call brings its result alone."""
    async with open_runtime() as service, connected(service) as program:
        await program.ask("warren_run", prompt="hi")
        assert program.events == []


async def test_a_slow_reader_holds_no_turn_up_and_misses_no_text() -> None:
    """Events wait for it in the log, adjacent deltas as one, and its result still comes last."""
    sent: list[Envelope] = []
    reads = trio.Event()

    async def send(envelope: Envelope) -> None:
        await reads.wait()
        sent.append(envelope)

    async with open_runtime(Flood(LONG, piece="ab")) as service:
        call = ToolCall(service, send)
        done: list[TurnResult] = []

        async def run() -> None:
            done.append(await call.stream(None, lambda on_begin: service.create_session("talk", on_begin=on_begin)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await wait_all_tasks_blocked()
            while service.health().running_turns:
                await wait_all_tasks_blocked()
            assert done == []
            reads.set()
        assert done
    text = "".join(item.event.delta for item in sent if isinstance(item.event, TextDelta))
    assert text == "ab" * LONG
    assert isinstance(sent[-1].event, RunCompleted)
    assert not any(isinstance(item.event, StreamTruncated) for item in sent)
    assert all(before.seq < after.seq for before, after in pairwise(sent))


@pytest.mark.virtual_time
async def test_a_client_that_reads_while_the_turn_ends_gets_the_rest() -> None:
    """A turn that ends between two events of its progress cuts nothing off."""
    sent: list[Envelope] = []

    async def send(envelope: Envelope) -> None:
        await trio.sleep(1)
        sent.append(envelope)

    async def steps(turn: FakeTurn) -> None:
        for number in range(5):
            turn.publish(TurnStarted(number))

    service = FakeService(steps, on_end=partial(trio.sleep, 1.5))
    call = ToolCall(service, send)
    result = await call.stream("s1", lambda on_begin: service.start_turn("s1", "x", on_begin=on_begin))
    assert [each.seq for each in sent] == list(range(1, 8))
    assert sent[-1].seq == result.last_seq


async def test_a_client_that_cannot_be_told_does_not_spoil_the_turn(caplog: pytest.LogCaptureFixture) -> None:
    """If progress cannot be sent, the turn goes on and the call has its result."""

    async def send(_envelope: Envelope) -> None:
        raise OSError("no way")

    async with open_runtime() as service:
        call = ToolCall(service, send)
        result = await call.stream(None, lambda on_begin: service.create_session("hi", on_begin=on_begin))
    assert result.text == "hi"
    assert "no way" in caplog.text


@pytest.mark.parametrize("era", ERAS)
async def test_a_cancelled_call_interrupts_its_turn(era: str, tmp_path: Path) -> None:
    """The text so far is stored as a cancelled answer, and the session goes on with the next turn."""
    model = Puppet()
    async with open_runtime(model, store=tmp_path) as service, connected(service, era) as program:
        session_id = await new_session(service)
        async with under_way(program, "warren_resume", session_id=session_id, prompt="talk") as scope:
            model.say("half")
            await program.hear("half")
            scope.cancel()
        await at_rest(service, session_id)
        partial = AssistantMessage((TextBlock("half"),), "cancelled")
        assert await transcript(service, session_id) == [UserMessage("talk"), partial]
        model.say("whole", None)
        assert (await program.ask("warren_resume", session_id=session_id, prompt="again"))["text"] == "whole"


async def test_a_cancelled_first_turn_leaves_its_session() -> None:
    """A session that warren_run has made is there after the call was cancelled, and can be resumed."""
    model = Puppet()
    async with open_runtime(model) as service, connected(service) as program:
        async with under_way(program, "warren_run", prompt="talk") as scope:
            await program.hear("turn started")
            scope.cancel()
        session_id = program.events[0]["session_id"]
        await at_rest(service, session_id)
        model.say("whole", None)
        assert (await program.ask("warren_resume", session_id=session_id, prompt="again"))["text"] == "whole"


@attrs.define(eq=False)
class Deaf(FakeService):
    """A service whose turns no interrupt ends."""

    async def perform(self, call: Call[R]) -> R:
        if not isinstance(call, InterruptRequest):
            return await super().perform(call)
        await trio.lowlevel.checkpoint()
        self.calls.append(("interrupt", {"session_id": call.session_id}))
        return cast("R", None)


async def cancelled(service: SessionService, *, begin: Callable[[], Awaitable[object]]) -> None:
    """Start a turn by a call, cancel that after `begin`, and wait for its end."""

    async def create(on_begin: OnBegin | None) -> TurnResult:
        return await service.create_session("talk", on_begin=on_begin)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ToolCall(service, None).stream, None, create)
        await begin()
        nursery.cancel_scope.cancel()


@pytest.mark.virtual_time
async def test_a_cancel_before_the_turn_began_still_ends_it() -> None:
    """The interrupt waits for the turn: sent at once it would find nothing to end."""
    admit = trio.Event()
    service = FakeService(until_interrupted(), on_begin=admit.wait)

    async def admit_late() -> None:
        await trio.sleep(1)
        assert service.called("interrupt") == []
        admit.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(admit_late)
        await cancelled(service, begin=wait_all_tasks_blocked)
    assert service.calls[-1] == ("interrupt", {"session_id": "n1"})


@pytest.mark.virtual_time
async def test_a_cancelled_call_of_a_turn_that_is_refused_interrupts_nothing() -> None:
    """The session is somebody else's turn's: that one goes on, and the call ends with the refusal."""
    service = FakeService()
    began = trio.current_time()

    async def refuse(_on_begin: OnBegin | None) -> TurnResult:
        await trio.sleep(1)
        raise SessionBusyError("busy", session_id="s1")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ToolCall(service, None).stream, "s1", refuse)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert service.calls == []
    assert trio.current_time() - began == pytest.approx(1)


@pytest.mark.virtual_time
async def test_a_cancelled_call_ends_as_one_task_does() -> None:
    """The library knows a lone Cancelled alone: in a group it would leave the client of a server that ends waiting."""
    service = FakeService(until_interrupted())
    ends: list[type[BaseException]] = []

    async def run() -> None:
        try:
            await ToolCall(service, None).stream(
                "s1", lambda on_begin: service.start_turn("s1", "x", on_begin=on_begin)
            )
        except BaseException as exc:
            ends.append(type(exc))
            raise

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert ends == [trio.Cancelled]


@pytest.mark.virtual_time
async def test_a_cancel_after_the_turns_end_touches_no_other_turn() -> None:
    """Once the turn has told of its end, the session may run somebody else's: nothing is interrupted."""
    finish = trio.Event()
    service = FakeService(on_end=finish.wait)

    async def finish_late() -> None:
        await trio.sleep(1)
        finish.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(finish_late)
        await cancelled(service, begin=wait_all_tasks_blocked)
    assert [name for name, _ in service.calls] == ["create_session"]


@pytest.mark.virtual_time
async def test_a_turn_that_does_not_end_is_given_up() -> None:
    """A call that is cancelled ends within a bound, whatever the turn does."""
    service = Deaf(until_interrupted())
    began = trio.current_time()
    await cancelled(service, begin=wait_all_tasks_blocked)
    assert service.called("interrupt") == [{"session_id": "n1"}]
    assert trio.current_time() - began == pytest.approx(10)


@pytest.mark.virtual_time
async def test_a_server_that_ends_leaves_the_turns_running() -> None:
    """Its calls end at once with an error that says so; no turn is interrupted, and none is begun from then on."""
    service = FakeService(until_interrupted())
    tools = Tools(service)
    bodies: list[Any] = []

    async def run() -> None:
        bodies.append((await tools.call("warren_run", {"prompt": "talk"}, None, McpClient())).structured_content)

    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await wait_all_tasks_blocked()
            tools.close()
        await run()
    assert [body["details"] for body in bodies] == [{"cause": "shutting_down"}] * 2
    assert bodies[0]["session_id"] == "n1"
    assert [name for name, _ in service.calls] == ["create_session"]


async def test_a_turn_that_has_ended_is_answered_by_a_server_that_ends() -> None:
    """The runtime ends before its server: the calls get the end of their turns, however slowly their clients read."""
    model, reads = Puppet(), trio.Event()
    sent: list[Envelope] = []
    bodies: list[Any] = []

    async def send(envelope: Envelope) -> None:
        sent.append(envelope)
        await reads.wait()

    async def run() -> None:
        bodies.append((await tools.call("warren_run", {"prompt": "talk"}, send, McpClient())).structured_content)

    async with open_runtime(model) as service, trio.open_nursery() as nursery:
        tools = Tools(service)
        nursery.start_soon(run)
        await model.reached(1)
        await service.stop()
        tools.close()
        await wait_all_tasks_blocked()
        assert bodies == []
        reads.set()
    (body,) = bodies
    assert (body["code"], body["details"]["cause"]) == ("AGENT_ERROR", "shutting_down")
    assert body["message"] == "the turn was interrupted: the runtime is shutting down"
    assert sent[-1].seq == body["details"]["last_seq"]


async def test_a_client_that_does_not_read_holds_no_ended_call_up() -> None:
    """A server that ends cancels such a call: the end of its turn is not sent to anybody."""
    model = Puppet()

    async def send(_envelope: Envelope) -> None:
        await trio.sleep_forever()

    async with open_runtime(model) as service, trio.open_nursery() as nursery:
        tools = Tools(service)
        nursery.start_soon(tools.call, "warren_run", {"prompt": "talk"}, send, McpClient())
        await model.reached(1)
        await service.stop()
        tools.close()
        await wait_all_tasks_blocked()
        assert nursery.child_tasks
        with trio.fail_after(1):
            nursery.cancel_scope.cancel()
            while nursery.child_tasks:
                await trio.lowlevel.cancel_shielded_checkpoint()
