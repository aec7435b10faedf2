"""A turn in front of a user, with a service that does what the test says."""

import io
import signal
from datetime import UTC, datetime
from typing import TypeVar, cast

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.fake_service import FakeService, FakeTurn, failing, publishing, until_interrupted
from tests.transport.cli.fakes import FakeTerminal
from warren.base.errors import AgentError, ProviderError, SessionNotRunningError
from warren.calls.base import Call
from warren.calls.turns import SessionCall
from warren.conversation.attachments import File
from warren.conversation.budget import Budget
from warren.conversation.categories import Gates, Switches
from warren.conversation.events import TextDelta
from warren.conversation.options import TurnOptions
from warren.conversation.views import TurnResult
from warren.settings.config import Config
from warren.transport.cli.settings.options import Options
from warren.transport.cli.terminal.streams import Streams
from warren.transport.cli.turns.screen import Screen
from warren.transport.cli.turns.taking import FIRST_WORDS, TOO_LATE, Begin, first_turn, next_turn, take_turn

R = TypeVar("R")


def a_screen(out: io.StringIO | None = None) -> tuple[Screen, io.StringIO, io.StringIO]:
    """Return a screen, its stdout and its stderr."""
    out, err = out or io.StringIO(), io.StringIO()
    return Screen.of(Options(), Streams(out, err)), out, err


def begin(service: FakeService) -> Begin:
    """Return the start of a first turn."""
    return first_turn(service, Options(), "hello")


async def take(service: FakeService, screen: Screen) -> TurnResult:
    """Take a first turn."""
    return await take_turn(service, begin(service), screen)


async def test_a_turn_is_shown_whole_before_it_returns() -> None:
    """All events and the end are on the screen when the result is there."""
    service = FakeService(publishing(TextDelta("an"), TextDelta("swer")))
    screen, out, err = a_screen(FakeTerminal())
    result = await take(service, screen)
    assert result.text == "answer"
    assert out.getvalue() == "answer\n"
    assert err.getvalue().startswith("session n1")


@pytest.mark.parametrize("error", [ProviderError("no", session_id="n1"), AgentError("lost", cause="crash")])
async def test_a_failed_turn_raises_what_ended_it(error: Exception) -> None:
    """The error arrives as it is, in no exception group."""
    screen, _, _ = a_screen()
    with pytest.raises(type(error)) as caught:
        await take(FakeService(failing(error)), screen)
    assert caught.value is error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_interrupts_through_the_service(number: signal.Signals) -> None:
    """The first Ctrl-C (or SIGTERM) asks the service to end the turn; what came before is shown."""
    service = FakeService(until_interrupted(TextDelta("half")))
    screen, out, err = a_screen(FakeTerminal())

    async def interrupt() -> None:
        await wait_all_tasks_blocked()
        signal.raise_signal(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(interrupt)
        with pytest.raises(AgentError, match="interrupted"):
            await take(service, screen)
    assert service.called("interrupt") == [{"session_id": "n1"}]
    assert out.getvalue() == "half\n"
    assert FIRST_WORDS in err.getvalue()


async def test_an_interrupt_that_came_too_late_says_so() -> None:
    """The turn had completed when the interrupt arrived: its answer is whole, and the user is told."""

    class Completing(FakeService):
        async def perform(self, call: Call[R]) -> R:
            try:
                result = await super().perform(call)
            except SessionNotRunningError:
                return cast("R", None)
            if isinstance(call, SessionCall):
                signal.raise_signal(signal.SIGINT)
                await wait_all_tasks_blocked()
            return result

    screen, out, err = a_screen()
    await take(Completing(publishing()), screen)
    assert out.getvalue() == "answer\n"
    assert err.getvalue().splitlines()[0] == FIRST_WORDS
    assert err.getvalue().splitlines()[-1] == TOO_LATE


async def test_a_signal_before_the_turn_has_begun_is_kept() -> None:
    """Ctrl-C while the session is still being loaded interrupts the turn as soon as there is one."""
    loaded = trio.Event()

    class Loading(FakeService):
        async def perform(self, call: Call[R]) -> R:
            if isinstance(call, SessionCall):
                await loaded.wait()
            return await super().perform(call)

    service = Loading(until_interrupted())
    screen, _, _ = a_screen()

    async def interrupt() -> None:
        await wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGINT)
        await wait_all_tasks_blocked()
        assert service.called("interrupt") == []
        loaded.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(interrupt)
        with pytest.raises(AgentError, match="interrupted"):
            await take(service, screen)
    assert service.called("interrupt") == [{"session_id": "n1"}]


async def test_a_reader_that_stands_still_does_not_stop_the_turn() -> None:
    """While stdout blocks, the turn goes on to its end."""
    blocked, ended = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    class Stuck(FakeTerminal):
        def write(self, text: str) -> int:
            trio.from_thread.run_sync(blocked.set, trio_token=token)
            trio.from_thread.run(ended.wait, trio_token=token)
            return super().write(text)

    async def answer(turn: FakeTurn) -> None:
        await publishing(TextDelta("answer"))(turn)
        await blocked.wait()
        ended.set()

    service = FakeService(answer)
    screen, out, _ = a_screen(Stuck())
    await take(service, screen)
    assert out.getvalue() == "answer\n"


async def test_the_options_reach_the_service() -> None:
    """A new session gets all options; a further turn those that can differ from turn to turn."""
    turn = TurnOptions(
        model="m",
        provider="p",
        max_tokens=5,
        temperature=0.5,
        budget=Budget(max_steps=2),
        overrides=Switches(memory="disable"),
        approvals=Gates(mcp="ask"),
    )
    options = Options(
        config=Config(system_prompt="s"),
        turn=turn,
        label=(("a", "b"),),
        title="t",
        key="k",
        attach=(File(b"hi"),),
    )
    service = FakeService()
    screen, _, _ = a_screen()
    shared = {"model": "m", "provider": "p", "max_tokens": 5, "budget": Budget(max_steps=2), "temperature": 0.5}
    shared |= {"overrides": options.turn.overrides, "approvals": options.turn.approvals}
    await take_turn(service, first_turn(service, options, "hi"), screen)
    await take_turn(service, next_turn(service, options, "n1", "ho"), screen)
    created = {"prompt": "hi", "system_prompt": "s", "labels": {"a": "b"}, "title": "t", "idempotency_key": "k"}
    shared |= {"attachments": options.attach}
    assert service.called("create_session") == [shared | created]
    assert service.called("start_turn") == [shared | {"session_id": "n1", "prompt": "ho"}]
    at = datetime(2126, 1, 1, tzinfo=UTC)
    later, service = attrs.evolve(options, not_before=at), FakeService()
    await take_turn(service, first_turn(service, later, "hi"), screen)
    del shared["attachments"]
    assert service.called("create_session") == [{**shared, **created, "prompt": None}]
    queued = {"mode": "queue", "not_before": at, "idempotency_key": "k", "attachments": options.attach}
    assert service.called("start_turn") == [{"session_id": "n1", "prompt": "hi", **queued}]
