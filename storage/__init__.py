"""The durable store: sessions, messages and events in one SQLite file."""

from warren.storage.operations import Archive, Commit, Delete, LookUp, Operation
from warren.storage.runner import Runner, inline_runner, thread_runner
from warren.storage.store import Store, StoredSession

__all__ = [
    "Archive",
    "Commit",
    "Delete",
    "LookUp",
    "Operation",
    "Runner",
    "Store",
    "StoredSession",
    "inline_runner",
    "thread_runner",
]
