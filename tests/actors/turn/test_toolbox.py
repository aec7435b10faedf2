"""Running tools: in parallel, each with its own time limit, each reported as it ends, none of them able to do harm."""

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TypeVar

import attrs
import pytest
import trio

from tests.support.checks import name
from warren.actors.turn.approvals import Approvals, RunningTime
from warren.actors.turn.running import ToolRunner
from warren.actors.turn.seam import AroundTool
from warren.actors.turn.toolbox import ToolRun
from warren.base.errors import AgentError
from warren.base.principals import DEFAULT_TENANT
from warren.conversation import codec
from warren.conversation.categories import Gates
from warren.conversation.completion import CompletionToken
from warren.conversation.events import (
    Event,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolExecutionTimedOut,
    ToolResultReceived,
)
from warren.conversation.messages import ToolResult, ToolUseBlock
from warren.conversation.open_turn import KeptCall
from warren.conversation.waits import Wait, WaitKey
from warren.models.tools import Tool, ToolContext, ToolError, failure_text, tool

pytestmark = pytest.mark.virtual_time
R = TypeVar("R")


@tool
async def nap(seconds: float) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return f"slept {seconds:g}"


@tool
async def fail(text: str) -> str:
    """Raise."""
    await trio.lowlevel.checkpoint()
    raise ValueError(text)


@tool(timeout=2)
async def brief() -> str:
    """Take longer than its own limit."""
    await trio.sleep(60)
    return "never"


async def _quiet() -> None:
    raise ToolError("")


@attrs.define
class Done:
    """The outcomes of the calls of one step."""

    run: ToolRun
    events: list[tuple[float, Event]]

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The results in call order."""
        return self.run.ordered()

    def times(self, kind: type[Event]) -> dict[str, float]:
        """Return when each call's event of that kind came, by call id."""
        return {getattr(event, "id"): at for at, event in self.events if isinstance(event, kind)}  # noqa: B009

    def of(self, call_id: str) -> list[str]:
        """Return what the stream says of one call."""
        return [name(event) for _, event in self.events if getattr(event, "id", None) == call_id]


async def use(
    *calls: ToolUseBlock,
    tools: tuple[Tool, ...] = (nap, fail, brief),
    allowed: int = 99,
    around: Sequence[AroundTool] = (),
) -> Done:
    """Run the calls as one step."""
    began = trio.current_time()
    events: list[tuple[float, Event]] = []
    known: Mapping[str, Tool] = {each.spec.name: each for each in tools}

    def emit(event: Event) -> None:
        events.append((trio.current_time() - began, event))

    approvals = Approvals(Gates(), 10, emit, RunningTime(math.inf))
    run = ToolRun(known, emit, 10, ToolRunner(trio.CapacityLimiter(4)), approvals, around=around)
    await run.run(calls, allowed)
    return Done(run, events)


def call(call_id: str, tool_name: str, **args: object) -> ToolUseBlock:
    """Return a tool call."""
    return ToolUseBlock(call_id, tool_name, args)


async def test_tools_run_in_parallel_and_are_reported_as_they_finish() -> None:
    """Three naps take as long as the longest; the shortest is reported first; results keep the call order."""
    done = await use(call("a", "nap", seconds=3), call("b", "nap", seconds=1), call("c", "nap", seconds=2))
    assert done.times(ToolExecutionCompleted) == pytest.approx({"b": 1, "c": 2, "a": 3})
    assert done.times(ToolExecutionStarted) == pytest.approx({"a": 0, "b": 0, "c": 0})
    assert [result.content for result in done.results] == ["slept 3", "slept 1", "slept 2"]


async def test_a_wrapper_gets_the_call_that_it_surrounds() -> None:
    """It decides by the call: the one that it refuses has the refusal as its result, and its tool does not run."""

    async def only_short(call: ToolUseBlock, proceed: Callable[[], Awaitable[R]]) -> R:
        if call.args["seconds"] > 1:
            raise AgentError(f"{call.name} {call.id} takes too long", cause="internal")
        return await proceed()

    done = await use(call("a", "nap", seconds=3), call("b", "nap", seconds=1), around=[only_short])
    assert [result.content for result in done.results] == ["nap a takes too long", "slept 1"]
    assert [result.is_error for result in done.results] == [True, False]
    assert done.times(ToolExecutionCompleted) == pytest.approx({"a": 0, "b": 1})


async def test_the_events_of_a_call() -> None:
    """A call is requested, started, completed with its duration, received; all requests come first."""
    done = await use(call("a", "nap", seconds=1.5), call("b", "nap", seconds=1))
    assert [name(event) for _, event in done.events[:2]] == ["tool_call_requested"] * 2
    assert done.of("a") == [
        "tool_call_requested",
        "tool_execution_started",
        "tool_execution_completed",
        "tool_result_received",
    ]
    completed = [event for _, event in done.events if isinstance(event, ToolExecutionCompleted)]
    assert [(event.id, event.duration_ms) for event in completed] == [("b", 1000), ("a", 1500)]


async def test_a_tool_that_raises_is_an_error_result() -> None:
    """The exception's text goes to the model; the other tools are not touched."""
    done = await use(call("a", "fail", text="no such city"), call("b", "nap", seconds=1))
    assert done.results == (ToolResult("a", "ValueError: no such city", is_error=True), ToolResult("b", "slept 1"))


async def test_an_error_without_words_is_an_error_result() -> None:
    """An exception of the host's own whose text cannot be made ends its call alone."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise LookupError

    @tool
    async def mute() -> str:
        """Fail."""
        raise MuteError

    done = await use(call("1", "mute"), tools=(mute,))
    assert (done.results[0].content, done.results[0].is_error) == (
        "MuteError: its text cannot be made: LookupError",
        True,
    )


async def test_a_tool_that_raises_a_group_is_an_error_result() -> None:
    """A tool with a nursery of its own fails like any other."""

    @tool
    async def crowd() -> None:
        """Fail twice at once."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail.call, "one")
            nursery.start_soon(fail.call, "two")

    done = await use(call("a", "crowd"), tools=(crowd,))
    assert done.results[0].is_error


async def test_a_tool_that_exits_is_an_error_result() -> None:
    """A command line's `sys.exit` inside a tool does not end the runtime."""

    @tool
    async def leave() -> None:
        """Exit."""
        await trio.lowlevel.checkpoint()
        sys.exit(2)

    done = await use(call("a", "leave"), tools=(leave,))
    assert done.results == (ToolResult("a", "SystemExit: 2", is_error=True),)


@pytest.mark.parametrize("ends", [False, True])
async def test_a_tool_whose_tasks_exit_is_an_error_result(*, ends: bool) -> None:
    """So does one whose nursery has such a task, be the tool still at work or not."""

    @tool
    async def leave() -> None:
        """Exit in a task."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exit_soon)
            await trio.sleep(0 if ends else 60)

    async def exit_soon() -> None:
        await trio.sleep(1)
        sys.exit(2)

    done = await use(call("a", "leave"), tools=(leave,))
    assert done.results[0].is_error
    assert done.of("a")[-2:] == ["tool_execution_completed", "tool_result_received"]


async def test_the_runtimes_time_limit() -> None:
    """A tool without a limit of its own is given up at the runtime's; the model gets an error result."""
    done = await use(call("a", "nap", seconds=60))
    assert done.results == (ToolResult("a", "timed out after 10 s", is_error=True),)
    assert done.times(ToolExecutionTimedOut) == pytest.approx({"a": 10})
    assert done.of("a")[2:] == ["tool_execution_timed_out", "tool_execution_completed", "tool_result_received"]


async def test_a_tools_own_time_limit() -> None:
    """A tool's own limit wins; the others go on."""
    done = await use(call("a", "brief"), call("b", "nap", seconds=5))
    assert done.times(ToolResultReceived) == pytest.approx({"a": 2, "b": 5})
    assert done.results[1] == ToolResult("b", "slept 5")


async def test_a_tool_that_fails_while_it_is_timed_out() -> None:
    """A clean-up that raises when the time is over is still a time-out, not a crash."""

    @tool(timeout=1)
    async def messy() -> None:
        """Raise while being cancelled, in a nursery."""

        async def worker() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise RuntimeError("clean-up failed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker)
            nursery.start_soon(trio.sleep_forever)

    done = await use(call("a", "messy"), tools=(messy,))
    assert done.results[0].is_error
    assert done.of("a")[-1] == "tool_result_received"


async def test_bad_arguments_name_the_field() -> None:
    """The model is told what does not fit; the tool does not run."""
    done = await use(call("a", "nap", seconds="long"), call("b", "nap"), call("c", "nap", seconds=1, size=2))
    errors = [result.content for result in done.results]
    assert all(result.is_error for result in done.results)
    assert "seconds" in errors[0]
    assert "seconds" in errors[1]
    assert "size" in errors[2]
    assert done.times(ToolExecutionStarted) == {}


async def test_arguments_that_are_no_object() -> None:
    """A text that the model sent instead of a JSON object goes back to it as an error."""
    done = await use(ToolUseBlock("a", "nap", {}, invalid_args="{seconds: 1"))
    assert done.results[0].is_error
    assert "{seconds: 1" in done.results[0].content


async def test_an_unknown_tool_lists_the_known_ones() -> None:
    """The model is told what there is."""
    done = await use(call("a", "weather"))
    assert done.results == (ToolResult("a", "there is no tool 'weather'; there are: brief, fail, nap", is_error=True),)


async def test_calls_past_the_budget_are_refused() -> None:
    """The first ones that the budget allows run, the rest gets an error result."""
    done = await use(call("a", "nap", seconds=1), call("b", "nap", seconds=1), allowed=1)
    assert [result.is_error for result in done.results] == [False, True]
    assert done.of("b") == ["tool_call_requested", "tool_result_received"]


async def test_the_text_of_a_refusal_is_in_its_event() -> None:
    """Whoever follows the turn reads it as the model does; the text of a call that ran is in its end alone."""
    done = await use(call("a", "weather"), call("b", "nap"), call("c", "nap", seconds=1), call("d", "nap"), allowed=3)
    received = {event.id: event.result for _, event in done.events if isinstance(event, ToolResultReceived)}
    refused = {result.tool_use_id: result.content for result in done.results if result.is_error}
    assert received == refused | {"c": None}


async def test_results_that_are_no_text_become_json() -> None:
    """The result of a tool is sent as JSON, unless it is a text already."""

    @tool
    async def weather(city: str) -> dict[str, object]:
        """Tell the weather."""
        return {"city": city, "degrees": 7}

    done = await use(call("a", "weather", city="Oslo"), tools=(weather,))
    assert codec.parse(done.results[0].content) == {"city": "Oslo", "degrees": 7}


async def test_results_that_cannot_become_text_are_errors() -> None:
    """A result without a JSON form is an error result that says so."""

    @tool
    async def odd() -> object:
        """Return what JSON does not know."""
        return object()

    done = await use(call("a", "odd"), tools=(odd,))
    assert done.results[0].is_error
    assert "object" in done.results[0].content


@pytest.mark.parametrize("text", ["a lone \ud800 surrogate", "nul \x00 byte"])
async def test_text_that_utf8_cannot_hold_is_made_to_fit(text: str) -> None:
    """A result and an error of any characters can be stored and sent."""

    @tool
    async def say() -> str:
        """Return it."""
        return text

    done = await use(call("a", "say"), call("b", "fail", text=text), tools=(say, fail))
    for result in done.results:
        assert codec.decode_stored(ToolResult, codec.encode(result)) == result


async def test_closing_completes_what_is_open() -> None:
    """After an interrupt every call has a result: finished ones their own, the others the reason."""
    events: list[Event] = []
    approvals = Approvals(Gates(), 10, events.append, RunningTime(math.inf))
    run = ToolRun({"nap": nap}, events.append, 10, ToolRunner(trio.CapacityLimiter(4)), approvals)
    calls = call("a", "nap", seconds=1), call("b", "nap", seconds=5)
    with trio.move_on_after(2):
        await run.run(calls, 2)
    run.close("cancelled before it ended")
    assert run.ordered() == (ToolResult("a", "slept 1"), ToolResult("b", "cancelled before it ended", is_error=True))
    completed = [event for event in events if isinstance(event, ToolExecutionCompleted)]
    assert [(event.id, event.is_error, event.duration_ms) for event in completed] == [
        ("a", False, 1000),
        ("b", True, 2000),
    ]


async def test_a_call_that_is_cancelled_does_not_begin() -> None:
    """It has done nothing, not even up to its first checkpoint, and so it begins anew once the turn goes on."""
    begun = []

    @tool
    async def note() -> str:
        """Note something."""
        begun.append("note")
        await trio.lowlevel.checkpoint()
        return "noted"

    approvals = Approvals(Gates(), 10, lambda _event: None, RunningTime(math.inf))
    run = ToolRun({"note": note}, lambda _event: None, 10, ToolRunner(trio.CapacityLimiter(4)), approvals)
    with trio.CancelScope() as scope:
        scope.cancel()
        await run.run([call("a", "note")], 1)
    assert begun == []
    assert [(each.call_id, each.state) for each in run.unkept()[0]] == [("a", "waiting")]


async def test_a_call_that_has_its_result_does_not_run_again() -> None:
    """The result from outside comes after the call of an earlier process was taken up, and before its tool begins."""
    waits: dict[WaitKey, Wait] = {}

    @tool(restart="replay")
    async def order() -> str:
        """Order something."""
        await trio.lowlevel.checkpoint()
        return "ordered again"

    async def give(_call: ToolUseBlock, proceed: Callable[[], Awaitable[R]]) -> R:
        key, now = ToolContext("", 1, 1, "a", "order", {}).key, datetime.now(UTC)
        data = {"token": CompletionToken(DEFAULT_TENANT, "", "a", key, 0).mark}
        wait = Wait("a", "outside", "answered", "order", {}, order.category, now, now, data=data)
        waits[wait.key] = wait.changed(result=ToolResult("a", "sent"))
        return await proceed()

    approvals = Approvals(Gates(), 10, lambda _event: None, RunningTime(math.inf))
    runner, left = ToolRunner(trio.CapacityLimiter(4)), {"a": KeptCall("a", 0, "begun")}
    run = ToolRun({"order": order}, lambda _event: None, 10, runner, approvals, around=[give], left=left, waits=waits)
    await run.run([call("a", "order")], 1)
    assert run.ordered() == (ToolResult("a", "sent"),)


async def test_a_parameter_may_have_any_name() -> None:
    """A tool's parameters cannot collide with the machinery that calls it."""

    @tool
    async def echo(func: str, limiter: str, call: str) -> str:
        """Join."""
        return func + limiter + call

    done = await use(ToolUseBlock("a", "echo", {"func": "1", "limiter": "2", "call": "3"}), tools=(echo,))
    assert done.results == (ToolResult("a", "123"),)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (lambda: asyncio.sleep(1), 'loop="asyncio"'),
        (lambda: asyncio.sleep(0), 'loop="asyncio"'),
        (_quiet, "did not say why"),
    ],
)
async def test_failures_that_say_too_little(broken: Callable[[], Awaitable[None]], told: str) -> None:
    """A tool that needs asyncio is told what to use, and an error without a text never goes out empty."""

    @tool
    async def odd() -> str:
        """Fail."""
        await broken()
        return "never"

    done = await use(ToolUseBlock("a", "odd"), tools=(odd,))
    assert done.results[0].is_error
    assert told in done.results[0].content


def test_a_sync_tool_that_asks_for_a_loop() -> None:
    """So is a plain function that asks asyncio for the loop of its thread."""
    with pytest.raises(RuntimeError) as caught:
        ThreadPoolExecutor().submit(asyncio.get_running_loop).result()
    assert 'loop="asyncio"' in failure_text(caught.value)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_long_result_is_cut(*, fails: bool) -> None:
    """The model gets the first 100,000 characters of what a tool says, and how many are left out."""

    @tool
    async def flood() -> str:
        """Say much."""
        await trio.lowlevel.checkpoint()
        if fails:
            raise ToolError("x" * 250_000)
        return "x" * 250_000

    done = await use(call("a", "flood"), tools=(flood,))
    (result,) = done.results
    assert result.content == "x" * 100_000 + "\n[150000 more characters are left out]"
    assert result.is_error is fails
    (event,) = [event for _, event in done.events if isinstance(event, ToolExecutionCompleted)]
    assert event.result == result.content


async def test_broken_arguments_are_told_with_their_place() -> None:
    """The model is told where its JSON is broken, so that it can mend it."""
    broken = '{"seconds": 1,, "unit": "s"}'
    done = await use(ToolUseBlock("a", "nap", {}, broken))
    (result,) = done.results
    assert "line 1, column 15 (character 15 of 28)" in result.content
    assert result.content.endswith(broken)
