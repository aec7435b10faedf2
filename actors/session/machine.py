"""The state machine of a session: a table of moves, and the requests that wait for one of them.

The machine does nothing by itself: the session's loop (`actor.py`) gives it signals and carries out the effects that
the table has for them. As in Erlang's `gen_statem`, a request that comes too early is postponed: the loop handles it
again after the next change of the state. No I/O.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from typing import Final, Generic, TypeVar

import attrs

from warren.base.errors import SessionBusyError, SessionNotFoundError, SessionNotRunningError, WarrenError
from warren.base.values import define, frozen

M = TypeVar("M")


class _Key(Enum):
    """The base of enumerations whose members are keys: that of Python hashes the name of a member at each look-up."""

    __hash__: Callable[[object], int] = object.__hash__  # type: ignore[assignment] # for mypy it is a bound method


class State(_Key):
    """The state of a session that has an actor."""

    IDLE = auto()
    """No turn was admitted, and the session does nothing. The store may have a newer record than the memory."""
    LOADING = auto()
    """Requests wait for the session's record or lease, which are being fetched."""
    CLAIMED = auto()
    """A turn was admitted, in the task of its sender. Its message is on the way to the session."""
    PREPARING = auto()
    """A request's turn waits for the session's lease and context, which are being fetched."""
    TAKING = auto()
    """The turn of an input that waited in the inbox waits for the same, or for the store to drop the input."""
    RUNNING = auto()
    """A turn runs, which includes its commit."""
    INTERRUPTING = auto()
    """A turn runs that was interrupted."""
    DRAINING = auto()
    """A turn runs, and the session retires after it."""
    RETIRING = auto()
    """No turn runs. The session is being archived, deleted or stopped."""
    LEAVING = auto()
    """The session is told to leave memory, and stores the events that the store refused before."""
    CLOSED = auto()
    """The session's actor has ended."""


class Signal(_Key):
    """A reason to change the state: a request, or news of the session's own tasks."""

    CLAIM = auto()
    """A turn is to be admitted. The sender's task gives this signal, all others come from the session's loop."""
    START = auto()
    """The request for the admitted turn has arrived."""
    NEXT = auto()
    """The turn of the first input in the inbox may begin."""
    INTERRUPT = auto()
    RETIRE = auto()
    """The session is to retire after its turn."""
    RETIRE_NOW = auto()
    """The session is to retire, and its turn to be interrupted."""
    EVICT = auto()
    """The session is to leave memory."""
    NEED = auto()
    """A request needs the record or the lease, and the session does not have it."""
    FETCHED = auto()
    """The store has answered the requests that waited for it."""
    PREPARED = auto()
    """The lease and the context for the turn are there."""
    LEASE_REFUSED = auto()
    """Another process has the lease that the turn needs."""
    BEGUN = auto()
    NOT_BEGUN = auto()
    """The turn cannot begin."""
    ENDED = auto()
    """The turn has ended, and the store has taken or refused it."""
    SUSPENDED = auto()
    """The turn is stored as one whose calls all wait, and runs no more."""
    RETIRED = auto()
    RETIRE_FAILED = auto()
    ARCHIVED = auto()
    """The record that was fetched says that the session is archived."""
    LEFT = auto()
    """All is stored, and nothing was asked of the session since it was told to leave."""
    STAYS = auto()
    """Something was asked of it, or the store refuses."""


IDLE, CLOSED = State.IDLE, State.CLOSED
CLAIM, START, BEGUN, ENDED = Signal.CLAIM, Signal.START, Signal.BEGUN, Signal.ENDED
"""The members that each turn meets: Python 3.11 takes longer for `State.IDLE` than for a call."""


class Effect(Enum):
    """An action that the session's loop carries out after a move, in the order of the table."""

    FETCH = auto()
    """Fetch the record or the lease for the postponed requests."""
    PREPARE = auto()
    """Fetch the lease and the context for the admitted turn if they are not there."""
    SERVE = auto()
    """Handle the postponed requests that waited for the store."""
    BEGIN = auto()
    """Begin the admitted turn."""
    CANCEL = auto()
    """Interrupt the running turn."""
    FREE = auto()
    """Report to the scheduler that the admitted turn is over."""
    REPLY = auto()
    """Answer the starter."""
    ANSWER = auto()
    """Answer the interrupters."""
    RETIRE = auto()
    """Archive, delete or stop the session, whatever the retirers ask for."""
    REPORT = auto()
    """Answer the retirers."""
    HANG_UP = auto()
    """End the subscriptions to the session's events."""
    LEAVE = auto()
    """Store the events that the store refused before; then leave memory, or stay."""
    STAY = auto()
    """Report to the scheduler that the session stays in memory."""


class Verdict(Enum):
    """The answer of the table to a signal that does not move the state."""

    BUSY = auto()
    NOT_RUNNING = auto()
    RETIRED = auto()
    POSTPONE = auto()
    """Handle the request again after the next change of the state."""


@frozen
class Move:
    """A legal move.

    Attributes:
        target: the next state, which may be the same.
        effects: the actions that belong to the move, in order.
    """

    target: State
    effects: tuple[Effect, ...] = ()


def _to(target: State, *effects: Effect) -> Move:
    return Move(target, effects)


_S, _E, _V = State, Effect, Verdict

TABLE: Final[Mapping[State, Mapping[Signal, Move | Verdict]]] = {
    State.IDLE: {
        Signal.CLAIM: _to(_S.CLAIMED),
        Signal.NEXT: _to(_S.TAKING, _E.PREPARE),
        Signal.INTERRUPT: _V.NOT_RUNNING,
        Signal.RETIRE: _to(_S.RETIRING, _E.RETIRE),
        Signal.RETIRE_NOW: _to(_S.RETIRING, _E.RETIRE),
        Signal.EVICT: _to(_S.LEAVING, _E.LEAVE),
        Signal.NEED: _to(_S.LOADING, _E.FETCH),
        Signal.ARCHIVED: _to(_S.CLOSED, _E.HANG_UP),
    },
    State.LOADING: {
        Signal.CLAIM: _to(_S.CLAIMED),
        Signal.INTERRUPT: _V.NOT_RUNNING,
        Signal.RETIRE: _V.POSTPONE,
        Signal.RETIRE_NOW: _V.POSTPONE,
        Signal.EVICT: _V.POSTPONE,
        Signal.NEED: _V.POSTPONE,
        Signal.FETCHED: _to(_S.IDLE, _E.SERVE),
        Signal.STAYS: _to(_S.LOADING, _E.STAY),
    },
    State.CLAIMED: {
        Signal.CLAIM: _V.BUSY,
        Signal.START: _to(_S.PREPARING, _E.PREPARE),
        Signal.NEXT: _to(_S.TAKING, _E.PREPARE),
        Signal.INTERRUPT: _V.NOT_RUNNING,  # it was sent before the turn was admitted
        Signal.RETIRE: _V.POSTPONE,
        Signal.RETIRE_NOW: _V.POSTPONE,
        Signal.EVICT: _to(_S.CLAIMED, _E.STAY),
        Signal.NEED: _V.POSTPONE,
        Signal.FETCHED: _to(_S.CLAIMED, _E.SERVE),
        Signal.STAYS: _to(_S.CLAIMED, _E.STAY),
    },
    State.PREPARING: {
        Signal.CLAIM: _V.BUSY,
        Signal.INTERRUPT: _V.POSTPONE,
        Signal.RETIRE: _V.POSTPONE,
        Signal.RETIRE_NOW: _V.POSTPONE,
        Signal.EVICT: _to(_S.PREPARING, _E.STAY),
        Signal.NEED: _V.POSTPONE,
        Signal.FETCHED: _to(_S.PREPARING, _E.SERVE),
        Signal.PREPARED: _to(_S.PREPARING, _E.SERVE, _E.BEGIN),
        Signal.LEASE_REFUSED: _to(_S.IDLE, _E.SERVE, _E.FREE, _E.REPLY),
        Signal.BEGUN: _to(_S.RUNNING),
        Signal.NOT_BEGUN: _to(_S.IDLE, _E.FREE, _E.REPLY),
        Signal.STAYS: _to(_S.PREPARING, _E.STAY),
    },
    State.TAKING: {
        Signal.CLAIM: _V.BUSY,
        Signal.INTERRUPT: _V.POSTPONE,
        # The turn has not begun: its input stays in the store, for a later life of the session.
        Signal.RETIRE: _to(_S.RETIRING, _E.FREE, _E.RETIRE),
        Signal.RETIRE_NOW: _to(_S.RETIRING, _E.FREE, _E.RETIRE),
        Signal.EVICT: _to(_S.TAKING, _E.STAY),
        Signal.NEED: _V.POSTPONE,
        Signal.FETCHED: _to(_S.TAKING, _E.SERVE),
        Signal.PREPARED: _to(_S.TAKING, _E.SERVE, _E.BEGIN),
        Signal.LEASE_REFUSED: _to(_S.IDLE, _E.SERVE, _E.FREE, _E.ANSWER),
        Signal.BEGUN: _to(_S.RUNNING),
        Signal.NOT_BEGUN: _to(_S.IDLE, _E.FREE, _E.ANSWER),
        Signal.STAYS: _to(_S.TAKING, _E.STAY),
    },
    State.RUNNING: {
        Signal.CLAIM: _V.BUSY,
        Signal.INTERRUPT: _to(_S.INTERRUPTING, _E.CANCEL),
        Signal.RETIRE: _to(_S.DRAINING),
        Signal.RETIRE_NOW: _to(_S.DRAINING, _E.CANCEL),
        Signal.EVICT: _to(_S.RUNNING, _E.STAY),
        Signal.ENDED: _to(_S.IDLE, _E.FREE, _E.REPLY),
        Signal.SUSPENDED: _to(_S.IDLE, _E.FREE),
    },
    State.INTERRUPTING: {
        Signal.CLAIM: _V.BUSY,
        Signal.INTERRUPT: _to(_S.INTERRUPTING),
        Signal.RETIRE: _to(_S.DRAINING),
        Signal.RETIRE_NOW: _to(_S.DRAINING, _E.CANCEL),
        Signal.EVICT: _to(_S.INTERRUPTING, _E.STAY),
        Signal.ENDED: _to(_S.IDLE, _E.FREE, _E.REPLY, _E.ANSWER),
        Signal.SUSPENDED: _to(_S.IDLE, _E.FREE),  # the interrupters are answered when the open turn is ended
    },
    State.DRAINING: {
        Signal.CLAIM: _V.RETIRED,
        Signal.INTERRUPT: _to(_S.DRAINING, _E.CANCEL),
        Signal.RETIRE: _to(_S.DRAINING),
        Signal.RETIRE_NOW: _to(_S.DRAINING, _E.CANCEL),
        Signal.EVICT: _to(_S.DRAINING, _E.STAY),
        Signal.ENDED: _to(_S.RETIRING, _E.FREE, _E.REPLY, _E.ANSWER, _E.RETIRE),
        Signal.SUSPENDED: _to(_S.RETIRING, _E.FREE, _E.ANSWER, _E.RETIRE),
    },
    State.RETIRING: {
        Signal.CLAIM: _V.RETIRED,
        Signal.INTERRUPT: _V.NOT_RUNNING,
        Signal.RETIRE: _V.POSTPONE,
        Signal.RETIRE_NOW: _V.POSTPONE,
        Signal.EVICT: _to(_S.RETIRING, _E.STAY),
        Signal.NEED: _V.POSTPONE,
        # News of a turn that was given up while its lease was being fetched.
        Signal.FETCHED: _to(_S.RETIRING),
        Signal.PREPARED: _to(_S.RETIRING),
        Signal.LEASE_REFUSED: _to(_S.RETIRING),
        Signal.NOT_BEGUN: _to(_S.RETIRING, _E.ANSWER),
        Signal.STAYS: _to(_S.RETIRING, _E.STAY),
        Signal.RETIRED: _to(_S.CLOSED, _E.REPORT, _E.HANG_UP),
        Signal.RETIRE_FAILED: _to(_S.IDLE, _E.REPORT),
    },
    State.LEAVING: {
        Signal.CLAIM: _to(_S.CLAIMED),
        Signal.INTERRUPT: _V.NOT_RUNNING,
        Signal.RETIRE: _to(_S.RETIRING, _E.RETIRE),
        Signal.RETIRE_NOW: _to(_S.RETIRING, _E.RETIRE),
        Signal.EVICT: _to(_S.LEAVING),
        Signal.NEED: _to(_S.LOADING, _E.FETCH),
        Signal.LEFT: _to(_S.CLOSED),
        Signal.STAYS: _to(_S.IDLE, _E.STAY),
    },
    State.CLOSED: {
        Signal.CLAIM: _V.RETIRED,
    },
}
ADMITTED: Final = frozenset(
    {State.CLAIMED, State.PREPARING, State.TAKING, State.RUNNING, State.INTERRUPTING, State.DRAINING}
)
"""The states between the admission of a turn and its end."""


@define(eq=False)
class Machine(Generic[M]):
    """The state of one session, and the requests that wait for a change of it.

    Whoever carries out an effect takes the requests that it answers out of the machine.

    Attributes:
        session_id: the session, named in refusals.
        state: the current state.
        starter: the request for the admitted turn; None for the turn of an input.
        interrupters: requests that are answered when the running turn has ended.
        retirers: requests that are answered when the session has retired, or could not.
        postponed: requests that are handled again after a change of the state.
        replay: whether the state has changed since a request was postponed.
    """

    session_id: str
    state: State = State.IDLE
    starter: M | None = None
    interrupters: list[M] = attrs.field(factory=list)
    retirers: list[M] = attrs.field(factory=list)
    postponed: list[M] = attrs.field(factory=list)
    replay: bool = False

    @property
    def admitted(self) -> bool:
        """Whether a turn was admitted that is not over."""
        return self.state in ADMITTED

    def step(self, signal: Signal, request: M | None = None) -> tuple[Effect, ...]:
        """Move along the table and return the effects to carry out, in order.

        Args:
            signal: the reason to move.
            request: the request that brought the signal, if one did. The machine keeps it if it is to be answered
                later.

        Raises:
            SessionBusyError: if a turn was admitted before; the state is unchanged.
            SessionNotRunningError: if there is no turn to interrupt; the state is unchanged.
            SessionNotFoundError: if the session retires or has retired; the cause is `retired`; the state is unchanged.
            RuntimeError: if only a bug of the actor gives the signal in this state.
        """
        rule = TABLE[self.state].get(signal)
        if isinstance(rule, Move):
            if self.postponed and rule.target is not self.state:
                self.replay = True
            self.state = rule.target
            if request is not None:
                self._keep(signal, request)
            return rule.effects
        if rule is Verdict.POSTPONE and request is not None:
            self.postponed.append(request)
            return ()
        raise self._error(rule, signal)

    def _keep(self, signal: Signal, request: M) -> None:
        if signal is START:
            self.starter = request
        elif signal is Signal.INTERRUPT:
            self.interrupters.append(request)
        elif signal in (Signal.RETIRE, Signal.RETIRE_NOW):
            self.retirers.append(request)
        elif signal is Signal.NEED:
            self.postponed.append(request)

    def take_starter(self) -> M | None:
        """Take out the request for the turn that is over."""
        starter, self.starter = self.starter, None
        return starter

    def take_interrupters(self) -> list[M]:
        """Take out the requests to interrupt the turn that is over."""
        interrupters, self.interrupters = self.interrupters, []
        return interrupters

    def take_retirers(self) -> list[M]:
        """Take out the requests to retire the session."""
        retirers, self.retirers = self.retirers, []
        return retirers

    def take_postponed(self) -> list[M]:
        """Take out the requests to handle again."""
        postponed, self.postponed, self.replay = self.postponed, [], False
        return postponed

    def close(self) -> Iterator[M]:
        """End the machine in whatever state it is, and take out all requests: nothing moves afterwards."""
        self.state = State.CLOSED
        starter = self.take_starter()
        if starter is not None:
            yield starter
        yield from self.take_interrupters()
        yield from self.take_retirers()
        yield from self.take_postponed()

    def _error(self, rule: Verdict | None, signal: Signal) -> WarrenError | RuntimeError:
        session_id = self.session_id
        match rule:
            case Verdict.BUSY:
                return SessionBusyError("the session already runs a turn", session_id=session_id)
            case Verdict.NOT_RUNNING:
                return SessionNotRunningError("the session runs no turn", session_id=session_id)
            case Verdict.RETIRED:
                return SessionNotFoundError("the session was retired", session_id=session_id, cause="retired")
        return RuntimeError(f"{signal.name} in state {self.state.name} of session {session_id}")
