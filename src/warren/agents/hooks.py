"""`Hooks`: code of a program around turns, model calls, tool calls and compactions: it may refuse and change them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol, Self, TypeVar

import attrs

from warren.base.fields import encodable
from warren.base.values import define, frozen
from warren.conversation.attachments import Attachment
from warren.conversation.categories import Category, Decision
from warren.conversation.messages import AssistantMessage, Message, StopReason, TextBlock
from warren.conversation.options import ModelOptions
from warren.conversation.usage import NO_USAGE, Usage
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import ToolSpec

LONGEST_REASON: Final = 10_000
"""Characters that the reason of a refusal may have; the rest is left out."""
V_contra = TypeVar("V_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Denied(Exception):  # noqa: N818 - it is an answer first, and an exception for code deep inside of a hook
    """The word of a hook that something must not happen: return it, as `x.deny(reason)` makes it, or raise it.

    Attributes:
        reason: the reason, for the model or the caller.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: str = encodable(str(reason))[:LONGEST_REASON]


@frozen
class Asked:
    """The word of a hook that a person has to decide about a tool call, as `call.ask(question)` makes it.

    Attributes:
        question: the question for the approver; empty if the arguments say all.
    """

    question: str = ""


@frozen
class ToolOutcome:
    """What has become of a tool call.

    Attributes:
        text: the text for the model.
        is_error: whether it is an error.
        files: the files of the result, which are stored.
        ran: whether the tool has run, or may have; False if the call was refused.
    """

    text: str
    is_error: bool = False
    files: tuple[Attachment, ...] = ()
    ran: bool = True


@frozen
class TurnEnd:
    """The answer of a turn.

    Attributes:
        text: the text.
        stop_reason: why the model stopped.
        structured_output: the answer as data, if it has a schema; a hook cannot change it.
        usage: the tokens of the turn.
    """

    text: str
    stop_reason: StopReason = "end_turn"
    structured_output: Any = None
    usage: Usage = NO_USAGE


@define
class Marks:
    """What a hook has said about a value without returning it."""

    denied: Denied | None = None
    allowed: bool = False


@frozen
class Hooked:
    """What hooks surround; the values of all kinds have these.

    Attributes:
        session_id: the session.
        tenant: its tenant.
        owner: the principal that it belongs to.
        agent: the name of its agent; None if it has none.
        turn: the number of the turn in the session, from 1.
    """

    session_id: str
    tenant: str
    owner: str
    agent: str | None
    turn: int
    _marks: Marks = attrs.field(factory=Marks, kw_only=True, repr=False, eq=False)

    def deny(self, reason: str) -> Denied:
        """Return the word that this must not happen. It counts even if the hook forgets to return it.

        Args:
            reason: the reason: the model gets it as the result of a tool call, the caller as the error of a turn.
        """
        self._marks.denied = Denied(reason)
        return self._marks.denied


@frozen
class HookedTurn(Hooked):
    """A turn that is about to begin, or to go on.

    Attributes:
        prompt: the prompt.
        attachments: the files of the prompt.
        goes_on: whether it goes on, as it had waited or its process had ended: then its prompt is stored, and a change
            of it has no effect.
    """

    prompt: str = attrs.field(kw_only=True)
    attachments: tuple[Attachment, ...] = attrs.field(default=(), kw_only=True)
    goes_on: bool = attrs.field(default=False, kw_only=True)

    def with_prompt(self, prompt: str) -> Self:
        """Return the turn with another prompt, for `go`."""
        return attrs.evolve(self, prompt=prompt)

    def answer(self, text: str) -> TurnEnd:
        """Return an answer of the turn that the model has not given, in place of `go` or of what it returned."""
        return TurnEnd(text)


@frozen
class HookedRequest(Hooked):
    """A call of the model that is about to be made.

    Attributes:
        request: the request. Its messages are read-only, and follow the conversation: copy what is to be kept.
    """

    request: ModelRequest = attrs.field(kw_only=True)

    @property
    def messages(self) -> Sequence[Message]:
        """The messages, the oldest first, the system prompt at their head."""
        return self.request.messages

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools that the model may call."""
        return self.request.tools

    def changed(
        self,
        *,
        messages: Sequence[Message] | None = None,
        tools: Sequence[ToolSpec] | None = None,
        options: ModelOptions | None = None,
    ) -> Self:
        """Return the request with other messages, tools or options, for `go`. The conversation keeps its own."""
        changes: dict[str, Any] = {"messages": messages, "tools": tools, "options": options}
        given = {name: value for name, value in changes.items() if value is not None}
        return attrs.evolve(self, request=attrs.evolve(self.request, **given))

    def answer(self, text: str) -> ModelReply:
        """Return an answer that the model has not given, in place of `go` or of what it returned."""
        return ModelReply(AssistantMessage((TextBlock(text),), "end_turn"), NO_USAGE)


@frozen
class HookedCall(Hooked):
    """A tool call that is about to be made.

    Attributes:
        name: the name of the tool.
        args: the arguments.
        category: the kind of the tool.
        key: the idempotency key of the call, the same in each process; it does not follow changes of the arguments.
        call_id: the model's id of the call.
        given: the decision of a person that lets it run; None if nobody was asked.
        runs_again: whether the tool has run already, or may have: `go` returns its result if that is there.
    """

    name: str = attrs.field(kw_only=True)
    args: Mapping[str, Any] = attrs.field(kw_only=True)
    category: Category = attrs.field(kw_only=True)
    key: str = attrs.field(kw_only=True)
    call_id: str = attrs.field(kw_only=True)
    given: Decision | None = attrs.field(default=None, kw_only=True)
    runs_again: bool = attrs.field(default=False, kw_only=True)

    def with_args(self, args: Mapping[str, Any]) -> Self:
        """Return the call with other arguments, for `go`. They are checked as the model's are."""
        return attrs.evolve(self, args=args)

    def ask(self, question: str = "") -> Asked:
        """Return the word that a person has to decide, with a question for them; return it in place of `go`.

        The call waits for approval as by a gate. Then the hooks are called again with `given`, and the same word lets
        the call pass: a person decides about a call once.
        """
        return Asked(encodable(str(question))[:LONGEST_REASON])

    def allow(self) -> None:
        """Let the call run without the approval that a gate would ask for. A gate that refuses it is stronger."""
        self._marks.allowed = True

    def result(self, text: str, *, is_error: bool = False) -> ToolOutcome:
        """Return a result of the call, in place of `go` or of what it returned."""
        return ToolOutcome(text, is_error)


@frozen
class HookedCompaction(Hooked):
    """A summary that a model is about to write for a compaction.

    Attributes:
        messages: how many messages it is about.
        instructions: the instructions of the user for it; None if there are none.
    """

    messages: int = attrs.field(kw_only=True)
    instructions: str | None = attrs.field(default=None, kw_only=True)

    def with_instructions(self, instructions: str | None) -> Self:
        """Return the compaction with other instructions, for `go`."""
        return attrs.evolve(self, instructions=instructions)


class Go(Protocol[V_contra, R_co]):
    """Goes on with what a hook surrounds: with the next hook, and at last with the thing itself."""

    async def __call__(self, changed: V_contra | None = None, /) -> R_co:
        """Go on with a changed value, or with the same one, and return what came of it.

        A hook may call it once, and only while it runs.
        """


class Hooks:
    """Code around what a session does. Override the methods that you need: the others are not called.

    Each method with a `go` surrounds one thing: it may change the value before it calls `go`, leave the thing out by
    `x.deny(reason)`, and change what `go` has returned. Several hooks are nested: those of the runtime, then those of
    the agent, then those of the session; the first is the outermost.

    A hook may be called more than once for one thing, and its last call counts. In a durable session a call that waits
    (for approval, for a child session, for a result from outside) needs no task: `go` is cancelled, and the hooks are
    called again once the answer is there. After a crash they are called again too. So make their own effects
    idempotent, under `call.key`.

    An error of a hook, one that takes too long, and a return value of a wrong type are failures of the hook: then the
    thing is denied, unless `on_failure` says `allow`. Trap: a hook that blocks the thread stops the runtime, and no
    time limit helps. Use trio in it, and `trio.to_thread.run_sync` for code that blocks.

    Attributes:
        timeout: seconds that a method may take; the clock stands still while `go` runs.
        on_failure: what becomes of the thing if the hook fails: `deny`, or `allow` as if the hook were not there.
        holds: whether the pieces of an answer are shown only once `on_model` has returned, for hooks that may change
            or refuse it.
    """

    timeout: float = 30.0
    on_failure: Literal["deny", "allow"] = "deny"
    holds: bool = False

    async def on_turn(self, turn: HookedTurn, go: Go[HookedTurn, TurnEnd]) -> TurnEnd | Denied:
        """Surround a turn. A prompt that is denied before `go` does not enter the conversation."""
        return await go(turn)

    async def on_model(self, request: HookedRequest, go: Go[HookedRequest, ModelReply]) -> ModelReply | Denied:
        """Surround a call of the model. To deny it ends the turn."""
        return await go(request)

    async def on_tool(self, call: HookedCall, go: Go[HookedCall, ToolOutcome]) -> ToolOutcome | Denied | Asked:
        """Surround a tool call. One that is denied before `go` does not run, and the model gets the reason."""
        return await go(call)

    async def on_compaction(self, compaction: HookedCompaction, go: Go[HookedCompaction, str]) -> str | Denied:
        """Surround the summary of a compaction. If it is denied, the context stays, and the turn goes on."""
        return await go(compaction)


def name_of(hook: Hooks) -> str:
    """Return the name of a hook, for messages."""
    return type(hook).__qualname__
