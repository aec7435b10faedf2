"""Every error a caller can meet: a closed family, each with its stable code, and one table of numbers."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Final, Self

import attrs


class ErrorCode(StrEnum):
    """The stable name of an error: the contract on every surface."""

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


MAX_MESSAGE: Final = 1_000
"""Characters of an error's message, which may quote its client: a book in the place of a name does not come back."""
MAX_NAME: Final = 200
"""Characters of a path or an id in an error."""


def _clip(text: str, most: int) -> str:
    """Return a text, without its middle if it is longer than it may be: an error ends with what to do."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2) + 1 :]}"


@attrs.frozen
class Numbers:
    """What one code is called on the surfaces that count."""

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
}


class WarrenError(Exception):
    """Base of every error that Warren raises on purpose.

    Attributes:
        code: the stable code (class attribute).
        message: one sentence for a person.
        session_id: the session concerned, where there is one; a failed first turn names its new session here.
        retryable: whether the same request may succeed later without a change.
        cause: a finer reason within the code, for programs.
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
        """The code's numbers on the surfaces that count."""
        return NUMBERS[self.code]

    def again(self) -> Self:
        """Return the same error anew, to be raised in another task."""
        copy = type(self).__new__(type(self), *self.args)
        copy.__dict__.update(self.__dict__ | {"details": dict(self.details)})
        return copy

    def body(self) -> dict[str, Any]:
        """Return the error as every surface shows it: `{code, message, session_id?, retryable, details?}`."""
        details = self.details | ({"cause": self.cause} if self.cause else {})
        body: dict[str, Any] = {"code": self.code.value, "message": self.message, "retryable": self.retryable}
        if self.session_id is not None:
            body["session_id"] = self.session_id
        if details:
            body["details"] = details
        return body


def of_body(body: Mapping[str, Any]) -> WarrenError:
    """Return the error that a body shows; of a code that only a newer version knows it is an AgentError."""
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
    """No such session: unknown, deleted, or archived where a live one is needed."""

    code = ErrorCode.SESSION_NOT_FOUND


class SessionBusyError(WarrenError):
    """The session already runs a turn; nothing was queued."""

    code = ErrorCode.SESSION_BUSY
    retryable_by_nature = True


class PersistenceDisabledError(WarrenError):
    """The operation needs the `session-store` capability."""

    code = ErrorCode.SESSION_PERSISTENCE_DISABLED


class CompactionDisabledError(WarrenError):
    """The request asks for compaction and the `session-compaction` capability is off."""

    code = ErrorCode.SESSION_COMPACTION_DISABLED


class SessionNotRunningError(WarrenError):
    """There is no turn to interrupt."""

    code = ErrorCode.SESSION_NOT_RUNNING


class StoreError(WarrenError):
    """The store refused: nothing of the operation was written."""

    code = ErrorCode.SESSION_STORE_ERROR
    retryable_by_nature = True


class LeasedError(StoreError):
    """Another process has the session; `details["holder"]` names it."""


class MemoryDisabledError(WarrenError):
    """The operation needs the `memory-store` capability."""

    code = ErrorCode.SESSION_MEMORY_DISABLED


class CapacityExceededError(WarrenError):
    """As many turns run as the runtime was configured for."""

    code = ErrorCode.CAPACITY_EXCEEDED
    retryable_by_nature = True


class ProviderError(WarrenError):
    """The model provider failed; `details["retry_after"]` is the wait in seconds that it asked for, if it did."""

    code = ErrorCode.PROVIDER_ERROR
    refusals: ClassVar = frozenset({"bad_request", "too_large", "context_length", "content_filter", "forbidden"})

    def __init__(
        self,
        message: str,
        *,
        session_id: str | None = None,
        cause: str | None = None,
        retryable: bool | None = None,
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        wish = {} if retry_after is None else {"retry_after": retry_after}
        all_details = {**(details or {}), **wish}
        super().__init__(message, session_id=session_id, cause=cause, retryable=retryable, details=all_details)

    @property
    def refuses_request(self) -> bool:
        """Whether the provider refuses for good what it was asked: the same context would be refused again."""
        return not self.retryable and self.cause in self.refusals

    @property
    def retry_after(self) -> float | None:
        """The wait in seconds that the provider asked for; None if it stated none."""
        return self.details.get("retry_after")


class BudgetExhaustedError(WarrenError):
    """A budget of the turn or the session ran out; `details` has the budget and the text so far."""

    code = ErrorCode.BUDGET_EXHAUSTED


NOTHING_TO_SHORTEN: Final = ("not_smaller", "nothing_to_reduce")
"""Reasons of a failed compaction that lie in the conversation alone."""


class AgentError(WarrenError):
    """The turn ended without an answer; `cause` says why (`cancelled`, `crash`, `shutting_down`)."""

    code = ErrorCode.AGENT_ERROR

    @property
    def numbers(self) -> Numbers:
        """As the table, but a cancelled turn is 409 over HTTP and no error over ACP.

        Over HTTP so are an answer that does not fit its schema and a conversation that cannot be shortened: the server
        has not failed.
        """
        numbers = NUMBERS[self.code]
        if self.cause == "cancelled":
            return attrs.evolve(numbers, http=409, acp=None)
        unfit = self.cause == "structured_output" or self.details.get("reason") in NOTHING_TO_SHORTEN
        return attrs.evolve(numbers, http=409) if unfit else numbers


class InvalidParamsError(WarrenError):
    """Bad input; `details["path"]` names the field."""

    code = ErrorCode.INVALID_PARAMS

    def __init__(self, message: str, *, path: str, session_id: str | None = None) -> None:
        shown = _clip(path, MAX_NAME)
        if message.startswith(path):
            message = shown + message[len(path) :]
        super().__init__(message, session_id=session_id, details={"path": shown})
        self.path = shown
