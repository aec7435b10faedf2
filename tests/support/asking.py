"""Calls in tasks of their own, and what became of each."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Generic, ParamSpec, TypeVar

import attrs
import trio

from warren.base.errors import WarrenError

P = ParamSpec("P")
R = TypeVar("R")
Error = TypeVar("Error", bound=WarrenError)


@attrs.define(eq=False)
class Asked(Generic[R]):
    """One call that runs beside the test.

    Attributes:
        what: the call, for messages.
        result: what it returned, once it has.
        error: what it raised, once it has.
        took: seconds until it ended.
        scope: cancelling it is a caller who goes away.
        ended: set once it has ended, however.
    """

    what: str
    result: R | None = None
    error: Exception | None = None
    took: float = 0.0
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def value(self) -> R:
        """Return what the call returned; it has to be something."""
        await self.ended.wait()
        assert self.error is None, f"{self.what}: {self.error!r}"
        assert self.result is not None, f"{self.what} was given up"
        return self.result

    async def failure(self, kind: type[Error]) -> Error:
        """Return the error the call ended with; it has to be of this kind."""
        await self.ended.wait()
        assert type(self.error) is kind, f"{self.what}: {self.error!r}, {self.result!r}"
        return self.error

    async def run(self, call: Callable[[], Awaitable[R]]) -> None:
        """Make the call and note what comes of it."""
        began = trio.current_time()
        try:
            with self.scope:
                self.result = await call()
        except WarrenError as exc:
            self.error = exc
        finally:
            self.took = trio.current_time() - began
            self.ended.set()


def ask(nursery: trio.Nursery, call: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> Asked[R]:
    """Begin a call in a task of its own."""
    asked: Asked[R] = Asked(getattr(getattr(call, "func", call), "__name__", "call"))
    bound: Callable[[], Awaitable[Any]] = functools.partial(call, *args, **kwargs)
    nursery.start_soon(asked.run, bound)
    return asked
