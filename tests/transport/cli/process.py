"""`python -m warren` as a process, in a folder of its own and without the settings of whoever runs the tests."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from tests.support.forked import FORKING, Forked, Stream

Process = Forked | subprocess.Popen[bytes]
LIMIT: Final = 30.0
MODULE: Final = ("-m", "warren")
FOOTER: Final = r"session [0-9a-f-]{36} · \d+ steps? · tokens \d+ in/\d+ out( · not stored)?"
SLOW: Final = {"chunks": ["half ", "an ", "answer"], "chunk_delay": 30}
WITHOUT: Final = (
    "import sys; sys.modules[sys.argv.pop(1)] = None; from warren.transport.cli import main; sys.exit(main())"
)
OF_PYTHON: Final = ("PYTHON", "LC_", "LANG")
"""Variables that the interpreter reads when it starts."""
SETTINGS: Final = (
    *("WARREN_", "OPENAI_", "ANTHROPIC_", *OF_PYTHON),
    *("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "LINES"),
)


@attrs.frozen
class Ended:
    """A process that has ended: its exit code (below 0: the signal that killed it) and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The one JSON object on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The one JSON object on stderr."""
        return json.loads(self.err)


@attrs.define
class Cli:
    """The command line in a working folder.

    Attributes:
        folder: where it runs.
        started: processes not yet known to have ended.
    """

    folder: Path
    started: list[Process] = attrs.field(factory=list)

    def start(
        self,
        *args: str | bytes,
        python: Sequence[str] = MODULE,
        env: Mapping[str, str] | None = None,
        stdin: Stream | None = None,
        stdout: Stream = subprocess.PIPE,
        stderr: Stream = subprocess.PIPE,
        new_session: bool = False,
        close_fds: bool = True,
    ) -> "Running":
        """Start `python -m warren` with arguments; its streams are pipes unless given.

        Commands that take a pipe for a part of their prompt get nothing to read. The command is forked from a process
        that has the modules, unless the interpreter itself is told how to start.
        """
        if stdin is None:
            stdin = subprocess.DEVNULL if args[0] in ("run", "resume", "delegate") else subprocess.PIPE
        environ = clean_environ() | dict(env or {})
        process: Process
        if python == MODULE and not any(name.startswith(OF_PYTHON) for name in env or {}):
            process = FORKING.popen(args, self.folder, environ, stdin=stdin, stdout=stdout, stderr=stderr)
            self.started.append(process)
            return Running(process)
        process = subprocess.Popen(
            [sys.executable, *python, *args],
            cwd=self.folder,
            env=environ,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=new_session,
            close_fds=close_fds,
        )
        self.started.append(process)
        return Running(process)

    def run(
        self,
        *args: str | bytes,
        python: Sequence[str] = MODULE,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        stdout: Stream = subprocess.PIPE,
    ) -> Ended:
        """Run a command to its end; `stdin` is what the pipe brings."""
        return self.start(*args, python=python, env=env, stdin=subprocess.PIPE, stdout=stdout).end(stdin)

    def script(self, *steps: dict[str, Any], name: str = "script.json") -> str:
        """Write a script for the model; return the model's name."""
        (self.folder / name).write_text(json.dumps({"steps": steps, "loop": True}), encoding="utf-8")
        return f"scripted:{name}"

    def close(self) -> None:
        """End what is still running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@attrs.frozen
class Running:
    """A process under way."""

    process: Process

    def end(self, stdin: bytes | None = None) -> Ended:
        """Wait for the end."""
        out, err = self.process.communicate(stdin, timeout=LIMIT)
        return Ended(self.process.wait(), (out or b"").decode(), (err or b"").decode())

    def read_until(self, text: str, *, error: bool = False) -> str:
        """Read stdout (or stderr) up to a text and return what was read."""
        stream = self.process.stderr if error else self.process.stdout
        assert stream is not None
        read = b""
        while text.encode() not in read:
            assert select.select([stream], [], [], LIMIT)[0], f"{text!r} never came: {read!r}"
            chunk = os.read(stream.fileno(), 65536)
            assert chunk, f"ended before {text!r}: {read!r}"
            read += chunk
        return read.decode()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)


@contextmanager
def serving(cli: Cli, *args: str) -> Iterator[tuple[str, Running]]:
    """Run a gateway for a body; yields its address."""
    running = cli.start("serve", "--port", "0", "--drain", "4s", "--store", "kept", *args)
    yield running.read_until("\n").split()[-1], running
    running.signal(signal.SIGTERM)
    assert running.end().code == 0


def one_line(ended: Ended, code: int) -> str:
    """Check that a command failed with one line on stderr, nothing on stdout, and return the line."""
    assert (ended.code, ended.out) == (code, ""), ended
    assert ended.err.count("\n") == 1, ended.err
    return ended.err


def without_extra(ended: Ended, line: str, extra: str) -> None:
    """Check that a command failed with the sentence on a missing capability, and the command that installs it."""
    assert (ended.code, ended.out) == (1, ""), ended
    assert ended.err == f"{line}pip install 'warren[{extra}]'\n"


def clean_environ() -> dict[str, str]:
    """Return the environment without what changes the command line, and with a locale that has all characters."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    return kept | {"LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
