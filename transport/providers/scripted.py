"""A model that follows a script, for tests, demonstrations and load."""

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from stat import S_ISREG
from typing import Any, ClassVar, Final, cast

import attrs
import trio

from warren.base.errors import InvalidParamsError, ProviderCause, ProviderError
from warren.base.fields import FieldValueError, not_negative, positive
from warren.base.values import define, frozen
from warren.conversation import codec
from warren.conversation.attachments import ANY_KIND, Attachment, File, Kind
from warren.conversation.messages import (
    REFUSED,
    AssistantMessage,
    Block,
    ContextMessage,
    FileBlock,
    Message,
    ReasoningBlock,
    StopReason,
    TextBlock,
    ToolUseBlock,
)
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece, ReasoningPiece, TextPiece
from warren.models.tools import Loop
from warren.structured.output import asked_at
from warren.transport.providers.echo import last_words, tokens, words

MAX_SCRIPT: Final = 16 * 1024 * 1024
LONGEST_SHOWN: Final = 200
"""Characters of a part of a request that a message quotes."""


@frozen
class ScriptedCall:
    """A tool call of a step.

    Attributes:
        name: the tool.
        args: its arguments.
        invalid_args: a text that the model sends in place of a JSON object.
        id: the id of the call; None makes one. In a looping script the number of the round is added from the second on.
    """

    name: str
    args: Mapping[str, Any] = attrs.field(factory=dict)
    invalid_args: str | None = None
    id: str | None = None


@frozen
class ScriptedError:
    """The failure of a step, after its pieces.

    Attributes:
        message: one sentence for a person.
        cause: the finer reason, as in ProviderError.
        retryable: whether a retry may succeed.
        retry_after: seconds that the provider asks to wait.
        times: number of calls of this step that fail before one succeeds, over all sessions of the provider; None
            fails all of them.
    """

    message: str = "the script says so"
    cause: str = "scripted"
    retryable: bool = False
    retry_after: float | None = attrs.field(default=None, validator=not_negative)
    times: int | None = attrs.field(default=None, validator=positive)


@frozen
class ScriptedRequest:
    """The part of a request that is new since the answer before.

    Attributes:
        messages: the messages since that answer.
        tools: the names of the tools.
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: ModelRequest) -> "ScriptedRequest":
        """Return the new part of a request."""
        new = list[Mapping[str, Any]]()
        for at in range(len(request.messages) - 1, -1, -1):
            if isinstance(message := request.messages[at], AssistantMessage):
                break
            new.append(codec.parse(codec.encode(message)))
        return cls(tuple(reversed(new)), tuple(tool.name for tool in request.tools))

    def difference(self, other: "ScriptedRequest") -> str | None:
        """Return the first difference of another request, for a person; None if it is equal."""
        for name, own, theirs in (("messages", self.messages, other.messages), ("tools", self.tools, other.tools)):
            for at, (old, new) in enumerate(zip_longest(own, theirs)):
                if old != new:
                    return f"{name}[{at}] is {_shown(new)}, and was {_shown(old)}"
        return None


@frozen
class ScriptedStep:
    """One model call: first `delay`, then the reasoning, the text, and the error or the tool calls.

    Attributes:
        text: the answer, streamed word by word.
        chunks: the answer as a list of pieces, instead of `text`.
        reasoning: the reasoning of the model, in one piece.
        tool_calls: the tool calls.
        error: the failure that ends the call.
        delay: seconds before the first piece.
        chunk_delay: seconds between two pieces of the text.
        stop_reason: the stop reason; None is `tool_use` if there are tool calls, else `end_turn`.
        usage: the token counts; None counts the last message and the answer, at four characters a token.
        request: what was new in the request that the answer was recorded for: its messages since the answer before, and
            the names of its tools. Only a strict script looks at it.
        files: the files that the model makes, such as pictures; their order is that behind the text.
        structured: the answers to requests for this step's answer as data, one for each attempt; further attempts get
            the text of the step.
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
    request: "ScriptedRequest | None" = None
    files: tuple[File, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Raise FieldValueError if a step has both `text` and `chunks`."""
        if self.text and self.chunks:
            raise FieldValueError("chunks", "cannot be given together with text")

    @property
    def pieces(self) -> Sequence[str]:
        """The pieces of the text."""
        return self.chunks or words(self.text)


def _not_empty(_instance: object, attribute: "attrs.Attribute[Any]", value: Sequence[object]) -> None:
    if not value:
        raise FieldValueError(attribute.name, "must not be empty")


@frozen
class Script:
    """The steps of a model; its JSON is an object with the names of these attributes.

    `{"loop": true, "steps": [{"text": "hello", "chunk_delay": 0.05}, {"tool_calls": [{"name": "now"}]}]}`

    Attributes:
        steps: one step for each model call; a turn with tool calls takes several.
        loop: whether the script begins again after its last step; if not, calls past the end fail.
        strict: whether a call fails if its request is not the one that its step was recorded for.
    """

    steps: tuple[ScriptedStep, ...] = attrs.field(validator=_not_empty)
    loop: bool = False
    strict: bool = False


Steps = Sequence[ScriptedStep | Sequence[ScriptedStep]]
"""The steps of a model: one for each of its answers. A list is one answer of several parts."""


def say(
    text: str = "",
    *,
    data: object = None,
    chunks: Sequence[str] = (),
    reasoning: str = "",
    files: Sequence[File] = (),
    delay: float = 0.0,
    chunk_delay: float = 0.0,
    stop_reason: StopReason | None = None,
    usage: Usage | None = None,
) -> ScriptedStep:
    """Return the step of a model that answers with a text.

    Args:
        text: the answer, streamed word by word.
        data: the answer to the request for data after it, if the turn has an output schema: a value that JSON can hold,
            or an instance of an attrs class. Without a text it is the text as well.
        chunks: the answer as a list of pieces, instead of `text`.
        reasoning: the reasoning of the model, in one piece.
        files: the files that the model makes.
        delay: seconds before the first piece.
        chunk_delay: seconds between two pieces of the text.
        stop_reason: the stop reason; None is `end_turn`, or `tool_use` beside a `call`.
        usage: the token counts; None counts four characters as a token.

    Raises:
        FieldValueError: if both `text` and `chunks` are given, or a delay is negative.
    """
    structured = () if data is None else (codec.encode(data).decode(),)
    said = text or ("" if chunks or not structured else structured[0])
    return ScriptedStep(
        said,
        chunks=tuple(chunks),
        reasoning=reasoning,
        files=tuple(files),
        delay=delay,
        chunk_delay=chunk_delay,
        stop_reason=stop_reason,
        usage=usage,
        structured=structured,
    )


def call(name: str, /, **args: Any) -> ScriptedStep:
    """Return the step of a model that calls a tool with these arguments.

    Several calls of one answer are a list: `[call("dig", where="here"), call("dig", where="there")]`. To set the id of
    a call or to play broken JSON, write `ScriptedStep(tool_calls=(ScriptedCall(…),))`.
    """
    return ScriptedStep(tool_calls=(ScriptedCall(name, args),))


def fail(
    message: str = "the script says so",
    *,
    cause: str = "scripted",
    retryable: bool = False,
    retry_after: float | None = None,
    times: int | None = None,
) -> ScriptedStep:
    """Return the step of a model whose call fails with a ProviderError.

    Args:
        message: the text of the error.
        cause: its cause; `bad_request` means that the prompt is refused.
        retryable: whether the runtime calls the model again.
        retry_after: seconds that the model asks to wait before that.
        times: number of calls of this step that fail before one succeeds; None fails all. The answer that then comes is
            beside it in a list: `[fail(retryable=True, times=2), say("Here I am.")]`.

    Raises:
        FieldValueError: if `retry_after` is negative, or `times` is below 1.
    """
    return ScriptedStep(error=ScriptedError(message, cause, retryable, retry_after, times))


@define(eq=False, init=False)
class ScriptedModel:
    """A model that plays a script to each session: the number of the model's answers in the context is the step.

    So one model serves many sessions at once, and a session continues at the same step after a restart. An interrupted
    answer with text counts. Delays use trio's clock. The model's name is ignored.

    `ScriptedModel([call("dig", where="here"), say("Dug.")])` calls a tool, and answers once it has the result.

    Attributes:
        script: its steps.
        requests: copies of the requests so far, of all sessions, oldest first.
    """

    kinds: ClassVar[frozenset[Kind]] = ANY_KIND
    loop: ClassVar[Loop] = "trio"
    script: Script
    requests: list[ModelRequest] = attrs.field(repr=False)
    _keeps: bool = attrs.field(repr=False)
    _failures: dict[int, int] = attrs.field(repr=False)

    def __init__(
        self, steps: Steps | Script, *, loop: bool = False, strict: bool = False, keep_requests: bool = True
    ) -> None:
        """Make a model.

        Args:
            steps: what it does, answer by answer: `say`, `call`, `fail`, a list of them for an answer of several parts,
                or a whole script.
            loop: whether the script begins again after its last step; if not, calls past the end fail with the cause
                `script_ended`. A script may say so itself.
            strict: whether a call fails if its request is not the one that its step was recorded for. A script may say
                so itself.
            keep_requests: whether `requests` is filled. A model that serves for long leaves that out.

        Raises:
            FieldValueError: if there is no step, a step is none, or the parts of one do not go together.
        """
        script = (
            steps if isinstance(steps, Script) else Script(tuple(_step_of(at, each) for at, each in enumerate(steps)))
        )
        self.script = attrs.evolve(script, loop=script.loop or loop, strict=script.strict or strict)
        self.requests = []
        self._keeps = keep_requests
        self._failures = {}

    @classmethod
    def from_file(
        cls, path: Path | str, *, loop: bool = False, strict: bool = False, keep_requests: bool = True
    ) -> "ScriptedModel":
        """Return the model of a script in a file, such as one that `warren record` has written.

        Raises InvalidParamsError with the file and the bad field. See `__init__` for the arguments.
        """
        return cls(load_script(Path(path)), loop=loop, strict=strict, keep_requests=keep_requests)

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Play the next step of the session. Raises ProviderError if the step fails or the script has ended."""
        if self._keeps:
            self.requests.append(attrs.evolve(request, messages=tuple(request.messages)))  # the context goes on growing
        number = _answers(request.messages)
        if request.answer_schema is not None and (asked := asked_at(request.messages)) is not None:
            return await self._data(request, asked, emit)
        step = self._step(number)
        self._compare(number, step, request)
        await trio.sleep(step.delay)
        await _play(step, emit)
        self._fail(number, step.error)
        round_, _ = divmod(number, len(self.script.steps))
        blocks = tuple(_blocks(step, _calls(step.tool_calls, number, round_)))
        stop_reason = step.stop_reason or ("tool_use" if step.tool_calls else "end_turn")
        usage = step.usage or _count(request.messages, blocks)
        return ModelReply(AssistantMessage(blocks, stop_reason), usage, step.files)

    async def _data(self, request: ModelRequest, asked: int, emit: Callable[[Piece], None]) -> ModelReply:
        """Answer the request for data after a step: with the delay of the step, and without its failure."""
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

    def _compare(self, number: int, step: ScriptedStep, request: ModelRequest) -> None:
        if not self.script.strict or step.request is None:
            return
        differs = step.request.difference(ScriptedRequest.of(request))
        if differs is not None:
            problem = f"the request of step {number + 1} is not the recorded one: {differs}"
            raise ProviderError(problem, cause="scripted", retryable=False)

    def _fail(self, number: int, error: ScriptedError | None) -> None:
        position = number % len(self.script.steps)
        failed = self._failures.get(position, 0)
        if error is None or (error.times is not None and failed >= error.times):
            return
        self._failures[position] = failed + 1
        # A script may name a cause that is not listed, as a provider of a newer version may.
        cause = cast("ProviderCause", error.cause)
        raise ProviderError(error.message, cause=cause, retryable=error.retryable, retry_after=error.retry_after)


def _step_of(at: int, given: object) -> ScriptedStep:
    """Return a step of a model. Raises FieldValueError if it is none."""
    if isinstance(given, ScriptedStep):
        return given
    parts = list[ScriptedStep]()
    for part in given if isinstance(given, Sequence) and not isinstance(given, str) else (given,):
        if not isinstance(part, ScriptedStep):
            shown = f"{type(part).__name__} ({reprlib.repr(part)})"
            raise FieldValueError(f"steps[{at}]", f"is a value of type {shown}: write say(…), call(…) or fail(…)")
        parts.append(part)
    return _joined(at, parts)


def _joined(at: int, parts: Sequence[ScriptedStep]) -> ScriptedStep:
    """Return one step of several parts: their calls and files one after the other, and what only one of them has."""
    found = dict[str, Any]()
    for field in attrs.fields(ScriptedStep):
        given = [value for part in parts if (value := getattr(part, field.name)) != field.default]
        if len(given) > 1 and field.name not in ("tool_calls", "files"):
            raise FieldValueError(
                f"steps[{at}]", f"has {field.name} twice: an answer has one, further answers are steps"
            )
        if given:
            found[field.name] = sum(given, ()) if len(given) > 1 else given[0]
    return ScriptedStep(**found)


def _shown(part: object) -> str:
    text = "missing" if part is None else codec.encode(part).decode()
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def _answers(messages: Iterable[Message]) -> int:
    return sum(
        isinstance(message, AssistantMessage) or (isinstance(message, ContextMessage) and message.source == REFUSED)
        for message in messages
    )


def load_script(path: Path) -> Script:
    """Read a script from a JSON file. Raises InvalidParamsError, path `$.model`, with the file and the bad field."""
    try:
        return codec.from_data(Script, codec.parse_file(_read(path)))
    except (OSError, ValueError, InvalidParamsError) as exc:
        problem = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise InvalidParamsError.at("$.model", f"script {path}: {problem}") from None


def _read(path: Path) -> bytes:
    """Return the content of a regular file: a client may have named a device or a pipe, which may never end."""
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
    yield from (FileBlock(Attachment(file.media_type or "")) for file in step.files)
    yield from calls


def _calls(calls: Sequence[ScriptedCall], number: int, round_: int) -> Iterator[ToolUseBlock]:
    """Yield the tool calls, under ids that no other step of the transcript has."""
    for position, call in enumerate(calls):
        own = f"{call.id}-{round_ + 1}" if call.id and round_ else call.id
        args = {} if call.invalid_args is not None else call.args
        yield ToolUseBlock(own or f"call-{number}-{position}", call.name, args, call.invalid_args)


def _count(messages: Sequence[Message], blocks: Iterable[Block]) -> Usage:
    output = sum(tokens(_written(block)) for block in blocks)
    return Usage(input_tokens=tokens(last_words(messages)), output_tokens=output)


def _written(block: Block) -> str:
    if isinstance(block, ToolUseBlock):
        return block.invalid_args or codec.encode(block.args).decode()
    return block.text if isinstance(block, TextBlock | ReasoningBlock) else ""
