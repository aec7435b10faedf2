"""How a command ends badly."""

import errno
import io
from typing import Any

import click
import pytest

from tests.transport.cli.fakes import ID
from warren.base.errors import (
    NUMBERS,
    AgentError,
    CompactionDisabledError,
    InvalidParamsError,
    MemoryDisabledError,
    PersistenceDisabledError,
    SessionBusyError,
    SessionNotFoundError,
    WarrenError,
)
from warren.base.extras import cure, lack
from warren.conversation import codec
from warren.transport.cli.failures import error_of, innermost, report
from warren.transport.cli.settings.options import Mode
from warren.transport.cli.terminal.streams import Streams


def reported(failure: BaseException, **mode: bool) -> tuple[int, str]:
    """Return the exit code and what is on stderr; stdout stays empty."""
    streams = Streams(out := io.StringIO(), err := io.StringIO())
    code = report(failure, Mode(**mode), streams)
    assert out.getvalue() == ""
    return code, err.getvalue()


def family(cls: type[WarrenError] = WarrenError) -> list[WarrenError]:
    """One error of each class that has a code."""
    found = []
    for one in cls.__subclasses__():
        extra: dict[str, Any] = {"path": "$.field"} if issubclass(one, InvalidParamsError) else {}
        found += [one("it failed", **extra)] if "code" in vars(one) else []
        found += family(one)
    return found


@pytest.mark.parametrize("error", family(), ids=lambda error: type(error).__name__)
def test_every_error_has_its_exit_code(error: WarrenError) -> None:
    """The exit code is the table's, and what is shown is one line in either form."""
    for json in (False, True):
        code, shown = reported(error, json=json)
        assert code == NUMBERS[error.code].exit
        assert shown.count("\n") == 1
    assert codec.parse(shown)["code"] == error.code


def test_the_table_is_whole() -> None:
    """Every code of the table has an error here."""
    assert {error.code for error in family()} == set(NUMBERS)


def test_a_line_has_message_session_and_code() -> None:
    """The session is named once, where the message does not name it itself."""
    assert (
        reported(SessionBusyError("a turn runs", session_id=ID))[1]
        == f"Error: a turn runs (session {ID}) [SESSION_BUSY]\n"
    )
    line = reported(SessionNotFoundError(f"no session {ID}", session_id=ID))[1]
    assert line == f"Error: no session {ID} [SESSION_NOT_FOUND]\n"


def test_missing_capabilities_have_their_wording() -> None:
    """The two lines for a disabled capability are verbatim, whatever the error said."""
    assert reported(PersistenceDisabledError("other words")) == (
        1,
        "Session persistence is disabled (build without 'session-store').\n",
    )
    assert reported(CompactionDisabledError("other words")) == (
        1,
        "Session compaction is disabled (build without 'session-compaction').\n",
    )
    body = codec.parse(reported(PersistenceDisabledError("other words"), json=True)[1])
    assert body["message"] == "Session persistence is disabled (build without 'session-store')."


def test_an_error_in_json_is_its_body() -> None:
    """Programs get code, message, session, cause and path."""
    error = AgentError("it was interrupted", session_id=ID, cause="cancelled")
    assert codec.parse(reported(error, json=True)[1]) == error.body()
    bad = InvalidParamsError("$.model: is unknown", path="$.model")
    assert codec.parse(reported(bad, json=True)[1])["details"] == {"path": "$.model"}
    assert reported(bad)[1] == "Error: model: is unknown [INVALID_PARAMS]\n"


def test_bad_usage() -> None:
    """Usage errors are click's in text and our body in JSON, with the option's name."""
    error = click.BadParameter("no", param=click.Option(["--model"]))
    code, shown = reported(error)
    assert code == 2
    assert shown == "Error: Invalid value for '--model': no\n"
    code, shown = reported(error, json=True)
    assert code == 2
    assert codec.parse(shown) == {
        "code": "INVALID_PARAMS",
        "message": "Invalid value for '--model': no",
        "retryable": False,
        "details": {"path": "$.model"},
    }


def test_text_that_utf8_cannot_hold_is_shown_all_the_same() -> None:
    """An error about raw bytes of the command line can be written as JSON."""
    body = codec.parse(reported(click.NoSuchOption("--caf\udce9"), json=True)[1])
    assert "caf" in body["message"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), click.Abort()])
def test_ctrl_c_needs_no_words(failure: BaseException) -> None:
    """Ctrl-C outside a turn ends with 130 and nothing on stderr."""
    assert reported(failure) == (130, "")


def test_the_system_refuses() -> None:
    """An error of the system is a line with the file, not a bug of ours."""
    error = OSError(errno.EADDRINUSE, "Address already in use", "somewhere")
    assert reported(error) == (1, "Error: Address already in use: somewhere\n")
    body = codec.parse(reported(error, json=True)[1])
    assert (body["code"], body["details"]["cause"]) == ("AGENT_ERROR", "system")
    assert error_of(error).body()["details"]["cause"] == "system"


def test_a_bug_is_one_line() -> None:
    """An unexpected exception shows no traceback, unless events and all are asked for."""
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 // 0
    bug = caught.value
    assert reported(bug) == (1, "Error: internal error: ZeroDivisionError: integer division or modulo by zero\n")
    shown = reported(bug, verbose=True)[1]
    assert shown.startswith("Error: internal error: ZeroDivisionError: integer division or modulo by zero\nTraceback")
    assert __file__ in shown
    assert codec.parse(reported(bug, json=True)[1])["details"]["cause"] == "internal"


def test_an_exception_group_is_about_its_cause() -> None:
    """Out of a group, our own error counts first, then Ctrl-C, then the first one."""
    busy = SessionBusyError("busy")
    bug = ValueError("bug")
    group = BaseExceptionGroup("", [bug, BaseExceptionGroup("", [KeyboardInterrupt(), busy])])
    assert innermost(group) is busy
    assert isinstance(innermost(BaseExceptionGroup("", [bug, KeyboardInterrupt()])), KeyboardInterrupt)
    assert innermost(ExceptionGroup("", [bug, KeyError()])) is bug
    assert innermost(bug) is bug


def test_a_missing_extra_names_its_cure() -> None:
    """The sentence on the capability stays, and a line says how to install it; of another store its own sentence."""
    error = PersistenceDisabledError("other words", details=lack("session-store"))
    assert reported(error)[1].endswith("'session-store').\npip install 'warren[session-store]'\n")
    assert codec.parse(reported(error, json=True)[1])["details"]["hint"] == "pip install 'warren[session-store]'"
    other = PersistenceDisabledError(
        f"the store x needs the extra `postgres`: {cure('postgres')}", details=lack("postgres")
    )
    assert reported(other)[1].startswith(
        "Error: the store x needs the extra `postgres`: pip install 'warren[postgres]'"
    )
    memory = MemoryDisabledError("other words", details=lack("memory-store"))
    assert reported(memory)[1] == (
        "Semantic memory is disabled (build without 'memory-store').\npip install 'warren[memory-store]'\n"
    )
