"""The durable store: sessions, messages and events in one SQLite file."""

from typing import TYPE_CHECKING

from warren.storage.enqueue import Enqueue, Enqueued, Settle
from warren.storage.forking import Fork
from warren.storage.handover import Decline, Request
from warren.storage.inbox import NOTHING, Settled
from warren.storage.lease import FIRST, Holder, Lease
from warren.storage.operations import (
    Archive,
    Claim,
    Claimed,
    Commit,
    Delete,
    Erased,
    Held,
    Label,
    Labelled,
    Operation,
    Release,
    key_used,
    leased,
    not_found,
    retired,
)
from warren.storage.runner import Runner, inline_runner, thread_runner

if TYPE_CHECKING:
    from warren.storage.queries import StoredSession
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
    "Holder",
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
    "not_found",
    "retired",
    "thread_runner",
]


def __getattr__(name: str) -> object:
    # These need apsw, which the base install does without: a runtime that stores nothing never looks at them.
    if name in ("Store", "StoredSession"):
        from warren.storage import store  # noqa: PLC0415 - see above

        return getattr(store, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
