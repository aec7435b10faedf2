"""The boundary to language models: what a provider is asked, what it answers, and what it streams meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from warren.messages import AssistantMessage, Message
from warren.tools import ToolSpec
from warren.usage import Usage
from warren.values import value


@attrs.frozen
class ModelRequest:
    """One model call.

    Attributes:
        model: the provider's own name of the model.
        messages: the context, oldest first, the system message (if any) at its head. Read-only and possibly lazy:
            indexing decodes, so a provider that needs little of it should take little.
        tools: the tools the model may call.
        max_tokens: cap of the answer; None leaves it to the provider.
        temperature: sampling temperature; None leaves it to the provider.
        output_schema: the JSON schema that the answer's text is to fit, as JSON. The messages ask for it too, so that a
            provider without such a form has nothing to do. It comes without tools.
        tokens_left: tokens that a budget has left for the answer, by an estimate of the input; None for no limit. See
            `answer_cap`.
    """

    model: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    output_schema: Mapping[str, Any] | None = None
    tokens_left: int | None = None

    def answer_cap(self, most: int) -> int | None:
        """Return the cap of the answer to send: `max_tokens`, or what a budget has left if that is less.

        `most` is the longest answer that the model is sure to be able to give. Models refuse a cap above what they can,
        so that without `max_tokens` a budget caps nothing that has more left than `most`.
        """
        left, own = self.tokens_left, self.max_tokens
        return left if left is not None and left < (own or most) else own


@value
class TextPiece:
    """A piece of the answer's text."""

    text: str


@value
class ReasoningPiece:
    """A piece of readable reasoning."""

    text: str


Piece = TextPiece | ReasoningPiece


@value
class ModelReply:
    """The whole answer, after its last piece."""

    message: AssistantMessage
    usage: Usage


class Provider(Protocol):
    """A way to a model. One instance serves many sessions at once."""

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Call the model; hand every piece to `emit` as it arrives, then return the whole.

        Cancelling the call closes its connection at once. Raises ProviderError, with `retryable` and `retry_after`
        set truthfully: retrying is the caller's business, never done here.
        """
        ...


@value
class ModelChoice:
    """A resolved model: its provider and the name the provider knows it by."""

    provider: Provider
    model: str


class Providers(Protocol):
    """Resolves a model's name; an explicit provider name overrides what the model's name suggests."""

    def resolve(self, model: str, provider: str | None) -> ModelChoice:
        """Return the provider to call. Raises InvalidParamsError (path `model` or `provider`) for what is unknown."""
        ...
