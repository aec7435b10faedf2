"""The interface of a provider's protocol; the HTTP around it is shared (`remote.py`)."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from warren.messages import AssistantMessage
from warren.model import ModelReply, ModelRequest, Piece
from warren.transport.providers.settings import Endpoint

OUTPUT: Final = "structured_output"
"""The name, in both protocols, of the form that an answer is forced into."""


class Answer(Protocol):
    """An answer, assembled from its events. No I/O."""

    @property
    def complete(self) -> bool:
        """Whether the stop reason has arrived: only token counts may follow."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the last event of the protocol has arrived: nothing follows."""
        ...

    @property
    def size(self) -> int:
        """Characters of the answer that have arrived; keep-alive events do not count."""
        ...

    def feed(self, data: str) -> list[Piece]:
        """Add the next event of the stream, and return its pieces. Raises ProviderError for an error or a bad event."""
        ...

    def whole(self, data: str) -> list[Piece]:
        """Add an answer that was not streamed, as plain JSON. Raises ProviderError if it is malformed or an error."""
        ...

    def reply(self, sent: int) -> ModelReply:
        """Return the whole answer; `sent` is the size of the request in bytes, for estimates."""
        ...


class Dialect(Protocol):
    """A protocol: it encodes requests and decodes answers."""

    def url(self, endpoint: Endpoint) -> str:
        """Return the address for requests."""
        ...

    def headers(self, key: str | None) -> dict[str, str]:
        """Return the headers of every request."""
        ...

    def payload(self, request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
        """Return the body of a request."""
        ...

    def answer(self, request: ModelRequest, endpoint: Endpoint) -> Answer:
        """Return the empty answer to a request, to be fed with the events of the stream."""
        ...


def forced_schema(request: ModelRequest) -> Mapping[str, Any] | None:
    """Return the schema to force the answer into, or None; the protocols accept only schemas of objects."""
    schema = request.answer_schema
    return schema if schema is not None and schema.get("type") == "object" else None


def known_calls(request: ModelRequest) -> set[str]:
    """Return the ids of all tool calls of a transcript, which new calls must not reuse."""
    answers = (message for message in request.messages if isinstance(message, AssistantMessage))
    return {call.id for answer in answers for call in answer.tool_calls}
