"""Compaction, a sub-protocol of the session actor: one attempt, its steps in `_steps` in their order."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeVar

import attrs

from warren import codec
from warren.actors.checks import storable
from warren.actors.eventlog import utc_now
from warren.actors.turn.model_call import ask_aside
from warren.compaction.config import CompactionConfig
from warren.compaction.fit import mechanical, summary_request
from warren.compaction.layout import CompactionError, CompactionResult, Measured, estimate, summary_message, verify
from warren.compaction.policy import CompactionContext, Compactor, prompt_with
from warren.config import RetryPolicy
from warren.errors import WarrenError
from warren.events import CompactionFailed, CompactionStarted, Event
from warren.messages import Message, SystemMessage
from warren.model import ModelChoice, ModelReply, ModelRequest
from warren.options import ModelOptions
from warren.records import CompactionEntry
from warren.tools import Tool
from warren.transcript import Transcript
from warren.usage import Usage
from warren.values import value
from warren.windows import Window, window_of

T = TypeVar("T")
logger: Final = logging.getLogger("warren.compaction")
Index = Callable[[int, Sequence[Message]], Awaitable[None]]
"""Takes messages, the first of them at that position, into the memory: all or none. Raises WarrenError."""

CommitCompaction = Callable[[CompactionEntry], Awaitable[Callable[[], None]]]
"""Stores a new head, and that it is complete, while the context still is the old one; returns what tells of it.

Raises WarrenError: then nothing changed.
"""
CUT_SHORT: Final = CompactionFailed("the turn ended before the compaction did", "cancelled")


@attrs.frozen
class CompactionPlan:
    """How a session's context is compacted.

    Attributes:
        compactor: the policy.
        distance: steps from an attempt that was refused to the next one of its kind.
        window: what the model takes, where that is known.
        index: None without a memory.
    """

    compactor: Compactor
    distance: int
    window: Window | None
    index: Index | None


@value
class Summarising:
    """What the turn has for an attempt.

    Attributes:
        choice: the model that writes the summary.
        retry: how its failed calls are tried again.
        emit: takes the events.
        book: takes the tokens of the call, whatever comes of it.
        commit: stores what came of it.
    """

    choice: ModelChoice
    retry: RetryPolicy
    emit: Callable[[Event], None]
    book: Callable[[Usage], None]
    commit: CommitCompaction


@attrs.define(eq=False)
class Compaction:
    """One attempt at the context of a running turn. Whatever ends it, the context is wholly old or wholly new.

    Attributes:
        plan: how.
        context: what is compacted.
        step: the step before which it happens.
        by: the model, and who takes what comes of it.
        instructions: what the user wants the summary to mind.
        failure: what was told of an attempt that failed.
        refused: whether it failed because the memory or the store did not take what was to leave.
    """

    plan: CompactionPlan
    context: Transcript
    step: int
    by: Summarising
    instructions: str | None = None
    failure: CompactionFailed | None = None
    refused: bool = False

    async def summarise(self, last_input_tokens: int) -> CompactionEntry | None:
        """Compact by a summary of the model's; on failure say so on the stream and return None."""
        return await self._told(self._summary, last_input_tokens)

    async def drop_oldest(self, result: CompactionResult, last_input_tokens: int) -> CompactionEntry | None:
        """Compact without a model, to what `mechanical` has left of the context."""

        async def rebuild(_messages: Sequence[Message]) -> tuple[CompactionResult, int]:
            return result, 0

        return await self._told(rebuild, last_input_tokens)

    async def refuse(self, error: CompactionError, last_input_tokens: int) -> None:
        """Tell of an attempt that failed before it could begin."""

        async def rebuild(_messages: Sequence[Message]) -> tuple[CompactionResult, int]:
            raise error

        await self._told(rebuild, last_input_tokens)

    async def _told(
        self, rebuild: Callable[[Sequence[Message]], Awaitable[tuple[CompactionResult, int]]], last_input_tokens: int
    ) -> CompactionEntry | None:
        """Run the steps, and tell of them: started first, its end last."""
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
        self.refused = True  # until both have taken it
        if self.plan.index is not None and result.discarded:
            for first, messages in _runs(live[cut - len(result.discarded) : cut], result.discarded):
                await self.plan.index(first, messages)
        counts = (before, len(result.messages))
        entry = CompactionEntry(self.step, utc_now(), new_head, *counts, result.summary or "", summary_tokens)
        tell = await self.by.commit(entry)
        self.refused = False
        # No checkpoint from the commit on: what is stored is what is here, and what is told.
        self.context.move_head(max(new_head, head), map(codec.encode, result.prefix))
        tell()
        return entry

    async def _summary(self, messages: Sequence[Message]) -> tuple[CompactionResult, int]:
        reply = await self._ask(messages)
        return self._rebuilt(messages, storable(reply.message.text)), reply.usage.output_tokens

    def _rebuilt(self, messages: Sequence[Message], summary: str) -> CompactionResult:
        return consulted(lambda: verify(messages, self.plan.compactor.rebuild_history(messages, summary)))

    async def _ask(self, messages: Sequence[Message]) -> ModelReply:
        """Call the model for a summary. Its pieces reach no stream; its tokens are booked also where it is empty."""
        compactor, window = self.plan.compactor, self.plan.window
        prompt = prompt_with(consulted(compactor.compaction_prompt), self.instructions)
        cap = consulted(compactor.max_summary_tokens)
        room = None if window is None else attrs.evolve(window, answer=cap).request  # no tools in this one
        request = ModelRequest(
            self.by.choice.model, summary_request(messages, prompt, room), options=ModelOptions(max_tokens=cap)
        )
        return await ask_aside(self.by.choice, request, self.by.retry, self.by.emit, self.by.book)


def consulted(ask: Callable[[], T]) -> T:
    """Return what a compactor answers; it may be the host's code, whose bug is not the turn's.

    Raises CompactionError.
    """
    try:
        return ask()
    except CompactionError:
        raise
    except Exception as exc:
        logger.exception("a compactor raised")
        raise CompactionError("invalid_result", storable(f"the compactor failed: {exc!r}")) from exc


def _runs(positions: Sequence[int], messages: Sequence[Message]) -> Iterator[tuple[int, Sequence[Message]]]:
    """Cut messages where their positions have a gap; yield the first position of each part, and the part."""
    starts = [at for at in range(len(positions)) if not at or positions[at] != positions[at - 1] + 1]
    for begin, end in pairwise([*starts, len(positions)]):
        yield positions[begin], messages[begin:end]


@attrs.define(eq=False)
class ContextKeeper:
    """Keeps a turn's context within what its model can take.

    Attributes:
        plan: how; None where compaction is off.
        context: the context.
        by: the model that writes summaries, and who takes what comes of them.
        last_input_tokens: of the newest model call, 0 after a compaction.
        last_step: the step of the newest attempt.
    """

    plan: CompactionPlan | None
    context: Transcript
    by: Summarising
    last_input_tokens: int
    last_step: int | None

    async def make_room(self, step: int) -> Sequence[Message]:
        """Compact where it is due; return what to send: the context, or a view of it that the window can hold."""
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
        """Tell of a compactor that cannot say whether a compaction is due, and not again at every step."""
        if self.last_step is None or step - self.last_step >= max(1, plan.distance):
            self.last_step = step
            await Compaction(plan, self.context, step, self.by).refuse(error, self.last_input_tokens)

    async def compact(
        self, plan: CompactionPlan, step: int, instructions: str | None = None
    ) -> CompactionEntry | CompactionFailed:
        """Make one attempt, which arms the guard whatever comes of it."""
        self.last_step = step
        attempt = Compaction(plan, self.context, step, self.by, instructions)
        entry = await attempt.summarise(self.last_input_tokens)
        self._note(attempt, step)
        return entry or attempt.failure or CUT_SHORT

    async def _fitted(self, plan: CompactionPlan, step: int) -> Sequence[Message]:
        """Where the context exceeds the window all the same, make it fit without the model."""
        if plan.window is None or estimate(self.context.size) <= plan.window.room:
            return self.context
        try:
            fitted = mechanical(self.context, plan.window.room)
        except CompactionError:
            return self.context  # the provider may count more kindly than we do; if not, its error says what is wrong
        if fitted.result.discarded and self._may_drop(plan, step):
            await self._drop(plan, fitted.result, step)
        return fitted.request

    def _may_drop(self, plan: CompactionPlan, step: int) -> bool:
        """After a refusal the request alone is made to fit for a while: whoever watches is not told at every step."""
        refused = self.context.refused
        return refused is None or step - refused >= max(1, plan.distance)

    async def _drop(self, plan: CompactionPlan, result: CompactionResult, step: int) -> None:
        attempt = Compaction(plan, self.context, step, self.by)
        await attempt.drop_oldest(result, self.last_input_tokens)
        self._note(attempt, step)

    def _note(self, attempt: Compaction, step: int) -> None:
        """Keep what the next attempts depend on."""
        self.context.refused = step if attempt.refused else None
        if attempt.refused:
            self.last_step = step
        if attempt.failure is None:
            self.last_input_tokens = 0


def window_for(
    config: CompactionConfig, model: str, max_tokens: int | None, tools: Mapping[str, Tool]
) -> Window | None:
    """Return what a model takes, and how much of it the answer and the tools do; None where that is unknown."""
    tokens = config.window or window_of(model)
    if tokens is None:
        return None
    specs = [tool.spec for tool in tools.values()]
    return Window(tokens, max_tokens or 0, estimate(len(codec.encode(specs))))


def prefix_of(first: bytes | None, compaction: CompactionEntry | None) -> list[bytes]:
    """Return what stands before the head of a stored context: its system message, and the summary."""
    system = [first] if first is not None and isinstance(codec.decode_message(first), SystemMessage) else []
    return system if compaction is None else [*system, codec.encode(summary_message(compaction.summary))]
