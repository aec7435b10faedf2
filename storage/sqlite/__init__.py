"""Sessions in one SQLite file, shared by processes of one machine. Needs apsw: the extra `session-store`.

The names here are loaded on first use: a program that only reads a file needs neither trio nor a writer. May import
the modules at the top of storage, and the domain.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warren.storage.sqlite.lease import Holder
    from warren.storage.sqlite.store import SqliteStore

__all__ = ["Holder", "SqliteStore"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from warren.storage.sqlite import store  # noqa: PLC0415 - see above

        found: object = getattr(store, name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
