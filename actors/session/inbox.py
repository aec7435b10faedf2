"""What waits to be said to a live session, who waits to hear what came of it, and what came of it lately."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from warren import codec
from warren.actors.protocol import Arrived
from warren.errors import AgentError, InvalidParamsError, WarrenError, of_body
from warren.inputs import Input, Numbered
from warren.mailbox import Mail
from warren.storage import NOTHING, Settled
from warren.tools import Tool
from warren.views import TurnResult

REMEMBERED: Final = 1_000
"""Settled inputs of which a live session knows what came of them."""
Ending = TurnResult | WarrenError


@attrs.define(eq=False)
class Waiting:
    """An input, and who waits for the end of the turn that takes it.

    Attributes:
        numbered: the input and its place.
        askers: who wants the turn's result.
        tools: what its sender brings.
    """

    numbered: Numbered
    askers: list[Mail[TurnResult | bool]] = attrs.field(factory=list)
    tools: Mapping[str, Tool] = attrs.field(factory=dict)

    @property
    def input(self) -> Input:
        """The input."""
        return self.numbered.input


@attrs.define(eq=False)
class Inbox:
    """The inputs of one session; only its actor changes it.

    Attributes:
        session_id: whose they are.
        paused: nothing is begun by itself, as the last turn could not be stored; the next that is said changes that.
    """

    session_id: str
    paused: bool = False
    _waiting: dict[int, Waiting] = attrs.field(factory=dict)
    _withdrawn: dict[int, tuple[Waiting, Mail[int]]] = attrs.field(factory=dict)  # until the store knows it, too
    _taken: dict[int, Waiting] = attrs.field(factory=dict)
    _kept: set[int] = attrs.field(factory=set)  # of those: what is stored already, in the middle of the turn
    _settled: dict[int, Ending] = attrs.field(factory=dict)
    _loaded_to: int = 0

    def load(self, stored: Iterable[Numbered], loaded_to: int) -> None:
        """Have what the store has; numbers up to `loaded_to` that it does not have are settled."""
        known = self._waiting
        self._waiting = {each.number: known.pop(each.number, Waiting(each)) for each in stored}
        self._loaded_to = loaded_to
        for gone in known.values():
            _refuse(gone, self._unknown())

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    def shown(self) -> Sequence[Input]:
        """Return what waits, in order."""
        return tuple(each.input for each in self._waiting.values())

    def may_take(self, number: int) -> bool:
        """Tell whether an input, which may not have come here yet, can still be taken by a turn, or back."""
        return not any(number in gone for gone in (self._taken, self._settled, self._withdrawn))

    # -- coming in

    def arrive(self, mail: Mail[TurnResult | bool], message: Arrived) -> None:
        """Take an input in, or find the one that it repeats; answer who sent it, now or when its turn has ended."""
        self.paused = False
        number = message.number
        there = self._find(number, message)
        if not message.waits:
            mail.answer(value=True)  # the store has told already whether it is new
        elif there is not None:
            there.askers.append(mail)
        else:
            _answer(mail, self._settled.get(number) or self._unknown())

    def running(self, said: Input) -> bool | None:
        """Return whether the running turn has taken an input, or one with the same key; None if it no longer waits."""
        if any(_is_same(each.input, said) for each in self._taken.values()):
            return True
        return False if any(_is_same(each.input, said) for each in self._waiting.values()) else None

    def _find(self, number: int, message: Arrived) -> Waiting | None:
        """Return what has that number, with what its sender brings; it is new where nobody knows of it."""
        there = self._waiting.get(number) or self._taken.get(number)
        if number in self._withdrawn:
            there, _ = self._withdrawn[number]
        if there is None and number not in self._settled and number > self._loaded_to:
            there = self._waiting[number] = Waiting(Numbered(number, message.input))
        if there is not None:  # it may have come from the store, which has no tools
            there.tools = there.tools or message.tools
        return there

    def withdraw(self, mail: Mail[int], input_id: str) -> Settled:
        """Keep an input from all turns, and return what the store is to be told; `withdrew` answers the request.

        Raises InvalidParamsError if no such input waits.
        """
        for number, each in self._waiting.items():
            if each.input.input_id == input_id:
                self._withdrawn[number] = self._waiting.pop(number), mail
                return Settled((number,), stored(withdrawal(self.session_id)))
        problem = f"$.input_id: no input {input_id!r} waits"
        raise InvalidParamsError(problem, path="$.input_id", session_id=self.session_id)

    def withdrew(self, number: int, error: WarrenError | None) -> None:
        """Tell everybody that an input is gone, or let it wait on where the store would not have it so."""
        each, mail = self._withdrawn.pop(number)
        if error is None:
            mail.answer(number)
            self._end(number, each, withdrawal(self.session_id))
        else:
            mail.refuse(error)
            self._waiting = dict(sorted({**self._waiting, number: each}.items()))

    def leave_to(self, error: WarrenError) -> None:
        """Drop what waits, as it is another process's to run; who waits for it is told the error."""
        left, self._waiting = self._waiting, {}
        for each in left.values():
            _refuse(each, error)

    # -- going into turns

    def first(self) -> Waiting | None:
        """Return what begins the next turn, if something does."""
        if self.paused or not self._waiting:
            return None
        return next((each for each in self._waiting.values() if each.input.starts), None)

    def take(self, waiting: Waiting) -> None:
        """Count an input as the running turn's."""
        del self._waiting[waiting.numbered.number]
        self._taken[waiting.numbered.number] = waiting

    def take_for_step(self, *, last: bool) -> Sequence[Waiting]:
        """Return what enters the running turn before its next step.

        After its `last` one only what a model has to answer makes for another.
        """
        entering = [each for each in self._waiting.values() if each.input.kind != "queue"]
        if last and all(each.input.kind == "context" for each in entering):
            return ()
        for each in entering:
            self.take(each)
        return entering

    def settled(self, ending: Ending | None) -> Settled:
        """Return what the store is told of what the turn has taken; `ending` is None while it runs."""
        if not self._taken:
            return NOTHING
        return Settled(tuple(self._taken), b"" if ending is None else stored(ending))

    def keep_taken(self) -> None:
        """Note that what the turn has taken so far is stored, whatever becomes of the turn."""
        self._kept = set(self._taken)

    # -- ends

    def settle(self, ending: Ending) -> None:
        """Tell who waits what came of the turn, which is stored."""
        taken, self._taken, self._kept = self._taken, {}, set()
        for number, each in taken.items():
            self._end(number, each, ending)

    def put_back(self, error: WarrenError) -> None:
        """Let what the turn had taken wait again, as nothing of it is stored; who waits for it is told the error."""
        for number, each in self._taken.items():
            _refuse(each, error)
            each.askers = []
            if number in self._kept:
                self._remember(number, error)
            else:
                self._waiting[number] = each
                self.paused = True
        self._waiting = dict(sorted(self._waiting.items()))
        self._taken, self._kept = {}, set()

    def close(self, error: WarrenError, turn_error: WarrenError) -> None:
        """Refuse everybody who waits: the session's actor has ended, and `turn_error` is how its turn has."""
        for each, mail in self._withdrawn.values():
            mail.refuse(error.again())
            _refuse(each, error)
        for each in self._taken.values():
            _refuse(each, turn_error)
        for each in self._waiting.values():
            _refuse(each, error)

    def _end(self, number: int, each: Waiting, ending: Ending) -> None:
        self._remember(number, ending)
        for mail in each.askers:
            _answer(mail, ending)

    def _remember(self, number: int, ending: Ending) -> None:
        self._settled[number] = ending
        while len(self._settled) > REMEMBERED:
            del self._settled[next(iter(self._settled))]

    def _unknown(self) -> WarrenError:
        problem = "a turn took the input, and what came of it is not known any more: see the history"
        return AgentError(problem, session_id=self.session_id, cause="outcome_unknown")


@attrs.frozen
class StoredEnding:
    """What came of an input: a result, or the body of an error."""

    result: TurnResult | None = None
    error: Mapping[str, Any] | None = None


def withdrawal(session_id: str) -> WarrenError:
    """Return what comes of an input that its sender took back."""
    return AgentError("the input was withdrawn", session_id=session_id, cause="cancelled")


def stored(ending: Ending) -> bytes:
    """Return what the store keeps of an ending."""
    kept = StoredEnding(ending) if isinstance(ending, TurnResult) else StoredEnding(error=ending.body())
    return codec.encode(kept)


def ending_of(kept: bytes, session_id: str) -> Ending:
    """Return the ending that the store has kept; an error where nobody knows it."""
    if not kept:
        problem = "the turn that took the input has not ended, or its process died: see the history"
        return AgentError(problem, session_id=session_id, cause="outcome_unknown")
    found: StoredEnding = codec.decode_stored(StoredEnding, kept)
    return found.result or of_body(found.error or {})


def _is_same(one: Input, said: Input) -> bool:
    return one.input_id == said.input_id or (said.key is not None and one.key == said.key)


def _answer(mail: Mail[TurnResult | bool], ending: Ending) -> None:
    if isinstance(ending, TurnResult):
        mail.answer(ending)
    else:
        mail.refuse(ending.again())


def _refuse(waiting: Waiting, error: WarrenError) -> None:
    for mail in waiting.askers:
        mail.refuse(error.again())
