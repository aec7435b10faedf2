"""The log: the session and the turn of each record, and no text of a conversation."""

import logging
from pathlib import Path

import pytest
import trio

from tests.support.models import FunctionModel, reply, says
from tests.support.runtime import new_session, open_runtime
from warren.base.errors import ProviderError, WarrenError
from warren.base.log_context import LogContext, working_for
from warren.conversation.messages import ToolUseBlock
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, RetryPolicy

SECRET = "xyzzy-4711"  # noqa: S105 - a text that must not be in the log
SURE = RetryPolicy(initial_delay=0, jitter=0)


@tool
async def looks(text: str) -> str:
    """Do as it is told."""
    if "bad" in text:
        raise ValueError(f"cannot do {text}")
    return text


@tool(timeout=0.01)
async def waits(text: str) -> str:
    """Take too long."""
    await trio.sleep(10)
    return text


async def test_no_text_of_a_conversation_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither prompts nor answers, neither arguments nor results of tools, whatever fails; debugging shows more."""
    wanted = [("looks", SECRET), ("looks", f"bad {SECRET}"), ("waits", SECRET), (SECRET, SECRET)]
    called = [ToolUseBlock(str(number), name, {"text": text}) for number, (name, text) in enumerate(wanted)]
    refused = ProviderError(f"bad request: {SECRET}", cause="bad_request", retryable=False)
    busy = ProviderError(f"busy: {SECRET}", cause="overloaded", retryable=True)
    model = says(reply(SECRET, *called), reply(SECRET), refused, busy, reply(SECRET), busy, busy, busy, [SECRET])
    config = Config(model="test", system_prompt=SECRET, retry=SURE)
    with caplog.at_level(logging.INFO):
        async with open_runtime(model, store=tmp_path, tools=[looks, waits], config=config) as service:
            session_id = await new_session(service, labels={"a": SECRET}, title=SECRET)
            await service.start_turn(session_id, SECRET)
            with pytest.raises(ProviderError):
                await service.start_turn(session_id, SECRET)
            await service.start_turn(session_id, SECRET)
            with pytest.raises(ProviderError):
                await service.start_turn(session_id, SECRET)
            await service.inject_context(session_id, SECRET)
            await service.start_turn(session_id, SECRET, mode="queue")
            with pytest.raises(WarrenError):
                await service.compact(session_id)
    assert "tool looks failed: ValueError" in caplog.messages
    shown = logging.Formatter()
    assert not [text for record in caplog.records if SECRET in (text := shown.format(record))]
    with caplog.at_level(logging.DEBUG):
        async with open_runtime(says(reply("", called[1]), ["ok"]), tools=[looks]) as service:
            await service.create_session("go")
    assert f"cannot do bad {SECRET}" in caplog.text


async def test_the_work_of_a_task(tmp_path: Path) -> None:
    """A turn's task, its tools and their threads know the session and the turn; what follows the turn has none."""
    seen: list[LogContext | None] = []

    def note() -> None:
        seen.append(working_for.get())

    async def answer(_request: ModelRequest, _emit: object) -> ModelReply:
        note()
        return reply("done") if len(seen) > 1 else reply("", ToolUseBlock("1", "in_a_thread", {}))

    @tool
    def in_a_thread() -> str:
        """Note where it runs."""
        note()
        return "done"

    async with open_runtime(FunctionModel(answer), store=tmp_path, tools=[in_a_thread]) as service:
        first = (await service.create_session("hello")).session_id
        second = (await service.create_session("hello")).session_id
        await service.start_turn(first, "again")
    assert seen == [
        *[LogContext(first, "default", 1)] * 3,
        LogContext(second, "default", 1),
        LogContext(first, "default", 2),
    ]
    assert working_for.get() is None
