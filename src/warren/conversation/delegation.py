"""Sessions that work for other sessions: who has delegated the work, and the notices between the two. No I/O."""

from typing import Final

from warren.base.values import frozen
from warren.conversation.budget import NO_EXPENSE, Expense

NOTICES: Final = frozenset({"lend", "answer", "look", "cancel", "archive", "delete"})
"""What a session is told by the commit of another one.

`lend`: a program has made a child of it, which has got a part of its budget. `answer`: a child of it has ended, or a
peer has responded to a request for whose response a call has waited. `look`: what would have said so was damaged, or
the prompt of a child; it looks itself how its children have ended.
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
        lent: what it has got of the parent's budget; None if the parent has none.
    """

    session_id: str
    depth: int = 1
    call_id: str | None = None
    call_key: str | None = None
    traceparent: str | None = None
    lent: Expense | None = None


@frozen
class ChildEnd:
    """The end of a child's delegated turn, for the call that waits for it, or the beginning of one that a program made.

    Attributes:
        session_id: the child.
        call_id: the call; None if none waits.
        call_key: its key.
        is_error: whether the turn ended without an answer.
        expense: what the child has spent, with its own children; at its beginning what it may spend.
        lent: what has counted for the budget of the parent since the beginning, in the place of that.
    """

    session_id: str
    call_id: str | None
    call_key: str | None
    is_error: bool = False
    expense: Expense = NO_EXPENSE
    lent: Expense = NO_EXPENSE

    @property
    def charge(self) -> Expense:
        """What counts for the budget of the parent from now on, besides what has counted."""
        return self.expense - self.lent
