"""The fork server of the tests: it has imported the library once, and forks for each command.

A command runs as `python -m warren` does, or another module, in a process of its own, with its own arguments, folder,
environment and streams. A test of what happens before or during the imports starts an interpreter instead.
"""

import atexit
import contextlib
import gc
import io
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
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, TextIO

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
    "warren.transport.embed",
    "warren.transport.providers.scripted",
)
LARGEST: Final = 1 << 20
LINK: Final = 0
STDERR: Final = 2
Stream = int | IO[bytes]
NUMBER: Final = struct.Struct("=i")


# -- in the fork server


def serve(module: str, *imported: str) -> None:
    """Run a command for each packet on stdin, which comes with its streams; end with the last of who could ask."""
    for name in imported:
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
                _keep(module, json.loads(job), streams)
                return  # it is the command, and has ended well
            for stream in streams:
                os.close(stream)


def _keep(module: str, job: dict[str, Any], streams: Sequence[int]) -> None:
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
    sys.stdin = _text(0, "surrogateescape")
    sys.stdout = _text(1, "surrogateescape")
    sys.stderr = _text(2, "backslashreplace")
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["env"])
    sys.argv = [module, *job["argv"]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _text(number: int, errors: str) -> TextIO:
    """Open a standard stream as the interpreter does: the one that is there knows what the server's has been."""
    line = number == STDERR or os.isatty(number)
    raw = open(number, "rb" if number == 0 else "wb", closefd=False)  # noqa: SIM115 - they end with the process
    return io.TextIOWrapper(raw, "utf-8", errors, line_buffering=line)


# -- in the tests


@attrs.define(eq=False)
class Forking:
    """A fork server: started by the first command, ended with the tests.

    Attributes:
        module: the program of its commands.
        imported: the modules that it has imported.
    """

    module: str = "warren"
    imported: Sequence[str] = IMPORTED
    _link: socket.socket | None = None
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def start(
        self, argv: Sequence[str | bytes], folder: Path, env: Mapping[str, str], streams: Sequence[int]
    ) -> "Forked":
        """Start a command; its stdin, stdout and stderr are descriptors that are open here."""
        sys.audit("warren.tests.outside", argv)
        job = {"argv": [os.fsdecode(arg) for arg in argv], "folder": os.fspath(folder), "env": dict(env)}
        news, theirs = os.pipe()
        try:
            socket.send_fds(self._linked(env), [json.dumps(job).encode()], [*streams, theirs])
        finally:
            os.close(theirs)
        return Forked(_number(news), news)

    def popen(
        self,
        argv: Sequence[str | bytes],
        folder: Path,
        env: Mapping[str, str],
        *,
        stdin: Stream = subprocess.PIPE,
        stdout: Stream = subprocess.PIPE,
        stderr: Stream = subprocess.PIPE,
    ) -> "Forked":
        """Start a command; its streams are given as for `subprocess.Popen`."""
        with contextlib.ExitStack() as theirs:
            given, into = _open(stdin, "wb", theirs)
            said, out = _open(stdout, "rb", theirs)
            warned, err = (said, None) if stderr == subprocess.STDOUT else _open(stderr, "rb", theirs)
            forked = self.start(argv, folder, env, [given, said, warned])
        forked.stdin, forked.stdout, forked.stderr = into, out, err
        return forked

    def _linked(self, env: Mapping[str, str]) -> socket.socket:
        with self._lock:
            if self._link is None:
                self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    process = subprocess.Popen(
                        [sys.executable, "-P", __file__, self.module, *self.imported],
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


def _open(stream: Stream, mode: str, theirs: contextlib.ExitStack) -> tuple[int, IO[bytes] | None]:
    """Return the descriptor for a command, which is closed with `theirs`, and our end if the stream is a pipe."""
    if stream not in (subprocess.PIPE, subprocess.DEVNULL):
        return (stream if isinstance(stream, int) else stream.fileno()), None
    if stream == subprocess.DEVNULL:
        reader = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, reader)
        return reader, None
    reader, writer = os.pipe()
    ours, other = (writer, reader) if mode == "wb" else (reader, writer)
    theirs.callback(os.close, other)
    return other, os.fdopen(ours, mode)


@attrs.define(eq=False)
class Forked:
    """A command under way, with what `subprocess.Popen` offers of a process.

    Attributes:
        pid: its process.
        stdin: the writing end of its input, if that is a pipe.
        stdout: the reading end of its output, if that is a pipe.
        stderr: the reading end of its errors, if those are a pipe.
        returncode: its exit code, below 0 the signal that killed it; None until a wait has seen the end.
    """

    pid: int
    _news: int
    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None
    stderr: IO[bytes] | None = None
    returncode: int | None = None

    def code(self, limit: float) -> int:
        """Wait for the end and return the exit code; kill the command after so many seconds."""
        try:
            return self.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code; raises subprocess.TimeoutExpired after so many seconds."""
        if self.returncode is None:
            if not select.select([self._news], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("warren", timeout or 0)
            self.returncode = _number(self._news)
            os.close(self._news)
        return self.returncode

    async def ended(self) -> int:
        """Wait for the end and return the exit code."""
        if self.returncode is None:
            await trio.lowlevel.wait_readable(self._news)
        return self.wait()

    def poll(self) -> int | None:
        """Return the exit code, None while the command runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens after the end."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, data: bytes | None = None, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Write input and close the pipe, read what is left of both outputs, and wait for the end."""
        with ThreadPoolExecutor(2) as threads:
            reads = [threads.submit(_rest, stream) for stream in (self.stdout, self.stderr)]
            try:
                _pour(self.stdin, data)
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            out, err = (read.result(timeout) for read in reads)
            return out, err


def _pour(pipe: IO[bytes] | None, data: bytes | None) -> None:
    """Write all data into a pipe and close it; a reader that leaves before has had enough."""
    if pipe is not None and not pipe.closed:
        with contextlib.suppress(BrokenPipeError):
            pipe.write(data or b"")
        with contextlib.suppress(BrokenPipeError):
            pipe.close()


def _rest(pipe: IO[bytes] | None) -> bytes:
    if pipe is None or pipe.closed:
        return b""
    with pipe:
        return pipe.read()


def _number(news: int) -> int:
    data = os.read(news, NUMBER.size)
    assert data, "the fork server is gone; its last words are on stderr"
    number: int = NUMBER.unpack(data)[0]
    return number


FORKING: Final = Forking()

if __name__ == "__main__":
    serve(*sys.argv[1:])
