"""The description of a process in its row of the store, the same in each home with a database.

It is one JSON text. A release that knows other fields passes over them, so two releases can share a store.
"""

import secrets
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal

import attrs

from warren.base.nodes import Announcement, Node, NodeLoad
from warren.base.values import frozen
from warren.base.version import VERSION
from warren.conversation import codec
from warren.storage.rows import bytes_in, moment

SECRET_BYTES: Final = 32
LARGEST_KEY: Final = 2**31 - 1
# The monotonic clock of Linux stands still while the machine is suspended; a lease does not.
boot_time: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic
)
"""Return seconds on a clock that goes on while the machine sleeps, if the system has one."""


class ForgottenError(Exception):
    """The store does not have what this process has written last: it has gone back, or was silent for too long."""


@frozen
class Status:
    """The column `status` of a process.

    Attributes:
        started_at: the time at which the process opened the store (UTC).
        release: its release of Warren.
        node: its name as a node; None if it is no node.
        address: see `warren.base.nodes.Node`.
        draining: see `warren.base.nodes.Node`.
        load: see `warren.base.nodes.Node`.
        group: see `warren.base.nodes.Node`.
        renewals: how often the process has renewed its leases. A row with fewer than were confirmed shows that the
            store has gone back.
        clock_ahead: seconds by which the store's clock is ahead of that of the process; 0 if that is not known.
        process: its name for `warren.storage.own_process.has_ended`; None if it has none.
    """

    started_at: datetime = attrs.field(factory=lambda: moment(0))
    release: str = ""
    node: str | None = None
    address: str | None = None
    draining: bool = False
    load: NodeLoad = attrs.field(factory=NodeLoad)
    group: str | None = None
    renewals: int = 0
    clock_ahead: float = 0.0
    process: str | None = None


def status_text(
    started_at: datetime,
    said: Announcement | None,
    renewals: int = 0,
    clock_ahead: float | None = None,
    process: str | None = None,
) -> str:
    """Return the status of this process, as it is stored."""
    said = said or Announcement()
    place = said.name, said.address, said.draining, said.load, said.group
    status = Status(started_at, VERSION, *place, renewals, round(clock_ahead or 0.0, 1), process)
    return codec.encode(status).decode()


def status_of(stored: Any) -> Status:
    """Return a stored status; an empty one for a process of an older release and for a damaged row."""
    try:
        found: Status = codec.decode_stored(Status, bytes_in(stored, "status"))
    except ValueError:
        return Status()
    return found


def is_newest(stored: Any, started_at: datetime, renewals: range) -> bool:
    """Return whether a stored status is of the process that was started then, and has one of these renewals."""
    found = status_of(stored)
    return found.started_at == started_at and found.renewals in renewals


def node_of(key: int, name: str, stored: Any) -> Node:
    """Return a process as a node, from the columns of its row."""
    status = status_of(stored)
    shown_name = name if status.node is None else status.node
    place = status.address, status.release, status.started_at
    return Node(key, shown_name, *place, status.draining, status.load, status.group)


def oldest_first(nodes: Iterable[Node]) -> list[Node]:
    """Return nodes in the order in which their processes opened the store."""
    return sorted(nodes, key=lambda node: (node.started_at, node.key))


def now() -> datetime:
    """Return the wall clock's time."""
    return datetime.now(UTC)


def new_key() -> int:
    """Return a number for a process. It is a random one: a store that has gone back would count the same ones again."""
    return secrets.randbelow(LARGEST_KEY) + 1


SecretOf = Literal["nodes", "completions"]
"""The use of a secret: nodes show each other that they know it, or it signs completion tokens."""
SECRETS: Final[dict[SecretOf, str]] = {"nodes": "secret", "completions": "completions"}
"""The columns of the secrets."""


def secret_of(stored: Any) -> bytes | None:
    """Return a secret of the store from its stored text; None if that is missing or damaged."""
    try:
        found = bytes.fromhex(bytes_in(stored, "secret").decode())
    except ValueError:
        return None
    return found if len(found) == SECRET_BYTES else None
