"""A tool that takes time, and the check of a session after any of its turns."""

from typing import Final

import trio

from tests.support.checks import assert_valid_stream, assert_valid_transcript
from tests.support.runtime import Recorder, transcript
from warren.calls.facade import SessionService
from warren.conversation.messages import ToolUseBlock
from warren.models.tools import tool

CALL: Final = ToolUseBlock("call-1", "wait", {"seconds": 1})


@tool
async def wait(seconds: float) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return "rested"


async def check(service: SessionService, session_id: str, recorder: Recorder) -> None:
    """Fail where the stream or the transcript is not what it has to be after any turn."""
    assert_valid_stream(recorder.envelopes)
    assert_valid_transcript(await transcript(service, session_id))
