"""Kinds of tools, switched on and off and put behind the user's word."""

from pathlib import Path

import pytest

from tests.transport.cli.parsing import parse
from tests.transport.cli.process import Cli
from tests.transport.cli.settings import by_default
from warren.conversation.categories import Gates, Switches
from warren.transport.cli.runtime import config_of

pytestmark = pytest.mark.usefixtures("folder")

CALLS = {"tool_calls": [{"name": "datetime_now", "args": {}}]}


def test_what_is_said_of_kinds(folder: Path) -> None:
    """An option of the command line is for the session or turn too, one of a file for the runtime alone."""
    options = parse("--disable", "memory", "--ask", "mcp", "--ask", "shell", "--deny", "shell")
    assert options.turn.overrides == Switches(memory="disable")
    assert options.turn.approvals == Gates(mcp="ask", shell="deny")
    config = config_of(options, None)
    assert (config.switches, config.gates) == (options.turn.overrides, options.turn.approvals)
    by_default(folder, "[tools]\nenable = ['comms']\ndisable = ['memory']\nask = ['mcp']\ndeny = ['callback']\n")
    options = parse("--disable", "comms")
    assert (options.turn.overrides, options.turn.approvals) == (Switches(comms="disable"), None)
    config = config_of(options, None)
    assert config.switches == Switches(comms="disable")
    assert config.gates == Gates(mcp="ask", callback="deny")


def test_nothing_said_is_nothing_asked_for() -> None:
    """Without these options requests have none of it, and other options of tools stay in force."""
    options = parse("--builtins")
    assert (options.turn.overrides, options.turn.approvals, options.config.gates) == (None, None, Gates())
    assert options.config.switches == Switches(builtins="enable")
    assert parse("--builtins", "--disable", "builtins").config.switches == Switches(builtins="disable")


@pytest.mark.parametrize(
    ("given", "code", "problem"),
    [
        (("--enable", "mcp", "--disable", "mcp"), 2, "--enable mcp and --disable mcp exclude each other."),
        (("--ask", "magic"), 2, "'magic' is not one of 'builtins', 'shell'"),
        (("--enable", "shell"), 2, "overrides.shell: this runtime has no shell tools [INVALID_PARAMS]"),
    ],
)
def test_what_cannot_be(cli: Cli, given: tuple[str, ...], code: int, problem: str) -> None:
    """A contradiction, a kind that is none and one that is not there are refused before there is a session."""
    ended = cli.run("run", "x", "-m", "echo", *given)
    assert (ended.code, problem in ended.err) == (code, True), ended.err
    assert cli.run("sessions", "list").out == ""


def test_a_bad_kind_in_a_file_is_named(cli: Cli) -> None:
    """The error has its place."""
    by_default(cli.folder, "[tools]\nask = ['mcp', 'magic']\n")
    ended = cli.run("run", "x", "-m", "echo")
    assert (ended.code, ended.err.startswith("Error: config.tools.ask[1]: must be one of ")) == (2, True)


def test_a_denied_kind_is_not_run_and_a_disabled_one_not_there(cli: Cli) -> None:
    """The rules for a session's calls hold in its later turns too."""
    model = cli.script(CALLS, {"text": "done"})
    assert cli.run("run", "x", "-m", model, "--builtins", "--deny", "builtins").code == 0
    assert "builtins tools are denied here" in cli.run("sessions", "show", "last").out
    assert cli.run("resume", "last", "x", "-m", model, "--builtins").code == 0
    assert cli.run("sessions", "show", "last").out.count("builtins tools are denied here") == 2
    assert cli.run("run", "x", "-m", model, "--builtins", "--disable", "builtins").code == 0
    assert "there is no tool 'datetime_now'" in cli.run("sessions", "show", "last").out
