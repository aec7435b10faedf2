"""Sessions in one SQLite file, shared by processes of one machine. Needs apsw: the extra `session-store`.

May import the modules at the top of storage, and the domain.
"""

from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.store import SqliteStore

__all__ = ["Holder", "SqliteStore"]
