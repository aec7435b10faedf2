"""Warren, driven as its peers are. Its fake model, too, gives the answer at once, of which Warren makes an event."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from warren import Config, Limits, SessionService, StoreConfig, open_supervisor
from warren.conversation.messages import AssistantMessage, TextBlock, ToolResultsMessage, ToolUseBlock
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest, Piece, TextPiece
from warren.models.tools import tool
from warren.transport.cli.process.tuning import tune

PACKAGES = ("warren", "trio", "apsw")
BACKEND = "trio"
MANY = 100_000
"""Sessions at once, and kept in memory: more than are ever asked for."""

tune()  # as every command that serves does


@attrs.frozen
class Model:
    """The fake model."""

    script: Any

    async def complete(self, request: ModelRequest, emit: Callable[[Piece], None]) -> ModelReply:
        """Ask for the tool, or answer."""
        await trio.sleep(self.script.delay)
        usage = Usage(self.script.tokens, self.script.tokens)
        if self.script.tools and not isinstance(request.messages[-1], ToolResultsMessage):
            call = ToolUseBlock(f"call-{len(request.messages)}", "look_up", {"subject": self.script.argument})
            return ModelReply(AssistantMessage((call,), "tool_use"), usage)
        emit(TextPiece(self.script.answer))
        return ModelReply(AssistantMessage((TextBlock(self.script.answer),)), usage)


@attrs.define
class Conversations:
    """Sessions of a service by names of the driver's."""

    service: SessionService
    script: Any
    _ids: dict[str, str] = attrs.field(factory=dict)

    async def turn(self, session: str) -> str:
        """Run a turn; the first one creates the session."""
        if session in self._ids:
            return (await self.service.start_turn(self._ids[session], self.script.prompt)).text
        tools = ["look_up"] if self.script.tools else None
        result = await self.service.create_session(self.script.prompt, tools=tools)
        self._ids[session] = result.session_id
        return result.text

    async def remember(self, session: str, messages: int) -> None:
        """Lengthen a session's history, by turns."""
        for _ in range(messages // 2):
            await self.turn(session)


@asynccontextmanager
async def opened(script: Any, folder: Path | None) -> AsyncIterator[Conversations]:
    """Run a runtime, durable where there is a folder."""

    @tool
    async def look_up(subject: str) -> str:
        """Look something up."""
        assert subject == script.argument
        return str(script.found)

    store = None if folder is None else StoreConfig(folder)
    limits = Limits(max_sessions=MANY, max_live=MANY)
    fake = script.url is None
    name, provider = ("fake", "fake") if fake else ("gpt-benchmark", "openai")
    config = Config(store=store, model=name, provider=provider, limits=limits)
    models = {"fake": Model(script)}
    environ = None if fake else {"OPENAI_BASE_URL": f"{script.url}/v1"}
    async with open_supervisor(config, providers=models, tools=[look_up], environ=environ) as service:
        yield Conversations(service, script)
