"""The plan of a failover run. No I/O."""

from pathlib import Path
from typing import Final, Literal, get_args

import attrs

from warren.base.database_url import is_url_of_database
from warren.base.fields import Each, FieldValueError, positive
from warren.base.values import frozen
from warren.settings.config import PostgresConfig, StoreConfig

Fault = Literal["kill", "stop", "partition", "blip", "links", "answers"]
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
OF_DATABASE: Final[frozenset[Fault]] = frozenset({"partition", "blip", "answers"})
"""The faults of the wire to a database."""
LEAST_NODES: Final = 2
KNOWN: Final = Each(FAULTS.__contains__, f"{{}} is unknown; there are {', '.join(FAULTS)}")


def _not_empty(_instance: object, attribute: "attrs.Attribute[tuple[Fault, ...]]", value: tuple[Fault, ...]) -> None:
    if not value:
        raise FieldValueError(attribute.name, "must not be empty")


@frozen
class FailoverPlan:
    """The settings of a run.

    Attributes:
        store: the address of a database, or a folder, which the run fills with sessions.
        nodes: nodes that it starts.
        sessions: sessions, each with one user who sends a prompt when the last one was answered, to any node.
        rounds: faults in all, of the kinds in turn, each at a node that has sessions.
        faults: the kinds: `kill` (and start again), `stop` (until others have its sessions), `partition` (from the
            database, until others have its sessions), `blip` (the same for a second), `links` (no node reaches another
            one for a lease, and all reach the store), `answers` (for a second the database commits, and each answer
            is lost with its connection). By default all of them; on a folder `kill`, `stop` and `links`.
        lease: seconds of a lease.
        seed: begins the choice of nodes.
    """

    store: str
    nodes: int = attrs.field(default=3, validator=positive)
    sessions: int = attrs.field(default=20, validator=positive)
    rounds: int = attrs.field(default=len(FAULTS), validator=positive)
    faults: tuple[Fault, ...] = attrs.field(validator=[_not_empty, KNOWN])
    lease: float = attrs.field(default=3.0, validator=positive)
    seed: int = 0

    @faults.default
    def _possible(self) -> tuple[Fault, ...]:
        """Return all kinds of faults that nodes on the store can have."""
        of_files = not is_url_of_database(self.store)
        return tuple(each for each in FAULTS if not (of_files and each in OF_DATABASE))

    def __attrs_post_init__(self) -> None:
        """Refuse a plan that cannot be carried out."""
        if self.nodes < LEAST_NODES:
            raise FieldValueError("nodes", f"must be at least {LEAST_NODES}: others take a node's sessions over")
        if not is_url_of_database(self.store) and OF_DATABASE & set(self.faults):
            raise FieldValueError("faults", "nodes on a store in files cannot be cut off from it")

    @property
    def place(self) -> StoreConfig | PostgresConfig:
        """The store, as the run itself opens it."""
        if is_url_of_database(self.store):
            return PostgresConfig(self.store, lease=self.lease)
        return StoreConfig(Path(self.store), lease=self.lease)
