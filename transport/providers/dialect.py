"""The interface of a provider's protocol; the HTTP around it is shared (`remote.py`)."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from warren.base.fields import FieldValueError
from warren.conversation import codec
from warren.conversation.options import CacheTime, ModelOptions
from warren.models.model import ModelReply, ModelRequest
from warren.transport.providers.settings import ModelEndpoint

if TYPE_CHECKING:
    from warren.transport.providers.accumulate import Counts, Said
    from warren.transport.providers.encoded import Encoded, EncodedTools, Part

OUTPUT: Final = "structured_output"
"""The name, in each protocol that has one, of the form that an answer is forced into."""

SURE_TOKENS: Final = 4_096
"""Tokens of an answer that every model is assumed to be able to give."""
DEFAULT_CACHE: Final[CacheTime] = "5m"
"""The prompt cache of calls for which nobody has chosen one."""


class Answer(Protocol):
    """An answer, assembled from its events. No I/O.

    Attributes:
        complete: whether the stop reason has arrived, or the end of the stream: token counts may follow, or, from some
            servers, more text.
        ended_at: its size at that moment.
        reason: the server's name of the stop reason; empty as long as it gave none.
        counted: whether the server has counted the tokens behind the answer, in an event of their own.
        said: its texts that nobody has taken yet.
    """

    complete: bool
    ended_at: int
    reason: str
    counted: bool
    said: "Said"

    @property
    def closed(self) -> bool:
        """Whether the last event of the protocol has arrived: nothing follows."""

    @property
    def size(self) -> int:
        """Characters of the answer that have arrived; keep-alive events do not count."""

    @property
    def blocks(self) -> int:
        """Blocks of the answer that have begun; some protocols count the calls of tools alone."""

    def feed(self, data: bytes) -> None:
        """Add the next event of the stream. Raises ProviderError for an error or a bad event."""

    def whole(self, data: bytes) -> None:
        """Add an answer that was not streamed, as plain JSON. Raises ProviderError if it is malformed or an error."""

    @property
    def counts(self) -> "Counts":
        """The token counts that have arrived, also of an answer that broke off."""

    def reply(self, sent: int) -> ModelReply:
        """Return the whole answer; `sent` is the size of the request in bytes, for estimates."""


class ModelDialect(Protocol):
    """A protocol: it encodes requests and decodes answers."""

    tools: "ClassVar[EncodedTools]"

    def url(self, endpoint: ModelEndpoint, model: str) -> str:
        """Return the address for requests to a model."""

    def listing(self, endpoint: ModelEndpoint) -> str | None:
        """Return the address of the list of the server's models; None if it has no such list."""

    def headers(self, key: str | None, model: str) -> dict[str, str]:
        """Return the headers of every request to a model."""

    def check(self, model: str, options: ModelOptions) -> None:
        """Refuse options that the protocol or the model does not have. Raises FieldValueError that names the option."""

    def context(self, endpoint: ModelEndpoint, model: str) -> "Encoded":
        """Return an empty context for a model of a provider, to which messages are added."""

    def body(self, request: ModelRequest, endpoint: ModelEndpoint, context: "Encoded") -> "list[Part]":
        """Return the body of a request, in pieces.

        The messages come behind all that stays the same from step to step, and before all that may change. So a body
        begins with the bytes of the one before it, up to the end of its last message.

        Args:
            request: the request; its messages are not read.
            endpoint: the address.
            context: the messages of the request. It has to be one of this dialect.
        """

    def answer(self, request: ModelRequest, endpoint: ModelEndpoint, known: Collection[str]) -> Answer:
        """Return the empty answer to a request, to be fed with the events of the stream.

        Args:
            request: the request; its messages are not read.
            endpoint: the address.
            known: the ids of the tool calls in the context, which new calls must not reuse.
        """


def cache_key(request: ModelRequest, endpoint: ModelEndpoint) -> str | None:
    """Return the name under which OpenAI's cache finds the requests of a session; None if none is to be sent.

    Servers of other makers may refuse a request with a member that they do not know.
    """
    return request.session_id if endpoint.official and request.options.prompt_cache != "off" else None


def no_reasoning_cap(options: ModelOptions, whose: str) -> None:
    """Refuse a cap of the reasoning, which the protocol or the model does not have. Raises FieldValueError."""
    if options.reasoning_tokens is not None:
        raise FieldValueError("reasoning_tokens", f"{whose} has no such cap; use `effort`")


WEB_SEARCH: Final = "web_search"
"""The hosted tool that each protocol with any has, under its own name."""


def no_hosted_tools(options: ModelOptions, whose: str) -> None:
    """Refuse tools that the provider runs, of which a protocol or a server has none. Raises FieldValueError."""
    for name in options.hosted_tools or ():
        raise FieldValueError(f"hosted_tools.{name}", f"{whose} has no tools of its own")


def with_hosted(tools: bytes, hosted: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the JSON list of the tools, with those that the provider runs behind the others; nothing for none."""
    if not hosted:
        return tools
    behind = codec.encode_whole(list(hosted))
    return tools[:-1] + b"," + behind[1:] if tools else behind


def forced_schema(request: ModelRequest) -> Mapping[str, Any] | None:
    """Return the schema to force the answer into, or None; the protocols accept only schemas of objects."""
    schema = request.answer_schema
    return schema if schema is not None and schema.get("type") == "object" else None
