"""Commands that remember and search: the same for a memory in files and in a database."""

import json
from typing import Any

from tests.transport.cli.compacting import LONG, OFTEN
from tests.transport.cli.process import Cli

DOORS = "the doors of the north wing are blue"
FAILED = "the deployment failed on friday"


def lines(*values: object) -> bytes:
    """Return JSON lines."""
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def known(cli: Cli) -> None:
    """Remember two texts, of two sessions."""
    ended = cli.run(
        "memory", "add", stdin=lines({"content": DOORS}, {"content": FAILED, "session_id": "s2", "turn": 4})
    )
    assert (ended.code, ended.out, ended.err) == (0, "added 2 of 2\n", "")


def found(cli: Cli, *args: str, **env: str) -> list[Any]:
    """Return the hits of a search."""
    hits: list[Any] = cli.run("memory", "search", *args, "--output", "json", env=env).data["hits"]
    return hits


def talk(cli: Cli, *args: str, **env: str) -> str:
    """Hold a conversation whose first exchange is summarised away; return its id."""
    model = cli.script({"text": "short"})
    common = ("-m", model, *OFTEN, *args)
    session: str = cli.run("run", f"{DOORS} {LONG}", "--output", "json", *common, env=env).data["session_id"]
    for text in ("second", "third"):
        ended = cli.run("resume", session, f"{text} {LONG}", *common, env=env)
        assert ended.code == 0, ended.err
    return session
