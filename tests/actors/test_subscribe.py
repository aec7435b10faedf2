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
from warren.base.errors import AgentError, InvalidParamsError, SessionNotFoundError
from warren.conversation.events import Envelope, RunFailed, StreamTruncated
from warren.settings.config import Config, Limits

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


async def test_a_slow_subscriber_does_not_slow_the_turn(store: Path | None) -> None:
    """Turns end while a subscriber that follows live reads nothing; it then gets every event of them."""
    turns = [[f"{number} " for number in range(2_000)] for _ in range(3)]
    async with open_runtime(says(*turns), store=store) as service:
        session_id = await new_session(service)
        async with service.subscribe(session_id) as events:
            for _ in turns:
                await service.start_turn(session_id, "hello")
            found = list[Envelope]()
            while names(found).count("run_completed") < len(turns):
                found.append(await anext(events))
        assert_valid_stream(found)
        assert numbers(found) == list(range(1, found[-1].seq + 1))


async def test_a_slow_subscriber_outlives_the_session_in_memory(tmp_path: Path) -> None:
    """A subscriber that is in the middle of the log when its session is evicted reads on, and follows what comes."""
    config = Config(limits=Limits(idle_after=1))
    answer = ["a" * 2_000, "b "]  # a hundred of them are more than the store reads at once
    async with open_runtime(says(*[answer] * 100), store=tmp_path, config=config) as service:
        session_id = await new_session(service)
        async with service.subscribe(session_id, after_seq=0) as events:
            for _ in range(99):
                await service.start_turn(session_id, "hello")
            found = [await anext(events)]
            await trio.sleep(10)
            assert service.health().live_sessions == 0
            await service.start_turn(session_id, "hello")
            while names(found).count("run_completed") < 100:
                found.append(await anext(events))
        assert_valid_stream(found)
        assert numbers(found) == list(range(1, found[-1].seq + 1))


async def test_a_reader_cannot_change_an_envelope(tmp_path: Path) -> None:
    """All readers and the log share it: the attempt fails, and nobody sees anything of it."""

    def spoil(envelope: Envelope) -> None:
        with pytest.raises(AttributeError):
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
    """A reader with the number of an event that was lost with the process is not refused, and misses nothing."""
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


async def test_a_slow_subscriber_outlives_a_hand_over(tmp_path: Path) -> None:
    """A subscriber that reads nothing while its session goes to another process and back gets all that both told."""
    model = says(*[["a ", "b "]] * 60)
    async with open_runtime(model, store=tmp_path) as service, open_runtime(model, store=tmp_path) as other:
        session_id = await new_session(service)
        async with service.subscribe(session_id) as events:
            for host in (service, other, service):
                for _ in range(20):
                    await host.start_turn(session_id, "hello")
            found = list[Envelope]()
            with trio.fail_after(60):
                while names(found).count("run_completed") < 60:
                    found.append(await anext(events))
        assert_valid_stream(found)
        assert [each.event for each in found] == [each.event for each in await replay(other, session_id)]


async def test_a_slow_subscriber_of_a_deleted_session_is_told_what_is_missing(tmp_path: Path) -> None:
    """The events that it had not read when the session was deleted are kept nowhere: a marker says how much that is."""
    async with open_runtime(says(*[["a ", "b "]] * 5), store=tmp_path) as service:
        session_id = await new_session(service)
        async with service.subscribe(session_id) as events:
            for _ in range(5):
                await service.start_turn(session_id, "hello")
            await service.delete(session_id)
            with trio.fail_after(1):
                found = [envelope async for envelope in events]
        gap, *rest = found
        assert isinstance(gap.event, StreamTruncated)
        assert (gap.event.resume_after, gap.event.cause) == (0, None)
        assert numbers(rest) == list(range(gap.event.dropped + 1, 31))


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
