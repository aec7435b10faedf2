"""The projector in a running runtime: it follows and stays out of the way; nothing that befalls it ends anything."""

import json
import logging
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.runtime import new_session
from tests.support.waiting import until
from warren.actors.calls.service import Service
from warren.actors.resources.projector import BACKOFF, SHARE, TICK, ProjectionPace, ProjectorActor, projecting
from warren.base.errors import StoreError
from warren.settings.config import Config, StoreConfig
from warren.storage.projection import Follower, Status, Step
from warren.storage.runner import inline_runner
from warren.transport.embed import open_supervisor


@asynccontextmanager
async def running(folder: Path, **store: Any) -> AsyncIterator[Service]:
    """Run everything as an embedding program does."""
    async with open_supervisor(Config(store=StoreConfig(folder, **store)), environ={}) as service:
        assert isinstance(service, Service)
        yield service


def files(folder: Path) -> dict[str, bytes]:
    """Return all files of the projection but the checkpoint."""
    paths = [*folder.glob("**/index.jsonl"), *folder.glob("**/sessions/*/*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def rebuilt(folder: Path) -> dict[str, bytes]:
    """Make everything anew, and return the files."""
    follower = Follower(StoreConfig(folder))
    follower.begin_anew()
    while follower.step(1).more:
        pass
    follower.finish()
    follower.close()
    return files(folder)


async def test_it_follows_while_turns_go_on(tmp_path: Path) -> None:
    """The messages of a committed turn are in the files seconds later, unasked; the title is the first prompt's."""
    async with running(tmp_path) as service:
        session = await new_session(service)
        await service.start_turn(session, "\n  What is this?  \nand more")
        path = tmp_path / "sessions" / session / "session.json"
        await until(lambda: path.exists() and json.loads(path.read_bytes())["state"]["message_count"] == 2)
        assert json.loads(path.read_bytes())["state"]["title"] == "What is this?"
        assert (await service.read(session)).state.title == "What is this?"
        await service.start_turn(session, "another")
        assert (await service.list()).sessions[0].title == "What is this?"
        await until(lambda: b"another" in path.with_name("events.jsonl").read_bytes())


async def test_the_end_shows_everything(tmp_path: Path) -> None:
    """When the runtime has ended the files show its last commit, also of sessions archived and deleted just before."""
    async with running(tmp_path) as service:
        ids = [await new_session(service) for _ in range(5)]
        for session in ids:
            await service.start_turn(session, "x" * 200)
        await service.archive(ids[1])
        await service.delete(ids[2])
    found = files(tmp_path)
    lines = [json.loads(line) for line in found["index.jsonl"].splitlines()]
    assert [(line["id"], line["archived"]) for line in lines] == [
        (each, each == ids[1]) for each in ids if each != ids[2]
    ]
    assert {line["title"] for line in lines} == {"x" * 80}
    assert not (tmp_path / "sessions" / ids[2]).exists()
    assert found == rebuilt(tmp_path)


async def test_it_can_be_switched_off(tmp_path: Path) -> None:
    """Then nothing is written beside the store."""
    async with running(tmp_path, projections=False) as service:
        await service.create_session("hello")
    assert not (tmp_path / "sessions").exists()


async def test_trouble_is_said_once_and_turns_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that cannot be made fails no turn; it is in the health, once in the log, and over when it is over."""
    (tmp_path / "sessions").write_text("in the way")
    caplog.set_level(logging.INFO, logger="warren.projector")
    async with running(tmp_path) as service:
        await service.create_session("hello")
        await until(lambda: service.health().status == "degraded")
        await trio.sleep(1.5)
        await service.create_session("hello again")
        (tmp_path / "sessions").unlink()
        await until(lambda: service.health().status == "ok")
    assert [record.levelname for record in caplog.records if record.name == "warren.projector"] == ["WARNING", "INFO"]
    assert files(tmp_path) == rebuilt(tmp_path)


async def test_the_folder_is_removed_while_it_runs(tmp_path: Path) -> None:
    """It comes back by itself, with all that was in it."""
    async with running(tmp_path) as service:
        session = (await service.create_session("hello")).session_id
        await until((tmp_path / "sessions" / session / "session.json").exists)
        shutil.rmtree(tmp_path / "sessions")
        await until((tmp_path / "sessions" / session / "session.json").exists)
    assert files(tmp_path) == rebuilt(tmp_path)


async def test_two_runtimes_on_one_store(tmp_path: Path) -> None:
    """One of them projects what both commit; when it ends the other one goes on."""
    async with running(tmp_path) as second_service:
        async with running(tmp_path) as first:
            sessions = [(await service.create_session("hello")).session_id for service in (first, second_service)]
            shown = [tmp_path / "sessions" / session / "session.json" for session in sessions]
            await until(lambda: all(path.exists() for path in shown))
            projectors = [service.health().projector for service in (first, second_service)]
            assert sorted(each.projecting for each in projectors if each is not None) == [False, True]
        last = (await second_service.create_session("and again")).session_id
        await until((tmp_path / "sessions" / last / "session.json").exists)
    assert files(tmp_path) == rebuilt(tmp_path)


class Broken:
    """A follower with a bug."""

    steps = 0
    works_after = 3

    def step(self, seconds: float) -> Step:
        """Raise what nobody expects, for a while."""
        del seconds
        self.steps += 1
        if self.steps <= self.works_after:
            raise RuntimeError("a bug")
        return Step(more=False, cpu=0.0)

    def status(self) -> Status:
        """Know nothing."""
        return Status(projecting=True)

    def close(self, seconds: float) -> None:
        """Fail in the end, too."""
        raise StoreError(f"not in {seconds} s")


@pytest.mark.virtual_time
async def test_a_bug_in_it_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once with its traceback, tried again ever more seldom, and forgotten when it is over."""
    broken = Broken()
    async with projecting(lambda: broken, inline_runner) as actor:  # type: ignore[arg-type,return-value]
        assert "a bug" in str(actor.statistics().trouble)
        await trio.sleep(BACKOFF.longest)
        assert actor.statistics().trouble is None
    assert broken.steps > Broken.works_after
    assert [record.exc_info is not None for record in caplog.records] == [True, False]


@pytest.mark.virtual_time
async def test_retries_become_seldom() -> None:
    """While it fails for hours it is tried less than three times a minute, and still is."""
    broken = Broken()
    broken.works_after = 10**9
    async with projecting(lambda: broken, inline_runner):  # type: ignore[arg-type,return-value]
        await trio.sleep(10 * 3600)
    assert 1_000 < broken.steps < 1_500


def test_the_pace() -> None:
    """Beside a busy interpreter it takes its share of the time; beside an idle one it goes straight on."""
    busy, idle = ProjectionPace(0.0, 0.0), ProjectionPace(0.0, 0.0)
    assert busy.rest(Step(more=True, cpu=0.1), wall=1.0, cpu=1.1) == pytest.approx(0.1 / SHARE)
    assert idle.rest(Step(more=True, cpu=0.1), wall=1.0, cpu=0.1) == 0.0
    assert idle.rest(Step(more=False, cpu=0.0), wall=2.0, cpu=0.1) == TICK
    assert busy.rest(Step(more=False, cpu=0.0), wall=2.0, cpu=2.1) == TICK


async def test_at_rest_it_costs_almost_nothing(tmp_path: Path) -> None:
    """A runtime in which nothing happens uses less than a hundredth of a processor for its files."""
    async with running(tmp_path) as service:
        await service.create_session("hello")
    follower = Follower(StoreConfig(tmp_path))
    actor = ProjectorActor(follower)
    await actor.step(1.0)
    began = time.process_time()
    for _ in range(100):
        await actor.step(0.05)
    cost = (time.process_time() - began) / 100
    await actor.end()
    assert cost / TICK < 0.01


async def test_a_cancelled_runtime_still_ends_in_order(tmp_path: Path) -> None:
    """The files show the last commit also where the program around it is cancelled."""
    with trio.CancelScope() as scope:
        async with running(tmp_path) as service:
            session = (await service.create_session("hello")).session_id
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert (tmp_path / "sessions" / session / "session.json").exists()
    assert files(tmp_path) == rebuilt(tmp_path)
