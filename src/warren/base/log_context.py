"""The session and the turn that a task works for, for the records of its log. No I/O."""

from contextvars import ContextVar
from typing import Final, NamedTuple


class LogContext(NamedTuple):
    """The work of a task.

    Attributes:
        session_id: the session.
        tenant: the tenant of the session; None between two turns.
        turn: the number of the running turn within its session, from 1 on; None between two turns.
    """

    session_id: str
    tenant: str | None = None
    turn: int | None = None


working_for: Final[ContextVar[LogContext | None]] = ContextVar("working_for", default=None)
"""The work of the running task; None for a task of no session. Child tasks and threads inherit it."""
