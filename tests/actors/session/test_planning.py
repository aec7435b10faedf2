"""The settings that the turns of a session share: which turns have them, and what ends them."""

import os
from pathlib import Path

import attrs
import pytest
import trio

from tests.support.models import Emit, reply
from tests.support.runtime import new_session, open_runtime
from warren import Config, open_supervisor
from warren.models.model import ModelReply, ModelRequest
from warren.tools import tool

pytestmark = pytest.mark.virtual_time


@tool
def dig(where: str) -> str:
    """Dig a hole."""
    return where


@attrs.define
class Kept:
    """A model that keeps its requests."""

    requests: list[ModelRequest] = attrs.field(factory=list)

    async def complete(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        return reply("ok")


async def test_turns_without_options_share_their_settings() -> None:
    """A turn with options has settings of its own, and the next one has the shared ones again."""
    model = Kept()
    async with open_runtime(model, tools=(dig,)) as service:
        session_id = await new_session(service)
        for options in ({}, {"temperature": 0.5}, {}):
            await service.start_turn(session_id, "go", **options)  # type: ignore[arg-type]
    first, second, third = model.requests
    assert (first.options.temperature, second.options.temperature, third.options.temperature) == (None, 0.5, None)
    assert first.tools is third.tools
    assert first.tools is not second.tools


async def test_sessions_without_options_share_their_settings() -> None:
    """Sessions with the same tools have one object of them, but their own files; options or fewer tools end that."""
    model = Kept()
    async with open_runtime(model, tools=(dig,)) as service:
        created = (
            await service.create_session(None),
            await service.create_session(None),
            await service.create_session(None, temperature=0.5),
            await service.create_session(None, tools=[]),
        )
        for each in created:
            await service.start_turn(each.session_id, "go")
    first, second, warmer, bare = model.requests
    assert first.tools is second.tools
    assert first.files is not second.files
    assert first.tools is not warmer.tools
    assert (len(first.tools), bare.tools) == (1, ())
    assert (first.options.temperature, warmer.options.temperature) == (None, 0.5)


async def test_a_turn_with_tools_leaves_them_to_no_other() -> None:
    """The tools that the caller of a turn brings are gone in the next one."""

    @tool
    def fill(where: str) -> str:
        """Fill a hole."""
        return where

    model = Kept()
    async with open_runtime(model, tools=(dig,)) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "go", extra_tools=[fill])
        await service.start_turn(session_id, "go")
    assert [[each.name for each in request.tools] for request in model.requests] == [["dig", "fill"], ["dig"]]


async def test_settings_end_with_the_options_that_they_were_made_of() -> None:
    """A turn that changes an option of its session ends the settings, and so does another load of the session."""
    model = Kept()
    async with open_runtime(model, tools=(dig,)) as service:
        session_id = await new_session(service)
        for keep_alive in (None, True, None, None):
            await service.start_turn(session_id, "go", keep_alive=keep_alive)
    first, _, third, fourth = model.requests
    assert first.tools is not third.tools
    assert third.tools is fourth.tools


async def test_a_changed_script_is_played_from_the_next_turn_on(tmp_path: Path) -> None:
    """The file of a script may change at any time, so no settings are kept for it."""
    file = tmp_path / "script.json"
    file.write_text('{"steps": [{"text": "one"}, {"text": "two"}]}')
    async with open_supervisor(Config(model=f"scripted:{file}")) as service:
        session_id = (await service.create_session(None)).session_id
        assert (await service.start_turn(session_id, "go")).text == "one"
        file.write_text('{"steps": [{"text": "one"}, {"text": "changed"}]}')
        stat = file.stat()
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
        assert (await service.start_turn(session_id, "go")).text == "changed"
