"""The description of a process in its row of the store, the same in each home with a database.

It is one JSON text. A release that knows other fields passes over them, so two releases can share a store.
"""

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import attrs

from warren import codec
from warren.nodes import Announcement, Node, NodeLoad
from warren.storage.rows import bytes_in, moment
from warren.values import frozen
from warren.version import VERSION

SECRET_BYTES: Final = 32
# The monotonic clock of Linux stands still while the machine is suspended; a lease does not.
boot_time: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic
)
"""Return seconds on a clock that goes on while the machine sleeps, if the system has one."""


@frozen
class Status:
    """The column `status` of a process.

    Attributes:
        started_at: the time at which the process opened the store (UTC).
        release: its release of Warren.
        node: its name as a node; None if it is no node.
        address: see `warren.nodes.Node`.
        draining: see `warren.nodes.Node`.
        load: see `warren.nodes.Node`.
        group: see `warren.nodes.Node`.
        clock_ahead: seconds by which the store's clock is ahead of that of the process; 0 if that is not known.
    """

    started_at: datetime = attrs.field(factory=lambda: moment(0))
    release: str = ""
    node: str | None = None
    address: str | None = None
    draining: bool = False
    load: NodeLoad = attrs.field(factory=NodeLoad)
    group: str | None = None
    clock_ahead: float = 0.0


def status_text(started_at: datetime, said: Announcement | None, clock_ahead: float | None = None) -> str:
    """Return the status of this process, as it is stored."""
    said = said or Announcement()
    place = said.name, said.address, said.draining, said.load, said.group
    status = Status(started_at, VERSION, *place, round(clock_ahead or 0.0, 1))
    return codec.encode(status).decode()


def status_of(stored: Any) -> Status:
    """Return a stored status; an empty one for a process of an older release and for a damaged row."""
    try:
        found: Status = codec.decode_stored(Status, bytes_in(stored, "status"))
    except ValueError:
        return Status()
    return found


def node_of(key: int, name: str, stored: Any) -> Node:
    """Return a process as a node, from the columns of its row."""
    status = status_of(stored)
    shown_name = name if status.node is None else status.node
    place = status.address, status.release, status.started_at
    return Node(key, shown_name, *place, status.draining, status.load, status.group)


def now() -> datetime:
    """Return the wall clock's time."""
    return datetime.now(UTC)


def secret_of(stored: Any) -> bytes | None:
    """Return the cluster's secret from its stored text; None if that is missing or damaged."""
    try:
        found = bytes.fromhex(bytes_in(stored, "secret").decode())
    except ValueError:
        return None
    return found if len(found) == SECRET_BYTES else None
