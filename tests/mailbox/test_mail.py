"""The reply slot: settled once, awaited by one, harmless when nobody waits."""

from typing import Any

import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from tests.mailbox.sample_messages import Question
from warren.base.errors import SessionBusyError
from warren.mailbox import Mail


async def test_an_answer_that_is_there_already() -> None:
    """A reply that was settled first is returned at once, through a checkpoint."""
    reply: Mail[Any] = Mail(Question())
    reply.answer(5)
    assert reply.settled
    with assert_checkpoints():
        assert await reply.wait() == 5


async def test_an_answer_that_comes_later() -> None:
    """A waiting task gets the answer when it comes, whatever it is, also None."""
    got: list[object] = []

    async def wait(reply: Mail[Any]) -> None:
        got.append(await reply.wait())

    async with trio.open_nursery() as nursery:
        assert not Mail(Question()).settled
        for answer in (5, None, ValueError("as a value")):
            reply: Mail[Any] = Mail(Question())
            nursery.start_soon(wait, reply)
            await wait_all_tasks_blocked()
            reply.answer(answer)
            assert reply.settled
    assert [got[0], got[1], str(got[2])] == [5, None, "as a value"]


@pytest.mark.parametrize("early", [True, False])
async def test_an_error_is_raised_in_the_caller(early: bool) -> None:  # noqa: FBT001 - a table
    """An error reaches the one who asked, itself, whether it came before or after the wait began."""
    reply: Mail[Any] = Mail(Question())
    error = SessionBusyError("busy")

    async def fail() -> None:
        await wait_all_tasks_blocked()
        reply.refuse(error)

    async with trio.open_nursery() as nursery:
        if early:
            reply.refuse(error)
        else:
            nursery.start_soon(fail)
        with pytest.raises(SessionBusyError) as caught:
            await reply.wait()
    assert caught.value is error


async def test_the_first_answer_counts() -> None:
    """A second answer, value or error, is passed over: also one that comes before the caller has run."""
    reply: Mail[Any] = Mail(Question())
    got: list[int] = []

    async def wait() -> None:
        got.append(await reply.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        reply.answer(1)
        reply.answer(2)
        reply.refuse(ValueError("late"))
    assert got == [1]


async def test_the_first_answer_counts_before_the_wait() -> None:
    """A caller that comes to wait only after two answers finds the first."""
    reply: Mail[Any] = Mail(Question())
    reply.answer(1)
    reply.answer(2)
    reply.refuse(ValueError("late"))
    assert await reply.wait() == 1


async def test_settling_late_is_fine() -> None:
    """When the caller was cancelled, the answer falls into the slot without harm, and can still be fetched."""
    reply: Mail[Any] = Mail(Question())
    with trio.move_on_after(0) as scope:
        await reply.wait()
    assert scope.cancelled_caught
    reply.answer(5)
    assert await reply.wait() == 5


async def test_an_answer_beats_a_cancellation_that_comes_after() -> None:
    """An answer that was given before the caller was cancelled is not lost, even if the caller had not run yet."""
    reply: Mail[Any] = Mail(Question())
    got: list[int] = []
    scope = trio.CancelScope()

    async def wait() -> None:
        with scope:
            got.append(await reply.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        reply.answer(5)
        scope.cancel()
    assert got == [5]


@pytest.mark.parametrize("early", [True, False])
async def test_a_wait_that_is_not_cut_short(early: bool) -> None:  # noqa: FBT001 - a table
    """A cancelled caller that has to know what came of it learns it, whether it came before or after the wait began."""
    reply: Mail[Any] = Mail(Question())
    got: list[int] = []

    async def wait() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            got.append(await reply.wait_settled())

    async with trio.open_nursery() as nursery:
        if early:
            reply.answer(5)
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert got == ([5] if early else [])
        reply.answer(5)
    assert got == [5]


async def test_an_error_reaches_a_wait_that_is_not_cut_short() -> None:
    """Such a wait raises the error of a refusal as any other does."""
    reply: Mail[Any] = Mail(Question())
    reply.refuse(SessionBusyError("busy"))
    with pytest.raises(SessionBusyError):
        await reply.wait_settled()


@pytest.mark.parametrize("name", ["wait", "wait_settled"])
async def test_a_second_waiter_is_refused(name: str) -> None:
    """A second task that waits for one reply is told so, and the first gets the answer."""
    reply: Mail[Any] = Mail(Question())
    got: list[int] = []

    async def wait() -> None:
        got.append(await reply.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await getattr(reply, name)()
        reply.answer(5)
    assert got == [5]


def test_mail_that_nobody_waits_for() -> None:
    """Answering what was only told is nothing, so that an actor need not ask which it was."""
    mail = Mail(Question())
    mail.answer("x")
    mail.refuse(ValueError("x"))
    assert mail.settled
