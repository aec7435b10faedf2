"""The interface to language models: the request, the streamed pieces, the reply, and the provider between them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import attrs

from warren.base.errors import StoreError
from warren.base.values import define, frozen, value
from warren.conversation.attachments import Attachment, File, Kind, ReadFile
from warren.conversation.events import RepairAction
from warren.conversation.messages import AssistantMessage, Message
from warren.conversation.options import ModelOptions
from warren.conversation.usage import Usage
from warren.models.tools import ToolSpec


async def _read_nothing(file: Attachment, _start: int, _size: int) -> bytes:
    raise StoreError(f"the bytes of {file.label} are not here", cause="missing")


@frozen
class Files:
    """The access of a request to the files of its messages.

    Attributes:
        kinds: the kinds that the model takes; each of the others is told to it by a note.
        read: returns some bytes of a file: those of a number from a place on.
    """

    kinds: frozenset[Kind] = frozenset()
    read: ReadFile = _read_nothing


NO_FILES: Final = Files()


@value
class ModelRequest:
    """One model call.

    Attributes:
        model: the provider's own name of the model.
        messages: the context, oldest first, the system message (if any) at its head. It is read-only and may be lazy:
            each access by index may decode a message. It follows the conversation, so a copy is needed to keep it.
        tools: the tools that the model may call.
        options: the options of the call, such as its temperature; an option that is None is left to the provider.
        answer_schema: the JSON schema that the answer's text has to fit. The messages ask for it too, so a provider
            without support for schemas may ignore it. A request with a schema has no tools.
        tokens_left: tokens that a budget leaves for the answer, after an estimate of the input; None for no limit. See
            `answer_cap`.
        session_id: the session, for servers that keep the requests of one together; None if there is none.
        max_output: tokens of an answer that the model can give, by the catalog; None if that is unknown.
        files: the access to the files of the messages.
    """

    model: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    options: ModelOptions = attrs.field(factory=ModelOptions)
    answer_schema: Mapping[str, Any] | None = None
    tokens_left: int | None = None
    session_id: str | None = None
    max_output: int | None = None
    files: Files = NO_FILES

    def answer_cap(self, most: int) -> int | None:
        """Return the cap of the answer to send: the smaller of the option and of `tokens_left`; None for no cap.

        Args:
            most: tokens of an answer that the model can give for certain. Models refuse a cap above their own limit,
                so without `max_tokens` a budget that leaves more than `most` gives no cap.
        """
        left, own = self.tokens_left, self.options.max_tokens
        return left if left is not None and left < (own or most) else own


def joined(parts: Iterable[str]) -> str:
    """Join the parts of a text. A character that two parts have as a pair of surrogates becomes whole.

    A lone surrogate becomes U+FFFD, so that UTF-8 can hold the text.
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


@value
class Repaired:
    """The change to a request that its server refused, and that goes out once more.

    Attributes:
        action: what was done.
        what: the part of the request, such as "an image" or "`stream_options`".
        why: the server's own words, shortened.
        usage: the tokens that the server has counted for the refused request; None if it told none. They are charged.
    """

    action: RepairAction
    what: str
    why: str
    usage: Usage | None = None


Emitted = Piece | Repaired
"""The values that a provider emits during a call."""


@define
class WholePieces:
    """Passes pieces on with whole characters: a high surrogate at the end waits for the next piece.

    Attributes:
        emit: called with each piece.
    """

    emit: Callable[[Emitted], None]
    _halves: dict[type[Piece], str] = attrs.field(factory=dict)

    def __call__(self, piece: Emitted) -> None:
        """Take the next piece. Values of other kinds are passed on unchanged."""
        kind = type(piece)
        if (
            isinstance(piece, Repaired)
            or kind not in (TextPiece, ReasoningPiece)
            or (not self._halves and piece.text.isascii())
        ):
            self.emit(piece)
            return
        text = self._halves.pop(kind, "") + piece.text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._halves[kind], text = text[-1], text[:-1]
        if text:
            self.emit(kind(joined([text])))

    def end(self) -> None:
        """Pass on the surrogates that still wait. Call it after the last piece."""
        for kind, half in self._halves.items():
            self.emit(kind(joined([half])))
        self._halves.clear()


@value
class ModelReply:
    """The whole answer, after its last piece.

    Attributes:
        message: the answer.
        usage: its tokens.
        files: the bytes of the file blocks of the message, in their order. The runtime stores them, and puts their
            references into the blocks.
    """

    message: AssistantMessage
    usage: Usage
    files: tuple[File, ...] = ()


class Provider(Protocol):
    """Calls the models of one vendor or server. One instance serves many sessions at once.

    A provider that a program brings may have an attribute `kinds`, a frozenset of the kinds of attachments that it
    sends on; without it prompts with attachments are refused. It reads their bytes by `request.files.read`.

    In a program on asyncio it runs on the program's loop, unless its attribute `loop` is "trio".
    """

    async def complete(self, request: ModelRequest, emit: Callable[[Emitted], None]) -> ModelReply:
        """Call the model, pass every piece to `emit` as it arrives, and return the whole answer.

        Two pieces may have a half each of one character that JSON escapes: the runtime joins them.

        A provider that changes a refused request and sends it once more says so by a `Repaired`.

        Do not retry: the runtime does, by the error's `retryable` and `retry_after`. If the call is cancelled, close
        its connection at once.

        Args:
            request: the request.
            emit: takes a piece, on the event loop.

        Raises:
            ProviderError: if the call failed.
        """


def _takes_all(_options: ModelOptions) -> None:
    """Refuse nothing."""


def _is_ready() -> None:
    """Miss nothing."""


@value
class ModelChoice:
    """A resolved model.

    Attributes:
        provider: its provider.
        model: the provider's own name of the model.
        name: the name of the provider, for the metrics.
        check: raises InvalidParamsError that names the option if the model cannot be called with these options.
        kinds: the kinds of attachments that it takes; None leaves that to the catalog.
        server: the address of its server, for traces; None if it has none.
        check_ready: raises ProviderError if a setting is missing without which no call can succeed, such as a key.
        lasts: whether the name resolves to the same provider for as long as the runtime lives.
    """

    provider: Provider
    model: str
    name: str = ""
    check: Callable[[ModelOptions], None] = _takes_all
    kinds: frozenset[Kind] | None = None
    server: str | None = attrs.field(default=None, repr=False)  # a URL may contain a password
    check_ready: Callable[[], None] = _is_ready
    lasts: bool = True


@runtime_checkable
class Waits(Protocol):
    """Providers that keep calls back while a server wants none."""

    def waiting(self) -> Mapping[str, int]:
        """Return the numbers of calls that wait for rate limits, by the names of the providers."""


class Providers(Protocol):
    """Finds the provider of a model by the model's name. A provider's name, if given, decides instead."""

    def resolve(self, model: str, provider: str | None) -> ModelChoice:
        """Return the provider to call.

        Raises:
            InvalidParamsError: if the model or the provider is unknown; the path is `model` or `provider`.
        """

    def add(self, name: str, provider: Provider) -> None:
        """Take in a provider of the program's own."""
