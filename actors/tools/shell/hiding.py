"""Hides the environment of this process, with its API keys, from its commands, which run as the same user."""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

LINUX: Final = sys.platform == "linux"
SET_DUMPABLE: Final = 4
ENV_START: Final = 47
"""The index of `env_start` in /proc/PID/stat, counted from the state of the process; `env_end` follows it."""


def hide_environment(shown: Callable[[str], bool]) -> None:
    """Make the environment of this process unreadable for other processes, except for the `shown` variables.

    It does two things, both on Linux alone. It wipes the values from the memory behind /proc/PID/environ, so that no
    user can read them there, not even root. And it makes the process undumpable, which closes its memory to other
    processes of its user, but not to root. `os.environ` and the environment of later child processes do not change.

    Trap: an undumpable process leaves no core dump, and debuggers cannot attach to it without root.
    """
    if LINUX:
        _wipe(shown)
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)


def _wipe(shown: Callable[[str], bool]) -> None:
    """Overwrite the initial environment's values in place."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = (int(field) for field in fields[ENV_START : ENV_START + 2])
    # C's `environ` may point into the wiped memory: setting a variable again moves its value to the heap
    for name, value in os.environ.items():
        if not shown(name):
            os.putenv(name, value)
    place = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        key, sign, secret = entry.partition(b"=")
        if secret and not shown(os.fsdecode(key)):
            ctypes.memset(place + len(key) + len(sign), 0, len(secret))
        place += len(entry) + 1
