"""The end of a process and of all processes in its group."""

import os
import signal
from typing import Final

import trio

REAP: Final = 2.0
"""Seconds to wait after SIGKILL: only a process that hangs in the kernel takes longer."""
TICK: Final = 0.02
"""Seconds between two looks for processes of a group, which has no event to wait for."""


async def end_group(process: trio.Process, patience: float) -> None:
    """End a process that leads a group, and the group: SIGTERM, and SIGKILL for what is left after `patience` seconds.

    Processes that have left the group are not ended.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not signal_group(process.pid, number):
            break
        signal_group(process.pid, signal.SIGCONT)  # a stopped process does not react to SIGTERM alone
        with trio.move_on_after(max(patience, TICK)):
            await process.wait()
            while signal_group(process.pid, 0):  # noqa: ASYNC110 - a group has no event
                await trio.sleep(TICK)
    with trio.move_on_after(REAP):
        await process.wait()


def signal_group(group: int, number: int) -> bool:
    """Signal a process group; return whether there was one."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS raises this for a group of zombies
        return False
    return True
