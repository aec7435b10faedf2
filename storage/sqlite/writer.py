"""The one connection that writes: groups of operations in one transaction."""

import contextlib
import secrets
from collections.abc import Sequence
from typing import Any, Final

import apsw

from warren.errors import StoreError, WarrenError
from warren.nodes import Announcement
from warren.storage.membership import SECRET_BYTES, secret_of
from warren.storage.operations import Commit, Operation
from warren.storage.sqlite import ledger
from warren.storage.sqlite.apply import apply
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.database import close_writer, impatient, transaction
from warren.storage.sqlite.faults import precise
from warren.storage.sqlite.file import SESSION_STORE
from warren.storage.sqlite.lease import Holder
from warren.values import define

_SECRET: Final = f"SELECT {raw('secret')} FROM cluster"  # noqa: S608 - a column of ours


@define
class Writer:
    """Applies operations, synchronously; one caller at a time.

    Attributes:
        holder: the holder of the leases under which it writes.
    """

    _db: apsw.Connection
    holder: Holder

    def write(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        """Apply all in one transaction; if one fails, each in its own. Return the results and errors in order."""
        try:
            hurried = all(isinstance(each, Commit) and each.hurried for each in operations)
            with impatient(self._db) if hurried else contextlib.nullcontext():
                return self._together(operations)
        except Exception as exc:  # noqa: BLE001 - any error belongs to one operation, and must not fail the others
            if len(operations) == 1 or isinstance(exc, apsw.BusyError):
                return [self._failure(exc, operation) for operation in operations]
            return self._one_by_one(operations)

    def renew(self, announcement: Announcement | None = None) -> bool:
        """Keep the holder alive for others; see `Store.renew`. Raises StoreError.

        It waits a moment for the lock of another process, as writes of turns wait behind it. A holder that is late is
        not lost by that: nobody can take its sessions over under the lock of a third.
        """
        if announcement is not None:
            self.holder.said = announcement
        try:
            with impatient(self._db):
                if self.holder.key is None and announcement is not None:
                    self._register()
                elif self.holder.key is not None:
                    with transaction(self._db, SESSION_STORE):
                        return self.holder.renew(self._db)
        except apsw.Error as exc:
            raise self._translated(exc) from exc
        return False

    def ask_to_drain(self, name: str) -> bool:
        """Ask the living nodes of a name to drain; return whether there is one. Raises StoreError."""
        try:
            with transaction(self._db, SESSION_STORE):
                return self.holder.ask_to_drain(self._db, name)
        except apsw.Error as exc:
            raise self._translated(exc) from exc

    def secret(self) -> bytes:
        """Return the cluster's secret, which is made if it is missing or damaged. Raises StoreError."""
        try:
            with transaction(self._db, SESSION_STORE):
                found = secret_of(self._db.execute(_SECRET).get)
                if found is None:
                    found = secrets.token_bytes(SECRET_BYTES)
                    self._db.execute("DELETE FROM cluster")
                    self._db.execute("INSERT INTO cluster VALUES (?)", (found.hex(),))
        except apsw.Error as exc:
            raise self._translated(exc) from exc
        return found

    def version_of_others(self) -> int:
        """Return a number that changes with each commit of another connection. Raises apsw.Error."""
        version: int = self._db.pragma("data_version")
        return version

    def close(self, *, leave: bool = True) -> None:
        """Let the holder leave, if it is to; move the log into the file; close.

        Idempotent; raises for no fault of the file.
        """
        if leave:
            with contextlib.suppress(apsw.Error):
                self._db.set_busy_timeout(0)
                with transaction(self._db):
                    self.holder.leave(self._db)
        close_writer(self._db)
        if leave:
            self.holder.die()

    def _together(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        if self.holder.key is None:
            self._register()
        with transaction(self._db, SESSION_STORE):
            outcomes = [self._outcome(operation) for operation in operations]
            stored = zip(operations, outcomes, strict=True)
            ledger.add(self._db, (each for each, outcome in stored if isinstance(each, Commit) and outcome is None))
            return outcomes

    def _outcome(self, operation: Operation[Any]) -> Any | WarrenError:
        try:
            return apply(operation, self._db, self.holder)
        except WarrenError as exc:  # a refusal, before anything was changed
            return exc

    def _register(self) -> None:
        try:
            with transaction(self._db, SESSION_STORE):
                self.holder.register(self._db)
        except BaseException:
            self.holder.die()
            raise

    def _one_by_one(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        outcomes: list[Any | WarrenError] = []
        for operation in operations:
            outcomes += self.write([operation])
            if isinstance(outcomes[-1], StoreError) and outcomes[-1].cause == "locked":
                # The rest would each wait for the same lock, one after the other.
                rest = operations[len(outcomes) :]
                return outcomes + [self._failure(apsw.BusyError("database is locked"), left) for left in rest]
        return outcomes

    def _failure(self, exc: Exception, operation: Operation[Any]) -> WarrenError:
        return self._translated(exc, operation.session_id)

    def _translated(self, exc: Exception, session_id: str | None = None) -> WarrenError:
        if isinstance(exc, UnicodeDecodeError):
            # From bytes that an operation wanted to write: a damaged row that is read raises a StoreError instead.
            exc = ValueError(str(exc))
        return SESSION_STORE.fault(precise(exc, self._db), session_id=session_id)
