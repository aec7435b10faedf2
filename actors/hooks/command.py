"""Runs the command of a hook: with a time limit and bounded output, and none of its processes outlives it."""

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from warren.actors.hooks.told import HookError, Told
from warren.actors.io.processes import end_group
from warren.actors.io.streams import CHUNK, GONE
from warren.settings.hook_config import HookEntry

MOST: Final = 1024 * 1024
"""Bytes of the output, and of the messages on stderr, of one command."""
GRACE: Final = 1.0
"""Seconds from SIGTERM to SIGKILL, and for the output of a command that has ended to arrive."""


async def run_command(entry: HookEntry, body: bytes, environ: Mapping[str, str], folder: Path) -> Told:
    """Run a hook's command with the JSON of its event on stdin, and return how it ended.

    The command leads a session and a group of its own. The group is ended, with SIGTERM and a second later with
    SIGKILL, once the command has ended, when its time is over, and when the call is cancelled.

    Trap: a process that makes a session of its own leaves the group, and is not ended.

    Args:
        entry: the hook.
        body: the JSON.
        environ: the variables that it gets.
        folder: the folder in which it starts.

    Raises:
        HookError: if it cannot be started, takes too long, or writes too much.
    """
    try:
        process = await trio.lowlevel.open_process(
            [entry.command or "", *entry.args] if entry.args is not None else ["/bin/sh", "-c", entry.command or ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            cwd=folder,
            start_new_session=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as exc:
        problem = os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else str(exc)
        raise HookError(f"it cannot be started: {problem}") from exc
    try:
        return await _followed(process, entry.seconds, body)
    finally:
        # Shielded: an interrupt cancels the hook, and its processes may not go on.
        with trio.CancelScope(shield=True):
            await end_group(process, GRACE)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    await trio.aclose_forcefully(stream)


async def _followed(process: trio.Process, seconds: float, body: bytes) -> Told:
    """Follow a command to its end. Raises HookError."""
    out, err = bytearray(), bytearray()
    with trio.move_on_after(seconds) as limit:
        async with trio.open_nursery() as nursery:
            if process.stdin is not None:  # it is a pipe, as are the others
                nursery.start_soon(_write, process.stdin, body)
            for stream, kept in ((process.stdout, out), (process.stderr, err)):
                if stream is not None:
                    nursery.start_soon(_read, stream, kept, nursery.cancel_scope)
            await process.wait()
            # A process that the command left behind may keep the pipes open, and what it writes is not the command's.
            nursery.cancel_scope.deadline = trio.current_time() + GRACE
    if limit.cancelled_caught:
        raise HookError(f"it took longer than {seconds:g} s")
    if len(out) > MOST or len(err) > MOST:
        raise HookError(f"it wrote more than {MOST} bytes to {'stdout' if len(out) > MOST else 'stderr'}")
    code = process.returncode
    if code is None or code < 0:
        raise HookError("it did not end" if code is None else f"it was ended by signal {-code}")
    return Told(code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


async def _write(stream: trio.abc.SendStream, body: bytes) -> None:
    """Write the event; a command need not read it."""
    with suppress(*GONE):
        async with stream:
            await stream.send_all(body)


async def _read(stream: trio.abc.ReceiveStream, kept: bytearray, all_of_it: trio.CancelScope) -> None:
    """Read a stream to its end, or up to the bound, which ends the command."""
    while len(kept) <= MOST:
        try:
            data = await stream.receive_some(CHUNK)
        except GONE:
            return
        if not data:
            return
        kept += data
    all_of_it.cancel()
