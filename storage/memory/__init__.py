"""The memory: texts of sessions in SQLite, and the graph of their vectors beside it, found by their meaning and words.

May import `warren.storage.sqlite` and `postgres`, the modules at the top of storage, and the domain.
"""

from warren.storage.memory.store import FileMemory

__all__ = ["FileMemory"]
