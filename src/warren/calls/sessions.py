"""Calls that make, list, change and end sessions."""

from collections.abc import Mapping
from typing import ClassVar

import attrs

from warren.base.fields import (
    CAN_CONFLICT,
    AtMost,
    Between,
    InstanceOf,
    Labels,
    OneOf,
    fits,
    is_flag,
    is_name,
    is_text,
    is_whole,
    not_blank,
    not_negative,
    optional,
)
from warren.base.values import frozen
from warren.calls.answers import Archived, Delegated, Deleted
from warren.calls.base import MAX_OFFSET, MAX_PAGE, Call, Facts, SessionRef
from warren.conversation.budget import Budget
from warren.conversation.options import MAX_KEY, MAX_TITLE, NO_OPTIONS, are_names, check_sizes, in_row
from warren.conversation.views import TURN_STATES, SessionPage, SessionView, TurnState


@frozen
class ResumeRequest(SessionRef, Call[SessionView]):
    """A session to load."""

    facts: ClassVar[Facts] = Facts(
        name="session/resume",
        doc="Load a stored session without running a turn.",
        scope="session:read",
        at="session",
        finds=True,
        repeatable=True,
        needs="session-store",
    )


@frozen
class ReadRequest(SessionRef, Call[SessionView]):
    """A session to read.

    Attributes:
        children: whether to count its child sessions too.
    """

    facts: ClassVar[Facts] = Facts(
        name="session/read",
        doc="Show a session as of its last finished turn.",
        scope="session:read",
        at="session or store",
        finds=True,
        repeatable=True,
    )
    children: bool = attrs.field(default=False, validator=is_flag, kw_only=True)


@frozen(kw_only=True)
class ListRequest(Call[SessionPage]):
    """A page of the list of sessions.

    Attributes:
        offset: number of sessions to skip.
        limit: the most sessions to return.
        labels: return only sessions that have all of these labels.
        include_archived: whether to return archived sessions too.
        turn_state: return only sessions with a turn that has not ended and is in this state, as `turn.state` of a row.
        delegated_by: return only the child sessions of this session.
        agent: return only sessions of the agent of this name.
    """

    facts: ClassVar[Facts] = Facts(
        name="session/list",
        doc="List sessions, the most recently changed one first.",
        scope="session:read",
        repeatable=True,
        bulky=True,
    )
    offset: int = attrs.field(default=0, validator=[is_whole, Between(0, MAX_OFFSET)])
    limit: int = attrs.field(default=50, validator=[is_whole, Between(1, MAX_PAGE)])
    labels: Mapping[str, str] | None = attrs.field(default=None, validator=Labels())
    include_archived: bool = attrs.field(default=False, validator=is_flag)
    turn_state: TurnState | None = attrs.field(default=None, validator=optional(OneOf(TURN_STATES)))
    delegated_by: str | None = attrs.field(default=None, validator=optional(is_text))
    agent: str | None = attrs.field(default=None, validator=optional(is_name))


@frozen
class ForkRequest(SessionRef, Call[SessionView]):
    """A session to make of the first messages of another one.

    Attributes:
        session_id: the original.
        at: number of messages to take; null takes all messages of finished turns.
        labels: labels that are added to those of the original, or replace them.
        title: title of the fork; null takes that of the original if the fork has its first prompt.
    """

    facts: ClassVar[Facts] = Facts(
        name="session/fork",
        doc="Make a session of the first messages of another one; no model is called.",
        scope="session:write",
        finds=True,
        audited="fork",
    )
    at: int | None = attrs.field(
        default=None, validator=optional(is_whole, not_negative, fits), kw_only=True, metadata=CAN_CONFLICT
    )
    labels: Mapping[str, str] | None = attrs.field(default=None, validator=Labels(), kw_only=True)
    title: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank, AtMost(MAX_TITLE)), kw_only=True
    )


@frozen
class DelegateRequest(SessionRef, Call[str]):
    """A child session to make, which does a piece of work for another session.

    Attributes:
        session_id: the parent. It need not run a turn, and is not told of the end.
        prompt: what to do. The child sees nothing else of the parent.
        title: title of the child; null takes the first words of the prompt.
        model: its model, one of the parent's provider; null takes the parent's.
        system_prompt: its instructions; null takes the runtime's.
        tools: names of its tools, of those that the parent is offered; null takes the parent's list.
        budget: its limits, which are at most what the parent's budget has left.
        idempotency_key: of your own: a request that is sent again under the same key makes no second child, and has
            the first one as its result.
    """

    facts: ClassVar[Facts] = Facts(
        name="session/delegate",
        doc="Make a child session that works for another one, and let its turn begin; the answer does not wait for it.",
        scope="session:write",
        finds=True,
        repeatable=True,
        audited="create",
        wraps=Delegated,
    )
    prompt: str = attrs.field(validator=[is_text, not_blank])
    title: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank, AtMost(MAX_TITLE)), kw_only=True
    )
    model: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank), kw_only=True, metadata=CAN_CONFLICT
    )
    system_prompt: str | None = attrs.field(default=None, validator=optional(is_text), kw_only=True)
    tools: tuple[str, ...] | None = attrs.field(
        default=None, converter=in_row, validator=are_names, kw_only=True, metadata=CAN_CONFLICT
    )
    budget: Budget | None = attrs.field(default=None, validator=InstanceOf(Budget), kw_only=True)
    idempotency_key: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank, AtMost(MAX_KEY)), kw_only=True
    )

    def __attrs_post_init__(self) -> None:
        """Refuse too many names of tools. Raises FieldValueError."""
        check_sizes(NO_OPTIONS, self.tools)


@frozen
class LabelRequest(SessionRef, Call[SessionView]):
    """A change of labels, of the title or of the allowed tools.

    Attributes:
        labels: labels to set; null as a value removes a label. Labels that are not named stay.
        title: the new title; null leaves it as it is.
        ask_again: names of tools that are no longer among the `allowed_tools` of the session.
    """

    facts: ClassVar[Facts] = Facts(
        name="session/label",
        doc="Change the labels or the title of a session, or take allowed tools back.",
        scope="session:write",
        at="session",
        finds=True,
        repeatable=True,
    )
    labels: Mapping[str, str | None] | None = attrs.field(default=None, validator=Labels(removable=True))
    title: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank, AtMost(MAX_TITLE)), kw_only=True
    )
    ask_again: tuple[str, ...] | None = attrs.field(default=None, converter=in_row, validator=are_names, kw_only=True)


@frozen
class ArchiveRequest(SessionRef, Call[None]):
    """A session to archive."""

    facts: ClassVar[Facts] = Facts(
        name="session/archive",
        doc="Archive a session; a running turn ends first.",
        scope="session:admin",
        at="session",
        finds=True,
        repeatable=True,
        audited="archive",
        wraps=Archived,
    )


@frozen
class DeleteRequest(SessionRef, Call[None]):
    """A session to delete."""

    facts: ClassVar[Facts] = Facts(
        name="session/delete",
        doc="Delete a session and all that it stored.",
        scope="session:admin",
        at="session",
        finds=True,
        audited="delete",
        needs="session-store",
        wraps=Deleted,
    )
