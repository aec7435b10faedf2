"""What a store need not keep for ever; plain values, no I/O."""

import attrs

from warren.fields import positive


@attrs.frozen
class Retention:
    """After how many seconds something may go; None keeps it for ever. Raises FieldValueError for 0 and below.

    What a model sees of a conversation never goes, and neither does the first message: a session goes on the same.

    Attributes:
        superseded: messages that a summary stands for, by the time they were stored. `history` has them no longer.
        events: of the event log, by their time. Who reads the log from farther back is told of one gap.
        archived: sessions that are archived, by the end of their last turn. They go as if they were deleted.
    """

    superseded: float | None = attrs.field(default=None, validator=positive)
    events: float | None = attrs.field(default=None, validator=positive)
    archived: float | None = attrs.field(default=None, validator=positive)
