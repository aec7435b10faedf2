"""The one connection that writes: groups of operations, each committed once, whatever happens to the connection.

Each connection has a generation, and each group a number that its transaction stores. If a commit's answer is lost,
the next connection raises the generation: the lock of that row waits for a commit that is still under way, the new
generation refuses one that comes later, and the stored number tells for good whether the group is committed.

Each group also requires that the stored number is that of the group before it. If it is another one, the store has gone
back: a standby without the last transactions has taken over, or a backup was restored. The holder dies then and becomes
another one, so that nothing that was derived from the former state can be written.
"""
# ruff: noqa: S608 - only numbers become part of the SQL

import contextlib
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final, cast

import attrs
import trio
from psycopg import errors

from warren.base.backoff import Backoff
from warren.base.errors import StoreError, WarrenError
from warren.base.nodes import Announcement
from warren.base.values import define
from warren.settings.config import PostgresConfig
from warren.storage.membership import ForgottenError
from warren.storage.operations import Commit, Delegate, Operation
from warren.storage.postgres import inbox
from warren.storage.postgres.commit import MOST, Place, SupersededError, commit_all, fenced, refusal, was_stored
from warren.storage.postgres.delegating import delegate_all
from warren.storage.postgres.driver import Connection, LostError, WrongServerError
from warren.storage.postgres.faults import translate
from warren.storage.postgres.guard import Guard, guard_of
from warren.storage.postgres.lease import Holder
from warren.storage.postgres.operations import apply
from warren.storage.postgres.schema import check_whole, prepare
from warren.storage.refusals import went_back

logger: Final = logging.getLogger("warren.storage")
BACKOFF: Final = Backoff(first=0.05, longest=1.0)
"""The waits between attempts to connect."""
PATIENCE: Final = 2
"""Operations that may wait for a lock one after the other, before the rest of their group is refused at once."""
_NEXT_GENERATION: Final = """
    UPDATE warren.writers SET generation = generation + 1 WHERE holder = $1::int RETURNING generation, groups
"""
_GONE: Final = "the answer to a commit was lost and the server cannot be reached: the outcome is unknown"


class _UnansweredError(Exception):
    """The connection was lost during a commit."""


@define
class _Group:
    """A group whose commit got no answer.

    Attributes:
        number: its number.
        operations: its operations.
        outcomes: their outcomes if it is committed; None if these have to be read.
    """

    number: int
    operations: Sequence[Operation[Any]]
    outcomes: list[Any] | None


@define(eq=False)
class Writer:
    """Applies operations in groups.

    No call can be cancelled: of a group that was cut off, nobody would know the outcome.

    Attributes:
        config: the settings.
        holder: the holder of the leases under which it writes.
        guard: the guard of the reads for callers; None until the database is known.
        became_another: called when the store has gone back, and this process has died as a holder.
    """

    config: PostgresConfig
    holder: Holder
    guard: Guard | None = None
    became_another: Callable[[], None] = lambda: None
    _db: Connection | None = None
    _keeper: Connection | None = None
    _generation: int | None = None
    _unanswered: _Group | None = None
    _answered: _Group | None = None
    _vain: int = 0  # how often it has given the server up
    _closed: bool = False
    _writing: trio.Lock = attrs.field(factory=trio.Lock)
    _keeping: trio.Lock = attrs.field(factory=trio.Lock)

    async def open(self) -> None:
        """Connect, bring the tables up to this version, and free the sessions of processes that have surely ended.

        Raises StoreError, LostError and psycopg's Error.
        """
        with trio.CancelScope(shield=True):
            self._db = await self._prepared()
            for each in self._db.notices:
                logger.warning("%s", each)
            try:
                self.guard = await guard_of(self._db)
                await self.holder.bury(self._db)
            except BaseException:
                self._db.close()
                raise

    @property
    def settled(self) -> bool:
        """Whether the outcome of every group is known, and the database."""
        return self._unanswered is None and self.guard is not None

    async def write(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        """Apply all in one transaction; if one fails, each in its own. Return the results and errors in order.

        If the server is away, it waits for it, and tries again for as long as the settings allow.
        """
        before = self.holder.went_back
        with trio.CancelScope(shield=True):
            async with self._writing:
                if self._closed:
                    return [_closed(operation.session_id) for operation in operations]
                if self.holder.went_back != before:  # they follow from what is gone
                    return [went_back(operation.session_id) for operation in operations]
                outcomes = await self._write(operations)
        return outcomes

    async def settle(self) -> None:
        """Learn the outcome of a group whose commit got no answer, and the database if it is another one.

        Raises StoreError, LostError and psycopg's Error.
        """
        with trio.CancelScope(shield=True):
            vain = self._vain
            async with self._writing:
                if self._vain != vain:  # else all who wait would try in vain, one after the other
                    raise LostError(_GONE)
                try:
                    await (self._ready() if self._unanswered is not None else self._connected())
                except (LostError, errors.Error):
                    self._vain += 1
                    raise

    async def renew(self, announcement: Announcement | None = None) -> bool:
        """Keep the holder alive for others; see `Store.renew`. Raises StoreError, LostError and psycopg's Error."""
        leaves, key = False, None
        with trio.CancelScope(shield=True):
            try:
                async with self._keeping:
                    if self._closed:
                        raise _closed()
                    if announcement is not None:
                        self.holder.said = announcement
                    key = self.holder.key
                    if key is not None:
                        leaves = await self.holder.renew(await self._connected_keeper())
            except ForgottenError:
                async with self._writing:
                    if self.holder.key == key:  # a group may have noticed it, too
                        await self._become_another()
            if self.holder.key is None and announcement is not None:
                async with self._writing:
                    await self._ready()
        return leaves

    async def close(self, *, leave: bool) -> None:
        """Let the holder leave, if it is to, and close the connections. Idempotent; raises for no fault."""
        with trio.CancelScope(shield=True):
            async with self._writing, self._keeping:
                if self._closed:
                    return
                self._closed = True
                db = self._keeper or self._db
                if leave and db is not None and db.usable:
                    with contextlib.suppress(LostError, errors.Error):
                        await self.holder.leave(db)
                for each in (self._db, self._keeper):
                    if each is not None:
                        each.close()
                if leave:
                    self.holder.die()

    # -- connections

    async def _prepared(self) -> Connection:
        db = await Connection.open(self.config, "writer")
        try:
            # A database that is restored under a process gets its tables from the backup.
            if self.guard is not None or self.holder.went_back:
                await check_whole(db)
            await prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    async def _connected_keeper(self) -> Connection:
        if self._keeper is None or not self._keeper.usable:
            self._keeper = await Connection.open(self.config, "keeper")
        return self._keeper

    async def _connected(self) -> Connection:
        if self._db is None or not self._db.usable:
            self._generation = None
            self._db = await self._prepared()
        if self.guard is None:
            self.guard = await guard_of(self._db)
        return self._db

    async def _ready(self) -> Connection:
        """Return the connection that may write. An unknown outcome is known then."""
        db = await self._connected()
        if self.holder.key is None:
            async with self._keeping:
                if self.holder.key is None:  # a renewal may have been faster
                    await self._register()
        if self._generation is None:
            try:
                await self._begin(db)
            except ForgottenError:
                await self._become_another()
                raise went_back() from None
        return db

    async def _become_another(self) -> None:
        """Forget all that this process has of the former state of the store, and let go of its leases."""
        async with self._keeping:
            for db in (self._db, self._keeper):
                if db is not None and db.usable:
                    with contextlib.suppress(LostError, errors.Error):
                        await self.holder.leave(db)  # its row is there, of an earlier time, and would keep its sessions
                if db is not None:
                    db.close()
            self._db = self._keeper = self._generation = self._unanswered = self._answered = self.guard = None
            self.holder.become_another()
            self.became_another()

    async def _register(self) -> None:
        try:
            await self.holder.register(await self._connected_keeper())
        except BaseException:
            self.holder.die()
            raise

    async def _begin(self, db: Connection) -> None:
        """Take the next generation for a connection; look how an unanswered group has ended.

        Raises ForgottenError if the store does not have the groups of this process, and as `Connection.fetch`.
        """
        holder = self.holder
        rows = await db.fetch(_NEXT_GENERATION, holder.key)
        if not rows or not holder.stored <= rows[0][1] <= holder.sent:
            raise ForgottenError
        ((generation, groups),) = rows
        group = self._unanswered
        if group is not None:
            committed = groups == group.number
            if committed and group.outcomes is None:
                group.outcomes = await self._found(db, group.operations)
            elif not committed:
                group.outcomes = None
        self._unanswered = None
        self._answered = group
        self._generation, holder.stored = generation, groups

    async def _found(self, db: Connection, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Return the outcomes of a group of turns that is committed."""
        key = self.holder.key or 0
        return [await was_stored(db, key, each) for each in operations if isinstance(each, Commit)]

    # -- writing

    async def _write(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        deadline, pauses = trio.current_time() + self.config.timeout, iter(BACKOFF)
        while True:
            try:
                db = await self._ready()
                answered, self._answered = self._answered, None
                if answered is not None and answered.operations is operations and answered.outcomes is not None:
                    return answered.outcomes
                return await self._apply(db, operations)
            except (LostError, _UnansweredError, SupersededError, errors.OperationalError) as exc:
                problem: Exception = exc
                if isinstance(exc, SupersededError):
                    self._generation = None
            except (WarrenError, errors.Error) as exc:  # the tables are of another version, or may not be used
                return self._failed(exc, operations)
            pause = next(pauses)
            if trio.current_time() + pause > deadline:
                return self._given_up(problem, operations)
            await trio.sleep(pause)

    def _given_up(self, problem: Exception, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        self._vain += 1
        if isinstance(problem, SupersededError):
            problem = LostError("another connection of this process has taken over")
        return self._failed(problem, operations)

    def _failed(self, problem: Exception, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        """Return the errors of a group; nobody knows its outcome if its commit got no answer."""
        if self._unanswered is not None and self._unanswered.operations is operations:
            return [StoreError(_GONE, session_id=each.session_id, cause="outcome_unknown") for each in operations]
        if isinstance(problem, WarrenError):  # the store has gone back, too: then no group is unanswered any more
            return [_copied(problem, each.session_id) for each in operations]
        return [self._failure(problem, each) for each in operations]

    async def _apply(self, db: Connection, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        try:
            return await self._together(db, operations)
        except (LostError, _UnansweredError, SupersededError):
            await db.roll_back()
            raise
        except Exception as exc:  # noqa: BLE001 - any error belongs to one operation, and must not fail the others
            await db.roll_back()
            if len(operations) == 1:
                return [await self._named(db, exc, operations[0])]
            return await self._one_by_one(operations)

    async def _together(self, db: Connection, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        self.holder.sent += 1
        turns, others = _parted(operations)
        outcomes: list[Any] = [None] * len(operations)
        number, holder, before = self.holder.sent, self.holder.key or 0, self.holder.stored
        writer = number, holder, self._generation or 0, before
        if not others and len(turns) <= MOST and not any(map(_sends, operations)):
            return await self._at_once(db, writer, cast("Sequence[Commit]", operations))
        begin = f"BEGIN; UPDATE warren.writers SET groups = {number} WHERE holder = {holder}"
        if not await db.script(f"{begin} AND generation = {self._generation} AND groups = {before}"):
            raise SupersededError
        await inbox.lock(db, operations)
        writer = number, holder, self._generation or 0, number
        for first in range(0, len(turns), MOST):
            part = {at: cast("Commit", operations[at]) for at in turns[first : first + MOST]}
            stored = await commit_all(db, writer, list(part.values()), self.holder.hooks)
            for at, each in part.items():
                outcomes[at] = None if each.session_id in stored else await fenced(db, holder, each)
            # Not in the statement of the turns, which would pass over a session that it changes itself.
            await inbox.send(db, (sent for at, each in part.items() if outcomes[at] is None for sent in each.sends))
        for kind, run in groupby(others, lambda at: type(operations[at])):
            places = list(run)
            if kind is Delegate:
                children = cast("Sequence[Delegate]", [operations[at] for at in places])
                found: Sequence[Any] = await delegate_all(children, db, self.holder)
            else:
                found = [await self._outcome(db, writer, operations[at]) for at in places]
            for at, outcome in zip(places, found, strict=True):
                outcomes[at] = outcome
        try:
            await db.script("COMMIT")
        except LostError as exc:
            self._unanswered = _Group(number, operations, outcomes)
            raise _UnansweredError(str(exc)) from exc
        self.holder.stored = number
        return outcomes

    async def _at_once(self, db: Connection, writer: Place, turns: Sequence[Commit]) -> list[Any | WarrenError]:
        """Store a group of turns by one statement, which is a transaction of its own."""
        # Only a lost connection makes the group unanswered: reads wait for such a group, and for no other one.
        group = _Group(writer[0], turns, None)
        try:
            stored = await commit_all(db, writer, turns, self.holder.hooks)
        except WrongServerError:
            raise
        except LostError as exc:
            self._unanswered = group
            raise _UnansweredError(str(exc)) from exc
        self.holder.stored = writer[0]
        outcomes: list[Any | WarrenError] = [None] * len(turns)
        try:
            for at, each in enumerate(turns):
                if each.session_id not in stored:
                    outcomes[at] = await fenced(db, writer[1], each)
        except (errors.Error, LostError) as exc:  # the group is stored; the next connection finds out about the others
            self._unanswered = group
            db.close()
            raise _UnansweredError(str(exc)) from exc
        return outcomes

    async def _outcome(self, db: Connection, writer: Place, operation: Operation[Any]) -> Any:
        if isinstance(operation, Commit):
            stored = await commit_all(db, writer, [operation], self.holder.hooks)
            if not stored:
                return await fenced(db, writer[1], operation)
            await inbox.send(db, operation.sends)
            return None
        try:
            return await apply(operation, db, self.holder)
        except WarrenError as exc:  # a refusal, before anything was changed
            return exc

    async def _one_by_one(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        outcomes: list[Any | WarrenError] = []
        patience, before = PATIENCE, self.holder.went_back
        for operation in operations:
            if self.holder.went_back != before:
                outcomes.append(went_back(operation.session_id))
            elif patience:
                outcomes += await self._write([operation])
                last = outcomes[-1]
                # The rest would each wait for the same lock or the same server, one after the other.
                if isinstance(last, StoreError):
                    patience = 0 if last.away else patience - (last.cause == "locked")
                problem = last
            else:
                outcomes.append(_copied(problem, operation.session_id))
        return outcomes

    async def _named(self, db: Connection, exc: Exception, operation: Operation[Any]) -> WarrenError:
        """Return the error of an operation; a row that is there already is a refusal if one fits."""
        if isinstance(exc, errors.UniqueViolation) and isinstance(operation, Commit):
            with contextlib.suppress(LostError, errors.Error):
                found = await refusal(db, self.holder.key or 0, operation)
                if found is not None:
                    return found
        return self._failure(exc, operation)

    def _failure(self, exc: Exception, operation: Operation[Any]) -> WarrenError:
        return translate(exc, session_id=operation.session_id)


def _parted(operations: Sequence[Operation[Any]]) -> tuple[list[int], list[int]]:
    """Return the places of the turns that are stored together, and of the operations that follow them, in order.

    A session's operations stay in order; those of different sessions do not depend on each other.
    """
    turns, others, seen = list[int](), list[int](), set[str]()
    for at, operation in enumerate(operations):
        first = operation.session_id not in seen
        (turns if first and isinstance(operation, Commit) else others).append(at)
        seen.add(operation.session_id)
    return turns, others


def _sends(operation: Operation[Any]) -> bool:
    return isinstance(operation, Commit) and bool(operation.sends)


def _copied(error: Any, session_id: str) -> WarrenError:
    if error.unknown:  # nothing of this one was sent
        return StoreError(_UNREACHABLE, session_id=session_id, cause="unreachable")
    return StoreError(error.message, session_id=session_id, cause=error.cause, retryable=error.retryable)


_UNREACHABLE: Final = "the server of the session store cannot be reached"


def _closed(session_id: str | None = None) -> StoreError:
    return StoreError("the session store is closed", session_id=session_id, cause="closed", retryable=False)
