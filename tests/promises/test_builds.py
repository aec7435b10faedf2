"""Compaction and memory in each of the six capability builds: they work, or say by name what is off."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio

from tests.support.compacting import (
    Model,
    about_compaction,
    assert_whole,
    everything,
    settings,
    summaries,
    talk,
)
from tests.support.memories import hits, memory_in, recalling_model
from tests.support.models import Emit
from tests.support.runtime import Recorder, new_session, open_runtime
from warren.actors.calls.service import Service
from warren.actors.resources.memory import SEARCH
from warren.base.errors import CompactionDisabledError, ErrorCode, MemoryDisabledError, ProviderError
from warren.calls.facade import Capabilities
from warren.compaction import CompactionConfig
from warren.conversation.events import CompactionCompleted, CompactionFailed, RunCompleted
from warren.models.model import ModelReply, ModelRequest

pytestmark = pytest.mark.virtual_time


@attrs.frozen
class Build:
    """A set of capabilities, as settings of a runtime."""

    name: str
    store: bool = False
    memory: bool = False
    compaction: bool = False

    @asynccontextmanager
    async def running(self, model: Model, folder: Path, *, min_turns: int = 0) -> AsyncIterator[Service]:
        """Run it; where it compacts, at 1,000 tokens."""
        config = settings(min_turns_between_compactions=min_turns)
        async with open_runtime(
            model,
            config=config if self.compaction else attrs.evolve(config, compaction=None),
            store=folder if self.store else None,
            memory=memory_in(folder / "memory") if self.memory else None,
        ) as service:
            found = service.capabilities()
            assert found == Capabilities(self.store, self.compaction, self.memory, found.tools)
            yield service


BUILDS: Final = (
    Build("A"),
    Build("B", store=True),
    Build("C", memory=True),
    Build("D", compaction=True),
    Build("E", store=True, memory=True),
    Build("F", store=True, memory=True, compaction=True),
)
every_build = pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)


@every_build
async def test_the_memory_is_searched_where_there_is_one(build: Build, tmp_path: Path) -> None:
    """Clients and models can search it, and find what was compacted away; without it there is a code and no tool."""
    model = recalling_model()
    async with build.running(model, tmp_path) as service:
        session_id = (await service.create_session("my boat is called Ottilie")).session_id
        await talk(service, session_id, 5)
        offered = {tool.name for request in model.asked for tool in request.tools}
        assert offered == ({SEARCH} if build.memory else set())
        found = ["my boat is called Ottilie"] if build.compaction else []
        if build.memory:
            by_client = await service.search_memory("what is my boat called?", session_id=session_id)
            by_model = await hits(service, session_id, query="what is my boat called?")
            assert [hit.content for hit in by_client] == [hit.content for hit in by_model] == found
        else:
            with pytest.raises(MemoryDisabledError) as caught:
                await service.search_memory("what is my boat called?", session_id=session_id)
            assert caught.value.code is ErrorCode.SESSION_MEMORY_DISABLED


@every_build
async def test_contexts_are_compacted_from_the_threshold_on(build: Build, tmp_path: Path) -> None:
    """With the capability the model goes on from a summary; without it it sees everything; the history has it all."""
    model, recorder = Model(), Recorder()
    async with build.running(model, tmp_path) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 5, on_event=recorder)
        told = [type(event).__name__ for event in about_compaction(recorder.events)]
        assert told == (["CompactionStarted", "CompactionCompleted"] if build.compaction else [])
        assert summaries(model.contexts[-1]) == (["SECRET summary"] if build.compaction else [])
        assert len(model.contexts[-1]) == (4 if build.compaction else 9)
        history, moves = await everything(service, session_id)
        assert (len(history), len(moves)) == (10, int(build.compaction))
        assert_whole(recorder.envelopes)


@every_build
async def test_nothing_is_compacted_below_the_threshold_or_too_soon(build: Build, tmp_path: Path) -> None:
    """Not before it is due, and then one step in four at most, however large the context is."""
    model, recorder = Model(), Recorder()
    async with build.running(model, tmp_path, min_turns=4) as service:
        await service.create_session("long " * 3_000, on_event=recorder)
        session_id = await new_session(service)
        await talk(service, session_id, 4, on_event=recorder)
        assert (model.compactions, about_compaction(recorder.events)) == ([], [])
        for number in range(1, 10):
            await service.start_turn(session_id, "long " * 3_000)
            assert len(model.compactions) == ((number + 3) // 4 if build.compaction else 0)


@every_build
async def test_a_failed_compaction_fails_no_turn(build: Build, tmp_path: Path) -> None:
    """The failure is told with its reason where there was an attempt; every turn is answered from the whole context."""

    async def fail(_request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        raise ProviderError("no summaries today", retryable=False)

    model, recorder = Model(summary=fail), Recorder()
    async with build.running(model, tmp_path) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 6, on_event=recorder)
        failed = [(event.error, event.reason) for event in recorder.only(CompactionFailed)]
        assert failed == [("no summaries today", "provider_error")] * (2 * build.compaction)
        assert recorder.only(CompactionCompleted) == []
        assert len(recorder.only(RunCompleted)) == 6
        assert len(model.contexts[-1]) == 11
        assert_whole(recorder.envelopes)


@every_build
async def test_asking_for_compaction_where_it_is_off(build: Build, tmp_path: Path) -> None:
    """A request that carries its settings, or asks for it by hand, is refused by code and leaves nothing behind."""
    model, own = Model(), CompactionConfig(500, recent_turn_budget=0, min_turns_between_compactions=0)
    async with build.running(model, tmp_path) as service:
        if build.compaction:
            session_id = (await service.create_session("hello", compaction=own)).session_id
            await talk(service, session_id, 2)
            assert len(model.compactions) == 1
            await talk(service, session_id, 1)
            assert (await service.compact(session_id)).messages_after < 6
            return
        session_id = await new_session(service)
        with pytest.raises(CompactionDisabledError) as on_create:
            await service.create_session("hello", compaction=own)
        with pytest.raises(CompactionDisabledError) as by_hand:
            await service.compact(session_id)
        assert on_create.value.code is by_hand.value.code is ErrorCode.SESSION_COMPACTION_DISABLED
        assert [row.session_id for row in (await service.list()).sessions] == [session_id]
        assert model.asked == []
        await talk(service, session_id, 1)
