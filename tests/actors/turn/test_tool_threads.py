"""Sync tools: they run in threads, and so on the real clock."""

import contextvars
import json
import math
import threading
from typing import Any

import pytest
import trio
import trio.testing

from warren.actors.events.fence import Fence, Guard
from warren.actors.turn.approvals import Approvals, RunningTime
from warren.actors.turn.running import ToolRunner
from warren.actors.turn.toolbox import ToolRun
from warren.conversation.categories import Gates
from warren.conversation.events import Event
from warren.conversation.messages import ToolResult, ToolUseBlock
from warren.models.tools import Tool, tool

WHO = contextvars.ContextVar("WHO", default="nobody")


def new_run(*tools: Tool, timeout: float = 10, threads: int = 4) -> ToolRun:
    """Return what runs one step's tools."""
    events: list[Event] = []
    approvals = Approvals(Gates(), 10, events.append, RunningTime(math.inf))
    known = {each.spec.name: each for each in tools}
    return ToolRun(known, events.append, timeout, ToolRunner(trio.CapacityLimiter(threads)), approvals)


async def test_a_sync_tool_does_not_hold_up_the_loop() -> None:
    """While a sync tool blocks its thread the event loop goes on, and may even be what lets the tool go on."""
    may_end = threading.Event()

    @tool
    def block() -> str:
        """Wait for the loop."""
        return "freed" if may_end.wait(20) else "stuck"

    run = new_run(block)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.run, [ToolUseBlock("a", "block")], 1)
        await trio.sleep(0.01)
        may_end.set()
    assert run.ordered() == (ToolResult("a", "freed"),)


async def test_a_sync_tool_runs_in_another_thread_with_the_callers_context() -> None:
    """It is not the loop's thread, and context variables of the host are there."""

    @tool
    def where() -> list[str]:
        """Tell the thread and the context."""
        return [str(threading.current_thread() is threading.main_thread()), WHO.get()]

    WHO.set("me")
    run = new_run(where)
    await run.run([ToolUseBlock("a", "where")], 1)
    assert run.ordered()[0].content == '["False","me"]'


@pytest.mark.parametrize(("rows", "aside"), [(3, False), (400, True)])
async def test_a_large_result_is_made_into_json_aside(*, rows: int, aside: bool) -> None:
    """Thousands of values become JSON in a thread: the sessions of the runtime do not wait for it."""

    class Row(dict[str, int]):
        def items(self) -> Any:
            threads.add(threading.current_thread())
            return super().items()

    @tool
    async def table() -> list[Row]:
        """Return rows."""
        await trio.lowlevel.checkpoint()
        return [Row(a=1, b=2) for _ in range(rows)]

    threads = set[threading.Thread]()
    run = new_run(table)
    await run.run([ToolUseBlock("a", "table")], 1)
    assert json.loads(run.ordered()[0].content) == [{"a": 1, "b": 2}] * rows
    assert (threading.main_thread() not in threads) is aside


async def test_a_large_result_does_not_wait_for_the_threads_of_tools() -> None:
    """While sync tools have all threads, the result of a call that has run does not become a timeout."""
    may_end = threading.Event()

    @tool
    def block() -> str:
        """Wait for the table."""
        return "freed" if may_end.wait(20) else "stuck"

    @tool
    async def table() -> list[int]:
        """Return numbers."""
        await trio.lowlevel.checkpoint()
        return [*range(2_000)]

    blocked, run = new_run(block, threads=1), new_run(table)
    run.runner = blocked.runner
    async with trio.open_nursery() as nursery:
        nursery.start_soon(blocked.run, [ToolUseBlock("a", "block")], 1)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(5):
            await run.run([ToolUseBlock("b", "table")], 1)
        may_end.set()
    assert json.loads(run.ordered()[0].content) == [*range(2_000)]


async def test_a_sync_tool_past_its_limit_is_left_behind() -> None:
    """Its thread cannot be stopped, but nobody waits for it."""
    may_end = threading.Event()

    @tool(timeout=0.05)
    def block() -> None:
        """Wait."""
        may_end.wait(20)

    run = new_run(block)
    began = trio.current_time()
    await run.run([ToolUseBlock("a", "block")], 1)
    took = trio.current_time() - began
    may_end.set()
    assert run.ordered() == (ToolResult("a", "timed out after 0.05 s", is_error=True),)
    assert took < 5


async def test_a_sync_tool_that_exits_is_an_error_result() -> None:
    """`sys.exit` in a thread is an error result too."""

    @tool
    def leave() -> None:
        """Exit."""
        raise SystemExit(3)

    run = new_run(leave)
    await run.run([ToolUseBlock("a", "leave")], 1)
    assert run.ordered() == (ToolResult("a", "SystemExit: 3", is_error=True),)


async def test_sync_tools_share_the_threads() -> None:
    """No more than the limit run at once, all get their turn."""
    running, most, guard = 0, 0, threading.Lock()

    @tool
    def work() -> None:
        """Count who runs."""
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.01)
        with guard:
            running -= 1

    run = new_run(work, threads=2)
    await run.run([ToolUseBlock(f"call-{number}", "work") for number in range(6)], 6)
    assert len(run.ordered()) == 6
    assert most == 2


async def test_a_call_that_waits_for_a_thread_begins_only_with_a_proved_lease() -> None:
    """The process stood still while the call waited: it begins after the next renewal, and once."""
    ran: list[str] = []

    @tool
    def note(text: str) -> str:
        """Note a text."""
        ran.append(text)
        return text

    async def has_lease() -> bool:
        await trio.lowlevel.checkpoint()
        return True

    fence, threads, events = Fence(), trio.CapacityLimiter(1), list[Event]()
    guard = Guard("a", fence, lambda _event: 0, has_lease)
    approvals = Approvals(Gates(), 10, events.append, RunningTime(math.inf))
    run = ToolRun({"note": note}, events.append, 10, ToolRunner(threads, guard), approvals)
    async with trio.open_nursery() as nursery:
        threads.acquire_on_behalf_of_nowait(guard)
        nursery.start_soon(run.run, [ToolUseBlock("c", "note", {"text": "hello"})], 1)
        while not threads.statistics().tasks_waiting:  # noqa: ASYNC110 - a limiter tells nobody
            await trio.sleep(0.01)
        fence.renewed(0.0, 0.0, 0)
        threads.release_on_behalf_of(guard)
        while not guard_waits(fence):  # noqa: ASYNC110 - as above
            await trio.sleep(0.01)
        assert ran == []
        fence.renewed(fence.clock(), 60.0, 0)
    assert ran == ["hello"]
    assert run.ordered() == (ToolResult("c", "hello"),)


def guard_waits(fence: Fence) -> bool:
    """Return whether somebody waits for the next renewal."""
    return bool(fence._news.statistics().tasks_waiting)  # noqa: SLF001 - nobody else asks that
