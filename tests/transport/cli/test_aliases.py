"""Aliases of options, on the command line."""

import json
from pathlib import Path

import pytest

from tests.transport.cli.parsing import parse
from tests.transport.cli.process import Cli
from warren.conversation.categories import Switches


@pytest.mark.usefixtures("folder")
def test_the_command_line_takes_them() -> None:
    """Options stand for options, also at a server, and what is nearer to the user wins."""
    assert parse("--override-shell", "enable").turn.overrides == Switches(shell="enable")
    assert parse("--override-memory", "inherit").turn.overrides is None
    assert parse("--host-mode").turn.keep_alive is True
    assert parse("--no-keep-alive").turn.keep_alive is False
    full = parse("--tools", "full", "--no-shell")
    assert full.config.tools is not None
    assert full.config.memory is not None
    assert (full.config.tools.root, full.config.tools.shell, full.config.tools.fetch) == (Path(), False, True)
    served = parse("--tools", "full", "--override-memory", "disable", "--server", "ws://127.0.0.1:1")
    assert served.turn.overrides == Switches(builtins="enable", shell="enable", memory="disable")


def test_the_full_preset_offers_the_tools(cli: Cli) -> None:
    """A command with it runs a tool of each kind."""
    for name, args in (("memory_search", {"query": "x"}), ("shell", {"command": "echo hi"}), ("datetime_now", {})):
        script = {"steps": [{"tool_calls": [{"name": name, "args": args}]}, {"text": "done"}]}
        (cli.folder / "script.json").write_text(json.dumps(script))
        ended = cli.run("run", "--tools", "full", "-m", "scripted:script.json", "x", "--output", "json")
        assert (ended.code, ended.data["text"]) == (0, "done"), ended.err
