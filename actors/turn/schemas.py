"""JSON schemas of callers and the answers that shall fit them: checked in a thread unless they are tiny."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import trio

from warren.conversation.messages import AssistantMessage
from warren.conversation.options import TurnOptions
from warren.structured.output import Fit, NotQuickError, checked_options, fit

T = TypeVar("T")
Options = TypeVar("Options", bound=TurnOptions)
THREADS: Final = 2
"""Checks in threads at once. They share the interpreter, so that more would not be faster, only in the loop's way."""
_limiter: Final[trio.lowlevel.RunVar[trio.CapacityLimiter]] = trio.lowlevel.RunVar("schema_threads")


async def check_options(options: Options) -> Options:
    """Return options whose JSON schema for answers, if there is one, is checked and copied. Raises InvalidParamsError.

    A tiny schema is checked without a checkpoint.
    """
    return await _beside(partial(checked_options, options))


async def check_fit(schema: Mapping[str, Any], answer: AssistantMessage) -> Fit:
    """Hold an answer against a checked schema. Tiny ones are checked without a checkpoint."""
    return await _beside(partial(fit, schema, answer))


async def _beside(check: Callable[..., T]) -> T:
    """Return the result of a check, from a thread if it takes longer than the event loop has time for.

    Cancelled, it returns at once; the thread ends by itself, because a check has a bound in time.
    """
    try:
        return check(quick=True)
    except NotQuickError:
        return await trio.to_thread.run_sync(check, abandon_on_cancel=True, limiter=_threads())


def _threads() -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        _limiter.set(trio.CapacityLimiter(THREADS))
        return _limiter.get()
