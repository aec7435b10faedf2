"""The files of prompts of the command line."""

from contextlib import closing
from typing import Any

import apsw

from tests.support.waiting import wait_until
from tests.transport.cli.process import SLOW, Cli
from warren.config import StoreConfig
from warren.storage.maintenance.doctor import examine
from warren.storage.sqlite.file import FILE_NAME


def stored(cli: Cli) -> list[str]:
    """Return the files in the store of the folder."""
    with closing(apsw.Connection(str(cli.folder / ".rkat" / FILE_NAME))) as db:
        rows: list[Any] = db.execute("SELECT body FROM blobs ORDER BY key").fetchall()
        return [body.decode() for (body,) in rows]


def test_a_file_of_a_turn_that_was_killed_goes_with_the_next_start(cli: Cli) -> None:
    """That of a turn that was stored stays, and the store is well before and after."""
    for name in ("kept", "lost"):
        (cli.folder / f"{name}.txt").write_text(name)
    model = cli.script({"text": "I see"}, SLOW)
    assert cli.run("run", "look", "--attach", "kept.txt", "--model", model).code == 0
    victim = cli.start("resume", "last", "look again", "--attach", "lost.txt")
    wait_until(lambda: stored(cli) == ["kept", "lost"])
    victim.process.kill()
    victim.end()
    store = StoreConfig(cli.folder / ".rkat")
    assert examine(store, full=True).healthy
    assert cli.run("run", "hello", "--model", "echo").code == 0
    assert stored(cli) == ["kept"]
    assert examine(store, full=True).healthy
