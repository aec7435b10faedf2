"""The errors: one class a code, one table of numbers, one body for every surface."""

import inspect
import json
from typing import Any, Final

import pytest

from warren.base import errors
from warren.base.errors import (
    NUMBERS,
    AgentError,
    BudgetExhaustedError,
    CapacityExceededError,
    ErrorCode,
    InvalidParamsError,
    LeasedError,
    ProviderError,
    SessionBusyError,
    SessionNotFoundError,
    StoreError,
    WarrenError,
)

# The contract's table: code, JSON-RPC, HTTP, exit code, ACP (a dash where it is no error there), retryable.
CONTRACT: Final = """
SESSION_NOT_FOUND             -32001  404  1  -32002  no
SESSION_BUSY                  -32002  409  1  -32600  yes
SESSION_PERSISTENCE_DISABLED  -32003  501  1  -32601  no
SESSION_COMPACTION_DISABLED   -32004  501  1  -32602  no
SESSION_NOT_RUNNING           -32005  409  1  -       no
SESSION_STORE_ERROR           -32006  500  1  -32603  yes
SESSION_MEMORY_DISABLED       -32007  501  1  -32602  no
CAPACITY_EXCEEDED             -32008  503  1  -32603  yes
PROVIDER_ERROR                -32010  502  1  -32603  no
BUDGET_EXHAUSTED              -32011  429  2  -       no
AGENT_ERROR                   -32000  500  1  -32603  no
INVALID_PARAMS                -32602  422  2  -32602  no
PERMISSION_DENIED             -32009  403  1  -32603  no
"""
ROWS: Final = [row.split() for row in CONTRACT.strip().splitlines()]


def family() -> dict[ErrorCode, type[WarrenError]]:
    """Return the class of each code."""
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, WarrenError)]
    return {cls.code: cls for cls in classes if cls is not WarrenError}


def make(cls: type[WarrenError], **options: Any) -> WarrenError:
    """Return an error of any class of the family."""
    return InvalidParamsError("no", path="$.x") if cls is InvalidParamsError else cls("no", **options)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_the_table(row: list[str]) -> None:
    """Each code has a class, the contract's numbers, and a nature."""
    code, jsonrpc, http, exits, acp, retryable = row
    error, numbers = make(family()[ErrorCode(code)]), NUMBERS[ErrorCode(code)]
    assert (numbers.jsonrpc, numbers.http, numbers.exit) == (int(jsonrpc), int(http), int(exits))
    assert numbers.acp == (None if acp == "-" else int(acp))
    assert error.retryable == (retryable == "yes")
    assert error.body()["code"] == code


def test_the_family_is_closed() -> None:
    """There is one class that has a code, one row a code, and no JSON-RPC number stands for two codes."""
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, WarrenError)]
    coded = [cls for cls in classes if "code" in vars(cls)]
    assert len(coded) == len(family()) == len(ErrorCode) == len(NUMBERS) == len(ROWS)
    assert {ErrorCode(row[0]) for row in ROWS} == set(ErrorCode) == set(family())
    assert len({numbers.jsonrpc for numbers in NUMBERS.values()}) == len(NUMBERS)


def test_a_cancelled_turn_is_a_conflict() -> None:
    """A cancelled turn is 409 over HTTP and no error over ACP; any other cause is the table's."""
    cancelled = AgentError("interrupted", cause="cancelled").numbers
    assert (cancelled.http, cancelled.acp, cancelled.jsonrpc) == (409, None, -32000)
    assert AgentError("crashed", cause="crash").numbers == NUMBERS[ErrorCode.AGENT_ERROR]
    assert AgentError("lost").numbers == NUMBERS[ErrorCode.AGENT_ERROR]


@pytest.mark.parametrize(
    ("error", "http", "retryable"),
    [
        (AgentError("x", cause="shutting_down", retryable=True), 503, True),
        (AgentError("x", cause="unreachable", retryable=True), 503, True),
        (StoreError("x", cause="locked"), 503, True),
        (StoreError("x", cause="disk_full"), 503, True),
        (StoreError("x", cause="unreachable"), 503, True),
        (LeasedError("x", cause="leased"), 503, True),
        (CapacityExceededError("x"), 503, True),
        (StoreError("x", cause="corrupt"), 500, False),
        (StoreError("x", cause="crash"), 500, False),
        (StoreError("x", cause="crash", retryable=True), 500, True),
        (AgentError("x", cause="outcome_unknown"), 500, False),
        (AgentError("x", cause="outcome_unknown", retryable=True), 500, True),
        (AgentError("x", cause="shutting_down"), 500, False),
        (StoreError("x", cause="disk_full", details={"first_seq": 1, "last_seq": 3}), 500, True),
        (SessionNotFoundError("x", cause="archived"), 409, False),
        (SessionNotFoundError("x", cause="retired"), 404, False),
    ],
)
def test_the_status_says_whether_anything_was_begun(error: WarrenError, http: int, retryable: bool) -> None:  # noqa: FBT001 - a row
    """503 is a refusal that passes; 500 is a fault that stays, or a request that may have been carried out."""
    assert (error.numbers.http, error.retryable) == (http, retryable)
    again = errors.of_body(error.body())
    assert (again.numbers.http, again.retryable) == (http, retryable)


def test_the_smallest_body() -> None:
    """A body has code, message and retryable, and nothing that is not known."""
    assert SessionBusyError("busy").body() == {"code": "SESSION_BUSY", "message": "busy", "retryable": True}


def test_the_fullest_body() -> None:
    """Session, details and cause are shown where they are known, and the whole is JSON."""
    error = AgentError("gone", session_id="s", cause="crash", retryable=True, details={"step": 3})
    body = {
        "code": "AGENT_ERROR",
        "message": "gone",
        "session_id": "s",
        "retryable": True,
        "details": {"step": 3, "cause": "crash"},
    }
    assert error.body() == body
    assert json.loads(json.dumps(error.body())) == body
    assert error.details == {"step": 3}


def test_bad_input_names_its_path() -> None:
    """The path of a bad field is an attribute for programs and a detail for clients."""
    error = InvalidParamsError("$.budget: no", path="$.budget", session_id="s")
    assert (error.path, error.body()["details"], error.session_id) == ("$.budget", {"path": "$.budget"}, "s")


def test_an_errors_own_word_on_retrying_wins() -> None:
    """The raiser's choice to retry overrides the nature of the class, both ways."""
    assert StoreError("x", retryable=False).retryable is False
    assert ProviderError("x", retryable=True).retryable is True


def test_details_belong_to_the_error() -> None:
    """Details are copied: what the raiser does with its dict later does not show."""
    details = {"a": 1}
    error = BudgetExhaustedError("x", details=details)
    details["a"] = 2
    assert error.details == {"a": 1}


@pytest.mark.parametrize("cls", family().values())
def test_again(cls: type[WarrenError]) -> None:
    """The same error anew: equal in all it says, another object, without the traceback of the first."""
    error = make(cls, session_id="s", cause="because", retryable=True, details={"a": [1]})
    with pytest.raises(cls) as caught:
        raise error
    copy = error.copy()
    assert copy is not error
    assert type(copy) is cls
    assert copy.__dict__ == error.__dict__
    assert (str(copy), copy.args, copy.body(), copy.numbers) == (str(error), error.args, error.body(), error.numbers)
    assert caught.value.__traceback__ is not None
    assert copy.__traceback__ is None


def test_again_is_independent() -> None:
    """A note of one receiver in its copy does not show in another's; a provider's wish is kept."""
    error = ProviderError("slow down", retry_after=2.5)
    copy = error.copy()
    copy.details["text"] = "mine"
    copy.session_id = "t"
    assert (error.details, error.session_id, copy.retry_after) == ({"retry_after": 2.5}, None, 2.5)


def test_an_error_reads_well() -> None:
    """In a log an error is its message."""
    assert str(SessionNotFoundError("there is no such session", session_id="s")) == "there is no such session"
