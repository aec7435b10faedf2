"""A model that stands still in the middle of its answer."""

import attrs
import trio

from tests.support.models import Emit, reply
from warren.models.model import ModelReply, ModelRequest, TextPiece


@attrs.define(eq=False)
class Gate:
    """A model that says a word, and the rest of its answer when it is let through."""

    calls: int = 0
    began: trio.Event = attrs.field(factory=trio.Event)
    go: trio.Event = attrs.field(factory=trio.Event)

    async def complete(self, _request: ModelRequest, emit: Emit) -> ModelReply:
        self.calls += 1
        emit(TextPiece("one "))
        self.began.set()
        await self.go.wait()
        emit(TextPiece("two"))
        return reply("one two")
