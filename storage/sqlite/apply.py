"""The table of operations: which function of this package applies which kind."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import apsw

from warren.storage.operations import (
    Archive,
    Attach,
    Audit,
    Claim,
    Commit,
    DeclineHandover,
    Delete,
    EndInputs,
    Enqueue,
    Erased,
    Fork,
    Label,
    Operation,
    Release,
    RequestHandover,
    Reserve,
    Sweep,
)
from warren.storage.sqlite import attachments, audit, enqueue, forking, handover, operations
from warren.storage.sqlite.lease import Holder

R_co = TypeVar("R_co", covariant=True)
Applier = Callable[[Any, apsw.Connection, Holder], Any]
APPLIERS: Final[dict[type[Operation[Any]], Applier]] = {
    Commit: operations.commit,
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
    Fork: forking.fork,
    RequestHandover: handover.request,
    DeclineHandover: handover.decline,
    Audit: audit.audit,
}


class SqliteOperation(Operation[R_co]):
    """A change that only this home knows, such as a repair of its file: it applies itself."""

    @abstractmethod
    def apply(self, db: apsw.Connection, holder: Holder) -> R_co:
        """Make the change inside the transaction that the writer has opened on `db`, for a registered holder.

        Raises a WarrenError only before the first change, as the functions of the table do.
        """


def apply(operation: Operation[Any], db: apsw.Connection, holder: Holder) -> Any:
    """Apply an operation inside an open transaction and return its result. Raises its refusal, or apsw.Error."""
    applier = APPLIERS.get(type(operation))
    if applier is not None:
        return applier(operation, db, holder)
    return cast("SqliteOperation[Any]", operation).apply(db, holder)
