"""The answers to what the tool calls of a session wait for: each reaches the call of its turn, or in the background."""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import attrs

from warren.actors.protocol import GiveAnswer
from warren.actors.session.answers import answer_of, answered, answers, contradiction, not_waiting, response_of
from warren.actors.session.background import BackgroundCalls, Errand
from warren.actors.session.conversation import Conversation
from warren.actors.shared import Shared
from warren.actors.turn.left import begun
from warren.actors.turn.turn import Turn
from warren.base.errors import WarrenError
from warren.base.values import define
from warren.conversation.budget import NO_EXPENSE
from warren.conversation.categories import Decision
from warren.conversation.inputs import Input, Numbered
from warren.conversation.waits import DECIDED, Wait, WaitKey
from warren.mailbox import Mail
from warren.reports.audit import AuditEntry
from warren.storage.operations import InputOutcome

logger: Final = logging.getLogger("warren.session")
Store = Callable[[Mail[None], GiveAnswer], Awaitable[Callable[[], None]]]
"""Stores the answer of a request; returns what the loop of the session does then."""


@define(eq=False)
class Answering:
    """Gives the tool calls of one session their answers, each once: the first one counts.

    An answer to a wait that the store has is stored before its sender hears that it was taken, and before the call goes
    on with it. An answer to a wait that lasts no longer than this process is given at once.

    Attributes:
        shared: the resources of the runtime.
        conversation: has the waits that the store has, and stores the answers.
        background: the calls that run in the background.
        changed: called when a wait has got its answer.
        late: puts the response of a peer that no call waits for into the session's inbox, as a message of its own.
    """

    shared: Shared
    conversation: Conversation
    background: BackgroundCalls
    changed: Callable[[], object]
    late: Callable[[Input], Awaitable[None]]
    _on_their_way: list[Mail[None]] = attrs.field(factory=list)  # to the store
    _ends: list[Numbered] = attrs.field(factory=list)  # notices of answers, not on their way as yet
    _send: Errand | None = None
    _running: Callable[[], Turn | None] = lambda: None
    _charge: Callable[[Sequence[Numbered]], None] = lambda _notices: None

    def begin(
        self, send: Errand, running: Callable[[], Turn | None], charge: Callable[[Sequence[Numbered]], None]
    ) -> None:
        """Take answers.

        Args:
            send: changes the store after all changes under way.
            running: returns the running turn.
            charge: counts what children have spent whose ends no call has waited for.
        """
        self._send, self._running, self._charge = send, running, charge

    def leave(self) -> None:
        """Refer to the session no more, as it leaves memory."""
        self._send, self._running, self._charge, self._ends = None, lambda: None, lambda _notices: None, []

    def abandon(self, error: Callable[[], WarrenError]) -> None:
        """Refuse the requests whose answers are on their way; `error` makes the error for each."""
        for mail in self._on_their_way:
            mail.refuse(error())

    @property
    def _turn(self) -> Turn | None:
        return self._running()

    @property
    def unanswered(self) -> Sequence[Wait]:
        """The waits of the open turn that nobody has answered."""
        turn = self._turn
        return self.conversation.unanswered if turn is None or turn.steps is not None else turn.waits_in_memory

    def take(self, mail: Mail[None], message: GiveAnswer) -> None:
        """Give a tool call its answer, and reply to the request for that. Raises WarrenError if nothing takes it."""
        turn = self._turn
        if turn is not None and (doubt := self._doubt) is not None:
            raise doubt
        wait = self._wait_in_memory(message)
        if wait is None:
            self._in_turn(mail, message, self._store)
            return
        if wait.state == "answered":
            if (problem := contradiction(wait, message)) is not None:
                raise problem
            mail.answer(None)
            return
        if wait.may_have_run and wait in self.background.asked:
            self._in_turn(mail, message, self._decide_again)
            return
        waits = self._answered(wait, message)
        if turn is not None:
            for each in waits:
                turn.answered(each)
        for entry in _entries(message, waits):
            self.shared.auditor.add(entry)
        self.conversation.remember(waits[0])
        mail.answer(None)

    def _in_turn(self, mail: Mail[None], message: GiveAnswer, store: Store) -> None:
        """Give an answer by a function that stores it, after all changes of the session that are under way."""
        assert self._send is not None  # noqa: S101 - for the type checker: requests come while the session lives
        self._on_their_way.append(mail)
        self._send(partial(store, mail, message))

    def _wait_in_memory(self, message: GiveAnswer) -> Wait | None:
        """Return the wait that an answer is meant for, or begins, if no store has it; None if one may have it."""
        turn, asked = self._turn, self.background.find(message)
        # One that was decided on before is not in the way of a later call of the same id.
        if asked is not None and (
            asked.state == "waiting" or not any(answers(each, message) for each in self.unanswered)
        ):
            return asked
        if turn is None or turn.steps is not None:
            return None
        wait = turn.find_wait(partial(answers, message=message))
        begins = message.begins if message.begins is not None and turn.awaits_result(message.begins) else None
        return wait or begins

    async def _decide_again(self, mail: Mail[None], message: GiveAnswer) -> Callable[[], None]:
        """Store the decision whether a call in the background runs again, unless there is one."""
        problem: WarrenError | None = None
        asked = self.background.find(message)
        try:
            if asked is None:
                problem = not_waiting(message)
            elif asked.state == "answered":
                problem = contradiction(asked, message)
            else:
                decided = answered(asked, message, self.shared.storage.now())
                await self.background.decide(decided, _entries(message, [decided]))
        except WarrenError as exc:
            problem = exc

        def apply() -> None:
            self._on_their_way.remove(mail)
            mail.answer(None) if problem is None else mail.refuse(problem)

        return apply

    async def _store(self, mail: Mail[None], message: GiveAnswer) -> Callable[[], None]:
        """Store the answer to a wait, unless that has one."""
        conversation = self.conversation
        stored: Sequence[Wait] = ()
        problem: WarrenError | None = None
        try:
            wait = await self._wait_of(message)
            of_turn = wait is None or (wait.unanswered and wait.reason != "background")
            if self._turn is None and conversation.open_turn is None and of_turn:
                problem = conversation.runs_none()
            elif wait is None:
                problem = not_waiting(message)
            elif wait.state == "waiting" and self._has_given_up(wait):
                problem = contradiction(wait, message)
            elif wait.state == "waiting":
                stored = self._answered(wait, message)
                await conversation.store_answer(stored[0], _entries(message, stored), stored[1:])
            else:
                problem = contradiction(wait, message)
            if problem is not None:  # it is final, and the turn of another process may have a call that waits
                problem = self._doubt or await conversation.lost() or problem
        except WarrenError as exc:
            stored, problem = (), exc

        def apply() -> None:
            for each in stored:
                self.background.given(each)
                if self._turn is not None:
                    self._turn.answered(each)
                conversation.remember(each)
                self.changed()
            self._on_their_way.remove(mail)
            mail.answer(None) if problem is None else mail.refuse(problem)

        return apply

    def take_notice(self, number: int, notice: Input) -> None:
        """Give a tool call the end of the child, or the response of the peer, that it waits for.

        The notice that has brought it is settled along with that.
        """
        if self._send is None:
            return
        self._ends.append(Numbered(number, notice))
        if len(self._ends) == 1:  # else those that come till then are stored along with it
            self._send(self._store_notices)

    async def _store_notices(self) -> Callable[[], None]:
        """Store the answers that have come, with the outcome of their notices, in one change.

        If nobody waits for them, the outcome alone; but a response of a peer becomes a message, and what a child has
        spent counts for the budget.
        """
        conversation, ends, charges = self.conversation, self._ends, list[Numbered]()
        self._ends = []
        found, in_memory = dict[WaitKey, Wait](), list[tuple[Wait, GiveAnswer]]()
        problem: WarrenError | None = None
        try:
            for each in ends:
                message = self._message_of(each.input)
                there = None if message is None else self._wait_in_memory(message)
                if message is not None and there is not None and there.state == "waiting":
                    in_memory.append((there, message))
                elif message is not None and there is None and (wait := await self._open(message, found)) is not None:
                    found |= {each.key: each for each in self._answered(wait, message)}
                elif await self._counts_late(each.input, message if there is None else None, found):
                    charges.append(each)
            ends = [each for each in ends if each not in charges]
            settled = InputOutcome(tuple(each.number for each in ends))
            if stored := list(found.values()):
                await conversation.store_answer(stored[0], (), stored[1:], settled)
            elif ends:
                problem = await conversation.store_outcome(settled)
        except WarrenError as exc:
            problem = exc

        def apply() -> None:
            if problem is None:
                self._end_calls((*stored, *self._in_memory(in_memory)), ends)
                self._charge(charges)
            else:
                logger.warning(
                    "session %s: the answer to a call cannot be stored as yet: %s",
                    *(conversation.log.session_id, problem.message),
                )

        return apply

    def _message_of(self, notice: Input) -> GiveAnswer | None:
        """Return the answer that a notice has brought; None if it is a response that no call waits for."""
        if notice.request_id is None:
            return answer_of(notice)
        wait = self.conversation.find_request(notice.request_id)
        if wait is None and self._turn is not None and self._turn.steps is None:
            wait = self._turn.find_request(notice.request_id)
        return None if wait is None else response_of(notice, wait)

    async def _open(self, message: GiveAnswer, found: Collection[WaitKey]) -> Wait | None:
        """Return the wait that the store has for an answer; None if nobody waits for it, or it has just been found."""
        wait = await self._wait_of(message)
        if wait is None or wait.state != "waiting" or wait.key in found or self._has_given_up(wait):
            return None
        return wait

    async def _counts_late(self, notice: Input, message: GiveAnswer | None, found: Collection[WaitKey]) -> bool:
        """Deal with a notice that no call waits for: let the response of a peer be a message.

        Return whether it is the end of a child whose call was given up, and changes what counts for the budget.
        """
        if notice.request_id is not None:
            await self.late(notice)
        end, budget = notice.end, self.conversation.known.options.budget
        if message is None or end is None or budget is None or end.charge == NO_EXPENSE:
            return False
        wait = await self._wait_of(message)  # one with a result has had this end before
        return wait is None or (wait.result is None and wait.key not in found)

    def _end_calls(self, waits: Iterable[Wait], notices: Iterable[Numbered]) -> None:
        """Go on with calls that have their answers, and drop the notices that have brought these."""
        for wait in waits:
            if self._turn is not None:
                self._turn.answered(wait)
            self.changed()
        for each in notices:
            self.conversation.inbox.settle(each.number)

    def _in_memory(self, ends: Sequence[tuple[Wait, GiveAnswer]]) -> Iterator[Wait]:
        """Yield waits that no store has, with their answers."""
        for wait, message in ends:
            if wait.state == "waiting":
                yield from self._answered(wait, message)

    @property
    def _doubt(self) -> WarrenError | None:
        """The error while the lease is not proved, else None: while a turn runs, its guard knows more."""
        guard = None if self._turn is None else self._turn.plan.guard
        if guard is None:
            return self.conversation.doubt
        return None if guard.open else guard.fence.unproved(self.conversation.log.session_id)

    async def _wait_of(self, message: GiveAnswer) -> Wait | None:
        """Return the wait that an answer is meant for, or begins; None if there is none. Raises StoreError."""
        wait = self._open_wait(message)
        if wait is not None and wait.reason == "background":
            await self.background.look(wait)
            wait = self._open_wait(message)
        if wait is None:
            earlier = await self.conversation.earlier_wait(message)
            wait = self._open_wait(message) or earlier  # its call may have begun to wait meanwhile
        elif wait.reason == "background" and self.background.has_given_up(wait):  # another process may have taken one
            wait = await self.conversation.earlier_wait(message) or wait
        if wait is None and message.begins is not None and self._awaits_result(message.begins):
            wait = message.begins
        return wait

    def _has_given_up(self, wait: Wait) -> bool:
        """Return whether the call of a wait has a result without it, or will have: the wait ends with the next step."""
        if wait.reason == "background":
            return self.background.has_given_up(wait)
        if not wait.left(self.shared.storage.now()):  # no process has been there to end it
            return True
        if self._turn is not None:
            return self._turn.has_given_up(wait)
        kept = self.conversation.calls.get(wait.call_id)
        return kept is not None and kept.result is not None

    def _open_wait(self, message: GiveAnswer) -> Wait | None:
        return self.background.awaited(message) or self.conversation.find_wait(message)

    def _answered(self, wait: Wait, message: GiveAnswer) -> Sequence[Wait]:
        """Return a wait with its answer, and the others that it is the answer to: of calls of a tool that it allows."""
        now, decision = self.shared.storage.now(), message.decision
        first = answered(wait, message, now)
        if decision is None or not decision.remember or wait.stands_alone:
            return (first,)
        allowed = GiveAnswer(DECIDED, "", Decision(allow=True))
        others = [
            each
            for each in self.unanswered
            if (each.reason, each.name) == ("approval", wait.name)
            and each.key != wait.key
            and not (each.stands_alone or self._has_given_up(each))
        ]
        return (first, *(answered(each, allowed, now) for each in others))

    def _awaits_result(self, wait: Wait) -> bool:
        """Return whether a tool call of the open turn has begun, and has no result."""
        if self._turn is not None:
            return self._turn.awaits_result(wait)
        return begun(self.conversation.calls, self.conversation.waits, wait)


def _entries(message: GiveAnswer, waits: Sequence[Wait]) -> Sequence[AuditEntry]:
    """Return the entries of the audit for an answer, which is one to some waits."""
    first = message.audit
    others = (each.wait_id for each in waits[1:])
    return [] if first is None else [first, *(attrs.evolve(first, details={"call": each}) for each in others)]
