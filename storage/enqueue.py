"""What the store can be asked to write into its inboxes."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

from typing import TYPE_CHECKING, Any, Final

import attrs

from warren import codec
from warren.errors import CapacityExceededError
from warren.inputs import Input, Numbered
from warren.storage.inbox import Settled, decoded, settle
from warren.storage.lease import Holder
from warren.storage.operations import Operation, held, leased, not_found, own, retired
from warren.storage.rows import DELETED, OPEN, bytes_in, corrupt, raw

if TYPE_CHECKING:
    import apsw

_KNOWN: Final = f"SELECT number, {raw('body, outcome')} FROM inbox WHERE session = ? AND key = ?"
_COUNT: Final = "SELECT count(*) FROM inbox WHERE session = ? AND outcome IS NULL"
_ADD: Final = "INSERT INTO inbox (session, id, key, starts, body) VALUES (?,?,?,?,?) RETURNING number"


@attrs.frozen
class Enqueued:
    """What an inbox made of an input.

    Attributes:
        numbered: the input; an earlier one where its key was known.
        fresh: whether it was not known.
        outcome: what came of an earlier one, as it was settled with; None while it waits.
        elsewhere: whether another process has the session: that one finds the input in the store.
    """

    numbered: Numbered
    fresh: bool = True
    outcome: bytes | None = None
    elsewhere: bool = False


@attrs.frozen
class Enqueue(Operation[Enqueued]):
    """Put an input into a session's inbox, once for each key.

    Fails with SessionNotFoundError, with CapacityExceededError if `limit` inputs wait, and with
    StoreError(cause="leased") if another process has the session, unless `anywhere` is true.
    """

    session_id: str
    input: Input
    limit: int
    anywhere: bool = False

    def apply(self, db: "apsw.Connection", holder: Holder) -> Enqueued:
        """Add the row."""
        key, state, rival = held(db, holder, self.session_id)
        if state != OPEN:
            raise not_found(self.session_id) if state == DELETED else retired(self.session_id)
        if rival is not None and not self.anywhere:
            raise leased(self.session_id, rival)
        elsewhere = rival is not None
        said = self.input
        known = db.execute(_KNOWN, (key, said.key)).get if said.key is not None else None
        if known is not None:
            number, body, outcome = known
            earlier = Numbered(number, decoded(body, self.session_id))
            ended = None if outcome is None else _outcome_of(outcome, self.session_id)
            return Enqueued(earlier, False, ended, elsewhere)
        if db.execute(_COUNT, (key,)).get >= self.limit:
            problem = f"{self.limit} inputs wait for the session already"
            raise CapacityExceededError(problem, session_id=self.session_id, cause="inbox_full")
        body = codec.encode(said).decode()
        number = db.execute(_ADD, (key, said.input_id, said.key, said.starts, body)).get
        return Enqueued(Numbered(number, said), elsewhere=elsewhere)


def _outcome_of(outcome: Any, session_id: str) -> bytes:
    """Return the outcome of an earlier input. Raises StoreError(cause="corrupt")."""
    try:
        found = bytes_in(outcome, "outcome")
        codec.decode_stored(dict[str, Any], found or b"{}")
    except ValueError as exc:
        raise corrupt(f"an outcome of session {session_id}", exc, session_id) from exc
    return found


@attrs.frozen
class Settle(Operation[None]):
    """Take inputs out of a session's inbox for which no turn is stored. Without effect on what is not there."""

    session_id: str
    settled: Settled

    def apply(self, db: "apsw.Connection", holder: Holder) -> None:
        """Change the rows."""
        key, state = own(db, holder, self.session_id)
        if state != DELETED:
            settle(db, key, self.settled)
