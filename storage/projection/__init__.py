"""Projections: the content of the store as plain files, made from its rows and never read back for a conversation.

May import `warren.storage.sqlite`, the modules at the top of storage, and the domain.
"""

from warren.storage.projection.follower import Follower, Status, Step

__all__ = ["Follower", "Status", "Step"]
