"""The duties of process 1, which a command has in a container that starts nothing else.

The kernel gives process 1 the orphans of all others, which stay as zombies until it reaps them, and keeps signals from
it that it has no handler for: it could not be stopped while it starts, nor die of a second SIGTERM. So the command runs
in a child, and process 1 passes signals on, reaps, and ends with the child. The kernel kills what is left then.
"""

import os
import signal
from contextlib import suppress
from typing import Final

FIRST: Final = 1
PASSED_ON: Final = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
BY_SIGNAL: Final = 128


def run_in_child() -> None:
    """Return in a child if this is process 1, which then never returns; return at once in any other process."""
    if os.getpid() != FIRST:
        return
    # Blocked signals wait: none is lost between the fork and the first look for them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
    child = os.fork()
    if child:
        _attend(child)
    _take_terminal()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take_terminal() -> None:
    """Have the terminal send its signals to this process alone, so that they do not come twice."""
    os.setpgid(0, 0)
    if os.isatty(0):
        handler = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            with suppress(OSError):  # it is not the controlling one, and sends no signals
                os.tcsetpgrp(0, os.getpgrp())
        finally:
            signal.signal(signal.SIGTTOU, handler)


def _attend(child: int) -> None:
    """Pass signals on to the child and reap, until it has ended; then end with its code."""
    while True:
        number = signal.sigwait({*PASSED_ON, signal.SIGCHLD})
        if number != signal.SIGCHLD:
            os.kill(child, number)
            continue
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == child and os.WIFSTOPPED(status):
                # By Ctrl-Z: there is no shell to wake it, and what it has started stopped with it.
                os.killpg(os.getpgid(child), signal.SIGCONT)
            elif pid == child:
                code = os.waitstatus_to_exitcode(status)
                os._exit(BY_SIGNAL - code if code < 0 else code)
            if pid == 0:
                break
