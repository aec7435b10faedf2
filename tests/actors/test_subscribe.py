"""Subscriptions through the service: where they may begin, what a slow one gets, and when they end."""

from pathlib import Path

import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.checks import assert_valid_stream, names, numbers
from tests.support.faulty_store import Faults
from tests.support.models import FunctionModel, says, stuck
from tests.support.runtime import Recorder, new_session, open_runtime, replay
from warren.config import Config, Limits
from warren.errors import AgentError, InvalidParamsError, PersistenceDisabledError, SessionNotFoundError
from warren.events import Envelope, RunFailed, StreamTruncated

pytestmark = pytest.mark.virtual_time


async def test_a_place_ahead_of_the_log_is_refused(store: Path | None) -> None:
    """`after_seq` has to be a number that was given out; the error names the field."""
    async with open_runtime(says(["hi"]), store=store) as service:
        session_id = (await service.create_session("hello")).session_id
        for after_seq in (-1, 7):
            with pytest.raises(InvalidParamsError) as caught:
                async with service.subscribe(session_id, after_seq=after_seq):
                    pass
            assert caught.value.path == "$.after_seq"
        assert numbers(await replay(service, session_id, 5)) == [6]


async def test_events_that_are_gone_need_a_store() -> None:
    """Without a store only the newest events are kept: an earlier place is refused, a later one works."""
    config = Config(limits=Limits(event_log=2))
    async with open_runtime(says(["hi"]), config=config) as service:
        session_id = (await service.create_session("hello")).session_id
        with pytest.raises(PersistenceDisabledError):
            async with service.subscribe(session_id, after_seq=0):
                pass
        assert names(await replay(service, session_id, 4)) == ["turn_completed", "run_completed"]


async def test_a_slow_subscriber_does_not_slow_the_turn(store: Path | None) -> None:
    """It gets what fits, one marker with the right numbers, and a replay from there brings the rest."""
    words = [f"{number} " for number in range(50)]
    config, recorder = Config(limits=Limits(subscription=10)), Recorder()
    async with open_runtime(says(words), store=store, config=config) as service:
        session_id = await new_session(service)
        async with service.subscribe(session_id) as events:
            turn = trio.Event()

            async def read_slowly() -> list[Envelope]:
                with trio.move_on_after(0.01):  # until it follows live: before that it reads from the log
                    await events.__anext__()
                await turn.wait()
                found: list[Envelope] = []
                with trio.move_on_after(0.01):
                    async for envelope in events:
                        found.append(envelope)  # noqa: PERF401 - what was found stays when the time is over
                return found

            async with trio.open_nursery() as nursery:
                reader = ask(nursery, read_slowly)
                await trio.sleep(0.02)
                await service.start_turn(session_id, "hello", on_event=recorder)
                turn.set()
            found = await reader.value()
        marker = found[-1].event
        assert isinstance(marker, StreamTruncated)
        assert numbers(found[:-1]) == list(range(1, 11))
        assert marker == StreamTruncated(dropped=len(recorder.envelopes) - 10, resume_after=10)
        missing = await replay(service, session_id, marker.resume_after)
        assert numbers(missing) == list(range(11, len(recorder.envelopes) + 1))


async def test_an_envelope_is_its_readers_own(tmp_path: Path) -> None:
    """What one who reads along does to it is seen by nobody else, nor by the log."""

    def spoil(envelope: Envelope) -> None:
        envelope.seq, envelope.session_id = 99, "another"  # type: ignore[misc]

    async with open_runtime(says(["one"]), store=tmp_path) as service:
        session_id = await new_session(service)
        async with service.subscribe(session_id) as spoiled, service.subscribe(session_id) as events:
            await service.start_turn(session_id, "hello", mode="queue", on_event=spoil)
            for _ in range(4):
                spoil(await spoiled.__anext__())
            found = [await events.__anext__() for _ in range(4)]
            assert found == (await replay(service, session_id))[:4]


async def test_an_archived_session_can_be_replayed(tmp_path: Path) -> None:
    """Its whole log is there, and then the stream ends."""
    async with open_runtime(says(["hi"]), store=tmp_path) as service:
        session_id = (await service.create_session("hello")).session_id
        await service.archive(session_id)
        with trio.fail_after(1):
            async with service.subscribe(session_id, after_seq=0) as events:
                found = [envelope async for envelope in events]
        assert names(found)[-1] == "run_completed"
        assert service.health().live_sessions == 0


async def test_a_place_that_was_seen_before_a_crash_of_the_process(tmp_path: Path) -> None:
    """Who comes back with the number of an event that was lost with the process is not refused, and misses nothing."""
    faults, lost, after = Faults(), Recorder(), Recorder()
    async with open_runtime(FunctionModel(stuck), store=tmp_path, faults=faults) as service:
        session_id = await new_session(service)
        async with trio.open_nursery() as nursery:
            turn = ask(nursery, service.start_turn, session_id, "hello", on_event=lost)
            await trio.testing.wait_all_tasks_blocked()
            faults.crash_before = 2  # the commit of the interrupted turn, and the question what came of it
            await service.interrupt(session_id)
            await turn.ended.wait()
    assert isinstance(lost.events[-1], RunFailed)
    async with open_runtime(says(["hi"]), store=tmp_path) as service:
        async with service.subscribe(session_id, after_seq=lost.envelopes[-1].seq) as events:
            await service.start_turn(session_id, "again", on_event=after)
            found = [await events.__anext__() for _ in after.envelopes]
        assert numbers(found) == numbers(after.envelopes)
        assert_valid_stream([*lost.envelopes, *after.envelopes])


async def test_many_come_and_go(store: Path | None) -> None:
    """Subscribers that leave in the middle of a turn are forgotten, and harm neither it nor each other."""
    async with open_runtime(FunctionModel(stuck), store=store) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "hello")
        for _ in range(20):
            await replay(service, session_id)
        assert names(await replay(service, session_id))[:2] == ["run_started", "turn_started"]
        await service.interrupt(session_id)
        await turn.failure(AgentError)


async def test_a_deleted_sessions_stream_ends(tmp_path: Path) -> None:
    """Its subscribers get what was published, then the end; a new one is refused."""
    async with open_runtime(says(["hi"]), store=tmp_path) as service:
        session_id = (await service.create_session("hello")).session_id
        async with service.subscribe(session_id) as events:
            await service.delete(session_id)
            with trio.fail_after(1):
                assert [envelope async for envelope in events] == []
        with pytest.raises(SessionNotFoundError):
            async with service.subscribe(session_id):
                pass
