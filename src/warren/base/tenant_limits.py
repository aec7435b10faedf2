"""Limits of tenants, and of the tokens of a tenant, as plain values."""

import attrs

from warren.base.fields import fits, positive
from warren.base.values import frozen


@frozen(kw_only=True)
class TokenLimits:
    """The limits of the clients of a token, together; None is no limit. Raises FieldValueError for a bad value.

    The limits of their tenant hold besides. In each tenant that they work in, `sessions`, `tokens_per_day`,
    `stored_bytes` and `memory_texts` count apart; the others count in all of them together.

    Attributes:
        sessions: sessions that they have created and that are neither archived nor deleted.
        running_turns: turns that they run at once, those that wait for room in the process among them.
        turns_per_minute: turns that they begin within a minute; that many may begin at once after a quiet minute.
        requests_per_second: requests over the network within a second; each 4 KiB to or from them count as one more.
            Further ones are not refused: their connections wait.
        tokens_per_day: input and output tokens of the turns that they begin, from one midnight (UTC) to the next. A
            turn that has begun ends with its next model call at the latest.
        stored_bytes: bytes of the messages, inputs, events and files of the sessions that they have created. A turn
            that has begun goes on beyond it.
        memory_texts: texts in the memory from the sessions that they have created. Of a compaction that has more the
            oldest are remembered up to it; then compactions go on and remember nothing.
    """

    sessions: int | None = attrs.field(default=None, validator=[positive, fits])
    running_turns: int | None = attrs.field(default=None, validator=[positive, fits])
    turns_per_minute: int | None = attrs.field(default=None, validator=[positive, fits])
    requests_per_second: int | None = attrs.field(default=None, validator=[positive, fits])
    tokens_per_day: int | None = attrs.field(default=None, validator=[positive, fits])
    stored_bytes: int | None = attrs.field(default=None, validator=[positive, fits])
    memory_texts: int | None = attrs.field(default=None, validator=[positive, fits])

    def given(self) -> dict[str, int]:
        """Return the limits that are set, by name."""
        return attrs.asdict(self, filter=attrs.filters.exclude(type(None)))


@frozen(kw_only=True)
class TenantLimits(TokenLimits):
    """The limits of a tenant; None is no limit. Raises FieldValueError for a bad value.

    Attributes:
        sessions: sessions that are neither archived nor deleted.
        running_turns: turns that run at once, those that wait for room in the process among them.
        turns_per_minute: turns that begin within a minute; that many may begin at once after a quiet minute.
        requests_per_second: requests over the network within a second; each 4 KiB to or from its clients count as one
            more. Further ones are not refused: the connections wait.
        tokens_per_day: input and output tokens of model calls from one midnight (UTC) to the next. A turn that has
            begun ends with its next model call at the latest.
        stored_bytes: bytes of the messages, inputs, events and files in the store. A turn that has begun goes on
            beyond it.
        memory_texts: texts in the memory. Of a compaction that has more the oldest are remembered up to it; then
            compactions go on and remember nothing.
        connections: connections to a process that serves, of all its clients; one more is refused.
    """

    connections: int | None = attrs.field(default=None, validator=[positive, fits])


NO_LIMITS = TokenLimits()
"""The limits of a token that has none of its own."""
