"""Nodes: the processes that have one store open, as they see each other."""

from collections.abc import Iterable
from datetime import datetime

import attrs

from warren.base.fields import FieldValueError, not_negative
from warren.base.values import frozen


@frozen
class NodeLoad:
    """The work of one process at a moment.

    Attributes:
        live_sessions: sessions in its memory.
        running_turns: turns that run.
        max_sessions: turns that may run at once; 0 if the process has not said so.
    """

    live_sessions: int = attrs.field(default=0, validator=not_negative)
    running_turns: int = attrs.field(default=0, validator=not_negative)
    max_sessions: int = attrs.field(default=0, validator=not_negative)

    @property
    def full(self) -> bool:
        """Whether no more turns may begin."""
        return self.running_turns >= self.max_sessions > 0


@frozen
class Announcement:
    """The description of a node that the node itself writes to the store with each renewal of its leases.

    Attributes:
        name: its name, by which operators ask it to drain; None for a process that cannot be asked.
        address: the URL at which it serves other nodes; None if it serves none.
        draining: whether it takes no new sessions, because it is about to end.
        load: its work.
        group: the command whose worker it is; None if it is none.
    """

    name: str | None = None
    address: str | None = None
    draining: bool = False
    load: NodeLoad = attrs.field(factory=NodeLoad)
    group: str | None = None


@frozen
class Node:
    """A living process that has the store open.

    Attributes:
        key: its number in the store; a process that starts anew has another one.
        name: the name of the node; for a process that is no node the program, the pid and the host.
        address: the URL at which it serves other nodes. None if it serves none, as an embedded runtime or a command.
        release: the release of Warren that it runs; empty if it is not known.
        started_at: the time at which it opened the store (UTC), by its own clock.
        draining: whether it takes no new sessions, because it is about to end.
        load: its work, as of its newest renewal.
        group: the command whose worker it is; None if it is none.
    """

    key: int
    name: str
    address: str | None
    release: str
    started_at: datetime
    draining: bool = False
    load: NodeLoad = attrs.field(factory=NodeLoad)
    group: str | None = None


def not_drained(name: str, nodes: Iterable[Node]) -> str:
    """Return why no node was asked to drain by a name; `nodes` are the living ones."""
    if any(node.name == name for node in nodes):
        how = "send it SIGTERM, or start `warren serve` with --node-name"
        return f"{name!r} is no node that can be drained by its name: {how}"
    return f"no living node has the name {name!r}"


def not_empty(_instance: object, attribute: "attrs.Attribute[str | None]", value: str | None) -> None:
    """Refuse an empty text, and one with spaces around it; None passes."""
    if value is not None and (not value or value != value.strip()):
        raise FieldValueError(attribute.name, "must be a text without spaces around it")
