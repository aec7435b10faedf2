"""The one connection that writes: groups of operations in one transaction, each by the function for its kind."""

import contextlib
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import apsw
import attrs

from warren.base.errors import StoreError, WarrenError
from warren.base.nodes import Announcement
from warren.base.values import define
from warren.settings.config import StoreConfig
from warren.storage.membership import SECRET_BYTES, SECRETS, ForgottenError, SecretOf, secret_of
from warren.storage.operations import (
    Advance,
    Archive,
    Attach,
    Audit,
    Claim,
    Commit,
    DeclineHandover,
    Delegate,
    Delete,
    DropSchedule,
    DropTrigger,
    DropWebhook,
    EndAttempt,
    EndInputs,
    Enqueue,
    Erased,
    Fork,
    KeepAgent,
    KeepDelivery,
    Label,
    Operation,
    PutSchedule,
    PutTrigger,
    PutWebhook,
    Release,
    RequestHandover,
    Resend,
    Reserve,
    StoreAnswer,
    Sweep,
    TakeDeliveries,
    TakeDue,
    TidyDeliveries,
)
from warren.storage.refusals import went_back
from warren.storage.sqlite import (
    agents,
    attachments,
    audit,
    delegating,
    enqueue,
    forking,
    handover,
    ledger,
    operations,
    schedules,
    triggers,
    webhooks,
)
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.database import UNORDERED, close_writer, impatient, transaction
from warren.storage.sqlite.faults import precise
from warren.storage.sqlite.file import SESSION_STORE, alone, open_writer
from warren.storage.sqlite.lease import Holder
from warren.storage.sqlite.queueing import Queue
from warren.storage.sqlite.replacement import BYSTANDERS, Files, abandon, check_whole

R_co = TypeVar("R_co", covariant=True)
Applier = Callable[[Any, apsw.Connection, Holder], Any]
ADD_CLUSTER: Final = "INSERT INTO cluster (secret) SELECT NULL WHERE NOT EXISTS (SELECT 1 FROM cluster)"
"""SQL that adds the row of the secrets, if it is missing."""
APPLIERS: Final[dict[type[Operation[Any]], Applier]] = {
    Claim: operations.claim,
    Release: operations.release,
    Archive: operations.archive,
    Attach: attachments.attach,
    Sweep: attachments.sweep,
    Reserve: operations.reserve,
    Label: operations.label,
    Delete: operations.delete,
    Erased: operations.erased,
    Enqueue: enqueue.enqueue,
    EndInputs: enqueue.end_inputs,
    StoreAnswer: operations.store_answer,
    Fork: forking.fork,
    RequestHandover: handover.request,
    DeclineHandover: handover.decline,
    Audit: audit.audit,
    PutSchedule: schedules.put,
    DropSchedule: schedules.drop,
    TakeDue: schedules.take,
    Advance: schedules.advance,
    KeepAgent: agents.keep,
    PutTrigger: triggers.put,
    DropTrigger: triggers.drop,
    KeepDelivery: triggers.keep,
    PutWebhook: webhooks.put,
    DropWebhook: webhooks.drop,
    TakeDeliveries: webhooks.take,
    EndAttempt: webhooks.end_attempt,
    Resend: webhooks.resend,
    TidyDeliveries: webhooks.tidy,
}


class SqliteOperation(Operation[R_co]):
    """A change that only this home knows, such as a repair of its file: it applies itself."""

    @abstractmethod
    def apply(self, db: apsw.Connection, holder: Holder) -> R_co:
        """Make the change inside the transaction that the writer has opened on `db`, for a registered holder.

        Raises a WarrenError only before the first change, as the functions of the table do.
        """


def apply(run: Sequence[Operation[Any]], db: apsw.Connection, holder: Holder) -> Sequence[Any | WarrenError]:
    """Apply turns of different sessions, children that are made, or one other operation, in an open transaction.

    Returns the result or the refusal of each. Raises apsw.Error.
    """
    first = run[0]
    if isinstance(first, Commit):
        return operations.commit_all(cast("Sequence[Commit]", run), db, holder)
    if isinstance(first, Delegate):
        return delegating.delegate_all(cast("Sequence[Delegate]", run), db, holder)
    applier = APPLIERS.get(type(first))
    try:
        if applier is not None:
            return [applier(first, db, holder)]
        return [cast("SqliteOperation[Any]", first).apply(db, holder)]
    except WarrenError as exc:  # a refusal, before anything was changed
        return [exc]


def _runs(group: Iterable[Operation[Any]]) -> Iterator[list[Operation[Any]]]:
    """Cut a group into runs: of turns, or of new children, which few statements store together, and others alone.

    All of a run are of different sessions, and none makes a child of a child that it makes.
    """
    run: dict[str, Operation[Any]] = {}
    kind: type | None = None
    for operation in group:
        parent = operation.place.session_id if isinstance(operation, Delegate) else None
        if run and (type(operation) is not kind or operation.session_id in run or parent in run):
            yield list(run.values())
            run = {}
        if isinstance(operation, Commit | Delegate):
            run[operation.session_id], kind = operation, type(operation)
        else:
            yield [operation]
    if run:
        yield list(run.values())


@define
class Writer:
    """Applies operations, synchronously; one caller at a time.

    Attributes:
        holder: the holder of the leases under which it writes.
        closed: whether the store has gone back, and is to be opened anew by `reopen`: until then every call is refused.
    """

    _db: apsw.Connection
    holder: Holder
    closed: bool = False
    _files: Files = attrs.field(init=False)
    _queue: Queue = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._files = Files.of(self._db)
        self._queue = Queue(self.holder.folder)

    def check_file(self) -> None:
        """Raise StoreError if the file was replaced: what readers find there has no name any more. In any thread."""
        if self._files.replaced():
            raise went_back()

    def look_back(self) -> None:
        """Find that the store has gone back, if its file was replaced."""
        if not self.closed and self._files.replaced():
            self._become_another()

    def reopen(self, config: StoreConfig) -> None:
        """Open the file that is there now, if the store has gone back. Raises StoreError, apsw.Error and OSError."""
        if self.closed:
            with alone(config.path):
                BYSTANDERS.check_left(self._folder)
                if not self._files.there():
                    check_whole(config.path)
                    self._files.remove_log()
                abandon(self._db)
                self._db = open_writer(config, opening=UNORDERED)
                self._files = Files.of(self._db)
            self._queue.close()  # its folder may have been replaced, too
            self._came_back()

    def write(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        """Apply all in one transaction; if one fails, each in its own. Return the results and errors in order.

        If the store has gone back, nothing is written, and this process is another holder from now on.
        """
        if self.closed:
            return [went_back(each.session_id) for each in operations]
        try:
            hurried = all(isinstance(each, Commit) and each.hurried for each in operations)
            with impatient(self._db) if hurried else contextlib.nullcontext():
                return self._together(operations)
        except ForgottenError:
            self._become_another()
            return [went_back(each.session_id) for each in operations]
        except Exception as exc:  # noqa: BLE001 - any error belongs to one operation, and must not fail the others
            if len(operations) == 1 or isinstance(exc, apsw.BusyError):
                return [self._failure(exc, operation) for operation in operations]
            return self._one_by_one(operations)

    def renew(self, announcement: Announcement | None = None) -> bool:
        """Keep the holder alive for others; see `Store.renew`. Raises StoreError.

        It waits a moment for the lock of another process, as writes of turns wait behind it. A holder that is late is
        not lost by that: nobody can take its sessions over under the lock of a third.
        """
        self._check_open()
        if announcement is not None:
            self.holder.said = announcement
        try:
            with impatient(self._db):
                if self.holder.key is None and announcement is not None:
                    self._register()
                elif self.holder.key is not None:
                    with self._group():
                        return self.holder.renew(self._db)
        except ForgottenError:
            self._become_another()
        except apsw.Error as exc:
            raise self._translated(exc) from exc
        return False

    def ask_to_drain(self, name: str) -> bool:
        """Ask the living nodes of a name to drain; return whether there is one. Raises StoreError."""
        self._check_open()
        try:
            with transaction(self._db, SESSION_STORE):
                return self.holder.ask_to_drain(self._db, name)
        except apsw.Error as exc:
            raise self._translated(exc) from exc

    def secret(self, of: SecretOf) -> bytes:
        """Return a secret of the store, which is made if it is missing or damaged. Raises StoreError."""
        self._check_open()
        column = SECRETS[of]
        try:
            with transaction(self._db, SESSION_STORE):
                found = secret_of(self._db.execute(f"SELECT {raw(column)} FROM cluster").get)  # noqa: S608 - ours
                if found is None:
                    found = secrets.token_bytes(SECRET_BYTES)
                    self._db.execute(ADD_CLUSTER)
                    self._db.execute(f"UPDATE cluster SET {column} = ?", (found.hex(),))  # noqa: S608 - ours
        except apsw.Error as exc:
            raise self._translated(exc) from exc
        return found

    def version_of_others(self) -> int:
        """Return a number that changes with each commit of another connection. Raises StoreError and apsw.Error."""
        self._check_open()
        version: int = self._db.pragma("data_version")
        return version

    def close(self, *, leave: bool = True) -> None:
        """Let the holder leave, if it is to; move the log into the file; close.

        Idempotent; raises for no fault of the file.
        """
        if leave and not self.closed:
            with contextlib.suppress(apsw.Error):
                self._db.set_busy_timeout(0)
                with transaction(self._db):
                    self.holder.leave(self._db)
        if self.closed or self._files.replaced():
            abandon(self._db)
        close_writer(self._db)
        self._queue.close()
        if self.closed:
            self._came_back()
        if leave:
            self.holder.die()

    def _together(self, operations: Sequence[Operation[Any]]) -> list[Any | WarrenError]:
        if self.holder.key is None:
            self._register()
        with self._group():
            outcomes: list[Any | WarrenError] = []
            for run in _runs(operations):
                outcomes += apply(run, self._db, self.holder)
            stored = zip(operations, outcomes, strict=True)
            ledger.add(self._db, (each for each, outcome in stored if isinstance(each, Commit) and outcome is None))
            return outcomes

    @contextlib.contextmanager
    def _group(self) -> Iterator[None]:
        """Hold the write lock for the block, as `transaction`. Raises ForgottenError if the store has gone back."""
        try:
            with transaction(self._db, SESSION_STORE, self._queue.ahead()):
                self.holder.check(self._db)
                yield
        except (apsw.Error, StoreError) as exc:
            if self._files.replaced():
                raise ForgottenError from exc
            raise
        if self._files.replaced():  # what was committed is not where others look for it
            raise ForgottenError
        self.holder.committed()

    def _become_another(self) -> None:
        """Let go of all leases in the file, and write nothing more to it."""
        self.holder.become_another()
        if not self._files.log_left():
            abandon(self._db)
        self.closed = True
        BYSTANDERS.store_left(self._folder)

    def _came_back(self) -> None:
        self.closed = False
        BYSTANDERS.store_is_back(self._folder)

    @property
    def _folder(self) -> Path:
        return self.holder.folder.parent

    def _check_open(self) -> None:
        if self.closed:
            raise went_back()

    def _register(self) -> None:
        try:
            with transaction(self._db, SESSION_STORE, self._queue.ahead()):
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
