"""What an HTTP provider's protocol has to say for itself; the calling and the streaming is shared."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from warren.messages import AssistantMessage
from warren.model import ModelReply, ModelRequest, Piece
from warren.transport.providers.settings import Endpoint

OUTPUT: Final = "structured_output"
"""What the protocols call an answer of the form that is forced on it."""


class Answer(Protocol):
    """One answer, put together from its events. No I/O."""

    @property
    def complete(self) -> bool:
        """Whether the model has said why it stopped: only token counts may follow."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the protocol's last event has come: nothing follows."""
        ...

    @property
    def size(self) -> int:
        """Characters of the answer that have arrived; what only keeps the connection open does not count."""
        ...

    def feed(self, data: str) -> list[Piece]:
        """Take the next event of a stream and return its pieces. Raises ProviderError."""
        ...

    def whole(self, data: str) -> list[Piece]:
        """Take the plain JSON of an answer that was not streamed. Raises ProviderError."""
        ...

    def reply(self, sent: int) -> ModelReply:
        """Return the whole; `sent` is the size of the request in bytes, for estimates."""
        ...


class Dialect(Protocol):
    """A protocol: requests from ours to its form, answers back."""

    def url(self, endpoint: Endpoint) -> str:
        """Return the address that requests go to."""
        ...

    def headers(self, key: str | None) -> dict[str, str]:
        """Return the headers that go with every request."""
        ...

    def payload(self, request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
        """Return a request's body."""
        ...

    def answer(self, request: ModelRequest, endpoint: Endpoint) -> Answer:
        """Return what takes the answer to a request."""
        ...


def forced_schema(request: ModelRequest) -> Mapping[str, Any] | None:
    """Return the schema that the answer is to be forced into; the protocols take none but that of an object."""
    schema = request.answer_schema
    return schema if schema is not None and schema.get("type") == "object" else None


def known_calls(request: ModelRequest) -> set[str]:
    """Return the ids of all tool calls in a transcript: an answer's calls get others."""
    answers = (message for message in request.messages if isinstance(message, AssistantMessage))
    return {call.id for answer in answers for call in answer.tool_calls}
