"""The statements of docs/acp.md hold."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

from acp import schema

from tests.transport.cli.process import LIMIT, clean_environ
from warren.base.errors import NUMBERS
from warren.transport.acp import agent, agent_dispatcher, files, listing

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "acp.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """Return the one snippet of a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    return str(found)


def column(heading: str) -> list[str]:
    """Return the first column of the table under a heading of its own, without the quotes."""
    table = PAGE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    return re.findall(r"^\| `([^`]+)`", table, flags=re.MULTILINE)


def run(command: list[str], folder: Path) -> str:
    """Run a command as a reader of the page would; return what it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        command,
        cwd=folder,
        env=clean_environ() | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_the_line_for_a_shell_works(tmp_path: Path) -> None:
    """Copied into a shell it says hello, and a command line made of the settings for an editor does too."""
    line = block("console").removeprefix("$ ").strip()
    assert json.loads(run(["sh", "-c", line], tmp_path))["result"]["agentInfo"]["name"] == "warren"
    settings = json.loads(block("json"))
    assert run([settings["command"], *settings["args"]], tmp_path) == ""


def test_the_program_works(tmp_path: Path) -> None:
    """It holds a conversation, ends, and hears it again from another process."""
    lines = run([sys.executable, "-c", block("python")], tmp_path).splitlines()
    assert lines == ["Is anybody there?", "end_turn", "Is anybody there?"]


def test_the_tables_are_complete() -> None:
    """Every method, update, stop reason and error number there is is in its table, and no other."""
    assert sorted(column("method")) == sorted([*agent.METHODS, agent.PROMPT, agent.CANCEL])
    assert sorted(column("stop reason")) == sorted(get_args(schema.StopReason))
    told = dict(re.findall(r"^\| `([A-Z_]+)` \| (-\d+) \|$", PAGE, flags=re.MULTILINE))
    assert told == {code.value: str(numbers.acp) for code, numbers in NUMBERS.items() if numbers.acp is not None}


def test_the_figures_are_true() -> None:
    """The bounds are those of the code."""
    assert f"more than {agent_dispatcher.MAX_LINE // 1024**2} MiB" in PAGE
    assert f"{agent_dispatcher.MAX_IN_FLIGHT} requests" in PAGE
    assert f"up to {files.LARGEST // 1024**2} MiB as JSON" in PAGE
    assert f"Returns {listing.PAGE} sessions a page" in PAGE
