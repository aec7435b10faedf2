"""Messages that a compaction discards are remembered before they leave the context: all, once, and nothing else."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.compacting import Model, at_the_end, settings, summaries, talk
from tests.support.faulty_store import Faults
from tests.support.memories import (
    MemoryFaults,
    memory_in,
    moments,
    recall,
    recalling,
    recalling_model,
    remembered,
    results,
    said_before_head,
)
from tests.support.models import Answer, Emit, reply
from tests.support.runtime import Recorder, memory_of, new_session, open_runtime, transcript
from warren.actors.calls.service import Service
from warren.actors.resources.memory import RETRY_AFTER
from warren.base.errors import AgentError, StoreError
from warren.compaction import SUMMARY_PREFIX
from warren.conversation.events import CompactionCompleted, CompactionFailed
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import Tool, tool
from warren.settings.config import Config
from warren.storage.operations import Commit

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def opened(
    store: Path | None,
    memory: Path | None,
    faults: MemoryFaults | None = None,
    *,
    model: Model | None = None,
    stored: Faults | None = None,
    config: Config | None = None,
    tools: Iterable[Tool] = (),
) -> AsyncIterator[Service]:
    """Open a runtime that compacts at 1,000 tokens and remembers."""
    async with open_runtime(
        model or recalling_model(),
        store=store,
        config=config or settings(),
        faults=stored,
        tools=tools,
        memory=memory_in(memory, faults),
    ) as service:
        yield service


async def test_all_that_was_said_before_the_head_is_remembered(store: Path | None, tmp_path: Path) -> None:
    """After many compactions each message in front of the head is there once, at its place in the transcript."""
    folder, faults = tmp_path / "memory", MemoryFaults()
    async with opened(store, folder, faults) as service:
        session_id = await new_session(service, system_prompt="Be brief.")
        await talk(service, session_id, 17)
        assert (await service.read(session_id)).state.compactions >= 3
        expected = await said_before_head(service, session_id)
    assert len(expected) > 20
    assert remembered(folder) == expected
    assert sum(faults.fresh) == len(expected)


async def curt(request: ModelRequest, emit: Emit) -> ModelReply:
    """Make a bad call of the tool, and do not repeat what came of it."""
    if isinstance(request.messages[-1], ToolResultsMessage):
        return reply("nothing found")
    return await recalling(request, emit)


async def test_only_what_was_said_is_remembered(tmp_path: Path) -> None:
    """Neither the system prompt, nor results of tools, nor an older summary is worth remembering."""
    folder, model = tmp_path / "memory", Model(answer=curt)
    async with opened(tmp_path, folder, model=model) as service:
        session_id = await new_session(service, system_prompt="SYSTEM instructions")
        for _ in range(8):
            await talk(service, session_id, 2)
            await recall(service, session_id, query="question", limit="many")
        assert results(await transcript(service, session_id))[0].content.startswith("bad arguments")
        assert summaries(model.contexts[-1]) == ["SECRET summary"]
    texts = remembered(folder).values()
    assert "nothing found" in texts
    for word in ("SYSTEM", "SECRET", SUMMARY_PREFIX[:20], "bad arguments"):
        assert not [text for text in texts if word in text]


async def test_the_head_waits_for_the_memory(store: Path | None, tmp_path: Path) -> None:
    """While the memory still takes in what is discarded the context is the old one; then it is the new one."""
    folder, faults, recorder = tmp_path / "memory", MemoryFaults(gate=trio.Event()), Recorder()
    async with opened(store, folder, faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        await talk(service, session_id, 4)
        turn = ask(nursery, service.start_turn, session_id, "go on", on_event=recorder)
        await trio.testing.wait_all_tasks_blocked()
        assert len(faults.given) == 1
        assert not recorder.only(CompactionCompleted)
        assert (await service.read(session_id)).state.compactions == 0
        assert not remembered(folder)
        assert faults.gate is not None
        faults.gate.set()
        await turn.value()
        assert len(recorder.only(CompactionCompleted)) == 1
        assert remembered(folder) == await said_before_head(service, session_id)


async def test_a_memory_that_refuses(store: Path | None, tmp_path: Path) -> None:
    """A refusal ends the compaction as failed and changes nothing; the next attempt remembers everything once."""
    folder, model, recorder = tmp_path / "memory", recalling_model(), Recorder()
    faults = MemoryFaults(refuse=StoreError("no space left", cause="disk_full"))
    async with opened(store, folder, faults, model=model) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 6, on_event=recorder)
        assert {event.reason for event in recorder.only(CompactionFailed)} == {"session_store_error"}
        assert list(model.contexts[-1]) == (await transcript(service, session_id))[:-1]
        assert not remembered(folder)
        faults.refuse = None
        await talk(service, session_id, 1, on_event=recorder)
        assert len(recorder.only(CompactionCompleted)) == 1
        assert remembered(folder) == await said_before_head(service, session_id)


async def test_a_refusal_by_the_store_after_the_memory(tmp_path: Path) -> None:
    """A text that was remembered before the store refused the new head is not taken in again by the next attempt."""
    folder, faults, recorder = tmp_path / "memory", MemoryFaults(), Recorder()
    stored = Faults(refuse_kinds=(Commit,))
    async with opened(tmp_path, folder, faults, stored=stored) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 4)
        stored.refuse, stored.refusals = apsw.FullError("disk full"), 1
        await talk(service, session_id, 1, on_event=recorder)
        assert len(recorder.only(CompactionFailed)) == 1
        early = remembered(folder)
        assert early
        await talk(service, session_id, 1, on_event=recorder)
        assert len(recorder.only(CompactionCompleted)) == 1
        expected = await said_before_head(service, session_id)
    assert remembered(folder) == expected
    assert early.items() <= expected.items()
    assert faults.fresh == [len(early), len(expected) - len(early)]


async def test_the_process_ends_between_memory_and_store(tmp_path: Path) -> None:
    """A text of a process whose compaction was never stored is there once after the next one's compaction."""
    folder, first, second = tmp_path / "memory", MemoryFaults(), MemoryFaults()
    stored = Faults(refuse_kinds=(Commit,))
    async with opened(tmp_path, folder, first, stored=stored) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 4)
        stored.refuse = apsw.IOError("the disk is gone")
        with pytest.raises(StoreError):
            await service.start_turn(session_id, "lost")
    early = remembered(folder)
    assert early
    async with opened(tmp_path, folder, second) as service:
        await talk(service, session_id, 2)
        expected = await said_before_head(service, session_id)
    assert remembered(folder) == expected
    assert "lost" not in expected.values()
    assert sum(second.fresh) == len(expected) - len(early)


def telling(name: str) -> Answer:
    """Return what calls a tool six times, says something before each call, and then is done."""
    steps = count()

    async def answer(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        step = next(steps)
        text = f"{name} step {step} " + "word " * 200
        return reply(text, *([ToolUseBlock(f"{name}-{step}", "look", {})] if step < 6 else []))

    return answer


@tool(description="Look around.")
def look() -> str:
    """Return what there is."""
    return "nothing " * 20


async def lose_a_turn(service: Service, model: Model, stored: Faults) -> str:
    """Run a turn of which a compaction indexes a part and the store takes nothing; return the session."""
    session_id = await new_session(service)
    stored.refuse = apsw.FullError("disk full")
    model.answer = telling("lost")
    with pytest.raises(StoreError):
        await service.start_turn(session_id, "the lost question")
    stored.refuse = None
    assert await service.search_memory("lost", session_id=session_id)
    return session_id


async def test_what_a_lost_turn_left_gives_way(tmp_path: Path) -> None:
    """Positions of messages that were remembered and never stored go to other messages: the memory has those."""
    folder, stored, model = tmp_path / "memory", Faults(refuse_kinds=(Commit,)), Model()
    config = at_the_end(settings(None, window=1_500))
    async with opened(tmp_path, folder, model=model, stored=stored, config=config, tools=[look]) as service:
        session_id = await lose_a_turn(service, model, stored)
        model.answer = telling("kept")
        await service.start_turn(session_id, "the question")
        expected = await said_before_head(service, session_id)
    assert any(text.startswith("kept step") for text in expected.values())
    assert remembered(folder) == expected


@pytest.mark.parametrize("again", [True, False], ids=["next process", "same process"])
async def test_what_was_never_stored_is_dropped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    again: bool,  # noqa: FBT001 - a table
) -> None:
    """A turn that was lost and never redone is found no more after a while; what was stored stays."""
    folder, stored, model = tmp_path / "memory", Faults(refuse_kinds=(Commit,)), Model()
    config = at_the_end(settings(None, window=1_500))
    async with opened(tmp_path, folder, model=model, stored=stored, config=config, tools=[look]) as service:
        session_id = await lose_a_turn(service, model, stored)
        model.answer = telling("kept")
        other = await new_session(service)
        await service.start_turn(other, "the question")
        expected = await said_before_head(service, other)
        await trio.sleep(RETRY_AFTER * 3)
        assert {key[0] for key in remembered(folder)} == {session_id, other}
        monkeypatch.setattr("warren.actors.resources.memory.SETTLE_AFTER", timedelta(0))
        await trio.sleep(0 if again else RETRY_AFTER * 2)
        if not again:
            assert remembered(folder) == expected
    async with opened(tmp_path, folder) as service:
        await trio.sleep(1)
        assert remembered(folder) == expected
        assert await service.search_memory("lost", scope="project") == ()


async def test_a_process_that_was_left_behind_overwrites_nothing(tmp_path: Path) -> None:
    """If the head has moved on in the store a memory is told by nobody what was said before it."""
    folder = tmp_path / "memory"
    async with opened(tmp_path, folder) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 6)
        expected = await said_before_head(service, session_id)
        memory = memory_of(service)
        with pytest.raises(StoreError, match="compacted the session further") as caught:
            await memory.remember(session_id, 0, [UserMessage("something else")])
        assert caught.value.cause == "conflict"
    assert remembered(folder) == expected


async def test_turn_and_time_are_the_messages_own(store: Path | None, tmp_path: Path) -> None:
    """A hit names the turn in which it was said, however late it was remembered; stored messages keep their time."""
    folder = tmp_path / "memory"
    async with opened(store, folder) as service:
        session_id = await new_session(service, system_prompt="Be brief.")
        await talk(service, session_id, 12)
        for number in (0, 3, 7):
            (hit, *_) = await service.search_memory(f"question {number}", session_id=session_id, limit=1)
            assert (hit.content, hit.turn) == (f"question {number}", number + 1)
        page = await service.history(session_id, limit=1000)
    times = {entry.position: entry.created_at for entry in page.messages}
    if store is not None:
        assert moments(folder).items() <= times.items()


async def test_turns_of_a_session_that_the_memory_comes_late_to(tmp_path: Path) -> None:
    """If a session was compacted before there was a memory, the turns before count all the same."""
    folder = tmp_path / "memory"
    async with open_runtime(recalling_model(), store=tmp_path, config=settings()) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 8)
    async with opened(tmp_path, folder) as service:
        for number in range(8, 14):
            await service.start_turn(session_id, f"question {number}")
        (hit, *_) = await service.search_memory("question 9", session_id=session_id, limit=1)
        assert (hit.content, hit.turn) == ("question 9", 10)


@pytest.mark.parametrize("crash", ["crash_before", "crash_after"])
async def test_a_crash_of_the_memory_amid_a_compaction(store: Path | None, tmp_path: Path, crash: str) -> None:
    """The turn goes on with the old context; the memory is opened anew; the next attempt remembers once."""
    folder, faults, recorder = tmp_path / "memory", MemoryFaults(), Recorder()
    setattr(faults, crash, 1)
    async with opened(store, folder, faults) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 5, on_event=recorder)
        assert len(recorder.only(CompactionFailed)) == 1
        await talk(service, session_id, 1, on_event=recorder)
        assert faults.opened == 2
        assert len(recorder.only(CompactionCompleted)) == 1
        assert remembered(folder) == await said_before_head(service, session_id)


async def test_an_interrupt_while_the_memory_takes_in(store: Path | None, tmp_path: Path) -> None:
    """The turn ends at once, what it had sent to the memory is remembered all the same, and later not again."""
    folder, faults = tmp_path / "memory", MemoryFaults(gate=trio.Event())
    async with opened(store, folder, faults) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        await talk(service, session_id, 4)
        turn = ask(nursery, service.start_turn, session_id, "go on")
        await trio.testing.wait_all_tasks_blocked()
        await service.interrupt(session_id)
        assert (await turn.failure(AgentError)).cause == "cancelled"
        assert faults.gate is not None
        faults.gate.set()
        await talk(service, session_id, 2)
        expected = await said_before_head(service, session_id)
        assert remembered(folder) == expected
        assert sum(faults.fresh) == len(expected)


async def test_one_session_waits_for_no_memory_but_its_own_compaction(tmp_path: Path) -> None:
    """While the memory is held up by one session's compaction another session goes on, and a search is answered."""
    faults = MemoryFaults(gate=trio.Event())
    async with opened(tmp_path, None, faults) as service, trio.open_nursery() as nursery:
        slow, quick = await new_session(service), await new_session(service)
        await talk(service, slow, 4)
        turn = ask(nursery, service.start_turn, slow, "go on")
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(1):
            await talk(service, quick, 3)
            assert await service.search_memory("question", scope="project") == ()
        assert not turn.ended.is_set()
        assert faults.gate is not None
        faults.gate.set()
