"""Sessions in the memory of one process: plain dicts, no dependency, nothing left when the process ends.

May import the modules at the top of storage, and the domain.
"""

from warren.storage.ephemeral.store import EphemeralStore

__all__ = ["EphemeralStore"]
