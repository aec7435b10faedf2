"""Signals that a parent has a command ignore, as shells do with SIGINT for `&`, and `nohup` with SIGHUP."""

import signal
from typing import Final

import pytest

from tests.transport.cli.process import Cli, Running

IGNORING: Final = (
    "-c",
    """
import runpy, signal
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
runpy.run_module("warren", run_name="__main__")
""",
)
CREATE: Final = b'{"jsonrpc": "2.0", "id": 1, "method": "session/create", "params": {"prompt": "hello"}}\n'


def _ignores(running: Running) -> None:
    """Send what is ignored: were it heard, SIGTERM would be the second signal, and kill the command."""
    for number in (signal.SIGINT, signal.SIGHUP):
        running.signal(number)


@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
def test_a_server_in_the_background(cli: Cli, workers: tuple[str, ...]) -> None:
    """Ctrl-C for another command leaves it alone; SIGTERM ends it in order."""
    running = cli.start("serve", "--port", "0", "-m", "echo", *workers, python=IGNORING)
    running.read_until("\n")
    _ignores(running)
    running.signal(signal.SIGTERM)
    assert running.end().code == 0


def test_a_pipe_in_the_background(cli: Cli) -> None:
    """The same for a client's own server."""
    running = cli.start("rpc", "-m", "echo", python=IGNORING)
    assert running.process.stdin is not None
    running.process.stdin.write(CREATE)
    running.process.stdin.flush()
    running.read_until('"id":1')
    _ignores(running)
    running.signal(signal.SIGTERM)
    assert running.end().code == 0


def test_a_turn_in_the_background(cli: Cli) -> None:
    """It goes on to its end."""
    model = cli.script({"chunks": ["one ", "two ", "three"], "chunk_delay": 0.3})
    running = cli.start("run", "go", "--stream", "-m", model, python=IGNORING)
    said = running.read_until("one")
    _ignores(running)
    ended = running.end()
    assert (ended.code, said + ended.out) == (0, "one two three\n")
