"""Streams of turns in the runtime: keys, inboxes, turns that go on, and readers that are slow."""

from pathlib import Path

import pytest
import trio
import trio.testing

from tests.support.asking import ask
from tests.support.checks import names, numbers
from tests.support.fake_service import FakeService, publishing
from tests.support.models import Emit, Flood, FunctionModel, Puppet, reply
from tests.support.runtime import new_session, open_runtime, replay
from warren.conversation.events import ModelSwitched, StreamTruncated, TextComplete, TextDelta, TurnResumed
from warren.conversation.messages import ToolUseBlock, UserMessage
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.models.tools import tool
from warren.settings.config import Config, Limits

pytestmark = pytest.mark.virtual_time


async def test_a_prompt_that_waits_enters_its_stream_when_its_turn_begins() -> None:
    """In the mode `queue` behind the turn before; given up before that it stays in the inbox."""
    model = Puppet()
    async with open_runtime(model) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        first = ask(nursery, service.start_turn, session_id, "one")
        await model.reached(1)
        with trio.move_on_after(1) as given_up:
            async with service.stream_turn(session_id, "two", mode="queue"):
                raise AssertionError("the body has begun")
        assert given_up.cancelled_caught
        model.say("1", None, "2", None, "3", None)
        async with service.stream_turn(session_id, "three", mode="queue") as events:
            assert first.ended.is_set()
            heard = [envelope async for envelope in events]
            assert (await events.result()).text == "3"
        assert names(heard) == names((await replay(service, session_id))[-len(heard) :])
        assert service.statistics().subscriptions == 0


async def test_the_stream_of_a_steer_is_the_rest_of_the_turn_that_takes_it() -> None:
    """From the event on that says so; the result is that turn's."""
    go = trio.Event()

    @tool
    async def look() -> str:
        """Look."""
        await go.wait()
        return "seen"

    async def answer(request: ModelRequest, _emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        steered = [each for each in request.messages if isinstance(each, UserMessage)][1:]
        return reply("both" if steered else "", *(() if steered else (ToolUseBlock("c1", "look", {}),)))

    async with open_runtime(FunctionModel(answer), tools=[look]) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        first = ask(nursery, service.start_turn, session_id, "one")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(_set_later, go)
        async with service.stream_turn(session_id, "two", mode="steer") as events:
            heard = [envelope async for envelope in events]
            assert await events.result() == await first.value()
    assert (names(heard)[0], names(heard)[-1]) == ("input_taken", "run_completed")


async def _set_later(event: trio.Event) -> None:
    await trio.sleep(1)
    event.set()


async def test_a_prompt_that_is_sent_again_streams_the_turn_of_the_first(tmp_path: Path) -> None:
    """Whole, though it is over; one that failed then fails now, behind its events."""

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        if request.messages[-1] == UserMessage("bad"):
            raise OSError("no")
        emit(TextPiece("well"))
        return reply("well")

    async with open_runtime(FunctionModel(answer), store=tmp_path) as service:
        session_id = await new_session(service)
        for prompt in ("good", "bad"):
            heard, ends = list[list[int]](), list[object]()
            for _ in range(2):
                async with service.stream_turn(session_id, prompt, mode="queue", idempotency_key=prompt) as events:
                    heard.append(numbers([envelope async for envelope in events]))
                    try:
                        ends.append(await events.result())
                    except Exception as exc:  # noqa: BLE001 - compared below
                        ends.append(str(exc))
                await service.start_turn(session_id, "between")
            assert heard[0] == heard[1] != []
            assert ends[0] == ends[1]
            assert service.statistics().subscriptions == 0


async def test_a_slow_reader_of_a_stream_holds_nothing_up_and_misses_nothing(tmp_path: Path) -> None:
    """The turn ends and is stored first; its deltas come merged, with their whole text."""
    model = Flood(500, "0123456789", burst=50)
    async with open_runtime(model, store=tmp_path) as service:
        session_id = await new_session(service)
        async with service.stream_turn(session_id, "go") as events:
            result = await events.result()
            assert (await service.read(session_id)).state.message_count == 2
            heard = [envelope async for envelope in events]
    assert numbers(heard) == list(range(result.first_seq or 0, (result.last_seq or 0) + 1))
    assert "".join(each.event.delta for each in heard if isinstance(each.event, TextDelta)) == "0123456789" * 500


async def test_a_stream_whose_last_events_are_kept_nowhere_ends() -> None:
    """Without a store memory keeps the newest events alone: a marker stands for the others, and the stream ends."""
    config = Config(limits=Limits(event_log=8))
    async with open_runtime(Flood(100, "x"), config=config) as service:
        session_id = await new_session(service)
        async with service.stream_turn(session_id, "go") as events:
            result = await events.result()
            for _ in range(3):
                await service.start_turn(session_id, "and on")
            with trio.fail_after(1):
                heard = [envelope async for envelope in events]
    marker = heard[0].event
    assert isinstance(marker, StreamTruncated)
    assert marker.before + marker.dropped >= (result.last_seq or 0)
    assert len(heard) == 1


async def test_the_texts_of_a_model_that_does_not_stream() -> None:
    """The whole text is one piece; those of two steps are kept apart."""

    @tool
    async def look() -> str:
        """Look."""
        await trio.lowlevel.checkpoint()
        return "seen"

    async def answer(request: ModelRequest, emit: Emit) -> ModelReply:
        await trio.lowlevel.checkpoint()
        if len(request.messages) == 1:
            return reply("I look.", ToolUseBlock("c1", "look", {}))
        emit(TextPiece("I "))
        return reply("I saw.")

    async with (
        open_runtime(FunctionModel(answer), tools=[look]) as service,
        service.stream_session("go") as events,
    ):
        assert [text async for text in events.texts()] == ["I look.", "\n\n", "I ", "saw."]


async def test_the_texts_of_answers_that_are_begun_anew() -> None:
    """By the process that takes the turn up, and by another model: the empty line tells them apart."""
    said = TextDelta("The f")
    for anew in (TurnResumed(1, 2), ModelSwitched("a", "b", "overloaded", discarded=True)):
        service = FakeService(publishing(said, anew, TextDelta("The"), TextDelta(" end"), TextComplete("The end")))
        async with service.stream_turn("s1", "go") as events:
            assert "".join([text async for text in events.texts()]) == "The f\n\nThe end"
