"""The page on performance is what the kept results say, all of it, and nothing of whose machine it was."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import ROOT

RUN: Final = ROOT / "benchmarks" / "run.json"
MACHINE: Final = {
    "date": "2026-01-02",
    "processors": "2",
    "memory": "24 GiB",
    "system": "Linux 6",
    "python": "CPython 3.11.7",
    "load": "1.5",
}


def page(run: Path) -> str:
    """Return the page that is made of the results in a file."""
    command = [sys.executable, "-m", "benchmarks.page", str(run)]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def result(figures: dict[str, Any], **goal: Any) -> dict[str, Any]:
    """Return a result with one goal."""
    whole = {"what": "a turn", "value": 9.5, "relation": ">=", "goal": 10, "spread": [8.0, 11.0], "met": False, **goal}
    return {"question": "how fast?", "figures": figures, "goals": [whole], "machine": MACHINE}


def test_the_page_is_made_of_the_kept_results() -> None:
    """The repository's results make the page that is in it."""
    assert (ROOT / "docs" / "performance.md").read_text(encoding="utf-8") == page(RUN)


def test_a_missed_goal_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has no goal that is red without a word, and no reason for a goal that is met."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    from benchmarks.limits import LIMITS  # noqa: PLC0415 - its folder is not on the path of the suite

    goals = [goal for each in json.loads(RUN.read_text(encoding="utf-8")).values() for goal in each["goals"]]
    assert {goal["what"] for goal in goals if not goal["met"]} == set(LIMITS)


def test_the_page_says_what_is_missed_and_what_could_not_be_run(tmp_path: Path) -> None:
    """A goal's figure has its spread where there are rounds; a peer that dropped out has its reason."""
    run = {
        "one": result({"failed": {"other": "cannot be installed"}}),
        "two": result({"ms": {"ours": 1.5}}, what="a search", value=12, spread=None, met=True),
    }
    (tmp_path / "run.json").write_text(json.dumps(run))
    lines = page(tmp_path / "run.json").splitlines()
    assert "| a turn | 9.500 | 8.000 to 11.0 | >= 10 | **missed** |" in lines
    assert "| a search | 12 |  | >= 10 | met |" in lines
    assert "* other, in `one`: cannot be installed" in lines
    assert "| ms | ours 1.500 |" in lines


def test_the_results_name_no_machine_and_no_folder() -> None:
    """Errors of peers are shown, so they are looked at too."""
    text = RUN.read_text(encoding="utf-8")
    assert not [word for word in ("/home", "/work", "/tmp", "/root", "localhost") if word in text]  # noqa: S108 - a word
