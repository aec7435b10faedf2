"""The ending of an input: the result or the error of the turn that took it, in memory and in the store."""

from collections.abc import Mapping
from typing import Any

from warren.base.errors import AgentError, SessionNotFoundError, WarrenError, of_body
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.views import TurnResult

Ending = TurnResult | WarrenError


@frozen
class StoredEnding:
    """An ending as the store has it: a result, or the body of an error."""

    result: TurnResult | None = None
    error: Mapping[str, Any] | None = None


def encode_ending(ending: Ending) -> bytes:
    """Return an ending as the store keeps it."""
    kept = StoredEnding(ending) if isinstance(ending, TurnResult) else StoredEnding(error=ending.body())
    return codec.encode(kept)


def result_of(outcome: bytes, session_id: str) -> TurnResult:
    """Return the stored result of a turn under a key. Raises the error that the turn ended with, for good.

    Args:
        outcome: the ending as the store has it.
        session_id: the session.
    """
    found: StoredEnding = codec.decode_stored(StoredEnding, outcome)
    if found.result is not None:
        return found.result
    error = of_body(found.error or {})
    error.session_id = error.session_id or session_id
    raise final(error)


def final(error: WarrenError) -> WarrenError:
    """Return the error of an input that has ended under a key: the same request gets the same error again.

    `details["passes"]` says that a request under another key may succeed.
    """
    if error.retryable:
        error.details["passes"] = True
    error.retryable = False
    return error


def not_ended(error: WarrenError, *, keyed: bool) -> WarrenError:
    """Return the error for the sender of an input that is stored and waits on.

    Sent again under its key, the input finds itself; without a key it would run twice.
    """
    if not isinstance(error, SessionNotFoundError):  # no input of such a session waits
        error.retryable = keyed
    return error


def goes_on(error: WarrenError) -> WarrenError:
    """Return the error for a caller of a turn that it does not end: a process goes on with what is stored of the turn.

    It is retryable if the prompt has a key: see `not_ended`. Without one the prompt would run twice.
    """
    error.add("; the turn is stored as far as it has come, and goes on: turn/wait has its end, and so has the same key")
    error.details["goes_on"] = True
    error.retryable = False
    return error


def no_more(error: WarrenError) -> WarrenError:
    """Return the error for a caller that waits for the end of a turn: it is that end, or there will be none."""
    error.retryable = False
    return error


def wait_again(error: WarrenError) -> WarrenError:
    """Return the error for a caller that waits for the end of a turn which is still to come: it has begun nothing."""
    error.add("; the turn has not ended: wait again")
    error.retryable = True
    error.details = {name: each for name, each in error.details.items() if name not in ("first_seq", "last_seq")}
    return error


def withdrawal(session_id: str) -> WarrenError:
    """Return the ending of an input that its sender has withdrawn."""
    return AgentError("the input was withdrawn", session_id=session_id, cause="cancelled")


def taken_along(session_id: str, holder: str) -> WarrenError:
    """Return the ending of an input without a key that is stored, and whose session another process has taken."""
    problem = f"the prompt is stored, and {holder} has taken its session: it runs there, see the history"
    return AgentError(problem, session_id=session_id, cause="outcome_unknown")


def outcome_unknown(session_id: str) -> WarrenError:
    """Return the ending of an input whose turn died, ended too long ago, or ended in another process without a key."""
    problem = "a turn took the input, and what came of it is not known any more: see the history"
    return AgentError(problem, session_id=session_id, cause="outcome_unknown")
