"""The examples of the README run as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

from tests.docs.snippets import commands, reading

ROOT = Path(__file__).resolve().parents[2]


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def test_the_embedding_example_runs_as_printed(tmp_path: Path) -> None:
    """In an empty folder it shows the events of the second turn, answers and ends."""
    (block,) = _blocks("python")
    run = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert lines[0].split() == ["10", "RunStarted"]
    assert lines[-2].endswith(" RunCompleted")
    assert lines[-1].startswith("And once more? ")
    assert (tmp_path / ".rkat" / "sessions.sqlite3").exists()


def test_the_commands_work(tmp_path: Path) -> None:
    """Those for the shell, one after the other in an empty folder, succeed."""
    with reading(tmp_path) as reader:
        for block in _blocks("console"):
            for command in commands(block):
                if command.line != "make run":  # it is below
                    assert "Error" not in reader.enter(command)


def test_the_demonstration_finds_nothing_missing() -> None:
    """`make run` without a terminal kills a gateway, checks what is left, says so, and ends with 0."""
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.count("\nok ") == 8
    said = " ".join(run.stdout.split())
    found = re.search(r"(\d+) of 500 turns were answered, .* (\d+) were interrupted and (\d+) lost their client", said)
    assert found is not None, said
    assert sum(map(int, found.groups())) == 500
    assert "FAILED" not in run.stdout
