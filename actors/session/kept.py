"""What a process keeps of a session that no store holds, as its fork begins with it. No I/O."""

from collections.abc import Sequence
from datetime import datetime

import attrs

from warren import codec
from warren.actors.turn.compaction import prefix_of
from warren.messages import AssistantMessage, Message, UserMessage
from warren.records import CompactionEntry, SessionRecord
from warren.transcript import Transcript


@attrs.frozen
class Kept:
    """A session's finished turns; see `warren.forking.Original`.

    Attributes:
        record: its record.
        bodies: the JSON of its messages.
        times: when each was added.
        compactions: how its head moved.
    """

    record: SessionRecord
    bodies: Sequence[bytes]
    times: Sequence[datetime]
    compactions: Sequence[CompactionEntry]
    kept_from: int = 0

    def message(self, position: int) -> Message | None:
        """Return a message."""
        return codec.decode_message(self.bodies[position])

    def newest_prompt(self) -> int:
        """Return the position of the newest user message, 0 where there is none."""
        positions = reversed(range(len(self.bodies)))
        return next((at for at in positions if isinstance(self.message(at), UserMessage)), 0)

    def last_text(self, before: int) -> str | None:
        """Return the text of the newest answer with one, before a position."""
        answers = map(codec.decode_message, reversed(self.bodies[:before]))
        return next((each.text for each in answers if isinstance(each, AssistantMessage) and each.text), None)

    def moves(self, at: int) -> tuple[int, CompactionEntry | None]:
        """Return how many compactions have moved the head to a position up to `at`, and the newest of them."""
        found = [entry for entry in self.compactions if entry.head <= at]
        return len(found), found[-1] if found else None

    def cut(self, record: SessionRecord) -> "Kept":
        """Return what a fork of that record begins with."""
        count = record.message_count
        moves = [entry for entry in self.compactions if entry.head <= count]
        return Kept(record, self.bodies[:count], self.times[:count], moves)

    def context(self) -> Transcript:
        """Return what the model sees of it."""
        head, (_, newest) = self.record.head, self.moves(len(self.bodies))
        prefix = prefix_of(self.bodies[0], newest) if head else ()
        return Transcript(self.bodies[head:], head=head, prefix=prefix, left_out=self.record.left_out)
