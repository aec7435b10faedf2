"""What each method takes: one attrs class a method, checked field by field."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

import attrs

from warren.fields import AtMost, Between, FieldValueError, fits, not_blank, not_negative
from warren.memory import MAX_HITS
from warren.options import MAX_KEY, MAX_TITLE, SessionRequest, TurnRequest
from warren.peers import PeerKind, PeerMessage
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
class CreateSession(SessionRequest):
    """Of `session/create`."""

    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        **SWITCHED,
        "host_mode": "peer.keep_alive",
        "keep_alive": "peer.keep_alive",
        "comms_name": "peer.name",
    }


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
class StartTurn(TurnRequest):
    """Of `turn/start`: the options hold for this turn alone, null takes the session's."""

    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        **SWITCHED,
        "host_mode": "peer.keep_alive of session/create",
        "keep_alive": "peer.keep_alive of session/create",
    }


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
