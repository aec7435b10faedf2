"""A process that has as much memory as it may takes in less, and goes on."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from tests.support.models import Emit, FunctionModel, reply, says, stuck
from tests.support.runtime import new_session, open_runtime, replay, transcript
from warren import RuntimeService, open_supervisor
from warren.actors.calls.service import Service
from warren.actors.supervisor import gauge
from warren.actors.supervisor.gauge import MIB, resident
from warren.base.errors import AgentError, CapacityExceededError
from warren.conversation.events import RunCompleted
from warren.models.model import ModelReply, ModelRequest
from warren.reports.health import Status
from warren.settings.config import Config, Limits

LIMIT = 100


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Say how many MiB the process has: the last of these."""
    said = [LIMIT // 2]
    monkeypatch.setattr(gauge, "resident", lambda: said[-1] * MIB)
    return said


def limited(**limits: float) -> Config:
    """Return settings with a limit of memory, under which no session leaves for being idle."""
    return Config(limits=Limits(max_memory=LIMIT, idle_after=1e9, **limits))  # type: ignore[arg-type]


async def changed(used: list[int], now: int) -> None:
    """Have the process use so much, and let it be noticed."""
    used.append(now)
    await trio.sleep(1)


async def becomes(service: RuntimeService, status: Status) -> None:
    """Wait until the runtime says that it is so."""
    while service.health().status != status:  # noqa: ASYNC110 - its health has no event
        await trio.sleep(gauge.INTERVAL)


@contextmanager
def refused() -> Iterator[None]:
    """Expect to be told that memory is short."""
    with pytest.raises(CapacityExceededError) as caught:
        yield
    assert caught.value.cause == "memory"
    assert caught.value.retryable


@pytest.mark.virtual_time
async def test_turns_run_one_at_a_time_where_memory_is_short(used: list[int]) -> None:
    """A second one is refused at once; when the first has ended it is admitted, though nothing was given back."""
    async with open_runtime(FunctionModel(stuck), config=limited()) as service, trio.open_nursery() as nursery:
        first, second = [await new_session(service) for _ in range(2)]
        await changed(used, LIMIT + 1)
        nursery.start_soon(interrupted_turn, service, first)
        await trio.sleep(1)
        assert (service.health().running_turns, service.health().status) == (1, "degraded")
        with refused():
            await service.start_turn(second, "go")
        await service.interrupt(first)
        nursery.start_soon(interrupted_turn, service, second)
        await trio.sleep(1)
        assert service.health().running_turns == 1
        await service.interrupt(second)


async def interrupted_turn(service: Service, session_id: str) -> None:
    """Run a turn that somebody interrupts."""
    with pytest.raises(AgentError, match="interrupted"):
        await service.start_turn(session_id, "go")


@pytest.mark.virtual_time
@pytest.mark.parametrize("stored", [False, True])
async def test_what_waits_begins_one_at_a_time(tmp_path: Path, used: list[int], *, stored: bool) -> None:
    """Inputs that are taken in lose nothing: each has its turn, none beside another; who waits is at rest meanwhile."""
    at_once: list[str] = []

    async def alone(request: ModelRequest, emit: Emit) -> ModelReply:
        del request, emit
        at_once.append("turn")
        await trio.sleep(1)
        assert at_once.pop() == "turn"
        assert not at_once
        return reply("yes")

    async with open_runtime(FunctionModel(alone), store=tmp_path if stored else None, config=limited()) as service:
        ids = [await new_session(service) for _ in range(3)]
        await changed(used, LIMIT + 1)
        async with trio.open_nursery() as nursery:
            for session_id in ids * 2:
                nursery.start_soon(lambda each: service.start_turn(each, "say yes", mode="queue"), session_id)
        for session_id in ids:
            ended = [each for each in await replay(service, session_id) if isinstance(each.event, RunCompleted)]
            assert len(ended) == 2
            assert len(await transcript(service, session_id)) == 4


@pytest.mark.virtual_time
async def test_no_new_sessions_beside_live_ones(used: list[int]) -> None:
    """Without a store they stay in memory; there is room again when one is gone, or memory is given back."""
    async with open_runtime(says(), config=limited()) as service:
        session_id = await new_session(service)
        await changed(used, LIMIT + 1)
        with refused():
            await service.create_session(None)
        with refused():
            await service.fork(session_id)
        await changed(used, LIMIT - 1)
        other = await new_session(service)
        await changed(used, LIMIT + 1)
        for each in (session_id, other):
            await service.archive(each)
        await new_session(service)


@pytest.mark.virtual_time
async def test_idle_sessions_leave_where_memory_is_short(tmp_path: Path, used: list[int]) -> None:
    """Stored ones that have nothing to do make room, whether anybody asks for it or not; nothing of them is lost."""
    async with open_runtime(says(["one"], ["two"]), store=tmp_path, config=limited()) as service:
        session_id = (await service.create_session("first")).session_id
        for _ in range(300):
            await new_session(service)
        await changed(used, LIMIT + 1)
        assert service.health().live_sessions == 0
        await service.resume(session_id)
        with refused():
            await service.create_session(None)
        await trio.sleep(1)
        await new_session(service)
        assert (await service.start_turn(session_id, "second")).text == "two"
        await trio.sleep(1)
        assert service.health().live_sessions == 0


@pytest.mark.virtual_time
async def test_the_log_says_once_that_memory_is_short(used: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """An operator reads when it began and when it ended, not of every refusal."""
    caplog.set_level("INFO", "warren.supervisor")
    async with open_runtime(says(), config=limited()) as service:
        await new_session(service)
        for now in (LIMIT + 1, LIMIT + 2, LIMIT - 1):
            await changed(used, now)
            service.health()
    assert [record.levelname for record in caplog.records if "MiB" in record.message] == ["WARNING", "INFO"]


async def test_what_the_process_really_has() -> None:
    """The system's own figure counts: a block that is too large keeps a session out, until it is given back."""
    gc.collect()
    there = resident()
    if there is None:
        pytest.skip("this system does not tell")
    limits = Limits(max_memory=there // MIB + 100)
    async with open_supervisor(Config(limits=limits)) as service:
        await service.create_session("hello")
        block = b"x" * (300 * MIB)
        await becomes(service, "degraded")
        with refused():
            await service.create_session("hello")
        del block
        await becomes(service, "ok")
        await service.create_session("hello")


async def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If nothing is known nothing is refused."""
    monkeypatch.setattr(gauge, "STATM", tmp_path / "nothing")
    assert resident() is None
    async with open_supervisor(Config(limits=Limits(max_memory=1))) as service:
        await service.create_session("hello")
        await service.create_session("hello")
