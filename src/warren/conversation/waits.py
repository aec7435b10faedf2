"""The things that tool calls wait for, and the answers to them. No I/O."""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

import attrs

from warren.base.values import value
from warren.conversation.budget import NO_EXPENSE, Expense, expense_in
from warren.conversation.categories import Category, Decision
from warren.conversation.messages import ToolResult

WaitReason = Literal["approval", "question", "client", "outside", "background", "child", "peer"]
"""What a call waits for.

`approval`: a decision. `question`: the answer to a question of the running call. `client`: a client of the session that
runs the tool. `outside`: a result that somebody gives under a token. `background`: the same, and the turn has gone on.
`child`: the end of a session that works for this one. `peer`: the response of a peer to a request.
"""
WAIT_REASONS: Final[tuple[WaitReason, ...]] = get_args(WaitReason)
DECIDED: Final[tuple[WaitReason, ...]] = ("approval", "question")
"""The reasons to wait for a decision; for all others a call waits for a result."""
NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""The end of a wait without a time limit."""
WaitKey = tuple[WaitReason, str]
"""The reason and the id of a wait."""
WaitState = Literal["waiting", "answered", "settled"]
"""Whether nobody has answered yet, the answer is stored and the call has not gone on with it, or the wait is over."""
WAIT_STATES: Final[tuple[WaitState, ...]] = get_args(WaitState)


@value
class Wait:
    """One thing that a tool call waits for. It is known by its reason and its id in the session.

    Attributes:
        wait_id: the id of the call; of a question the id of the question.
        reason: what the call waits for.
        state: its state. A settled one without a decision and a result was withdrawn, or nobody answered in time.
        name: the tool.
        args: the arguments of the call, or the question.
        category: the kind of the tool.
        since: the time at which it began (UTC).
        until: the time at which it ends without an answer (UTC).
        question_of: the running call, if it is a question of one.
        may_have_run: whether the call may have run already, as its process ended.
        decision: the answer to an approval or a question.
        result: the answer to all others.
        answered_at: the time of the answer (UTC).
        data: what the process that goes on with the call needs besides, as JSON.
    """

    wait_id: str
    reason: WaitReason
    state: WaitState
    name: str
    args: Mapping[str, Any]
    category: Category
    since: datetime
    until: datetime
    question_of: str | None = None
    may_have_run: bool = False
    decision: Decision | None = None
    result: ToolResult | None = None
    answered_at: datetime | None = None
    data: Mapping[str, Any] | None = None

    @property
    def key(self) -> WaitKey:
        """The reason and the id."""
        return self.reason, self.wait_id

    @property
    def call_id(self) -> str:
        """The call that is held up."""
        return self.question_of or self.wait_id

    @property
    def unanswered(self) -> bool:
        """Whether it is over, and nobody has answered."""
        return self.state == "settled" and self.decision is None and self.result is None

    @property
    def stands_alone(self) -> bool:
        """Whether no decision on other calls of the tool holds for it: it is of one moment, or of one text."""
        return self.may_have_run or self.question_of is not None

    @property
    def child(self) -> str | None:
        """The child session whose end it waits for; None if it waits for something else."""
        return (self.data or {}).get("child") if self.reason == "child" else None

    @property
    def question(self) -> str | None:
        """The question of the hook that has asked for a decision; None if it has none, or a gate has asked."""
        return (self.data or {}).get("question") if self.reason == "approval" else None

    @property
    def expense(self) -> Expense:
        """What counts for the budgets of the turn: what the child has spent; before its end what it may spend."""
        if self.reason != "child":
            return NO_EXPENSE
        return expense_in((self.data or {}).get("spent" if self.state == "answered" else "share"))

    @property
    def request(self) -> str | None:
        """The request whose response it waits for; None if it waits for something else."""
        return (self.data or {}).get("request") if self.reason == "peer" else None

    def same_as(self, other: "Wait") -> bool:
        """Return whether it waits for the same child, or for the response to the same request, as another one."""
        return (self.key, self.child, self.request) == (other.key, other.child, other.request)

    def left(self, now: datetime) -> float:
        """Return the seconds for which it may last yet: 0 once its time is over."""
        return max(0.0, (self.until - now).total_seconds())

    def changed(self, **changes: Any) -> "Wait":
        """Return a copy with other values of the named fields."""
        return attrs.evolve(self, **changes)


def forgetting(waits: Iterable[Wait], tools: Collection[str]) -> list[Wait]:
    """Return those of some waits whose answers allow one of some tools for the session, changed so that they do not."""
    return [
        wait.changed(decision=attrs.evolve(wait.decision, remember=False))
        for wait in waits
        if wait.name in tools and wait.decision is not None and wait.decision.remember
    ]
