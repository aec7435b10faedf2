"""Names of processes by which a later process of the same machine can tell that one has ended.

A lost connection proves nothing of the process at its other end. The kernel knows: as long as the machine has not been
started anew, and both are in one container, a process that it does not have any more has ended.
"""

import os
import sys
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_SPACES: Final = ("pid", "time")
"""The namespaces in which numbers and start times of processes mean the same."""
_STATE, _THREADS, _STARTED = 0, 17, 19
"""Places in `/proc/PID/stat` behind the name of the program."""
_DEAD: Final = frozenset({"X", "Z"})


def own_name() -> str | None:
    """Return a name of this process; None if the system cannot tell later whether it has ended."""
    if sys.platform != "linux":
        return None
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):  # another container's
            return None
        return f"{_machine()} {os.getpid()} {_stat(os.getpid())[_STARTED]}"
    except (OSError, IndexError):
        return None


def has_ended(name: str) -> bool:
    """Return whether the process of a name has ended for sure; one of another machine may live."""
    here = own_name()
    machine, _, process = name.partition(" ")
    number, _, started = process.partition(" ")
    if here is None or machine != here.partition(" ")[0] or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # another user's
        return False
    try:
        stat = _stat(int(number))
        # A dead one stays until its parent asks for it; one whose first thread alone has ended lives.
        return stat[_STARTED] != started or (stat[_STATE] in _DEAD and stat[_THREADS] in ("0", "1"))
    except (OSError, IndexError):
        return False


def _machine() -> str:
    spaces = (str(Path(f"/proc/self/ns/{each}").stat().st_ino) for each in _SPACES)
    return ":".join((_BOOT.read_text().strip(), *spaces))


def _stat(number: int) -> list[str]:
    return Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2].decode("ascii").split()
