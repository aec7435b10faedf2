"""Projections: what the store holds as plain files, made from its rows and never read back for a conversation."""

from warren.storage.projection.follower import Follower, Status, Step

__all__ = ["Follower", "Status", "Step"]
