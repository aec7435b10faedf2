"""`docs/nodes.md`: two nodes and a database, by the commands that it prints, on ports and a database of the test."""

import json
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.docs.snippets import DOCS, blocks
from tests.support.postgres import database
from tests.transport.cli.process import Cli, Running

PAGE: Final = DOCS / "nodes.md"
SHOWN: Final = "postgresql:///warren"
LISTENING: Final = "listening on http://127.0.0.1:"


def commands() -> list[list[str]]:
    """Return the words of all commands of the page."""
    lines = [line for each in blocks(PAGE) if each.language == "sh" for line in each.text.splitlines()]
    return [shlex.split(line) for line in lines]


@contextmanager
def serving(cli: Cli, arguments: list[str]) -> Iterator[tuple[Running, str]]:
    """Run a server of the page on a port of the test; yields it and the address that the page has for it, changed."""
    port = arguments[arguments.index("--port") + 1]
    running = cli.start(*["0" if each == port else each for each in arguments])
    at = running.read_until("\n").removeprefix(LISTENING).strip()
    yield running, f"{port}={at}"
    running.signal(signal.SIGTERM)
    assert running.end().code == 0


def test_two_nodes_on_one_database(cli: Cli) -> None:
    """The session that one begins goes on at the other, which passes the call on, and both are in the list."""
    with database() as url:
        servers: list[list[str]] = []
        asked: list[list[str]] = []
        for program, *words in commands():
            arguments = [word.replace(SHOWN, url) for word in words]
            if program == "warren" and "--store" in words:
                (servers if words[0] == "serve" else asked).append(arguments)
            elif program == "warren" and "--server" in words:
                asked.append(arguments)
        assert len(servers) == 2
        with serving(cli, servers[0]) as (_, first), serving(cli, servers[1]) as (_, second):
            ports = dict(each.split("=") for each in (first, second))

            def at(word: str) -> str:
                for shown, port in ports.items():
                    word = word.replace(f":{shown}", f":{port}")
                return word

            begun, resumed, listed = (cli.run(*map(at, arguments)) for arguments in asked)
            assert (begun.out, resumed.out) == ("Hello.\n", "And again.\n")
            assert [line.split("\t")[:2] for line in listed.out.splitlines()] == [
                ["first", "serving"],
                ["second", "serving"],
            ]
            table = json.loads(cli.run(*map(at, asked[2]), "--output", "json").out)
            assert {each["address"] for each in table["nodes"]} == {f"ws://127.0.0.1:{port}" for port in ports.values()}
