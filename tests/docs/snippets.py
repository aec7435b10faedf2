"""The fenced blocks of a page, and a reader who pastes them one after the other into a folder of their own."""

import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from tests.conftest import ROOT
from tests.support.forked import FORKING
from tests.transport.cli.process import LIMIT, clean_environ

DOCS: Final = ROOT / "docs"
FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORT: Final = "8420"
BASH: Final = shutil.which("bash") or "sh"
SERVES: Final = "warren serve"
MORE: Final = ("> ", ">\n")
PLAIN: Final = re.compile(r"warren [\w\s\-./:,=\"?']*")
"""A command of our own with nothing in it for a shell but blanks and quotes."""


@attrs.frozen
class Block:
    """A fenced block: its language and its text."""

    language: str
    text: str


@attrs.frozen
class Command:
    """A command of a console block and what is shown of its output; an empty text shows nothing."""

    line: str
    shown: str


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    return [Block(language, text) for language, text in FENCE.findall(page.read_text(encoding="utf-8"))]


def commands(text: str) -> list[Command]:
    """Return the commands of a console block; a command goes on in lines that begin with `> `, or are `>` alone."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    found = []
    for part in parts:
        lines = part.splitlines(keepends=True)
        more = next((at for at, line in enumerate(lines[1:], 1) if not line.startswith(MORE)), len(lines))
        line = lines[0] + "".join(rest[1:].removeprefix(" ") for rest in lines[1:more])
        found.append(Command(line.rstrip("\n"), "".join(lines[more:])))
    return found


def fits(shown: str, said: str) -> bool:
    """Tell whether an output is what a page shows: `…` stands for whatever is there."""
    pattern = re.escape(shown.strip()).replace("…", ".*?")
    return re.fullmatch(pattern, said.strip(), flags=re.DOTALL) is not None


@attrs.define
class Reader:
    """Somebody who does what a page says.

    Attributes:
        folder: where it is done.
        port: what stands in for the port of the page, so that pages can be read side by side.
        servers: what was started and still serves.
        said: what the program before the next block of plain text has printed.
    """

    folder: Path
    port: int
    servers: list["subprocess.Popen[str]"] = attrs.field(factory=list)
    said: str | None = None

    def read(self, page: Path) -> int:
        """Run the page's programs and console blocks and compare what they show; return how many there were."""
        ran = 0
        for block in blocks(page):
            if block.language == "console":
                for command in commands(block.text):
                    self.enter(command)
                    ran += 1
            elif block.language == "python":
                self.said = self._run(sys.executable, "-c", self._here(block.text))
                ran += 1
            elif block.language == "text" and self.said is not None:
                assert fits(block.text, self.said), self.said
                self.said = None
        return ran

    def enter(self, command: Command) -> str:
        """Run a command, compare what it says where something is shown, and return it."""
        line = self._here(command.line)
        if line.startswith(SERVES):
            said = self._serve(line)
        else:
            said = self._fork(line) if PLAIN.fullmatch(line) else self._run(BASH, "-c", line)
        assert not command.shown or fits(self._here(command.shown), said), f"$ {line}\n{said}"
        return said

    def _here(self, text: str) -> str:
        return text.replace(PORT, str(self.port))

    def _fork(self, line: str) -> str:
        """Run a command of our own without a shell, in a process that need not import its modules first."""
        _, *argv = shlex.split(line)
        with tempfile.TemporaryFile() as out, Path(os.devnull).open("rb") as nothing:
            streams = (nothing.fileno(), out.fileno(), out.fileno())
            FORKING.start(argv, self.folder, self._environ(), streams).code(LIMIT)
            out.seek(0)
            said = out.read().decode()
        assert "Traceback" not in said, said
        return said

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert "Traceback" not in done.stdout, done.stdout
        return done.stdout

    def _serve(self, line: str) -> str:
        """Start what serves, wait until it says where, and leave it running."""
        process = subprocess.Popen(
            [BASH, "-c", f"exec {line}"],
            cwd=self.folder,
            env=self._environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.servers.append(process)
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], LIMIT)[0], line
        return process.stdout.readline()

    def _environ(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return clean_environ() | {"PATH": path, "HOME": str(self.folder), "TERM": "dumb"}


async def free_port() -> int:
    """Return a port that nobody listens on at this moment."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port: int = listener.socket.getsockname()[1]
    return port


@contextmanager
def reading(folder: Path) -> Iterator[Reader]:
    """Be a reader in a folder; what was left running is ended, and has to end well."""
    reader = Reader(folder, trio.run(free_port))
    try:
        yield reader
        for process in reader.servers:
            process.terminate()
            assert process.wait(LIMIT) == 0
    finally:
        for process in reader.servers:
            process.kill()
            process.communicate()
