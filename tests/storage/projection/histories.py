"""Stores with histories, written straight into the file, and what is projected of them."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import apsw
import attrs

from tests.storage.samples import EVENTS, NOW, turn
from warren.base.errors import WarrenError
from warren.conversation.records import CompactionEntry, SessionRecord
from warren.settings.config import StoreConfig
from warren.storage.folders import Disk
from warren.storage.operations import Archive, Claim, Claimed, Commit, Delete, Operation
from warren.storage.projection import Follower
from warren.storage.queries import ANY_TENANT, SessionRow
from warren.storage.sqlite import Holder, queries
from warren.storage.sqlite.file import open_writer
from warren.storage.sqlite.writer import Writer

IDS: Final = tuple(f"0189abcd-0000-7000-8000-{number:012d}" for number in range(12))
RETAIN: Final = """
    UPDATE sessions SET events_after = ?2, change = (SELECT max(change) + 1 FROM sessions) WHERE session_id = ?1
"""


class Clock:
    """A clock that stands still until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


@attrs.define(eq=False)
class World:
    """A store, what was done to it, and who projects it.

    Attributes:
        config: where it is.
        clock: of the followers.
        turns: how many turns each session has had.
        disk: makes what a follower changes files with.
    """

    config: StoreConfig
    clock: Clock = attrs.field(factory=Clock)
    turns: dict[str, int] = attrs.field(factory=dict)
    disk: Callable[[], Disk] = Disk
    _db: apsw.Connection = attrs.field(init=False)
    _writer: Writer = attrs.field(init=False)
    _compactions: dict[str, int] = attrs.field(factory=dict)
    _follower: Follower | None = None

    @classmethod
    def at(cls, folder: Path) -> "World":
        """Make a store in a folder of that name."""
        return cls(StoreConfig(folder, synchronous="NORMAL"))

    def __attrs_post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Open the store for writing."""
        self._db = open_writer(self.config)
        self._writer = Writer(self._db, Holder.of(self.config))

    def close(self) -> None:
        """Close everything in good order."""
        self.leave()
        self._writer.close()

    # -- what is done to the store

    def turn(self, session: int = 0, text: str = "hello", **record: Any) -> None:
        """Store the end of a turn; the first one makes the session."""
        number = self.turns.get(IDS[session], 0)
        commit = turn(IDS[session], number, text=text, labels={"n": str(session)})
        kept: dict[str, Any] = {"compactions": self._compactions.get(IDS[session], 0), "title": f"title {session}"}
        self.write(attrs.evolve(commit, record=attrs.evolve(commit.record, **kept | record)))
        self.turns[IDS[session]] = number + 1

    def compact(self, session: int = 0) -> None:
        """Store a compaction and the turn that it happened in."""
        count = self._compactions.get(IDS[session], 0) + 1
        number = self.turns.get(IDS[session], 0)
        commit = turn(IDS[session], number)
        entry = CompactionEntry(number, NOW + timedelta(minutes=number), 1, 5, 3, f"summary {count}", 9)
        record = attrs.evolve(commit.record, compactions=count, head=1)
        self.write(attrs.evolve(commit, record=record, compaction=entry))
        self.turns[IDS[session]] = number + 1
        self._compactions[IDS[session]] = count

    def archive(self, session: int = 0) -> None:
        """Retire a session."""
        self.write(Archive(IDS[session]))

    def delete(self, session: int = 0) -> None:
        """Remove a session."""
        self.write(Delete(IDS[session]))

    def retain(self, session: int = 0) -> None:
        """Remove the older half of a session's events."""
        gone = self.turns.get(IDS[session], 0) * EVENTS // 2
        events = "DELETE FROM events WHERE session = (SELECT key FROM sessions WHERE session_id = ?) AND seq <= ?"
        self.sql(events, (IDS[session], gone))
        self.sql(RETAIN, (IDS[session], gone))

    def sql(self, statements: str, values: Any = ()) -> None:
        """Change the file past everything."""
        self._db.execute(statements, values)

    def write(self, operation: Operation[Any]) -> Any:
        """Store something; it must succeed. A turn is stored under whatever lease there is to be had."""
        if isinstance(operation, Commit) and isinstance(had := self.write(Claim(operation.session_id)), Claimed):
            operation = attrs.evolve(operation, lease=had.lease)
        (outcome,) = self._writer.write([operation])
        if isinstance(outcome, WarrenError):
            raise outcome
        return outcome

    def record(self, session: int = 0) -> SessionRecord:
        """Return a session's record."""
        found = queries.answer(self._db, self._writer.holder, SessionRow(IDS[session], ANY_TENANT))
        assert found is not None
        return found

    # -- what follows it

    @property
    def follower(self) -> Follower:
        """The one that projects."""
        if self._follower is None:
            self._follower = Follower(self.config, disk=self.disk(), clock=self.clock)
        return self._follower

    def step(self) -> None:
        """Bring the files up to date, but for what has to wait for its time."""
        while self.follower.step(1.0).more:
            self.clock.now += 0.1

    def leave(self) -> None:
        """Let the process that projects end in good order."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close(10.0)

    def die(self) -> None:
        """Let it end as with kill -9: nothing more is written, the system takes what it held."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower._let_go()  # noqa: SLF001 - closes descriptors, as the system does
            follower._lock.drop()  # noqa: SLF001 - the same

    def settled(self) -> dict[str, bytes]:
        """Bring everything up to date, and return the files."""
        for _ in range(3):
            self.step()
            self.clock.now += 100
        self.follower.finish()
        return self.files()

    def rebuilt(self) -> dict[str, bytes]:
        """Make everything anew, and return the files."""
        self.follower.begin_anew()
        return self.settled()

    def files(self) -> dict[str, bytes]:
        """Return every file of the projection but the checkpoint, and every folder, by its path."""
        root = self.config.path
        found = {}
        for path in (root / "index.jsonl", *(root / "sessions").rglob("*"), *(root / "tenants").rglob("*")):
            if path.name != ".checkpoint.json" and path.exists():
                found[str(path.relative_to(root))] = b"" if path.is_dir() else path.read_bytes()
        return found

    def tenant(self, name: str = "default") -> Path:
        """Return the folder of a tenant."""
        return self.config.path if name == "default" else self.config.path / "tenants" / name

    def path(self, session: int = 0, name: str = "") -> Path:
        """Return a session's folder, or a file in it."""
        return self.tenant() / "sessions" / IDS[session] / name
