"""The mailbox: takes or refuses at once, hands over in batches, and lets no ask hang."""

from typing import Final

import attrs
import pytest
import trio
from trio.testing import assert_checkpoints, assert_no_checkpoints, wait_all_tasks_blocked

from tests.mailbox.sample_messages import Asker, Farewell, OneAtATime, Question, Start, crashed, gone
from warren.base.errors import AgentError, CapacityExceededError, SessionBusyError, SessionNotFoundError
from warren.mailbox import Mail, Mailbox, MailboxClosedError

CROWD: Final = 1_000


async def echo(mailbox: Mailbox) -> None:
    """An actor that answers with what it was asked, until the mailbox is closed and empty."""
    while True:
        try:
            batch = await mailbox.receive()
        except MailboxClosedError:
            return
        for mail in batch:
            assert isinstance(mail.message, Question)
            mail.answer(mail.message.text)


async def test_ask_and_answer() -> None:
    """An ask returns what the actor answers."""
    mailbox = Mailbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(echo, mailbox)
        assert await mailbox.ask(Question("a")) == "a"
        assert [await mailbox.ask(Question(str(n))) for n in range(3)] == ["0", "1", "2"]
        mailbox.close(gone)


async def test_mail_keeps_its_order() -> None:
    """The message that was sent first is received first, told and asked alike, in one batch and with one checkpoint."""
    mailbox = Mailbox()
    mailbox.tell(Question("a"))
    mailbox.post(Question("b"))
    mailbox.tell(Question("c"))
    with assert_checkpoints():
        batch = await mailbox.receive()
    assert [mail.message for mail in batch] == [Question("a"), Question("b"), Question("c")]
    assert mailbox.take() == []


async def test_a_parked_actor_gets_all_that_came_before_it_ran() -> None:
    """Mail that arrives between the wake-up and the actor's turn is in the same batch."""
    mailbox = Mailbox()
    batches: list[int] = []

    async def receive() -> None:
        batches.append(len(await mailbox.receive()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        for _ in range(5):
            mailbox.tell(Question())
    assert batches == [5]


async def test_sending_never_waits() -> None:
    """Telling and posting are over at once, also towards an actor that does not look."""
    mailbox = Mailbox(capacity=2)
    with assert_no_checkpoints():
        mailbox.tell(Question())
        mailbox.post(Question())
    assert mailbox.statistics().waiting == 2


async def test_a_full_mailbox_refuses() -> None:
    """Past the capacity a sender is refused at once; with room again it is not."""
    mailbox = Mailbox(capacity=2)
    mailbox.tell(Question())
    mailbox.tell(Question())
    for send in (mailbox.tell, mailbox.post):
        with pytest.raises(CapacityExceededError, match=r"2 messages wait") as caught:
            send(Question())
        assert caught.value.cause == "mailbox_full"
    with assert_no_checkpoints(), pytest.raises(CapacityExceededError):
        await mailbox.ask(Question())
    await mailbox.receive()
    mailbox.tell(Question())


async def test_an_urgent_message_finds_room() -> None:
    """A message that ends a session gets into a mailbox that is full, and into no closed one."""
    mailbox = Mailbox(capacity=1)
    mailbox.tell(Question())
    mailbox.tell(Farewell())
    assert mailbox.statistics().waiting == 2
    mailbox.close(gone)
    with pytest.raises(SessionNotFoundError):
        mailbox.tell(Farewell())


async def test_a_refused_start_claims_nothing() -> None:
    """A full or closed mailbox refuses a message before its admission rule is asked."""
    rule = OneAtATime()
    mailbox = Mailbox(capacity=1, admit=rule.admit)
    mailbox.tell(Question())
    with pytest.raises(CapacityExceededError):
        mailbox.tell(Start())
    mailbox.close(gone)
    with pytest.raises(SessionNotFoundError):
        mailbox.tell(Start())
    assert not rule.taken


async def test_a_message_that_is_not_admitted_leaves_no_mail() -> None:
    """The sender gets the error of the admission rule, and the message never reaches the actor."""
    mailbox = Mailbox(admit=OneAtATime(taken=True).admit)
    with pytest.raises(SessionBusyError):
        mailbox.tell(Start())
    mailbox.tell(Question())
    assert [mail.message for mail in mailbox.take()] == [Question()]


async def test_without_an_admission_rule_every_message_is_taken() -> None:
    """A mailbox without a rule takes two starts."""
    mailbox = Mailbox()
    mailbox.tell(Start(1))
    mailbox.tell(Start(2))
    assert mailbox.statistics().waiting == 2


def test_one_of_a_thousand_starts_wins() -> None:
    """Of 1,000 starts sent one after the other, outside any event loop, one is taken and 999 are told Busy."""
    mailbox = Mailbox(capacity=CROWD, admit=OneAtATime().admit)
    taken, busy = 0, 0
    for number in range(CROWD):
        try:
            mailbox.post(Start(number))
            taken += 1
        except SessionBusyError:
            busy += 1
    assert (taken, busy) == (1, CROWD - 1)
    assert [mail.message for mail in mailbox.take()] == [Start(0)]


@attrs.define(eq=False)
class PassCounter(trio.abc.Instrument):
    """Counts the passes of the scheduler."""

    passes: int = 0

    def before_io_wait(self, timeout: float) -> None:
        del timeout
        self.passes += 1


async def test_a_thousand_tasks_start_at_once() -> None:
    """Of 1,000 tasks that start a turn in one scheduler pass, 999 know in that pass that they lost; one is answered."""
    mailbox = Mailbox(admit=OneAtATime().admit)
    counting = PassCounter()
    ended: list[int] = []
    askers = [Asker(mailbox, Start(number), on_end=lambda _: ended.append(counting.passes)) for number in range(CROWD)]
    trio.lowlevel.add_instrument(counting)
    async with trio.open_nursery() as nursery:
        for asker in askers:
            nursery.start_soon(asker.run)
        await wait_all_tasks_blocked()
        (winner,) = mailbox.take()
        assert len(ended) == CROWD - 1
        assert len(set(ended)) == 1
        winner.answer("won")
    trio.lowlevel.remove_instrument(counting)
    ends = [asker.ends for asker in askers]
    assert (ends.count(["won"]), ends.count(["SESSION_BUSY"])) == (1, CROWD - 1)


async def test_a_refused_ask_has_no_checkpoint() -> None:
    """No other task runs between the admission rule and the refusal."""
    mailbox = Mailbox(admit=OneAtATime(taken=True).admit)
    with assert_no_checkpoints(), pytest.raises(SessionBusyError):
        await mailbox.ask(Start())


async def test_a_freed_place_is_claimed_once() -> None:
    """When the place is free again the mailbox takes the next start, and only one."""
    rule = OneAtATime()
    mailbox = Mailbox(admit=rule.admit)
    mailbox.tell(Start(1))
    rule.taken = False
    mailbox.tell(Start(2))
    with pytest.raises(SessionBusyError):
        mailbox.tell(Start(3))
    assert [mail.message for mail in mailbox.take()] == [Start(1), Start(2)]


async def test_a_closed_mailbox_is_read_to_its_end() -> None:
    """After the close senders get its reason, anew each time; what was inside is received, then the loop ends."""
    mailbox = Mailbox()
    reply = mailbox.post(Question("last"))
    mailbox.close(gone)
    refusals = []
    for send in (mailbox.tell, mailbox.post, mailbox.tell):
        with pytest.raises(SessionNotFoundError) as caught:
            send(Question())
        refusals.append(caught.value)
    assert len({id(refusal) for refusal in refusals}) == 3
    await echo(mailbox)
    assert await reply.wait() == "last"
    with pytest.raises(MailboxClosedError):
        await mailbox.receive()


async def test_the_close_wakes_the_actor() -> None:
    """An actor that waits for mail ends when there will be none."""
    mailbox = Mailbox()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(echo, mailbox)
        await wait_all_tasks_blocked()
        assert mailbox.statistics().receiver_parked
        mailbox.close(gone)
    assert not mailbox.statistics().receiver_parked


async def test_the_first_reason_stays() -> None:
    """Closing again changes nothing: those who come late hear why it was closed first."""
    mailbox = Mailbox()
    mailbox.close(gone)
    mailbox.close(crashed)
    mailbox.abandon(crashed)
    with pytest.raises(SessionNotFoundError):
        mailbox.tell(Question())


async def test_abandoning_answers_everybody() -> None:
    """When the actor dies everyone who waits gets its own error, and what was told is dropped."""
    mailbox = Mailbox()
    askers = [Asker(mailbox, Question(str(number))) for number in range(10)]
    async with trio.open_nursery() as nursery:
        for asker in askers:
            nursery.start_soon(asker.run)
        await wait_all_tasks_blocked()
        mailbox.tell(Question("told"))
        mailbox.abandon(crashed)
    assert [asker.ends for asker in askers] == [["AGENT_ERROR"]] * 10
    assert mailbox.statistics().waiting == 0
    with pytest.raises(AgentError):
        mailbox.tell(Question())
    with pytest.raises(MailboxClosedError):
        await mailbox.receive()


async def test_each_gets_an_error_of_its_own() -> None:
    """One error object raised in many tasks would mix up their tracebacks."""
    mailbox = Mailbox()
    replies: list[Mail[str]] = [mailbox.post(Question()) for _ in range(3)]
    mailbox.abandon(crashed)
    errors = []
    for reply in replies:
        with pytest.raises(AgentError) as caught:
            await reply.wait()
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 3


async def test_a_cancelled_caller_leaves_the_actor_at_work() -> None:
    """The message of a caller that went away is still received, can still be answered, and the next one too."""
    mailbox = Mailbox()
    with trio.move_on_after(0) as scope:
        await mailbox.ask(Question("gone"))
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(echo, mailbox)
        assert await mailbox.ask(Question("here")) == "here"
        mailbox.close(gone)


async def test_a_cancelled_actor_loses_no_mail() -> None:
    """An actor that was cancelled while it waited, or with mail before it, finds the mail when it comes back."""
    mailbox = Mailbox()
    with trio.move_on_after(0):
        await mailbox.receive()
    assert not mailbox.statistics().receiver_parked
    mailbox.tell(Question("a"))
    with trio.CancelScope() as scope:
        scope.cancel()
        await mailbox.receive()
    assert scope.cancelled_caught
    assert [mail.message for mail in await mailbox.receive()] == [Question("a")]


async def test_a_second_receiver_is_refused() -> None:
    """A second task that receives is told so, also when mail has just come, and the first gets that mail."""
    mailbox = Mailbox()
    batches: list[int] = []

    async def receive() -> None:
        batches.append(len(await mailbox.receive()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await mailbox.receive()
        mailbox.tell(Question())
        with pytest.raises(trio.BusyResourceError):
            await mailbox.receive()
    assert batches == [1]
    mailbox.tell(Question())
    assert len(await mailbox.receive()) == 1


async def test_a_wake_without_mail() -> None:
    """The owner can let its loop look up: the batch is empty then. With nobody parked it is nothing."""
    mailbox = Mailbox()
    batches: list[int] = []
    mailbox.wake()

    async def receive() -> None:
        batches.append(len(await mailbox.receive()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        assert batches == []
        mailbox.wake()
        mailbox.wake()
    assert batches == [0]


async def test_mail_for_a_busy_receiver() -> None:
    """The first mail and a wake call `busy` while nobody waits in `receive`; a parked receiver is woken instead."""
    calls: list[str] = []
    mailbox = Mailbox(busy=lambda: calls.append("busy"))
    mailbox.tell(Question("a"))
    mailbox.tell(Question("b"))
    assert calls == ["busy"]
    assert len(mailbox.take()) == 2
    mailbox.wake()
    assert calls == ["busy"] * 2
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mailbox.receive)
        await wait_all_tasks_blocked()
        mailbox.tell(Question("c"))
    assert calls == ["busy"] * 2


async def test_statistics() -> None:
    """The figures of the moment: what waits, how much may, whether the actor waits, whether it is over."""
    mailbox = Mailbox(capacity=7)
    assert attrs.astuple(mailbox.statistics()) == (0, 7, False, False)
    mailbox.tell(Question())
    assert attrs.astuple(mailbox.statistics()) == (1, 7, False, False)
    mailbox.take()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(echo, mailbox)
        await wait_all_tasks_blocked()
        assert attrs.astuple(mailbox.statistics()) == (0, 7, True, False)
        mailbox.close(gone)
    assert attrs.astuple(mailbox.statistics()) == (0, 7, False, True)
