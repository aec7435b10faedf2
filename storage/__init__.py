"""The durable store: sessions, messages and events in one SQLite file."""

from typing import TYPE_CHECKING

from warren.storage.operations import Archive, Commit, Delete, Operation
from warren.storage.runner import Runner, inline_runner, thread_runner

if TYPE_CHECKING:
    from warren.storage.store import Store, StoredSession

__all__ = [
    "Archive",
    "Commit",
    "Delete",
    "Operation",
    "Runner",
    "Store",
    "StoredSession",
    "inline_runner",
    "thread_runner",
]


def __getattr__(name: str) -> object:
    # These need apsw, which the base install does without: a runtime that stores nothing never looks at them.
    if name in ("Store", "StoredSession"):
        from warren.storage import store  # noqa: PLC0415 - see above

        return getattr(store, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
