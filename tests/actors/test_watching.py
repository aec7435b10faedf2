"""Watching the list of sessions: what changes is told once, as it is by then, to those whose filter it fits."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.support.models import Puppet, reply, says
from tests.support.runtime import new_session, open_runtime
from warren.actors.events import watching
from warren.base.errors import PermissionDeniedError
from warren.base.principals import Principal
from warren.calls.streams import ChangeReader
from warren.conversation.categories import Gates
from warren.conversation.messages import ToolUseBlock
from warren.conversation.views import SessionChanges, SessionSummary
from warren.models.tools import tool
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time


async def row_of(reader: ChangeReader, session_id: str, fits: Callable[[SessionSummary], bool]) -> SessionSummary:
    """Return the first row of a session that fits, passing over others."""
    async for changes in reader:
        for row in changes.sessions:
            if row.session_id == session_id and fits(row):
                return row
    raise AssertionError("the watch has ended")


async def gone(reader: ChangeReader) -> tuple[str, ...]:
    """Return the next sessions that are gone."""
    async for changes in reader:
        if changes.gone:
            return changes.gone
    raise AssertionError("the watch has ended")


@pytest.mark.parametrize("stored", [True, False])
async def test_a_session_is_told_of_through_its_life(tmp_path: Path, *, stored: bool) -> None:
    """It is made, runs under the title of its first prompt, ends its turn, is labelled, archived and deleted."""
    puppet = Puppet()
    async with (
        open_runtime(puppet, store=tmp_path if stored else None) as service,
        service.watch() as reader,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        made = await row_of(reader, session_id, lambda row: not row.is_active)
        assert (made.lifecycle, made.message_count, made.title) == ("live", 0, None)
        nursery.start_soon(service.start_turn, session_id, "Where is it?\nSay.")
        runs = await row_of(reader, session_id, lambda row: row.is_active)
        assert (runs.title, runs.message_count) == ("Where is it?", 0)
        puppet.say("Here.", None)
        ended = await row_of(reader, session_id, lambda row: not row.is_active)
        assert ended == (await service.list()).sessions[0]
        await service.label(session_id, {"team": "red"})
        labelled = await row_of(reader, session_id, lambda row: bool(row.labels))
        assert labelled.labels == {"team": "red"}
        await service.archive(session_id)
        assert await gone(reader) == (session_id,)
        if stored:
            fork = (await service.fork(session_id)).state
            forked = await row_of(reader, fork.session_id, lambda _row: True)
            assert (forked.lifecycle, forked.title) == ("stored", "Where is it?")
            await service.delete(fork.session_id)
            assert await gone(reader) == (fork.session_id,)


async def test_a_watcher_begins_with_what_runs_and_hears_of_its_filter_alone(tmp_path: Path) -> None:
    """A turn that runs is told of first; sessions without the label, and of other tenants, are not."""
    puppet = Puppet()
    async with open_runtime(puppet, store=tmp_path) as service, trio.open_nursery() as nursery:
        red = await new_session(service, labels={"team": "red"})
        blue = await new_session(service, labels={"team": "blue"})
        for each in (red, blue):
            nursery.start_soon(service.start_turn, each, "go")
        await puppet.reached(2)
        foreign = service.as_(Principal("acme", "ann"))
        async with service.watch(labels={"team": "red"}) as reader, foreign.watch() as other:
            first = await anext(reader)
            assert [(row.session_id, row.is_active) for row in first.sessions] == [(red, True)]
            theirs = (await foreign.create_session(None)).session_id
            puppet.say("a", "b", None, None)
            ended = await anext(reader)
            assert [(row.session_id, row.is_active) for row in ended.sessions] == [(red, False)]
            assert [row.session_id for row in (await anext(other)).sessions] == [theirs]
            await service.label(red, {"team": "blue"})
            assert await anext(reader) == SessionChanges(gone=(red,))
        with pytest.raises(PermissionDeniedError):
            await service.as_(Principal(scopes=frozenset({"memory:read"}))).watch().__aenter__()


@tool
async def look() -> str:
    """Look."""
    return "nothing"


async def test_a_call_that_waits_and_an_eviction_are_told(tmp_path: Path) -> None:
    """The number of calls that wait for approval rises and falls; a session that leaves memory is stored."""
    model = says(reply("", ToolUseBlock("call-1", "look", {})), reply("done"))
    async with (
        open_runtime(model, store=tmp_path, tools=[look], config=Config(limits=Limits(idle_after=30))) as service,
        service.watch() as reader,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service, approvals=Gates(callback="ask"))
        nursery.start_soon(service.start_turn, session_id, "go")
        await row_of(reader, session_id, lambda row: row.pending_approvals == 1)
        (waiting,) = (await service.read(session_id)).state.pending_approvals
        await service.approve_tool(session_id, waiting.call_id, "allow")
        await row_of(reader, session_id, lambda row: not row.is_active and row.pending_approvals == 0)
        await row_of(reader, session_id, lambda row: row.lifecycle == "stored")


async def test_changes_of_a_slow_watcher_are_merged_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that has changed many times is told of once; too many sessions become one word, `missed`."""
    monkeypatch.setattr(watching, "MOST", 3)
    async with open_runtime(store=tmp_path) as service, service.watch() as reader:
        session_id = await new_session(service)
        for number in range(5):
            await service.start_turn(session_id, f"prompt {number}")
        changes = await anext(reader)
        assert [row.message_count for row in changes.sessions] == [10]
        for _ in range(4):
            await new_session(service)
        assert (await anext(reader)).missed
        await service.start_turn(session_id, "again")
        assert not (await anext(reader)).missed
        others = [await new_session(service) for _ in range(4)]
        assert (await anext(reader)).missed
        for each in others:
            await service.delete(each)
        changes = await anext(reader)
        assert (changes.gone, changes.missed) == ((), True)
