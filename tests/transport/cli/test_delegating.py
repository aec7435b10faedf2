"""`warren delegate`: a child session of a stored one, made by a command, and waited for by it or by another one."""

import re
import signal
from collections.abc import Sequence
from typing import Any, Final

import pytest

from tests.transport.cli.process import FOOTER, SLOW, Cli, Ended, serving
from warren.transport.cli.turns.taking import FIRST_WORDS

ID: Final = re.compile(r"[0-9a-f-]{36}\n")
SAID: Final = {"text": "the roots are well"}


def parent_of(cli: Cli, *steps: dict[str, Any]) -> str:
    """Make a session whose children play some steps, and return its id."""
    return str(cli.run("run", "hello", "--model", cli.script(*steps), "--output", "json").data["session_id"])


def test_a_child_is_made_and_waited_for_later(cli: Cli) -> None:
    """The command prints its id alone; each wait has the answer of its work, also in a process that comes later."""
    parent = parent_of(cli, SAID)
    made = cli.run("delegate", "last", "Look at the roots.", "--title", "The roots", stdin=b"the old ones")
    assert (made.code, made.err) == (0, "")
    assert ID.fullmatch(made.out)
    child = made.out.strip()
    for _ in range(2):
        waited = cli.run("wait", child)
        assert (waited.code, waited.out) == (0, "the roots are well\n")
        assert re.fullmatch(FOOTER, waited.err.strip())
        assert child in waited.err
    assert "\nchildren:    1, 0 at work\n" in cli.run("sessions", "show", parent).out
    assert f"\nchild of:    {parent}\n" in cli.run("sessions", "show", child).out
    shown = cli.run("sessions", "show", child, "--output", "json").data
    assert (shown["state"]["delegated_by"], shown["state"]["title"]) == (parent, "The roots")
    assert shown["state"]["last_assistant_text"] == "the roots are well"
    assert [each["message"]["role"] for each in shown["messages"]] == ["user", "assistant"]
    assert shown["messages"][0]["message"]["content"] == "Look at the roots.\n\nthe old ones"


def test_a_command_that_does_not_wait_asks_no_model(cli: Cli) -> None:
    """The prompt waits in the inbox of the child, whether the command made it or found it, until a process works."""
    parent = parent_of(cli, SAID)
    cli.script(SLOW)
    made = [cli.run("delegate", parent, "Go.", "--key", "k").out.strip() for _ in range(2)]
    assert made[0] == made[1]
    assert cli.run("sessions", "inputs", made[0]).out.split("\t")[1::3] == ["queue", "Go."]
    shown = cli.run("sessions", "show", made[0], "--output", "json").data
    assert (shown["messages"], shown["billing"]["total_tokens"], shown["state"].get("turn")) == ([], 0, None)
    assert "\nchildren:    1, 1 at work\n" in cli.run("sessions", "show", parent).out
    cli.script(SAID)
    assert cli.run("wait", made[0]).out == "the roots are well\n"


def test_a_command_waits_for_its_child(cli: Cli) -> None:
    """It prints the answer as `warren run` does, once for each key, however often it runs."""
    parent = parent_of(cli, SAID)
    words = "delegate", parent, "Look at the roots.", "--wait", "--key", "k"
    first = cli.run(*words)
    assert (first.code, first.out) == (0, "the roots are well\n")
    assert re.fullmatch(FOOTER, first.err.strip())
    again = cli.run(*words, "--output", "json")
    assert (again.code, again.data["text"]) == (0, "the roots are well")
    assert again.data["session_id"] in first.err
    assert cli.run("delegate", parent, "Look at the roots.", "--key", "k").out == f"{again.data['session_id']}\n"
    listed = cli.run("sessions", "list", "--delegated-by", parent, "--output", "json").data["sessions"]
    assert [(each["session_id"], each["message_count"]) for each in listed] == [(again.data["session_id"], 2)]


def test_a_child_may_fail(cli: Cli) -> None:
    """The error and the exit code are those of its turn, in the command that made it and in one that waits later."""
    parent = parent_of(cli, SAID)
    cli.script({"tool_calls": [{"name": "nothing", "args": {}}]})
    failed = cli.run("delegate", parent, "Go.", "--wait", "--max-steps", "1")
    assert (failed.code, failed.err.splitlines()[-1].endswith("[BUDGET_EXHAUSTED]")) == (2, True), failed
    child = cli.run("sessions", "list", "--delegated-by", parent, "--output", "json").data["sessions"][0]["session_id"]
    later = cli.run("wait", child, "--output", "json")
    assert (later.code, later.error["code"], later.error["details"]["limit"]) == (2, "BUDGET_EXHAUSTED", 1)


def test_ctrl_c_ends_the_work_of_a_child(cli: Cli) -> None:
    """What it has said is stored in the child."""
    parent = parent_of(cli, SAID)
    cli.script(SLOW)
    running = cli.start("delegate", parent, "Go.", "--wait", "--stream")
    running.read_until("half ")
    running.signal(signal.SIGINT)
    check_interrupted(cli, running.end(), parent)


def test_a_child_at_a_server(cli: Cli) -> None:
    """The server does the work, waited for or not, and Ctrl-C ends it there."""
    with serving(cli, "--model", cli.script(SAID)) as (url, _):
        at = ("--server", url)
        parent = cli.run("run", "hello", "--output", "json", *at).data["session_id"]
        child = cli.run("delegate", "last", "Look at the roots.", *at).out.strip()
        assert cli.run("wait", child, *at).out == "the roots are well\n"
        assert cli.run("delegate", parent, "And again.", "--wait", *at).out == "the roots are well\n"
    cli.script(SLOW)
    with serving(cli, "--model", "scripted:script.json") as (url, _):
        running = cli.start("delegate", parent, "Go.", "--wait", "--stream", "--server", url)
        running.read_until("half ")
        running.signal(signal.SIGINT)
        check_interrupted(cli, running.end(), parent, "--server", url)
        assert not (cli.folder / ".rkat").exists()


def check_interrupted(cli: Cli, ended: Ended, parent: str, *place: str) -> None:
    """Check that a command has ended the turn of the newest child, and that this has kept its text."""
    assert ended.code == 1
    assert FIRST_WORDS in ended.err
    assert ended.err.endswith("[AGENT_ERROR]\n")
    listed = cli.run("sessions", "list", "--delegated-by", parent, "--output", "json", *place).data["sessions"]
    shown = cli.run("sessions", "show", listed[0]["session_id"], *place).out
    assert shown.endswith("\nassistant (cancelled):\nhalf \n")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--tool", "dig"), 2, "dig"),
        (("--model", "no-such-model"), 2, "no-such-model"),
        (("--title", " "), 2, "title"),
        (("--max-steps", "0"), 2, "--max-steps"),
        (("--ephemeral",), 1, "persistence is disabled"),
    ],
)
def test_what_no_child_may_have(cli: Cli, words: Sequence[str], code: int, says: str) -> None:
    """The error names it, and no child is made."""
    parent = parent_of(cli, SAID)
    refused = cli.run("delegate", parent, "Go.", *words)
    assert (refused.code, refused.out) == (code, "")
    assert says in refused.err
    assert cli.run("sessions", "list", "--delegated-by", parent, "--output", "json").data["sessions"] == []
