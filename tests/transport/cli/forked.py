"""Commands without the wait for their imports: a process that has them forks for each command.

It runs the same as `python -m warren`, in a process of its own, with arguments, folder, environment and streams of
its own. A test of what happens before or while modules are imported needs `Cli.start`.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import attrs

IMPORTED: Final = (
    "warren.client",
    "warren.storage.memory",
    "warren.storage.maintenance.backup",
    "warren.storage.maintenance.doctor",
    "warren.transport.cli.app",
    "warren.transport.cli.chat",
    "warren.transport.cli.doctor",
    "warren.transport.cli.memory.actions",
    "warren.transport.cli.project",
    "warren.transport.cli.sessions",
    "warren.transport.cli.turns",
    "warren.transport.providers.scripted",
)
LARGEST: Final = 1 << 20
LINK: Final = 0


# -- on the side of the process that forks


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
    """Become the keeper of a command, or the command: the one writes `pid code` and exits, the other returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, news = streams
    if pid := os.fork():
        os.write(news, f"{pid} ".encode())
        for stream in standard:
            os.close(stream)
        os.write(news, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
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


# -- on the side of the tests


@attrs.define(eq=False)
class Forking:
    """The process that forks; it is started when it is needed first, and ends with the tests."""

    _link: socket.socket | None = None
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def start(
        self, argv: Sequence[str | bytes], folder: Path, env: Mapping[str, str], streams: Sequence[int]
    ) -> "Forked":
        """Start a command with standard streams that are open here."""
        job = {"argv": [os.fsdecode(arg) for arg in argv], "folder": os.fspath(folder), "env": dict(env)}
        told, tell = os.pipe()
        try:
            socket.send_fds(self._linked(env), [json.dumps(job).encode()], [*streams, tell])
        finally:
            os.close(tell)
        return Forked(told)

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


@attrs.frozen
class Forked:
    """A command under way; `told` is where its end is told of."""

    told: int

    def code(self, limit: float) -> int:
        """Wait for the end; return the exit code. A command that does not end within the limit is killed."""
        news = b""
        with os.fdopen(self.told, "rb", buffering=0) as told:
            while select.select([told], [], [], limit)[0]:
                if not (more := told.read(100)):
                    assert b" " in news, "the process that forks is gone; what it said is on stderr"
                    return int(news.split()[1])
                news += more
        os.kill(int(news.split()[0]), signal.SIGKILL)
        raise AssertionError(f"it had not ended after {limit:g} s")


FORKING: Final = Forking()

if __name__ == "__main__":
    serve()
