"""Commands that look at the sessions leave the turns alone that a stopped process has parked."""

import signal
import time
from contextlib import closing

import apsw
import pytest

from tests.transport.cli.process import SLOW, Cli
from tests.transport.stdio.client import far
from warren.storage.sqlite.file import FILE_NAME


@pytest.mark.parametrize(
    "command",
    [("sessions", "list"), ("sessions", "show", "last"), ("usage",), ("nodes", "list"), ("doctor",)],
    ids=" ".join,
)
def test_a_look_takes_no_turn_up(cli: Cli, command: tuple[str, ...]) -> None:
    """The turn is stored as before, and its model is not asked; the next server goes on with it."""
    client = far(cli, "--store", "kept")
    client.send("session/create", prompt="go", model=cli.script(SLOW))
    client.until("text_delta")
    client.running.signal(signal.SIGTERM)
    assert client.running.end().code == 0

    def stored() -> list[tuple[object, ...]]:
        with closing(apsw.Connection(str(cli.folder / "kept" / FILE_NAME))) as db:
            return list(db.execute("SELECT turn, last_seq, message_count FROM sessions"))

    before = stored()
    assert before[0][0] is not None
    assert cli.run(*command, "--store", "kept").code == 0
    assert stored() == before
    again = far(cli, "--store", "kept")
    while stored() == before:
        time.sleep(0.05)
    again.end()
