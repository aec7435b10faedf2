"""Compaction within a turn: one attempt (its steps are in `_steps`, in their order), and the decision to make one."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import count, pairwise
from typing import Final, TypeVar

import attrs

from warren.actors.events.eventlog import utc_now
from warren.actors.observe.counters import COMPLETED, Counters
from warren.actors.turn.hooked import HookChain
from warren.actors.turn.model_call import ask_aside, sent_size
from warren.actors.turn.room import MOST_TRIES, CompactionPlan, Room
from warren.actors.turn.route import Route
from warren.agents.hooks import HookedCompaction
from warren.base.errors import NOTHING_TO_SHORTEN, AgentError, ProviderError, WarrenError
from warren.base.fields import encodable
from warren.base.values import define, value
from warren.base.windows import Window
from warren.compaction.fit import mechanical, summary_part, summary_request
from warren.compaction.layout import (
    CompactionError,
    CompactionResult,
    Layout,
    Measured,
    estimate,
    summary_message,
    verify,
)
from warren.compaction.policy import CompactionContext, prompt_with
from warren.conversation import codec
from warren.conversation.events import CompactionFailed, CompactionStarted, Event, RequestRepaired, Retrying
from warren.conversation.messages import Message, SystemMessage
from warren.conversation.options import CacheTime, CompactionConfig, ModelOptions
from warren.conversation.records import CompactionEntry, SessionRecord
from warren.conversation.transcript import Transcript
from warren.conversation.usage import Usage
from warren.models.model import NO_FILES, Files, ModelReply, ModelRequest
from warren.models.tools import Tool
from warren.settings.config import RetryPolicy
from warren.storage.queries import ModelContext
from warren.storage.results import Context

T = TypeVar("T")
logger: Final = logging.getLogger("warren.compaction")
CommitCompaction = Callable[[CompactionEntry], Awaitable[Callable[[], None]]]
"""Stores a new head of the context, and returns the event that announces it. The context is still the old one.

Raises WarrenError if it could not be stored: then nothing has changed.
"""
MOST_PARTS: Final = 8
"""Requests for one summary: a context that is longer loses its oldest messages without one."""
LEAST_SUMMARY: Final = 4
"""The part of its cap that a summary has at least, so that one request can have all messages."""
ABOVE: Final = (
    "the system prompt, the tools and the messages that have to stay are above the threshold of compaction: the next"
    " attempt waits until the context is twice as large"
)
CUT_SHORT: Final = CompactionFailed("the turn ended before the compaction did", "cancelled")


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
        hooks: the hooks around it; None if there are none.
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
    hooks: HookChain | None = None


@define(eq=False)
class Compaction:
    """One attempt to compact the context of a running turn. The context is wholly old or wholly new at its end.

    Attributes:
        plan: the settings.
        room: the room of requests.
        step: the step before which the attempt is made.
        by: the model, and the turn's callbacks.
        instructions: the user's instructions for the summary.
        failure: the event of the failed attempt.
        refused: whether it failed because the memory or the store did not accept the messages.
    """

    plan: CompactionPlan
    room: Room
    step: int
    by: SummaryCall
    instructions: str | None = None
    failure: CompactionFailed | None = None
    refused: bool = False

    @property
    def context(self) -> Transcript:
        """The context."""
        return self.room.context

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
        """Have a summary written; return the context with it, and its tokens."""
        if self.by.hooks is None:
            summary, tokens = await self._write(messages)
        else:
            summary, tokens = await self._write_hooked(messages, self.by.hooks)
        compactor = (self.room.rebuilding or self.plan).compactor
        return consulted(lambda: verify(messages, compactor.rebuild_history(messages, summary))), tokens

    async def _write_hooked(self, messages: Sequence[Message], hooks: HookChain) -> tuple[str, int]:
        tokens = 0

        async def write(hooked: HookedCompaction) -> str:
            nonlocal tokens
            self.instructions = hooked.instructions
            summary, tokens = await self._write(messages)
            return summary

        try:
            return encodable(await hooks.summary(write, len(messages), self.instructions)), tokens
        except AgentError as exc:
            if exc.cause not in ("denied", "hook"):
                raise
            raise CompactionError(exc.cause, exc.message) from exc

    async def _write(self, messages: Sequence[Message]) -> tuple[str, int]:
        """Ask for a summary; part by part if one request cannot have all messages."""
        left = messages
        for part in count(1):
            reply, end = await self._ask(left, whole=part == MOST_PARTS)
            summary = encodable(reply.message.text)
            if end == len(left):
                break
            if not summary.strip():
                raise CompactionError("empty_summary", "the model returned an empty summary")
            left = Layout.of(left).rebuilt(end, summary).messages
        return summary, reply.usage.output_tokens

    async def _ask(self, messages: Sequence[Message], *, whole: bool) -> tuple[ModelReply, int]:
        """Call the model for a summary; return the index of the first message that the request had no room for, too.

        The pieces of the answer are not published; its tokens are charged even if it is empty. While the server says
        that the request exceeds its window, a smaller one follows.
        """
        by = self.by
        for attempt in count(2):
            request, end = self._request(messages, whole=whole)
            try:
                reply = await ask_aside(
                    by.route, request, by.retry, by.emit, by.book, counters=by.counters, most=by.most
                )
            except ProviderError as exc:
                if attempt > MOST_TRIES or not self.room.learn(exc, sent_size(request.messages)):
                    raise
                self.plan = self.room.plan or self.plan
                by.emit(Retrying(attempt, MOST_TRIES, encodable(exc.message), 0))
            else:
                self.room.answered()
                return reply, end
        raise AssertionError  # count() has no end

    def _request(self, messages: Sequence[Message], *, whole: bool) -> tuple[ModelRequest, int]:
        compactor, window = self.plan.compactor, self.room.window
        prompt = prompt_with(consulted(compactor.compaction_prompt), self.instructions)
        cap = consulted(compactor.max_summary_tokens)
        room = None
        if window is not None:  # a summary calls no tools; a shorter one is better than one of a part
            cap = min(cap, max(1, window.tokens // 4))
            room = self.room.estimated(attrs.evolve(window, answer=cap // LEAST_SUMMARY).request)
        if whole:
            told, end = summary_request(messages, prompt, room), len(messages)
        else:
            told, end = summary_part(messages, prompt, room)
        if window is not None:
            cap = min(cap, max(1, window.tokens * 19 // 20 - self.room.tokens(sent_size(told))))
        options = ModelOptions(max_tokens=cap, prompt_cache=self.by.prompt_cache)
        current, by = self.by.route.current, self.by
        request = ModelRequest(
            current.choice.model,
            told,
            options=options,
            session_id=by.session_id,
            max_output=current.entry.max_output,
            files=by.files,
        )
        return request, end


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
        room: the room of requests, with the settings of compaction.
        by: the model that writes summaries, and the turn's callbacks.
        last_step: the step of the newest attempt.
    """

    room: Room
    by: SummaryCall
    last_step: int | None
    _told: bool = False  # whether an event has told that requests are cut
    _failed: int | None = None  # the step of the newest attempt that failed

    @property
    def context(self) -> Transcript:
        """The context."""
        return self.room.context

    async def make_room(self, step: int) -> Sequence[Message]:
        """Compact if it is due. Return the context to send, cut to the window if it still exceeds it."""
        plan = self.room.plan
        if plan is not None:
            await self._compact_if_due(plan, step)
        return self.context if self.room.window is None else await self._fitted(step)

    async def shrink(self, step: int, beside: int) -> Sequence[Message]:
        """Return a smaller context to send, after a refusal has told that the window is smaller.

        Args:
            step: the step.
            beside: bytes of the messages of the request that are not in the context.
        """
        plan, window = self.room.plan, self.room.window
        over = window is None or self.room.tokens(self.context.size + beside) > window.room
        if plan is not None and over and self._failed != step:
            await self.compact(plan, step)
        return await self._fitted(step, beside)

    async def _compact_if_due(self, plan: CompactionPlan, step: int) -> None:
        size, room = self.context.size, self.room
        state = CompactionContext(room.last_input_tokens, len(self.context), room.tokens(size), self.last_step, step)
        try:
            due = consulted(lambda: bool(plan.compactor.should_compact(state)))
        except CompactionError as exc:
            await self._fail(plan, step, exc)
            return
        if not due:
            return
        futile = self.context.futile
        if futile is not None and size < 2 * abs(futile):
            if futile > 0:  # it has not been told yet
                self.context.futile = -futile
                error = CompactionError("nothing_to_reduce", ABOVE)
                await Compaction(plan, room, step, self.by).refuse(error, room.last_input_tokens)
            return
        await self.compact(plan, step)

    async def _fail(self, plan: CompactionPlan, step: int, error: CompactionError) -> None:
        """Publish the failure of a compactor that raised when it was asked, but not again at every step."""
        if self.last_step is None or step - self.last_step >= max(1, plan.distance):
            self.last_step = step
            await Compaction(plan, self.room, step, self.by).refuse(error, self.room.last_input_tokens)

    async def compact(
        self, plan: CompactionPlan, step: int, instructions: str | None = None
    ) -> CompactionEntry | CompactionFailed:
        """Make one attempt. Its step is noted even if it fails, so that the next one keeps its distance."""
        self.last_step = step
        counted, size = self.room.last_input_tokens, self.context.size
        attempt = Compaction(plan, self.room, step, self.by, instructions)
        entry = await attempt.summarise(counted)
        self._note(attempt, step)
        failure = attempt.failure
        if failure is None or failure.reason in NOTHING_TO_SHORTEN:
            left = counted - self.room.tokens(size) + self.room.tokens(self.context.size)
            self._note_futile(attempt.plan, max(0, left), step, told=failure is not None)
        return entry or failure or CUT_SHORT

    def _note_futile(self, plan: CompactionPlan, left: int, step: int, *, told: bool) -> None:
        """Note whether another compaction would be due at once after an attempt, with `left` tokens of input."""
        size, before = self.context.size, self.context.futile
        state = CompactionContext(left, len(self.context), self.room.tokens(size), None, step)
        try:
            due = consulted(lambda: bool(plan.compactor.should_compact(state)))
        except CompactionError:
            due = False
        told |= before is not None and before < 0
        self.context.futile = None if not due else -size if told else size

    async def _fitted(self, step: int, beside: int = 0) -> Sequence[Message]:
        """Make the context fit without the model if it still exceeds the window."""
        window, room = self.room.window, self.room
        if window is None or room.tokens(self.context.size + beside) <= window.room:
            return self.context
        try:
            fitted = mechanical(self.context, room.estimated(window.room) - estimate(beside))
        except CompactionError:
            return (
                self.context
            )  # the provider may count fewer tokens than our estimate; if not, its error names the problem
        if fitted.result.discarded and self._may_drop(step):
            await self._drop(fitted.result, step)
        elif room.plan is None and not self._told:
            self._told = True
            out = len(self.context) - len(fitted.request) + (fitted.result.summary is not None)
            what = f"the oldest {out} messages of the context" if out else "long results of tools"
            why = f"the context exceeds the model's window of {window.tokens} tokens, and compaction is off"
            self.by.emit(RequestRepaired("shortened", what, why))
        return fitted.request

    def _may_drop(self, step: int) -> bool:
        """Return whether messages may leave the context.

        Without compaction, and for some steps after a refused attempt, only the request is cut: a new attempt would
        fail at each step.
        """
        plan, refused = self.room.plan, self.context.refused
        return plan is not None and (refused is None or step - refused >= max(1, plan.distance))

    async def _drop(self, result: CompactionResult, step: int) -> None:
        assert self.room.plan is not None  # noqa: S101 - see `_may_drop`
        attempt = Compaction(self.room.plan, self.room, step, self.by)
        await attempt.drop_oldest(result, self.room.last_input_tokens)
        self._note(attempt, step)

    def _note(self, attempt: Compaction, step: int) -> None:
        """Note the step and the refusal of an attempt, on which the next ones depend."""
        self.context.refused = step if attempt.refused else None
        if attempt.refused:
            self.last_step = step
        if attempt.failure is None:
            self.room.last_input_tokens = 0
        else:
            self._failed = step


def window_for(
    config: CompactionConfig | None,
    known: int | None,
    told: int | None,
    max_tokens: int | None,
    tools: Mapping[str, Tool],
) -> Window | None:
    """Return the model's window and the part of it for the answer and the tools; None if the window is unknown.

    Args:
        config: the settings of compaction; None if it is off.
        known: the window that the catalog has for the model.
        told: the window that a refusal of the server has told.
        max_tokens: the cap of an answer.
        tools: the tools.
    """
    tokens = min(filter(None, (None if config is None else config.window or known, told)), default=None)
    if tokens is None:
        return None
    specs = [tool.spec for tool in tools.values()]
    return Window(tokens, max_tokens or 0, estimate(len(codec.encode_whole(specs))))


def wanted_of(record: SessionRecord) -> ModelContext:
    """Return the query for the stored context of a session."""
    return ModelContext(record.session_id, record.head, record.message_count, record.instructed_at)


def transcript_of(record: SessionRecord, stored: Context) -> Transcript:
    """Return the stored context of a session; before its head are the instructions and the summary."""
    first = None if stored.first is None else codec.decode_message(stored.first)
    prefix = [stored.first] if isinstance(first, SystemMessage) and first.content and stored.first else []
    if stored.compaction is not None:
        prefix.append(codec.encode(summary_message(stored.compaction.summary)))
    system = record.instructed_at
    return Transcript(stored.rows, head=record.head, prefix=prefix, left_out=record.left_out, system=system)
