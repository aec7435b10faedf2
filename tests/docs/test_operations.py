"""`docs/operations.md`: its commands, on a store with less in it than the page's; what they say has the same shape."""

import re
from pathlib import Path
from typing import Final

from tests.docs.snippets import DOCS, blocks, commands
from tests.transport.cli.process import Cli

QUANTITY: Final = re.compile(r"\d[\d.]*(?: (?:B|KiB|MiB|GiB|TiB))?")


def shape(text: str) -> list[str]:
    """Return the lines without their figures, and without the process that the page has beside it."""
    lines = [QUANTITY.sub("N", line) for line in text.splitlines()]
    return [line for line in lines if not line.startswith("holder:")]


def test_the_commands_work_and_say_what_the_page_shows(tmp_path: Path) -> None:
    """From the first to the last, with folders of this test in the place of the page's."""
    cli, backups = Cli(tmp_path), tmp_path / "backups"
    backups.mkdir()
    cli.run("run", "hello", "--memory")
    cli.run("memory", "add", stdin=b'{"content": "the key hangs by the door"}\n')
    shown = [
        one for block in blocks(DOCS / "operations.md") if block.language == "console" for one in commands(block.text)
    ]
    assert len(shown) > 4
    for command in shown:
        line = command.line.replace("/backups", str(backups)).replace("--store .rkat", "--store restored")
        ended = cli.run(*line.split()[1:])
        assert ended.code == 0, (command.line, ended)
        if command.shown:
            assert shape(ended.out) == shape(command.shown.replace("/backups", str(backups))), command.line
