"""Real processes on one store: who dies, who hangs, and who goes on."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import pytest
import trio

from tests.promises.processes import here, other, soon
from tests.support.checks import numbers
from warren.base.errors import AgentError, LeasedError
from warren.calls.facade import SessionService
from warren.conversation.events import Envelope, RunCompleted, RunStarted
from warren.conversation.messages import ContextMessage
from warren.conversation.peers import Peer, PeerInfo

T = TypeVar("T")
Place = Path | str
"""A store's folder, or the address of its database."""


async def refused(service: SessionService, session_id: str) -> LeasedError:
    """Return the error by which a turn is refused."""
    try:
        await service.start_turn(session_id, "go on")
    except LeasedError as exc:
        return exc
    raise AssertionError("it was not refused")


async def follow(events: AsyncIterator[Envelope], turns: int) -> list[Envelope]:
    """Return the next events, up to the end of so many turns."""
    found: list[Envelope] = []
    with trio.fail_after(20):
        while turns:
            found.append(await anext(events))
            turns -= isinstance(found[-1].event, RunCompleted)
    return found


LONG: Final = 20.0
"""A lease that does not end during a test."""
OF_THE_KILLED: Final = 8.0
"""The lease of a process that is killed: its sessions in a database are free after a part of it."""


async def after_a_kill(place: Place, call: Callable[[], Awaitable[T]]) -> T:
    """Use the session of a process that was killed: in files it is free at once, in a database after a grace."""
    return await (soon(call) if isinstance(place, str) else call())


async def test_a_subscriber_follows_a_session_that_runs_elsewhere(place: Place) -> None:
    """It gets the turns there, those here after a hand-over, and those there again: no gap, no double."""
    async with (
        other(place, lease=LONG) as owner,
        here(place) as service,
        service.subscribe(owner.session_id, after_seq=0) as events,
    ):
        seen = await follow(events, 1)
        for prompt in ("two", "three"):
            await owner.ask(prompt)
            seen += await follow(events, 1)
        await service.start_turn(owner.session_id, "four")
        seen += await follow(events, 1)
        for prompt in ("five", "six"):
            assert await owner.ask(prompt) == {"text": prompt}
        seen += await follow(events, 2)
        results = [each.event.result for each in seen if isinstance(each.event, RunCompleted)]
        assert results == ["hello", "two", "three", "four", "five", "six"]
        assert numbers(seen) == list(range(1, seen[-1].seq + 1))


async def test_a_subscription_ends_when_the_session_is_deleted_elsewhere(place: Place) -> None:
    """Whoever follows a session in another process is told by the end of the stream."""
    async with (
        other(place, lease=LONG) as owner,
        here(place) as service,
        here(place) as third,
        service.subscribe(owner.session_id, after_seq=0) as events,
    ):
        await follow(events, 1)
        await third.delete(owner.session_id)
        with trio.fail_after(20):
            assert [each async for each in events] == []


async def test_a_message_reaches_a_session_of_another_process(place: Place) -> None:
    """It is stored at once, and its session begins a turn with it where it is, busy or idle."""
    async with (
        other(place, lease=LONG) as owner,
        here(place) as service,
        service.subscribe(owner.session_id, after_seq=0) as events,
    ):
        guest = (await service.create_session(None, peer=Peer("guest", ("owner",)))).session_id
        assert await service.peers(guest) == (PeerInfo("owner", reachable=True),)
        await follow(events, 1)
        await service.send_message(guest, "owner", "knock")
        (begun, *_) = await follow(events, 1)
        assert isinstance(begun.event, RunStarted)
        assert begun.event.prompt == "Message from peer guest:\n\nknock"
        await service.send_message(guest, "owner", "once more")
        await follow(events, 1)
        assert await service.inputs(owner.session_id) == ()
        assert (await owner.ask("still-there"))["text"] == "still-there"


async def test_context_reaches_a_session_that_runs_a_turn_elsewhere(place: Place) -> None:
    """While the other process runs a turn it is not lost: it is listed here, and enters the next turn there."""
    async with other(place, lease=OF_THE_KILLED) as owner, here(place) as service:
        await owner.begin_to_wait()
        await service.inject_context(owner.session_id, "it rains")
        assert [each.text for each in await service.inputs(owner.session_id)] == ["it rains"]
        owner.process.send_signal(signal.SIGKILL)
        await owner.process.wait()
        await after_a_kill(place, lambda: service.start_turn(owner.session_id, "go on"))
        page = await service.history(owner.session_id)
        assert ContextMessage("it rains") in [each.message for each in page.messages]


@pytest.mark.parametrize("how", ["start_turn", "queue", "label", "archive", "delete", "compact"])
async def test_an_idle_session_is_handed_over(place: Place, how: str) -> None:
    """Whatever needs the session gets it from the process that has it, while that one lives and has nothing to do."""
    async with other(place, lease=LONG) as owner, here(place) as service:
        match how:
            case "start_turn":
                assert (await service.start_turn(owner.session_id, "mine")).text == "mine"
            case "queue":
                assert (await service.start_turn(owner.session_id, "mine", mode="queue")).text == "mine"
            case "label":
                assert (await service.label(owner.session_id, {"team": "red"})).state.labels == {"team": "red"}
            case "compact":
                with pytest.raises(AgentError, match="summary"):
                    await service.compact(owner.session_id)
            case _:
                await getattr(service, how)(owner.session_id)
        answer = await owner.ask("yours")
        assert answer.get("text") == (None if how in ("archive", "delete") else "yours")


async def test_a_killed_process_frees_its_sessions_at_once(place: Place) -> None:
    """While its turn runs, one elsewhere is refused in words that name it; killed, its session goes on at once."""
    async with other(place, lease=OF_THE_KILLED) as owner, here(place) as service:
        await owner.begin_to_wait()
        error = await refused(service, owner.session_id)
        assert f"the other program (process {owner.process.pid} on " in error.message
        assert error.retryable
        owner.process.send_signal(signal.SIGKILL)
        await owner.process.wait()
        result = await after_a_kill(place, lambda: service.start_turn(owner.session_id, "go on"))
        assert result.text == "go on"
        assert (await service.read(owner.session_id)).state.message_count == 4


async def test_a_stopped_process_is_taken_over_and_cannot_write(place: Place) -> None:
    """Stopped for longer than its lease it loses the session; woken, it writes nothing unless it got it back."""
    async with other(place) as owner, here(place) as service:
        owner.process.send_signal(signal.SIGSTOP)
        result = await soon(lambda: service.start_turn(owner.session_id, "mine"))
        assert result.text == "mine"
        owner.process.send_signal(signal.SIGCONT)
        answer = await owner.ask("stale")
        page = await service.history(owner.session_id)
        assert ("stale" in str(page.messages)) == ("text" in answer)
        if "error" in answer:
            assert answer["error"]["code"] == "SESSION_STORE_ERROR"
            assert answer["error"]["retryable"]
            assert answer["error"]["details"]["cause"] in ("lease_lost", "leased")
        assert (await service.start_turn(owner.session_id, "still mine")).text == "still mine"


async def test_a_process_that_ends_in_order_hands_over(place: Place) -> None:
    """Its input at an end, it stores and leaves; the session goes on here, numbers unbroken."""
    async with other(place, lease=LONG) as owner, here(place) as service:
        assert owner.process.stdin is not None
        await owner.process.stdin.aclose()
        assert await owner.process.wait() == 0
        await service.start_turn(owner.session_id, "go on")
        seen, ends = [], 0
        async with service.subscribe(owner.session_id, after_seq=0) as events:
            async for envelope in events:
                seen.append(envelope)
                ends += isinstance(envelope.event, RunCompleted)
                if ends == 2:
                    break
        assert numbers(seen) == list(range(1, seen[-1].seq + 1))
