"""A JSON-RPC server on pipes is killed while its client runs a tool: the next one asks the client once more."""

import signal
from typing import Final

import pytest

from tests.transport.cli.process import Cli
from tests.transport.stdio.client import Far, far

DIG: Final = {"name": "dig", "description": "Dig a hole.", "input_schema": {"type": "object"}}
STORE: Final = ("--store", "kept")


def started(cli: Cli, model: str) -> Far:
    """Start a server, and offer it the tool."""
    client = far(cli, *STORE, "--model", model, env={"WARREN_STORAGE_LEASE": "2s"})
    assert client.call("tools/register", tools=[DIG]) == {"registered": 1}
    return client


@pytest.mark.parametrize("by", ["turn/wait", "the key"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_ends_while_its_client_runs_a_tool(cli: Cli, by: str, how: signal.Signals) -> None:
    """The call comes again under its key, to the client that waits for the turn or sends it again; it counts once."""
    model = cli.script({"tool_calls": [{"name": "dig"}]}, {"text": "it is dug"})
    prompt = {"prompt": "go", "mode": "queue", "idempotency_key": "one"}
    first = started(cli, model)
    session_id = first.call("session/create", prompt=None)["session_id"]
    first.send("turn/start", session_id=session_id, **prompt)
    before = first.asked()["params"]
    first.running.signal(how)
    first.running.end()
    second = started(cli, model)
    if by == "turn/wait":
        turn = second.send("turn/wait", session_id=session_id)
    else:
        turn = second.send("turn/start", session_id=session_id, **prompt)
    request = second.asked()
    after = request["params"]
    same = ("session_id", "call_id", "key", "name")
    assert [before[each] for each in same] == [after[each] for each in same]
    second.answer(request, content="a hole")
    assert second.reply(turn)["result"]["text"] == "it is dug"
    found = second.call("session/history", session_id=session_id)["messages"]
    results = [each for entry in found for each in entry["message"].get("results", ())]
    assert [each["content"] for each in results] == ["a hole"]
    assert second.end().code == 0
