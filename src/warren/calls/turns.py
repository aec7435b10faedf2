"""Calls that run turns, end them, and reach into them; inputs that wait for them."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, get_args

import attrs

from warren.agents.agent import check_hooks
from warren.agents.hooks import Hooks
from warren.base.fields import (
    CAN_CONFLICT,
    FORM,
    IN_PROCESS,
    AtMost,
    Between,
    FieldValueError,
    OneOf,
    is_flag,
    is_json,
    is_object,
    is_text,
    is_whole,
    not_blank,
    optional,
)
from warren.base.values import frozen, value
from warren.calls.answers import Completed, Decided, Injected, Inputs, Interrupted, PeerMessageSent, Peers, Withdrawn
from warren.calls.base import MAX_OFFSET, MAX_PAGE, Call, Facts, SessionRef
from warren.calls.streams import OnBegin, OnEvent
from warren.calls.typed import ask_for
from warren.compaction.policy import Compactor, NewCompactor
from warren.conversation.categories import Answer
from warren.conversation.completion import CompletionToken, is_completion_token
from warren.conversation.inputs import Input
from warren.conversation.messages import REFUSED
from warren.conversation.options import MAX_KEY, SessionRequest, TurnRequest
from warren.conversation.peers import PeerInfo, PeerKind
from warren.conversation.records import CompactionEntry
from warren.conversation.views import ApprovalPage, TurnResult
from warren.models.tools import Tool
from warren.reports.audit import Action


def _are_tools(_instance: object, attribute: "attrs.Attribute[Any]", value: Any, *, names: bool = False) -> None:
    # The check of an abstract class and a union that is made anew are slow, and mostly it is the empty tuple.
    if type(value) is not tuple and (not isinstance(value, Sequence) or isinstance(value, (str, bytes))):
        raise FieldValueError(attribute.name, "must be a list")
    for index, each in enumerate(value):
        if not isinstance(each, (str, Tool) if names else Tool):
            problem = "must be a tool" + (" or the name of one" if names else "")
            raise FieldValueError(f"{attribute.name}[{index}]", problem)


def _are_tools_or_names(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value is not None:
        _are_tools(instance, attribute, value, names=True)


def _are_hooks(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value != ():
        check_hooks(tuple(value) if isinstance(value, list) else value, attribute.name)


def _is_callable(_instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value is not None and not callable(value):
        raise FieldValueError(attribute.name, "must be callable")


def _not_own(_request: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if value == REFUSED:  # what it says would stand for tool calls
        raise FieldValueError(attribute.name, f"must not be {REFUSED!r}, which is the runtime's own")


def _is_result(request: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    is_json(request, attribute, {attribute.name: value})


@frozen
class SessionCall(SessionRequest, Call[TurnResult]):
    """The arguments of `SessionService.create_session`: a request, and objects that only code in the same process has.

    Attributes:
        tools: names of tools, as `SessionOptions` says, or tools of this session's own, which do not outlive the
            process; None offers all that the runtime has.
        compactor: a compaction strategy for this session alone, as `Config.compactor` is for all; it does not outlive
            the process either, and forks of the session have it too.
        hooks: hooks around what this session does, within those of its agent; the first is the outermost. They do not
            outlive the process either, and forks of the session have them too: what has to guard it belongs on its
            agent.
        extra_tools: tools for the first turn, see `TurnCall`.
        output_type: the type of the answers, see `TurnCall`; it holds for the whole session.
        on_event: gets the events of the first turn, as `TurnCall` says.
        on_begin: gets a reader of them, as `TurnCall` says.
    """

    facts: ClassVar[Facts] = Facts(
        name="session/create",
        doc="Create a session and run its first turn, if there is a prompt.",
        scope="session:write",
        at="any node",
        begins=True,
        repeatable=True,
        audited="create",
        params=SessionRequest,
    )
    tools: Sequence[str | Tool] | None = attrs.field(  # type: ignore[assignment] # a host may bring tools, not only names
        default=None, validator=_are_tools_or_names, kw_only=True, metadata={FORM: tuple[str, ...] | None}
    )
    compactor: Compactor | NewCompactor | None = attrs.field(default=None, kw_only=True, metadata=IN_PROCESS)
    hooks: Sequence[Hooks] = attrs.field(default=(), validator=_are_hooks, kw_only=True, metadata=IN_PROCESS)
    extra_tools: Sequence[Tool] = attrs.field(default=(), validator=_are_tools, kw_only=True, metadata=IN_PROCESS)
    output_type: Any = attrs.field(default=None, validator=ask_for, kw_only=True, metadata=IN_PROCESS)
    on_event: OnEvent | None = attrs.field(default=None, validator=_is_callable, kw_only=True, metadata=IN_PROCESS)
    on_begin: OnBegin | None = attrs.field(default=None, validator=_is_callable, kw_only=True, metadata=IN_PROCESS)


@value
class TurnCall(TurnRequest, Call[TurnResult]):
    """The arguments of `SessionService.start_turn`: a request, and objects that only code in the same process has.

    Attributes:
        extra_tools: offered besides the session's own, unless the session was created with a list of names and theirs
            are not in it; one of a known name takes its place.
        output_type: the type of the answer, in place of an `output_schema`: a class of attrs, pydantic or msgspec, a
            dataclass, a TypedDict, or a type such as `list[int]`. The `output` of the result is an instance of it. What
            its own validators refuse goes back to the model, as what its schema refuses does.
        on_event: gets the events of the turn, or from the one on with which the running turn takes the prompt: all of
            them before the call returns. If the call is cancelled, the turn runs on, and so does its callback.
        on_begin: gets a reader of these events instead, for a caller that reads at a pace of its own. The result says
            up to which event the turn reaches. If the call is cancelled before, it is not called any more.
    """

    facts: ClassVar[Facts] = Facts(
        name="turn/start",
        doc="Run a turn; the answer comes after its last event.",
        scope="session:write",
        at="session",
        begins=True,
        finds=True,
        params=TurnRequest,
    )
    extra_tools: Sequence[Tool] = attrs.field(default=(), validator=_are_tools, kw_only=True, metadata=IN_PROCESS)
    output_type: Any = attrs.field(default=None, validator=ask_for, kw_only=True, metadata=IN_PROCESS)
    on_event: OnEvent | None = attrs.field(default=None, validator=_is_callable, kw_only=True, metadata=IN_PROCESS)
    on_begin: OnBegin | None = attrs.field(default=None, validator=_is_callable, kw_only=True, metadata=IN_PROCESS)


@frozen
class CompactRequest(SessionRef, Call[CompactionEntry]):
    """A compaction to run now.

    Attributes:
        instructions: more text for the model that writes the summary.
    """

    facts: ClassVar[Facts] = Facts(
        name="session/compact",
        doc="Summarise the context of a session now.",
        scope="session:write",
        at="session",
        begins=True,
        needs="session-compaction",
    )
    instructions: str | None = attrs.field(default=None, validator=optional(is_text), kw_only=True)


@frozen
class InterruptRequest(SessionRef, Call[None]):
    """A turn to end."""

    facts: ClassVar[Facts] = Facts(
        name="turn/interrupt",
        doc="End the running turn; the answer comes when it has ended.",
        scope="session:write",
        at="session",
        finds=True,
        urgent=True,
        audited="interrupt",
        wraps=Interrupted,
    )


@frozen
class WaitRequest(SessionRef, Call[TurnResult]):
    """A turn to wait for.

    Attributes:
        extra_tools: tools of a caller that has come back, for the calls of the turn that wait for it.
    """

    facts: ClassVar[Facts] = Facts(
        name="turn/wait",
        doc="Wait for the end of the running turn, or of the next one if inputs wait; a child keeps that of its work.",
        scope="session:read",
        at="session",
        finds=True,
        repeatable=True,
        costly=True,
        params=SessionRef,
    )
    extra_tools: Sequence[Tool] = attrs.field(default=(), validator=_are_tools, kw_only=True, metadata=IN_PROCESS)


@frozen
class ApproveRequest(SessionRef, Call[None]):
    """The answer to a tool call that waits for approval.

    Attributes:
        session_id: the session whose turn runs.
        call_id: id of the call, from its event `tool_approval_requested`.
        decision: whether the tool runs.
        reason: text that the model reads if the call is denied.
        remember: whether later calls of the same tool in the session run without approval. It goes with `allow` alone,
            and has no effect for a question of a running call, and for a call that may have run.
    """

    facts: ClassVar[Facts] = Facts(
        name="tool/approve",
        doc="Allow or deny a tool call that waits for approval.",
        scope="session:write",
        at="session",
        finds=True,
        urgent=True,
        wraps=Decided,
    )
    call_id: str = attrs.field(validator=is_text)
    decision: Answer = attrs.field(validator=OneOf(get_args(Answer)))
    reason: str | None = attrs.field(default=None, validator=optional(is_text), kw_only=True)
    remember: bool = attrs.field(default=False, validator=is_flag, kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Refuse to remember a denial. Raises FieldValueError."""
        if self.remember and self.decision == "deny":
            raise FieldValueError("remember", "is for the decision allow")

    @property
    def audited(self) -> Action:
        """The action that the audit has of the call if it is refused: an answer is audited by its decision."""
        return "approve" if self.decision == "allow" else "deny"


@frozen(kw_only=True)
class ApprovalsRequest(Call[ApprovalPage]):
    """A page of the tool calls that wait for approval.

    Attributes:
        offset: number of calls to skip.
        limit: the most calls to return.
    """

    facts: ClassVar[Facts] = Facts(
        name="approvals/list",
        doc="List the tool calls and questions of all sessions that wait for approval, the oldest first.",
        scope="session:read",
        repeatable=True,
        bulky=True,
    )
    offset: int = attrs.field(default=0, validator=[is_whole, Between(0, MAX_OFFSET)])
    limit: int = attrs.field(default=50, validator=[is_whole, Between(1, MAX_PAGE)])


@frozen
class CompleteRequest(Call[None]):
    """The result of a tool call that comes from outside of the runtime.

    Attributes:
        token: the completion token of the call, as its tool got it.
        result: the result for the model: a text as it is, anything else as JSON.
        is_error: whether the work failed, and the result says why.
    """

    facts: ClassVar[Facts] = Facts(
        name="tool/complete",
        doc="Give the result of a tool call that waits for one from outside.",
        scope="session:write",
        at="session",
        repeatable=True,
        urgent=True,
        audited="complete",
        wraps=Completed,
    )
    token: str = attrs.field(validator=[is_text, is_completion_token], repr=False, metadata=CAN_CONFLICT)
    result: Any = attrs.field(validator=_is_result)
    is_error: bool = attrs.field(default=False, validator=is_flag, kw_only=True)

    @property
    def session_id(self) -> str:
        """The session of the call, as the token says."""
        return CompletionToken.read(self.token).session_id


@frozen
class ContextRequest(SessionRef, Call[bool]):
    """A text for the model of a session that is no prompt.

    Attributes:
        text: the text; it enters the running turn at its next step, or else the next turn.
        source: name of the sender, which the model reads; null is the host.
        idempotency_key: of your own: a text that is sent again under the same key is not taken twice.
    """

    facts: ClassVar[Facts] = Facts(
        name="session/inject_context",
        doc="Give a session's model a text that is no prompt; no turn begins.",
        scope="session:write",
        at="session or store",
        finds=True,
        repeatable=True,
        wraps=Injected,
    )
    text: str = attrs.field(validator=[is_text, not_blank])
    source: str | None = attrs.field(default=None, validator=optional(is_text, not_blank, _not_own), kw_only=True)
    idempotency_key: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank, AtMost(MAX_KEY)), kw_only=True, metadata=CAN_CONFLICT
    )

    def answer(self, _result: bool) -> Injected:  # noqa: FBT001 - the result of the call
        """Return the answer on the wire, which is the same for a text that was there before."""
        return Injected(injected=True)


@frozen
class InputsRequest(SessionRef, Call[tuple[Input, ...]]):
    """The inputs of a session that wait."""

    facts: ClassVar[Facts] = Facts(
        name="session/inputs",
        doc="Show the inputs that wait in a session's inbox, oldest first.",
        scope="session:read",
        at="session or store",
        finds=True,
        repeatable=True,
        bulky=True,
        wraps=Inputs,
    )


@frozen
class WithdrawRequest(SessionRef, Call[None]):
    """An input to take back.

    Attributes:
        input_id: id of the input, as `session/inputs` lists it.
    """

    facts: ClassVar[Facts] = Facts(
        name="session/withdraw",
        doc="Take back an input that waits; a turn that has taken it is not touched.",
        scope="session:write",
        at="session",
        finds=True,
        wraps=Withdrawn,
    )
    input_id: str = attrs.field(validator=is_text)


@frozen
class PeerMessage(Call[str]):
    """A message of one session to another. Raises FieldValueError, which names the field, if a value is bad.

    Attributes:
        session_id: the sender.
        to: name of the peer that gets the message.
        body: the text: of a request the task, of a response the result.
        kind: a `request` expects a `response`, a `message` does not.
        params: of a request: more data, as JSON.
        request_id: of a response: id of the request that it answers.
        status: of a response: such as `ok`, `refused`, `failed`.
    """

    facts: ClassVar[Facts] = Facts(
        name="peer/send",
        doc="Send a message to another session, in the name of a session.",
        scope="session:write",
        finds=True,
        wraps=PeerMessageSent,
    )
    session_id: str = attrs.field(validator=is_text)
    to: str = attrs.field(validator=is_text)
    body: str = attrs.field(validator=[is_text, not_blank])
    kind: PeerKind = attrs.field(default="message", validator=OneOf(get_args(PeerKind)), kw_only=True)
    params: Mapping[str, Any] | None = attrs.field(default=None, validator=[is_object, is_json], kw_only=True)
    request_id: str | None = attrs.field(
        default=None, validator=optional(is_text, not_blank), kw_only=True, metadata=CAN_CONFLICT
    )
    status: str | None = attrs.field(default=None, validator=optional(is_text, not_blank), kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Refuse a response without its required fields, and fields that do not belong to the kind."""
        for name in ("request_id", "status"):
            if (self.kind == "response") != (getattr(self, name) is not None):
                problem = "is required for a response" if self.kind == "response" else "is for a response"
                raise FieldValueError(name, problem)
        if self.params is not None and self.kind != "request":
            raise FieldValueError("params", "is for a request")


@frozen
class PeersRequest(SessionRef, Call[tuple[PeerInfo, ...]]):
    """The peers of a session."""

    facts: ClassVar[Facts] = Facts(
        name="peer/list",
        doc="Show the peers that a session trusts, and whether each can be reached.",
        scope="session:read",
        finds=True,
        repeatable=True,
        wraps=Peers,
    )
