"""`Portal`, the way between an asyncio loop and the thread in which trio runs."""

import asyncio
import contextvars
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Generic, TypeVar, TypeVarTuple

import trio

from warren.base.errors import AgentError
from warren.base.values import define

R = TypeVar("R")
V = TypeVar("V")
Ts = TypeVarTuple("Ts")
WRONG_LOOP: Final = (
    "the service of warren.aio was opened on another event loop: call it there, from a thread with "
    "asyncio.run_coroutine_threadsafe(…, loop)"
)
FORKED: Final = (
    "the service of warren.aio was opened before a fork, which does not copy its thread: open one in each process, "
    "after the fork"
)


class Portal:
    """Carries functions from an asyncio loop to trio, and back.

    Each direction is a queue with one waker: the first of a burst wakes the other side, which then runs all that has
    come by then. So a turn costs two wake-ups, and many turns at once cost fewer. What goes one way keeps its order.

    Its methods belong to the loop, unless they say otherwise.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        self._pid = os.getpid()
        self._token: trio.lowlevel.TrioToken | None = None
        self.nursery: trio.Nursery
        """Has the work of the loop, from `work_in` on."""
        self._to_trio = deque[Callable[[], object]]()
        self._to_loop = deque[tuple[Callable[..., object], tuple[Any, ...]]]()
        self._trio_woken = self._loop_woken = False
        self._crossings = set[_Crossing[Any]]()
        self._on_abandoned: Callable[[], object] = _do_nothing

    # -- both ends

    def begin(self, on_abandoned: Callable[[], object]) -> None:
        """Take what comes from the loop. Called on trio; so is the function, if the loop is closed."""
        self._on_abandoned = on_abandoned
        self._token = trio.lowlevel.current_trio_token()
        self._on_trio()  # what has come before

    def work_in(self, nursery: trio.Nursery) -> None:
        """Let the work of the loop run in a nursery. Called on trio, before the loop has any."""
        self.nursery = nursery

    def end(self) -> None:
        """Answer all who still wait: trio has ended."""
        self._token = None
        for each in tuple(self._crossings):
            each.settle(None, ended())

    @property
    def open(self) -> bool:
        """Whether trio runs."""
        return self._token is not None

    @property
    def token(self) -> trio.lowlevel.TrioToken:
        """The token of trio. Raises AgentError(cause="shutting_down") once trio has ended."""
        if self._token is None:
            raise ended()
        return self._token

    def check_loop(self) -> None:
        """Raise RuntimeError if the caller runs on another event loop than that of the portal."""
        try:
            right = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            right = False
        if not right:
            raise RuntimeError(WRONG_LOOP if os.getpid() == self._pid else FORKED)

    # -- to trio

    def to_trio(self, function: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call a function on trio, soon. It must not raise. Trio that has ended calls nothing."""
        self._to_trio.append(lambda: function(*args))
        if self._trio_woken:
            return
        self._trio_woken = True
        try:
            if self._token is not None:
                self._token.run_sync_soon(self._on_trio)
        except trio.RunFinishedError:
            self._token = None

    def _on_trio(self) -> None:
        self._trio_woken = False  # before the queue is emptied: who comes later wakes trio again
        waiting = self._to_trio
        while waiting:
            waiting.popleft()()

    async def run(self, work: Callable[[*Ts], Awaitable[R]], *args: *Ts) -> R:
        """Run an async function on trio, and return its result. Its context is a copy of the caller's.

        A cancelled caller goes on at once; the function is cancelled on trio.

        Raises what the function raises, and AgentError(cause="shutting_down") once trio has ended.
        """

        async def whole(answer: Callable[[R], None]) -> None:
            answer(await work(*args))

        crossing = self._start(whole)
        try:
            return await crossing.answer
        except asyncio.CancelledError:
            self.to_trio(crossing.give_up)
            if not crossing.answer.cancelled():  # it has come with the cancellation, and nobody looks at it any more
                crossing.answer.exception()
            raise
        finally:
            self._crossings.discard(crossing)

    @asynccontextmanager
    async def entered(self, opened: Callable[[], AbstractAsyncContextManager[V]]) -> AsyncIterator[V]:
        """Hold an async context manager of trio open for a body on the loop. Leaving does not wait for its end."""

        async def hold(answer: Callable[[V], None]) -> None:
            async with opened() as value:
                answer(value)
                await trio.sleep_forever()

        crossing = self._start(hold)
        try:
            yield await crossing.answer
        finally:
            self.to_trio(crossing.give_up)
            self._crossings.discard(crossing)

    def _start(self, work: "Callable[[Callable[[R], None]], Awaitable[None]]") -> "_Crossing[R]":
        self.check_loop()
        if self._token is None:
            raise ended()
        crossing = _Crossing[R](self, work, self.loop.create_future(), contextvars.copy_context())
        self._crossings.add(crossing)
        self.to_trio(crossing.begin)
        return crossing

    # -- to the loop

    def to_loop(self, function: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call a function on the loop, soon. Called on trio."""
        self._to_loop.append((function, args))
        if self._loop_woken:
            return
        self._loop_woken = True
        try:
            self.loop.call_soon_threadsafe(self._on_loop)
        except RuntimeError:  # the loop is closed, and nobody has left the runtime
            self._to_loop.clear()
            self._loop_woken = False
            self._on_abandoned()

    def _on_loop(self) -> None:
        self._loop_woken = False
        waiting = self._to_loop
        while waiting:
            function, args = waiting.popleft()
            try:
                function(*args)
            except Exception as exc:  # noqa: BLE001 - one that fails keeps nothing from the others behind it
                self.loop.call_exception_handler({"message": "a callback of warren.aio failed", "exception": exc})


@define(eq=False)
class _Crossing(Generic[R]):
    """Work of the loop that a task on trio does.

    Attributes:
        portal: the portal.
        work: the work; it calls its argument with the answer.
        answer: what the caller on the loop waits for.
        context: the variables of the task on trio.
    """

    portal: Portal
    work: Callable[[Callable[[R], None]], Awaitable[None]]
    answer: "asyncio.Future[R]"
    context: contextvars.Context
    _scope: trio.CancelScope | None = None
    _unwanted: bool = False

    def begin(self) -> None:
        """Begin the work, on trio."""
        if not self._unwanted:
            self.context.run(self.portal.nursery.start_soon, self._run)

    def give_up(self) -> None:
        """End the work, on trio."""
        self._unwanted = True
        if self._scope is not None:
            self._scope.cancel()

    async def _run(self) -> None:
        failure: Exception
        try:
            with trio.CancelScope() as self._scope:
                if self._unwanted:
                    return
                await self.work(self._found)
        except StopAsyncIteration as exc:  # a future cannot have it
            failure = RuntimeError(f"{exc!r} on trio")
        except Exception as exc:  # noqa: BLE001 - it is raised where the caller waits
            failure = exc
        else:
            return
        self.portal.to_loop(self.settle, None, failure)

    def _found(self, result: R) -> None:
        self.portal.to_loop(self.settle, result, None)

    def settle(self, result: Any, failure: Exception | None) -> None:
        """Answer the caller, on the loop, unless it has gone."""
        if self.answer.done():
            return
        if failure is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(failure)


def ended() -> AgentError:
    """Return the error of calls after the end of the runtime."""
    return AgentError("the runtime is shutting down", cause="shutting_down", retryable=True)


def _do_nothing() -> None:
    """Do nothing: there is no runtime yet."""
