"""What a child that a program makes gets of its parent's budget, the same in each store."""

from collections.abc import Iterable

import attrs

from warren.base.errors import BudgetExhaustedError
from warren.base.ids import new_session_id
from warren.conversation.budget import NO_EXPENSE, UNLIMITED, Meter, Use, expense_in
from warren.conversation.delegation import ChildEnd
from warren.conversation.inputs import Input, Numbered
from warren.conversation.records import SessionRecord
from warren.conversation.waits import Wait
from warren.storage.operations import Delegate, Sent


def lend(
    operation: Delegate, parent: SessionRecord, inbox: Iterable[Numbered], waits: Iterable[Wait]
) -> tuple[SessionRecord, Sent]:
    """Give a child a part of its parent's budget; return its record, and the notice by which the parent counts it.

    Args:
        operation: makes the child.
        parent: the parent, which has a budget.
        inbox: what waits for the parent.
        waits: what the calls of its open turn wait for.

    Raises BudgetExhaustedError if nothing is left.
    """
    limits, child = parent.options.budget or UNLIMITED, operation.record
    before = parent.delegated
    for each in inbox:  # it has not counted these yet
        end = each.input.end
        if end is not None and end.call_id is None:
            before += end.charge
    for wait in waits:
        before += wait.expense
    meter = Meter(UNLIMITED, limits, parent.spent, parent.usage, delegated_before=before)
    budget = meter.lent(child.options.budget or UNLIMITED)
    if isinstance(budget, Use):
        kind = budget.budget_type
        details = {"budget_type": kind, "used": budget.used, "limit": budget.limit}
        problem = f"the {kind} budget of the session leaves nothing for a child"
        raise BudgetExhaustedError(problem, cause=kind, details=details, session_id=parent.session_id)
    lent = expense_in({figure: limit for kind, figure, limit in budget.limits if kind in limits.kinds})
    record = child.changed(
        options=attrs.evolve(child.options, budget=budget), delegation=attrs.evolve(operation.place, lent=lent)
    )
    end = ChildEnd(child.session_id, None, None, expense=lent, lent=NO_EXPENSE)
    notice = Input(new_session_id(), "lend", "", child.created_at, starts=False, end=end)
    return record, Sent(parent.session_id, notice)
