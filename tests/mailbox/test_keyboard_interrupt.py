"""Ctrl-C at any line of the code that parks or wakes tasks: the program ends in order, and no state is left torn."""

from typing import Any

import attrs
import trio
import trio.testing

from tests.mailbox.sample_messages import OneAtATime, Start, gone
from tests.support.interrupting import Program, interrupt_everywhere
from warren.mailbox import Mail, Mailbox, MailboxClosedError, mail, mailbox
from warren.storage import runner
from warren.storage.sqlite import pool


@attrs.define(eq=False)
class Exchange:
    """A program with one actor, which is asked while it is parked and while it works.

    Attributes:
        rule: the admission rule of the mailbox.
        mailbox: where it is asked.
    """

    rule: OneAtATime = attrs.field(factory=OneAtATime)
    mailbox: Mailbox = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.mailbox = Mailbox(admit=self.rule.admit)

    async def run(self) -> None:
        """Tell it something, ask it twice, the second time without a way to be cancelled, and close."""
        async with trio.open_nursery() as nursery:
            self.mailbox.tell(Start(1))
            nursery.start_soon(self._serve)
            await trio.testing.wait_all_tasks_blocked()
            assert await self.mailbox.ask(Start(2)) == "done"
            reply: Mail[str] = self.mailbox.post(Start(3))
            assert await reply.wait_settled() == "done"
            self.mailbox.close(gone)
        await trio.lowlevel.checkpoint()

    async def _serve(self) -> None:
        """Answer until the mailbox is closed; as every actor does, leave nobody waiting, whatever ends it."""
        batch: list[Mail[Any]] = []
        try:
            while True:
                batch = await self.mailbox.receive()
                for each in batch:
                    self.rule.taken = False
                    each.answer("done")
        except MailboxClosedError:
            return
        finally:
            self.rule.taken = False
            self.mailbox.abandon(gone)
            for each in batch:
                each.refuse(gone())

    def check(self) -> None:
        """Assert that nobody counts as parked, and that the place is claimed only for mail that is there."""
        assert not self.mailbox.statistics().receiver_parked
        assert self.rule.taken == bool(self.mailbox.take())


async def _lend() -> None:
    lent = pool.SqlitePool([object()], runner.thread_runner)
    try:
        await lent.run(id)
    finally:
        with trio.CancelScope(shield=True), trio.fail_after(10):
            await lent.run(id)
            await lent.run_on_all(lambda _: None)
    await trio.lowlevel.checkpoint()


def test_a_message_is_there_whole_or_not_at_all() -> None:
    """Wherever it comes, the run ends in the KeyboardInterrupt, nothing is parked and nothing claimed for nobody."""

    def program() -> Program:
        exchange = Exchange()
        return exchange.run, exchange.check

    assert interrupt_everywhere(program, mailbox, mail) > 50


def test_a_thread_is_waited_for() -> None:
    """Wherever it comes while a thread works for the store, the thread is waited for and its connection comes back."""
    assert interrupt_everywhere(lambda: (_lend, None), pool, runner) > 20
