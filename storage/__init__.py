"""Stores of sessions: their interface, the operations that change them, and the implementations.

`ephemeral/` keeps sessions in memory, `sqlite/` in one SQLite file, `postgres/` in a PostgreSQL database and needs
psycopg. Only `sqlite/`, `memory/`, `projection/` and `maintenance/` need apsw. May import the domain.
"""

from warren.storage.operations import (
    FIRST,
    NOTHING,
    Archive,
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
)
from warren.storage.refusals import key_used, leased, name_taken, not_found, retired
from warren.storage.results import StoredSession
from warren.storage.runner import Runner, inline_runner, thread_runner
from warren.storage.store import Store

__all__ = [
    "FIRST",
    "NOTHING",
    "Archive",
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
    "Runner",
    "Store",
    "StoredSession",
    "inline_runner",
    "key_used",
    "leased",
    "name_taken",
    "not_found",
    "retired",
    "thread_runner",
]
