"""Stores of sessions: their interface, the operations that change them, and the implementations.

`ephemeral/` keeps sessions in memory, `sqlite/` in one SQLite file, `postgres/` in a PostgreSQL database and needs
psycopg. Only `sqlite/`, `memory/`, `projection/` and `maintenance/` need apsw. May import the domain.

The names here are loaded on first use: a program that only reads a file needs neither trio nor the operations.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warren.storage.operations import (
        FIRST,
        NOTHING,
        Archive,
        Attach,
        Audit,
        Claim,
        Claimed,
        Commit,
        DeclineHandover,
        Delete,
        EndInputs,
        Enqueue,
        Enqueued,
        Erased,
        Fork,
        InputOutcome,
        Label,
        Labelled,
        Lease,
        LeaseHeld,
        Operation,
        Release,
        RequestHandover,
        Reserve,
        Sweep,
    )
    from warren.storage.refusals import key_used, leased, name_taken, not_found, retired, went_back
    from warren.storage.results import StoredSession
    from warren.storage.runner import Runner, inline_runner, thread_runner
    from warren.storage.store import Store

__all__ = [
    "FIRST",
    "NOTHING",
    "UNKNOWN",
    "Archive",
    "Attach",
    "Audit",
    "Claim",
    "Claimed",
    "Commit",
    "DeclineHandover",
    "Delete",
    "EndInputs",
    "Enqueue",
    "Enqueued",
    "Erased",
    "Fork",
    "InputOutcome",
    "Label",
    "Labelled",
    "Lease",
    "LeaseHeld",
    "Operation",
    "Release",
    "RequestHandover",
    "Reserve",
    "Runner",
    "Store",
    "StoredSession",
    "Sweep",
    "inline_runner",
    "key_used",
    "leased",
    "name_taken",
    "not_found",
    "retired",
    "thread_runner",
    "went_back",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        from warren.storage import operations, refusals, results, runner, store  # noqa: PLC0415 - see above

        places = (operations, refusals, results, runner, store)
        return next(getattr(module, name) for module in places if hasattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
