"""The examples of the page on MCP work as shown."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.transport.cli.process import clean_environ
from warren.base.errors import ErrorCode
from warren.transport.cli.app import cli
from warren.transport.cli.groups import commands_of
from warren.transport.mcp.schemas import input_schema
from warren.transport.mcp.tools import TOOLS

PAGE: Final = (Path(__file__).resolve().parents[3] / "docs" / "mcp.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the code of one language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_python_example_runs_as_printed(tmp_path: Path) -> None:
    """In an empty folder it shows the progress, the answer of the second process and what is stored."""
    (block,) = blocks("python")
    run = subprocess.run(
        [sys.executable, "-c", block],
        cwd=tmp_path,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "  remember the oats\n" in run.stdout
    assert run.stdout.endswith("and the milk\n4 messages\n")


def test_every_tool_is_described_with_its_arguments() -> None:
    """The table has each tool and its arguments, in the order of its schema."""
    rows = dict(re.findall(r"^\| `(warren_\w+)` \| (.*?) \|", PAGE, flags=re.MULTILINE))
    assert {name: re.findall(r"`(\w+)`", text) for name, text in rows.items()} == {
        name: list(input_schema(tool)["properties"]) for name, tool in TOOLS.items()
    }


def test_every_code_is_described() -> None:
    """A reader finds each error that a tool can return."""
    assert set(ErrorCode) <= set(re.findall(r"`([A-Z_]+)`", PAGE))


def test_the_hosts_settings_are_json_with_options_that_there_are() -> None:
    """The text to paste into a host's file can be read, and the command takes it."""
    settings, error = map(json.loads, blocks("json"))
    name, *args = settings["mcpServers"]["warren"]["args"]
    known = {option for param in commands_of(cli)[name].params for option in param.opts}
    assert {arg for arg in args if arg.startswith("--")} <= known
    assert error["code"] in set(ErrorCode)
