"""Nothing of a command outlives it, however it ends and wherever its processes went."""

import os
import sys

import pytest
import trio

from tests.actors.tools.shells import MARK, MarkedShell, alive, exists, numbers_in
from tests.support.asking import ask
from tests.support.checks import assert_valid_transcript
from tests.support.models import reply, says
from tests.support.runtime import new_session, open_runtime, transcript
from warren.base.errors import AgentError
from warren.conversation.messages import ToolUseBlock
from warren.models.tools import ToolError

AWAY = {
    "a background job": "sleep 1000 & echo $! > pid",
    "one in a session of its own": "setsid sh -c 'echo $$ > pid; exec sleep 1000' & while ! test -s pid; do :; done",
    "one without its parent": "(setsid sh -c 'echo $$ > pid; exec sleep 1000' &) ; while ! test -s pid; do :; done",
    "one that hides": "(env -i setsid sh -c 'echo $$ > pid; exec sleep 1000' < /dev/null > /dev/null 2>&1 &); "
    "while ! test -s pid; do :; done",
    "one that goes on printing": "(while :; do echo more; done) & echo $! > pid",
    "one that is stopped": "sleep 1000 & echo $! > pid; kill -STOP $!",
}
STUBBORN = "trap '' TERM; echo $$ > pid; while :; do sleep 1; done"


async def gone(shell: MarkedShell, *pids: int) -> None:
    """Wait until processes have ended that no keeper reaps: it is a moment after they are killed."""
    while any(map(alive, {*pids, *shell.left()})):  # noqa: ASYNC110 - nobody tells of the end of processes of others
        await trio.sleep(0.01)


@pytest.mark.parametrize("what", AWAY)
async def test_what_a_command_leaves_running(shell: MarkedShell, what: str) -> None:
    """A process that outlives the shell neither holds up the answer nor stays, and the answer tells of it."""
    said = await shell.run(AWAY[what])
    (pid,) = await numbers_in(shell.root / "pid", 1)
    assert said.startswith("[exit code 0; 1 left running: ended, ")
    assert not exists(pid)
    assert shell.left() == {}


@pytest.mark.parametrize("what", AWAY)
async def test_an_interrupt(shell: MarkedShell, what: str) -> None:
    """A command that is interrupted is gone when the interrupt is done, with all that it has started."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shell.run, f"{AWAY[what]}; sleep 1000")
        (pid,) = await numbers_in(shell.root / "pid", 1)
        assert len(shell.left()) > 1
        nursery.cancel_scope.cancel()
    assert not exists(pid)
    assert shell.left() == {}


async def test_fifty_processes(shell: MarkedShell) -> None:
    """Fifty processes, each with a session of its own, are ended by an interrupt."""
    async with trio.open_nursery() as nursery:
        command = "for n in $(seq 50); do setsid sh -c 'echo $$ >> pids; exec sleep 1000' & done; wait"
        nursery.start_soon(shell.run, command)
        pids = await numbers_in(shell.root / "pids", 50)
        nursery.cancel_scope.cancel()
    assert [pid for pid in pids if exists(pid)] == []
    assert shell.left() == {}


async def test_a_polite_end(shell: MarkedShell) -> None:
    """A command hears of its end once, and has time to put its things in order."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shell.run, "trap 'echo bye >> said' TERM; echo $$ > pid; sleep 1000; sleep 0.3")
        await numbers_in(shell.root / "pid", 1)
        nursery.cancel_scope.cancel()
    assert (shell.root / "said").read_text() == "bye\n"
    assert shell.left() == {}


@pytest.mark.parametrize("command", [STUBBORN, f'setsid sh -c "{STUBBORN.replace("$", chr(92) + "$")}" & wait'])
async def test_one_that_will_not_end(shell: MarkedShell, command: str) -> None:
    """A process that ignores SIGTERM is killed, in the session of the command or out of it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shell.run, command)
        (pid,) = await numbers_in(shell.root / "pid", 1)
        nursery.cancel_scope.cancel()
    assert not exists(pid)
    assert shell.left() == {}


async def test_a_time_limit(shell: MarkedShell) -> None:
    """A command out of time is an error with what was printed until then; it cannot have more time than there is."""
    for limit in (0.2, 1, 5, 25):  # what a busy machine takes to start it is in it
        with pytest.raises(ToolError) as caught:
            await shell.run("echo first; exec sleep 1000", timeout_seconds=limit)
        how, _, printed = str(caught.value).partition("\n")
        assert how == f"[ended: it had not finished after {limit:g} s]"
        if printed:
            break
    assert printed == "first\n"
    brief = MarkedShell.under(shell.root, timeout=0.2)
    with pytest.raises(ToolError, match=r"after 0.2 s"):
        await brief.run("yes", timeout_seconds=1000)
    assert shell.left() == brief.left() == {}


async def test_a_command_that_ends_its_keeper(shell: MarkedShell) -> None:
    """A command that kills the process that keeps it is ended too, and is an error."""
    with pytest.raises(ToolError, match="was ended, and the command with it"):
        await shell.run("echo $$ > pid; kill -9 $PPID; sleep 1000")
    await gone(shell, *await numbers_in(shell.root / "pid", 1))


@pytest.mark.soak
async def test_a_command_that_stops_its_keeper(shell: MarkedShell) -> None:
    """A keeper that does nothing any more is waited for a few seconds, then killed with the command."""
    with pytest.raises(ToolError, match="had not finished"), trio.fail_after(30):
        await shell.run("echo $$ > pid; kill -STOP $PPID; sleep 1000", timeout_seconds=0.2)
    await gone(shell, *await numbers_in(shell.root / "pid", 1))


HOST = """
import os, sys, trio
from pathlib import Path
from warren.actors.tools.shell.tool import shell_tool
tool = shell_tool(Path(sys.argv[1]), environ=os.environ, allow_env=["PATH", sys.argv[2]])
trio.run(tool.call, "(setsid sh -c 'echo $$ > pid; exec sleep 1000' &); sleep 1000")
"""


async def test_the_host_is_killed(shell: MarkedShell) -> None:
    """If the process that runs Warren is killed, its commands end too."""
    arguments = [sys.executable, "-c", HOST, str(shell.root), MARK]
    host = await trio.lowlevel.open_process(arguments, env={**os.environ, MARK: shell.mark})
    try:
        (pid,) = await numbers_in(shell.root / "pid", 1)
        assert alive(pid)
    finally:
        host.kill()
        await host.wait()
    await gone(shell, pid)


async def test_a_turn_is_interrupted(shell: MarkedShell) -> None:
    """The interrupt of a turn is answered once its command is gone, and the session goes on."""
    model = says(
        reply("", ToolUseBlock("call-1", "shell", {"command": AWAY["one without its parent"] + "; sleep 99"})), ["fine"]
    )
    async with open_runtime(model, tools=[shell.tool]) as service, trio.open_nursery() as nursery:
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "hello")
        await numbers_in(shell.root / "pid", 1)
        await service.interrupt(session_id)
        assert shell.left() == {}
        assert (await turn.failure(AgentError)).cause == "cancelled"
        assert (await service.start_turn(session_id, "go on")).text == "fine"
        assert_valid_transcript(await transcript(service, session_id))


async def test_the_runtime_ends(shell: MarkedShell) -> None:
    """A runtime that has ended has left nothing of the commands that ran, stubborn ones included."""
    model = says(reply("", ToolUseBlock("call-1", "shell", {"command": STUBBORN})))
    async with trio.open_nursery() as nursery:
        async with open_runtime(model, tools=[shell.tool]) as service:
            turn = ask(nursery, service.start_turn, await new_session(service), "hello")
            (pid,) = await numbers_in(shell.root / "pid", 1)
        assert not exists(pid)
        assert shell.left() == {}
        await turn.failure(AgentError)
