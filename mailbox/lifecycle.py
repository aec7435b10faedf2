"""A session's legal moves, as a table. Admission is one lookup: no checkpoint between the check and the claim."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

import attrs

from warren.errors import AgentError, SessionBusyError, SessionNotFoundError, SessionNotRunningError, WarrenError


class State(Enum):
    """Where a live session stands."""

    IDLE = auto()
    RUNNING = auto()
    INTERRUPTING = auto()
    DRAINING = auto()
    """A turn runs and the session retires after it."""
    RETIRING = auto()
    """No turn runs; the session is being archived, deleted or stopped."""
    CLOSED = auto()


class Signal(Enum):
    """What can happen to it."""

    START = auto()
    INTERRUPT = auto()
    TURN_ENDED = auto()
    RETIRE = auto()
    RETIRED = auto()
    RETIRE_FAILED = auto()
    PASSIVATE = auto()
    """Nothing is asked of it: it leaves memory, and comes back with the next message."""


class Refusal(Enum):
    """Why a move is not legal, in the words a caller gets."""

    BUSY = auto()
    NOT_RUNNING = auto()
    RETIRED = auto()
    IMPOSSIBLE = auto()
    """A signal that the actor itself can never send in that state: a bug."""


_S, _R = State, Refusal

LIFECYCLE: Final[Mapping[State, Mapping[Signal, State | Refusal]]] = {
    State.IDLE: {
        Signal.START: _S.RUNNING,
        Signal.INTERRUPT: _R.NOT_RUNNING,
        Signal.TURN_ENDED: _R.IMPOSSIBLE,
        Signal.RETIRE: _S.RETIRING,
        Signal.RETIRED: _R.IMPOSSIBLE,
        Signal.RETIRE_FAILED: _R.IMPOSSIBLE,
        Signal.PASSIVATE: _S.CLOSED,
    },
    State.RUNNING: {
        Signal.START: _R.BUSY,
        Signal.INTERRUPT: _S.INTERRUPTING,
        Signal.TURN_ENDED: _S.IDLE,
        Signal.RETIRE: _S.DRAINING,
        Signal.RETIRED: _R.IMPOSSIBLE,
        Signal.RETIRE_FAILED: _R.IMPOSSIBLE,
        Signal.PASSIVATE: _R.IMPOSSIBLE,
    },
    State.INTERRUPTING: {
        Signal.START: _R.BUSY,
        Signal.INTERRUPT: _S.INTERRUPTING,
        Signal.TURN_ENDED: _S.IDLE,
        Signal.RETIRE: _S.DRAINING,
        Signal.RETIRED: _R.IMPOSSIBLE,
        Signal.RETIRE_FAILED: _R.IMPOSSIBLE,
        Signal.PASSIVATE: _R.IMPOSSIBLE,
    },
    State.DRAINING: {
        Signal.START: _R.RETIRED,
        Signal.INTERRUPT: _S.DRAINING,
        Signal.TURN_ENDED: _S.RETIRING,
        Signal.RETIRE: _S.DRAINING,
        Signal.RETIRED: _R.IMPOSSIBLE,
        Signal.RETIRE_FAILED: _R.IMPOSSIBLE,
        Signal.PASSIVATE: _R.IMPOSSIBLE,
    },
    State.RETIRING: {
        Signal.START: _R.RETIRED,
        Signal.INTERRUPT: _R.NOT_RUNNING,
        Signal.TURN_ENDED: _R.IMPOSSIBLE,
        Signal.RETIRE: _S.RETIRING,
        Signal.RETIRED: _S.CLOSED,
        Signal.RETIRE_FAILED: _S.IDLE,
        Signal.PASSIVATE: _R.IMPOSSIBLE,
    },
    State.CLOSED: {
        Signal.START: _R.RETIRED,
        Signal.INTERRUPT: _R.RETIRED,
        Signal.TURN_ENDED: _R.IMPOSSIBLE,
        Signal.RETIRE: _R.RETIRED,
        Signal.RETIRED: _R.IMPOSSIBLE,
        Signal.RETIRE_FAILED: _R.IMPOSSIBLE,
        Signal.PASSIVATE: _R.IMPOSSIBLE,
    },
}
TURN_RUNS: Final = (State.RUNNING, State.INTERRUPTING, State.DRAINING)


@attrs.define
class Admission:
    """The state of one session, moved only along the table.

    Attributes:
        session_id: named in refusals.
        state: where the session stands.
    """

    session_id: str
    state: State = State.IDLE

    @property
    def turn_runs(self) -> bool:
        """Whether a turn was admitted and has not ended."""
        return self.state in TURN_RUNS

    def move(self, signal: Signal) -> None:
        """Make the move, or raise the typed error of its refusal and leave the state as it is."""
        target = LIFECYCLE[self.state][signal]
        if isinstance(target, Refusal):
            raise self._refused(target, signal)
        self.state = target

    def _refused(self, refusal: Refusal, signal: Signal) -> WarrenError:
        session_id = self.session_id
        if refusal is Refusal.BUSY:
            return SessionBusyError("the session already runs a turn", session_id=session_id)
        if refusal is Refusal.NOT_RUNNING:
            return SessionNotRunningError("the session runs no turn", session_id=session_id)
        if refusal is Refusal.RETIRED:
            return SessionNotFoundError("the session was retired", session_id=session_id, cause="retired")
        return AgentError(f"{signal.name} in state {self.state.name}", session_id=session_id, cause="crash")
