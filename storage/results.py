"""The results of reading a store, the same from each store."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from warren.base.errors import StoreError
from warren.base.values import frozen
from warren.conversation.inputs import Numbered
from warren.conversation.records import CompactionEntry, EventRow, MessageRow, SessionRecord, Span
from warren.conversation.views import DamagedRow

R = TypeVar("R")


class Rows(list[R]):
    """Rows that could be read, in order, and beside them those that were passed over.

    Attributes:
        damaged: the rows that cannot be read.
    """

    def __init__(self, rows: Iterable[Any], read: Callable[[Any], R], name: Callable[[Any], str]) -> None:
        """Read rows with `read`, which raises ValueError or StoreError for one that is damaged; `name` names it."""
        super().__init__()
        self.damaged: list[DamagedRow] = []
        for row in rows:
            try:
                self.append(read(row))
            except ValueError as exc:
                self.damaged.append(DamagedRow(name(row), str(exc)))
            except StoreError as exc:
                self.damaged.append(DamagedRow(name(row), exc.message))


@frozen
class StoredSession:
    """The beginning of a session's actor.

    Attributes:
        record: the session's record.
        seq_floor: events up to it may have been shown. It is the record's `last_seq`, or further up if another
            process has the session, or died with it.
    """

    record: SessionRecord
    seq_floor: int


@frozen
class Held:
    """A session for the processes that follow it.

    Attributes:
        holder: the number of the process that has it, which may have died; None if it was put back.
        last_seq: the number of the last event that is stored.
        epoch: the epoch of its lease, which rises with each process that takes it.
    """

    holder: int | None
    last_seq: int
    epoch: int


@frozen
class Lost:
    """Events that were shown and that no store will have: the process of their turn ended before it stored them.

    Attributes:
        first: the number of the first of them.
        last: the number up to which they are lost; those that were shown may end before it.
        ended: whether the log has the end of their turn, or will have it, as the turn goes on. If not, nobody has told
            its readers yet.
        final: whether no process can store them any more. If not, the process that shows no sign of life may do so
            when it wakes up, until another one has taken the session over.
    """

    first: int
    last: int
    ended: bool = False
    final: bool = True


@frozen
class Context:
    """The messages of a session that its model sees, as they are stored.

    Attributes:
        first: the JSON of the message at the position of the instructions, if the head has moved past the first one, or
            other instructions have taken its place.
        compaction: the newest one, if the head has moved.
        rows: the JSON of the messages from the head on.
    """

    first: bytes | None
    compaction: CompactionEntry | None
    rows: list[bytes]


@frozen
class StoredPage:
    """A part of a session's history, all of it from one state of the store.

    Attributes:
        rows: the messages that are there, oldest first.
        total: messages of the whole conversation; 0 for a session that is not here.
        kept_from: messages before this position are gone, but the first one and those with instructions.
        compactions: the compactions that moved the head to a position of the page.
        left_out: messages that the model no longer sees, and those of which it does not see a part.
    """

    rows: Rows[MessageRow]
    total: int
    kept_from: int
    compactions: Rows[CompactionEntry]
    left_out: tuple[Span, ...]


@frozen
class Replay:
    """A part of a session's event log, from one state of the store.

    Attributes:
        rows: those that end above the position of the reader, in order.
        gone: events up to this number are no longer kept; 0 if all are, None if the session is not in the store.
    """

    rows: list[EventRow]
    gone: int | None


@frozen
class News:
    """Changes of other processes that concern this one.

    Attributes:
        wanted: sessions of this process that it is asked to hand over.
        arrived: inputs that wait for sessions of this process, with the session of each.
        inbox_to: the position in the inboxes at which the next look begins. In a file it is the highest number that any
            input was given; in a database, where inputs are not committed in the order of their numbers, a snapshot.
        last_seqs: of the sessions that were asked about, the number of the last event that is stored; None for one that
            is archived. A session that is not here is left out.
    """

    wanted: Sequence[str]
    arrived: Sequence[tuple[str, Numbered]]
    inbox_to: int
    last_seqs: dict[str, int | None]
