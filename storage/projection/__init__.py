"""Projections: the content of the store as plain files, made from its rows and never read back for a conversation.

May import `warren.storage.sqlite`, `warren.storage.postgres`, the modules at the top of storage, and the domain.
"""

from warren.storage.projection.follower import Follower, Status, Step, folder_of

__all__ = ["Follower", "Status", "Step", "folder_of"]
