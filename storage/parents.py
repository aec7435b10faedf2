"""What a new child is held against, the same in each store."""

from warren.base.values import define
from warren.storage.operations import Delegate
from warren.storage.refusals import not_found, retired, too_many_children, waits_no_more
from warren.storage.rows import DELETED, OPEN


@define
class Parent:
    """A session that is to have more children.

    Attributes:
        key: its key.
        state: its state.
        at_work: how many of its children are at work, if it has so many children at all that the limit could be met.
    """

    key: int = 0
    state: int = DELETED
    at_work: int = 0

    def check(self, operation: Delegate, *, waiting: bool) -> None:
        """Raise the refusal of a child that is not there.

        Args:
            operation: makes the child.
            waiting: whether the call that it is for still waits.
        """
        session_id = operation.place.session_id
        if self.state != OPEN:
            raise not_found(session_id) if self.state == DELETED else retired(session_id)
        if operation.waits and not waiting:
            raise waits_no_more(session_id)
        if self.at_work >= operation.limit:
            raise too_many_children(session_id, operation.limit)
