"""Commands of hooks as real processes: what they are told and answer, and that none of them outlives its call."""

import json
import os
from pathlib import Path

import pytest
import trio

from tests.actors.hooks.scripts import gone, pids, script
from warren.actors.hooks.command import MOST, run_command
from warren.actors.hooks.told import HookError, Told
from warren.settings.hook_config import HookEntry

ENVIRON = {"PATH": os.environ["PATH"], "SEEN": "yes"}


async def run(folder: Path, command: str, *, body: bytes = b"{}", seconds: float = 20, **more: object) -> Told:
    """Run a hook's command."""
    entry = HookEntry(event="PreToolUse", command=command, timeout=seconds, **more)  # type: ignore[arg-type]
    return await run_command(entry, body, ENVIRON, folder)


async def test_a_command_is_told_and_answers(tmp_path: Path) -> None:
    """Of the event on stdin, in the folder, with its own variables alone; its code and both outputs are told."""
    command = script(tmp_path, 'cat; echo "in $(pwd), $SEEN, ${HOME:-none}" >&2; exit 2')
    told = await run(tmp_path, command, body=json.dumps({"tool": "ä"}).encode())
    assert told == Told(2, '{"tool": "\\u00e4"}', f"in {tmp_path}, yes, none\n")


async def test_a_line_of_the_shell(tmp_path: Path) -> None:
    """Is run by the shell, with pipes and variables."""
    assert await run(tmp_path, "echo $SEEN | tr y Y; exit 3") == Told(3, "Yes\n")


async def test_a_program_with_arguments(tmp_path: Path) -> None:
    """Is started without a shell: each argument comes as it is written."""
    command = script(tmp_path, 'printf "%s|" "$@"')
    assert (await run(tmp_path, command, args=("$SEEN `id`", "b c"))).out == "$SEEN `id`|b c|"


async def test_a_command_that_reads_nothing(tmp_path: Path) -> None:
    """Ends as usual, though the event does not fit into the pipe."""
    assert await run(tmp_path, "exit 0", body=b"x" * MOST) == Told(0)


async def test_what_is_not_there_cannot_be_started(tmp_path: Path) -> None:
    """A program of its own is a failure, one of the shell an exit code."""
    with pytest.raises(HookError, match="cannot be started: No such file"):
        await run(tmp_path, str(tmp_path / "missing"), args=())
    assert (await run(tmp_path, str(tmp_path / "missing"))).code == 127


async def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """Even one that ignores SIGTERM."""
    seen = tmp_path / "pids"
    command = script(tmp_path, f"trap '' TERM; sleep 1000 & echo $$ $! >> {seen}; while :; do sleep 1; done")
    with pytest.raises(HookError, match=r"longer than 0\.5 s"):
        await run(tmp_path, command, seconds=0.5)
    assert [await gone(pid) for pid in await pids(seen, 2)] == [True, True]


async def test_a_command_that_leaves_processes_behind(tmp_path: Path) -> None:
    """They are ended with it, and do not keep its answer waiting though they have its pipes."""
    seen = tmp_path / "pids"
    command = script(tmp_path, f"sleep 1000 & echo $! > {seen}; echo told; exit 0")
    with trio.fail_after(10):
        assert (await run(tmp_path, command)).out == "told\n"
    assert await gone((await pids(seen))[0])


async def test_a_command_that_forks_and_floods(tmp_path: Path) -> None:
    """Is a failure once it has written too much; all its processes are ended, and little is kept in memory."""
    seen = tmp_path / "pids"
    command = script(tmp_path, f"for i in 1 2 3 4 5 6 7 8; do (yes & echo $! >> {seen}; wait) & done; wait")
    with pytest.raises(HookError, match=f"wrote more than {MOST} bytes to stdout"):
        await run(tmp_path, command)
    for pid in await pids(seen):
        assert await gone(pid)


async def test_a_flood_of_messages(tmp_path: Path) -> None:
    """Is a failure as well."""
    with pytest.raises(HookError, match=f"wrote more than {MOST} bytes to stderr"):
        await run(tmp_path, "yes >&2")


async def test_a_command_of_an_interrupted_call(tmp_path: Path) -> None:
    """Is ended before the interrupt goes on."""
    seen = tmp_path / "pids"
    command = script(tmp_path, f"sleep 1000 & echo $$ $! > {seen}; wait")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, tmp_path, command)
        started = await pids(seen, 2)
        nursery.cancel_scope.cancel()
    assert [await gone(pid) for pid in started] == [True, True]


async def test_a_command_that_is_killed_by_someone_else(tmp_path: Path) -> None:
    """Is a failure, not an exit code."""
    with pytest.raises(HookError, match="ended by signal 9"):
        await run(tmp_path, "kill -9 $$")
