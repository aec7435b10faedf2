"""The arguments of each method of `SessionService`, as one value a method that checks itself.

The keywords of `SessionService` and the parameters of JSON-RPC, REST and MCP are the fields of these classes, so that
every way in refuses the same values by the same names. `conversation.options` has `SessionRequest` and `TurnRequest`,
`conversation.peers` has `PeerMessage`, `reports.audit` has `AuditRequest`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, get_args

import attrs

from warren.base.fields import (
    CAN_CONFLICT,
    AtMost,
    Between,
    FieldValueError,
    Labels,
    OneOf,
    fits,
    is_flag,
    is_moment,
    is_text,
    is_whole,
    not_blank,
    not_negative,
    optional,
)
from warren.base.values import frozen
from warren.conversation.categories import Answer
from warren.conversation.memory import MAX_HITS, Chosen, is_text_id
from warren.conversation.messages import REFUSED
from warren.conversation.options import MAX_KEY, MAX_TITLE
from warren.reports.ledger import GROUPS, By

MAX_PAGE: Final = 1_000
MAX_OFFSET: Final = 2**53
"""Clients whose numbers are all floats cannot count exactly beyond it."""
Scope = Literal["session", "project"]


@frozen
class SessionRef:
    """A session, by its id.

    Attributes:
        session_id: the session.
    """

    session_id: str = attrs.field(validator=is_text)


@frozen(kw_only=True)
class ListRequest:
    """A page of the list of sessions.

    Attributes:
        offset: number of sessions to skip.
        limit: the most sessions to return.
        labels: return only sessions that have all of these labels.
        include_archived: whether to return archived sessions too.
    """

    offset: int = attrs.field(default=0, validator=[is_whole, Between(0, MAX_OFFSET)])
    limit: int = attrs.field(default=50, validator=[is_whole, Between(1, MAX_PAGE)])
    labels: Mapping[str, str] | None = attrs.field(default=None, validator=Labels())
    include_archived: bool = attrs.field(default=False, validator=is_flag)


@frozen(kw_only=True)
class WatchRequest:
    """The sessions whose changes are wanted: the filter of `ListRequest`.

    Attributes:
        labels: tell only of sessions that have all of these labels.
        include_archived: whether to tell of archived sessions too.
    """

    labels: Mapping[str, str] | None = attrs.field(default=None, validator=Labels())
    include_archived: bool = attrs.field(default=False, validator=is_flag)


@frozen(kw_only=True)
class UsageRequest:
    """A report on the use of models.

    Attributes:
        by: the group of each row. `session` and `label` are of the sessions that are stored, and whose last turn ended
            within the time; all others are of the ledger, which keeps the tokens of deleted sessions, too.
        since: a time in the first hour that counts; null begins with the oldest one.
        until: hours that begin then or later do not count; null ends with the newest one.
        all_tenants: count the use of all tenants; it needs the scope `tenant:admin`.
        offset: number of rows to skip.
        limit: the most rows to return.
    """

    by: By = attrs.field(default="day", validator=OneOf(GROUPS))
    since: datetime | None = attrs.field(default=None, validator=optional(is_moment))
    until: datetime | None = attrs.field(default=None, validator=optional(is_moment))
    all_tenants: bool = attrs.field(default=False, validator=is_flag)
    offset: int = attrs.field(default=0, validator=[is_whole, Between(0, MAX_OFFSET)])
    limit: int = attrs.field(default=100, validator=[is_whole, Between(1, MAX_PAGE)])


@frozen
class HistoryRequest(SessionRef):
    """A page of a session's messages.

    Attributes:
        offset: the first position to look at, from 0.
        limit: number of positions to look at.
    """

    offset: int = attrs.field(default=0, validator=[is_whole, Between(0, MAX_OFFSET)], kw_only=True)
    limit: int = attrs.field(default=100, validator=[is_whole, Between(1, MAX_PAGE)], kw_only=True)


@frozen
class AttachmentRequest(SessionRef):
    """An attachment to read.

    Attributes:
        sha256: the SHA-256 of its bytes, as messages and events have it.
    """

    sha256: str = attrs.field(validator=is_text)


@frozen
class CompactRequest(SessionRef):
    """A compaction to run now.

    Attributes:
        instructions: more text for the model that writes the summary.
    """

    instructions: str | None = attrs.field(default=None, validator=optional(is_text), kw_only=True)


@frozen
class ForkRequest(SessionRef):
    """A session to make of the first messages of another one.

    Attributes:
        session_id: the original.
        at: number of messages to take; null takes all messages of finished turns.
        labels: labels that are added to those of the original, or replace them.
        title: title of the fork; null takes that of the original if the fork has its first prompt.
    """

    at: int | None = attrs.field(
        default=None, validator=optional(is_whole, not_negative, fits), kw_only=True, metadata=CAN_CONFLICT
    )
    labels: Mapping[str, str] | None = attrs.field(default=None, validator=Labels(), kw_only=True)
    title: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank, AtMost(MAX_TITLE)), kw_only=True
    )


@frozen
class LabelRequest(SessionRef):
    """A change of labels, or of the title.

    Attributes:
        labels: labels to set; null as a value removes a label. Labels that are not named stay.
        title: the new title; null leaves it as it is.
    """

    labels: Mapping[str, str | None] | None = attrs.field(default=None, validator=Labels(removable=True))
    title: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank, AtMost(MAX_TITLE)), kw_only=True
    )


@frozen
class SubscribeRequest(SessionRef):
    """A subscription to the events of a session.

    Attributes:
        after_seq: number of the last event that the subscriber has; 0 begins with the first event, null with the next.
    """

    after_seq: int | None = attrs.field(default=None, validator=optional(is_whole, not_negative, fits), kw_only=True)


def _not_own(_request: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if value == REFUSED:  # what it says would stand for tool calls
        raise FieldValueError(attribute.name, f"must not be {REFUSED!r}, which is the runtime's own")


@frozen
class ContextRequest(SessionRef):
    """A text for the model of a session that is no prompt.

    Attributes:
        text: the text; it enters the running turn at its next step, or else the next turn.
        source: name of the sender, which the model reads; null is the host.
        idempotency_key: of your own: a text that is sent again under the same key is not taken twice.
    """

    text: str = attrs.field(validator=[is_text, not_blank])
    source: str | None = attrs.field(default=None, validator=optional(is_text, not_blank, _not_own), kw_only=True)
    idempotency_key: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank, AtMost(MAX_KEY)), kw_only=True, metadata=CAN_CONFLICT
    )


@frozen
class WithdrawRequest(SessionRef):
    """An input to take back.

    Attributes:
        input_id: id of the input, as `session/inputs` lists it.
    """

    input_id: str = attrs.field(validator=is_text)


@frozen
class ApproveRequest(SessionRef):
    """The answer to a tool call that waits for approval.

    Attributes:
        session_id: the session whose turn runs.
        call_id: id of the call, from its event `tool_approval_requested`.
        decision: whether the tool runs.
        reason: text that the model reads if the call is denied.
    """

    call_id: str = attrs.field(validator=is_text)
    decision: Answer = attrs.field(validator=OneOf(get_args(Answer)))
    reason: str | None = attrs.field(default=None, validator=optional(is_text), kw_only=True)


@frozen
class DrainRequest:
    """A node to drain.

    Attributes:
        name: its name, as `nodes/list` has it.
    """

    name: str = attrs.field(validator=[is_text, not_blank])


@frozen
class SearchRequest:
    """A search of the memory.

    Attributes:
        query: text to look for.
        session_id: the session to search; the scope `project` needs none.
        scope: `session` searches one session, `project` all of them.
        limit: the most hits to return, best first.
    """

    query: str = attrs.field(validator=[is_text, not_blank])
    session_id: str | None = attrs.field(default=None, validator=optional(is_text), kw_only=True)
    scope: Scope = attrs.field(default="session", validator=OneOf(get_args(Scope)), kw_only=True)
    limit: int = attrs.field(default=5, validator=[is_whole, Between(1, MAX_HITS)], kw_only=True)

    @property
    def within(self) -> str | None:
        """The session to search; None for all of them. Raises InvalidParamsError if one of them has to be named."""
        if self.scope == "session" and self.session_id is None:
            raise FieldValueError("session_id", "is required to search one session; or search the project").refusal()
        return self.session_id if self.scope == "session" else None


@frozen
class ForgetRequest(SessionRef):
    """Remembered texts to remove.

    Attributes:
        session_id: the session whose texts are removed: all that are remembered now, if nothing else is given.
        turn: remove only those of this turn; 0 is that of texts that belong to no turn.
        text_id: remove only this text, by the id that a hit of a search has.
    """

    turn: int | None = attrs.field(default=None, validator=optional(is_whole, not_negative, fits), kw_only=True)
    text_id: str | None = attrs.field(default=None, validator=optional(is_text_id), kw_only=True)

    def of(self, tenant: str) -> Chosen:
        """Return the texts that are to be forgotten, of a session of a tenant."""
        return Chosen(self.session_id, tenant, self.turn, None if self.text_id is None else int(self.text_id))
