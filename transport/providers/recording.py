"""Records the answers of models as scripts, which `scripted:FILE` plays: for tests that run offline on real answers."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from warren import codec
from warren.errors import InvalidParamsError, ProviderError
from warren.messages import ReasoningBlock
from warren.model import ModelChoice, ModelReply, ModelRequest, Piece, Provider, Providers, TextPiece, Waits
from warren.transport.providers.scripted import Script, ScriptedCall, ScriptedError, ScriptedStep
from warren.values import define, frozen

NO_SESSION: Final = ""

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class Recorder:
    """Writes the answers of each session into a script of its own: FILE, then FILE with `.2` before its ending.

    A file has the answers alone: words, pieces, calls of tools, counts and errors. It has no requests, headers or keys.
    If one cannot be written, the recording ends, and the turns go on.

    Attributes:
        path: the file of the first session. No file may be there yet.
    """

    path: Path
    _steps: dict[str, list[ScriptedStep]] = attrs.field(factory=dict)
    _failed: dict[str, ScriptedError] = attrs.field(factory=dict)
    _numbers: dict[str, int] = attrs.field(factory=dict)
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
            raise InvalidParamsError(f"$.record: {self.path}: {problem}", path="$.record")

    async def answered(self, request: ModelRequest, pieces: list[str], reply: ModelReply) -> None:
        """Record an answer. An answer as data belongs to the step before it."""
        session = request.session_id or NO_SESSION
        steps, message = self._steps.setdefault(session, []), reply.message
        if request.answer_schema is not None and steps:
            steps[-1] = attrs.evolve(steps[-1], structured=(*steps[-1].structured, message.text))
        else:
            whole = "".join(pieces) == message.text
            steps.append(
                ScriptedStep(
                    text="" if whole else message.text,
                    chunks=tuple(pieces) if whole else (),
                    reasoning="".join(each.text for each in message.blocks if isinstance(each, ReasoningBlock)),
                    tool_calls=tuple(
                        ScriptedCall(call.name, call.args, call.invalid_args, call.id) for call in message.tool_calls
                    ),
                    error=self._failed.pop(session, None),
                    stop_reason=message.stop_reason,
                    usage=attrs.evolve(reply.usage, cost=None),
                )
            )
        await self._write(session)

    async def failed(self, request: ModelRequest, error: ProviderError) -> None:
        """Record a failure: of the step that follows if the call is made again, else of a step of its own."""
        session = request.session_id or NO_SESSION
        before = self._failed.get(session)
        times = 1 if before is None else (before.times or 0) + 1
        said = ScriptedError(error.message, error.cause or "scripted", bool(error.retryable), error.retry_after, times)
        self._failed[session] = said
        await self._write(session)

    async def _write(self, session: str) -> None:
        """Write the script of a session anew, on a thread; a cancelled turn is recorded all the same."""
        number = self._numbers.setdefault(session, len(self._numbers) + 1)
        path = self.path if number == 1 else self.path.with_name(f"{self.path.stem}.{number}{self.path.suffix}")
        with trio.CancelScope(shield=True):
            async with self._writing:
                if self._ended:
                    return
                steps = [*self._steps.get(session, ())]
                if session in self._failed:
                    steps.append(ScriptedStep(error=attrs.evolve(self._failed[session], times=None)))
                try:
                    await trio.to_thread.run_sync(_put, path, steps)
                except OSError as exc:
                    self._ended = True
                    logger.error("the recording ends, as %s cannot be written: %s", path, exc)  # noqa: TRY400


def _put(path: Path, steps: list[ScriptedStep]) -> None:
    """Write a script beside its place first, so that a reader never finds half of it."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(codec.encode(Script(tuple(steps))) + b"\n")
    beside.replace(path)


@frozen
class RecordedProvider:
    """A provider whose answers are recorded."""

    provider: Provider
    recorder: Recorder

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Call the model; see `warren.model.Provider`."""
        pieces: list[str] = []

        def heard(piece: Piece) -> None:
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
    recorder: Recorder

    def resolve(self, model: str, provider: str | None) -> ModelChoice:
        """Return the provider to call; see `warren.model.Providers`."""
        choice = self.providers.resolve(model, provider)
        return attrs.evolve(choice, provider=RecordedProvider(choice.provider, self.recorder))

    def waiting(self) -> Mapping[str, Any]:
        """Return the numbers of calls that wait; see `warren.model.Waits`."""
        return self.providers.waiting() if isinstance(self.providers, Waits) else {}
