"""Tools for asyncio in programs on trio, and the runtime that fails under a program on asyncio."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from tests.support.runtime import open_runtime
from tests.transport.aio.asyncio_test import Gate, on_asyncio
from warren import Config, Tool, ToolContext, tool
from warren.actors.io.asyncio_loop import on_trio, run_on
from warren.actors.supervision import ActorFailedError
from warren.base.errors import InvalidParamsError, ProviderError
from warren.base.fields import FieldValueError
from warren.calls.facade import RuntimeService
from warren.models.model import TextPiece
from warren.testing import ScriptedModel, call, say
from warren.transport.aio.opening import hosted, open_supervisor
from warren.transport.embed import open_host


async def test_a_tool_for_asyncio_in_a_program_on_trio() -> None:
    """It runs on one loop for all calls, with its context; an error and a time limit are those of every tool."""
    loops, ended = set[asyncio.AbstractEventLoop](), list[str]()

    @tool(loop="asyncio")
    async def asks(context: ToolContext) -> str:
        """Ask."""
        await asyncio.sleep(0)
        loops.add(asyncio.get_running_loop())
        return context.name

    @tool(loop="asyncio")
    async def fails() -> str:
        """Fail."""
        raise ValueError("no")

    @tool(loop="asyncio", timeout=0.1)
    async def hangs() -> str:
        """Hang."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("hangs")
        return ""

    @tool(loop="asyncio")
    async def gives_up() -> str:
        """Be cancelled by somebody else."""
        raise asyncio.CancelledError

    tools: list[Tool] = [asks, fails, hangs, gives_up]
    model = ScriptedModel([[call("asks"), call("asks"), call("fails"), call("hangs"), call("gives_up")], say("Over.")])
    async with open_runtime(model, tools=tools) as service:
        assert (await service.create_session("x")).text == "Over."
    found = [each.content for each in model.requests[1].messages[-1].results]  # type: ignore[union-attr]
    assert found[:4] == ["asks", "asks", "ValueError: no", "timed out after 0.1 s"]
    assert "cancelled on its asyncio loop" in found[4]
    assert len(loops) == 1
    assert ended == ["hangs"]


def test_another_loop_is_refused() -> None:
    """`loop` names one of the two libraries."""
    with pytest.raises(FieldValueError, match="loop must be one of trio, asyncio"):
        tool(loop="twisted", description="Do.")(lambda: "")  # type: ignore[call-overload]


async def test_work_goes_back_to_trio() -> None:
    """A function on a loop may wait for one on trio: for its result, its error, and until it is cancelled."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    ended = list[str]()

    async def here(text: str) -> str:
        await trio.lowlevel.checkpoint()
        if not text:
            raise ValueError("empty")
        return text.upper()

    async def waits() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("waits")

    async def there() -> str:
        with pytest.raises(ValueError, match="empty"):
            await on_trio(here, "")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await on_trio(waits)
        return await on_trio(here, "a")

    async def outlives() -> "asyncio.Task[str]":
        return asyncio.create_task(later())

    async def later() -> str:
        await asyncio.sleep(0.05)
        return await on_trio(here, "b")

    async def awaited(task: "asyncio.Task[str]") -> str:
        return await task

    try:
        assert await run_on(loop, there, {}) == "A"
        assert ended == ["waits"]
        task = await run_on(loop, outlives, {})
        with pytest.raises(RuntimeError, match="the call from trio is over"):
            await run_on(loop, awaited, {"task": task})
    finally:
        loop.call_soon_threadsafe(loop.stop)
        await trio.to_thread.run_sync(thread.join)
        loop.close()
    with pytest.raises(RuntimeError, match="the asyncio loop of the function is closed"):
        await run_on(loop, there, {})


def test_a_runtime_that_fails_ends_the_body() -> None:
    """The body is cancelled, and leaving raises the error of the runtime; a timeout around it still works."""

    async def main() -> None:
        broken = trio.Event()

        @asynccontextmanager
        async def opened() -> AsyncIterator[RuntimeService]:
            async with open_host(Config(model="echo")) as host, trio.open_nursery() as nursery:

                async def fail() -> None:
                    await broken.wait()
                    raise ActorFailedError("the storage actor crashed too often")

                nursery.start_soon(fail)
                yield host.service

        reached = False

        async def body() -> None:
            nonlocal reached
            async with hosted(opened, 1) as service:
                assert (await service.create_session("a")).text == "a"
                service._portal.to_trio(broken.set)  # noqa: SLF001 - from the inside alone
                reached = True
                await asyncio.sleep(60)

        with pytest.raises(BaseExceptionGroup) as caught:
            await body()
        assert caught.group_contains(ActorFailedError)
        assert reached
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    on_asyncio(main)


def test_what_cannot_be_opened_is_raised_on_entering() -> None:
    """An error of the settings is raised as itself, and no thread stays behind."""

    async def main() -> None:
        with pytest.raises(InvalidParamsError, match="'none' is unknown"):
            async with open_supervisor(Config(model="no such model", provider="none")):
                raise AssertionError
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001), open_supervisor(Config(model="echo")):
                await asyncio.sleep(60)
        assert [each.name for each in threading.enumerate() if each.name == "warren"] == []

    on_asyncio(main)


def test_a_provider_that_emits_no_piece_is_refused() -> None:
    """The refusal of what a provider on the loop emits is that of the turn, and the runtime lives."""

    class Wrong(Gate):
        async def complete(self, request, emit):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            emit(TextPiece("right "))
            emit("wrong")
            self.open.set()
            return await super().complete(request, emit)

    async def main() -> None:
        async with open_supervisor(Config(model="echo"), providers={"wrong": Wrong()}) as service:
            with pytest.raises(ProviderError, match="emitted a value of type str"):
                await service.create_session("x", model="wrong")
            assert (await service.create_session("x")).text == "x"

    on_asyncio(main)
