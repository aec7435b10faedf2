"""The model that follows a script: for tests, demonstrations and load."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final, cast

import attrs
import trio

from warren import codec
from warren.errors import InvalidParamsError, ProviderCause, ProviderError
from warren.fields import FieldValueError, not_negative, positive
from warren.messages import AssistantMessage, Block, Message, ReasoningBlock, StopReason, TextBlock, ToolUseBlock
from warren.model import ModelReply, ModelRequest, Piece, ReasoningPiece, TextPiece
from warren.structured.output import asked_at
from warren.transport.providers.echo import last_words, tokens, words
from warren.usage import Usage

MAX_SCRIPT: Final = 16 * 1024 * 1024


@attrs.frozen
class ScriptedCall:
    """A tool call of a step.

    Attributes:
        name: the tool.
        args: its arguments.
        invalid_args: what the model sends in their place, where it shall send no JSON object.
        id: the call's id; None makes one. From the second round of a looping script on, the round is added to it.
    """

    name: str
    args: Mapping[str, Any] = attrs.field(factory=dict)
    invalid_args: str | None = None
    id: str | None = None


@attrs.frozen
class ScriptedError:
    """How a step fails, after its pieces.

    Attributes:
        message: one sentence for a person.
        cause: the finer reason, as in ProviderError.
        retryable: whether the call is worth another try.
        retry_after: the wait that the provider asks for, in seconds.
        times: calls of this step that fail before one succeeds, counted over all sessions of the provider; None
            fails every one.
    """

    message: str = "the script says so"
    cause: str = "scripted"
    retryable: bool = False
    retry_after: float | None = attrs.field(default=None, validator=not_negative)
    times: int | None = attrs.field(default=None, validator=positive)


@attrs.frozen
class ScriptedStep:
    """One model call: first `delay`, then the reasoning, the text, and the error or the tool calls.

    Attributes:
        text: the answer, streamed word by word.
        chunks: the answer in the pieces it shall arrive in, in place of `text`.
        reasoning: what the model thinks aloud, in one piece.
        tool_calls: the tools it asks for.
        error: the failure that ends the call.
        delay: seconds before the first piece.
        chunk_delay: seconds between two pieces of the text.
        stop_reason: why the model stops; None: `tool_use` with tool calls, else `end_turn`.
        usage: the tokens it reports; None counts four characters a token, of the last message and of the answer.
        structured: what it answers where this step's answer is asked for as data, attempt by attempt; without any, and
            after the last one, with the text of the step.
    """

    text: str = ""
    chunks: tuple[str, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    error: ScriptedError | None = None
    delay: float = attrs.field(default=0.0, validator=not_negative)
    chunk_delay: float = attrs.field(default=0.0, validator=not_negative)
    stop_reason: StopReason | None = None
    usage: Usage | None = None
    structured: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Refuse two answers in one step."""
        if self.text and self.chunks:
            raise FieldValueError("chunks", "cannot be given together with text")

    @property
    def pieces(self) -> Sequence[str]:
        """The text as it arrives."""
        return self.chunks or words(self.text)


def _not_empty(_instance: object, attribute: "attrs.Attribute[Any]", value: Sequence[object]) -> None:
    if not value:
        raise FieldValueError(attribute.name, "must not be empty")


@attrs.frozen
class Script:
    """What the model does, call by call; as JSON an object with the names of these attributes.

    `{"loop": true, "steps": [{"text": "hello", "chunk_delay": 0.05}, {"tool_calls": [{"name": "now"}]}]}`

    Attributes:
        steps: one a model call; a turn that uses tools takes several.
        loop: whether it begins again after the last step; else every call past the end fails.
    """

    steps: tuple[ScriptedStep, ...] = attrs.field(validator=_not_empty)
    loop: bool = False


@attrs.frozen
class ScriptedProvider:
    """Plays a script to every session by itself: the step is the number of assistant messages in the transcript.

    So one provider serves many sessions at once, and a session goes on where it stood after a restart. An interrupted
    answer with text in it counts as one. Delays wait on trio's clock. The model's name makes no difference.
    """

    script: Script
    _failures: dict[int, int] = attrs.field(factory=dict, repr=False, eq=False)

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Play the session's next step. Raises ProviderError where the script says so or has ended."""
        number = _answers(request.messages)
        if request.answer_schema is not None and (asked := asked_at(request.messages)) is not None:
            return await self._data(request, asked, emit)
        step = self._step(number)
        await trio.sleep(step.delay)
        await _play(step, emit)
        self._fail(number, step.error)
        round_, _ = divmod(number, len(self.script.steps))
        blocks = tuple(_blocks(step, _calls(step.tool_calls, number, round_)))
        stop_reason = step.stop_reason or ("tool_use" if step.tool_calls else "end_turn")
        usage = step.usage or _count(request.messages, blocks)
        return ModelReply(AssistantMessage(blocks, stop_reason), usage)

    async def _data(self, request: ModelRequest, asked: int, emit: Callable[[Piece], None]) -> ModelReply:
        """Answer the question for data after a step: it takes as long as the step, and does not fail."""
        number = max(0, _answers(request.messages[:asked]) - 1)
        step, attempt = self._step(number), _answers(request.messages[asked:])
        await trio.sleep(step.delay)
        text = step.structured[attempt] if attempt < len(step.structured) else "".join(step.pieces)
        emit(TextPiece(text))
        blocks = (TextBlock(text),)
        return ModelReply(AssistantMessage(blocks), step.usage or _count(request.messages, blocks))

    def _step(self, number: int) -> ScriptedStep:
        steps = self.script.steps
        if number < len(steps) or self.script.loop:
            return steps[number % len(steps)]
        raise ProviderError(f"the script ended after {len(steps)} steps", cause="script_ended", retryable=False)

    def _fail(self, number: int, error: ScriptedError | None) -> None:
        position = number % len(self.script.steps)
        failed = self._failures.get(position, 0)
        if error is None or (error.times is not None and failed >= error.times):
            return
        self._failures[position] = failed + 1
        # A script may name a cause that is not listed, as a provider of a newer version may.
        cause = cast("ProviderCause", error.cause)
        raise ProviderError(error.message, cause=cause, retryable=error.retryable, retry_after=error.retry_after)


def _answers(messages: Iterable[Message]) -> int:
    return sum(isinstance(message, AssistantMessage) for message in messages)


def load_script(path: Path) -> Script:
    """Read a script from a JSON file. Raises InvalidParamsError (path `$.model`) naming the file and the bad field."""
    try:
        return codec.from_data(Script, codec.parse(_read(path)))
    except (OSError, ValueError, InvalidParamsError) as exc:
        problem = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise InvalidParamsError(f"$.model: script {path}: {problem}", path="$.model") from None


def _read(path: Path) -> bytes:
    """Return a file's content; whoever names it may be a client, and a device or a pipe would never end."""
    status = path.stat()
    if not S_ISREG(status.st_mode):
        raise ValueError("is not a plain file")
    if status.st_size > MAX_SCRIPT:
        raise ValueError(f"is larger than {MAX_SCRIPT} bytes")
    return path.read_bytes()


async def _play(step: ScriptedStep, emit: Callable[[Piece], None]) -> None:
    if step.reasoning:
        emit(ReasoningPiece(step.reasoning))
    for position, piece in enumerate(step.pieces):
        if position and step.chunk_delay:
            await trio.sleep(step.chunk_delay)
        emit(TextPiece(piece))


def _blocks(step: ScriptedStep, calls: Iterable[ToolUseBlock]) -> Iterator[Block]:
    if step.reasoning:
        yield ReasoningBlock(step.reasoning)
    if text := "".join(step.pieces):
        yield TextBlock(text)
    yield from calls


def _calls(calls: Sequence[ScriptedCall], number: int, round_: int) -> Iterator[ToolUseBlock]:
    """Yield the tool calls with ids that no other step of the transcript has."""
    for position, call in enumerate(calls):
        own = f"{call.id}-{round_ + 1}" if call.id and round_ else call.id
        args = {} if call.invalid_args is not None else call.args
        yield ToolUseBlock(own or f"call-{number}-{position}", call.name, args, call.invalid_args)


def _count(messages: Sequence[Message], blocks: Iterable[Block]) -> Usage:
    said = sum(tokens(_written(block)) for block in blocks)
    return Usage(input_tokens=tokens(last_words(messages)), output_tokens=said)


def _written(block: Block) -> str:
    if isinstance(block, ToolUseBlock):
        return block.invalid_args or codec.encode(block.args).decode()
    return block.text if isinstance(block, TextBlock | ReasoningBlock) else ""
