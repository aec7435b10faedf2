"""Sessions in one SQLite file, shared by processes of one machine. Needs apsw: the extra `session-store`."""

from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.store import SqliteStore

__all__ = ["Holder", "SqliteStore"]
