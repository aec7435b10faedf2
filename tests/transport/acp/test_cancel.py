"""A cancel hits the prompt it was meant for, at any moment of it, and never another one."""

from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.checks import assert_valid_transcript
from tests.support.compacting import Model, settings
from tests.support.fake_service import FakeService, until_interrupted
from tests.support.models import FunctionModel, GatedModel, reply, stuck
from tests.support.runtime import open_runtime, transcript
from tests.transport.acp.client import cancel, connect, said
from warren.calls.base import Call
from warren.calls.reading import SearchRequest
from warren.calls.turns import InterruptRequest
from warren.conversation.messages import AssistantMessage, ToolUseBlock
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.models.tools import tool

R = TypeVar("R")


async def test_a_cancel_that_comes_with_the_prompt_is_not_lost() -> None:
    """Both in one piece: the prompt is answered as cancelled and the model is never called."""
    model = GatedModel()
    async with open_runtime(model) as service, connect(service) as client:
        session_id = await client.new()
        prompt = client.request("session/prompt", sessionId=session_id, prompt=said("go"))
        await client.write(prompt, cancel(session_id))
        assert (await client.answer_to(prompt)).stop_reason == "cancelled"
        assert model.entered == 0


async def test_a_cancel_ends_the_answer_and_keeps_what_was_said(tmp_path: Path) -> None:
    """The updates end with what was said, the answer says cancelled, and the transcript is as a provider wants it."""
    async with open_runtime(FunctionModel(stuck), store=tmp_path) as service, connect(service) as client:
        session_id = await client.new()
        prompt = client.request("session/prompt", sessionId=session_id, prompt=said("go"))
        await client.write(prompt)
        answer = ""
        while answer != "half an answer":  # the pieces may come as one
            message = await client.read()
            assert message is not None
            answer += message["params"]["update"]["content"]["text"]
        await client.cancel(session_id)
        ended = await client.answer_to(prompt)
        assert ended.stop_reason == "cancelled"
        assert ended.kinds() == ["session_info_update"]
        messages = await transcript(service, session_id)
        assert_valid_transcript(messages)
        assert isinstance(messages[-1], AssistantMessage)
        assert messages[-1].text == "half an answer"


async def test_a_cancelled_tool_call_is_seen_to_fail() -> None:
    """The client is not left with a call that seems to run for ever."""
    began = trio.Event()

    @tool
    async def dig() -> None:
        """Dig for ever."""
        began.set()
        await trio.sleep_forever()

    async def digs(_request: ModelRequest, _emit: Any) -> ModelReply:
        await trio.lowlevel.checkpoint()
        return reply("", ToolUseBlock("c1", "dig"))

    async with open_runtime(FunctionModel(digs), tools=[dig]) as service, connect(service) as client:
        session_id = await client.new()
        prompt = client.request("session/prompt", sessionId=session_id, prompt=said("go"))
        await client.write(prompt)
        await began.wait()
        await client.cancel(session_id)
        ended = await client.answer_to(prompt)
        assert ended.stop_reason == "cancelled"
        assert [update["status"] for update in ended.only("tool_call_update")] == ["in_progress", "failed"]


async def test_a_late_cancel_does_not_hit_the_next_prompt() -> None:
    """One that arrives after the answer, with the next prompt right behind it, does nothing."""
    async with open_runtime() as service, connect(service) as client:
        session_id = await client.new()
        await client.prompt(session_id, "first")
        second = client.request("session/prompt", sessionId=session_id, prompt=said("second"))
        await client.write(cancel(session_id), second)
        assert (await client.answer_to(second)).stop_reason == "end_turn"


async def test_a_cancel_for_another_session_changes_nothing() -> None:
    """The turns of other sessions go on, and a cancel for nobody is passed over."""
    model = GatedModel()
    async with open_runtime(model) as service, connect(service) as client:
        ours, other = await client.new(), await client.new()
        prompt = client.request("session/prompt", sessionId=ours, prompt=said("go"))
        await client.write(prompt, cancel(other), cancel("nobody"))
        model.gate.set()
        assert (await client.answer_to(prompt)).stop_reason == "end_turn"


@pytest.mark.parametrize("stored", [False, True])
async def test_a_cancel_at_any_moment_hits_its_own_prompt_alone(tmp_path: Path, *, stored: bool) -> None:
    """However far the turn is, the answer says end_turn or cancelled, and the prompt after it runs to its end."""
    seen = set()

    async def words(_request: ModelRequest, emit: Any) -> ModelReply:
        for word in ("one ", "two ", "three"):
            emit(TextPiece(word))
            for _ in range(5):
                await trio.lowlevel.checkpoint()
        return reply("one two three")

    model, store = FunctionModel(words), tmp_path if stored else None
    async with open_runtime(model, store=store) as service, connect(service) as client:
        session_id = await client.new()
        for moment in range(60):
            first = client.request("session/prompt", sessionId=session_id, prompt=said("one two three"))
            await client.write(first)
            for _ in range(moment):
                await trio.lowlevel.checkpoint()
            await client.cancel(session_id)
            seen.add((await client.answer_to(first)).stop_reason)
            after = await client.prompt(session_id, "and on")
            assert after.stop_reason == "end_turn", moment
            assert after.text() != ""
    assert seen == {"cancelled", "end_turn"}


async def test_a_compaction_can_be_cancelled() -> None:
    """The summary is given up, nothing changes, and the answer says cancelled."""
    began = trio.Event()

    async def hangs(_request: ModelRequest, emit: Any) -> ModelReply:
        emit(TextPiece("SECRET"))
        began.set()
        await trio.sleep_forever()
        raise AssertionError

    model = Model(summary=hangs)
    async with open_runtime(model, config=settings(100_000)) as service, connect(service) as client:
        session_id = await client.new()
        for number in range(3):
            await client.prompt(session_id, f"number {number}")
        compact = client.request("session/prompt", sessionId=session_id, prompt=said("/compact"))
        await client.write(compact)
        await began.wait()
        await client.cancel(session_id)
        assert (await client.answer_to(compact)).stop_reason == "cancelled"
        assert (await service.read(session_id)).state.compactions == 0
        assert (await client.prompt(session_id, "go on")).stop_reason == "end_turn"


async def test_a_cancel_waits_for_the_turn_to_begin() -> None:
    """A cancel that comes after the turn was asked for and before it runs is not lost either."""
    asked, ready = trio.Event(), trio.Event()

    async def begin() -> None:
        asked.set()
        await ready.wait()

    async with connect(FakeService(until_interrupted(), on_begin=begin)) as client:
        prompt = client.request("session/prompt", sessionId="s1", prompt=said("go"))
        await client.write(prompt)
        await asked.wait()
        await client.cancel("s1")
        await wait_all_tasks_blocked()
        ready.set()
        assert (await client.answer_to(prompt)).stop_reason == "cancelled"


@attrs.define(eq=False)
class Deaf(FakeService):
    """A service whose turns no interrupt ends."""

    async def perform(self, call: Call[R]) -> R:
        if not isinstance(call, InterruptRequest):
            return await super().perform(call)
        await trio.lowlevel.checkpoint()
        self.calls.append(("interrupt", {"session_id": call.session_id}))
        return cast("R", None)


@pytest.mark.virtual_time
async def test_a_turn_that_does_not_end_does_not_hold_up_the_agent() -> None:
    """When the client leaves, its turn is given some seconds, no more."""
    service = Deaf(until_interrupted())
    with trio.fail_after(10):
        async with connect(service) as client:
            await client.write(client.request("session/prompt", sessionId="s1", prompt=said("go")))
            await wait_all_tasks_blocked()
    assert service.sessions["s1"].turn is not None


@attrs.define(eq=False)
class Forgetful(FakeService):
    """A runtime whose memory never answers."""

    async def perform(self, call: Call[R]) -> R:
        if isinstance(call, SearchRequest):
            await trio.sleep_forever()
        return await super().perform(call)


async def test_a_search_can_be_cancelled() -> None:
    """A memory that does not answer does not hold the client up."""
    async with connect(Forgetful()) as client:
        search = client.request("session/prompt", sessionId="s1", prompt=said("/memory doors"))
        await client.write(search)
        await wait_all_tasks_blocked()
        await client.cancel("s1")
        assert (await client.answer_to(search)).stop_reason == "cancelled"
