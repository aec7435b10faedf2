"""Inputs to a session while it runs a turn: each waits, enters the turn, or begins one; none of it is lost."""

import gc
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.actors.session.inboxes import Slow, rest, said
from tests.support.asking import ask
from tests.support.models import reply, says
from tests.support.runtime import Recorder, new_session, open_runtime, replay, supervisor_of
from warren.actors.protocol import Arrived
from warren.actors.session.inbox import Inbox
from warren.base.errors import (
    AgentError,
    BudgetExhaustedError,
    CapacityExceededError,
    InvalidParamsError,
    ProviderError,
    SessionBusyError,
)
from warren.calls.facade import SessionService
from warren.conversation.budget import Budget
from warren.conversation.events import InputTaken, RunStarted
from warren.conversation.inputs import Input, Numbered
from warren.conversation.messages import ContextMessage, UserMessage
from warren.conversation.views import TurnResult
from warren.mailbox import Mail
from warren.settings.config import Config, Limits
from warren.storage.operations import Enqueue

pytestmark = pytest.mark.virtual_time
DATA = {"type": "string"}


async def test_inputs_wait_in_the_order_of_the_store() -> None:
    """Inputs of one group of the store are told in any order: the numbers of the store decide."""
    inbox = Inbox("s")
    for number in (2, 1):
        told = Arrived(Numbered(number, Input(f"i{number}", "queue", f"{number}", datetime.now(UTC))))
        inbox.arrive(Mail(told), told)
    assert [each.text for each in inbox.shown()] == ["1", "2"]
    first = inbox.first()
    assert first is not None
    assert first.numbered.number == 1


async def prompts(service: SessionService, session_id: str) -> list[str]:
    """Return the prompts of the turns that began, in order."""
    events = [envelope.event for envelope in await replay(service, session_id)]
    return [event.prompt for event in events if isinstance(event, RunStarted)]


async def test_prompts_of_another_process_go_in_the_order_that_is_shown(tmp_path: Path) -> None:
    """The list has them from the store, before the session would find them: it hears of them then."""
    async with open_runtime(Slow(), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        nursery.start_soon(service.start_turn, session_id, "first")
        await trio.sleep(1)
        theirs = Input("i", "queue", "theirs", datetime.now(UTC))
        await supervisor_of(service).shared.storage.write(Enqueue(session_id, theirs, 9, anywhere=True))
        nursery.start_soon(partial(service.start_turn, session_id, "ours", mode="queue"))
        await trio.sleep(1)
        assert [each.text for each in await service.inputs(session_id)] == ["theirs", "ours"]
        await trio.sleep(60)
        assert await prompts(service, session_id) == ["first", "theirs", "ours"]


@pytest.mark.parametrize("stored", [False, True])
async def test_queued_prompts_run_in_order(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """Queued prompts wait for the running turn and for one another; each sender gets the result of its own turn."""
    results: dict[str, TurnResult] = {}
    async with open_runtime(Slow(), store=tmp_path if stored else None) as service:
        session_id = await new_session(service)

        async def queue(prompt: str) -> None:
            results[prompt] = await service.start_turn(session_id, prompt, mode="queue")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.start_turn, session_id, "first")
            await trio.sleep(1)
            for prompt in ("second", "third"):
                nursery.start_soon(queue, prompt)
                await trio.sleep(1)
            assert [each.text for each in await service.inputs(session_id)] == ["second", "third"]
            with pytest.raises(SessionBusyError):
                await service.start_turn(session_id, "now")
        assert await service.inputs(session_id) == ()
        assert await said(service, session_id) == ["first", "second", "third"]
        assert await prompts(service, session_id) == ["first", "second", "third"]
    assert {prompt: result.text for prompt, result in results.items()} == {
        "second": "re: second",
        "third": "re: third",
    }


async def test_what_waits_with_a_prompt_keeps_its_place(tmp_path: Path) -> None:
    """The model reads all in the order in which it was said, also what came after the prompt of the turn."""
    async with open_runtime(Slow(), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        nursery.start_soon(service.start_turn, session_id, "first")
        await trio.sleep(1)
        await service.inject_context(session_id, "early")
        nursery.start_soon(partial(service.start_turn, session_id, "second", mode="queue"))
        await trio.sleep(1)
        await service.inject_context(session_id, "late")
        await trio.sleep(60)
        assert await said(service, session_id) == ["first", "early", "second", "late"]


@pytest.mark.parametrize("prompt", ["call me", "hello"])
async def test_a_steer_enters_the_running_turn(tmp_path: Path, prompt: str) -> None:
    """It is read at the next step, also where that would have been the last one; both senders get the same result."""
    model, recorder = Slow(), Recorder()
    async with open_runtime(model, store=tmp_path, tools=(rest,)) as service:
        session_id = await new_session(service)
        results: list[TurnResult] = []

        async def start(text: str, mode: str, on_event: Recorder | None = None) -> None:
            results.append(await service.start_turn(session_id, text, mode=mode, on_event=on_event))  # type: ignore[arg-type]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start, prompt, "busy")
            await trio.sleep(5)
            nursery.start_soon(start, "faster", "steer", recorder)
        assert results[0] == results[1]
        assert results[0].text == "re: faster"
        assert await said(service, session_id) == [prompt, "faster"]
        assert await prompts(service, session_id) == [prompt]
    assert len(model.read) == 2
    (taken,) = recorder.only(InputTaken)
    assert (taken.kind, taken.content) == ("steer", "faster")


async def test_a_steer_of_an_idle_session_begins_a_turn() -> None:
    """If no turn runs a steer is a prompt."""
    async with open_runtime(Slow()) as service:
        session_id = await new_session(service)
        assert (await service.start_turn(session_id, "go", mode="steer")).text == "re: go"


async def test_context_is_read_and_is_no_turn(tmp_path: Path) -> None:
    """Context of the host waits for the next turn, comes before its prompt, and begins none."""
    model = Slow()
    async with open_runtime(model, store=tmp_path) as service:
        session_id = await new_session(service)
        await service.inject_context(session_id, "it rains", source="weather", idempotency_key="w1")
        await service.inject_context(session_id, "it rains", source="weather", idempotency_key="w1")
        await trio.sleep(60)
        assert model.read == []
        await service.start_turn(session_id, "go out?")
        assert model.read[0] == [ContextMessage("it rains", "weather"), UserMessage("go out?")]
        assert (await service.read(session_id)).state.message_count == 3


@pytest.mark.parametrize("stored", [False, True])
async def test_a_repeated_key_is_told(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """Context of a key that is known is not taken again, while it waits and after a turn has taken it."""
    async with open_runtime(Slow(), store=tmp_path if stored else None) as service:
        session_id = await new_session(service)
        told = [await service.inject_context(session_id, "it rains", idempotency_key="w1") for _ in range(2)]
        assert told == [True, False]
        await service.start_turn(session_id, "and now?")
        assert not await service.inject_context(session_id, "it rains", idempotency_key="w1")
        assert await service.inject_context(session_id, "it rains", idempotency_key="w2")
        assert await service.inject_context(session_id, "it rains")


async def test_a_sender_that_goes_away_loses_nothing(tmp_path: Path) -> None:
    """The prompt of a caller that gave up runs all the same, and its key brings the result later, once."""
    model = Slow()
    async with open_runtime(model, store=tmp_path) as service:
        session_id = await new_session(service)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.start_turn, session_id, "first")
            await trio.sleep(1)
            with trio.move_on_after(2):
                await service.start_turn(session_id, "second", mode="queue", idempotency_key="k")
        again = await service.start_turn(session_id, "second", mode="queue", idempotency_key="k")
        assert again.text == "re: second"
        assert await said(service, session_id) == ["first", "second"]
    async with open_runtime(model, store=tmp_path) as service:
        after_restart = await service.start_turn(session_id, "second", mode="queue", idempotency_key="k")
        assert after_restart == again
        assert await said(service, session_id) == ["first", "second"]


async def test_what_waits_runs_after_a_restart(tmp_path: Path) -> None:
    """An input that no turn had taken when the runtime ended begins by itself in the next one."""
    async with open_runtime(Slow(), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)

        async def give_up(prompt: str) -> None:
            with pytest.raises(AgentError):
                await service.start_turn(session_id, prompt, mode="queue")

        nursery.start_soon(give_up, "first")
        await trio.sleep(1)
        nursery.start_soon(give_up, "second")
        await trio.sleep(1)
        await service.stop()
    async with open_runtime(Slow(), store=tmp_path) as service:
        await trio.sleep(60)
        assert await said(service, session_id) == ["first", "second"]
        assert await service.inputs(session_id) == ()


async def test_withdrawing() -> None:
    """An input that waits may be withdrawn: its sender is told, and no turn comes of it; what was taken may not."""
    async with open_runtime(Slow()) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        nursery.start_soon(service.start_turn, session_id, "first")
        await trio.sleep(1)

        @nursery.start_soon
        async def queue() -> None:
            with pytest.raises(AgentError) as caught:
                await service.start_turn(session_id, "second", mode="queue")
            assert caught.value.cause == "cancelled"

        await trio.sleep(1)
        (waiting,) = await service.inputs(session_id)
        await service.withdraw(session_id, waiting.input_id)
        with pytest.raises(InvalidParamsError) as gone:
            await service.withdraw(session_id, waiting.input_id)
        assert gone.value.path == "$.input_id"
        await trio.sleep(60)
        assert await said(service, session_id) == ["first"]


@pytest.mark.parametrize("stored", [False, True])
async def test_an_inbox_is_bounded(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """Past the limit a sender is refused at once, and what is there is not touched."""
    config = Config(limits=Limits(inbox=2))
    async with open_runtime(Slow(), store=tmp_path if stored else None, config=config) as service:
        session_id = await new_session(service)
        for text in ("one", "two"):
            await service.inject_context(session_id, text)
        with pytest.raises(CapacityExceededError) as caught:
            await service.inject_context(session_id, "three")
        assert caught.value.cause == "inbox_full"
        assert [each.text for each in await service.inputs(session_id)] == ["one", "two"]


async def test_an_interrupt_ends_one_turn_only(tmp_path: Path) -> None:
    """Interrupting the running turn does not touch what is queued behind it."""
    async with open_runtime(Slow(), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)

        @nursery.start_soon
        async def first() -> None:
            with pytest.raises(AgentError):
                await service.start_turn(session_id, "first")

        await trio.sleep(1)
        nursery.start_soon(lambda: service.start_turn(session_id, "second", mode="queue"))
        await trio.sleep(1)
        await service.interrupt(session_id)
        await trio.sleep(60)
        assert await prompts(service, session_id) == ["first", "second"]


async def test_there_is_no_room_for_a_queued_turn(tmp_path: Path) -> None:
    """If as many turns run as may, what is queued waits until one has ended."""
    config = Config(limits=Limits(max_sessions=1))
    async with open_runtime(Slow(), store=tmp_path, config=config) as service, trio.open_nursery() as nursery:
        one, other = await new_session(service), await new_session(service)
        nursery.start_soon(service.start_turn, one, "first")
        await trio.sleep(1)
        assert (await service.start_turn(other, "second", mode="queue")).text == "re: second"


async def test_a_bad_model_does_not_stay_in_the_inbox(tmp_path: Path) -> None:
    """A queued turn that cannot begin fails its sender and goes; the next one runs."""
    async with open_runtime(Slow(), store=tmp_path) as service:
        session_id = await new_session(service)
        with pytest.raises(InvalidParamsError):
            await service.start_turn(session_id, "hi", mode="queue", provider="nobody")
        assert await service.inputs(session_id) == ()
        assert (await service.start_turn(session_id, "hi", mode="queue")).text == "re: hi"


async def test_keys_are_for_what_waits() -> None:
    """A key where nothing waits, or a mode that is none, names the field."""
    async with open_runtime(Slow()) as service:
        session_id = await new_session(service)
        for bad, path in (
            ({"idempotency_key": "k"}, "$.idempotency_key"),
            ({"mode": "later"}, "$.mode"),
            ({"mode": "queue", "idempotency_key": "k" * 201}, "$.idempotency_key"),
            ({"mode": "queue", "idempotency_key": " "}, "$.idempotency_key"),
        ):
            with pytest.raises(InvalidParamsError) as caught:
                await service.start_turn(session_id, "hi", **bad)  # type: ignore[arg-type]
            assert caught.value.path == path


async def test_budgets_hold_for_queued_turns(tmp_path: Path) -> None:
    """A queued prompt's own budget ends its turn, and the queue goes on."""
    async with open_runtime(Slow(), store=tmp_path, tools=(rest,)) as service:
        session_id = await new_session(service)
        with pytest.raises(BudgetExhaustedError):
            await service.start_turn(session_id, "call", mode="queue", budget=Budget(max_steps=1))
        assert (await service.start_turn(session_id, "hi", mode="queue")).text == "re: hi"


@pytest.mark.parametrize(("steps", "schema"), [(1, None), (2, DATA), (3, DATA)])
async def test_a_steer_that_the_budget_has_no_step_for(tmp_path: Path, steps: int, schema: Any) -> None:
    """It costs nobody the answer that is there: it is the prompt of the next turn, which has a budget of its own."""
    async with open_runtime(Slow(), store=tmp_path) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = {"budget": Budget(max_steps=steps), "output_schema": schema}
        first = ask(nursery, service.start_turn, session_id, "hello", **turn)
        await trio.sleep(5)
        second = ask(nursery, service.start_turn, session_id, "more", mode="steer")
        enters = steps == 3
        assert (await first.value()).text == ("re: more" if enters else "re: hello")
        assert (await second.value()).text == "re: more"
        assert await prompts(service, session_id) == (["hello"] if enters else ["hello", "more"])


@pytest.mark.parametrize("stored", [True, False])
async def test_a_live_session_keeps_no_results(tmp_path: Path, stored: bool) -> None:  # noqa: FBT001
    """Results and errors of prompts that have ended are the store's alone; a repeated key still finds them."""
    failing = ProviderError("no " * 1_000, retryable=False, details={"text": "x" * 10_000})
    model = says(*(reply(f"answer {number}") for number in range(20)), *[failing] * 20)
    async with open_runtime(model, store=tmp_path if stored else None) as service:
        session_id = await new_session(service)
        for number in range(20):
            await service.start_turn(session_id, "hello", mode="queue", idempotency_key=f"good-{number}")
        for number in range(20):
            with pytest.raises(ProviderError):
                await service.start_turn(session_id, "hello", mode="queue", idempotency_key=f"bad-{number}")
        gc.collect()
        there = gc.get_objects()
        assert sum(isinstance(each, TurnResult) for each in there) <= 2
        assert sum(isinstance(each, ProviderError) and each is not failing for each in there) <= 2
        del there
        again = await service.start_turn(session_id, "hello", mode="queue", idempotency_key="good-3")
        assert again.text == "answer 3"
        with pytest.raises(ProviderError, match="no no"):
            await service.start_turn(session_id, "hello", mode="queue", idempotency_key="bad-3")


async def test_a_repeat_that_comes_as_the_turn_ends(tmp_path: Path) -> None:
    """A session that hears of a prompt again, whose turn has ended meanwhile, says that only the store has how."""
    async with open_runtime(says(reply("done")), store=tmp_path) as service:
        session_id = await new_session(service)
        await service.start_turn(session_id, "hello", mode="queue", idempotency_key="k")
        supervisor = service.local.supervisor  # no call of a user comes exactly then
        again = Input("again", "queue", "hello", datetime.now(UTC), key="k")
        stored = await supervisor.shared.storage.write(Enqueue(session_id, again, 10))
        assert await supervisor.mailbox(session_id).ask(Arrived(stored.numbered, waits=True)) is None
