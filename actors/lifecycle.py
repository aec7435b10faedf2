"""The legal moves of a session as a table, and the admission of messages by it."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, ClassVar, Final, TypeVar

import attrs

from warren.errors import AgentError, SessionBusyError, SessionNotFoundError, SessionNotRunningError, WarrenError
from warren.mailbox import Message

R = TypeVar("R")


class State(Enum):
    """The state of a live session."""

    IDLE = auto()
    RUNNING = auto()
    INTERRUPTING = auto()
    DRAINING = auto()
    """A turn runs, and the session retires after it."""
    RETIRING = auto()
    """No turn runs; the session is being archived, deleted or stopped."""
    CLOSED = auto()


class Signal(Enum):
    """A reason to change the state: a message, or news of the session's own work."""

    START = auto()
    INTERRUPT = auto()
    TURN_ENDED = auto()
    RETIRE = auto()
    RETIRED = auto()
    RETIRE_FAILED = auto()
    PASSIVATE = auto()
    """The session is evicted from memory; the next message loads it again."""


class Refusal(Enum):
    """Why a signal is refused in a state."""

    BUSY = auto()
    NOT_RUNNING = auto()
    RETIRED = auto()
    IMPOSSIBLE = auto()
    """Only a bug of the actor sends the signal in this state."""


class Move(Message[R]):
    """The base class of messages that move the session's state before they are in its mailbox.

    Attributes:
        signal: the signal; the message is refused if the table refuses the signal.
    """

    __slots__ = ()
    signal: ClassVar[Signal]


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
    """The state of one session. It changes only along the table.

    Attributes:
        session_id: the session, named in refusals.
        state: the current state.
    """

    session_id: str
    state: State = State.IDLE

    @property
    def turn_runs(self) -> bool:
        """Whether a turn was admitted and has not ended."""
        return self.state in TURN_RUNS

    def admit(self, message: Message[Any]) -> None:
        """Apply the signal of a message, if it has one: the admission hook of the session's mailbox.

        The mailbox calls this in the sender's task, without a checkpoint before the message is taken. So of two starts
        that are sent at once one is admitted, and the sender of the other knows it at once.

        Raises:
            WarrenError: if the table refuses the signal; the state is unchanged.
        """
        if isinstance(message, Move):
            self.move(message.signal)

    def move(self, signal: Signal) -> None:
        """Apply a signal.

        Raises:
            SessionBusyError: if a turn would start while another one runs.
            SessionNotRunningError: if there is no turn to interrupt.
            SessionNotFoundError: if the session retires or has retired; the cause is `retired`.
            AgentError: if only a bug can send the signal in this state; the cause is `crash`.
        """
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
