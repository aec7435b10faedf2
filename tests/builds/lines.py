"""A command that speaks JSON-RPC on its standard streams, one message a line, as its client sees it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

LIMIT: Final = 30.0
WARREN: Final = str(Path(sys.executable).with_name("warren"))
SETTINGS: Final = ("WARREN_", "OPENAI_", "ANTHROPIC_", "PYTHON")


def clean_environ(**more: str) -> dict[str, str]:
    """Return the environment without the settings of whoever runs the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)} | more


def warren(folder: Path, *args: str, environ: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    command = [WARREN, *args]
    return subprocess.run(
        command, cwd=folder, env=environ, input="", capture_output=True, text=True, timeout=LIMIT, check=False
    )


@attrs.define
class Client:
    """The client's side.

    Attributes:
        told: notifications that came, in order.
    """

    process: "subprocess.Popen[str]"
    told: list[dict[str, Any]] = attrs.field(factory=list)
    _last: int = 0

    def notify(self, method: str) -> None:
        self._send({"method": method})

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its response; what is said before it is kept in `told`."""
        self._last += 1
        self._send({"id": self._last, "method": method, "params": params})
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == self._last:
                return message
            self.told.append(message)
        raise AssertionError(f"ended without an answer to {method}")

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()


@contextmanager
def talking(folder: Path, *args: str, environ: Mapping[str, str]) -> Iterator[Client]:
    """Start a command and talk to it; at the end its input is closed and it has to end well."""
    process = subprocess.Popen(
        [WARREN, *args],
        cwd=folder,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Client(process)
        process.communicate(timeout=LIMIT)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
