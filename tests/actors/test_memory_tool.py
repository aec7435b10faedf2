"""The tool by which a model searches: there with a memory only, within its session unless it asks for more."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from tests.support.compacting import settings, talk
from tests.support.memories import (
    RECALL,
    MemoryFaults,
    hits,
    memory_in,
    recall,
    recalling_model,
    results,
)
from tests.support.runtime import Recorder, memory_of, new_session, open_runtime, transcript
from warren.actors.calls.service import Service
from warren.actors.resources.memory import SEARCH, USAGE
from warren.base.errors import InvalidParamsError
from warren.conversation.events import ToolExecutionCompleted
from warren.conversation.memory import MAX_HITS, MemoryEntry
from warren.models.tools import tool

pytestmark = pytest.mark.virtual_time


async def keep(service: Service, session_id: str, *texts: str) -> None:
    """Put texts into the memory as if they had been discarded."""
    now = datetime.now(UTC)
    await memory_of(service).add([MemoryEntry(session_id, at, 3, text, now) for at, text in enumerate(texts)])


@pytest.mark.parametrize("compacts", [True, False])
async def test_the_tool_is_offered_with_a_memory_only(store: Path | None, compacts: bool) -> None:  # noqa: FBT001
    """A model is offered the tool with its usage note where there is a memory, whatever else is on; else it is not."""
    config = settings() if compacts else None
    for opener in (None, memory_in(None)):
        model = recalling_model()
        async with open_runtime(model, store=store, config=config, memory=opener) as service:
            await service.create_session("hello")
            assert service.capabilities().memory_store is (opener is not None)
        offered = {spec.name: spec.description for spec in model.asked[0].tools}
        assert offered == ({} if opener is None else {SEARCH: USAGE})
    assert set(model.asked[0].tools[0].input_schema["properties"]) == {"query", "limit", "scope"}


async def test_a_session_that_names_its_tools(tmp_path: Path) -> None:
    """The tool is one of those that a session may name, or leave out; without a memory there is none of the name."""
    for names in ((), (SEARCH,)):
        model = recalling_model()
        async with open_runtime(model, store=tmp_path, memory=memory_in(None)) as service:
            stored = (await service.create_session("hello", tools=names)).session_id
        assert tuple(spec.name for spec in model.asked[0].tools) == names
    model = recalling_model()
    async with open_runtime(model, store=tmp_path) as service:
        with pytest.raises(InvalidParamsError, match="memory_search"):
            await service.create_session("hello", tools=[SEARCH])
        await service.start_turn(stored, "go on")
    assert not model.asked[0].tools


async def test_a_tool_of_the_host_under_the_same_name() -> None:
    """The host's own tool of the name memory_search is the one that the model gets."""

    @tool(name=SEARCH)
    async def own(query: str) -> str:
        """Search elsewhere."""
        await trio.lowlevel.checkpoint()
        return f"own {query}"

    async with open_runtime(recalling_model(), tools=[own], memory=memory_in(None)) as service:
        assert await recall(service, await new_session(service), query="a lynx") == "own a lynx"


async def test_a_search_in_a_turn(store: Path | None) -> None:
    """The model gets the hits of its own session as JSON, with score, session and turn; the host sees the call."""
    recorder = Recorder()
    async with open_runtime(recalling_model(), store=store, memory=memory_in(None)) as service:
        session_id, other = await new_session(service), await new_session(service)
        await keep(service, session_id, "the lynx is called Magda", "we talked of boats")
        await keep(service, other, "the lynx is called Otto")
        prompt = RECALL + '{"query": "what is the lynx called"}'
        result = await service.start_turn(session_id, prompt, on_event=recorder)
        (hit,) = await hits(service, session_id, query="what is the lynx called")
        assert (hit.content, hit.session_id, hit.turn) == ("the lynx is called Magda", session_id, 3)
        assert 0.5 < hit.score <= 1
        assert [(event.name, event.is_error) for event in recorder.only(ToolExecutionCompleted)] == [(SEARCH, False)]
        assert recorder.only(ToolExecutionCompleted)[0].result == result.text
        assert result.tool_calls == 1


async def test_the_project_is_searched_where_the_model_asks_for_it() -> None:
    """Other sessions are found with scope "project" only."""
    async with open_runtime(recalling_model(), memory=memory_in(None)) as service:
        session_id, other = await new_session(service), await new_session(service)
        await keep(service, other, "the lynx is called Otto")
        assert await hits(service, session_id, query="lynx") == []
        assert await hits(service, session_id, query="lynx", scope="session") == []
        (hit,) = await hits(service, session_id, query="lynx", scope="project")
        assert hit.session_id == other


BAD: dict[str, dict[str, object]] = {
    "no query": {"limit": 3},
    "a number for a query": {"query": 5},
    "a limit in words": {"query": "lynx", "limit": "many"},
    "an unknown scope": {"query": "lynx", "scope": "world"},
    "an unknown argument": {"query": "lynx", "session": "x"},
}


@pytest.mark.parametrize("what", BAD)
async def test_bad_arguments(what: str) -> None:
    """A call that cannot be made is an error result that the model can learn from; the turn goes on."""
    async with open_runtime(recalling_model(), memory=memory_in(None)) as service:
        session_id = await new_session(service)
        assert (await recall(service, session_id, **BAD[what])).startswith("bad arguments")
        (result,) = results(await transcript(service, session_id))
        assert result.is_error


async def test_a_limit_is_kept_within_bounds() -> None:
    """Five results unless the model wants otherwise, never more than twenty, and at least one."""
    async with open_runtime(recalling_model(), memory=memory_in(None)) as service:
        session_id = await new_session(service)
        await keep(service, session_id, *(f"lynx number {number}" for number in range(30)))
        assert len(await hits(service, session_id, query="lynx")) == 5
        for limit, found in ((-1, 1), (0, 1), (1, 1), (20, MAX_HITS), (21, MAX_HITS), (10**30, MAX_HITS)):
            assert len(await hits(service, session_id, query="lynx", limit=limit)) == found


@pytest.mark.parametrize("query", ["", " \n", "?!", "\x00", "🦫", "山猫", 'NEAR("a" AND', "a" * 100_000])
async def test_an_odd_query(query: str) -> None:
    """A query that no query language would take finds nothing or something, and is no error."""
    async with open_runtime(recalling_model(), memory=memory_in(None)) as service:
        session_id = await new_session(service)
        await keep(service, session_id, "the lynx is called Magda")
        assert await hits(service, session_id, query=query) == []


async def test_a_search_that_fails(tmp_path: Path) -> None:
    """A memory that is gone for good is an error result; the turn goes on."""
    faults = MemoryFaults()
    async with open_runtime(recalling_model(), memory=memory_in(tmp_path, faults)) as service:
        session_id = await new_session(service)
        await (await memory_of(service).reader()).aclose()
        assert "closed" in await recall(service, session_id, query="lynx")
        (result,) = results(await transcript(service, session_id))
        assert result.is_error


async def test_what_compaction_took_is_found(store: Path | None, tmp_path: Path) -> None:
    """A fact that has left the context is found by the tool, also by the next process where there is a store."""
    memory, fact = tmp_path / "memory", "the lynx in the cellar is called Magda"
    model = recalling_model()
    async with open_runtime(model, store=store, config=settings(), memory=memory_in(memory)) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, fact)
        await talk(service, session_id, 8)
        assert fact not in repr(model.contexts[-1])
        found = await hits(service, session_id, query="what is the lynx in the cellar called?")
        assert found[0].content == fact
    if store is not None:
        async with open_runtime(model, store=store, config=settings(), memory=memory_in(memory)) as service:
            found = await hits(service, session_id, query="what is the lynx in the cellar called?")
            assert found[0].content == fact
