"""The process between Warren and a command of the shell tool: it ends all processes of the command before itself.

It runs as a script, with the standard library alone: `keeper.py GRACE FOLDER SHELL ARGUMENTS...`. FOLDER is a
descriptor, stdin one end of a socket pair, stdout the pipe for the output. It writes `started PID` to the socket, and
`ended CODE LEFT` when the shell has ended: CODE is the exit code, or minus the number of a signal, and LEFT the number
of processes that the shell left behind. Then it ends all of its descendants, and earlier if the other end of the socket
asks for it or is closed.

On Linux it is the subreaper of its descendants, so that it finds processes that have left the group, the session and
their parents. Elsewhere it finds the command's process group alone.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator

LINUX = sys.platform == "linux"
CONTROL = 0
SET_CHILD_SUBREAPER = 36
KILL_LIMIT = 2.0
"""Seconds to wait after SIGKILL: only a process that hangs in the kernel, or another user's, takes longer."""
LINGER = 0.1
"""Seconds for processes that a shell left behind to end by themselves, as the last reader of a pipe does."""
TICK = 0.05
"""Seconds between two looks for new processes, while there are some to end."""
NOT_EXECUTABLE = 127
HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: list[str]) -> None:
    """Run the command in the folder, wait for its end or for the request to end it, and end all of its processes."""
    grace, directory, *command = arguments
    if LINUX:  # orphans among the descendants become children of this process
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wakeups = _wakeups()
    os.fchdir(int(directory))
    os.close(int(directory))
    shell = _start(command)
    _say(f"started {shell}")
    status = _wait(shell, wakeups)
    if status is not None:
        _await_end(shell, LINGER, wakeups)
        _say(f"ended {status} {len(descendants())}")
    _end_all(shell, float(grace), wakeups)


def _wakeups() -> int:
    """Return a descriptor that becomes readable after SIGCHLD or a signal to end, so that poll can wait for them."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in HANDLED:
        signal.signal(number, lambda *_: None)
    return reader


def _start(command: list[str]) -> int:
    """Start the command in a session of its own, without input, with stderr in its stdout."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for ignored in (
            signal.SIGPIPE,
            signal.SIGXFSZ,
        ):  # Python ignores these signals, and a command would inherit that
            signal.signal(ignored, signal.SIG_DFL)
        os.execv(command[0], command)  # noqa: S606 - the model's shell
    except OSError as exc:
        os.write(2, f"{command[0]}: {exc.strerror}\n".encode())
    finally:
        os._exit(NOT_EXECUTABLE)


def _say(word: str) -> None:
    with contextlib.suppress(OSError):  # the other end is closed
        os.write(CONTROL, f"{word}\n".encode())


def _wait(shell: int, wakeups: int) -> int | None:
    """Wait until the shell ends, and return its exit code; None if it is to be ended."""
    waiting = select.poll()
    waiting.register(CONTROL, select.POLLIN)
    waiting.register(wakeups, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in waiting.poll()}
        ended = dict(_reaped())
        if shell in ended:
            return os.waitstatus_to_exitcode(ended[shell])
        if CONTROL in ready or set(_read(wakeups)) - {signal.SIGCHLD}:
            return None


def _read(wakeups: int) -> bytes:
    try:
        return os.read(wakeups, 4096)
    except BlockingIOError:
        return b""


def _reaped() -> Iterator[tuple[int, int]]:
    """Reap the children that have ended, and return each with its status."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, status


def descendants() -> dict[int, int]:
    """Return the descendants of this process that have not ended, each with its process group."""
    parents: dict[int, tuple[int, int]] = {}
    # importing pathlib would take longer than all else here
    for name in filter(str.isdigit, os.listdir("/proc") if LINUX else ()):  # noqa: PTH208 - see above
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123 - too
            state, parent, group = stat.read().rpartition(b")")[2].split()[:3]
            if state not in b"ZX":
                parents[int(name)] = int(parent), int(group)
    found: dict[int, int] = {}
    generation = {os.getpid()}
    while generation:
        generation = {pid for pid, (parent, _) in parents.items() if parent in generation and pid not in found}
        found.update((pid, parents[pid][1]) for pid in generation)
    return found


def _end_all(shell: int, grace: float, wakeups: int) -> None:
    """Send SIGTERM to all descendants, SIGKILL after the grace, and reap them. Only another user's may stay."""
    asked = {pid for pid, group in descendants().items() if group == shell}
    _ask(os.killpg, shell)

    def ask_others() -> None:
        for pid in descendants().keys() - asked:
            asked.add(pid)
            _ask(os.kill, pid)

    _await_end(shell, grace, wakeups, ask_others)
    _await_end(shell, KILL_LIMIT, wakeups, lambda: kill_descendants(*(() if LINUX else (shell,))))


def _await_end(shell: int, seconds: float, wakeups: int, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Reap until no descendant is left or the time is over; call `meanwhile` before each look."""
    deadline = time.monotonic() + seconds
    meanwhile()
    while _is_left(shell) and time.monotonic() < deadline:
        select.select([wakeups], [], [], TICK)
        _read(wakeups)
        meanwhile()


def _is_left(shell: int) -> bool:
    """Reap the ended children, and return whether others are left; orphans are children of this process."""
    for _ in _reaped():
        pass
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    with contextlib.suppress(OSError):
        if not LINUX:
            os.killpg(shell, 0)
            return True
    return False


def _ask(send: Callable[[int, int], None], target: int) -> None:
    for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped process does not react to the first signal alone
        with contextlib.suppress(OSError):
            send(target, number)


def kill_descendants(*others: int) -> None:
    """Kill all processes that this one and its children have started, and the `others`, which are process groups.

    Whole groups are killed: a process that is killed alone may have forked meanwhile.
    """
    found = descendants()
    for group in {*found.values(), *others} - {os.getpgrp()}:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
