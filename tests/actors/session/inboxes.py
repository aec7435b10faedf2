"""Models and messages of the tests of the inbox."""

import attrs
import trio
import trio.testing

from tests.support.checks import assert_valid_transcript
from tests.support.models import Emit, reply
from tests.support.runtime import transcript
from warren.calls.facade import SessionService
from warren.conversation.messages import ContextMessage, Message, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.models.tools import tool

CALL = ToolUseBlock("call-1", "rest", {})


@tool
async def rest() -> str:
    """Take ten seconds."""
    await trio.sleep(10)
    return "rested"


@attrs.define
class Slow:
    """A model whose every call takes ten seconds and answers with what it read last; `call` begins with a tool call.

    If data is asked for it is a text.

    Attributes:
        read: the messages of each call.
    """

    read: list[list[Message]] = attrs.field(factory=list)

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelReply:
        messages = list(request.messages)
        self.read.append(messages)
        await trio.sleep(10)
        if request.answer_schema is not None:
            return reply('"data"')
        last = messages[-1]
        if isinstance(last, UserMessage) and last.content.startswith("call"):
            return reply("", CALL)
        said = last.content if isinstance(last, UserMessage | ContextMessage) else "rested"
        emit(TextPiece(f"re: {said}"))
        return reply(f"re: {said}")


async def said(service: SessionService, session_id: str) -> list[str]:
    """Return what users and others have said, in order, of a transcript that providers take."""
    messages = await transcript(service, session_id)
    assert_valid_transcript(messages)
    return [message.content for message in messages if isinstance(message, UserMessage | ContextMessage)]
