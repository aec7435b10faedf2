"""Compaction within a turn: one attempt (its steps are in `_steps`, in their order), and the decision to make one."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeVar

import attrs

from warren import codec
from warren.actors.counters import COMPLETED, Counters
from warren.actors.eventlog import utc_now
from warren.actors.turn.model_call import ask_aside
from warren.actors.turn.route import Route
from warren.compaction.config import CompactionConfig
from warren.compaction.fit import mechanical, summary_request
from warren.compaction.layout import CompactionError, CompactionResult, Measured, estimate, summary_message, verify
from warren.compaction.policy import CompactionContext, Compactor, prompt_with
from warren.config import RetryPolicy
from warren.errors import WarrenError
from warren.events import CompactionFailed, CompactionStarted, Event
from warren.fields import encodable
from warren.memory import Index
from warren.messages import Message, SystemMessage
from warren.model import NO_FILES, Files, ModelReply, ModelRequest
from warren.options import CacheTime, ModelOptions
from warren.records import CompactionEntry
from warren.tools import Tool
from warren.transcript import Transcript
from warren.usage import Usage
from warren.values import define, frozen, value
from warren.windows import Window

T = TypeVar("T")
logger: Final = logging.getLogger("warren.compaction")
CommitCompaction = Callable[[CompactionEntry], Awaitable[Callable[[], None]]]
"""Stores a new head of the context, and returns the event that announces it. The context is still the old one.

Raises WarrenError if it could not be stored: then nothing has changed.
"""
CUT_SHORT: Final = CompactionFailed("the turn ended before the compaction did", "cancelled")


@frozen
class CompactionPlan:
    """The settings of a session's compaction.

    Attributes:
        compactor: the policy.
        distance: steps from a refused attempt to the next one of its kind.
        window: the model's context window in tokens; None if it is unknown.
        index: adds the summarised messages to the memory; None without a memory.
    """

    compactor: Compactor
    distance: int
    window: Window | None
    index: Index | None


@value
class SummaryCall:
    """The turn's side of an attempt.

    Attributes:
        route: the models that may write the summary.
        retry: the retries of its failed calls.
        emit: publishes an event.
        book: charges the tokens of the call, also if the attempt fails.
        commit: stores the new head.
        session_id: the session.
        prompt_cache: the prompt cache of the call.
        most: bytes that the pieces of the summary may have.
        counters: counts the attempts.
        files: the access of the model to the files of the session.
    """

    route: Route
    retry: RetryPolicy
    emit: Callable[[Event], object]
    book: Callable[[Usage], None]
    commit: CommitCompaction
    session_id: str
    prompt_cache: CacheTime | None
    most: int
    counters: Counters = attrs.field(factory=Counters)
    files: Files = NO_FILES


@define(eq=False)
class Compaction:
    """One attempt to compact the context of a running turn. The context is wholly old or wholly new at its end.

    Attributes:
        plan: the settings.
        context: the context.
        step: the step before which the attempt is made.
        by: the model, and the turn's callbacks.
        instructions: the user's instructions for the summary.
        failure: the event of the failed attempt.
        refused: whether it failed because the memory or the store did not accept the messages.
    """

    plan: CompactionPlan
    context: Transcript
    step: int
    by: SummaryCall
    instructions: str | None = None
    failure: CompactionFailed | None = None
    refused: bool = False

    async def summarise(self, last_input_tokens: int) -> CompactionEntry | None:
        """Compact by a summary of the model. On failure publish the event that says so, and return None."""
        return await self._run(self._summary, last_input_tokens)

    async def drop_oldest(self, result: CompactionResult, last_input_tokens: int) -> CompactionEntry | None:
        """Compact without a model, to the head that `mechanical` made of the context."""

        async def rebuild(_messages: Sequence[Message]) -> tuple[CompactionResult, int]:
            return result, 0

        return await self._run(rebuild, last_input_tokens)

    async def refuse(self, error: CompactionError, last_input_tokens: int) -> None:
        """Publish the failure of an attempt that could not begin."""

        async def rebuild(_messages: Sequence[Message]) -> tuple[CompactionResult, int]:
            raise error

        await self._run(rebuild, last_input_tokens)

    async def _run(
        self, rebuild: Callable[[Sequence[Message]], Awaitable[tuple[CompactionResult, int]]], last_input_tokens: int
    ) -> CompactionEntry | None:
        """Run an attempt, and publish its beginning and its end."""
        self.by.emit(CompactionStarted(last_input_tokens, estimate(self.context.size), len(self.context)))
        entry, self.failure = None, CUT_SHORT
        try:
            entry = await self._steps(rebuild)
            self.failure = None
        except CompactionError as exc:
            self.failure = CompactionFailed(str(exc), exc.reason)
        except WarrenError as exc:
            self.failure = CompactionFailed(exc.message, exc.code.value.lower())
        finally:
            self.by.counters.compactions[COMPLETED if self.failure is None else self.failure.reason] += 1
            if self.failure is not None:
                self.by.emit(self.failure)
        return entry

    async def _steps(
        self, rebuild: Callable[[Sequence[Message]], Awaitable[tuple[CompactionResult, int]]]
    ) -> CompactionEntry:
        before, head = len(self.context), self.context.head
        result, summary_tokens = await rebuild(Measured.of(self.context))
        live = self.context.positions
        cut = len(live) - len(result.retained)
        new_head = live[cut] if result.retained and cut >= 0 else self.context.end - len(result.retained)
        self.refused = True  # until both the memory and the store have the messages
        if self.plan.index is not None and result.discarded:
            for first, messages in _runs(live[cut - len(result.discarded) : cut], result.discarded):
                await self.plan.index(first, messages)
        counts = (before, len(result.messages))
        entry = CompactionEntry(self.step, utc_now(), new_head, *counts, result.summary or "", summary_tokens)
        tell = await self.by.commit(entry)
        self.refused = False
        # No checkpoint from the commit on: the store, the context and the stream must say the same.
        self.context.move_head(max(new_head, head), map(codec.encode, result.prefix))
        tell()
        return entry

    async def _summary(self, messages: Sequence[Message]) -> tuple[CompactionResult, int]:
        reply = await self._ask(messages)
        return self._rebuilt(messages, encodable(reply.message.text)), reply.usage.output_tokens

    def _rebuilt(self, messages: Sequence[Message], summary: str) -> CompactionResult:
        return consulted(lambda: verify(messages, self.plan.compactor.rebuild_history(messages, summary)))

    async def _ask(self, messages: Sequence[Message]) -> ModelReply:
        """Call the model for a summary. Its pieces are not published; its tokens are charged even if it is empty."""
        compactor, window = self.plan.compactor, self.plan.window
        prompt = prompt_with(consulted(compactor.compaction_prompt), self.instructions)
        cap = consulted(compactor.max_summary_tokens)
        room = None if window is None else attrs.evolve(window, answer=cap).request  # a summary calls no tools
        request = ModelRequest(
            self.by.route.current.choice.model,
            summary_request(messages, prompt, room),
            options=ModelOptions(max_tokens=cap, prompt_cache=self.by.prompt_cache),
            session_id=self.by.session_id,
            files=self.by.files,
        )
        by = self.by
        return await ask_aside(by.route, request, by.retry, by.emit, by.book, counters=by.counters, most=by.most)


def consulted(ask: Callable[[], T]) -> T:
    """Call a method of the compactor. Raises CompactionError for a bug in it: it may be the host's code."""
    try:
        return ask()
    except CompactionError:
        raise
    except Exception as exc:
        logger.exception("a compactor raised")
        raise CompactionError("invalid_result", encodable(f"the compactor failed: {exc!r}")) from exc


def _runs(positions: Sequence[int], messages: Sequence[Message]) -> Iterator[tuple[int, Sequence[Message]]]:
    """Split messages at the gaps of their positions; yield each part with its first position."""
    starts = [at for at in range(len(positions)) if not at or positions[at] != positions[at - 1] + 1]
    for begin, end in pairwise([*starts, len(positions)]):
        yield positions[begin], messages[begin:end]


@define(eq=False)
class ContextKeeper:
    """Keeps the context of a turn within the window of its model.

    Attributes:
        plan: the settings of compaction; None if it is off.
        context: the context.
        by: the model that writes summaries, and the turn's callbacks.
        last_input_tokens: of the newest model call, 0 after a compaction.
        last_step: the step of the newest attempt.
    """

    plan: CompactionPlan | None
    context: Transcript
    by: SummaryCall
    last_input_tokens: int
    last_step: int | None

    async def make_room(self, step: int) -> Sequence[Message]:
        """Compact if it is due. Return the context to send, cut to the window if it still exceeds it."""
        if self.plan is None:
            return self.context
        size = estimate(self.context.size)
        compactor = self.plan.compactor
        state = CompactionContext(self.last_input_tokens, len(self.context), size, self.last_step, step)
        try:
            due = consulted(lambda: bool(compactor.should_compact(state)))
        except CompactionError as exc:
            await self._fail(self.plan, step, exc)
        else:
            if due:
                await self.compact(self.plan, step)
        return await self._fitted(self.plan, step)

    async def _fail(self, plan: CompactionPlan, step: int, error: CompactionError) -> None:
        """Publish the failure of a compactor that raised when it was asked, but not again at every step."""
        if self.last_step is None or step - self.last_step >= max(1, plan.distance):
            self.last_step = step
            await Compaction(plan, self.context, step, self.by).refuse(error, self.last_input_tokens)

    async def compact(
        self, plan: CompactionPlan, step: int, instructions: str | None = None
    ) -> CompactionEntry | CompactionFailed:
        """Make one attempt. Its step is noted even if it fails, so that the next one keeps its distance."""
        self.last_step = step
        attempt = Compaction(plan, self.context, step, self.by, instructions)
        entry = await attempt.summarise(self.last_input_tokens)
        self._note(attempt, step)
        return entry or attempt.failure or CUT_SHORT

    async def _fitted(self, plan: CompactionPlan, step: int) -> Sequence[Message]:
        """Make the context fit without the model if it still exceeds the window."""
        if plan.window is None or estimate(self.context.size) <= plan.window.room:
            return self.context
        try:
            fitted = mechanical(self.context, plan.window.room)
        except CompactionError:
            return (
                self.context
            )  # the provider may count fewer tokens than our estimate; if not, its error names the problem
        if fitted.result.discarded and self._may_drop(plan, step):
            await self._drop(plan, fitted.result, step)
        return fitted.request

    def _may_drop(self, plan: CompactionPlan, step: int) -> bool:
        """Return whether messages may leave the context.

        For some steps after a refused attempt only the request is cut: a new attempt would fail at each step.
        """
        refused = self.context.refused
        return refused is None or step - refused >= max(1, plan.distance)

    async def _drop(self, plan: CompactionPlan, result: CompactionResult, step: int) -> None:
        attempt = Compaction(plan, self.context, step, self.by)
        await attempt.drop_oldest(result, self.last_input_tokens)
        self._note(attempt, step)

    def _note(self, attempt: Compaction, step: int) -> None:
        """Note the step and the refusal of an attempt, on which the next ones depend."""
        self.context.refused = step if attempt.refused else None
        if attempt.refused:
            self.last_step = step
        if attempt.failure is None:
            self.last_input_tokens = 0


def window_for(
    config: CompactionConfig, known: int | None, max_tokens: int | None, tools: Mapping[str, Tool]
) -> Window | None:
    """Return the model's window and the part of it for the answer and the tools; None if the window is unknown.

    `known` is the window that the catalog has for the model.
    """
    tokens = config.window or known
    if tokens is None:
        return None
    specs = [tool.spec for tool in tools.values()]
    return Window(tokens, max_tokens or 0, estimate(len(codec.encode_whole(specs))))


def prefix_of(first: bytes | None, compaction: CompactionEntry | None) -> list[bytes]:
    """Return the messages before the head of a stored context: the system message and the summary."""
    system = [first] if first is not None and isinstance(codec.decode_message(first), SystemMessage) else []
    return system if compaction is None else [*system, codec.encode(summary_message(compaction.summary))]
