"""Results for callers: results of turns, views of sessions, pages of lists and histories."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, cast, get_args

import attrs

from warren.base.fields import LEFT_OUT
from warren.base.principals import DEFAULT_TENANT, LOCAL
from warren.base.values import frozen
from warren.conversation.agents import AgentRef
from warren.conversation.attachments import Attachment, Kind
from warren.conversation.categories import Category, Gates, Switches
from warren.conversation.events import TurnOutcome
from warren.conversation.messages import Message, StopReason
from warren.conversation.peers import Peer
from warren.conversation.records import CompactionEntry, Lifecycle, MessagePart, Parent, SessionRecord
from warren.conversation.usage import Usage
from warren.conversation.waits import Wait, WaitReason

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
V = TypeVar("V")
NO_TYPE: Final = object()
"""Stands for the output of a result whose caller has given no type."""


@frozen
class TurnResult(Generic[T]):
    """The result of a turn that ended with an answer.

    Attributes:
        session_id: the session.
        text: the final answer.
        steps: number of steps (model calls) in this turn; 0 for a session created without a prompt.
        tool_calls: number of tools run in this turn.
        usage: tokens of this turn.
        stop_reason: the reason for the end of the answer; None for a session created without a prompt.
        structured_output: the answer as data, if a schema was given.
        first_seq: the number of the turn's first event, `run_started`; None for a session created without a prompt.
        last_seq: the number of the turn's last event; None for a session created without a prompt.
        attachments: the files that the model has made in this turn, such as pictures.
        warnings: of a new session, what it asks for and does not get: tools whose kind is off, a way to answer its
            peers. Each begins with the option.
    """

    WHOLE: ClassVar[bool] = True
    # The contracts of all surfaces call the steps of a turn `turns`.
    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"steps": "turns"}
    session_id: str
    text: str = ""
    steps: int = 0
    tool_calls: int = 0
    usage: Usage = attrs.field(factory=Usage)
    stop_reason: StopReason | None = None
    structured_output: Any = attrs.field(default=None, metadata=LEFT_OUT)
    first_seq: int | None = attrs.field(default=None, metadata=LEFT_OUT)
    last_seq: int | None = attrs.field(default=None, metadata=LEFT_OUT)
    attachments: tuple[Attachment, ...] = attrs.field(default=(), metadata=LEFT_OUT)
    warnings: tuple[str, ...] = attrs.field(default=(), metadata=LEFT_OUT)
    _output: Any = attrs.field(default=NO_TYPE, init=False, eq=False, repr=False)

    @property
    def output(self) -> T:
        """The answer as the caller wants it.

        It is an instance of the output type of the agent or of the call; without a type the data, and without a schema
        the text.
        """
        if self._output is not NO_TYPE:
            return cast("T", self._output)
        return cast("T", self.text if self.structured_output is None else self.structured_output)

    def with_output(self, output: V) -> "TurnResult[V]":
        """Return the result with this `output`, which stays in the process."""
        found = cast("TurnResult[V]", attrs.evolve(self))
        object.__setattr__(found, "_output", output)
        return found


@frozen
class PendingApproval:
    """A tool call that waits for approval.

    Attributes:
        call_id: id of the call, for `tool/approve`.
        name: the tool.
        args: the arguments of the call.
        category: the kind of the tool.
        since: time since which it waits (UTC).
        until: time at which it is refused, if nobody has decided (UTC).
        question_of: the running call, if this is a question of it.
        may_have_run: whether it may have run already: the process ended during it.
        question: the question of the hook that has asked for the decision.
    """

    call_id: str
    name: str
    args: Mapping[str, Any]
    category: Category
    since: datetime
    until: datetime
    question_of: str | None = None
    may_have_run: bool = False
    question: str | None = attrs.field(default=None, metadata=LEFT_OUT)


@frozen
class WaitingCall:
    """A tool call for which a turn waits.

    Attributes:
        call_id: id of the call.
        name: the tool.
        reason: what the call waits for.
        since: time since which it waits (UTC).
        session_id: the child session whose end it waits for; None if it waits for something else.
    """

    call_id: str
    name: str
    reason: WaitReason
    since: datetime
    session_id: str | None = attrs.field(default=None, metadata=LEFT_OUT)


WAITS_FOR: Final[dict[WaitReason, str]] = {
    "approval": "approval",
    "question": "the answer to a question",
    "client": "a client that runs it",
    "outside": "a result from outside",
    "background": "a result in the background",
    "child": "the end of a child session",
    "peer": "the response of a peer",
}
"""The words for each reason of a call that waits."""
TurnState = Literal["running", "parked", "waiting"]
"""What happens to a turn that has not ended."""
TURN_STATES: Final[tuple[TurnState, ...]] = get_args(TurnState)


@frozen
class TurnView:
    """A turn that has not ended.

    Attributes:
        state: `waiting` if all of its tool calls that have not ended wait, whether or not a process has it; `running`
            if a process runs it; `parked` if it is stored, and goes on when a process takes it up.
        since: time at which the turn began (UTC).
        resumed: how often a process has gone on with it.
        waiting_for: the calls that a turn in the state `waiting` waits for.
    """

    state: TurnState
    since: datetime
    resumed: int = 0
    waiting_for: tuple[WaitingCall, ...] = attrs.field(default=(), metadata=LEFT_OUT)

    @property
    def waits(self) -> str:
        """What it waits for, in words; empty if it does not wait."""
        return ", ".join(f"{each.name} ({each.call_id}) for {WAITS_FOR[each.reason]}" for each in self.waiting_for)


@frozen
class ChildCount:
    """The number of child sessions that a session has; archived ones do not count.

    Attributes:
        total: all of them, which `session/list` with `delegated_by` lists.
        working: those whose work has not ended.
    """

    total: int
    working: int


@frozen
class SessionState:
    """The state and the settings of a session.

    Attributes:
        last_assistant_text: text of the newest answer.
        last_structured_output: the same answer as data, if a schema was given.
        overrides: the kinds of tools that the session itself switches on or off; None if it switches none.
        approvals: the gates in which the session is stricter than the runtime; None if there are none.
        allowed_tools: tools whose calls no longer wait for approval in this session, as somebody has decided.
        parent: the original of a fork; None if the session is no fork.
        peer: its name among other sessions, and the names that it trusts; None if it has no name.
        provider: the provider of its turns; None if the model's name decides.
        tenant: the tenant that it belongs to.
        owner: the name of the principal that created it.
        pending_approvals: tool calls of the running turn that wait for approval.
        turn: the turn that has not ended; None if there is none. If another process runs it, only what is stored of it
            counts: a turn of which nothing is stored yet is left out.
        background: tool calls that run in the background, beyond their turns.
        last_outcome: the end of the newest turn that has ended, `completed` or the cause of `run_failed`; None if none
            has, or if it has ended with a release that did not store that.
        delegated_by: the session that it works for; None if it is no child.
        depth: levels of sessions above it that work was delegated by; 0 if it is no child.
        children: the number of its child sessions, if `read` was to count them; None if there are none.
        agent: the version of the agent that it was made with; None if it was made without one.
    """

    WHOLE: ClassVar[bool] = True
    session_id: str
    created_at: datetime
    updated_at: datetime
    message_count: int
    is_active: bool
    last_assistant_text: str | None
    lifecycle: Lifecycle
    labels: Mapping[str, str]
    model: str
    compactions: int = 0
    title: str | None = None
    last_structured_output: Any = attrs.field(default=None, metadata=LEFT_OUT)
    overrides: Switches | None = attrs.field(default=None, metadata=LEFT_OUT)
    approvals: Gates | None = attrs.field(default=None, metadata=LEFT_OUT)
    allowed_tools: tuple[str, ...] = attrs.field(default=(), metadata=LEFT_OUT)
    parent: Parent | None = attrs.field(default=None, metadata=LEFT_OUT)
    peer: Peer | None = attrs.field(default=None, metadata=LEFT_OUT)
    provider: str | None = attrs.field(default=None, metadata=LEFT_OUT)
    tenant: str = attrs.field(default=DEFAULT_TENANT, metadata=LEFT_OUT)
    owner: str = attrs.field(default=LOCAL.name, metadata=LEFT_OUT)
    pending_approvals: tuple[PendingApproval, ...] = attrs.field(default=(), metadata=LEFT_OUT)
    turn: TurnView | None = attrs.field(default=None, metadata=LEFT_OUT)
    background: tuple[WaitingCall, ...] = attrs.field(default=(), metadata=LEFT_OUT)
    last_outcome: TurnOutcome | None = attrs.field(default=None, metadata=LEFT_OUT)
    delegated_by: str | None = attrs.field(default=None, metadata=LEFT_OUT)
    depth: int = attrs.field(default=0, metadata=LEFT_OUT)
    children: ChildCount | None = attrs.field(default=None, metadata=LEFT_OUT)
    agent: AgentRef | None = attrs.field(default=None, metadata=LEFT_OUT)


@frozen
class Billing:
    """The token use of a session so far."""

    total_tokens: int
    usage: Usage


@frozen
class SessionView:
    """The answer to `read`."""

    state: SessionState
    billing: Billing


@frozen
class SessionSummary:
    """One row of `list`.

    Attributes:
        tenant: the tenant that it belongs to.
        owner: the name of the principal that created it.
        pending_approvals: number of tool calls of the running turn that wait for approval.
        turn: the turn that has not ended, as in `read`; None if there is none.
        node: the node that has it; None if none has it, or its process is no node.
        last_outcome: the end of the newest turn that has ended, `completed` or the cause of `run_failed`; None if none
            has, or if it has ended with a release that did not store that.
        delegated_by: the session that it works for; None if it is no child.
        agent: the version of the agent that it was made with; None if it was made without one.
    """

    session_id: str
    created_at: datetime
    updated_at: datetime
    message_count: int
    total_tokens: int
    is_active: bool
    lifecycle: Lifecycle
    labels: Mapping[str, str]
    model: str
    title: str | None = None
    tenant: str = attrs.field(default=DEFAULT_TENANT, metadata=LEFT_OUT)
    owner: str = attrs.field(default=LOCAL.name, metadata=LEFT_OUT)
    pending_approvals: int = attrs.field(default=0, metadata=LEFT_OUT)
    turn: TurnView | None = attrs.field(default=None, metadata=LEFT_OUT)
    node: str | None = attrs.field(default=None, metadata=LEFT_OUT)
    last_outcome: TurnOutcome | None = attrs.field(default=None, metadata=LEFT_OUT)
    delegated_by: str | None = attrs.field(default=None, metadata=LEFT_OUT)
    agent: AgentRef | None = attrs.field(default=None, metadata=LEFT_OUT)


@frozen
class DamagedRow:
    """A damaged row of the store, which is left out of a page.

    Attributes:
        row: the session's id, or the position of the message or compaction.
        problem: a description of the damage.
    """

    row: str
    problem: str


@frozen
class SessionPage:
    """A page of `list`: newest `updated_at` first, then by id.

    Attributes:
        sessions: the page.
        damaged: damaged sessions of the page; they are missing in `sessions`.
    """

    sessions: tuple[SessionSummary, ...]
    damaged: tuple[DamagedRow, ...] = ()


@frozen(kw_only=True)
class ListedApproval(PendingApproval):
    """A tool call of some session that waits for approval.

    Attributes:
        session_id: its session.
        title: the title of the session; None before the first turn has ended, if nobody has given it one.
    """

    session_id: str
    title: str | None = None


@frozen
class ApprovalPage:
    """A page of `approvals`.

    Attributes:
        approvals: the page.
        damaged: damaged rows of the page; they are missing in `approvals`.
    """

    approvals: tuple[ListedApproval, ...]
    damaged: tuple[DamagedRow, ...] = ()


@frozen
class SessionChanges:
    """Sessions that have changed, each as it is now, however often it has changed since the changes before these.

    Attributes:
        sessions: those that fit the filter of the watch, as `list` shows them.
        gone: ids of those that were deleted, or that fit the filter no more. The watcher may not know all of them.
        missed: whether there were more changes than these: list the sessions again.
    """

    sessions: tuple[SessionSummary, ...] = ()
    gone: tuple[str, ...] = ()
    missed: bool = False


@frozen
class HistoryEntry:
    """One message of a transcript.

    Attributes:
        position: its position from 0.
        created_at: time at which it was added (UTC).
        message: the message.
        left_out: whether it is no longer in the context, as the provider refused its exchange.
        part_left_out: the part of it that no longer goes to the model, as the provider refused it.
    """

    position: int
    created_at: datetime
    message: Message
    left_out: bool = False
    part_left_out: MessagePart | None = attrs.field(default=None, metadata=LEFT_OUT)


@frozen
class HistoryPage:
    """A page of `history`, oldest first: the original conversation, also the messages before compactions.

    Attributes:
        session_id: the session.
        messages: the page: the messages at the `limit` positions from `offset` on, without those that are gone.
        offset: the first position of the page.
        total: number of messages of the whole conversation, those that are gone included. To read all pages, add
            `limit` to `offset` until it reaches this number: a page before that may be empty.
        compactions: the compactions whose new head is on this page.
        kept_from: retention has removed the messages before this position, but the first and those with instructions.
        damaged: damaged messages and compactions of this page; they are left out.
    """

    WHOLE: ClassVar[bool] = True
    session_id: str
    messages: tuple[HistoryEntry, ...]
    offset: int
    total: int
    compactions: tuple[CompactionEntry, ...] = ()
    kept_from: int = 0
    damaged: tuple[DamagedRow, ...] = attrs.field(default=(), metadata=LEFT_OUT)


PartName = Literal["system", "tools", "summary", "prompts", "answers", "tool_results", "context"]
"""A part of a context: the system prompt, the definitions of the tools, the summary, the messages by their kinds."""


@frozen
class ContextPart:
    """A part of a context.

    Attributes:
        name: the part.
        tokens: its estimated tokens.
        count: the messages, or tools, in it.
    """

    name: PartName
    tokens: int
    count: int


@frozen
class ContextTool:
    """A tool that the model is offered.

    Attributes:
        name: its name.
        description: the description that the model reads.
        tokens: the estimated tokens of its definition.
    """

    name: str
    description: str
    tokens: int


@frozen
class SeenMessage:
    """A message in a context.

    Attributes:
        position: its position in the whole conversation, from 0.
        tokens: its estimated tokens.
        message: the message.
    """

    position: int
    tokens: int
    message: Message


@frozen
class ContextView:
    """The context of a session as its model sees it at this moment.

    The tokens are estimates of the size of the JSON: those of scripts without spaces may be twice as many. Tools and
    options that one turn alone has are not in it.

    Attributes:
        session_id: the session.
        model: its model.
        tokens: the estimated tokens of all parts.
        window: the model's context window in tokens; None if it is unknown.
        room: tokens of the window that a request may have, as compaction counts them; None if it is unknown.
        parts: the parts that are not empty, in the order of a request.
        tools: the tools that the model is offered.
        summary: the summary of the messages before the head; None before the first compaction.
        messages: the system prompt and the messages from the head on, with those of the running turn so far.
        takes: the kinds of attachments that its models take; None if this server does not have one of them.
    """

    session_id: str
    model: str
    tokens: int
    window: int | None
    room: int | None
    parts: tuple[ContextPart, ...]
    tools: tuple[ContextTool, ...]
    summary: str | None
    messages: tuple[SeenMessage, ...]
    takes: tuple[Kind, ...] | None = None


def lifecycle_of(record: SessionRecord, *, live: bool) -> Lifecycle:
    """Return the lifecycle of a session: archived, live (in memory) or stored."""
    if record.archived:
        return "archived"
    return "live" if live else "stored"


def waiting_call(wait: Wait) -> WaitingCall:
    """Return the call that a wait holds up, for the view of its turn."""
    return WaitingCall(wait.call_id, wait.name, wait.reason, wait.since, wait.child)


def pending_approval(wait: Wait) -> PendingApproval:
    """Return the call, or the question, that waits for a decision."""
    asked = wait.wait_id, wait.name, wait.args, wait.category
    return PendingApproval(*asked, wait.since, wait.until, wait.question_of, wait.may_have_run, wait.question)


def turn_of(record: SessionRecord, waits: Sequence[Wait], *, runs: bool) -> TurnView | None:
    """Return the turn that is stored open, for the views of its session; None if there is none.

    Args:
        record: the session.
        waits: the waits that nobody has answered.
        runs: whether a living process has the session.
    """
    kept = record.turn
    if kept is None:
        return None
    if kept.wakes is not None:
        of_turn = (wait for wait in waits if wait.reason != "background")
        return TurnView("waiting", kept.began, kept.resumed, tuple(map(waiting_call, of_turn)))
    return TurnView("running" if runs else "parked", kept.began, kept.resumed)


def listed(session_id: str, title: str | None, pending: PendingApproval) -> ListedApproval:
    """Return a call that waits for approval in a session, for the list of all of them."""
    return ListedApproval(session_id=session_id, title=title, **attrs.asdict(pending, recurse=False))


def view_of(
    record: SessionRecord,
    *,
    live: bool,
    active: bool,
    pending: tuple[PendingApproval, ...] = (),
    turn: TurnView | None = None,
    waits: Iterable[Wait] = (),
) -> SessionView:
    """Return the view of a session for `read`; of the `waits` of its calls it has those in the background."""
    state = SessionState(
        session_id=record.session_id,
        created_at=record.created_at,
        updated_at=record.updated_at,
        message_count=record.message_count,
        is_active=active,
        last_assistant_text=record.last_assistant_text,
        lifecycle=lifecycle_of(record, live=live),
        labels=record.labels,
        model=record.model,
        compactions=record.compactions,
        title=record.title,
        last_structured_output=record.last_structured_output,
        overrides=record.options.overrides,
        approvals=record.options.approvals,
        allowed_tools=record.allowed_tools,
        parent=record.parent,
        peer=record.options.peer,
        provider=record.options.provider,
        tenant=record.tenant,
        owner=record.owner,
        pending_approvals=pending,
        turn=turn,
        last_outcome=record.last_outcome,
        delegated_by=None if record.delegation is None else record.delegation.session_id,
        agent=None if record.agent is None else record.agent.ref,
        depth=0 if record.delegation is None else record.delegation.depth,
        background=tuple([waiting_call(wait) for wait in waits if wait.reason == "background"]),
    )
    return SessionView(state, Billing(record.usage.total_tokens, record.usage))


def summary_of(
    record: SessionRecord,
    *,
    live: bool,
    active: bool,
    pending: int = 0,
    node: str | None = None,
    turn: TurnView | None = None,
) -> SessionSummary:
    """Return a session's row in `list`. `node` is this process, if it is one: the row of a live session names it."""
    return SessionSummary(
        session_id=record.session_id,
        created_at=record.created_at,
        updated_at=record.updated_at,
        message_count=record.message_count,
        total_tokens=record.usage.total_tokens,
        is_active=active,
        lifecycle=lifecycle_of(record, live=live),
        labels=record.labels,
        model=record.model,
        title=record.title,
        tenant=record.tenant,
        owner=record.owner,
        pending_approvals=pending,
        node=node if live and not record.archived else None,
        turn=turn,
        last_outcome=record.last_outcome,
        delegated_by=None if record.delegation is None else record.delegation.session_id,
        agent=None if record.agent is None else record.agent.ref,
    )
