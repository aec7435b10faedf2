"""Stores of sessions: their interface, the operations that change them, and their homes.

`ephemeral/` has them in memory, `sqlite/` in one SQLite file. Only `sqlite/`, `memory/`, `projection/` and
`maintenance/` need apsw. May import the domain and `warren.mailbox`.
"""

from warren.storage.operations import (
    FIRST,
    NOTHING,
    Archive,
    Claim,
    Claimed,
    Commit,
    Decline,
    Delete,
    Enqueue,
    Enqueued,
    Erased,
    Fork,
    Held,
    Label,
    Labelled,
    Lease,
    Operation,
    Release,
    Request,
    Settle,
    Settled,
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
    "Decline",
    "Delete",
    "Enqueue",
    "Enqueued",
    "Erased",
    "Fork",
    "Held",
    "Label",
    "Labelled",
    "Lease",
    "Operation",
    "Release",
    "Request",
    "Runner",
    "Settle",
    "Settled",
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
