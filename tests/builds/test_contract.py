"""The contract of the builds, for programs that embed Warren: what is off says so by its code, all else works."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import attrs
import pytest
import trio

from tests.builds.build import COMPACTION, MEMORY, SQLITE, STORE
from tests.support.models import Emit, FunctionModel, reply
from warren import Config, Envelope, ErrorCode, SessionService, StoreConfig, WarrenError, open_supervisor
from warren.base.errors import ProviderError
from warren.calls.facade import Capabilities
from warren.compaction import PROMPT, CompactionConfig
from warren.conversation.events import TERMINAL
from warren.conversation.memory import MemoryConfig
from warren.conversation.messages import UserMessage
from warren.conversation.usage import Usage
from warren.models.model import ModelReply, ModelRequest

NOBODY = "00000000-0000-7000-8000-000000000000"
LONG = "the key hangs behind the blue door " * 200
SMALL = CompactionConfig(2_500, recent_turn_budget=1, min_turns_between_compactions=0)


@attrs.define
class Talker:
    """A model that answers briefly and summarises, or fails to.

    Attributes:
        summary: what a summary says; None fails.
        compactions: how many summaries were asked for.
    """

    summary: str | None = "a summary"
    compactions: int = 0

    async def complete(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        last = request.messages[-1]
        if not (isinstance(last, UserMessage) and PROMPT[:40] in last.content):
            return reply("an answer", usage=Usage(input_tokens=10, output_tokens=2))
        self.compactions += 1
        if self.summary is None:
            raise ProviderError("no summaries today", retryable=False)
        return reply(self.summary)


def running(
    folder: Path, model: Talker | None = None, *, compaction: CompactionConfig = SMALL
) -> AbstractAsyncContextManager[SessionService]:
    """Run this build, with everything on that it has."""
    config = Config(
        store=StoreConfig(folder) if STORE else None,
        memory=MemoryConfig(folder / "memory" if STORE else None) if MEMORY else None,
        compaction=compaction if COMPACTION else None,
        provider="talker",
    )
    talker = model or Talker()
    return open_supervisor(config, providers={"talker": FunctionModel(talker.complete)}, environ={})


def nothing_in(folder: Path) -> bool:
    """Tell whether a folder is empty."""
    return not list(folder.iterdir())


async def talk(service: SessionService, session_id: str, turns: int) -> list[Envelope]:
    """Run turns with long prompts and return their events."""
    events: list[Envelope] = []
    for _ in range(turns):
        await service.start_turn(session_id, LONG, on_event=events.append)
    return events


def compactions(events: Sequence[Envelope]) -> list[str]:
    """Return the names of the events about compaction."""
    names = [type(item.event).__name__ for item in events]
    return [name for name in names if name.startswith("Compaction")]


async def test_a_turn_works_and_its_session_is_looked_after(tmp_path: Path) -> None:
    """In every build: create, run, read, list, history, archive; one terminal event for each turn."""
    async with running(tmp_path) as service:
        found = service.capabilities()
        assert found == Capabilities(STORE, COMPACTION, MEMORY, found.tools)
        assert (found.tools["memory"] == "on") == MEMORY
        events: list[Envelope] = []
        first = await service.create_session("hello", labels={"who": "me"}, on_event=events.append)
        assert (await service.start_turn(first.session_id, "again", on_event=events.append)).text == "an answer"
        assert [type(item.event).__name__ for item in events if isinstance(item.event, TERMINAL)] == [
            "RunCompleted"
        ] * 2
        assert (await service.read(first.session_id)).state.message_count == 4
        assert (await service.history(first.session_id)).total == 4
        assert [row.session_id for row in (await service.list(labels={"who": "me"})).sessions] == [first.session_id]
        await service.archive(first.session_id)
        assert (await service.list()).sessions == ()
        with pytest.raises(WarrenError) as caught:
            await service.start_turn(first.session_id, "once more")
        assert caught.value.code is ErrorCode.SESSION_NOT_FOUND


async def test_what_only_a_store_can_do(tmp_path: Path) -> None:
    """Without one it is refused by its code, known session or not; with one an unknown session is not found."""
    expected = ErrorCode.SESSION_NOT_FOUND if STORE else ErrorCode.SESSION_PERSISTENCE_DISABLED
    async with running(tmp_path) as service:
        with pytest.raises(WarrenError) as on_resume:
            await service.resume(NOBODY)
        with pytest.raises(WarrenError) as on_delete:
            await service.delete(NOBODY)
        assert on_resume.value.code is on_delete.value.code is expected
        with pytest.raises(WarrenError) as on_read:
            await service.read(NOBODY)
        assert on_read.value.code is ErrorCode.SESSION_NOT_FOUND


async def test_sessions_outlive_the_runtime_where_there_is_a_store(tmp_path: Path) -> None:
    """The next runtime lists, resumes and continues them, and replays their events; without a store they are gone."""
    async with running(tmp_path) as service:
        session_id = (await service.create_session("hello")).session_id
    async with running(tmp_path) as service:
        if not STORE:
            assert (await service.list()).sessions == ()
            assert nothing_in(tmp_path)
            return
        assert [row.session_id for row in (await service.list()).sessions] == [session_id]
        assert (await service.resume(session_id)).state.message_count == 2
        await service.start_turn(session_id, "again")
        async with service.subscribe(session_id, after_seq=0) as replayed:
            first = await anext(replayed)
        assert type(first.event).__name__ == "RunStarted"
        await service.archive(session_id)
        assert (await service.history(session_id)).total == 4


async def test_a_store_needs_its_extra(tmp_path: Path) -> None:
    """A program that asks for a store without SQLite is told so, and no file is made."""
    if SQLITE:
        async with open_supervisor(Config(store=StoreConfig(tmp_path)), environ={}) as service:
            assert service.capabilities().session_store
        return
    with pytest.raises(WarrenError) as caught:
        async with open_supervisor(Config(store=StoreConfig(tmp_path)), environ={}):
            pass
    assert caught.value.code is ErrorCode.SESSION_PERSISTENCE_DISABLED
    assert nothing_in(tmp_path)


async def test_a_memory_needs_its_extra(tmp_path: Path) -> None:
    """A program that asks for a memory without its packages is told so."""
    if MEMORY:
        async with open_supervisor(Config(memory=MemoryConfig(tmp_path)), environ={}) as service:
            assert service.capabilities().memory_store
        return
    with pytest.raises(WarrenError) as caught:
        async with open_supervisor(Config(memory=MemoryConfig(tmp_path)), environ={}):
            pass
    assert caught.value.code is ErrorCode.SESSION_MEMORY_DISABLED


async def test_memory_is_searched_only_where_it_is(tmp_path: Path) -> None:
    """With memory and compaction together, what was compacted away is found; without memory there is a code."""
    async with running(tmp_path) as service:
        session_id = (await service.create_session(LONG)).session_id
        await talk(service, session_id, 3)
        if not MEMORY:
            with pytest.raises(WarrenError) as caught:
                await service.search_memory("blue door", session_id=session_id)
            assert caught.value.code is ErrorCode.SESSION_MEMORY_DISABLED
            return
        found = await service.search_memory("blue door", session_id=session_id)
        assert bool(found) == COMPACTION
        assert all("blue door" in hit.content for hit in found)


async def test_compaction_begins_at_the_threshold(tmp_path: Path) -> None:
    """With the capability long sessions are summarised, below the threshold and without it never; history has all."""
    model = Talker()
    async with running(tmp_path, model) as service:
        short = (await service.create_session("hello")).session_id
        await service.start_turn(short, "again")
        assert model.compactions == 0
        session_id = (await service.create_session(LONG)).session_id
        told = compactions(await talk(service, session_id, 3))
        assert told == ["CompactionStarted", "CompactionCompleted"] * (len(told) // 2)
        assert (model.compactions > 0, bool(told)) == (COMPACTION, COMPACTION)
        assert (await service.history(session_id)).total == 8


async def test_compaction_waits_between_two_attempts(tmp_path: Path) -> None:
    """However long the session is, there is one attempt in four model calls."""
    model = Talker()
    guarded = attrs.evolve(SMALL, auto_compact_threshold=1, min_turns_between_compactions=4)
    async with running(tmp_path, model, compaction=guarded) as service:
        session_id = (await service.create_session(LONG)).session_id
        await talk(service, session_id, 9)
        assert model.compactions in ((2, 3) if COMPACTION else (0,))


async def test_a_failed_compaction_fails_no_turn(tmp_path: Path) -> None:
    """The failure is an event; the answer comes all the same."""
    async with running(tmp_path, Talker(summary=None)) as service:
        session_id = (await service.create_session(LONG)).session_id
        events = await talk(service, session_id, 2)
        told = compactions(events)
        assert told == ["CompactionStarted", "CompactionFailed"] * (len(told) // 2)
        assert bool(told) == COMPACTION
        assert (await service.read(session_id)).state.last_assistant_text == "an answer"


async def test_compaction_that_was_asked_for_is_there_or_refused(tmp_path: Path) -> None:
    """A request with settings of its own, and a compaction by hand: refused by code where the capability is off."""
    async with running(tmp_path) as service:
        if COMPACTION:
            session_id = (await service.create_session(LONG, compaction=CompactionConfig(window=100_000))).session_id
            await talk(service, session_id, 2)
            assert (await service.compact(session_id)).messages_after < 6
            return
        session_id = (await service.create_session("hello")).session_id
        with pytest.raises(WarrenError) as on_create:
            await service.create_session("hello", compaction=SMALL)
        with pytest.raises(WarrenError) as by_hand:
            await service.compact(session_id)
        assert on_create.value.code is by_hand.value.code is ErrorCode.SESSION_COMPACTION_DISABLED
        assert [row.session_id for row in (await service.list()).sessions] == [session_id]
