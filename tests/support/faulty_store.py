"""The real store, with a switch for everything that can go wrong in it."""

from collections.abc import Sequence
from typing import Any, TypeVar

import apsw
import attrs
import trio

from warren.base.errors import StoreError, WarrenError
from warren.base.nodes import Announcement
from warren.settings.config import PostgresConfig, StoreConfig
from warren.storage.membership import SecretOf
from warren.storage.operations import Commit, Operation, Reserve
from warren.storage.postgres import Holder as PostgresHolder
from warren.storage.postgres import PostgresStore
from warren.storage.queries import ModelContext, Query, SessionRow, SessionStart
from warren.storage.runner import Runner
from warren.storage.sqlite import Holder, SqliteStore
from warren.storage.sqlite.file import SESSION_STORE
from warren.storage.sqlite.writer import SqliteOperation, apply
from warren.storage.store import Store

R = TypeVar("R")


class CrashError(Exception):
    """The error of a bug in an actor."""


@attrs.define(eq=False)
class Faults:
    """The faults to come; a test changes them at any time.

    Attributes:
        refuse: what the database raises at the end of every write.
        refusals: how many groups it does so with; None stands for all.
        refuse_kinds: only these operations fail; empty means all.
        too_large: whether the disk has no room for messages, and for little else.
        crash_before: so many of the next groups raise in the storage actor, nothing written.
        crash_after: so many of the next groups raise in the storage actor after their commit.
        crash_load: so many of the next loads raise in the session's actor.
        crash_open: so many of the next openings raise.
        gate: writes wait until it is set.
        delay: seconds that pass before every write.
        delay_after: seconds that pass after it, before it is confirmed.
        read_delay: seconds that every read of a session takes.
        unrenewed: what each renewal of the leases fails with.
        no_secret: what each look for the secret fails with.
        opened: how often the store was opened.
        groups: how many operations each group had that arrived here.
        hurried: of each commit that arrived here, whether it was to wait for a lock for a moment only.
    """

    refuse: Exception | None = None
    refusals: int | None = None
    refuse_kinds: tuple[type[Operation[Any]], ...] = ()
    too_large: bool = False
    crash_before: int = 0
    crash_after: int = 0
    crash_load: int = 0
    crash_open: int = 0
    gate: trio.Event | None = None
    delay: float = 0.0
    delay_after: float = 0.0
    read_delay: float = 0.0
    unrenewed: StoreError | None = None
    no_secret: StoreError | None = None
    opened: int = 0
    groups: list[int] = attrs.field(factory=list)
    hurried: list[bool] = attrs.field(factory=list)

    def take(self, name: str) -> bool:
        """Use up one of the crashes of that name; return whether there was one."""
        left: int = getattr(self, name)
        setattr(self, name, max(0, left - 1))
        return left > 0

    def spoil(self, operations: Sequence[Operation[Any]]) -> list[Operation[Any]]:
        """Return a group as it shall go."""
        if self.too_large:
            full = apsw.FullError("the disk is full")
            return [HalfDone(each, full) if _is_large(each) else each for each in operations]
        error = self.refuse
        if error is None or not self._refuses_once_more():
            return list(operations)
        kinds = self.refuse_kinds or (Operation,)
        return [HalfDone(each, error) if isinstance(each, kinds) else each for each in operations]

    def _refuses_once_more(self) -> bool:
        return self.refusals is None or self.take("refusals")


class Trouble:
    """The steps of a script that make for trouble in the store, by the names of their verbs."""

    faults: Faults

    async def _crash_storage(self, *_: Any) -> None:
        self.faults.crash_before += 1

    async def _crash_storage_after(self, *_: Any) -> None:
        self.faults.crash_after += 1

    async def _refuse(self, *_: Any) -> None:
        self.faults.refuse = apsw.FullError("the disk is full")
        self.faults.refusals = (self.faults.refusals or 0) + 1

    async def _slow(self, *_: Any) -> None:
        self.faults.delay = self.faults.delay_after = 3.0

    async def _fast(self, *_: Any) -> None:
        self.faults.delay = self.faults.delay_after = 0.0


@attrs.frozen
class HalfDone(SqliteOperation[None]):
    """An operation that the database refuses after it has written its rows."""

    operation: Operation[Any]
    error: Exception

    @property
    def session_id(self) -> str:
        return self.operation.session_id

    def apply(self, db: apsw.Connection, holder: Holder) -> None:
        (outcome,) = apply([self.operation], db, holder)
        raise outcome if isinstance(outcome, WarrenError) else self.error


def _is_large(operation: Operation[Any]) -> bool:
    return isinstance(operation, Reserve) or (isinstance(operation, Commit) and bool(operation.messages))


class FaultyStore:
    """A store of any home that fails as its `faults` say; all else goes to the store `behind` it."""

    def __init__(self, store: Store, faults: Faults) -> None:
        self.behind = store
        self.faults = faults

    @classmethod
    async def prepared(
        cls, config: StoreConfig | PostgresConfig, faults: Faults, runner: Runner, holder: "Holder | PostgresHolder"
    ) -> Any:
        """Open the store; it can do all that the store behind it can."""
        if faults.take("crash_open"):
            raise CrashError("while opening")
        store = cls(await _opened(config, runner, holder), faults)
        faults.opened += 1
        return store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    async def aclose(self, *, leave: bool = True) -> None:
        await self.behind.aclose(leave=leave)

    async def write(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        faults = self.faults
        faults.groups.append(len(operations))
        faults.hurried += [each.hurried for each in operations if isinstance(each, Commit)]
        if faults.take("crash_before"):
            raise CrashError("before the commit")
        await self._wait(faults.delay, faults.gate)
        outcomes = await self._written(faults.spoil(operations))
        await self._wait(faults.delay_after, None)
        if faults.take("crash_after"):
            raise CrashError("after the commit")
        return outcomes

    async def _written(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        """Write a group. A file takes an operation back that is half done; a database is not asked for such a one."""
        if isinstance(self.behind, SqliteStore):
            return await self.behind.write(operations)
        asked = [each for each in operations if not isinstance(each, HalfDone)]
        found = iter(await self.behind.write(asked) if asked else [])
        return [
            SESSION_STORE.fault(each.error, session_id=each.session_id) if isinstance(each, HalfDone) else next(found)
            for each in operations
        ]

    async def renew(self, announcement: Announcement | None = None) -> bool:
        if self.faults.unrenewed is not None:
            raise self.faults.unrenewed.copy()
        return await self.behind.renew(announcement)

    async def secret(self, of: SecretOf = "nodes") -> bytes:
        if self.faults.no_secret is not None:
            raise self.faults.no_secret.copy()
        return await self.behind.secret(of)

    async def read(self, query: Query[R]) -> R:
        if isinstance(query, SessionStart | ModelContext | SessionRow):
            await self._wait(self.faults.read_delay, None)
        if isinstance(query, SessionStart | ModelContext) and self.faults.take("crash_load"):
            raise CrashError("while loading")
        return await self.behind.read(query)

    async def _wait(self, seconds: float, gate: trio.Event | None) -> None:
        with trio.CancelScope(shield=True):
            if seconds:
                await trio.sleep(seconds)
            if gate is not None:
                await gate.wait()


async def _opened(config: StoreConfig | PostgresConfig, runner: Runner, holder: "Holder | PostgresHolder") -> Store:
    if isinstance(config, PostgresConfig):
        assert isinstance(holder, PostgresHolder)
        return await PostgresStore.open(config, holder=holder)
    assert isinstance(holder, Holder)
    return await SqliteStore.open(config, holder=holder, runner=runner)
