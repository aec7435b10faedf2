"""Every error that Warren raises on purpose: one class for each code, their causes, and one table of numbers.

The family is closed: a surface that knows this module knows every error that can reach it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Final, Literal, Self, TypedDict, Unpack

import attrs

from warren.base.values import frozen


class ErrorCode(StrEnum):
    """The stable names of the errors. They are part of the contract and the same on every surface."""

    SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
    SESSION_BUSY = "SESSION_BUSY"
    SESSION_PERSISTENCE_DISABLED = "SESSION_PERSISTENCE_DISABLED"
    SESSION_COMPACTION_DISABLED = "SESSION_COMPACTION_DISABLED"
    SESSION_NOT_RUNNING = "SESSION_NOT_RUNNING"
    SESSION_STORE_ERROR = "SESSION_STORE_ERROR"
    SESSION_MEMORY_DISABLED = "SESSION_MEMORY_DISABLED"
    CAPACITY_EXCEEDED = "CAPACITY_EXCEEDED"
    PROVIDER_ERROR = "PROVIDER_ERROR"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    AGENT_ERROR = "AGENT_ERROR"
    INVALID_PARAMS = "INVALID_PARAMS"
    PERMISSION_DENIED = "PERMISSION_DENIED"


MAX_MESSAGE: Final = 1_000
"""Characters of an error's message. A message may quote its client, so without a bound it could be a book."""
MAX_NAME: Final = 200
"""Characters of a path or an id in an error."""

SessionNotFoundCause = Literal["archived", "retired"]
InvalidParamsCause = Literal["settled"]
StoreCause = Literal[
    "cannot_open",
    "closed",
    "conflict",
    "corrupt",
    "crash",
    "database_error",
    "disk_full",
    "exists",
    "index_not_built",
    "io_error",
    "key_used",
    "lease_lost",
    "leased",
    "locked",
    "missing",
    "newer_schema",
    "not_a_database",
    "not_a_store",
    "out_of_memory",
    "outcome_unknown",
    "permission",
    "read_only",
    "timeout",
    "too_big",
    "unreachable",
    "unstorable",
]
CapacityCause = Literal[
    "batch",
    "children",
    "inbox_full",
    "mailbox_full",
    "max_connections",
    "max_in_flight",
    "max_subscriptions",
    "max_tools",
    "memory",
    "page",
    "process_share",
    "store_check",
    "tenant_connections",
    "tenant_schedules",
    "tenant_triggers",
    "tenant_webhooks",
    "tenant_running_turns",
    "tenant_sessions",
    "tenant_share",
    "tenant_stored_bytes",
    "tenant_tokens_per_day",
    "tenant_turns_per_minute",
    "token_running_turns",
    "token_sessions",
    "token_share",
    "token_turns_per_minute",
    "unread",
    "uploads",
]
ProviderCause = Literal[
    "answer_cut",
    "bad_address",
    "bad_embedding",
    "bad_request",
    "bad_response",
    "certificate",
    "conflict",
    "connection",
    "content_filter",
    "context_length",
    "empty_answer",
    "forbidden",
    "not_found",
    "overloaded",
    "provider_bug",
    "quota",
    "rate_limited",
    "script_ended",
    "scripted",
    "server_error",
    "stream_broken",
    "timeout",
    "too_large",
    "too_long",
    "unauthorized",
]
BudgetCause = Literal["tokens", "time", "tool_calls", "steps", "cost", "repeated_calls"]
AgentCause = Literal[
    "agent",
    "agent_missing",
    "cancelled",
    "compaction_failed",
    "compactor",
    "connection_lost",
    "crash",
    "denied",
    "hook",
    "internal",
    "interrupt_timeout",
    "not_owner",
    "outcome_unknown",
    "shutting_down",
    "structured_output",
    "system",
    "unreachable",
]


def _clip(text: str, most: int) -> str:
    """Return a text of at most `most` characters. A longer one loses its middle, as its end has the remedy."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2) + 1 :]}"


@frozen
class Numbers:
    """The numbers of one code on the surfaces that have numbers.

    Attributes:
        jsonrpc: `error.code` over JSON-RPC.
        http: the status over HTTP.
        exit: the exit code of the command line.
        acp: `error.code` over ACP; None if ACP shows no error, but a stop reason or nothing.
    """

    jsonrpc: int
    http: int
    exit: int
    acp: int | None


NUMBERS: Mapping[ErrorCode, Numbers] = {
    ErrorCode.SESSION_NOT_FOUND: Numbers(-32001, 404, 1, -32002),
    ErrorCode.SESSION_BUSY: Numbers(-32002, 409, 1, -32600),
    ErrorCode.SESSION_PERSISTENCE_DISABLED: Numbers(-32003, 501, 1, -32601),
    ErrorCode.SESSION_COMPACTION_DISABLED: Numbers(-32004, 501, 1, -32602),
    ErrorCode.SESSION_NOT_RUNNING: Numbers(-32005, 409, 1, None),
    ErrorCode.SESSION_STORE_ERROR: Numbers(-32006, 500, 1, -32603),
    ErrorCode.SESSION_MEMORY_DISABLED: Numbers(-32007, 501, 1, -32602),
    ErrorCode.CAPACITY_EXCEEDED: Numbers(-32008, 503, 1, -32603),
    ErrorCode.PROVIDER_ERROR: Numbers(-32010, 502, 1, -32603),
    ErrorCode.BUDGET_EXHAUSTED: Numbers(-32011, 429, 2, None),
    ErrorCode.AGENT_ERROR: Numbers(-32000, 500, 1, -32603),
    ErrorCode.INVALID_PARAMS: Numbers(-32602, 422, 2, -32602),
    ErrorCode.PERMISSION_DENIED: Numbers(-32009, 403, 1, -32603),
}


LASTING: Final[frozenset[StoreCause]] = frozenset(
    {
        *("cannot_open", "closed", "corrupt", "crash", "database_error", "exists", "missing", "newer_schema"),
        *("not_a_database", "not_a_store", "outcome_unknown", "permission", "timeout", "too_big", "unstorable"),
    }
)
"""Causes of the store's errors that do not pass by themselves, or after which a repetition may do the same twice."""
UNKNOWN: Final = frozenset({"connection_lost", "crash", "outcome_unknown"})
"""Causes of errors after which nobody knows whether the request was carried out."""
FAULT: Final = 500
BUSY: Final = 503


class _Options(TypedDict, total=False):
    """The arguments that every error takes besides its message and its cause."""

    session_id: str | None
    retryable: bool | None
    details: Mapping[str, Any] | None


class WarrenError(Exception):
    """The base class of every error that Warren raises on purpose.

    Each class with causes has their names as the type of its `cause`, and `docs/errors.md` explains them. Trap: an
    error that a newer server sent, or a provider of your own raised, may have a cause that is not listed.

    Args:
        message: one sentence for a person: the problem, the value, and the remedy. It is cut to `MAX_MESSAGE`
            characters.
        session_id: the session that the error is about.
        cause: the name of the reason.
        retryable: whether the same request may succeed later; None takes the class's `retryable_by_nature`.
        details: more data for programs, JSON-compatible.

    Attributes:
        code: the stable code (class attribute).
        message: one sentence for a person.
        session_id: the session that the error is about, if there is one. The error of a failed first turn names its
            new session here.
        cause: a finer reason than the code, for programs; None if the code says it all.
        retryable: whether the same request may succeed later without a change.
        details: more data for programs, JSON-compatible.
    """

    code: ClassVar[ErrorCode]
    retryable_by_nature: ClassVar[bool] = False
    message: str
    session_id: str | None
    cause: str | None
    retryable: bool
    details: dict[str, Any]

    def __init__(
        self,
        message: str,
        *,
        session_id: str | None = None,
        cause: str | None = None,
        retryable: bool | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.message = _clip(message, MAX_MESSAGE)
        super().__init__(self.message)
        self.session_id = None if session_id is None else _clip(session_id, MAX_NAME)
        self.cause = cause
        self.retryable = self.retryable_by_nature if retryable is None else retryable
        self.details = dict(details or {})

    @property
    def numbers(self) -> Numbers:
        """The numbers of the code on the surfaces that have numbers.

        The status over HTTP is 503 in place of 500 if the request was refused before anything of it was stored or
        begun, and may be sent again. A response with 503 has `Retry-After` if the error is `retryable`.
        """
        numbers = NUMBERS[self.code]
        passes = numbers.http == FAULT and self.retryable and not self.begun
        return attrs.evolve(numbers, http=BUSY) if passes else numbers

    @property
    def begun(self) -> bool:
        """Whether the request had begun a turn, or may have been carried out: nobody knows."""
        return self.cause in UNKNOWN or not {"first_seq", "goes_on"}.isdisjoint(self.details)

    def add(self, text: str) -> None:
        """Add text to the message, which is cut as a whole."""
        self.message = _clip(f"{self.message}{text}", MAX_MESSAGE)
        super().__init__(self.message)  # which `str` shows

    def forget_key(self) -> None:
        """Let the error be that of a caller who gave no idempotency key: each of its requests gets a key of its own."""
        self.retryable = self.retryable or self.details.pop("passes", False)

    def copy(self) -> Self:
        """Return a copy without a traceback. Raise one copy in each task, or their tracebacks get mixed up."""
        copy = type(self).__new__(type(self), *self.args)
        copy.__dict__.update(self.__dict__ | {"details": dict(self.details)})
        return copy

    def body(self) -> dict[str, Any]:
        """Return the error as every surface shows it: `{code, message, session_id?, retryable, details?}`.

        The cause is `details["cause"]`.
        """
        details = self.details | ({"cause": self.cause} if self.cause else {})
        body: dict[str, Any] = {"code": self.code.value, "message": self.message, "retryable": self.retryable}
        if self.session_id is not None:
            body["session_id"] = self.session_id
        if details:
            body["details"] = details
        return body


def of_body(body: Mapping[str, Any]) -> WarrenError:
    """Return the error of a body that `WarrenError.body` has made. An unknown code gives an AgentError.

    Args:
        body: the body, which may come from a newer version.
    """
    classes = {cls.code.value: cls for cls in WarrenError.__subclasses__()}
    cls = classes.get(body["code"], AgentError)
    error = cls.__new__(cls, body["message"])
    details = dict(body.get("details", {}))
    rest = {"cause": details.pop("cause", None), "retryable": body.get("retryable"), "details": details}
    WarrenError.__init__(error, body["message"], session_id=body.get("session_id"), **rest)
    if isinstance(error, InvalidParamsError):
        error.path = str(details.get("path"))
    return error


class SessionNotFoundError(WarrenError):
    """The session is unknown or deleted, or it is archived and the operation needs one that is not."""

    code = ErrorCode.SESSION_NOT_FOUND
    cause: SessionNotFoundCause | None

    def __init__(self, message: str, *, cause: SessionNotFoundCause | None = None, **options: Unpack[_Options]) -> None:
        super().__init__(message, cause=cause, **options)

    @property
    def numbers(self) -> Numbers:
        """The numbers of the table. If the session is archived and can be read, the status over HTTP is 409."""
        numbers = NUMBERS[self.code]
        return attrs.evolve(numbers, http=409) if self.cause == "archived" else numbers


class SessionBusyError(WarrenError):
    """The session already runs a turn, and nothing was queued."""

    code = ErrorCode.SESSION_BUSY
    retryable_by_nature = True


class PersistenceDisabledError(WarrenError):
    """The operation needs the `session-store` capability, which is off."""

    code = ErrorCode.SESSION_PERSISTENCE_DISABLED


class CompactionDisabledError(WarrenError):
    """The request asks for compaction and the `session-compaction` capability is off."""

    code = ErrorCode.SESSION_COMPACTION_DISABLED


class SessionNotRunningError(WarrenError):
    """The session runs no turn that could be interrupted, or whose tool call could be approved."""

    code = ErrorCode.SESSION_NOT_RUNNING


class StoreError(WarrenError):
    """The store or the memory failed, and nothing of the operation was written, unless the outcome is `unknown`.

    An error whose outcome is unknown is not retryable by nature: the same request could be carried out twice.
    """

    code = ErrorCode.SESSION_STORE_ERROR
    retryable_by_nature = True
    cause: StoreCause | None

    def __init__(self, message: str, *, cause: StoreCause | None = None, **options: Unpack[_Options]) -> None:
        super().__init__(message, cause=cause, **options)
        if options.get("retryable") is None:
            self.retryable: bool = cause not in LASTING

    @property
    def unknown(self) -> bool:
        """Whether nobody can tell if the operation was written: the store or its actor went away during it."""
        return self.cause in UNKNOWN

    @property
    def away(self) -> bool:
        """Whether the store cannot be written by anybody now, so that the next operation would wait in vain, too."""
        return self.cause in ("unreachable", "outcome_unknown", "read_only")


class LeasedError(StoreError):
    """Another process has the lease of the session; `details["holder"]` names the process."""


class MemoryDisabledError(WarrenError):
    """The operation needs the `memory-store` capability, which is off."""

    code = ErrorCode.SESSION_MEMORY_DISABLED


class CapacityExceededError(WarrenError):
    """A limit is reached: of the runtime, of a connection, of a tenant or of a token.

    `cause` names it; None is the limit of running turns. If it is one of a tenant or a token, `details["retry_after"]`
    is the number of seconds to wait; None if waiting does not help.
    """

    code = ErrorCode.CAPACITY_EXCEEDED
    retryable_by_nature = True
    cause: CapacityCause | None

    def __init__(self, message: str, *, cause: CapacityCause | None = None, **options: Unpack[_Options]) -> None:
        super().__init__(message, cause=cause, **options)

    @property
    def numbers(self) -> Numbers:
        """The numbers of the table. If the caller has used up its own share, the status over HTTP is 429."""
        numbers = NUMBERS[self.code]
        return attrs.evolve(numbers, http=429) if (self.cause or "").startswith(("tenant_", "token_")) else numbers


class PermissionDeniedError(WarrenError):
    """The principal of the call does not have the scope that the method needs; `details["scope"]` names it.

    It says nothing of any session: a session of another tenant is not found.
    """

    code = ErrorCode.PERMISSION_DENIED


class ProviderError(WarrenError):
    """The model provider, or the provider of embeddings, failed.

    Args:
        message: see WarrenError.
        cause: see WarrenError.
        retry_after: seconds until the provider wants to be called again; None if it stated none. It is kept as
            `details["retry_after"]`.
        usage: the tokens that the provider had counted before it failed, a `Usage`; None if it told none. They are
            charged.
        options: `session_id`, `retryable` and `details`, see WarrenError.
    """

    code = ErrorCode.PROVIDER_ERROR
    refusals: ClassVar[frozenset[ProviderCause]] = frozenset(
        {"bad_request", "too_large", "context_length", "content_filter", "forbidden"}
    )
    cause: ProviderCause | None

    def __init__(
        self,
        message: str,
        *,
        cause: ProviderCause | None = None,
        retry_after: float | None = None,
        usage: Any = None,
        **options: Unpack[_Options],
    ) -> None:
        super().__init__(message, cause=cause, **options)
        self.usage: Any = usage  # its class needs this module for its own errors
        if retry_after is not None:
            self.details["retry_after"] = retry_after

    @property
    def refuses_request(self) -> bool:
        """Whether the provider refused the context itself, so that it would refuse the same context again.

        The refusal of a proxy or a firewall on the way is no verdict on the context.
        """
        return not self.retryable and self.cause in self.refusals and "answered_by" not in self.details

    @property
    def retry_after(self) -> float | None:
        """Seconds until the provider wants to be called again; None if it stated none."""
        return self.details.get("retry_after")


class BudgetExhaustedError(WarrenError):
    """A budget of the turn or the session ran out. `cause` is the kind of the budget.

    `details` has `budget_type`, `used` and `limit`, and the `text` that the model had written.
    """

    code = ErrorCode.BUDGET_EXHAUSTED
    cause: BudgetCause | None

    def __init__(self, message: str, *, cause: BudgetCause | None = None, **options: Unpack[_Options]) -> None:
        super().__init__(message, cause=cause, **options)


NOTHING_TO_SHORTEN: Final = ("not_smaller", "nothing_to_reduce")
"""Reasons of a failed compaction that lie in the conversation alone, not in the server."""


class AgentError(WarrenError):
    """A turn, a compaction or a request ended without an answer, and no other class fits: `cause` says why."""

    code = ErrorCode.AGENT_ERROR
    cause: AgentCause | None

    def __init__(self, message: str, *, cause: AgentCause | None = None, **options: Unpack[_Options]) -> None:
        super().__init__(message, cause=cause, **options)

    @property
    def numbers(self) -> Numbers:
        """The numbers of the table, except if the server has not failed.

        Then the status over HTTP is 409: for a cancelled turn, an answer that does not fit its schema, and a
        conversation that cannot be made shorter. A cancelled turn is no error over ACP.
        """
        numbers = super().numbers
        if self.cause == "cancelled":
            return attrs.evolve(numbers, http=409, acp=None)
        unfit = self.cause == "structured_output" or self.details.get("reason") in NOTHING_TO_SHORTEN
        return attrs.evolve(numbers, http=409) if unfit else numbers


class InvalidParamsError(WarrenError):
    """The input is bad; `details["path"]` names the field.

    Args:
        message: one sentence, which begins with the path.
        path: the field, as in `$.budget.max_steps`; it is cut to `MAX_NAME` characters.
        session_id: the session that the error is about.
        cause: `settled` if the value is good, and comes too late; None if it is bad.
    """

    code = ErrorCode.INVALID_PARAMS
    cause: InvalidParamsCause | None

    def __init__(
        self, message: str, *, path: str, session_id: str | None = None, cause: InvalidParamsCause | None = None
    ) -> None:
        shown = _clip(path, MAX_NAME)
        if message.startswith(path):
            message = shown + message[len(path) :]
        super().__init__(message, session_id=session_id, cause=cause, details={"path": shown})
        self.path = shown

    @property
    def numbers(self) -> Numbers:
        """The numbers of the table. If the value comes too late, the status over HTTP is 409."""
        numbers = NUMBERS[self.code]
        return attrs.evolve(numbers, http=409) if self.cause == "settled" else numbers

    @classmethod
    def at(
        cls, path: str, problem: str, *, session_id: str | None = None, cause: InvalidParamsCause | None = None
    ) -> "InvalidParamsError":
        """Return the error of a field that has a problem."""
        return cls(f"{path}: {problem}", path=path, session_id=session_id, cause=cause)

    def of(self, path: str) -> "InvalidParamsError":
        """Return the same error about another field, which gave this one its value."""
        message = path + self.message.removeprefix(self.path)
        return InvalidParamsError(message, path=path, session_id=self.session_id, cause=self.cause)
