"""Functions that are written for asyncio, run from trio: on a loop of the program, or on one in a thread of its own."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import cache, partial
from typing import Any, Final, TypeVar, cast

import attrs
import trio

from warren.base.values import define
from warren.models.tools import asking

GRACE: Final = 5.0
"""Seconds for which a cancelled call waits for its function, which may close its connections meanwhile."""
CUT_OFF: Final = "the function was cancelled on its asyncio loop, and not by Warren"
NO_LOOP: Final = "the asyncio loop of the function is closed"
R = TypeVar("R")
_running: "contextvars.ContextVar[_Run | None]" = contextvars.ContextVar("running_on_asyncio", default=None)


async def run_on(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Run an async function on an asyncio loop of another thread, in a copy of this context; return its result.

    Cancellation cancels the task on the loop, and waits for it a moment.

    Raises what the function raises, and RuntimeError if the loop is closed, or something else cancels the task.
    """
    async with trio.open_nursery() as nursery:  # nothing in it raises but Cancelled, which no group is made of
        run = _Run(loop, function, arguments, contextvars.copy_context(), nursery)
        run.on_loop(run.begin)
        try:
            await run.over.wait()
        except trio.Cancelled:
            run.on_loop(run.cancel)
            with trio.move_on_after(GRACE, shield=True):
                await run.over.wait()
            raise
        finally:
            nursery.cancel_scope.cancel()
    if run.failure is not None:
        raise run.failure
    return run.result


async def run_apart(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Run an async function as `run_on` does, on the loop that this process has in a thread for such functions."""
    return await run_on(_own_loop(), function, arguments)


async def on_trio(function: Callable[..., Awaitable[R]], *args: Any) -> R:
    """Run an async function on trio for a function that `run_on` runs, and return its result.

    Cancellation cancels it. Raises what it raises, and RuntimeError once the call of `run_on` is over.
    """
    run = _running.get()
    if run is None:
        raise RuntimeError("no call from trio runs in this context")
    back = _Back(run, partial(function, *args), asyncio.get_running_loop().create_future())
    run.token.run_sync_soon(back.begin)
    try:
        return cast(R, await back.answer)
    except asyncio.CancelledError:
        run.token.run_sync_soon(back.scope.cancel)
        raise


@cache
def _own_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that runs in a thread until the process ends: pools of connections are bound to it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="warren asyncio", daemon=True).start()
    return loop


@define(eq=False)
class _Run:
    """One run of a function on a loop. Its fields are set on the loop, and read on trio once `over` is set."""

    loop: asyncio.AbstractEventLoop
    function: Callable[..., Coroutine[Any, Any, Any]]
    arguments: Mapping[str, Any]
    context: contextvars.Context
    nursery: trio.Nursery
    token: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token)
    over: trio.Event = attrs.field(factory=trio.Event)
    result: Any = None
    failure: Exception | None = None
    _task: "asyncio.Task[Any] | None" = None
    _cancelled: bool = False

    def on_loop(self, function: Callable[[], None]) -> None:
        """Call a function on the loop, soon. If the loop is closed, the run is over. Called on trio."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            self.failure = RuntimeError(NO_LOOP)
            self.over.set()

    def begin(self) -> None:
        """Begin, unless the call was cancelled before."""
        if self._cancelled:
            self._tell()
            return
        ask = self.context.get(asking)
        self.context.run(_running.set, self)
        if ask is not None:
            self.context.run(asking.set, partial(on_trio, ask))
        self._task = self.loop.create_task(self._whole(), context=self.context)
        self._task.add_done_callback(self._done)

    def cancel(self) -> None:
        """Cancel the task."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _whole(self) -> Any:
        return await self.function(**self.arguments)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        if task.cancelled():
            self.failure = RuntimeError(CUT_OFF)
        elif (failure := task.exception()) is not None:
            self.failure = failure if isinstance(failure, Exception) else RuntimeError(repr(failure))
        else:
            self.result = task.result()
        self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(trio.RunFinishedError):  # nobody waits
            self.token.run_sync_soon(self.over.set)


@define(eq=False)
class _Back:
    """Work on trio that a run on the loop waits for."""

    run: _Run
    function: Callable[[], Awaitable[Any]]
    answer: "asyncio.Future[Any]"
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def begin(self) -> None:
        """Begin it on trio, unless the run is over."""
        if self.run.over.is_set() or self.run.nursery.cancel_scope.cancel_called:
            self._tell(None, RuntimeError("the call from trio is over"))
        else:
            self.run.nursery.start_soon(self._work)

    async def _work(self) -> None:
        with self.scope:
            try:
                found = await self.function()
            except Exception as exc:  # noqa: BLE001 - it is raised on the loop
                self._tell(None, exc)
            else:
                self._tell(found, None)

    def _tell(self, result: Any, failure: Exception | None) -> None:
        self.run.on_loop(partial(self._settle, result, failure))

    def _settle(self, result: Any, failure: Exception | None) -> None:
        if self.answer.done():
            return
        if failure is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(failure)
