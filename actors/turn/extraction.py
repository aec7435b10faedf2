"""Extraction: a model call after the final answer of a turn, for the same answer as data. It is not streamed."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from warren.actors.turn.schemas import check_fit
from warren.base.errors import AgentError, ProviderError, WarrenError
from warren.base.fields import encodable
from warren.base.values import define
from warren.conversation.events import Event, ExtractionCompleted, ExtractionFailed
from warren.conversation.messages import Message
from warren.conversation.options import OutputWish
from warren.models.model import ModelReply
from warren.structured.output import Fit, correction, request, shortened

NO_SUCH_FORM: Final = ("bad_request", "server_error")
"""Causes of the errors of servers that refuse a schema: most answer 400, llama.cpp's 500, which no retry helps."""
CUT_SHORT: Final = "the turn ended before its answer was there as data"
Ask = Callable[[Sequence[Message], Mapping[str, Any] | None], Awaitable[ModelReply]]
"""Calls the model with the context and these messages, and a schema to force its answer into, if any."""


@define(eq=False)
class Extraction:
    """Asks for the answer of one turn as data that fits a schema. It adds nothing to the transcript.

    Attributes:
        wish: the schema, and the number of retries.
        emit: publishes the event of the end.
        ask: calls the model.
        decode: makes a value of the caller's type of the data, and raises ValueError if its validators refuse that;
            None if there is the schema alone, or if this process does not know the type.
        attempts: number of the model's answers so far.
    """

    wish: OutputWish
    emit: Callable[[Event], object]
    ask: Ask
    decode: Callable[[Any], object] | None = None
    attempts: int = 0

    async def run(self) -> Any:
        """Return the data, and publish the event of success or failure.

        Raises:
            AgentError: with the cause `structured_output`, if no answer fits the schema.
            WarrenError: the errors of a model call.
        """
        failure: str | None = CUT_SHORT
        try:
            data = await self._extract()
            failure = None
        except WarrenError as exc:
            failure = exc.message
            raise
        finally:
            if failure is not None:
                self.emit(ExtractionFailed(failure, self.attempts))
        self.emit(ExtractionCompleted(self.attempts))
        return data

    async def _extract(self) -> Any:
        schema = self.wish.schema
        forced: Mapping[str, Any] | None = schema
        asked: tuple[Message, ...] = (request(schema),)
        while True:
            try:
                reply = await self.ask(asked, forced)
            except ProviderError as exc:
                if forced is None or exc.cause not in NO_SUCH_FORM:
                    raise
                forced = None  # the prompt alone asks for the same data
                continue
            self.attempts += 1
            found = await check_fit(schema, reply.message)
            if self.decode is not None and not found.problems:
                found = _decoded(self.decode, found)
            if not found.problems:
                return found.data
            if self.attempts > self.wish.retries:
                raise _unfit(found)
            asked += correction(reply.message, found.problems)


def _decoded(decode: Callable[[Any], object], found: Fit) -> Fit:
    """Return data that fits its schema as it is, or with what validators of the caller's type say against it."""
    try:
        decode(found.data)
    except ValueError as exc:
        return Fit((encodable(shortened(str(exc))),))
    return found


def _unfit(found: Fit) -> AgentError:
    problem = f"the answer does not fit the schema: {found.problems[0]}"
    return AgentError(problem, cause="structured_output", details={"errors": list(found.problems)})
