"""The memory in a PostgreSQL database: texts and postings in tables, vectors by pgvector.

May import `warren.storage.postgres`, the modules of `warren.storage.memory` that do not know of files, the modules at
the top of storage, and the domain.
"""

from warren.storage.memory.postgres.store import PostgresMemory, known_dimensions

__all__ = ["PostgresMemory", "known_dimensions"]
