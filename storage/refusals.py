"""Errors of operations that a store refuses, the same in each store."""

from warren.base.errors import CapacityExceededError, InvalidParamsError, LeasedError, SessionNotFoundError, StoreError


def not_found(session_id: str) -> SessionNotFoundError:
    """Return the error for an id that is not here."""
    return SessionNotFoundError(f"there is no session {session_id}", session_id=session_id)


def name_taken(name: str) -> InvalidParamsError:
    """Return the error for a name among peers that another session has."""
    return InvalidParamsError.at("$.peer.name", f"there is a session {name!r} already")


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


def went_back(session_id: str | None = None) -> StoreError:
    """Return the error for a write to a store, or a read, that turns out to have gone back: it was not done."""
    problem = "the store has gone back to an earlier state: nothing of this was done, send it again"
    return StoreError(problem, session_id=session_id, cause="lease_lost")


def built_on_sand(session_id: str) -> StoreError:
    """Return the error for the end of a turn whose beginning the store does not have."""
    problem = "the store does not have the messages and events that this follows: nothing of it was stored"
    return StoreError(problem, session_id=session_id, cause="conflict")


def inbox_full(session_id: str, limit: int) -> CapacityExceededError:
    """Return the error for an input past the `limit` of those that may wait."""
    problem = f"{limit} inputs wait for the session already"
    return CapacityExceededError(problem, session_id=session_id, cause="inbox_full")


def no_schedule(schedule_id: str) -> InvalidParamsError:
    """Return the error for an id that no schedule of the tenant has."""
    return InvalidParamsError.at("$.schedule_id", f"there is no schedule {schedule_id!r}")


def no_trigger(trigger_id: str) -> InvalidParamsError:
    """Return the error for an id that no trigger of the tenant has."""
    return InvalidParamsError.at("$.trigger_id", f"there is no trigger {trigger_id!r}")


def too_many_triggers(limit: int) -> CapacityExceededError:
    """Return the error for one trigger more than a tenant may have."""
    problem = f"the tenant has {limit} triggers, and may have no more"
    return CapacityExceededError(problem, cause="tenant_triggers", retryable=False)


def too_many_schedules(limit: int) -> CapacityExceededError:
    """Return the error for one schedule more than a tenant may have."""
    problem = f"the tenant has {limit} schedules, and may have no more"
    return CapacityExceededError(problem, cause="tenant_schedules", retryable=False)


def no_webhook(webhook_id: str) -> InvalidParamsError:
    """Return the error for an id that no webhook of the tenant has."""
    return InvalidParamsError.at("$.webhook_id", f"there is no webhook {webhook_id!r}")


def too_many_webhooks(limit: int) -> CapacityExceededError:
    """Return the error for one webhook more than a tenant may have."""
    problem = f"the tenant has {limit} webhooks, and may have no more"
    return CapacityExceededError(problem, cause="tenant_webhooks", retryable=False)


# -- stores as a whole


def in_use(name: str) -> StoreError:
    """Return the error for a store that another process uses."""
    return StoreError(f"a process uses the store in {name}: end it first", cause="leased")


def not_empty(name: str) -> StoreError:
    """Return the error for a store that is to become a copy and has sessions of its own."""
    problem = f"there are sessions in the store {name}: a copy needs a place of its own"
    return StoreError(problem, cause="exists", retryable=False)


def another_copy(name: str, source: str) -> StoreError:
    """Return the error for a place with an unfinished copy of another store."""
    problem = f"at {name} there is an unfinished copy of another store ({source}): finish that one, or remove it"
    return StoreError(problem, cause="exists", retryable=False)


def two_copies(name: str) -> StoreError:
    """Return the error for a copy that another process goes on with."""
    return StoreError(f"another process copies to {name}: let it end", cause="conflict", retryable=False)


def unfinished(name: str) -> StoreError:
    """Return the error for a place with a copy that is not whole yet."""
    problem = f"{name} is an unfinished copy of a store: finish it with `warren copy`, or remove it"
    return StoreError(problem, cause="not_a_store", retryable=False)


def half_restored(name: str) -> StoreError:
    """Return the error for a store that was about to be replaced by a backup when the process was killed."""
    problem = f"the restore of {name} was interrupted: run `warren restore FILE --force` again"
    return StoreError(problem, cause="not_a_store", retryable=False)


def closed() -> StoreError:
    """Return the error for a read of a store that was closed: after a crash another try finds it opened anew."""
    return StoreError("the session store is closed", cause="closed", retryable=True)


def too_many_children(session_id: str, limit: int) -> CapacityExceededError:
    """Return the error for a child too many."""
    problem = f"{limit} children of the session are at work, the bound of limits.children: wait for the end of one"
    return CapacityExceededError(problem, session_id=session_id, cause="children", details={"limit": limit})


def waits_no_more(session_id: str) -> StoreError:
    """Return the error for a child whose end nobody waits for: the turn of its parent has ended."""
    problem = "the call waits no more: no child begins for it"
    return StoreError(problem, session_id=session_id, cause="conflict", retryable=False)
