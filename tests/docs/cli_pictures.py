"""Make pictures of the command line: `make screenshots`, into docs/images. Each is what the commands really print."""

import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

OUT: Final = Path("docs/images")
WIDTH: Final = 100
FONT: Final = re.compile(r"@font-face {.*?}\s*", re.DOTALL)
PICTURES: Final[Mapping[str, Sequence[str]]] = {
    "cli": (
        'warren run "Where do rabbits live?" --model scripted:guide.json',
        'warren resume last "And in winter?" --model scripted:guide.json',
        "warren sessions list",
        "warren sessions show last",
    ),
}
BURROWS: Final = """In a **warren**: a net of burrows with

* chambers to sleep in,
* tunnels between them,
* and more doors than a fox can watch.
"""
WINTER: Final = "In the same one, and deeper: below the frost it stays at about *10 °C*."
GUIDE: Final = json.dumps({"loop": True, "steps": [{"text": BURROWS}, {"text": WINTER}]})


def typed(command: str, folder: Path) -> str:
    """Return what a command prints on a terminal."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", *shlex.split(command)]
    environ = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    process = subprocess.Popen(words, cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 65536):
            seen += data
    except OSError:  # the terminal's other end is closed
        pass
    assert process.wait() == 0, seen
    return seen.decode().replace("\r\n", "\n")


def main() -> None:
    """Make the pictures."""
    OUT.mkdir(exist_ok=True)
    for name, commands in PICTURES.items():
        console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "guide.json").write_text(GUIDE, encoding="utf-8")
            for command in commands:
                console.print(Text.assemble(("$ ", "bold green"), command))
                console.print(Text.from_ansi(typed(command, Path(folder)).rstrip("\n")))
                console.print()
        # Without rich's own fonts: readers would fetch them from elsewhere.
        svg = FONT.sub("", console.export_svg(title="warren", theme=MONOKAI))
        (OUT / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
