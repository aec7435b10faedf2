"""The run of one tool: in a thread or in the caller's task, within its time limit, with its files stored."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio

from warren.actors.events.fence import Guard
from warren.base.values import define, frozen
from warren.conversation import codec
from warren.conversation.attachments import Attachment, File
from warren.models.tools import (
    Asking,
    ClientGoneError,
    Handed,
    Remote,
    Tool,
    ToolContext,
    ToolOutput,
    Unfinished,
    asking,
    calling,
    failure_text,
)

logger: Final = logging.getLogger("warren.tools")
LARGE: Final = 1_000
"""Values of a result from which on a thread makes its JSON."""
SHARE: Final = 0.1
"""The pause between two looks at work that goes on elsewhere, as a part of the time for which it has gone on."""
RAREST: Final = 30.0
"""Seconds to which that pause grows, unless more are asked for."""
KeepFiles = Callable[[Sequence[File]], Awaitable[Sequence[Attachment | str]]]
"""Stores the files of a result or an answer; returns the reference of each, or a note for one that is not kept."""


async def keep_nothing(_files: Sequence[File]) -> Sequence[Attachment | str]:
    """Store nothing: there is no store for files."""
    return ()


@frozen
class Ran:
    """The outcome of the run of a tool.

    Attributes:
        content: the text for the model.
        is_error: whether the tool has failed, or did not end in time.
        files: the files of the result, which are stored.
        timed_out: whether it did not end in time.
        gone: whether the client that runs the tool is gone.
        later: what the tool, or a look at its work, has returned in place of a result that comes later; else None.
    """

    content: str
    is_error: bool = False
    files: tuple[Attachment, ...] = ()
    timed_out: bool = False
    gone: bool = False
    later: ToolOutput | Handed | Unfinished | None = None


def pause_after(look: Unfinished, age: float) -> float:
    """Return the seconds until the next look at work that has gone on for `age` seconds.

    They grow with the age: so a result is noticed soon, measured by the time that it took, and few looks are made.
    """
    return max(look.seconds, min(SHARE * age, RAREST))


async def result_of(remote: Remote, handle: Mapping[str, Any], age: float) -> object:
    """Look at work that has gone on for `age` seconds until it has its result. Raises ToolError if there is none."""
    began = trio.current_time() - age
    while isinstance(found := await remote.look(handle), Unfinished):  # noqa: ASYNC110 - there are no events of it
        await trio.sleep(pause_after(found, trio.current_time() - began))
    return found


@define
class ToolRunner:
    """Runs tools.

    Attributes:
        threads: bounds the sync tools of the whole runtime.
        guard: keeps a function that has waited for a thread from running without a proved lease; None if no other
            process can have the session.
        keep: stores the files of results.
    """

    threads: trio.CapacityLimiter
    guard: Guard | None = None
    keep: KeepFiles = keep_nothing

    async def run(
        self,
        work: Callable[[], Awaitable[object]],
        call: ToolContext,
        ask: Asking | None,
        limit: float | None,
    ) -> Ran:
        """Do the work of a tool. Its errors are outcomes; Cancelled passes through, and what no tool may catch.

        Work whose task is cancelled does not begin. Run it in a task, and so in a context, of its own.

        Args:
            work: the work, as `invoke` has it for a tool.
            call: the call that it can see.
            ask: asks the approver a question of the tool; None if nobody can be asked.
            limit: seconds that it may take; None is no limit.
        """
        # The caller may have been woken and cancelled at one moment, and the work would run up to its first checkpoint.
        await trio.lowlevel.checkpoint_if_cancelled()
        calling.set(call)
        asking.set(ask)
        ran = Ran("")
        try:
            with trio.move_on_after(float("inf") if limit is None else limit) as scope:
                ran = await self._told(await work())
        except ClientGoneError as exc:
            ran = Ran(failure_text(exc), is_error=True, gone=True)
        except (Exception, SystemExit, BaseExceptionGroup) as exc:
            # Outside of the scope, which takes its own Cancelled out of an exception group and leaves the rest.
            if isinstance(exc, BaseExceptionGroup) and (rest := exc.split((Exception, SystemExit))[1]) is not None:
                raise rest from None
            # Errors of tools quote their arguments, which are texts of the conversation: those are for debugging alone.
            logger.info(
                "tool %s failed: %s", call.name, type(exc).__name__, exc_info=logger.isEnabledFor(logging.DEBUG)
            )
            ran = Ran(failure_text(exc), is_error=True)
        if scope.cancelled_caught:
            ran = Ran(f"timed out after {limit:g} s", is_error=True, timed_out=True)
        return ran

    async def _told(self, result: object) -> Ran:
        """Return the text of a result, and its files, which are stored now."""
        if isinstance(result, Handed | Unfinished) or (isinstance(result, ToolOutput) and result.token is not None):
            return Ran("", later=result)
        if not isinstance(result, ToolOutput):
            if not _is_large(result):
                return Ran(codec.text_of(result))
            # Not in a thread of the tools: those may hang in all of them, and this call has run.
            return Ran(await trio.to_thread.run_sync(codec.text_of, result, abandon_on_cancel=True))
        if not result.files:
            return Ran(result.text)
        kept = await self.keep(result.files)
        notes = [each for each in kept if isinstance(each, str)]
        files = tuple(each for each in kept if not isinstance(each, str))
        return Ran("\n".join((*([result.text] if result.text else ()), *notes)), files=files)

    async def invoke(self, tool: Tool, bound: Mapping[str, Any]) -> object:
        """Run a tool with its checked arguments, and return its result."""
        if tool.context is not None:
            bound = tool.in_context(bound)
        if tool.is_async:
            if tool.loop == "asyncio":
                from warren.actors.io.asyncio_loop import run_apart  # noqa: PLC0415 - few programs need asyncio

                return await run_apart(tool.call, bound)
            return await tool.call(**bound)
        guard, call = self.guard, partial(tool.call, **bound)
        if guard is None:
            return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self.threads)
        call = partial(_guarded, guard, tool.call, bound)
        while True:
            try:
                return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self.threads)
            except _NotBegunError:  # the process stood still while the call waited for a thread
                await guard.wait()


def _is_large(result: object) -> bool:
    """Return whether making the JSON of a result may hold up the event loop, as it has very many values."""
    left, values = LARGE, [result]
    while values and left > 0:
        value = values.pop()
        left -= 1
        if isinstance(value, list | tuple | dict) and len(value) < left:
            values += value.values() if isinstance(value, dict) else value
        elif isinstance(value, list | tuple | dict):
            return True
    return left <= 0


class _NotBegunError(Exception):
    """A call was not begun, because the lease of its session is not proved."""


def _guarded(guard: Guard, call: Callable[..., Any], bound: Mapping[str, Any]) -> object:
    if not guard.open:
        raise _NotBegunError
    return call(**bound)
