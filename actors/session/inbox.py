"""The inputs of a live session: those that wait, the callers that wait for their results, and which have ended."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import attrs

from warren.actors.events.eventlog import Beginning, utc_now
from warren.actors.protocol import Arrived
from warren.actors.session.ending import (
    Ending,
    encode_ending,
    final,
    goes_on,
    no_more,
    outcome_unknown,
    wait_again,
    withdrawal,
)
from warren.base.errors import InvalidParamsError, SessionNotFoundError, SessionNotRunningError, WarrenError
from warren.base.values import define
from warren.calls.creation import FIRST_PROMPT
from warren.conversation import codec
from warren.conversation.inputs import Entering, Input, Numbered
from warren.conversation.views import TurnResult
from warren.mailbox import Mail
from warren.models.tools import Tool
from warren.storage.operations import NOTHING, InputOutcome

REMEMBERED: Final = 1_000
"""Inputs of which a live session remembers that they have ended."""
SMALL: Final = 1_024
"""Bytes of an error that is remembered with its input. Results, and larger errors, are in the store alone."""


GONE: Final = Input("", "queue", "", datetime.min.replace(tzinfo=UTC))
"""Stands for an input that an open turn has taken: its text is in the conversation."""


@define(eq=False)
class WaitingInput:
    """An input, and the callers that wait for the end of the turn that takes it.

    Attributes:
        numbered: the input and its number in the store.
        askers: requests for the result of the turn.
        begun: the slots of those askers that want the events of that turn.
        tools: tools that its sender brings, by name.
    """

    numbered: Numbered
    askers: list[Mail[Ending | None]] = attrs.field(factory=list)
    begun: list[Beginning] = attrs.field(factory=list)
    tools: Mapping[str, Tool] = attrs.field(factory=dict)

    @property
    def input(self) -> Input:
        """The input."""
        return self.numbered.input


@define(eq=False)
class Inbox:
    """The inputs of one session.

    Attributes:
        session_id: the session.
        beginning: gets the slots of those who wait for the events of an input, when a turn takes it: see EventLog.
        now: the clock of the store (UTC).
        paused: whether no input begins a turn, as another process is to begin it, or as the last turn could not be
            stored: each try would cost another call of the model. The next input ends the pause, and so do `Wake`, an
            answer to a call, and a commit of a turn.
        waiting: the inputs that wait, by number.
        awaiting: requests for the end of the running turn, or of the next one.
        starter: the request that began the open turn, while that is suspended.
        notices: those of other sessions that have no outcome as yet, by number.
    """

    session_id: str
    beginning: list[Beginning] = attrs.field(factory=list)
    now: Callable[[], datetime] = utc_now
    paused: bool = False
    waiting: dict[int, WaitingInput] = attrs.field(factory=dict)
    awaiting: list[Mail[TurnResult]] = attrs.field(factory=list)
    starter: Mail[Any] | None = None
    notices: dict[int, Input] = attrs.field(factory=dict)
    _heeded: set[int] = attrs.field(factory=set)  # notices that something is done about, or was in vain
    _ending: dict[int, bool] = attrs.field(factory=dict)  # those that end with the turn; True: its commit has them
    _withdrawn: dict[int, tuple[WaitingInput, Mail[int]]] = attrs.field(factory=dict)  # until the store has answered
    _taken: dict[int, WaitingInput] = attrs.field(factory=dict)
    _kept: Collection[int] = ()  # those that a compaction has stored in the middle of the turn
    _ended: dict[int, WarrenError | None] = attrs.field(factory=dict)  # None: only the store has how
    _loaded_to: int = 0

    def load(self, stored: Iterable[Numbered], loaded_to: int, taken: Collection[int] = ()) -> None:
        """Take the inputs of the store. All other numbers up to `loaded_to` have had their turns.

        Args:
            stored: the inputs that wait.
            loaded_to: the number of the newest input that came before.
            taken: the numbers of the inputs that an open turn has taken.
        """
        known = {**self._taken, **self.waiting}  # another process may have begun a turn with an input that waited here
        self.beginning += (begun for number in taken if number in self.waiting for begun in known[number].begun)
        self._taken = {number: known.pop(number, WaitingInput(Numbered(number, GONE))) for number in taken}
        self._kept = frozenset(taken)
        self.waiting, self.notices, self._ending = {}, {}, {}
        self._heeded.clear()
        for each in stored:
            if each.input.is_notice:
                self.notices[each.number] = each.input
                continue
            there = self.waiting[each.number] = known.pop(each.number, WaitingInput(each))
            there.numbered = each  # instead of `GONE`, if the store has gone back to before a turn took it
        self._loaded_to = loaded_to
        for gone in known.values():
            for mail in gone.askers:
                mail.answer(None)

    def shown(self) -> Sequence[Input]:
        """Return the inputs that wait, in order."""
        return tuple(each.input for each in self.waiting.values())

    def may_take(self, number: int) -> bool:
        """Return whether a turn can still take an input, which may be on its way from the store."""
        return not any(number in gone for gone in (self._taken, self._ended, self._withdrawn))

    # -- notices

    def take_notices(self) -> Sequence[Numbered]:
        """Return the notices that nothing was done about, in order; they count as heeded from now on."""
        if not self.notices:
            return ()
        found = [Numbered(number, self.notices[number]) for number in sorted(self.notices.keys() - self._heeded)]
        self._heeded.update(each.number for each in found)
        return found

    def ends_with_turn(self, number: int) -> None:
        """Note that a notice has its outcome with the end of the turn."""
        self._ending[number] = False

    def settle(self, number: int) -> None:
        """Drop a notice that has its outcome in the store."""
        self.notices.pop(number, None)
        self._heeded.discard(number)
        self._ended[number] = None
        self._forget()

    def heed_later(self, number: int) -> None:
        """Have a notice heeded at the next opportunity."""
        self._heeded.discard(number)

    def heed_again(self) -> None:
        """Have all notices heeded that were so in vain."""
        self.paused = False
        self._heeded = set(self._ending)

    @property
    def first_prompt(self) -> int | None:
        """The number of the prompt that the session was made with, while it waits; else None."""
        return next((number for number, each in self.waiting.items() if each.input.key == FIRST_PROMPT), None)

    @property
    def first_waits(self) -> bool:
        """Whether that prompt waits, also if it is being withdrawn: the store may refuse that."""
        withdrawn = (each for each, _ in self._withdrawn.values())
        return any(each.input.key == FIRST_PROMPT for each in (*self.waiting.values(), *withdrawn))

    def has_first(self, inputs: InputOutcome) -> bool:
        """Return whether the prompt that the session was made with is among inputs that end without a turn."""
        known = {**self._taken, **self.waiting, **{number: each for number, (each, _) in self._withdrawn.items()}}
        return any(number in known and known[number].input.key == FIRST_PROMPT for number in inputs.numbers)

    def end_waiting(self, number: int, error: WarrenError) -> None:
        """Answer for an input that has ended without a turn."""
        each = self.waiting.pop(number, None)
        if each is not None:
            self._end(number, each, error)

    # -- coming in

    def arrive(self, mail: Mail[Ending | None], message: Arrived) -> None:
        """Take an input in, or find the one that it repeats, and answer its sender, now or when its turn has ended.

        If the running turn has taken the input, the slot of the message joins those of the log.
        """
        self.paused = False
        number = message.numbered.number
        if message.numbered.input.is_notice:
            for each in (message.numbered, *message.others):
                if each.number > self._loaded_to and each.number not in self._ended:
                    self.notices.setdefault(each.number, each.input)
            mail.answer(None)
            return
        there = self._find(message)
        if not message.waits:
            mail.answer(None)
        elif there is not None:
            there.askers.append(mail)
        else:
            _answer(mail, self._ended.get(number))
        if there is not None and message.begun is not None:
            (self.beginning if number in self._taken else there.begun).append(message.begun)

    def _find(self, message: Arrived) -> WaitingInput | None:
        """Return the input that waits or is taken, or let it wait if it is new; None if its turn is over."""
        number = message.numbered.number
        there = self.waiting.get(number) or self._taken.get(number)
        if number in self._withdrawn:
            there, _ = self._withdrawn[number]
        if there is None and number not in self._ended and number > self._loaded_to:
            # A later one of the same group of the store may have been told before.
            late = number < next(reversed(self.waiting), 0)
            there = self.waiting[number] = WaitingInput(message.numbered)
            if late:
                self.waiting = dict(sorted(self.waiting.items()))
        if there is not None:  # if it came from the store, it has no tools
            there.tools = there.tools or message.tools
        return there

    def withdraw(self, mail: Mail[int], input_id: str) -> InputOutcome:
        """Keep an input from all turns, and return the change for the store; `withdrew` answers the request.

        Raises InvalidParamsError if no such input waits.
        """
        for number, each in self.waiting.items():
            if each.input.input_id == input_id:
                self._withdrawn[number] = self.waiting.pop(number), mail
                return InputOutcome((number,), encode_ending(withdrawal(self.session_id)))
        raise InvalidParamsError.at("$.input_id", f"no input {input_id!r} waits", session_id=self.session_id)

    def withdrew(self, number: int, error: WarrenError | None) -> None:
        """Answer for an input that was withdrawn; if the store has refused that, let it wait on."""
        each, mail = self._withdrawn.pop(number)
        if error is None:
            mail.answer(number)
            self._end(number, each, withdrawal(self.session_id))
        else:
            mail.refuse(error)
            self.waiting = dict(sorted({**self.waiting, number: each}.items()))
            if self.paused:
                self._leave_waiting(each, error)

    def leave_to(self, error: WarrenError) -> None:
        """Drop the inputs that wait or that an open turn has taken, as another process has the session.

        Their askers are refused.
        """
        left, self.waiting = (*self._taken.values(), *self.waiting.values()), {}
        self._taken, self._kept = {}, ()
        for each in left:
            _refuse(each, error)
        self._refuse_starter(goes_on(error.copy()))
        self._refuse_awaiting(error)

    def await_turn(self, mail: Mail[TurnResult]) -> None:
        """Keep a request for the end of the running turn, or of the next one."""
        self.paused = False
        self.awaiting = [each for each in self.awaiting if each.awaited]
        self.awaiting.append(mail)

    def none_waits(self, doubt: WarrenError | None) -> None:
        """Refuse those who wait for a turn: none runs, and no input waits that would begin one.

        Args:
            doubt: the error for them if another process may have such a turn; None if that is out of the question.
        """
        due = self.due()
        waits = "none waits" if due is None else f"the next one waits until {due.isoformat()}"
        problem = f"the session runs no turn, and {waits}"
        error = doubt or SessionNotRunningError(problem, session_id=self.session_id)
        awaiting, self.awaiting = self.awaiting, []
        for mail in awaiting:
            mail.refuse(error.copy())

    # -- going into turns

    def first(self) -> WaitingInput | None:
        """Return the input that begins the next turn, if one does: the oldest one that waits for no time to come."""
        if self.paused or not self.waiting:
            return None
        for each in self.waiting.values():
            input_ = each.numbered.input
            if input_.starts and ((due := input_.not_before) is None or due <= self.now()):
                return each
        return None

    def due(self) -> datetime | None:
        """Return the time from which on `first` may return another input; None if no input waits for a time."""
        dues = [each.input.not_before for each in self.waiting.values() if each.input.not_before is not None]
        return None if self.paused else min(dues, default=None)

    def take(self, waiting: WaitingInput) -> None:
        """Count an input as taken by the running turn."""
        del self.waiting[waiting.numbered.number]
        self._taken[waiting.numbered.number] = waiting
        self.beginning += waiting.begun

    def take_for_step(self, entering: Entering) -> Sequence[Input]:
        """Take the inputs that enter the running turn before its next step."""
        found = [each for each in self.waiting.values() if each.input.kind != "queue"]
        if entering == "before":
            prompt = min(self._taken, default=math.inf)
            found = [each for each in found if each.numbered.number < prompt]
        elif entering == "last" and all(each.input.kind == "context" for each in found):
            return ()
        for each in found:
            self.take(each)
        return [each.input for each in found]

    def outcome(self, ending: Ending | None) -> InputOutcome:
        """Return the inputs that the turn has taken, with its ending for the store.

        While it runs `ending` is None: then those are left out that the store has as taken already.
        """
        if not self._taken and not self._ending:
            return NOTHING
        if ending is None:
            return InputOutcome(tuple([number for number in self._taken if number not in self._kept]))
        self._ending = dict.fromkeys(self._ending, True)
        return InputOutcome((*self._taken, *self._ending), encode_ending(ending))

    @property
    def taken(self) -> tuple[int, ...]:
        """The numbers of the inputs that the turn has taken."""
        return tuple(self._taken)

    def keep_taken(self) -> None:
        """Note that the inputs that the turn has taken so far are stored, whatever becomes of the turn."""
        self.paused = False
        self._kept = frozenset(self._taken)

    # -- ends

    def end_turn(self, ending: Ending) -> None:
        """Answer for the inputs of a turn that is stored."""
        self.paused = False
        if self._ending:
            self._end_notices()
        if self._taken:
            taken, self._taken, self._kept = self._taken, {}, ()
            for number, each in taken.items():
                self._end(number, each, ending)
        if self.starter is not None:
            starter, self.starter = self.starter, None
            starter.refuse(ending.copy()) if isinstance(ending, WarrenError) else starter.answer(ending)
        if self.awaiting:
            if isinstance(ending, WarrenError):
                self._refuse_awaiting(ending, ended=True)
            else:
                awaiting, self.awaiting = self.awaiting, []
                for mail in awaiting:
                    mail.answer(ending)

    def put_back(self, error: WarrenError, *, stays_open: bool = False) -> bool:
        """Let the inputs of a turn that is not stored wait again, and refuse their askers.

        Return whether the inbox pauses for it. Then the askers of all inputs are refused: nobody knows for how long.

        Args:
            error: the error for the askers.
            stays_open: whether the turn is gone on with later, with the inputs that are kept.
        """
        taken, kept = self._taken, self._kept
        self._heeded -= self._ending.keys()
        self._ending.clear()
        if stays_open:
            self._taken = {number: taken[number] for number in kept}
            self.waiting = dict(sorted({**self.waiting, **{n: e for n, e in taken.items() if n not in kept}}.items()))
            self.pause(error)
            return True
        self._taken, self._kept = {}, ()
        for number in kept:  # the store has them no longer: no turn will take them again
            self._end(number, taken[number], final(error.copy()))
        back = {number: each for number, each in taken.items() if number not in kept}
        if back:
            self.waiting = dict(sorted({**self.waiting, **back}.items()))
            self.pause(error)
        self._refuse_awaiting(error, ended=True)  # nothing of the turn is left
        return bool(back)

    def pause(self, error: WarrenError) -> None:
        """Begin no turn until the next input or `Wake`, and refuse the askers of all inputs."""
        self.paused = True
        self._refuse_starter(goes_on(error.copy()))
        for each in self._taken.values():  # no turn runs: an open one has taken them
            self._leave_waiting(each, goes_on(error.copy()))
        for each in self.waiting.values():
            self._leave_waiting(each, error)
        self._refuse_awaiting(error)

    def _leave_waiting(self, each: WaitingInput, error: WarrenError) -> None:
        """Refuse the askers of an input that waits on, nobody knows for how long."""
        _refuse(each, error)
        each.askers = []

    def close(self, error: WarrenError, turn_error: WarrenError) -> None:
        """Refuse all askers: the session's actor has ended, and `turn_error` is how its turn has."""
        for each, mail in self._withdrawn.values():
            mail.refuse(error.copy())
            _refuse(each, error)
        self._refuse_starter(turn_error.copy())
        for each in self._taken.values():
            _refuse(each, turn_error)
        for each in self.waiting.values():
            _refuse(each, error)
        gone = isinstance(error, SessionNotFoundError)
        if not gone and (self._taken or self.waiting or "goes_on" in turn_error.details):
            self._refuse_awaiting(error)
        else:
            self._refuse_awaiting(turn_error, ended=True)

    @property
    def has_callers(self) -> bool:
        """Whether somebody waits here for the end of a turn."""
        mails = [mail for each in (*self._taken.values(), *self.waiting.values()) for mail in each.askers]
        starter = [] if self.starter is None else [self.starter]
        return any(mail.awaited for mail in (*starter, *self.awaiting, *mails))

    def ended_elsewhere(self) -> None:
        """Answer for a suspended turn that another process has ended."""
        self._refuse_starter(outcome_unknown(self.session_id))

    def _refuse_starter(self, error: WarrenError) -> None:
        starter, self.starter = self.starter, None
        if starter is not None:
            starter.refuse(error)

    def _refuse_awaiting(self, error: WarrenError, *, ended: bool = False) -> None:
        """Refuse those who wait for a turn; `ended` if that has ended, or will never begin."""
        awaiting, self.awaiting = self.awaiting, []
        for mail in awaiting:
            mail.refuse(no_more(error.copy()) if ended else wait_again(error.copy()))

    def _end(self, number: int, each: WaitingInput, ending: Ending) -> None:
        self._remember(number, ending)
        for mail in each.askers:
            _answer(mail, ending)

    def _end_notices(self) -> None:
        """Drop the notices that have ended with the turn; one that came too late for its commit is heeded again."""
        ending, self._ending = self._ending, {}
        for number, stored in ending.items():
            if stored:
                self.settle(number)
            else:
                self._heeded.discard(number)

    def _remember(self, number: int, ending: Ending) -> None:
        small = isinstance(ending, WarrenError) and codec.weight(ending.body()) <= SMALL
        self._ended[number] = ending.copy() if small and isinstance(ending, WarrenError) else None
        self._forget()

    def _forget(self) -> None:
        while len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]


def _answer(mail: Mail[Ending | None], ending: Ending | None) -> None:
    mail.answer(ending.copy() if isinstance(ending, WarrenError) else ending)


def _refuse(waiting: WaitingInput, error: WarrenError) -> None:
    for mail in waiting.askers:
        mail.refuse(error.copy())
