"""What sessions leave behind, found again by what it says: texts in SQLite, a graph of their vectors beside them."""

from warren.storage.memory.store import MemoryStore

__all__ = ["MemoryStore"]
