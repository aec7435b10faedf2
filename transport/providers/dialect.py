"""The interface of a provider's protocol; the HTTP around it is shared (`remote.py`)."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from warren.base.fields import FieldValueError
from warren.conversation import codec
from warren.conversation.options import CacheTime, ModelOptions
from warren.models.model import ModelRequest
from warren.transport.providers.settings import ModelEndpoint

if TYPE_CHECKING:
    from warren.transport.providers.accumulate import Answer
    from warren.transport.providers.encoded import Encoded, EncodedTools, Part

OUTPUT: Final = "structured_output"
"""The name, in each protocol that has one, of the form that an answer is forced into."""

SURE_TOKENS: Final = 4_096
"""Tokens of an answer that every model is assumed to be able to give."""
DEFAULT_CACHE: Final[CacheTime] = "5m"
"""The prompt cache of calls for which nobody has chosen one."""


class ModelDialect(ABC):
    """A protocol: it encodes requests and decodes answers.

    Attributes:
        tools: the tools in its form.
        contexts: the class of its contexts.
        answers: the class of its answers.
    """

    tools: "ClassVar[EncodedTools]"
    contexts: "ClassVar[type[Encoded]]"
    answers: "ClassVar[type[Answer]]"

    @abstractmethod
    def url(self, endpoint: ModelEndpoint, model: str) -> str:
        """Return the address for requests to a model."""

    @abstractmethod
    def listing(self, endpoint: ModelEndpoint) -> str | None:
        """Return the address of the list of the server's models; None if it has no such list."""

    @abstractmethod
    def headers(self, key: str | None, model: str) -> dict[str, str]:
        """Return the headers of every request to a model."""

    @abstractmethod
    def check(self, model: str, options: ModelOptions) -> None:
        """Refuse options that the protocol or the model does not have. Raises FieldValueError that names the option."""

    def context(self, endpoint: ModelEndpoint, model: str) -> "Encoded":
        """Return an empty context for a model of a provider, to which messages are added."""
        return self.contexts(endpoint.vendor.name, model)

    @abstractmethod
    def body(self, request: ModelRequest, endpoint: ModelEndpoint, context: "Encoded") -> "list[Part]":
        """Return the body of a request, in pieces.

        The messages come behind all that stays the same from step to step, and before all that may change. So a body
        begins with the bytes of the one before it, up to the end of its last message.

        Args:
            request: the request; its messages are not read.
            endpoint: the address.
            context: the messages of the request. It has to be one of this dialect.
        """

    def answer(self, request: ModelRequest, endpoint: ModelEndpoint, known: Collection[str]) -> "Answer":
        """Return the empty answer to a request, to be fed with the events of the stream.

        Args:
            request: the request; its messages are not read.
            endpoint: the address.
            known: the ids of the tool calls in the context, which new calls must not reuse.
        """
        return self.answers(endpoint, request.model, known)


def cache_key(request: ModelRequest, endpoint: ModelEndpoint) -> str | None:
    """Return the name under which OpenAI's cache finds the requests of a session; None if none is to be sent.

    Servers of other makers may refuse a request with a member that they do not know.
    """
    return request.session_id if endpoint.official and request.options.prompt_cache != "off" else None


def sampling(options: ModelOptions, top_p: str = "top_p") -> dict[str, float]:
    """Return the members of a body that say how answers are sampled; `top_p` is the protocol's name of one."""
    asked = {"temperature": options.temperature, top_p: options.top_p}
    return {name: value for name, value in asked.items() if value is not None}


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
