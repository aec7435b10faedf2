"""The events of a turn that goes on in another process, for those who follow it and for those who ask again."""

import contextlib
from functools import partial
from pathlib import Path

import apsw
import attrs
import pytest
import trio
import trio.testing

from tests.support.asking import Asked, ask
from tests.support.checks import assert_valid_stream, counted, names
from tests.support.faulty_store import Faults
from tests.support.models import Emit, FunctionModel, reply, stuck
from tests.support.runtime import new_session, open_runtime, replay, supervisor_of
from warren.base.errors import AgentError, StoreError
from warren.calls.facade import SessionService
from warren.calls.streams import EventReader
from warren.conversation.events import TERMINAL, Envelope, TextDelta, TurnResumed
from warren.conversation.messages import AssistantMessage, ToolUseBlock
from warren.conversation.views import TurnResult
from warren.models.model import ModelReply, ModelRequest, TextPiece
from warren.models.tools import tool
from warren.settings.config import Config, Limits
from warren.storage.operations import Commit
from warren.storage.rows import SEQ_STRIDE
from warren.storage.sqlite.file import FILE_NAME
from warren.transport.rpc.relay import Relay, last_seq_of

pytestmark = pytest.mark.virtual_time
ONE = Config(limits=Limits(max_sessions=1))


@tool
async def look() -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return "seen"


@attrs.define(eq=False)
class Halting:
    """A model that asks for a tool and then answers; it stands still in the middle of its first answers.

    Attributes:
        halts: how many answers are never ended.
        looks: whether it asks for the tool.
        asked: the number of its calls.
    """

    halts: int = 1
    looks: bool = True
    asked: int = 0

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelReply:
        """Make an answer."""
        self.asked += 1
        await trio.lowlevel.checkpoint()
        if self.looks and not any(isinstance(each, AssistantMessage) for each in request.messages):
            emit(TextPiece("let me see"))
            return reply("let me see", ToolUseBlock("c1", "look"))
        emit(TextPiece(f"try {self.asked}"))
        if self.asked <= self.halts + self.looks:
            await trio.sleep_forever()
        emit(TextPiece(", whole"))
        return reply(f"try {self.asked}, whole")


def said(log: list[Envelope]) -> str:
    """Return the text that deltas have brought."""
    return "".join(each.event.delta for each in log if isinstance(each.event, TextDelta))


async def begun_and_stopped(model: Halting, store: Path) -> tuple[str, list[Envelope]]:
    """Stop a runtime in the middle of an answer; return the session, and the events that a reader was shown."""
    log = list[Envelope]()
    async with trio.open_nursery() as nursery:
        async with open_runtime(FunctionModel(model.answer), store=store, tools=[look]) as service:
            session_id = await new_session(service)
            turn = ask(
                nursery,
                partial(service.start_turn, session_id, "go", mode="queue", idempotency_key="k", on_event=log.append),
            )
            await trio.testing.wait_all_tasks_blocked()
        error = await turn.failure(AgentError)
        assert (error.cause, error.details["first_seq"]) == ("shutting_down", log[0].seq)
        assert "last_seq" not in error.details
    return session_id, log


async def followed(service: SessionService, session_id: str, after_seq: int) -> list[Envelope]:
    """Return the events above a number, up to the end of the turn."""
    found = list[Envelope]()
    with trio.fail_after(60):
        async with service.subscribe(session_id, after_seq=after_seq) as events:
            async for envelope in events:
                found.append(envelope)
                if isinstance(envelope.event, TERMINAL):
                    break
    return found


@pytest.mark.parametrize("stops", [1, 3])
async def test_a_reader_takes_back_what_no_process_has_kept(tmp_path: Path, stops: int) -> None:
    """Behind the last event that it was shown it gets the rest; what counts of both is the answer, each piece once."""
    model = Halting(stops)
    session_id, log = await begun_and_stopped(model, tmp_path)
    for _ in range(stops - 1):
        async with open_runtime(FunctionModel(model.answer), store=tmp_path, tools=[look]) as service:
            await trio.testing.wait_all_tasks_blocked()
            async with service.subscribe(session_id, after_seq=log[-1].seq) as events:
                log += events.take() or await events.load()
    async with open_runtime(FunctionModel(model.answer), store=tmp_path, tools=[look]) as service:
        log += await followed(service, session_id, log[-1].seq)
        stored = await replay(service, session_id)
    assert_valid_stream(log)
    assert [each.event.resumed for each in log if isinstance(each.event, TurnResumed)] == list(range(1, stops + 1))
    assert said(counted(log)) == said(counted(stored)) == f"let me seetry {stops + 2}, whole"
    assert names(counted(log)).count("tool_result_received") == 1


async def test_a_turn_that_is_put_back_in_its_first_answer(tmp_path: Path) -> None:
    """Its prompt is kept, and nothing of the answer: the text so far is taken back."""
    model = Halting(looks=False)
    session_id, log = await begun_and_stopped(model, tmp_path)
    async with open_runtime(FunctionModel(model.answer), store=tmp_path, tools=[look]) as service:
        log += await followed(service, session_id, log[-1].seq)
        stored = await replay(service, session_id)
    assert said(log) == "try 1try 2, whole"
    assert said(counted(log)) == said(counted(stored)) == "try 2, whole"
    assert names(counted(log))[:3] == ["run_started", "turn_resumed", "turn_started"]


@pytest.mark.parametrize("how", ["interrupt", "archive"])
async def test_an_end_without_a_process_takes_back_what_was_not_kept(tmp_path: Path, how: str) -> None:
    """A reader that was shown a part of an answer is told that it does not count before it is told of the end."""
    session_id, log = await begun_and_stopped(Halting(), tmp_path)
    assert said(log) == "let me seetry 2"
    async with open_runtime(FunctionModel(stuck), store=tmp_path, tools=[look], config=ONE) as service:
        async with trio.open_nursery() as nursery:
            ask(nursery, service.start_turn, (await new_session(service)), "take the room")
            await trio.lowlevel.checkpoint()
            await getattr(service, how)(session_id)
            nursery.cancel_scope.cancel()
        log += await followed(service, session_id, log[-1].seq)
        stored = await replay(service, session_id)
    assert_valid_stream(log)
    assert names(log)[-2:] == ["turn_resumed", "run_failed"]
    assert said(counted(log)) == said(counted(stored)) == "let me see"


async def test_a_caller_of_a_turn_that_the_store_refuses_waits_for_no_end(tmp_path: Path) -> None:
    """It has the events so far, and the error; the end comes with the turn that goes on, for those who read on."""
    model, faults, log = Halting(halts=0), Faults(refuse_kinds=(Commit,)), list[Envelope]()

    @tool(name="look")
    async def breaks() -> str:
        """Look."""
        await trio.lowlevel.checkpoint()
        faults.refuse = apsw.FullError("full")
        return "seen"

    async def send(envelope: Envelope) -> None:
        await trio.lowlevel.checkpoint()
        log.append(envelope)

    async with open_runtime(FunctionModel(model.answer), store=tmp_path, tools=[breaks], faults=faults) as service:
        session_id = await new_session(service)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                relay = Relay(send, nursery)
                turn = ask(nursery, partial(service.start_turn, session_id, "go", on_begin=relay.begin))
                error = await turn.failure(StoreError)
                await relay.settle(last_seq_of(error))
        assert (error.cause, "last_seq" in error.details) == ("disk_full", False)
        faults.refuse = None
        result = await service.wait_turn(session_id)
        rest = await followed(service, session_id, log[-1].seq)
    assert names(log)[-1] == "turn_completed"
    assert rest[-1].seq == result.last_seq
    assert_valid_stream([*log, *rest])


async def test_events_are_counted_by_the_process_that_has_published_them(tmp_path: Path) -> None:
    """A turn that goes on counts as many as it has here, though a takeover leaves numbers out."""
    model = Halting()
    session_id, log = await begun_and_stopped(model, tmp_path)
    with contextlib.closing(apsw.Connection(str(tmp_path / FILE_NAME))) as db:
        db.execute("UPDATE sessions SET last_seq = last_seq + ?", (SEQ_STRIDE,))
    async with open_runtime(FunctionModel(model.answer), store=tmp_path, tools=[look]) as service:
        rest = await followed(service, session_id, log[-1].seq)
        counted_here = supervisor_of(service).shared.counters.events
    assert rest[0].seq > SEQ_STRIDE
    assert counted_here == rest[-1].seq - rest[0].seq + 1


async def test_who_asks_again_gets_the_events_of_the_whole_turn(tmp_path: Path) -> None:
    """From the first one on, which another process has stored, up to the end; so its key is all that it has to keep."""
    model = Halting()
    session_id, _ = await begun_and_stopped(model, tmp_path)
    readers = list[EventReader]()
    async with open_runtime(FunctionModel(model.answer), store=tmp_path, tools=[look]) as service:
        async with trio.open_nursery() as nursery:
            start = partial(service.start_turn, session_id, "go", mode="queue", idempotency_key="k")
            again: Asked[TurnResult] = ask(nursery, partial(start, on_begin=readers.append))
            result = await again.value()
        found = list[Envelope]()
        async for envelope in readers[0]:
            found.append(envelope)
            if isinstance(envelope.event, TERMINAL):
                break
    assert (found[0].seq, found[-1].seq) == (result.first_seq, result.last_seq)
    assert_valid_stream(found)
    assert said(counted(found)) == "let me see" + result.text


async def test_a_stream_ends_with_its_call_if_the_store_refuses_the_turn(tmp_path: Path) -> None:
    """Behind the events so far: the turn is put back, and goes on once the store takes it."""
    faults = Faults(refuse_kinds=(Commit,))

    @tool(name="look")
    async def breaks() -> str:
        """Look."""
        await trio.lowlevel.checkpoint()
        faults.refuse = apsw.FullError("full")
        return "seen"

    model = Halting(halts=0)
    async with open_runtime(FunctionModel(model.answer), store=tmp_path, tools=[breaks], faults=faults) as service:
        session_id = await new_session(service)
        async with service.stream_turn(session_id, "go") as events:
            with trio.fail_after(60):
                heard = [envelope async for envelope in events]
            with pytest.raises(StoreError) as caught:
                await events.result()
        assert (caught.value.cause, "last_seq" in caught.value.details) == ("disk_full", False)
        assert names(heard)[-1] == "turn_completed"
        faults.refuse = None
        result = await service.wait_turn(session_id)
        assert result.last_seq == (await replay(service, session_id, events.seq))[-1].seq


async def test_the_texts_of_a_turn_that_goes_on_after_its_process(tmp_path: Path) -> None:
    """What no process has kept is said again behind an empty line: a piece cannot be taken back."""
    model = Halting()
    session_id, _ = await begun_and_stopped(model, tmp_path)
    async with (
        open_runtime(FunctionModel(model.answer), store=tmp_path, tools=[look]) as service,
        service.stream_turn(session_id, "go", mode="queue", idempotency_key="k") as events,
    ):
        texts = [text async for text in events.texts()]
        result = await events.result()
    assert "".join(texts) == "let me see\n\ntry 2\n\ntry 3, whole"
    assert result.text == "try 3, whole"
