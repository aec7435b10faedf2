"""The contract of `RuntimeService`, on the runtime with and without a file, and on the fake that stands in for it.

The tests of `tests/actors` go further; this suite is the part that tests of surfaces rely on. The fake keeps no
transcripts, checks no options, and has no inboxes, peers, forks or approvals: no test here asks it for them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.asking import ask
from tests.support.checks import assert_valid_stream, names, numbers
from tests.support.envelopes import texts
from tests.support.fake_service import FakeService, FakeTurn, echo
from tests.support.models import Emit, FunctionModel, reply
from tests.support.runtime import Recorder, new_session, open_runtime, replay
from warren.base.errors import (
    AgentError,
    InvalidParamsError,
    MemoryDisabledError,
    ProviderError,
    SessionBusyError,
    SessionNotFoundError,
    SessionNotRunningError,
)
from warren.calls.facade import RuntimeService
from warren.conversation.events import TERMINAL, RunCompleted, RunFailed
from warren.conversation.messages import UserMessage
from warren.models.model import ModelReply, ModelRequest, TextPiece

pytestmark = pytest.mark.virtual_time

REFUSAL = ProviderError("no such model", retryable=False)


async def model(request: ModelRequest, emit: Emit) -> ModelReply:
    """Repeat the last prompt word for word, except: `wait` never ends, and `fail` fails."""
    prompt = next(each.content for each in reversed(request.messages) if isinstance(each, UserMessage))
    await trio.lowlevel.checkpoint()
    if prompt == "wait":
        await trio.sleep_forever()
    if prompt == "fail":
        raise REFUSAL
    for word in prompt.split():
        emit(TextPiece(word))
    return reply(prompt)


async def behave(turn: FakeTurn) -> None:
    """Do in a fake turn the same as `model`."""
    if turn.prompt == "wait":
        await trio.sleep_forever()
    if turn.prompt == "fail":
        raise REFUSAL
    await echo(turn)


@pytest.fixture(params=["memory", "file", "fake"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path | None:
    """The service under test: a folder is a runtime with a store, None a runtime without one."""
    return {"memory": None, "file": tmp_path, "fake": "fake"}[request.param]


Subject = str | Path | None


@asynccontextmanager
async def serving(subject: Subject) -> AsyncIterator[RuntimeService]:
    """Open the service for a body."""
    if isinstance(subject, str):
        yield FakeService(behave, sessions={})
    else:
        async with open_runtime(FunctionModel(model), store=subject) as service:
            yield service


Call = Callable[[RuntimeService], Awaitable[object]]


async def follow(service: RuntimeService) -> None:
    """Subscribe to a session that does not exist."""
    async with service.subscribe("nobody"):
        pass


@pytest.mark.parametrize(
    "call",
    [
        lambda service: service.start_turn("nobody", "hello"),
        lambda service: service.read("nobody"),
        lambda service: service.history("nobody"),
        lambda service: service.interrupt("nobody"),
        lambda service: service.archive("nobody"),
        lambda service: service.label("nobody", {"a": "b"}),
        lambda service: service.inputs("nobody"),
        follow,
    ],
)
async def test_an_unknown_session_is_refused(subject: Subject, call: Call) -> None:
    """Each method with a session id raises SessionNotFoundError."""
    async with serving(subject) as service:
        with pytest.raises(SessionNotFoundError):
            await call(service)


async def test_a_session_without_a_prompt_runs_no_turn(subject: Subject) -> None:
    """A session that was only created is idle, and its log is empty."""
    async with serving(subject) as service:
        result = await service.create_session(None, labels={"team": "red"}, title="plans")
        assert (result.text, result.steps) == ("", 0)
        state = (await service.read(result.session_id)).state
        assert (state.session_id, state.is_active, state.message_count) == (result.session_id, False, 0)
        assert (state.labels, state.title) == ({"team": "red"}, "plans")
        assert await replay(service, result.session_id) == []


async def test_a_turn_reports_whole_and_in_order(subject: Subject) -> None:
    """Its caller and the log have the same events, numbered from 1, all of them before the result."""
    recorder = Recorder()
    async with serving(subject) as service:
        result = await service.create_session("one two", on_event=recorder)
        heard = list(recorder.envelopes)
        assert (result.text, result.steps) == ("one two", 1)
        assert_valid_stream(heard)
        assert names(heard)[0] == "run_started"
        assert isinstance(heard[-1].event, RunCompleted)
        assert texts(heard) == "onetwo"
        log = await replay(service, result.session_id)
        assert numbers(log) == list(range(1, log[-1].seq + 1))
        assert names(log)[0] == "run_started"
        assert texts(log) == "onetwo"
        assert log[-1] == heard[-1]


async def test_a_second_turn_goes_on(subject: Subject) -> None:
    """A further turn is numbered on, and its messages are added."""
    async with serving(subject) as service:
        session_id = (await service.create_session("one")).session_id
        before = (await replay(service, session_id))[-1].seq
        result = await service.start_turn(session_id, "two")
        after = await replay(service, session_id, before)
        assert (result.text, result.first_seq, result.last_seq) == ("two", before + 1, after[-1].seq)
        assert numbers(after) == list(range(before + 1, after[-1].seq + 1))
        assert (await service.read(session_id)).state.message_count == 4


async def test_a_failed_turn_raises_its_error_behind_its_events(subject: Subject) -> None:
    """The last event says that the turn failed; the session takes the next turn."""
    recorder = Recorder()
    async with serving(subject) as service:
        session_id = await new_session(service)
        with pytest.raises(ProviderError, match="no such model"):
            await service.start_turn(session_id, "fail", on_event=recorder)
        assert_valid_stream(recorder.envelopes)
        assert isinstance(recorder.events[-1], RunFailed)
        assert (await service.start_turn(session_id, "hello")).text == "hello"


async def test_one_turn_at_a_time(subject: Subject) -> None:
    """A second turn is refused at once, and changes nothing; `read` and `health` tell of the first."""
    async with serving(subject) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "wait")
        await wait_all_tasks_blocked()
        with pytest.raises(SessionBusyError):
            await service.start_turn(session_id, "hello")
        assert (await service.read(session_id)).state.is_active
        assert service.health().running_turns == service.statistics().running_turns == 1
        await service.interrupt(session_id)
        await turn.failure(AgentError)
        assert service.health().running_turns == service.statistics().running_turns == 0


async def test_an_interrupt_ends_the_turn(subject: Subject) -> None:
    """When `interrupt` returns the turn has ended: its caller has the error, and the session is free."""
    recorder = Recorder()
    async with serving(subject) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "wait", on_event=recorder)
        await wait_all_tasks_blocked()
        await service.interrupt(session_id)
        assert isinstance(recorder.events[-1], RunFailed)
        assert (await turn.failure(AgentError)).cause == "cancelled"
        assert (await service.start_turn(session_id, "hello")).text == "hello"


async def test_an_interrupt_needs_a_turn(subject: Subject) -> None:
    """An idle session has nothing to interrupt."""
    async with serving(subject) as service:
        session_id = (await service.create_session("hello")).session_id
        with pytest.raises(SessionNotRunningError):
            await service.interrupt(session_id)


async def test_a_caller_that_gives_up_leaves_its_turn_running(subject: Subject) -> None:
    """Cancelling the call cancels the wait alone."""
    async with serving(subject) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "wait")
        await wait_all_tasks_blocked()
        turn.scope.cancel()
        await turn.ended.wait()
        assert (await service.read(session_id)).state.is_active
        await service.interrupt(session_id)
        assert not (await service.read(session_id)).state.is_active


async def test_a_subscription_begins_with_the_next_event(subject: Subject) -> None:
    """Without a number there is nothing of the past; with one, everything above it, then what happens."""
    async with serving(subject) as service:
        session_id = (await service.create_session("one")).session_id
        last = (await replay(service, session_id))[-1].seq
        async with (
            service.subscribe(session_id) as live,
            service.subscribe(session_id, after_seq=2) as all_above,
        ):
            await service.start_turn(session_id, "two")
            assert (await anext(live)).seq == last + 1
            found = [await anext(all_above)]
            while sum(isinstance(each.event, TERMINAL) for each in found) < 2:
                found.append(await anext(all_above))
        assert numbers(found)[0] == 3
        assert numbers(found) == list(range(3, found[-1].seq + 1))


@pytest.mark.parametrize("after_seq", [-1, 99])
async def test_a_subscription_begins_within_the_log(subject: Subject, after_seq: int) -> None:
    """A number that no event has had is refused by the name of its field."""
    async with serving(subject) as service:
        session_id = (await service.create_session("hello")).session_id
        with pytest.raises(InvalidParamsError) as caught:
            async with service.subscribe(session_id, after_seq=after_seq):
                pass
        assert caught.value.path == "$.after_seq"


async def test_archiving_ends_a_session(subject: Subject) -> None:
    """Subscriptions end behind the last event, turns are refused, `list` hides the session, and a repeat is nothing."""
    async with serving(subject) as service:
        session_id = (await service.create_session("hello")).session_id
        async with service.subscribe(session_id, after_seq=0) as events:
            await service.archive(session_id)
            with trio.fail_after(1):
                found = [envelope async for envelope in events]
        assert isinstance(found[-1].event, RunCompleted)
        with pytest.raises(SessionNotFoundError):
            await service.start_turn(session_id, "again")
        assert (await service.list()).sessions == ()


async def test_sessions_are_listed(subject: Subject) -> None:
    """Pages hold each session once, and labels select."""
    async with serving(subject) as service:
        made = [await new_session(service, labels={"odd": str(number % 2)}) for number in range(3)]
        shown = [(await service.list(offset=offset, limit=1)).sessions[0].session_id for offset in range(3)]
        assert sorted(shown) == sorted(made)
        assert [each.labels for each in (await service.list(labels={"odd": "1"})).sessions] == [{"odd": "1"}]


async def test_labels_change(subject: Subject) -> None:
    """New ones are added, named ones replaced, and None removes one; the title is another matter."""
    async with serving(subject) as service:
        session_id = (await service.create_session(None, labels={"a": "1", "b": "2"}, title="old")).session_id
        view = await service.label(session_id, {"a": None, "b": "3", "c": "4"})
        assert (view.state.labels, view.state.title) == ({"b": "3", "c": "4"}, "old")
        assert (await service.label(session_id, title="new")).state.title == "new"
        assert (await service.read(session_id)).state.labels == {"b": "3", "c": "4"}


async def test_a_memory_that_is_off_says_so(subject: Subject) -> None:
    """A search is refused by the error of the capability."""
    async with serving(subject) as service:
        assert not service.capabilities().memory_store
        with pytest.raises(MemoryDisabledError):
            await service.search_memory("boats", scope="project")


async def test_draining_lets_turns_end(subject: Subject) -> None:
    """No new turn is taken, the running one ends by itself, and everything else still works."""
    async with serving(subject) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "wait")
        await wait_all_tasks_blocked()
        drain = ask(nursery, service.drain)
        await wait_all_tasks_blocked()
        with pytest.raises(AgentError) as caught:
            await service.create_session("hello")
        assert caught.value.cause == "shutting_down"
        assert not drain.ended.is_set()
        assert (await service.read(session_id)).state.is_active
        assert service.health().status == "degraded"
        await service.interrupt(session_id)
        await turn.failure(AgentError)
        await drain.ended.wait()


async def test_stopping_ends_everything(subject: Subject) -> None:
    """Running turns end, or are put back into the store; subscriptions end, and later calls are refused."""
    async with serving(subject) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "wait")
        await wait_all_tasks_blocked()
        async with service.subscribe(session_id) as events:
            await service.stop()
            with trio.fail_after(1):
                ends = [each.event async for each in events if isinstance(each.event, RunFailed)]
                assert len(ends) == (not service.capabilities().session_store)
        assert (await turn.failure(AgentError)).cause == "shutting_down"
        for call in (service.read(session_id), service.start_turn(session_id, "hello"), service.list()):
            with pytest.raises(AgentError) as caught:
                await call
            assert caught.value.cause == "shutting_down"
        await service.stop()


async def test_a_stream_has_the_turn_from_its_first_event_to_its_last(subject: Subject) -> None:
    """It is what the log has of the turn, and ends there, whatever comes later; the result is that of `start_turn`."""
    async with serving(subject) as service:
        session_id = (await service.create_session("one")).session_id
        before = (await replay(service, session_id))[-1].seq
        async with service.stream_turn(session_id, "two three") as events:
            assert (events.session_id, events.seq) == (session_id, before)
            early = await events.result()
            await service.start_turn(session_id, "four")
            heard = [envelope async for envelope in events]
            assert [envelope async for envelope in events] == []
            assert await events.result() == early
        assert (early.text, early.first_seq, early.last_seq) == ("two three", heard[0].seq, heard[-1].seq)
        assert events.seq == early.last_seq
        assert_valid_stream(heard)
        assert texts(heard) == "twothree"
        log = await replay(service, session_id, before)
        assert numbers(heard) == [seq for seq in numbers(log) if seq <= heard[-1].seq]


async def test_a_new_session_is_streamed(subject: Subject) -> None:
    """The stream names the session, and its first event is that of the first turn."""
    async with serving(subject) as service:
        async with service.stream_session("hello", labels={"team": "red"}) as events:
            assert names([await anext(events)]) == ["run_started"]
            assert [text async for text in events.texts()] == ["hello"]
            result = await events.result()
        assert (result.session_id, result.text) == (events.session_id, "hello")
        assert (await service.read(events.session_id)).state.labels == {"team": "red"}


async def test_a_stream_left_early_leaves_its_turn_running_and_nothing_behind(subject: Subject) -> None:
    """The turn runs on; no reader of its events and no task is left. The result is to be had elsewhere."""
    async with serving(subject) as service:
        session_id = await new_session(service)
        tasks = trio.lowlevel.current_statistics().tasks_living
        for turn in range(2):
            async with service.stream_turn(session_id, "wait") as events:
                assert names([await anext(events)]) == ["run_started"]
            running = service.statistics()
            assert (running.subscriptions, running.running_turns) == (0, 1)
            assert (await service.read(session_id)).state.is_active
            with pytest.raises(RuntimeError, match="left before its turn had ended"):
                await events.result()
            assert [envelope async for envelope in events] == []
            await service.interrupt(session_id)
            assert not (await service.read(session_id)).state.is_active, turn
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == tasks


async def test_a_busy_session_refuses_a_stream_on_entering(subject: Subject) -> None:
    """The body does not begin, and the running turn is not touched; so it is with an unknown session."""
    async with serving(subject) as service:
        session_id = await new_session(service)
        async with service.stream_turn(session_id, "wait"):
            with pytest.raises(SessionBusyError):
                async with service.stream_turn(session_id, "hello"):
                    raise AssertionError("the body has begun")
            with pytest.raises(SessionNotFoundError):
                async with service.stream_turn("nobody", "hello"):
                    raise AssertionError("the body has begun")
            assert service.statistics().subscriptions == 1


async def test_bad_arguments_of_a_stream_are_named_on_entering(subject: Subject) -> None:
    """A stream is of a turn, and has the events of it itself."""
    async with serving(subject) as service:
        session_id = await new_session(service)
        for path, opened in (
            ("$.prompt", service.stream_session(None)),
            ("$.prompt", service.stream_turn(session_id, " ")),
            ("$.on_event", service.stream_turn(session_id, "hello", on_event=print)),
            ("$.on_begin", service.stream_session("hello", on_begin=print)),
        ):
            with pytest.raises(InvalidParamsError) as caught:
                async with opened:
                    raise AssertionError("the body has begun")
            assert caught.value.path == path
        with pytest.raises(TypeError):
            service.stream_turn(session_id, "hello", no_such=1)  # type: ignore[call-arg]
        assert not (await service.read(session_id)).state.is_active


async def test_a_failed_turn_ends_its_stream_and_its_result_raises(subject: Subject) -> None:
    """The iteration shows the end as an event; each wait for the result raises the error."""
    async with serving(subject) as service:
        session_id = await new_session(service)
        async with service.stream_turn(session_id, "fail") as events:
            heard = [envelope async for envelope in events]
            for _ in range(2):
                with pytest.raises(ProviderError, match="no such model"):
                    await events.result()
        assert isinstance(heard[-1].event, RunFailed)


async def test_an_interrupted_turn_ends_its_stream(subject: Subject) -> None:
    """One task reads, another one waits for the result: both hear of the end."""
    async with serving(subject) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        async with service.stream_turn(session_id, "wait") as events:
            result = ask(nursery, events.result)
            await wait_all_tasks_blocked()
            await service.interrupt(session_id)
            heard = [envelope async for envelope in events]
            assert isinstance(heard[-1].event, RunFailed)
            assert (await result.failure(AgentError)).cause == "cancelled"


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), ExceptionGroup("two", [OSError()])])
async def test_an_error_in_the_body_of_a_stream_is_itself(subject: Subject, error: BaseException) -> None:
    """It is in no group, whether the turn runs or has ended."""
    async with serving(subject) as service:
        session_id = await new_session(service)
        for prompt in ("hello", "wait"):
            caught: BaseException | None = None
            try:
                async with service.stream_turn(session_id, prompt) as events:
                    if prompt == "hello":
                        await events.result()
                    raise error  # noqa: TRY301 - the body's own
            except BaseException as exc:  # noqa: BLE001 - compared below
                caught = exc
            assert caught is error
        assert service.statistics().subscriptions == 0


async def test_a_stream_in_a_task_that_is_cancelled(subject: Subject) -> None:
    """As it opens, reads or waits for the result: the turn runs on, and nothing of the stream stays."""
    async with serving(subject) as service:
        session_id = await new_session(service)
        for what in ("read", "result"):
            with trio.move_on_after(1) as scope:
                async with service.stream_turn(session_id, "wait") as events:
                    if what == "result":
                        await events.result()
                    async for _ in events:
                        pass
            assert scope.cancelled_caught
            assert (await service.read(session_id)).state.is_active
            assert service.statistics().subscriptions == 0
            await service.interrupt(session_id)
        with trio.CancelScope() as scope:
            scope.cancel()
            async with service.stream_turn(session_id, "hello"):
                raise AssertionError("the body has begun")
        await wait_all_tasks_blocked()
        assert service.statistics().subscriptions == 0


async def test_a_stream_ends_with_the_service(subject: Subject) -> None:
    """Its runtime stops: the iteration ends behind the last event, and the result says why."""
    async with serving(subject) as service:
        session_id = await new_session(service)
        async with service.stream_turn(session_id, "wait") as events:
            await service.stop()
            with trio.fail_after(1):
                assert names([envelope async for envelope in events])[0] == "run_started"
                with pytest.raises(AgentError) as caught:
                    await events.result()
            assert caught.value.cause == "shutting_down"
