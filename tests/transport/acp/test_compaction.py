"""Compaction never shows as conversation: neither while it happens nor when the session is loaded."""

import json
from pathlib import Path

from tests.support.compacting import Model, settings
from tests.support.memories import memory_in
from tests.support.runtime import open_runtime
from tests.transport.acp.client import connect
from warren.compaction import SUMMARY_PREFIX

ANSWER = "word " * 200


async def test_a_session_that_was_compacted_looks_as_if_it_had_not_been(tmp_path: Path) -> None:
    """Its turns show questions and answers alone, and loading it tells all of them, whatever the model still sees."""
    model = Model()
    async with open_runtime(model, store=tmp_path, config=settings()) as service, connect(service) as client:
        session_id = await client.new()
        for number in range(8):
            ended = await client.prompt(session_id, f"question {number}.")
            assert (ended.text(), ended.stop_reason) == (ANSWER, "end_turn")
        assert (await service.read(session_id)).state.compactions > 0
    assert model.compactions
    async with open_runtime(model, store=tmp_path, config=settings()) as service, connect(service) as again:
        loaded = await again.call("session/load", sessionId=session_id, cwd="/work", mcpServers=[])
        assert loaded.text("user_message_chunk") == "".join(f"question {number}." for number in range(8))
        assert loaded.text() == ANSWER * 8
    heard = json.dumps([client.heard, again.heard])
    assert "SECRET" not in heard
    assert SUMMARY_PREFIX.splitlines()[0] not in heard


async def test_the_client_can_have_it_compacted(tmp_path: Path) -> None:
    """/compact moves the head, minds its words, and says how much shorter the context is, but not the summary."""
    model = Model()
    async with open_runtime(model, store=tmp_path, config=settings(100_000)) as service, connect(service) as client:
        session_id = await client.new()
        for number in range(4):
            await client.prompt(session_id, f"question {number}.")
        ended = await client.prompt(session_id, "/compact keep the names")
        assert ended.stop_reason == "end_turn"
        assert "instead of 8" in ended.text()
        assert "SECRET" not in ended.text()
        assert (await service.read(session_id)).state.compactions == 1
        assert "keep the names" in repr(model.compactions[-1].messages)


async def test_a_compaction_that_fails_is_an_error_where_it_was_asked_for(tmp_path: Path) -> None:
    """There is nothing to shorten yet: /compact says so, and not as the end of a turn."""
    async with open_runtime(Model(), store=tmp_path, config=settings()) as service, connect(service) as client:
        session_id = await client.new()
        error = (await client.prompt(session_id, "/compact")).data
        assert (error["code"], error["data"]["details"]["cause"]) == (-32603, "compaction_failed")


async def test_the_client_can_search_what_was_compacted_away(tmp_path: Path) -> None:
    """/memory finds words of an old question, in this session."""
    memory = memory_in(tmp_path / "memory")
    async with (
        open_runtime(Model(), store=tmp_path, config=settings(), memory=memory) as service,
        connect(service) as client,
    ):
        session_id = await client.new()
        await client.prompt(session_id, "my boat is called Marigold.")
        for number in range(6):
            await client.prompt(session_id, f"question {number}.")
        found = await client.prompt(session_id, "/memory boat called")
        assert "Marigold" in found.text()
        assert "No compacted message" in (await client.prompt(session_id, "/memory xylophone")).text()
