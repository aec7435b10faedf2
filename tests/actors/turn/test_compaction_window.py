"""A model's window: no request is above it by our estimate, and a session lives on though no summary can be had."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.checks import assert_valid_transcript
from tests.support.compacting import (
    ANSWER,
    SUMMARY,
    FakeMemory,
    HeadFaults,
    Model,
    assert_fits,
    assert_whole,
    compacting,
    settings,
    summaries,
    summarise,
    talk,
    wants_summary,
)
from tests.support.models import Answer, Emit, reply
from tests.support.runtime import Recorder, new_session, transcript
from warren.base.errors import MemoryDisabledError, ProviderError, StoreError
from warren.base.windows import Window
from warren.compaction import estimate, size_of
from warren.compaction.layout import GAP
from warren.conversation import codec
from warren.conversation.events import CompactionCompleted, CompactionFailed, TurnStarted
from warren.conversation.messages import AssistantMessage, ToolUseBlock
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import MAX_RESULT, Tool, tool
from warren.settings.config import Config

pytestmark = pytest.mark.virtual_time
WINDOW = 2_000


async def overloaded(_request: ModelRequest, _emit: Emit) -> ModelReply:
    """Fail every summary."""
    await trio.lowlevel.checkpoint()
    raise ProviderError("no summaries today", retryable=False)


def small(**changes: Any) -> Config:
    """Return settings for a model of 2,000 tokens."""
    return settings(None, window=WINDOW, **changes)


async def test_a_session_lives_without_summaries(store: Path | None) -> None:
    """The oldest exchanges leave, after they were indexed; a note says so; every request fits; history is whole."""
    model, recorder, memory = Model(summary=overloaded), Recorder(), FakeMemory()
    async with compacting(model, store, config=small(), memory=memory) as service:
        session_id = await new_session(service, system_prompt="be brief")
        await talk(service, session_id, 40, on_event=recorder)
        page = await service.history(session_id, limit=1000)
    assert_fits(model.asked, WINDOW)
    assert_whole(recorder.envelopes)
    head = page.compactions[-1].head
    assert memory.rows == {entry.position: entry.message for entry in page.messages[1:head]}
    assert page.total == 81
    assert summaries(model.contexts[-1]) == [GAP]
    assert list(model.contexts[-1][2:]) == [entry.message for entry in page.messages[head:80]]
    dropped = recorder.only(CompactionCompleted)
    assert len(dropped) == len(page.compactions) > 5
    assert {event.summary_tokens for event in dropped} == {0}
    # A quarter of the room is free afterwards: not every step has to do it again.
    assert len(dropped) <= 40 // 2


async def test_a_gap_behind_a_summary(store: Path | None) -> None:
    """The last summary that could be had stays, with one note behind it, until the next one replaces both."""
    model = Model()
    async with compacting(model, store, config=small()) as service:
        session_id = await new_session(service)
        while not model.compactions:
            await talk(service, session_id, 1)
        summary, model.summary = model.summary, overloaded
        await talk(service, session_id, 20)
        assert summaries(model.contexts[-1]) == [f"SECRET summary\n\n{GAP}"]
        model.summary = summary
        while GAP in repr(model.contexts[-1]):
            await talk(service, session_id, 1)
        assert summaries(model.contexts[-1]) == ["SECRET summary"]
    assert_fits(model.asked, WINDOW)


@pytest.mark.parametrize("min_turns", [3, 100])
async def test_the_guard_does_not_keep_a_session_above_its_window(store: Path | None, min_turns: int) -> None:
    """If a summary may not be asked for yet, the oldest exchanges leave without one."""
    model = Model()

    async def long(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        return reply("word " * 500, usage=ANSWER)

    model.answer = long
    config = small(min_turns_between_compactions=min_turns)
    async with compacting(model, store, config=config) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 20)
    assert_fits(model.asked, WINDOW)
    assert len(model.compactions) <= 1 + 20 // min_turns


@tool
async def fetch(size: int) -> str:
    """Fetch a page."""
    await trio.lowlevel.checkpoint()
    return "page " * (size // 5)


def fetching(size: int, steps: int) -> Model:
    """Return a model that fetches pages of so many bytes in so many steps of each turn."""

    async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        done = len(model.contexts)
        if done % (steps + 1) == 0:
            return reply("read", usage=ANSWER)
        return reply("", ToolUseBlock(f"call-{done}", "fetch", {"size": size}), usage=ANSWER)

    model = Model(answer)
    return model


async def test_one_result_larger_than_the_window(store: Path | None) -> None:
    """A page as long as a result may be is shortened in what is sent, with a note; the history has all of it."""
    model, recorder = fetching(MAX_RESULT, 1), Recorder()
    async with compacting(model, store, config=small(), tools=[fetch]) as service:
        session_id = await new_session(service)
        result = await service.start_turn(session_id, "question", on_event=recorder)
        history = await transcript(service, session_id)
    assert result.text == "read"
    assert_fits(model.asked, WINDOW)
    assert "characters left out" in repr(model.contexts[-1])
    assert max(map(size_of, history)) > MAX_RESULT
    assert_valid_transcript(history)
    assert_whole(recorder.envelopes)


@pytest.mark.parametrize("summary", [summarise, overloaded])
async def test_large_results_with_and_without_summaries(store: Path | None, summary: Answer) -> None:
    """Turn after turn of pages that fill the window: whatever the summaries do, every request fits."""
    model, recorder = fetching(6_000, 3), Recorder()
    model.summary = summary
    async with compacting(model, store, config=small(max_summary_tokens=100), tools=[fetch]) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 6, on_event=recorder)
        assert_valid_transcript(await transcript(service, session_id))
        assert (await service.read(session_id)).state.compactions > 2
    assert_fits(model.asked, WINDOW)
    assert_whole(recorder.envelopes)


@pytest.mark.parametrize("summary", [summarise, overloaded])
async def test_a_memory_that_refuses_does_not_keep_a_session_above_its_window(
    store: Path | None, summary: Answer
) -> None:
    """A message that may not be discarded is left out of the request alone: the history stays; each step says so."""
    model, recorder = Model(summary=summary), Recorder()
    memory = FakeMemory(refusal=MemoryDisabledError("the memory is ill"))
    async with compacting(model, store, config=small(), memory=memory) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 12, on_event=recorder)
        assert (await service.read(session_id)).state.compactions == 0
        failed = recorder.only(CompactionFailed)
        assert failed[-1].reason == "session_memory_disabled"
        assert sum(each.reason == "session_memory_disabled" for each in failed) <= 12
        assert_fits(model.asked, WINDOW)
        memory.refusal = None
        await talk(service, session_id, 1, on_event=recorder)
        assert (await service.read(session_id)).state.compactions == 1
    assert_whole(recorder.envelopes)


@pytest.mark.parametrize("who", ["memory", "store"])
@pytest.mark.parametrize("summary", [summarise, overloaded])
async def test_a_refusal_arms_the_guard(tmp_path: Path, who: str, summary: Answer) -> None:
    """Whoever refuses is asked again after the distance, not at every step; meanwhile every request fits by itself.

    Once it takes what is to leave, nothing of it is missing.
    """
    model, recorder, memory, faults = Model(summary=summary), Recorder(), FakeMemory(), HeadFaults()
    config = small(min_turns_between_compactions=5)
    async with compacting(model, tmp_path, config=config, memory=memory, faults=faults) as service:
        session_id = await new_session(service)
        memory.refusal, faults.stuck = (StoreError("full"), False) if who == "memory" else (None, True)
        await talk(service, session_id, 26, on_event=recorder)
        steps = _steps_of(recorder, "session_store_error")
        assert len(steps) >= 4
        assert all(later - earlier >= 5 for earlier, later in pairwise(steps)), steps
        assert_fits(model.asked, WINDOW)
        memory.refusal, faults.stuck = None, False
        await talk(service, session_id, 6, on_event=recorder)
        page = await service.history(session_id, limit=1000)
    head = page.compactions[-1].head
    assert memory.rows == {entry.position: entry.message for entry in page.messages[:head]}
    assert page.total == 64
    assert_fits(model.asked, WINDOW)
    assert_whole(recorder.envelopes)


def _steps_of(recorder: Recorder, reason: str) -> list[int]:
    """Return the step before which each compaction failed for that reason."""
    found, step = [], 0
    for event in recorder.events:
        step += isinstance(event, TurnStarted)
        if isinstance(event, CompactionFailed) and event.reason == reason:
            found.append(step)
    return found


async def test_a_drop_resets_the_providers_figure(store: Path | None) -> None:
    """After exchanges have left, what the provider counted before them is no reason to compact again."""

    async def break_once(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        if len(model.contexts) == 4:
            raise ProviderError("not now", retryable=False)
        return reply("word " * 600, usage=Usage(1_700, 1))

    model, recorder = Model(break_once, overloaded), Recorder()
    async with compacting(model, store, config=small()) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 3)
        with pytest.raises(ProviderError):
            await service.start_turn(session_id, "question 3", on_event=recorder)
        assert len(recorder.only(CompactionCompleted)) == 1
        attempts = len(model.compactions)
        await service.start_turn(session_id, "question 4", on_event=recorder)
        assert len(model.compactions) == attempts
    assert_whole(recorder.envelopes)


async def test_a_prompt_larger_than_the_window(store: Path | None) -> None:
    """The user's message is never shortened: the provider is asked, and its refusal is the answer."""

    async def refuse(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        if sum(map(size_of, request.messages)) > 4 * WINDOW:
            raise ProviderError("prompt is too long", retryable=False)
        return reply("short", usage=ANSWER)

    model = Model(refuse)
    async with compacting(model, store, config=small()) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 2)
        with pytest.raises(ProviderError, match="too long"):
            await service.start_turn(session_id, "long " * 4_000)
        # The prompt is part of the conversation, but not of what the next turn has to fit.
        assert (await service.start_turn(session_id, "go on")).text == "short"
        assert_valid_transcript(await transcript(service, session_id))


async def test_the_tools_and_the_answer_take_their_part(store: Path | None) -> None:
    """The rest of a request besides messages is subtracted: long descriptions and the answer's cap leave less room."""

    @tool(description="d" * 1_200)
    def verbose() -> str:
        return ""

    model = Model(summary=overloaded)
    async with compacting(model, store, config=small(), tools=[verbose]) as service:
        session_id = await new_session(service, max_tokens=400)
        await talk(service, session_id, 15)
    assert_fits(model.asked, WINDOW)
    assert_fits((each for each in model.asked if not wants_summary(each)), Window(WINDOW, 400, 300).room)


@tool(description="d" * 2_000)
def verbose() -> str:
    """Do nothing, at length."""
    return ""


@pytest.mark.parametrize("max_tokens", [None, 300, 500, 1_900])
@pytest.mark.parametrize("tools", [(), (verbose,)])
async def test_a_summary_comes_before_anything_is_left_out(
    store: Path | None, max_tokens: int | None, tools: tuple[Tool, ...]
) -> None:
    """However much of a small window the answer and the tools take: as long as summaries can be had, nothing else is.

    The provider's figures count the tools, as a real one's do: that is no reason to compact at every chance.
    """
    model, recorder = Model(), Recorder()

    async def counting(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        tokens = estimate(sum(map(size_of, request.messages)) + len(codec.encode(request.tools)))
        return reply("word " * 100, usage=Usage(tokens, 130))

    model.answer = counting
    async with compacting(model, store, config=small(), tools=tools) as service:
        session_id = await new_session(service, max_tokens=max_tokens)
        await talk(service, session_id, 40, on_event=recorder)
    told = recorder.only(CompactionCompleted)
    assert {event.summary_tokens for event in told} == {SUMMARY.output_tokens}
    assert recorder.only(CompactionFailed) == []
    assert 3 <= len(told) < 14
    assert_fits(model.asked, WINDOW)
    assert GAP not in repr(model.contexts)
    assert_whole(recorder.envelopes)


async def test_the_window_comes_from_the_models_name(store: Path | None) -> None:
    """A known model has its window from the table, and a turn that names another model has that one's."""
    model = Model()

    async def long(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        return reply("word " * 4_000, usage=ANSWER)

    model.answer = long
    async with compacting(model, store, config=settings(None)) as service:
        session_id = (await service.create_session(None, model="gpt-4", provider="test")).session_id
        await talk(service, session_id, 5)
        compactions = len(model.compactions)
        assert compactions > 0
        await talk(service, session_id, 4, model="gpt-4o", provider="test")
        assert len(model.compactions) == compactions
    small_ones = [request for request in model.asked if request.model == "gpt-4"]
    assert_fits(small_ones, 8_192)


async def test_by_hand_where_the_window_is_full(store: Path | None) -> None:
    """A summary is asked for within the window also by hand, whatever the session has grown to under another model."""
    model = Model()

    async def long(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        return reply("word " * 2_000, usage=SUMMARY)

    model.answer = long
    async with compacting(model, store, config=settings(100_000)) as service:
        session_id = (await service.create_session(None, model="gpt-4", provider="test")).session_id
        await talk(service, session_id, 30, model="gpt-4o", provider="test")
        entry = await service.compact(session_id)
        assert entry.messages_after < entry.messages_before
        model.asked.clear()
        await service.start_turn(session_id, "go on")
        assert_fits(model.asked, 8_192)
        history = await transcript(service, session_id)
        assert sum(isinstance(message, AssistantMessage) for message in history) == 31
