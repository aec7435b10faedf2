"""Records the answers of models as scripts, which `scripted:FILE` plays: for tests that run offline on real answers."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from warren.base.errors import InvalidParamsError, ProviderError
from warren.base.values import define, frozen
from warren.conversation import codec
from warren.conversation.messages import ReasoningBlock
from warren.models.model import Emitted, ModelChoice, ModelReply, ModelRequest, Provider, Providers, TextPiece, Waits
from warren.transport.providers.scripted import ScriptedCall, ScriptedError, ScriptedRequest, ScriptedStep

NO_SESSION: Final = ""

logger: Final = logging.getLogger(__name__)


HEAD: Final = b'{"steps":['
TAIL: Final = b"]}\n"


@define
class _Tape:
    """The script of one session on the disk: each answer is added at its end, however long it is.

    The newest step may still change, as an answer as data belongs to the step before it; a failure waits behind it for
    the step of the call that is made again.

    Attributes:
        path: the file.
        step: the newest step; None before the first.
        failed: the failure behind it, with the number of its calls.
    """

    path: Path
    step: ScriptedStep | None = None
    failed: ScriptedError | None = None
    _begin: int = len(HEAD)  # place of the newest step, with the comma before it
    _there: bool = False

    def add(self, step: ScriptedStep) -> None:
        """Add a step behind the newest one, which does not change any more."""
        if self.step is not None:
            self._begin += len(self._bytes_of(self.step))
        self.step = step

    def write(self) -> None:
        """Write the end of the file: it is a whole script after each call. Raises OSError."""
        end = b"" if self.step is None else self._bytes_of(self.step)
        if self.failed is not None:
            step = codec.encode(ScriptedStep(error=attrs.evolve(self.failed, times=None)))
            end += (b"," if self.step is not None else b"") + step
        if not self._there:
            self.path.write_bytes(HEAD + end + TAIL)
            self._there = True
            return
        with self.path.open("r+b", buffering=0) as file:
            file.seek(self._begin)
            file.write(end + TAIL)  # in one call, so that a process that is killed leaves the old end or the new one
            file.truncate()

    def _bytes_of(self, step: ScriptedStep) -> bytes:
        return (b"," if self._begin > len(HEAD) else b"") + codec.encode(step)


@define(eq=False)
class AnswerRecorder:
    """Writes the answers of each session into a script of its own: FILE, then FILE with `.2` before its ending.

    A file has the answers: words, pieces, files, calls of tools, counts and errors; and beside each the new messages
    of its request, and the names of its tools. It has no headers or keys.
    If one cannot be written, the recording ends, and the turns go on.

    Attributes:
        path: the file of the first session. No file may be there yet.
    """

    path: Path
    _tapes: dict[str, _Tape] = attrs.field(factory=dict)
    _writing: trio.Lock = attrs.field(factory=trio.Lock)
    _ended: bool = False

    def __attrs_post_init__(self) -> None:
        """Refuse a file that exists, or that cannot be made. Raises InvalidParamsError, path `$.record`."""
        problem = None
        if self.path.exists():
            problem = "exists already"
        elif not self.path.parent.is_dir():
            problem = "its folder does not exist"
        if problem is not None:
            raise InvalidParamsError.at("$.record", f"{self.path}: {problem}")

    async def answered(self, request: ModelRequest, pieces: list[str], reply: ModelReply) -> None:
        """Record an answer. An answer as data belongs to the step before it."""
        message = reply.message
        whole = "".join(pieces) == message.text
        step = ScriptedStep(
            text="" if whole else message.text,
            chunks=tuple(pieces) if whole else (),
            reasoning="".join(each.text for each in message.blocks if isinstance(each, ReasoningBlock)),
            tool_calls=tuple(
                ScriptedCall(call.name, call.args, call.invalid_args, call.id) for call in message.tool_calls
            ),
            stop_reason=message.stop_reason,
            usage=attrs.evolve(reply.usage, cost=None),
            request=ScriptedRequest.of(request),
            files=reply.files,
        )

        def change(tape: _Tape) -> None:
            before = tape.step
            if request.answer_schema is not None and before is not None:
                tape.step = attrs.evolve(before, structured=(*before.structured, message.text))
            else:
                tape.add(attrs.evolve(step, error=tape.failed))
                tape.failed = None

        await self._write(request, change)

    async def failed(self, request: ModelRequest, error: ProviderError) -> None:
        """Record a failure: of the step that follows if the call is made again, else of a step of its own."""

        def change(tape: _Tape) -> None:
            times = 1 if tape.failed is None else (tape.failed.times or 0) + 1
            cause, again = error.cause or "scripted", bool(error.retryable)
            tape.failed = ScriptedError(error.message, cause, again, error.retry_after, times)

        await self._write(request, change)

    async def _write(self, request: ModelRequest, change: Callable[[_Tape], None]) -> None:
        """Change the script of a session, on a thread; a cancelled turn is recorded all the same."""
        session = request.session_id or NO_SESSION
        tape = self._tapes.get(session)
        if tape is None:
            number = len(self._tapes) + 1
            path = self.path if number == 1 else self.path.with_name(f"{self.path.stem}.{number}{self.path.suffix}")
            tape = self._tapes[session] = _Tape(path)
        # Shielded: without the step of an interrupted turn, a replay would answer the next turn with it.
        with trio.CancelScope(shield=True):
            async with self._writing:
                if self._ended:
                    return
                change(tape)
                try:
                    await trio.to_thread.run_sync(tape.write)
                except OSError as exc:
                    self._ended = True
                    logger.error("the recording ends, as %s cannot be written: %s", tape.path, exc)  # noqa: TRY400


@frozen
class RecordedProvider:
    """A provider whose answers are recorded."""

    provider: Provider
    recorder: AnswerRecorder

    async def complete(self, request: ModelRequest, emit: Callable[[Emitted], None]) -> ModelReply:
        """Call the model; see `warren.models.model.Provider`."""
        pieces: list[str] = []

        def heard(piece: Emitted) -> None:
            if isinstance(piece, TextPiece):
                pieces.append(piece.text)
            emit(piece)

        try:
            reply = await self.provider.complete(request, heard)
        except ProviderError as exc:
            await self.recorder.failed(request, exc)
            raise
        await self.recorder.answered(request, pieces, reply)
        return reply


@frozen
class RecordedProviders:
    """The providers of a runtime, with a recorder between them and the runtime."""

    providers: Providers
    recorder: AnswerRecorder

    def resolve(self, model: str, provider: str | None) -> ModelChoice:
        """Return the provider to call; see `warren.models.model.Providers`."""
        choice = self.providers.resolve(model, provider)
        return attrs.evolve(choice, provider=RecordedProvider(choice.provider, self.recorder))

    def add(self, name: str, provider: Provider) -> None:
        """Take in a provider of the program's own."""
        self.providers.add(name, provider)

    def waiting(self) -> Mapping[str, Any]:
        """Return the numbers of calls that wait; see `warren.models.model.Waits`."""
        return self.providers.waiting() if isinstance(self.providers, Waits) else {}
