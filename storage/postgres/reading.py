"""The arguments of query functions, and the reading of rows."""

from contextlib import AbstractAsyncContextManager
from typing import Final

from warren.base.values import frozen
from warren.conversation.records import CompactionEntry, SessionRecord
from warren.storage.postgres.driver import Connection, Row, unescaped
from warren.storage.postgres.guard import Guarded
from warren.storage.postgres.lease import Holder
from warren.storage.rows import compaction, row_to_record

OF: Final = "($2::text IS NULL OR tenant = $2)"
"""The condition for the tenant of a query; $2 is NULL for what a process reads for itself."""
_TEXTS: Final = (0, 4, 11, 14)
"""The columns of a record that hold texts of callers: the id, the model, the title, the owner."""


@frozen
class Reading:
    """The place of a query that is answered.

    Attributes:
        db: the connection, behind row-level security if the query is asked for a tenant.
        login: the connection as the login role, which sees the rows of all tenants.
        me: this process, as a holder of sessions in the database.
    """

    db: Connection | Guarded
    login: Connection
    me: Holder


def snapshot(db: Connection) -> AbstractAsyncContextManager[None]:
    """Let all statements of the block see one state. Raises as `Connection.fetch`."""
    return db.transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")


def record_of(row: Row) -> SessionRecord:
    """Return the record of a row of `COLUMNS`. Raises StoreError(cause="corrupt")."""
    values = list(row)
    for at in _TEXTS:
        values[at] = None if values[at] is None else unescaped(values[at])
    return row_to_record(tuple(values))


def compaction_of(row: Row) -> CompactionEntry:
    """Return the compaction of a row of `COMPACTION`. Raises ValueError."""
    return compaction(move_of(row))


def move_of(row: Row) -> Row:
    """Return a row of `COMPACTION` with its text as it was before it was stored."""
    *others, summary, tokens = row
    return (*others, unescaped(summary), tokens)
