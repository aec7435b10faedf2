"""SIGHUP to `warren serve`: an operator has files read again; a terminal that is closed ends the server in order."""

import json
import os
import pty
import signal

import trio

from tests.transport.cli.process import Cli
from tests.transport.cli.serving import serve
from tests.transport.cli.terminals import START

LIST = "tokens.toml"
DONE = "a change of other settings needs a restart\n"


def made(cli: Cli, name: str) -> None:
    """Make a token."""
    assert cli.run("token", "new", name, "--token-file", LIST, "--tenant", "acme").code == 0


async def test_workers_read_the_file_of_tokens_again(cli: Cli) -> None:
    """Each says what is new, or again what is wrong; the audit has a new token once, by its name."""
    made(cli, "first")
    running, _url = serve(cli, "--workers", "2", "-m", "echo", "--token-file", LIST)

    def hung_up() -> str:
        running.signal(signal.SIGHUP)
        said = ""
        while said.count(DONE) < 2:
            said += running.read_until(DONE, error=True)
        return said

    assert hung_up().count(f"{LIST} was read again: no change\n") == 2
    made(cli, "second")
    assert f"{LIST} was read again: " in hung_up()
    (cli.folder / LIST).write_text("[[token]]\nhash = 1\n", encoding="utf-8")
    for _ in range(2):
        assert hung_up().count("the old file stays in use: $.token_file") >= 2
    running.signal(signal.SIGTERM)
    assert (await trio.to_thread.run_sync(running.end)).code == 0
    lines = cli.run("audit", "--tenant", "acme", "--output", "json").out.splitlines()
    assert [(entry["action"], entry["details"]["name"]) for entry in map(json.loads, lines)] == [
        ("token_added", "second")
    ]


def test_a_terminal_that_is_closed_ends_the_server(cli: Cli) -> None:
    """In order, as SIGTERM does."""
    ours, theirs = pty.openpty()
    running = cli.start("serve", "--port", "0", "-m", "echo", python=("-c", START), stdin=theirs, new_session=True)
    os.close(theirs)
    running.read_until("listening on")
    os.close(ours)
    assert running.process.wait(10) == 0
