"""Calls that read what sessions hold, and the memory."""

from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

import attrs

from warren.base.fields import (
    Between,
    FieldValueError,
    Labels,
    OneOf,
    fits,
    is_flag,
    is_text,
    is_whole,
    not_blank,
    not_negative,
    optional,
)
from warren.base.values import frozen
from warren.calls.answers import Forgotten, MemoryHits
from warren.calls.base import MAX_OFFSET, MAX_PAGE, Call, Facts, SessionRef
from warren.conversation.attachments import AttachmentContent
from warren.conversation.memory import MAX_HITS, Chosen, MemoryHit, is_text_id
from warren.conversation.views import ContextView, HistoryPage

Scope = Literal["session", "project"]


@frozen
class HistoryRequest(SessionRef, Call[HistoryPage]):
    """A page of a session's messages.

    Attributes:
        offset: the first position to look at, from 0.
        limit: number of positions to look at.
    """

    facts: ClassVar[Facts] = Facts(
        name="session/history",
        doc="Show messages of finished turns, oldest first.",
        scope="session:read",
        finds=True,
        repeatable=True,
        bulky=True,
    )
    offset: int = attrs.field(default=0, validator=[is_whole, Between(0, MAX_OFFSET)], kw_only=True)
    limit: int = attrs.field(default=100, validator=[is_whole, Between(1, MAX_PAGE)], kw_only=True)


@frozen
class AttachmentRequest(SessionRef, Call[AttachmentContent]):
    """An attachment to read.

    Attributes:
        sha256: the SHA-256 of its bytes, as messages and events have it.
    """

    facts: ClassVar[Facts] = Facts(
        name="session/attachment",
        doc="Read a file that the messages of a session have, by its hash.",
        scope="session:read",
        finds=True,
        repeatable=True,
        bulky=True,
    )
    sha256: str = attrs.field(validator=is_text)


@frozen
class ContextViewRequest(SessionRef, Call[ContextView]):
    """A context to show."""

    facts: ClassVar[Facts] = Facts(
        name="session/context",
        doc="Show what the model sees of a session now, by part, with its tokens.",
        scope="session:read",
        at="session or store",
        finds=True,
        repeatable=True,
        bulky=True,
    )


@frozen
class SearchRequest(Call[tuple[MemoryHit, ...]]):
    """A search of the memory.

    Attributes:
        query: text to look for.
        session_id: the session to search; the scope `project` needs none.
        scope: `session` searches one session, `project` all of them.
        limit: the most hits to return, best first.
    """

    facts: ClassVar[Facts] = Facts(
        name="memory/search",
        doc="Search the remembered texts of one session, or of all.",
        scope="memory:read",
        repeatable=True,
        bulky=True,
        needs="memory-store",
        wraps=MemoryHits,
    )
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
class ForgetRequest(SessionRef, Call[int]):
    """Remembered texts to remove.

    Attributes:
        session_id: the session whose texts are removed: all that are remembered now, if nothing else is given.
        turn: remove only those of this turn; 0 is that of texts that belong to no turn.
        text_id: remove only this text, by the id that a hit of a search has.
    """

    facts: ClassVar[Facts] = Facts(
        name="memory/forget",
        doc="Remove remembered texts for good: one, those of a turn, or all that are remembered of a session.",
        scope="session:admin",
        repeatable=True,
        audited="forget",
        needs="memory-store",
        wraps=Forgotten,
    )
    turn: int | None = attrs.field(default=None, validator=optional(is_whole, not_negative, fits), kw_only=True)
    text_id: str | None = attrs.field(default=None, validator=optional(is_text_id), kw_only=True)

    def of(self, tenant: str) -> Chosen:
        """Return the texts that are to be forgotten, of a session of a tenant."""
        return Chosen(self.session_id, tenant, self.turn, None if self.text_id is None else int(self.text_id))


@frozen
class SubscribeRequest(SessionRef):
    """A subscription to the events of a session.

    Attributes:
        after_seq: number of the last event that the subscriber has; 0 begins with the first event, null with the next.
    """

    after_seq: int | None = attrs.field(default=None, validator=optional(is_whole, not_negative, fits), kw_only=True)


@frozen(kw_only=True)
class WatchRequest:
    """The sessions whose changes are wanted: the filter of `ListRequest`.

    Attributes:
        labels: tell only of sessions that have all of these labels.
        include_archived: whether to tell of archived sessions too.
    """

    labels: Mapping[str, str] | None = attrs.field(default=None, validator=Labels())
    include_archived: bool = attrs.field(default=False, validator=is_flag)
