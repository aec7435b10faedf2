"""One model call with its retries; text that subscribers have seen is not published again."""

import logging
import reprlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import attrs
import trio

from warren.actors.observe.counters import Counters
from warren.actors.turn.answer import GO_ON, endless, not_empty
from warren.actors.turn.route import Candidate, Route
from warren.base.errors import ProviderError, WarrenError
from warren.base.fields import encodable
from warren.base.values import define
from warren.compaction.layout import estimate, size_of
from warren.conversation.events import Event, ModelSwitched, ReasoningDelta, RequestRepaired, Retrying, TextDelta
from warren.conversation.messages import AssistantMessage, Message, TextBlock, ToolResultsMessage
from warren.conversation.transcript import Continued, Transcript
from warren.conversation.usage import Usage
from warren.models.model import (
    Emitted,
    ModelReply,
    ModelRequest,
    ReasoningPiece,
    Repaired,
    TextPiece,
    WholePieces,
)
from warren.settings.config import Limits, RetryPolicy

logger: Final = logging.getLogger("warren.model")


@define
class Repetition:
    """The place of a retry in the text that is published already; one for the answer, one for the reasoning.

    A retry usually repeats the beginning of the text, and this part is not published again. If the retry differs from
    it, the rest of the attempt is not streamed; `text_complete` then has the whole text.
    """

    published: str
    _position: int = 0
    _diverged: bool = False

    def fresh(self, text: str) -> str:
        """Return the part of the next piece that is to be published."""
        known = self.published[self._position : self._position + len(text)]
        self._position += len(text)
        self._diverged = self._diverged or not text.startswith(known)
        return "" if self._diverged else text[len(known) :]


@define
class ModelCall:
    """The model call of one step.

    Attributes:
        emit: publishes an event.
        book: charges the tokens, with their cost, of an attempt that failed or was cancelled: those that the provider
            had counted, or an estimate if it has shown a piece. It charges those of a repaired request alike. The
            caller charges those of the reply.
        policy: the retry settings.
        counters: counts the attempts.
        most: bytes that the pieces of an answer may have.
        aloud: whether the answer is for the user; then an empty one counts as a failure.
        held: whether the published pieces are held back: nothing of an answer that is not whole is kept.
        text: the published pieces of the answer, which are kept if the call is interrupted.
        reasoning: the published pieces of the reasoning.
    """

    emit: Callable[[Event], object]
    book: Callable[[Usage], None]
    policy: RetryPolicy
    counters: Counters = attrs.field(factory=Counters)
    most: int = attrs.field(default=Limits().content, kw_only=True)
    aloud: bool = attrs.field(default=True, kw_only=True)
    held: bool = attrs.field(default=False, kw_only=True)
    text: list[str] = attrs.field(factory=list)
    reasoning: list[str] = attrs.field(factory=list)
    _again: tuple[Repetition, Repetition] | None = None  # of text and reasoning, while the attempt is a retry
    _candidate: Candidate | None = None  # of the attempt
    _began: float = 0.0
    _first: float | None = None  # seconds to the first piece of the attempt
    _shown: int = 0  # bytes of the pieces of the attempt
    _whole: WholePieces | None = None  # joins halves of characters, from the first text on that is not ASCII

    def run(self, route: Route, request: ModelRequest) -> Awaitable[ModelReply]:
        """Return the reply of the first model of the route that has one, with its cost.

        Raises:
            ProviderError: if it is not retryable, or if the last model has failed: the attempts are used up, or the
                provider asks for a longer wait than the policy allows.
        """
        return self._answer(route, request) if route.single else self._first_of(route, request)

    async def _first_of(self, route: Route, request: ModelRequest) -> ModelReply:
        """Return the reply of the first model of several that has one. Raises as `run`."""
        before = route.current
        if route.enter():
            self._switched(before, route.current, "it has failed a moment ago")
        while True:
            before, answered = route.current, False
            try:
                reply = await self._answer(route, route.addressed(request))
                answered = True
            except ProviderError as exc:
                if not exc.retryable or not route.leave(exc.retry_after):
                    raise
                self._switched(before, route.current, encodable(exc.message))
            else:
                return reply
            finally:
                if route.current is before:
                    route.end(answered=answered)

    def _switched(self, before: Candidate, after: Candidate, error: str) -> None:
        """Publish that another model takes over; the answer so far does not count any more."""
        self.emit(ModelSwitched(before.name, after.name, error, bool(self.text or self.reasoning)))
        self.text.clear()
        self.reasoning.clear()
        self._again = None

    async def _answer(self, route: Route, request: ModelRequest) -> ModelReply:
        """Return the reply of one model, after retries. Raises ProviderError."""
        candidate = route.current
        attempt, emptied = 1, False
        while True:
            try:
                return await self._attempt(candidate, request)
            except ProviderError as exc:
                most, was_empty = self.policy.max_attempts, exc.cause == "empty_answer"
                if was_empty:  # once more, whatever else has failed: a model may have nothing to say
                    most = attempt if emptied else max(most, attempt + 1)
                    emptied = True
                if not exc.retryable or attempt >= most or _too_long(self.policy, exc):
                    raise
                if not route.single and route.should_leave:  # other sessions have tried the model often enough
                    raise
                wished = exc.retry_after
                delay = self.policy.backoff.delay(attempt) if wished is None else max(wished, 0.0)
                attempt += 1
                self.counters.model(candidate.choice).retries += 1
                self.emit(Retrying(attempt, most, encodable(exc.message), round(delay * 1000)))
            await trio.sleep(delay)
            if was_empty:
                self.text.clear()  # it was white space
                if isinstance(request.messages[-1], ToolResultsMessage):
                    request = attrs.evolve(request, messages=Continued(request.messages, (GO_ON,)))
            self._again = Repetition("".join(self.text)), Repetition("".join(self.reasoning))

    def partial(self) -> AssistantMessage | None:
        """Return the message of an interrupted call, without its reasoning: providers refuse reasoning that is cut."""
        text = "" if self.held else "".join(self.text)
        return AssistantMessage((TextBlock(text),), "cancelled") if text.strip() else None

    async def _attempt(self, candidate: Candidate, request: ModelRequest) -> ModelReply:
        choice = candidate.choice
        self._candidate = candidate
        self._began, self._first, self._shown = self.counters.now(), None, 0
        reply: ModelReply | None = None
        failed: WarrenError | None = None
        try:
            reply = self._reply(await choice.provider.complete(request, self._piece))
        except WarrenError as exc:
            failed = exc
            raise
        except Exception as exc:  # a provider may be the host's code: its bug fails this turn, not the session
            logger.exception("provider of model %s raised", choice.model)
            problem = encodable(f"the provider failed: {type(exc).__name__}: {exc}")
            failed = ProviderError(problem, cause="provider_bug")
            raise failed from exc
        finally:
            if self._whole is not None:
                self._whole.end()
                self._whole = None
            if reply is None:
                self.counters.failed(choice, failed, self._first)
                told = failed.usage if isinstance(failed, ProviderError) else None
                if told is not None or self._shown:  # the provider charges for it
                    self.book(candidate.priced(self._lost(told, request.messages)))
        self.counters.called(choice, self.counters.now() - self._began, self._first, reply.usage)
        usage = candidate.priced(reply.usage)
        return reply if usage is reply.usage else attrs.evolve(reply, usage=usage)

    def _lost(self, told: Usage | None, messages: Sequence[Message]) -> Usage:
        """Return the tokens of an attempt that failed; of those that the provider did not count, an estimate."""
        said = estimate(self._shown)
        if told is None:
            return Usage(estimate(sent_size(messages)), said, estimated=True)
        return told if told.output_tokens >= said else attrs.evolve(told, output_tokens=said, estimated=True)

    def _piece(self, piece: Emitted, *, whole: bool = False) -> None:
        """Take what a provider emits. `whole` tells that a text has no half of a character that may wait."""
        # Not a match: its class patterns take twice the time, and pieces are the most frequent values here.
        if isinstance(piece, TextPiece):
            published, place = self.text, 0
        elif isinstance(piece, ReasoningPiece):
            published, place = self.reasoning, 1
        else:
            return self._repaired(piece)
        text = piece.text
        if not whole and (self._whole is not None or not text.isascii()):
            self._whole = self._whole or WholePieces(partial(self._piece, whole=True))
            return self._whole(piece)
        if self._first is None:
            self._first = self.counters.now() - self._began
        self._shown += len(text.encode())
        if self._shown > self.most:
            raise endless(self.most)
        if self._again is not None:
            text = self._again[place].fresh(text)
        if text:
            published.append(text)
            self.emit(ReasoningDelta(text) if place else TextDelta(text))
        return None

    def _repaired(self, repaired: object) -> None:
        if not isinstance(repaired, Repaired):  # a host's provider may emit other values in spite of the types
            raise self._odd("emitted", repaired, "emit TextPiece(text) or ReasoningPiece(text)")
        what, why = encodable(repaired.what), encodable(repaired.why)
        if repaired.action == "left_out":
            self.counters.left_out.note(what, why)
        if repaired.usage is not None and self._candidate is not None:
            self.book(self._candidate.priced(repaired.usage))
        self.emit(RequestRepaired(repaired.action, what, why))

    def _reply(self, answer: object) -> ModelReply:
        """Take what a provider returns. Raises ProviderError if it is no reply, or one that must not be empty."""
        if not isinstance(answer, ModelReply):
            raise self._odd("returned", answer, "return a ModelReply")
        return not_empty(answer) if self.aloud else answer

    def _odd(self, did: str, odd: object, instead: str) -> ProviderError:
        """Return the error for a value of the wrong type: without it, a text would vanish and nothing would say why."""
        model = "" if self._candidate is None else f" of model {self._candidate.choice.model!r}"
        problem = f"the provider{model} {did} a value of type {type(odd).__name__} ({reprlib.repr(odd)}): {instead}"
        return ProviderError(encodable(problem), cause="provider_bug")


async def ask_aside(
    route: Route,
    request: ModelRequest,
    policy: RetryPolicy,
    emit: Callable[[Event], object],
    book: Callable[[Usage], None],
    *,
    counters: Counters,
    most: int,
) -> ModelReply:
    """Call a model without publishing its pieces: `emit` gets only retries, repairs, and the models that take over.

    `book` gets the tokens, also those of failed attempts. The pieces may have `most` bytes.
    """

    def only_trouble(event: Event) -> None:
        if isinstance(event, Retrying | RequestRepaired):
            emit(event)
        elif isinstance(event, ModelSwitched):
            emit(attrs.evolve(event, discarded=False))  # nothing was shown

    reply = await ModelCall(only_trouble, book, policy, counters, most=most, aloud=False).run(route, request)
    book(reply.usage)
    return reply


def sent_size(messages: Sequence[Message]) -> int:
    """Return the bytes of the messages of a request."""
    if isinstance(messages, Transcript):
        return messages.size
    if isinstance(messages, Continued):
        return sent_size(messages.context) + sent_size(messages.asked)
    return sum(map(size_of, messages))


def _too_long(policy: RetryPolicy, error: ProviderError) -> bool:
    # A shorter wait than the provider asks for would fail again, and one above the bound would block the caller.
    return error.retry_after is not None and error.retry_after > policy.max_retry_after
