"""Schedules of a runtime: each run once and at its time, over restarts, refusals, and clocks that jump."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.clocked import World
from tests.support.runtime import new_session, open_runtime, transcript
from warren.actors.calls.service import Service
from warren.actors.resources.storage import StorageActor
from warren.base.errors import CapacityExceededError, InvalidParamsError, SessionNotFoundError, StoreError
from warren.base.principals import Principal
from warren.base.tenant_limits import TenantLimits, TokenLimits
from warren.calls.facade import SessionService
from warren.conversation.messages import UserMessage
from warren.conversation.options import SessionTemplate
from warren.conversation.schedules import KEPT_RUNS, RunView, ScheduleView
from warren.settings.config import Config, Limits
from warren.storage.ephemeral import EphemeralStore
from warren.storage.operations import Advance, Operation

pytestmark = pytest.mark.virtual_time
MINUTE = 60.0
DAY = 24 * 3600.0


async def only(service: SessionService) -> ScheduleView:
    """Return the one schedule."""
    (found,) = (await service.schedules()).schedules
    return found


async def prompts(service: Service, session_id: str) -> list[str]:
    """Return the prompts that a session has had."""
    return [each.content for each in await transcript(service, session_id) if isinstance(each, UserMessage)]


def states(runs: tuple[RunView, ...]) -> list[str]:
    """Return what became of runs."""
    return [each.state for each in runs]


async def test_a_prompt_is_sent_again_and_again(tmp_path: Path) -> None:
    """Each run is sent at its time, ends, and is kept; a paused schedule sends nothing."""
    world = World(tmp_path)
    async with world.life() as service:
        session_id = await new_session(service)
        made = await service.create_schedule("water", every="10s", session_id=session_id)
        assert (made.state, made.next_at, made.runs) == ("active", world.now() + timedelta(seconds=10), ())
        await trio.sleep(35)
        found = await only(service)
        assert await prompts(service, session_id) == ["water"] * 3
        assert [(each.state, each.session_id, each.ended) for each in found.runs] == [("fired", session_id, True)] * 3
        assert all(each.at - each.due < timedelta(seconds=0.1) for each in found.runs)
        paused = await service.change_schedule(found.schedule_id, paused=True, prompt="dig")
        assert (paused.state, paused.next_at) == ("paused", None)
        await trio.sleep(60)
        gone_on = await service.change_schedule(found.schedule_id, paused=False, every="5s")
        assert gone_on.state == "active"
        await trio.sleep(6)
        assert (await prompts(service, session_id))[3:] == ["dig"]
        await service.delete_schedule(found.schedule_id)
        await trio.sleep(60)
        assert len(await prompts(service, session_id)) == 4
        assert (await service.schedules()).schedules == ()


async def test_a_new_session_each_time(tmp_path: Path) -> None:
    """It has the options of the schedule, and the owner and the tenant of whoever made that."""
    world = World(tmp_path)
    async with world.life() as service:
        ann = service.as_(Principal("acme", "ann"))
        options = SessionTemplate(labels={"by": "clock"}, title="News")
        at = world.now() + timedelta(minutes=1)
        await ann.create_schedule("news?", at=at, new_session=options)
        await trio.sleep(61)
        (row,) = (await ann.list(labels={"by": "clock"})).sessions
        assert (row.title, row.owner, row.tenant, row.message_count) == ("News", "ann", "acme", 2)
        found = await only(ann)
        assert (found.state, found.next_at, [each.session_id for each in found.runs]) == (
            "ended",
            None,
            [row.session_id],
        )
        assert (await service.list()).sessions == ()
        assert (await service.schedules()).schedules == ()
        with pytest.raises(InvalidParamsError, match="no schedule"):
            await service.delete_schedule(found.schedule_id)


@pytest.mark.parametrize(("misfire", "count"), [("once", 1), ("skip", 0), ("all", 10)])
async def test_runs_that_nobody_was_there_for(misfire: Any, count: int, tmp_path: Path) -> None:
    """After ten minutes without a process one, none or all of the runs are made up for, and then it goes on."""
    world = World(tmp_path)
    async with world.life() as service:
        session_id = await new_session(service)
        await service.create_schedule("water", every="1m", session_id=session_id, misfire=misfire)
    world.ahead += 10.5 * MINUTE
    async with world.life() as service:
        await trio.sleep(20)
        count += misfire != "all"  # the newest is only half a minute late
        assert len(await prompts(service, session_id)) == count
        found = await only(service)
        assert set(states(found.runs)) == {"fired"} | ({"missed"} if misfire == "skip" else set())
        await trio.sleep(60)
        assert len(await prompts(service, session_id)) == count + 1


async def test_a_clock_that_jumps(tmp_path: Path) -> None:
    """Forward: what is due by then comes within seconds. Back: nothing comes twice."""
    world = World(tmp_path)
    async with world.life() as service:
        session_id = await new_session(service)
        await service.create_schedule("water", every="1h", session_id=session_id)
        await trio.sleep(10)
        world.ahead += 3600
        await trio.sleep(2)
        assert len(await prompts(service, session_id)) == 1
        world.ahead -= 1800
        await trio.sleep(1800)
        assert len(await prompts(service, session_id)) == 1
        await trio.sleep(3600)
        assert len(await prompts(service, session_id)) == 2


async def test_months_by_cron(tmp_path: Path) -> None:
    """Each noon of Berlin comes once over both changes of its clocks, whichever process lives then."""
    world = World(tmp_path)
    async with world.life() as service:
        session_id = await new_session(service)
        await service.create_schedule("noon", cron="0 12 * * *", zone="Europe/Berlin", session_id=session_id)
    seen = dict[datetime, int]()
    for _ in range(300):
        world.ahead += DAY - 100
        async with world.life() as service:
            await trio.sleep(100)
            seen.update((each.due, each.due.hour) for each in (await only(service)).runs)
    assert len(seen) in (299, 300)
    assert sorted(set(seen.values())) == [10, 11]
    async with world.life() as service:
        assert len(await prompts(service, session_id)) == len(seen)


@pytest.mark.parametrize(("overlap", "count"), [("queue", 6), ("skip", 3)])
async def test_runs_that_overlap(overlap: Any, count: int, tmp_path: Path) -> None:
    """While a run has not ended the next one waits in its session, or is left out."""
    world = World(tmp_path, takes=15)
    async with world.life() as service:
        session_id = await new_session(service)
        made = await service.create_schedule("water", every="10s", session_id=session_id, overlap=overlap)
        await trio.sleep(65)
        await service.change_schedule(made.schedule_id, paused=True)
        await trio.sleep(100)
        assert len(await prompts(service, session_id)) == count
        assert states((await only(service)).runs).count("skipped") == 6 - count


async def test_a_session_that_goes(tmp_path: Path) -> None:
    """An archived session ends its schedule, which says why; a deleted one takes it along."""
    world = World(tmp_path)
    async with world.life() as service:
        one, two = await new_session(service), await new_session(service)
        for each in (one, two):
            await service.create_schedule("water", every="10s", session_id=each)
        await service.archive(one)
        await service.delete(two)
        await trio.sleep(11)
        found = await only(service)
        assert (found.session_id, found.state, states(found.runs)) == (one, "ended", ["failed"])
        assert "archived" in str(found.problem)
        with pytest.raises(SessionNotFoundError):
            await service.create_schedule("water", every="10s", session_id=one)


async def test_a_run_is_not_sent_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that takes the prompt and then refuses to let the schedule advance gets it again, under its key."""
    world, refused, write = World(tmp_path), list[Operation[Any]](), StorageActor.write

    async def refusing(self: StorageActor, operation: Operation[Any]) -> Any:
        if isinstance(operation, Advance) and len(refused) < 3:
            refused.append(operation)
            raise StoreError("not now", cause="locked", retryable=True)
        return await write(self, operation)

    monkeypatch.setattr(StorageActor, "write", refusing)
    async with world.life() as service:
        session_id = await new_session(service)
        await service.create_schedule("water", every="1m", session_id=session_id)
        await trio.sleep(90)
        assert len(refused) == 3
        assert await prompts(service, session_id) == ["water"]
        assert states((await only(service)).runs) == ["fired"]


async def test_limits(tmp_path: Path) -> None:
    """A tenant has so many schedules and no more, and its runs are held against the limits of their maker."""
    world = World(tmp_path)
    config = Config(limits=Limits(schedules=1), tenants={"acme": TenantLimits(sessions=1)})
    async with world.life(config=config) as service:
        ann = service.as_(Principal("acme", "ann", limits=TokenLimits()))
        made = await ann.create_schedule("news?", every="10s", misfire="skip")
        with pytest.raises(CapacityExceededError) as refused:
            await ann.create_schedule("news?", every="10s")
        assert refused.value.cause == "tenant_schedules"
        await service.create_schedule("of another tenant", every="1d")
        await trio.sleep(100)
        (found,) = (await ann.schedules()).schedules
        assert len((await ann.list()).sessions) == 1
        assert found.schedule_id == made.schedule_id
        assert "failed" in states(found.runs)


async def test_the_same_request_makes_one_schedule(tmp_path: Path) -> None:
    """Under a key, also after a restart; only the newest runs are kept."""
    world = World(tmp_path)
    async with world.life() as service:
        one = await service.create_schedule("water", every="1s", idempotency_key="k")
    async with world.life() as service:
        assert (await service.create_schedule("water", every="1s", idempotency_key="k")).schedule_id == one.schedule_id
        await trio.sleep(KEPT_RUNS + 5)
        assert len((await only(service)).runs) == KEPT_RUNS


async def test_without_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule lasts as long as the process."""
    world = World(tmp_path)
    monkeypatch.setattr(EphemeralStore, "now", lambda _store: world.now())
    async with open_runtime() as service:
        session_id = await new_session(service)
        await service.create_schedule("water", every="10s", session_id=session_id)
        await trio.sleep(25)
        assert len(await prompts(service, session_id)) == 2
