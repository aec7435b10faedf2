"""The facts about a running turn that its own tools need: for messages to peers, and for work that it delegates."""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from warren.base.errors import InvalidParamsError
from warren.base.values import define
from warren.conversation import codec
from warren.conversation.budget import FIELDS, UNLIMITED, Budget, Meter, shares
from warren.conversation.inputs import Input
from warren.conversation.messages import ToolUseBlock
from warren.conversation.options import NO_OPTIONS, TurnOptions
from warren.models.model import ModelChoice
from warren.models.tools import Tool

DELEGATE: Final = "delegate"
"""The tool by which a model delegates work."""
NO_TOOLS: Final[Mapping[str, Tool]] = {}


@define(eq=False)
class Chain:
    """The place of a running turn among others: the messages of peers that it follows from, the work that it delegates.

    Attributes:
        hops: messages of peers that have followed from one another up to it, since a user's prompt.
        options: its options.
        payer: the client whose limit of tokens it counts for.
        offered: the tools that its model is offered.
        choice: its model; None if the tools are only shown.
        meter: its budgets; None if the tools are only shown.
        keeps_steps: whether its calls are in the store.
        children: the ids of the sessions to which its calls delegate work, by the ids of the calls.
    """

    hops: int = 0
    options: TurnOptions = NO_OPTIONS
    payer: str = ""
    offered: Mapping[str, Tool] = NO_TOOLS
    choice: ModelChoice | None = None
    meter: Meter | None = None
    keeps_steps: bool = False
    children: dict[str, str] = attrs.field(factory=dict)
    _shares: dict[str, Budget | None] = attrs.field(factory=dict)

    def take(self, input_: Input) -> None:
        """Note that the turn takes an input: a user's words begin a new chain, a peer's go on with theirs."""
        if input_.kind == "peer":
            self.hops = max(self.hops, input_.hops)
        elif input_.kind == "steer":
            self.hops = 0

    def hear(self, hops: int) -> None:
        """Note that a call has got a message of a peer as its result, with the number of that in its chain."""
        self.hops = max(self.hops, hops)

    def share_out(self, calls: Sequence[ToolUseBlock]) -> None:
        """Share out what the budgets leave among the calls of an answer that delegate work."""
        left = {} if self.meter is None else self.meter.left
        delegating = [call for call in calls if self._delegates(call)] if left else []
        if delegating:
            found = shares(left, [self._wish(call) for call in delegating])
            self._shares = {call.id: each for call, each in zip(delegating, found, strict=True)}

    def _delegates(self, call: ToolUseBlock) -> bool:
        """Return whether a call has another session do its work."""
        tool = self.offered.get(call.name)
        return call.name == DELEGATE or (tool is not None and tool.agent is not None)

    def _wish(self, call: ToolUseBlock) -> Budget:
        tool = self.offered.get(call.name)
        if tool is not None and tool.agent is not None:
            return tool.agent.budget or UNLIMITED
        try:
            return budget_in(call.args.get("budget"))
        except InvalidParamsError:  # the call fails by itself
            return UNLIMITED

    def share_of(self, call_id: str, wish: Budget) -> Budget | None:
        """Return the budget of the child of a call; None if nothing is left for it."""
        return self._shares.get(call_id, wish)

    def expense_of(self, call_id: str) -> Mapping[str, float]:
        """Return what the child of a call may spend of the budgets that limit the turn, by the fields of `Expense`."""
        share = self._shares.get(call_id)
        if share is None or self.meter is None:
            return {}
        left = self.meter.left
        return {figure: limit for kind, figure, limit in share.limits if FIELDS[kind] in left}


def budget_in(given: object) -> Budget:
    """Return the budget that a call asks for. Raises InvalidParamsError."""
    return UNLIMITED if given is None else codec.from_data(Budget, given, root="budget")
