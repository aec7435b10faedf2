"""The programs that the reference takes its examples from do what they show."""

import re
import runpy
import subprocess
import sys

import pytest

from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"
SHOWN = {
    "turn_log": [
        "  1 the turn begins: Are there carrots?",
        "  2 step 0",
        "  3 attempt 2 of 3 follows: overloaded",
        "  4 the model wants stock({'article': 'carrots'})",
        "  5 stock runs",
        "  6 stock ends after 0 s",
        "  8 5 tokens read, 6 written (tool_use)",
        "  9 step 1",
        " 13 the model says: Five are left.",
        " 14 1 tokens read, 4 written (end_turn)",
        " 15 the turn ends: Five are left.",
        "    the turn has no more events",
    ],
    "after_errors": [
        "PROVIDER_ERROR: look at the request and the key: forbidden",
        "BUDGET_EXHAUSTED: raise the budget of steps, or end here",
        "INVALID_PARAMS: mend the call at $.prompt",
        "SESSION_NOT_FOUND: forget its id",
    ],
    "transcript": [
        "# Seven.",
        "5 messages, 16 tokens",
        "> Be brief.",
        "**You:** How many carrots?",
        "- `beds.txt`",
        "**Model:** Let me see.",
        "- calls `count` with {'what': 'carrots'}",
        "- gets: 7",
        "**Model:** Seven.",
    ],
    "two_agents": ["42"],
    "own_model": ["There are five beds."],
    "production": ["ok"],
    "support_desk": [
        "waits for a person: refund({'order': '17', 'cents': 4200})",
        "You have it back.",
        "4200 for 17",
    ],
    "batch_extraction": [
        "3 rows: {'who': 'Ann', 'count': 5, 'article': 'lamp'}",
        "the same again: True, 0 calls of the model",
    ],
    "files_qa": ["It may cost 120 euros. (travel.md)"],
    "research": [
        "A hectare brings 1000 euros.",
        "price: oats: 200 euros a tonne",
        "yield: oats: 5 tonnes a hectare",
    ],
    "voting_panel": ["editor: keep", "lawyer: drop", "reader: keep", "keep, by 2 of 3"],
    "nightly": ["active 01:00", "Lamps go well. Chairs do not."],
    "web_chat_fastapi": [
        "Let me count. You have three leeks.",
        "Then plant some more!",
        "7 messages",
        "404",
    ],
    "careful_tools": [
        "None",
        "Expected `int`, got `str` - at `$.cents`",
        "more than 10000 cents need a person",
        "receipt 1 for 17",
        "receipt 1 for 17",
    ],
}

PROCESSES = {
    "coding_agent": [
        "read_file {'path': 'add.py'}",
        "  completed",
        "edit_file {'path': 'add.py', 'old': 'a - b', 'new': 'a + b'}",
        "  completed",
        "shell {'command': \"python3 -c 'import add; print(add.add(2, 3))'\"}",
        "  allowed: shell",
        "  completed",
        "It adds now: 2 and 3 are 5.",
        "end_turn",
        "def add(a, b):",
        "    return a + b",
    ],
    "mcp_gateway": ['  tool stock {"article":"lamp"}', "There are 12 lamps.", "Yes, enough for ten."],
}


@pytest.mark.parametrize("name", [*SHOWN, *(pytest.param(each, marks=pytest.mark.outside) for each in PROCESSES)])
def test_a_program_shows_what_it_is_about(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a reader runs it, without a key and without a database."""
    for variable in ("DATABASE_URL", "ORDERS_MCP"):
        monkeypatch.delenv(variable, raising=False)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capfd.readouterr().out.splitlines() == (SHOWN | PROCESSES)[name]


def test_the_tour_sees_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """What a service can tell; figures differ from run to run."""
    runpy.run_path(str(EXAMPLES / "tour.py"), run_name="__main__")
    shown = capsys.readouterr().out.splitlines()
    assert shown[:5] == [
        "plan.txt: 4 bytes",
        "ScriptedModel, 3 messages, completed, digger",
        "3 messages, 6 tokens, said last: It is dug.",
        "no fork, 0 children",
        "0: SystemMessage",
    ]
    assert {"1d: Dig another.", "RunStarted", "The hole", "the store: ok", "local: webhook"} <= set(shown)


@pytest.mark.outside
def test_the_tests_of_a_desk_pass() -> None:
    """By themselves, with the plugin that is installed."""
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(EXAMPLES),
        "-c",
        "/dev/null",
    )
    ran = subprocess.run((*command, str(EXAMPLES / "test_desk.py")), capture_output=True, text=True, check=False)
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_two_agents_are_thirty_lines() -> None:
    """A tool, an approval, a stream and a typed answer among them."""
    assert len((EXAMPLES / "two_agents.py").read_text(encoding="utf-8").splitlines()) <= 30


def test_each_program_is_on_the_page() -> None:
    """And no other."""
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+\.py)`", page, re.MULTILINE)) == sorted(
        each.name for each in EXAMPLES.glob("*.py")
    )
