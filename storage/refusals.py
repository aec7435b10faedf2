"""Errors of operations that a store refuses, the same in each store."""

from warren.errors import CapacityExceededError, InvalidParamsError, LeasedError, SessionNotFoundError, StoreError


def not_found(session_id: str) -> SessionNotFoundError:
    """Return the error for an id that is not here."""
    return SessionNotFoundError(f"there is no session {session_id}", session_id=session_id)


def name_taken(name: str) -> InvalidParamsError:
    """Return the error for a name among peers that another session has."""
    return InvalidParamsError(f"$.peer.name: there is a session {name!r} already", path="$.peer.name")


def key_used() -> StoreError:
    """Return the error for an idempotency key that has created a session: the caller looks that session up."""
    return StoreError("a session was created under this idempotency key", cause="key_used")


def retired(session_id: str) -> SessionNotFoundError:
    """Return the error for a session that can be read, and not changed."""
    problem = "the session is archived: it can be read, not changed"
    return SessionNotFoundError(problem, session_id=session_id, cause="archived")


def leased(session_id: str, holder: str) -> LeasedError:
    """Return the error for a session that another process has."""
    problem = f"the session is leased by {holder}: continue there, or try again when that process has released it"
    return LeasedError(problem, session_id=session_id, cause="leased", details={"holder": holder})


def taken_over(session_id: str, holder: str | None) -> StoreError:
    """Return the error for a write by a process that no longer has the session."""
    problem = f"{holder or 'another process'} has taken the session over: nothing of this was stored"
    return StoreError(problem, session_id=session_id, cause="lease_lost", details={"holder": holder} if holder else {})


def inbox_full(session_id: str, limit: int) -> CapacityExceededError:
    """Return the error for an input past the `limit` of those that may wait."""
    problem = f"{limit} inputs wait for the session already"
    return CapacityExceededError(problem, session_id=session_id, cause="inbox_full")
