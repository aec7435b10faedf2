"""Keep this process's environment from the commands it starts: they run as the same user, and it has API keys in it."""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

LINUX: Final = sys.platform == "linux"
SET_DUMPABLE: Final = 4
ENV_START: Final = 47
"""The place of `env_start` in /proc/PID/stat, counted from the state of the process; `env_end` follows."""


def hide_environment(shown: Callable[[str], bool]) -> None:
    """Make the environment of this process unreadable for other processes, except for variables that are `shown`.

    Two ways, both on Linux alone. The values are wiped from the memory that /proc/PID/environ shows, which no user can
    read them from then, not even root. And the process becomes undumpable: its memory is closed to other processes of
    its user, but not to root. `os.environ` and what later child processes inherit stay as they are.

    Trap: an undumpable process leaves no core dump, and debuggers cannot attach to it without root.
    """
    if LINUX:
        _wipe(shown)
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)


def _wipe(shown: Callable[[str], bool]) -> None:
    """Overwrite the initial environment's values in place."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = (int(field) for field in fields[ENV_START : ENV_START + 2])
    # C's `environ` may point into what is wiped: setting a variable again gives it a place of its own on the heap
    for name, value in os.environ.items():
        if not shown(name):
            os.putenv(name, value)
    place = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        key, sign, secret = entry.partition(b"=")
        if secret and not shown(os.fsdecode(key)):
            ctypes.memset(place + len(key) + len(sign), 0, len(secret))
        place += len(entry) + 1
