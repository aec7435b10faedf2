"""Extraction: one more question after a turn's final answer, for the same as data. No stream shows its words."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from warren.actors.schemas import check_fit
from warren.errors import AgentError, ProviderError, WarrenError
from warren.events import Event, ExtractionCompleted, ExtractionFailed
from warren.messages import Message
from warren.model import ModelReply
from warren.options import OutputWish
from warren.structured.output import Fit, correction, request

NO_SUCH_FORM: Final = ("bad_request", "server_error")
"""How servers answer that do not take a schema: some with a 400, llama.cpp's with a 500 that no retry helps."""
CUT_SHORT: Final = "the turn ended before its answer was there as data"
Ask = Callable[[Sequence[Message], Mapping[str, Any] | None], Awaitable[ModelReply]]
"""Calls the model with these messages after the context, and a schema to force on its answer, if any."""


@attrs.define(eq=False)
class Extraction:
    """Brings one turn's answer into the form that was asked for. It adds nothing to the transcript.

    Attributes:
        wish: the form, and how often to try.
        emit: takes the event that tells of the end.
        ask: calls the model.
        attempts: answers that the model has given.
    """

    wish: OutputWish
    emit: Callable[[Event], None]
    ask: Ask
    attempts: int = 0

    async def run(self) -> Any:
        """Return the data, and tell of it or of what ended the attempt.

        Raises AgentError(cause="structured_output") where no answer fits, and what the model call raises.
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
                forced = None  # the words alone ask for the same
                continue
            self.attempts += 1
            found = await check_fit(schema, reply.message)
            if not found.problems:
                return found.data
            if self.attempts > self.wish.retries:
                raise _unfit(found)
            asked += correction(reply.message, found.problems)


def _unfit(found: Fit) -> AgentError:
    problem = f"the answer does not fit the schema: {found.problems[0]}"
    return AgentError(problem, cause="structured_output", details={"errors": list(found.problems)})
