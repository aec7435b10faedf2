"""The log of a command: lines for people, and JSON lines for programs."""

import io
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import click
import pytest

from tests.transport.cli.parsing import commands
from tests.transport.cli.process import Cli
from warren.base.log_context import LogContext, working_for
from warren.transport.cli.app import cli as cli_of_all
from warren.transport.cli.terminal import logs
from warren.transport.cli.terminal.json_lines import VARIABLE, JsonStderr, are_asked_for
from warren.transport.cli.terminal.logs import FewOfAKind, JsonLines, OneLine


def line_of(message: str, *args: object, error: Exception | None = None) -> dict[str, Any]:
    """Return a record as the formatter of JSON writes it."""
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("warren.turn", logging.ERROR, __file__, 1, message, args, info)
    text = JsonLines().format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_record_as_json() -> None:
    """Its time has a zone; a message with line breaks or half a character is one line."""
    found = line_of("a %s\n\ud800", "turn")
    assert found.pop("time").endswith("+00:00")
    assert found == {"level": "error", "logger": "warren.turn", "message": "a turn\n\ud800"}


def test_an_error_as_json() -> None:
    """It has its traceback; as text it has one line."""
    with pytest.raises(ValueError, match="not-a-number") as caught:
        int("not-a-number")
    error = caught.value
    found = line_of("a turn crashed", error=error)
    record = logging.LogRecord("x", logging.ERROR, "", 1, "a turn crashed", (), (ValueError, error, None))
    assert found["error"] == f"ValueError: {error}"
    assert found["traceback"].startswith("Traceback (most recent call last):")
    assert OneLine().format(record) == f"ERROR: a turn crashed: {error}"


@pytest.mark.parametrize("turn", [None, 3])
def test_the_session_of_a_record(turn: int | None) -> None:
    """A record that is made in a turn has its number, too."""
    token = working_for.set(LogContext("s1", "acme", turn))
    try:
        found = line_of("hello")
    finally:
        working_for.reset(token)
    assert (found["session_id"], found["tenant"], found.get("turn")) == ("s1", "acme", turn)


class Written(logging.Handler):
    """A handler that keeps what it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(OneLine())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def written() -> Iterator[Written]:
    """Yield a handler of a logger, with the bound of commands on its lines."""
    handler, logger = Written(), logging.getLogger("bounded")
    few = FewOfAKind(handler)
    handler.addFilter(few)
    logger.addHandler(handler)
    yield handler
    few.finish()
    logger.removeHandler(handler)


def test_lines_of_a_kind(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the lines of one statement a few are written, whatever they say, and then how many were left out."""
    monkeypatch.setattr(logs, "WINDOW", 0.2)
    logger = logging.getLogger("bounded")
    for number in range(1_000):
        logger.warning(f"wrong {number}: " + "x" * 1_000)  # noqa: G003 - as other libraries do it
    logger.warning("another kind")
    assert len(written.lines) == logs.LINES + 1
    deadline = time.monotonic() + 10
    while len(written.lines) < logs.LINES + 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert written.lines[-1].startswith(f"WARNING: {1_000 - logs.LINES} more lines of this kind were left out within")
    assert f"wrong {logs.LINES}: " in written.lines[-1]
    assert len(written.lines[-1]) < 400


def test_lines_left_out_at_the_end(written: Written) -> None:
    """A command that ends within the window tells of them, too."""
    (few,) = written.filters
    for number in range(logs.LINES + 7):
        logging.getLogger("bounded").error("wrong %d", number)
    assert isinstance(few, FewOfAKind)
    few.finish()
    assert written.lines[-1].startswith("ERROR: 7 more lines of this kind")


def test_a_long_line(written: Written) -> None:
    """It is cut, and so is the text of its error; values that do not fit the text are the handler's problem."""
    error = ValueError("y" * 100_000)
    logging.getLogger("bounded").warning("%s", "x" * 1_000_000, exc_info=error)
    assert len(written.lines[0]) < 2 * logs.LONGEST + 100
    found = line_of("failed", error=error)
    assert len(json.dumps(found)) < logs.LONGEST + logs.LONGEST_TRACEBACK + 1_000


def test_entries_of_the_audit_are_all_written(written: Written) -> None:
    """The log is the only place of those that the store does not take."""
    logger = logging.getLogger("warren.audit")
    logger.addHandler(written)
    try:
        for number in range(3 * logs.LINES):
            logger.error("an entry: %d", number)
    finally:
        logger.removeHandler(written)
    assert len(written.lines) == 3 * logs.LINES


@pytest.mark.parametrize("command", list(commands(cli_of_all)), ids=lambda command: str(command.name))
def test_every_command_writes_json_lines(command: click.Command) -> None:
    """The option is there, whatever the command does."""
    context = click.Context(command, parent=click.Context(cli_of_all))
    assert any("--log-format" in param.opts for param in command.get_params(context))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("run hello -m echo", 0),
        ("run hello -m echo --verbose", 0),
        ("run hello -m claude-sonnet-5", 1),
        ("run hello -m echo --max-steps none", 2),
        ("run hello --nonsense", 2),
        ("sesions", 2),
        ("sessions show nobody", 1),
        ("sessions list --config nowhere.toml", 2),
        ("memory search doors", 1),
        ("memory stats --ephemeral", 1),
        ("chat -m echo", 2),
        ("models", 0),
        ("doctor", 0),
        ("doctor prune", 2),
        ("load run --sessions 2 --turns 1 --nonsense", 2),
        ("load failover --store folder --faults flood", 2),
        ("serve --host 256.0.0.1", 2),
        ("mcp --store /dev/null/x", 1),
        ("token list --token-file nowhere.toml", 2),
        ("completion tcsh", 2),
        ("config show --nonsense", 2),
    ],
)
def test_all_of_stderr_is_json(cli: Cli, words: str, code: int) -> None:
    """Answers, remarks, hints, events and errors of every kind: each line is an object with a message or a code."""
    cli.run("run", "before", "-m", "echo")
    ended = cli.run(*words.split(), env={"WARREN_LOG_FORMAT": "json"}, stdin=b"/hlep\n")
    lines = [json.loads(line) for line in ended.err.splitlines()]
    assert ended.code == code, ended
    assert all(isinstance(line, dict) and line["message"] for line in lines)
    assert {line.get("level") for line in lines} >= ({"error"} if code else set())


def test_an_error_as_a_line_has_its_code(cli: Cli) -> None:
    """A program that collects the lines has the members of the error, beside the time and the level."""
    (line,) = cli.run("sessions", "show", "nobody", "--log-format=json", "--store", ".").err.splitlines()
    found = json.loads(line)
    assert (found["level"], found["logger"], found["code"]) == ("error", "warren", "SESSION_NOT_FOUND")
    assert found["message"] == "there is no store at ."
    body = cli.run("sessions", "show", "nobody", "--log-format", "json", "--output", "json").error
    assert body["code"] == "SESSION_NOT_FOUND"


def test_whatever_writes_to_stderr_writes_json() -> None:
    """Pieces of a line are put together, half a character costs nothing, and objects pass as they are."""
    sink = io.StringIO()
    lines = JsonStderr(sink)
    print("one", 2, file=lines)  # in several pieces
    lines.write("a\nb \ud800\n\n")
    lines.write('{"a": 1}\n')
    lines.write("\n")
    found = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert [line.get("message", line) for line in found] == ["one 2", "a\nb \ud800", {"a": 1}]


@pytest.mark.parametrize(
    ("argv", "environ", "asked"),
    [
        ("run --log-format json", {}, True),
        ("run --log-format=json", {}, True),
        ("run --log-format text", {VARIABLE: "json"}, False),
        ("run", {VARIABLE: "json"}, True),
        ("run -- --log-format json", {}, False),
        ("record file -- run --log-format json", {}, True),
    ],
)
def test_lines_are_asked_for(argv: str, environ: dict[str, str], asked: bool) -> None:  # noqa: FBT001
    """By the option, or by the variable if the option says nothing; words behind `--` are a prompt."""
    assert are_asked_for(argv.split(), environ) is asked
