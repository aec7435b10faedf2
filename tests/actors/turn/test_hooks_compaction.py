"""Hooks around the summaries of compactions: what they may refuse and change, and their failures."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.compacting import Model, settings, summaries, talk
from tests.support.runtime import Recorder, new_session, open_runtime
from warren.agents.hooks import Denied, Go, HookedCompaction, Hooks
from warren.compaction import PROMPT
from warren.conversation.events import CompactionCompleted, CompactionFailed
from warren.conversation.messages import UserMessage

pytestmark = pytest.mark.virtual_time
CompactionGo = Go[HookedCompaction, str]
Act = Callable[[HookedCompaction, CompactionGo], Awaitable[str | Denied]]


def around(act: Act, **settings_of: object) -> Hooks:
    """Return a hook that does something around each summary."""

    class Around(Hooks):
        async def on_compaction(self, compaction: HookedCompaction, go: CompactionGo) -> str | Denied:
            return await act(compaction, go)

    hook = Around()
    for name, value in settings_of.items():
        setattr(hook, name, value)
    return hook


async def compacted(hook: Hooks, store: Path | None) -> tuple[Model, Recorder]:
    """Talk until a compaction is due, and once more; return what the model was asked, and the events of that turn."""
    model, recorder = Model(), Recorder()
    async with open_runtime(model, store=store, config=settings(), hooks=[hook]) as service:
        session_id = await new_session(service)
        await talk(service, session_id, 4)
        result = await service.start_turn(session_id, "go on", on_event=recorder)
        assert result.text.startswith("word ")
    return model, recorder


async def denies(compaction: HookedCompaction, _go: CompactionGo) -> Denied:
    """Deny, before the model is asked."""
    return compaction.deny("not now")


async def denies_after(compaction: HookedCompaction, go: CompactionGo) -> Denied:
    """Deny the summary that the model has written."""
    assert await go() == "SECRET summary"
    return compaction.deny("it says too much")


@pytest.mark.parametrize(("act", "asked", "why"), [(denies, 0, "not now"), (denies_after, 1, "it says too much")])
async def test_a_compaction_that_is_denied(store: Path | None, act: Act, asked: int, why: str) -> None:
    """The context stays, the reason is told, and the turn goes on."""
    model, recorder = await compacted(around(act), store)
    (failed,) = recorder.only(CompactionFailed)
    assert (failed.reason, failed.error) == ("denied", f"denied: {why}")
    assert len(model.compactions) == asked
    assert summaries(model.contexts[-1]) == []
    assert len(model.contexts[-1]) == 9


async def fails(_compaction: HookedCompaction, _go: CompactionGo) -> str:
    """Raise an error."""
    raise ValueError("SECRET")


async def test_a_hook_that_fails(store: Path | None) -> None:
    """It denies; one that lets pass is as if it were not there."""
    model, recorder = await compacted(around(fails), store)
    assert [each.reason for each in recorder.only(CompactionFailed)] == ["hook"]
    assert model.compactions == []
    model, recorder = await compacted(around(fails, on_failure="allow"), None)
    assert len(recorder.only(CompactionCompleted)) == 1
    assert summaries(model.contexts[-1]) == ["SECRET summary"]


async def test_instructions_of_a_hook(store: Path | None) -> None:
    """The model gets them, and the hook knows how much there is to sum up."""
    seen = list[HookedCompaction]()

    async def act(compaction: HookedCompaction, go: CompactionGo) -> str:
        seen.append(compaction)
        return await go(compaction.with_instructions("keep the names"))

    model, recorder = await compacted(around(act), store)
    assert [each.messages[-1] for each in model.compactions] == [
        UserMessage(f"{PROMPT}\n\nAdditional instructions:\nkeep the names")
    ]
    assert [(each.instructions, each.turn) for each in seen] == [(None, 5)]
    assert seen[0].messages >= 8
    assert len(recorder.only(CompactionCompleted)) == 1


async def test_a_summary_that_a_hook_has_changed(store: Path | None) -> None:
    """The context has its words, and none of the model's; one without `go` asks no model."""

    async def redacts(_compaction: HookedCompaction, go: CompactionGo) -> str:
        return (await go()).replace("SECRET", "[...]")

    async def writes(_compaction: HookedCompaction, _go: CompactionGo) -> str:
        return "all of it is known"

    model, _ = await compacted(around(redacts), store)
    assert summaries(model.contexts[-1]) == ["[...] summary"]
    model, _ = await compacted(around(writes), None)
    assert summaries(model.contexts[-1]) == ["all of it is known"]
    assert model.compactions == []
