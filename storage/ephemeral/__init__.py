"""Sessions in the memory of one process: plain dicts, no dependency, nothing left when the process ends.

May import the domain and the modules beside this folder, and nothing of the other homes.
"""

from warren.storage.ephemeral.store import EphemeralStore

__all__ = ["EphemeralStore"]
