"""What each method takes: one attrs class a method, checked field by field."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

import attrs

from warren.budget import Budget
from warren.categories import Gates, Switches
from warren.compaction.config import CompactionConfig
from warren.fields import Between, FieldValueError, fits, not_blank, not_negative, positive
from warren.inputs import MAX_KEY, TurnMode
from warren.memory import MAX_HITS
from warren.peers import Peer, PeerKind, PeerMessage
from warren.records import MAX_TITLE
from warren.structured.output import MAX_RETRIES, RETRIES
from warren.tools import ToolSpec

MAX_PAGE: Final = 1_000
MAX_OFFSET: Final = 2**53
"""Beyond it a JSON client cannot count exactly."""
MAX_TOOLS: Final = 128
"""Tools that one client may register: no provider takes more in one request."""
SWITCHED: Final[Mapping[str, str]] = {
    f"{verb}_{kind}": f"overrides.{kind}" for verb in ("override", "enable") for kind in ("builtins", "shell", "memory")
}
"""Fields of Meerkat's, by which tools are switched there, and their names here."""
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@attrs.frozen
class AtMost:
    """Refuse texts of more than `characters`; None passes."""

    characters: int

    def __call__(self, _instance: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
        """Raise FieldValueError that names the field and the bound."""
        if value is not None and len(value) > self.characters:
            raise FieldValueError(attribute.name, f"must have at most {self.characters} characters")


def _tools(_instance: object, attribute: "attrs.Attribute[Any]", value: tuple[ToolSpec, ...]) -> None:
    if len(value) > MAX_TOOLS:
        raise FieldValueError(attribute.name, f"must be at most {MAX_TOOLS} tools")
    for index, spec in enumerate(value):
        if not TOOL_NAME.fullmatch(spec.name):
            problem = "must be 1 to 64 letters, digits, _ or -, as model providers take it"
            raise FieldValueError(f"{attribute.name}[{index}].name", problem)
        if spec.name in {earlier.name for earlier in value[:index]}:
            raise FieldValueError(f"{attribute.name}[{index}].name", "is there twice")


@attrs.frozen
class NoParams:
    """Of a method that takes none."""


@attrs.frozen
class Initialize:
    """Of `initialize`.

    Attributes:
        client_info: what the client says of itself, `{name, version, …}`.
    """

    client_info: Mapping[str, Any] | None = None


@attrs.frozen
class SessionParams:
    """Of a method that names one session."""

    session_id: str


@attrs.frozen
class CreateSession:
    """Of `session/create`.

    Attributes:
        prompt: what the user says; null creates the session without a turn.
        model: the model to call; null takes the runtime's.
        provider: its provider; null takes the runtime's (`--provider`), and without one the model's name decides.
        system_prompt: instructions for the model; null takes the runtime's.
        max_tokens: cap of one answer.
        labels: marks of your own, for `session/list`.
        title: what people call it; null takes the first words of its first prompt.
        budget: limits of the session over all its turns.
        compaction: how its context is compacted; null takes the runtime's way.
        tools: names of the tools that it may use; null offers all that there are.
        overrides: which kinds of tools it is offered; null leaves that to the runtime.
        approvals: which kinds of tools wait for `tool/approve`, besides those that do in the whole runtime.
        output_schema: JSON schema that the answer of every turn is to fit, as `structured_output`.
        structured_output_retries: how often an answer that does not fit it is tried again.
        peer: its name among other sessions, whose messages it takes, and whether these begin turns; null has none.
        idempotency_key: of your own: a request that is sent again under the same key creates no second session, and has
            the result of the first; other parameters under a key that was used are refused.
    """

    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        **SWITCHED,
        "host_mode": "peer.keep_alive",
        "keep_alive": "peer.keep_alive",
        "comms_name": "peer.name",
    }

    prompt: str | None = attrs.field(validator=not_blank)
    model: str | None = attrs.field(default=None, validator=not_blank)
    provider: str | None = attrs.field(default=None, validator=not_blank)
    system_prompt: str | None = None
    max_tokens: int | None = attrs.field(default=None, validator=[positive, fits])
    labels: Mapping[str, str] | None = None
    title: str | None = attrs.field(default=None, validator=[not_blank, AtMost(MAX_TITLE)])
    budget: Budget | None = None
    compaction: CompactionConfig | None = None
    tools: tuple[str, ...] | None = None
    overrides: Switches | None = None
    approvals: Gates | None = None
    output_schema: Mapping[str, Any] | None = None
    structured_output_retries: int = attrs.field(default=RETRIES, validator=Between(0, MAX_RETRIES))
    peer: Peer | None = None
    idempotency_key: str | None = attrs.field(default=None, validator=[not_blank, AtMost(MAX_KEY)])


@attrs.frozen
class ListSessions:
    """Of `session/list`.

    Attributes:
        offset: rows to pass over.
        limit: rows to show.
        labels: only sessions that carry all of these.
        include_archived: whether archived ones are shown too.
    """

    offset: int = attrs.field(default=0, validator=Between(0, MAX_OFFSET))
    limit: int = attrs.field(default=50, validator=Between(1, MAX_PAGE))
    labels: Mapping[str, str] | None = None
    include_archived: bool = False


@attrs.frozen
class ReadHistory:
    """Of `session/history`.

    Attributes:
        session_id: the session.
        offset: messages to pass over, from the oldest on.
        limit: messages to show.
    """

    session_id: str
    offset: int = attrs.field(default=0, validator=Between(0, MAX_OFFSET))
    limit: int = attrs.field(default=100, validator=Between(1, MAX_PAGE))


@attrs.frozen
class CompactSession:
    """Of `session/compact`.

    Attributes:
        session_id: the session.
        instructions: what the summary has to mind, for the model.
    """

    session_id: str
    instructions: str | None = None


@attrs.frozen
class ForkSession:
    """Of `session/fork`.

    Attributes:
        session_id: the session whose conversation is taken over.
        at: how many of its messages; null takes those of all its finished turns.
        labels: marks of the fork's own, besides those of the session.
        title: the fork's own; null takes the session's.
    """

    session_id: str
    at: int | None = attrs.field(default=None, validator=[not_negative, fits])
    labels: Mapping[str, str] | None = None
    title: str | None = attrs.field(default=None, validator=[not_blank, AtMost(MAX_TITLE)])


@attrs.frozen
class LabelSession:
    """Of `session/label`.

    Attributes:
        session_id: the session.
        labels: marks to set; null takes one away, those that are not named stay.
        title: what people call it; null leaves it as it is.
    """

    session_id: str
    labels: Mapping[str, str | None] | None = None
    title: str | None = attrs.field(default=None, validator=[not_blank, AtMost(MAX_TITLE)])


@attrs.frozen
class Subscribe:
    """Of `session/subscribe`.

    Attributes:
        session_id: the session.
        after_seq: begin in the log after the event of this number, 0 with the first one; null begins with the next.
    """

    session_id: str
    after_seq: int | None = attrs.field(default=None, validator=[not_negative, fits])


@attrs.frozen
class StartTurn:
    """Of `turn/start`: the options hold for this turn alone, null takes the session's.

    Attributes:
        session_id: the session.
        prompt: what the user says.
        model: the model to call.
        provider: its provider; null takes the session's, or the runtime's (`--provider`) if the turn names a model.
        max_tokens: cap of one answer.
        budget: limits of this turn.
        overrides: which kinds of tools it is offered; null leaves that to the session.
        approvals: which kinds of tools wait for `tool/approve`, besides those that do anyway.
        output_schema: JSON schema that the answer is to fit, as `structured_output`.
        structured_output_retries: how often an answer that does not fit it is tried again.
        mode: while another turn runs, `busy` fails at once, `queue` waits for its end and then begins a turn, and
            `steer` enters it at its next step; the result is that of the turn which takes the prompt.
        idempotency_key: of your own, for the modes that wait: what is sent again under the same key is not taken twice,
            and has the result of the first.
    """

    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        **SWITCHED,
        "host_mode": "peer.keep_alive of session/create",
        "keep_alive": "peer.keep_alive of session/create",
    }

    session_id: str
    prompt: str = attrs.field(validator=not_blank)
    model: str | None = attrs.field(default=None, validator=not_blank)
    provider: str | None = attrs.field(default=None, validator=not_blank)
    max_tokens: int | None = attrs.field(default=None, validator=[positive, fits])
    budget: Budget | None = None
    overrides: Switches | None = None
    approvals: Gates | None = None
    output_schema: Mapping[str, Any] | None = None
    structured_output_retries: int | None = attrs.field(default=None, validator=Between(0, MAX_RETRIES))
    mode: TurnMode = "busy"
    idempotency_key: str | None = attrs.field(default=None, validator=[not_blank, AtMost(MAX_KEY)])

    def __attrs_post_init__(self) -> None:
        """Refuse a key where nothing waits. Raises FieldValueError."""
        if self.mode == "busy" and self.idempotency_key is not None:
            raise FieldValueError("idempotency_key", "is for the modes queue and steer")


@attrs.frozen
class InjectContext:
    """Of `session/inject_context`.

    Attributes:
        session_id: the session.
        text: what its model is to know; it enters the running turn at its next step, or waits for the next turn.
        source: who says it, where that is worth knowing.
        idempotency_key: of your own: what is sent again under the same key is not taken twice.
    """

    session_id: str
    text: str = attrs.field(validator=not_blank)
    source: str | None = attrs.field(default=None, validator=not_blank)
    idempotency_key: str | None = attrs.field(default=None, validator=[not_blank, AtMost(MAX_KEY)])


@attrs.frozen
class WithdrawInput:
    """Of `session/withdraw`.

    Attributes:
        session_id: the session.
        input_id: what waits, as `session/inputs` names it.
    """

    session_id: str
    input_id: str


@attrs.frozen
class SendToPeer:
    """Of `peer/send`.

    Attributes:
        session_id: the session in whose name it is said.
        to: the peer's name.
        kind: a `request` wants a `response`, a `message` does not.
        body: the words; of a request what is wanted, of a response its result.
        params: of a request: data that it needs.
        request_id: of a response: the request that it answers.
        status: of a response: such as `ok`, `refused`, `failed`.
    """

    session_id: str
    to: str
    body: str = attrs.field(validator=not_blank)
    kind: PeerKind = "message"
    params: Mapping[str, Any] | None = None
    request_id: str | None = attrs.field(default=None, validator=not_blank)
    status: str | None = attrs.field(default=None, validator=not_blank)

    def __attrs_post_init__(self) -> None:
        """Refuse what is no message. Raises FieldValueError."""
        self.message()

    def message(self) -> PeerMessage:
        """Return the message."""
        return PeerMessage(self.kind, self.body, self.request_id, self.status, self.params)


@attrs.frozen
class ApproveTool:
    """Of `tool/approve`.

    Attributes:
        session_id: the session whose turn runs.
        call_id: the call that waits, as `tool_approval_requested` named it.
        decision: whether it runs.
        reason: why; the model is told.
    """

    session_id: str
    call_id: str
    decision: Literal["allow", "deny"]
    reason: str | None = None


@attrs.frozen
class SearchMemory:
    """Of `memory/search`.

    Attributes:
        query: what to look for, in words.
        session_id: the session whose memory is searched.
        scope: that of one session, or of all.
        limit: hits to show, best first.
    """

    query: str = attrs.field(validator=not_blank)
    session_id: str | None = None
    scope: Literal["session", "project"] = "session"
    limit: int = attrs.field(default=5, validator=Between(1, MAX_HITS))


@attrs.frozen
class RegisterTools:
    """Of `tools/register`: tools that the client runs itself, each with the JSON schema of its arguments."""

    tools: tuple[ToolSpec, ...] = attrs.field(validator=_tools)
