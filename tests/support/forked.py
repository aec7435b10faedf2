"""The fork server of the tests: it has imported the library once, and forks for each command.

A command runs as `python -m warren` does, in a process of its own, with its own arguments, folder, environment and
streams. A test of what happens before or during the imports starts an interpreter instead.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import attrs
import trio

IMPORTED: Final = (
    "warren.client",
    "warren.storage.memory",
    "warren.storage.memory.postgres",
    "warren.storage.maintenance.backup",
    "warren.storage.maintenance.doctor",
    "warren.storage.postgres",
    "warren.transport.cli.app",
    "warren.transport.cli.turns.chat",
    "warren.transport.cli.store.doctor",
    "warren.transport.cli.memory.commands",
    "warren.transport.cli.store.projecting",
    "warren.transport.cli.sessions.changing",
    "warren.transport.cli.turns.commands",
    "warren.transport.providers.scripted",
)
LARGEST: Final = 1 << 20
LINK: Final = 0
NUMBER: Final = struct.Struct("=i")


# -- in the fork server


def serve() -> None:
    """Run a command for each packet on stdin, which comes with its streams; end with the last of who could ask."""
    for name in IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(LINK)) as link:
        while True:
            job, streams, _, _ = socket.recv_fds(link, LARGEST, 4)
            if not job:
                return
            if not os.fork():
                link.close()
                _keep(json.loads(job), streams)
                return  # it is the command, and has ended well
            for stream in streams:
                os.close(stream)


def _keep(job: dict[str, Any], streams: Sequence[int]) -> None:
    """Fork once more: the keeper of the command reports pid and exit code and exits, the command itself returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, news = streams
    if pid := os.fork():
        os.write(news, NUMBER.pack(pid))
        for stream in standard:
            os.close(stream)
        os.write(news, NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        os._exit(0)
    os.close(news)
    for number, stream in enumerate(standard):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["env"])
    sys.argv = ["warren", *job["argv"]]
    runpy.run_module("warren", run_name="__main__", alter_sys=True)


# -- in the tests


@attrs.define(eq=False)
class Forking:
    """The fork server: started by the first command, ended with the tests."""

    _link: socket.socket | None = None
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def start(
        self, argv: Sequence[str | bytes], folder: Path, env: Mapping[str, str], streams: Sequence[int]
    ) -> "Forked":
        """Start a command; its stdin, stdout and stderr are descriptors that are open here."""
        job = {"argv": [os.fsdecode(arg) for arg in argv], "folder": os.fspath(folder), "env": dict(env)}
        news, theirs = os.pipe()
        try:
            socket.send_fds(self._linked(env), [json.dumps(job).encode()], [*streams, theirs])
        finally:
            os.close(theirs)
        return Forked(_number(news), news)

    def _linked(self, env: Mapping[str, str]) -> socket.socket:
        with self._lock:
            if self._link is None:
                self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    process = subprocess.Popen(
                        [sys.executable, "-P", __file__],
                        stdin=theirs.fileno(),
                        stdout=subprocess.DEVNULL,
                        env={**env, "OPENBLAS_NUM_THREADS": "1"},  # a thread would not survive a fork
                        start_new_session=True,
                    )
                atexit.register(self._end, process)
            return self._link

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        assert self._link is not None
        self._link.close()
        process.wait()


@attrs.define
class Forked:
    """A command under way; whoever starts it also waits for its end.

    Attributes:
        pid: its process.
        returncode: its exit code, below 0 the signal that killed it; None until a wait has seen the end.
    """

    pid: int
    _news: int
    returncode: int | None = None

    def code(self, limit: float) -> int:
        """Wait for the end and return the exit code; kill the command after so many seconds."""
        if not select.select([self._news], [], [], limit)[0]:
            os.kill(self.pid, signal.SIGKILL)
            raise AssertionError(f"it had not ended after {limit:g} s")
        return self._ended()

    async def wait(self) -> int:
        """Wait for the end and return the exit code."""
        await trio.lowlevel.wait_readable(self._news)
        return self._ended()

    def _ended(self) -> int:
        self.returncode = _number(self._news)
        os.close(self._news)
        return self.returncode


def _number(news: int) -> int:
    data = os.read(news, NUMBER.size)
    assert data, "the fork server is gone; its last words are on stderr"
    number: int = NUMBER.unpack(data)[0]
    return number


FORKING: Final = Forking()

if __name__ == "__main__":
    serve()
