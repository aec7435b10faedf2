"""Retention: the ages at which a store deletes data, as plain values."""

import attrs

from warren.base.fields import positive
from warren.base.values import frozen


@frozen
class Retention:
    """Ages in seconds at which data is deleted; None keeps the data for ever. Raises FieldValueError for 0 and below.

    A model's context and the first message of a session are never deleted, so every session can continue.

    Attributes:
        superseded: age of messages that a summary stands for, since they were stored. `history` has them no longer.
        events: age of events of the log. A subscriber that begins below the kept events gets one gap.
        archived: age of archived sessions, since the end of their last turn. They are deleted as by `delete`.
        audit: age of entries of the audit. An entry of its own says that they were removed.
        usage: age of hours of the ledger, those of today (UTC) excepted: limits count their tokens.
    """

    superseded: float | None = attrs.field(default=None, validator=positive)
    events: float | None = attrs.field(default=None, validator=positive)
    archived: float | None = attrs.field(default=None, validator=positive)
    audit: float | None = attrs.field(default=None, validator=positive)
    usage: float | None = attrs.field(default=None, validator=positive)
