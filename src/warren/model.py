"""The boundary to language models: what a provider is asked, what it answers, and what it streams meanwhile."""

from collections.abc import Callable, Iterable, Mapping, Sequence
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


def joined(parts: Iterable[str]) -> str:
    """Return the parts of a text as one. A character that is split over two parts as surrogates is made whole.

    Half a character that is left alone becomes U+FFFD, so that UTF-8 can hold the text.
    """
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


@value
class TextPiece:
    """A piece of the answer's text."""

    text: str


@value
class ReasoningPiece:
    """A piece of readable reasoning."""

    text: str


Piece = TextPiece | ReasoningPiece


@attrs.define
class WholePieces:
    """Hands pieces on with whole characters: half a character waits for the piece that brings its other half.

    Attributes:
        emit: takes the pieces.
    """

    emit: Callable[[Piece], None]
    _halves: dict[type[Piece], str] = attrs.field(factory=dict)

    def __call__(self, piece: Piece) -> None:
        """Take the next piece; what is no text of a model is handed on as it is."""
        kind = type(piece)
        if kind not in (TextPiece, ReasoningPiece) or (not self._halves and piece.text.isascii()):
            self.emit(piece)
            return
        text = self._halves.pop(kind, "") + piece.text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._halves[kind], text = text[-1], text[:-1]
        if text:
            self.emit(kind(joined([text])))

    def end(self) -> None:
        """Hand on what is left when no piece follows."""
        for kind, half in self._halves.items():
            self.emit(kind(joined([half])))
        self._halves.clear()


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
