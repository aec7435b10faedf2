"""The one connection that writes: groups of operations in one transaction, and the generations of event numbers."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import apsw
import attrs

from warren.errors import StoreError, WarrenError
from warren.storage.faults import translate
from warren.storage.operations import Operation


@attrs.define
class Writer:
    """Applies operations, synchronously; one caller at a time.

    A *generation* numbers the openings of the file. Events of a turn in flight were shown to subscribers and are not
    stored when the process dies, so whoever opens the file next must not give their numbers out again. An opening
    takes a generation before it first writes or gives out numbers: the one it finds where the opening before it ended
    in good order, else the next. A session's row carries the generation that wrote it, and its numbers go on further
    up by a stride for every generation since.

    Attributes:
        generation: of this opening; None until it takes one.
    """

    _db: apsw.Connection
    generation: int | None = None
    _failed: bool = False

    def write(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        """Apply all in one transaction; where one fails, each in its own. Return what each came to, in order."""
        try:
            return self._together(operations)
        except Exception as exc:  # noqa: BLE001 - whatever it is, it belongs to one of them and must not spoil the rest
            if len(operations) == 1 or isinstance(exc, apsw.BusyError):
                return [self._failure(exc, operation) for operation in operations]
            return self._one_by_one(operations)

    def claim(self) -> int:
        """Make sure that this opening's generation is the newest of the file, and return it. Raises WarrenError."""
        try:
            with self._transaction():
                generation = self._newest_generation()
        except Exception as exc:
            raise translate(exc) from exc
        self.generation = generation
        return generation

    def close(self, *, clean: bool = True) -> None:
        """Note that all is in order, if it is `clean`; move the log into the file; close.

        Idempotent; raises for no fault of the file.
        """
        with contextlib.suppress(apsw.Error):
            if clean and not self._failed and self.generation is not None:  # else there is nothing to vouch for
                # Where another process has opened the file since, this changes nothing: its numbers are not ours to
                # vouch for.
                self._db.execute("UPDATE meta SET clean = 1 WHERE generation = ?", (self.generation,))
            # What another process still reads stays in the log, without waiting for it.
            self._db.set_busy_timeout(0)
            self._db.pragma("wal_checkpoint(TRUNCATE)")
        with contextlib.suppress(apsw.Error):
            self._db.close()

    def _together(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        with self._transaction():
            generation = self._newest_generation() if self.generation is None else self.generation
            results = [operation.apply(self._db, generation) for operation in operations]
        self.generation = generation
        return results

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
        error = translate(exc, session_id=operation.session_id)
        # Its events may have been shown: the next opening must stay clear of their numbers.
        self._failed |= isinstance(error, StoreError)
        return error

    def _newest_generation(self) -> int:
        found, clean = self._db.execute("SELECT generation, clean FROM meta").get
        if found == self.generation:
            return int(found)
        generation = int(found if clean else found + 1)
        self._db.execute("UPDATE meta SET generation = ?, clean = 0", (generation,))
        return generation

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            # SQLite has rolled back by itself after some faults.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
