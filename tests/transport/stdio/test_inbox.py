"""An input that waits for a session when `warren rpc` ends: it runs in the next process."""

import json
import signal
from typing import Any

from tests.transport.cli.process import SLOW, Cli
from tests.transport.stdio.client import Far, far


def said(client: Far, session_id: str) -> list[Any]:
    """Return what users have said."""
    history = client.call("session/history", session_id=session_id)["messages"]
    return [each["message"]["content"] for each in history if each["message"]["role"] == "user"]


def test_a_queued_prompt_outlives_the_process(cli: Cli) -> None:
    """SIGTERM parks the turn that runs, and what waits behind it begins after that in the next process, once."""
    client = far(cli, "--store", "kept")
    client.send("session/create", prompt="x", model=cli.script(SLOW))
    session_id = str(client.until("text_delta")["session_id"])
    queued = {"session_id": session_id, "prompt": "second", "model": "echo", "mode": "queue", "idempotency_key": "k"}
    client.send("turn/start", **queued)
    while not (inputs := client.call("session/inputs", session_id=session_id)["inputs"]):
        pass  # requests run side by side
    (waiting,) = inputs
    assert (waiting["text"], waiting["key"], waiting["options"]) == ("second", "k", {"model": "echo"})
    client.running.signal(signal.SIGTERM)
    assert client.running.end().code == 0
    again = far(cli, "--store", "kept")
    again.call("turn/interrupt", session_id=session_id)
    result = again.call("turn/start", **queued)
    assert result["text"] == "second"
    assert said(again, session_id) == ["x", "second"]
    assert json.dumps(again.call("session/inputs", session_id=session_id)) == '{"inputs": []}'
    again.end()
