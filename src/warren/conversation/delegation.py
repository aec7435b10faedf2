"""Sessions that work for other sessions: who has delegated the work, and the notices between the two. No I/O."""

from typing import Final

from warren.base.values import frozen
from warren.conversation.budget import NO_EXPENSE, Expense

NOTICES: Final = frozenset({"answer", "cancel", "archive", "delete"})
"""What a session is told by the commit of another one.

`answer`: a child of it has ended, or a peer has responded to a request for whose response a call has waited.
`cancel`: nobody waits for its delegated work any more. `archive` and `delete`: the session that it works for was
archived or deleted.
"""


@frozen
class Delegation:
    """The place of a child session: the session that it works for.

    Attributes:
        session_id: the parent.
        depth: 1 for the child of a session that is no child itself.
        call_id: the call of the parent that waits for the end of the first turn; None if none does.
        call_key: the key of that call; None if there is none.
        traceparent: the place of the call in a trace; None if it has none.
    """

    session_id: str
    depth: int = 1
    call_id: str | None = None
    call_key: str | None = None
    traceparent: str | None = None


@frozen
class ChildEnd:
    """The end of a child's delegated turn, for the call that waits for it.

    Attributes:
        session_id: the child.
        call_id: the call.
        call_key: its key.
        is_error: whether the turn ended without an answer.
        expense: what the child has spent, with its own children.
    """

    session_id: str
    call_id: str
    call_key: str
    is_error: bool = False
    expense: Expense = NO_EXPENSE
