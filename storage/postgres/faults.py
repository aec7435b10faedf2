"""Exceptions of PostgreSQL and of its connection, translated into the errors that callers get."""

from typing import Final

from psycopg import errors

from warren.base.errors import StoreCause, StoreError, WarrenError
from warren.settings.config import PostgresConfig
from warren.storage.postgres.driver import LostError, ReadOnlyServerError

NOUN: Final = "session store"
LOCKED: Final = (
    errors.LockNotAvailable,
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.QueryCanceled,  # by the server's statement_timeout
)
"""Refusals because of the lock of another process: the same statement may succeed later."""
# From the particular to the general: the first class that fits counts.
_CAUSES: Final[tuple[tuple[type[Exception] | tuple[type[Exception], ...], StoreCause, bool, str], ...]] = (
    (LOCKED, "locked", True, "another process keeps the {0} locked"),
    ((ReadOnlyServerError, errors.ReadOnlySqlTransaction), "read_only", True, "the {0} cannot be written"),
    (LostError, "unreachable", True, "the server of the {0} cannot be reached"),
    (errors.DiskFull, "disk_full", True, "the disk that holds the {0} is full"),
    (errors.OutOfMemory, "out_of_memory", True, "there is not enough memory for the {0}"),
    (MemoryError, "out_of_memory", True, "there is not enough memory for the {0}"),
    (errors.TooManyConnections, "unreachable", True, "the server of the {0} takes no more connections"),
    ((errors.UndefinedTable, errors.InvalidSchemaName), "unreachable", True, "the {0} has no tables just now"),
    (errors.UniqueViolation, "conflict", True, "a row of the same number is in the {0} already"),
    (errors.ProgramLimitExceeded, "too_big", False, "a row is larger than the {0} can hold"),
    (errors.DataCorrupted, "corrupt", False, "the {0}'s files are damaged"),
    (errors.IndexCorrupted, "corrupt", False, "the {0}'s files are damaged"),
    (errors.IoError, "io_error", True, "the disk that holds the {0} reports an error"),
    (errors.InvalidAuthorizationSpecification, "permission", False, "the server of the {0} refused the login"),
    (errors.InsufficientPrivilege, "permission", False, "the role of the {0} lacks a privilege"),
    (errors.InvalidCatalogName, "cannot_open", False, "the database of the {0} is not there"),
    (errors.InsufficientResources, "disk_full", True, "the server of the {0} lacks resources"),
    (errors.OperationalError, "unreachable", True, "the server of the {0} cannot be reached"),
    (errors.Error, "database_error", False, "the {0} refused"),
)


def translate(exc: Exception, *, session_id: str | None = None, noun: str = NOUN) -> WarrenError:
    """Return the error that a caller gets for an exception of a database call; `noun` names the store in it.

    A WarrenError is returned as it is. An exception that is neither Warren's nor the database's comes from a value
    that cannot be stored: a StoreError with `cause="unstorable"`.
    """
    if isinstance(exc, WarrenError):
        return exc
    fits = ((cause, retryable, text) for kind, cause, retryable, text in _CAUSES if isinstance(exc, kind))
    cause, retryable, text = next(fits, ("unstorable", False, "a value cannot be stored"))
    problem = str(exc).strip().partition("\n")[0]
    error = StoreError(f"{text.format(noun)} ({problem})", session_id=session_id, cause=cause, retryable=retryable)
    error.__cause__ = exc
    return error


def of_opening(exc: Exception, config: PostgresConfig) -> StoreError:
    """Return the error for a store that cannot be opened: it names the address, without its passwords."""
    error = translate(exc)
    return StoreError(f"{config.shown}: {error.message}", cause=error.cause, retryable=error.retryable)  # type: ignore[arg-type]
