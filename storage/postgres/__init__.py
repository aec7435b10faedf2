"""Sessions in a PostgreSQL database, shared by processes of many machines. Needs psycopg: the extra `postgres`.

May import the modules at the top of storage, and the domain.
"""

from warren.storage.postgres.lease import Holder
from warren.storage.postgres.store import PostgresStore

__all__ = ["Holder", "PostgresStore"]
