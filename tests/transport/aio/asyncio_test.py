"""What the tests of `warren.aio` share: a run on asyncio with a limit, and models and tools that are written for it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from warren.conversation.messages import AssistantMessage, TextBlock
from warren.conversation.usage import Usage
from warren.models.model import Emitted, ModelReply, ModelRequest, TextPiece

LIMIT = 60.0


def on_asyncio(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test on asyncio; fail it after a minute."""
    asyncio.run(asyncio.wait_for(main(), LIMIT))


class Gate:
    """A model for asyncio: it says a word, waits until it is opened, and says another."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.open = asyncio.Event()
        self.cancelled = False
        self.loop_was: asyncio.AbstractEventLoop | None = None

    async def complete(self, request: ModelRequest, emit: Callable[[Emitted], None]) -> ModelReply:
        """Answer with two words."""
        del request
        self.loop_was = asyncio.get_running_loop()
        emit(TextPiece("first "))
        self.began.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        emit(TextPiece("second"))
        return ModelReply(AssistantMessage((TextBlock("first second"),)), Usage(1, 1))
