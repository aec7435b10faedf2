"""A runtime in the tester's process, without a connection: the figures are those of the runtime alone."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Final

import trio

from warren.base.values import frozen
from warren.calls.facade import SessionService
from warren.conversation.messages import AssistantMessage, Message, TextBlock, ToolUseBlock, UserMessage
from warren.conversation.options import CompactionConfig
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece, TextPiece
from warren.models.tools import Tool, tool
from warren.settings.config import Config, Limits, StoreConfig
from warren.transport.embed import open_supervisor
from warren.transport.load.line import Line
from warren.transport.load.plan import TOOL_WORD, BadClients, LoadPlan, Profile
from warren.transport.load.target import OnSeen, RowCounts, Target, TargetConnection

KEPT_EVENTS: Final = 1_000_000
FILLING: Final = "and so the evening went on in the warren, "
MODEL: Final = "load"
TOOL: Final = "load_lookup"


@frozen
class LocalTarget:
    """A runtime in this process.

    Attributes:
        service: its sessions.
        tasks: the nursery of subscriptions.
        store: the folder of its store; None without one.
        tagged: whether it answers with the tester's own model.
    """

    service: SessionService
    tasks: trio.Nursery
    store: Path | None = None
    tagged: bool = True

    @property
    def name(self) -> str:
        """The name in reports."""
        return "in process, in memory" if self.store is None else "in process, with a store"

    @asynccontextmanager
    async def line(self, on_seen: OnSeen) -> AsyncIterator[TargetConnection]:
        """Open a client for a body; afterwards its subscriptions end."""
        line = Line(self.service, on_seen, self.tasks)
        try:
            yield line
        finally:
            line.left.cancel()

    def crowded(self, bad_clients: BadClients, counts: Counter[str]) -> AbstractAsyncContextManager[None]:  # noqa: ARG002 - nobody comes in
        """Do nothing: a runtime in this process has no port."""
        return nullcontext()

    async def rows(self, session_ids: Sequence[str]) -> Mapping[str, RowCounts] | None:
        """Count the rows in the file, on a connection of its own."""
        if self.store is None:
            return None
        from warren.transport.load.rows import count_rows  # noqa: PLC0415 - a store is an extra

        return await trio.to_thread.run_sync(count_rows, self.store, session_ids)


@asynccontextmanager
async def local_target(plan: LoadPlan, store: Path | None = None) -> AsyncIterator[Target]:
    """Open a runtime with the settings of a plan for a body; its model is scripted unless the plan names one.

    Raises as `warren.transport.embed.open_supervisor` does.
    """
    limits = Limits(event_log=KEPT_EVENTS, max_sessions=plan.capacity or Limits().max_sessions)
    config = Config(
        store=None if store is None else StoreConfig(store),
        model=plan.model or MODEL,
        compaction=CompactionConfig(),
        limits=limits,
    )
    opened = open_supervisor(config, tools=[LOOKUP], providers={MODEL: LoadModel(plan.profile)})
    async with opened as service, trio.open_nursery() as tasks:
        yield LocalTarget(service, tasks, store, tagged=plan.model in (None, MODEL))
        tasks.cancel_scope.cancel()


async def _look_up(key: str) -> str:
    """Return the values for a key."""
    return f"all is well with {key}"


LOOKUP: Final[Tool] = tool(name=TOOL)(_look_up)


@frozen
class LoadModel:
    """A provider with the pace of a profile. If the prompt asks for the tool, it calls the tool first.

    The answer depends on the prompt alone, so that an answer in the wrong session is detected.
    """

    profile: Profile

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Wait, then answer."""
        await trio.sleep(self.profile.latency)
        prompt = _last_prompt(request.messages)
        tag, _, rest = prompt.partition(" ")
        usage = Usage(input_tokens=len(prompt) // 4 + 1, output_tokens=self.profile.chunks)
        if rest.startswith(TOOL_WORD) and request.tools and isinstance(request.messages[-1], UserMessage):
            call = ToolUseBlock(f"call-{tag}", TOOL, {"key": tag})
            return ModelReply(AssistantMessage((call,), "tool_use"), usage)
        return ModelReply(AssistantMessage((TextBlock(await self._say(tag, emit)),)), usage)

    async def _say(self, tag: str, emit: Callable[[Piece], None]) -> str:
        pieces = list(pieces_of(tag, self.profile))
        for number, piece in enumerate(pieces):
            if number and self.profile.chunk_delay:
                await trio.sleep(self.profile.chunk_delay)
            emit(TextPiece(piece))
        return "".join(pieces)


def pieces_of(tag: str, profile: Profile) -> Sequence[str]:
    """Return the answer to the prompt with a tag, in pieces."""
    filling = (FILLING * (profile.chunk_size // len(FILLING) + 1))[: profile.chunk_size]
    return [f"{tag} {filling}", *[filling] * (profile.chunks - 1)]


def _last_prompt(messages: Sequence[Message]) -> str:
    return next((message.content for message in reversed(messages) if isinstance(message, UserMessage)), "")
