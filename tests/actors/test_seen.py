"""The context of a session as its model sees it: its parts, also within a turn and after a compaction."""

from pathlib import Path
from typing import ClassVar

import pytest
import trio

from tests.support.models import Puppet
from tests.support.runtime import new_session, open_runtime
from warren.compaction import CompactionConfig
from warren.conversation.attachments import File, Kind
from warren.conversation.messages import AssistantMessage, SystemMessage, UserMessage
from warren.models.tools import tool
from warren.settings.config import Config

pytestmark = pytest.mark.virtual_time


@tool
def look(where: str) -> str:
    """Look around."""
    return where


class Seeing(Puppet):
    """A model that takes pictures."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"image", "pdf", "text"})


class Blind(Puppet):
    """A model that takes none."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"pdf", "text"})


async def test_it_has_the_parts_of_the_next_request(tmp_path: Path) -> None:
    """The system prompt, the tools and the messages; the prompt of a running turn is there; stored, it is the same."""
    puppet = Puppet()
    config = Config(compaction=CompactionConfig(window=1_000))
    async with open_runtime(puppet, store=tmp_path, tools=[look], config=config) as service:
        session_id = await new_session(service, system_prompt="You dig.")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.start_turn, session_id, "Where?")
            await puppet.reached(1)
            during = await service.context(session_id)
            puppet.say("Here.", None)
        after = await service.context(session_id)
    assert [(part.name, part.count) for part in during.parts] == [("system", 1), ("tools", 1), ("prompts", 1)]
    assert [(part.name, part.count) for part in after.parts][-2:] == [("prompts", 1), ("answers", 1)]
    assert [type(each.message) for each in after.messages] == [SystemMessage, UserMessage, AssistantMessage]
    assert [each.position for each in after.messages] == [0, 1, 2]
    assert (after.tools[0].name, after.tools[0].description) == ("look", "Look around.")
    assert after.tokens == sum(part.tokens for part in after.parts)
    assert (after.window, after.summary, after.room is not None and after.room < 1_000) == (1_000, None, True)
    async with open_runtime(Puppet(), store=tmp_path, tools=[look], config=config) as service:
        assert await service.context(session_id) == after


async def test_a_summary_takes_the_place_of_messages(tmp_path: Path) -> None:
    """Behind a compaction there are the system prompt, the summary, and the messages from the head on."""
    config = Config(model="echo", compaction=CompactionConfig(recent_turn_budget=1))
    async with open_runtime(store=tmp_path, config=config) as service:
        session_id = await new_session(service, system_prompt="You dig.")
        for number in range(4):
            await service.start_turn(session_id, f"prompt {number} " + "x" * 400)
        before = await service.context(session_id)
        entry = await service.compact(session_id)
        seen = await service.context(session_id)
        assert seen.summary == entry.summary
        assert [part.name for part in seen.parts] == ["system", "summary", "prompts", "answers"]
        assert [each.position for each in seen.messages] == [0, *range(entry.head, 9)]
        assert len(seen.messages) < len(before.messages)


async def test_an_attached_text_counts_by_its_size() -> None:
    """As in what the limits and the compaction go by: its message has but a reference to it."""
    text = File(b"word " * 20_000, media_type="text/plain", name="words.txt")
    async with open_runtime() as service:
        session_id = (await service.create_session("read", attachments=[text])).session_id
        context = await service.context(session_id)
    assert 20_000 < context.messages[0].tokens == context.parts[0].tokens < 50_000


async def test_it_names_the_kinds_of_files_that_all_models_of_the_session_take(tmp_path: Path) -> None:
    """One that takes over has to take them, too; if one of them is not there, nothing is known."""
    config, seeing = Config(model="seeing"), Seeing()
    async with open_runtime(store=tmp_path, models={"seeing": seeing, "blind": Blind()}, config=config) as service:
        one, two = await new_session(service), await new_session(service, fallback=["blind"])
        assert (await service.context(one)).takes == ("image", "pdf", "text")
        assert (await service.context(two)).takes == ("pdf", "text")
    async with open_runtime(store=tmp_path, models={"seeing": seeing}, config=config) as service:
        assert (await service.context(two)).takes is None
