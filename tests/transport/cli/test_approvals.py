"""Calls that wait for approval, from the command line: in a store that nobody serves, and at a gateway."""

import json
import signal

from tests.transport.cli.process import Cli, one_line
from tests.transport.stdio.client import far

CALLS = {"tool_calls": [{"name": "datetime_now", "args": {}, "id": f"call-{number}"} for number in (1, 2)]}
ASKS = ("--store", "kept", "--builtins", "--ask", "builtins")


def leave_waiting(cli: Cli) -> str:
    """Begin a turn in a process that ends while both calls of the turn wait; return the model."""
    model = cli.script(CALLS, {"text": "done"})
    client = far(cli, *ASKS)
    client.send("session/create", prompt="go", model=model, title="Time")
    client.until("tool_approval_requested")
    client.until("tool_approval_requested")
    client.running.signal(signal.SIGTERM)
    assert client.running.end().code == 0
    return model


def test_calls_that_wait_are_decided_about_in_the_store(cli: Cli) -> None:
    """They are listed without taking their turn up; each decision is kept, and the next process goes on with it."""
    leave_waiting(cli)
    one, two = (row.split("\t") for row in cli.run("approvals", "--store", "kept").out.splitlines())
    assert (one[1:3], two[1:3]) == (["call-1", "datetime_now"], ["call-2", "datetime_now"])
    assert one[5:] == ["Time", "{}"]
    (listed,) = cli.run("approvals", "--store", "kept", "--offset", "1", "--output", "json").data["approvals"]
    assert (listed["session_id"], listed["call_id"]) == (two[0], "call-2")
    denied = cli.run("deny", "last", "call-1", "--reason", "not now", "--store", "kept")
    assert (denied.code, denied.out) == (0, "call-1: denied\n"), denied.err
    assert "was denied at" in one_line(cli.run("approve", "last", "call-1", "--store", "kept"), 2)
    assert cli.run("deny", "last", "call-1", "--store", "kept").code == 0
    allowed = cli.run("approve", "last", "call-2", "--store", "kept", "--output", "json")
    assert (allowed.code, json.loads(allowed.out)) == (0, {"decided": True}), allowed.err
    ended = cli.run("wait", "last", *ASKS)
    shown = cli.run("sessions", "show", "last", "--store", "kept").out
    assert "not run: it was refused: not now" in shown
    assert shown.count("[ok] 20") == 1, (ended, shown)
    assert cli.run("approvals", "--store", "kept").err == "nothing waits for approval\n"


def test_a_wait_says_for_which_calls(cli: Cli) -> None:
    """Whoever waits for a turn that waits for them is told so, with the ids that a decision needs."""
    leave_waiting(cli)
    waits = cli.start("wait", "last", *ASKS)
    told = waits.read_until("call-2) for approval\n", error=True)
    waits.signal(signal.SIGKILL)
    waits.end()
    assert "the turn waits: datetime_now (call-1) for approval, datetime_now (call-2) for approval\n" in told


def test_a_tool_is_allowed_for_a_session(cli: Cli) -> None:
    """The other call that waits runs too; the session shows the tool, until it is taken back."""
    served = cli.start("serve", "--port", "0", "--model", leave_waiting(cli), *ASKS)
    at = "--server", served.read_until("\n").split()[-1]
    assert len(cli.run("approvals", *at).out.splitlines()) == 2
    allowed = cli.run("approve", "last", "call-2", "--remember", *at)
    assert (allowed.code, allowed.out) == (0, "call-2: allowed\n"), allowed.err
    assert cli.run("wait", "last", *at).code in (0, 1)  # it may have ended already
    shown = cli.run("sessions", "show", "last", *at).out
    assert shown.count("[ok] 20") == 2
    assert "allowed:     datetime_now\n" in shown
    cli.run("sessions", "label", "last", "--ask-again", "datetime_now", *at)
    assert "allowed:" not in cli.run("sessions", "show", "last", *at).out
    served.signal(signal.SIGTERM)
    assert served.end().code == 0
