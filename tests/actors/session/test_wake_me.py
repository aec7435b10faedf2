"""The tool by which a model is woken later: once, at its time, over restarts, and with the note that it has left."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.support.clocked import World
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import new_session, open_runtime, supervisor_of, transcript
from warren.actors.calls.service import Service
from warren.actors.session.reminders import WAKE_ME
from warren.base.principals import Principal
from warren.base.tenant_limits import TenantLimits
from warren.conversation.categories import Switches
from warren.conversation.messages import ToolResultsMessage, ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import ToolContext, calling
from warren.settings.config import Config, Limits
from warren.settings.tool_config import ToolsConfig

pytestmark = pytest.mark.virtual_time
NOTE = {"note": "water the plants"}


@attrs.define(eq=False)
class Gardener:
    """A model that makes the calls it is given, one an answer, and is done then.

    Attributes:
        calls: the arguments of its calls.
        seen: the names of the tools of its newest request.
        caps: the caps of its answers.
    """

    calls: list[dict[str, Any]] = attrs.field(factory=list)
    seen: tuple[str, ...] = ()
    caps: list[int | None] = attrs.field(factory=list)

    async def answer(self, request: ModelRequest, _emit: Emit) -> ModelReply:
        """Answer a request."""
        await trio.lowlevel.checkpoint()
        self.seen = tuple(spec.name for spec in request.tools)
        self.caps.append(request.options.max_tokens)
        if self.calls:
            return reply("", ToolUseBlock(f"call-{len(self.calls)}", WAKE_ME, self.calls.pop(0)))
        return reply("done")


@asynccontextmanager
async def life(world: World, model: Gardener, **options: Any) -> AsyncIterator[Service]:
    """Run the process with the model."""
    provider, clock = FunctionModel(model.answer), world.clock
    async with open_runtime(provider, store=world.folder, clock=clock, **options) as service:
        yield service


async def results(service: Service, session_id: str) -> list[str]:
    """Return the results of the calls of a session."""
    found = (each for each in await transcript(service, session_id) if isinstance(each, ToolResultsMessage))
    return [each.content for message in found for each in message.results]


async def prompts(service: Service, session_id: str) -> list[str]:
    """Return the prompts that a session has had."""
    return [each.content for each in await transcript(service, session_id) if isinstance(each, UserMessage)]


@pytest.mark.parametrize("by", ["after", "at"])
async def test_a_model_is_woken_later(by: str, tmp_path: Path) -> None:
    """Everybody sees the reminder waiting; it comes once, over a restart, with the options of the turn."""
    world, model = World(tmp_path), Gardener()
    due = world.now() + timedelta(minutes=30)
    model.calls = [{**NOTE, "after": "30m"} if by == "after" else {**NOTE, "at": due.isoformat()}]
    async with life(world, model) as service:
        session_id = await new_session(service, tools=[WAKE_ME])
        made = await service.start_turn(session_id, "mind the garden", max_tokens=77)
        assert (made.text, model.seen) == ("done", (WAKE_ME,))
        (waits,) = await service.inputs(session_id)
        assert waits.not_before is not None
        assert abs(waits.not_before - due) < timedelta(seconds=1)
        assert (waits.kind, waits.source) == ("queue", WAKE_ME)
        said = f"You will be woken at {due.isoformat(timespec='seconds')} with your note."
        assert await results(service, session_id) == [said]
        await trio.sleep(600)
    async with life(world, model) as service:
        await trio.sleep(1190)
        assert len(await prompts(service, session_id)) == 1
        await trio.sleep(15)
        _, reminder = await prompts(service, session_id)
        assert reminder.startswith("This is the reminder that you asked for with wake_me at ")
        assert reminder.endswith("\n\nwater the plants")
        assert model.caps == [77, 77, 77]
        assert await service.inputs(session_id) == ()
    async with life(world, model) as service:
        await trio.sleep(3600)
        assert len(await prompts(service, session_id)) == 2


async def test_a_user_takes_it_back(tmp_path: Path) -> None:
    """It is an input like others: withdrawn, it does not come."""
    world, model = World(tmp_path), Gardener([{**NOTE, "after": "10s"}])
    async with life(world, model) as service:
        session_id = (await service.create_session("x", tools=[WAKE_ME])).session_id
        (waits,) = await service.inputs(session_id)
        await service.withdraw(session_id, waits.input_id)
        await trio.sleep(60)
        assert await prompts(service, session_id) == ["x"]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (NOTE, "after: give one of after and at"),
        ({**NOTE, "after": "1m", "at": "2126-01-01T00:00:00Z"}, "after: give one of after and at"),
        ({**NOTE, "after": "soon"}, "after: must be a time span"),
        ({**NOTE, "after": "0.1s"}, "after: must be a time span from 1s"),
        ({**NOTE, "at": "tomorrow"}, "at: must be a time with a zone"),
        ({**NOTE, "at": "2126-01-01T00:00:00"}, "at: must be a time with a zone"),
        ({**NOTE, "at": "2020-01-01T00:00:00Z"}, "at: must be a time to come within ten years; it is 2027-01-15T"),
        ({**NOTE, "at": "9999-12-31T23:59:59-23:00"}, "at: must be a time"),
        ({"note": " ", "after": "1m"}, "note: must not be blank"),
        ({"after": "1m"}, "note"),
    ],
)
async def test_a_call_that_is_wrong(args: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """The model reads which argument is wrong, and how to mend it; nothing comes."""
    world = World(tmp_path)
    async with life(world, Gardener([args])) as service:
        session_id = (await service.create_session("x", tools=[WAKE_ME])).session_id
        (found,) = await results(service, session_id)
        assert problem in found
        assert await service.inputs(session_id) == ()


async def test_limits(tmp_path: Path) -> None:
    """A full inbox, and a limit of the tenant, are told to the model."""
    world = World(tmp_path)
    calls = [{"note": f"{number}", "after": "1h"} for number in range(3)]
    async with life(world, Gardener(calls[:]), config=Config(limits=Limits(inbox=2))) as service:
        session_id = (await service.create_session("x", tools=[WAKE_ME])).session_id
        *well, refused = await results(service, session_id)
        assert all("You will be woken" in each for each in well)
        assert refused.startswith("no reminder: ")
        assert len(await service.inputs(session_id)) == 2
    config = Config(tenants={"acme": TenantLimits(turns_per_minute=2)})
    async with life(world, Gardener(calls[:]), config=config) as service:
        ann = service.as_(Principal("acme", "ann"))
        session_id = (await ann.create_session("x", tools=[WAKE_ME])).session_id
        assert len(await ann.inputs(session_id)) == 1


async def test_who_has_it(tmp_path: Path) -> None:
    """Sessions whose list names it, and all others if the settings say so; a list without it keeps it away."""
    world, model = World(tmp_path), Gardener()

    async def seen(service: Service, names: Sequence[str] | None, **options: Any) -> tuple[str, ...]:
        await service.create_session("x", tools=names, **options)
        return model.seen

    async with life(world, model) as service:
        assert (await seen(service, None), await seen(service, [WAKE_ME])) == ((), (WAKE_ME,))
        off = await service.create_session("x", tools=[WAKE_ME], overrides=Switches(comms="disable"))
        assert (model.seen, len(off.warnings)) == ((), 1)
    async with life(world, model, config=Config(tools=ToolsConfig(wake_me=True))) as service:
        assert (await seen(service, None), await seen(service, [])) == ((WAKE_ME,), ())


async def test_a_call_that_runs_again(tmp_path: Path) -> None:
    """After its process has ended, under the same key: there is one reminder, and the result has its time."""
    world, model = World(tmp_path), Gardener()
    async with life(world, model) as service:
        session_id = (await service.create_session("x", tools=[WAKE_ME])).session_id
        actor = supervisor_of(service).find(session_id)
        assert actor is not None
        assert actor.record is not None
        config = supervisor_of(service).shared.config.tools
        found = supervisor_of(service).comms.reminders.tools_of(actor.record, config)[WAKE_ME]
        calling.set(ToolContext(session_id, 1, 1, "call-1", WAKE_ME, {**NOTE, "after": "1h"}))
        told: list[Any] = []
        for _ in range(2):
            told.append(await found.call(**NOTE, after="1h"))
            await trio.sleep(10)
        assert told[0] == told[1]
        (waits,) = await service.inputs(session_id)
        assert isinstance(waits.not_before, datetime)
        assert waits.not_before.isoformat(timespec="seconds") in told[0]
