"""This process as one of the nodes on a store: its announcements, and an operator's request to drain it."""

import os
import socket
from collections.abc import Callable

import attrs
import trio

from warren.base.nodes import Announcement, NodeLoad
from warren.base.values import define
from warren.settings.config import NodeConfig


@define(eq=False)
class LocalNode:
    """This process, as other nodes on the store see it. The storage actor announces it with each lease renewal.

    Attributes:
        name: its name.
        address: the URL at which it serves other nodes; None if it serves none.
        group: the command whose worker it is; None if it is none.
        load: returns its work at this moment.
        draining: whether it takes no new sessions; change it by `drain`.
        asked: set when an operator has asked the node to drain.
        changed: set when the next announcement should not wait for the next renewal.
    """

    name: str
    address: str | None = None
    group: str | None = None
    load: Callable[[], NodeLoad] = NodeLoad
    draining: bool = False
    asked: trio.Event = attrs.field(factory=trio.Event)
    changed: trio.Event = attrs.field(factory=trio.Event)

    @classmethod
    def of(cls, config: NodeConfig) -> "LocalNode":
        """Return this process as a node with these settings."""
        return cls(config.name or f"{socket.gethostname()}-{os.getpid()}", config.address, config.group)

    def announcement(self) -> Announcement:
        """Return the description of the node at this moment."""
        return Announcement(self.name, self.address, self.draining, self.load(), self.group)

    def drain(self) -> None:
        """Announce soon that the node takes no new sessions."""
        self.draining = True
        self.changed.set()
