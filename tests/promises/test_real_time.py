"""Tests that need the real clock: threads that block, real commits, a process that is killed."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import apsw
import pytest
import trio

from tests.support.asking import ask
from tests.support.checks import assert_valid_stream, assert_valid_transcript
from tests.support.models import Emit, FunctionModel, reply, says
from tests.support.runtime import Recorder, new_session, open_runtime, replay, transcript
from warren.base.errors import AgentError, StoreError
from warren.calls.facade import SessionService
from warren.conversation import codec
from warren.conversation.events import RunFailed
from warren.conversation.messages import ToolUseBlock
from warren.models.model import ModelReply, ModelRequest
from warren.models.tools import tool
from warren.settings.config import Config, Limits, StoreConfig
from warren.storage.runner import thread_runner
from warren.transport.embed import open_supervisor

BLOCKED = threading.Event()


async def test_a_sync_tool_does_not_hold_up_an_interrupt(tmp_path: Path) -> None:
    """A thread that blocks is left behind: the turn ends within 0.2 s and the next one works."""
    blocked, may_end = threading.Event(), threading.Event()

    @tool
    def block() -> str:
        """Block the thread."""
        blocked.set()
        may_end.wait(60)
        return "free"

    model = says(reply("", ToolUseBlock("call-1", "block")), ["fine"])
    recorder = Recorder()
    async with (
        open_runtime(model, store=tmp_path, tools=[block], runner=thread_runner) as service,
        trio.open_nursery() as nursery,
    ):
        session_id = await new_session(service)
        turn = ask(nursery, service.start_turn, session_id, "hello", on_event=recorder)
        await trio.to_thread.run_sync(blocked.wait, 60)
        began = trio.current_time()
        await service.interrupt(session_id)
        assert (await turn.failure(AgentError)).cause == "cancelled"
        assert trio.current_time() - began < 0.2
        assert (await service.start_turn(session_id, "go on", on_event=recorder)).text == "fine"
        assert_valid_stream(recorder.envelopes)
        assert_valid_transcript(await transcript(service, session_id))
        may_end.set()


async def test_a_file_that_another_process_locks(tmp_path: Path) -> None:
    """A commit waits `busy_timeout`, then the caller is told; reads go on meanwhile; later the session goes on."""
    config = Config(store=StoreConfig(tmp_path, busy_timeout=1))
    async with open_supervisor(config, environ={}) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session("one")).session_id
        other = apsw.Connection(str(tmp_path / "sessions.sqlite3"))
        other.execute("BEGIN IMMEDIATE")
        recorder = Recorder()
        turn = ask(nursery, service.start_turn, session_id, "two", on_event=recorder)
        assert (await service.read(session_id)).state.message_count == 2
        assert not turn.ended.is_set()
        error = await turn.failure(StoreError)
        assert (error.cause, error.retryable, error.details["text"]) == ("locked", True, "two")
        assert len(recorder.only(RunFailed)) == 1
        other.execute("ROLLBACK")
        other.close()
        assert (await service.start_turn(session_id, "three")).text == "three"
        assert len(await transcript(service, session_id)) == 4


async def test_an_interrupt_while_a_commit_waits_for_the_disk(tmp_path: Path) -> None:
    """A turn that is past its last step counts as finished: the interrupt is answered with the commit."""
    config = Config(store=StoreConfig(tmp_path, busy_timeout=5))
    async with open_supervisor(config, environ={}) as service, trio.open_nursery() as nursery:
        session_id = (await service.create_session("one")).session_id
        other = apsw.Connection(str(tmp_path / "sessions.sqlite3"))
        other.execute("BEGIN IMMEDIATE")
        turn = ask(nursery, service.start_turn, session_id, "two")
        await trio.sleep(0.05)
        interrupt = ask(nursery, service.interrupt, session_id)
        await trio.sleep(0.05)
        other.execute("ROLLBACK")
        other.close()
        assert (await turn.value()).text == "two"
        await interrupt.ended.wait()
        assert interrupt.error is None
        assert (await service.start_turn(session_id, "three")).text == "three"


async def test_a_hundred_sessions_with_threads_and_a_real_file(tmp_path: Path) -> None:
    """Everything that was answered is stored, on the real clock with the real writer thread."""
    async with open_supervisor(Config(store=StoreConfig(tmp_path)), environ={}) as service:
        ids = [(await service.create_session(None)).session_id for _ in range(20)]
        async with trio.open_nursery() as nursery:
            for session_id in ids:
                nursery.start_soon(_talk, service, session_id)
    async with open_supervisor(Config(store=StoreConfig(tmp_path)), environ={}) as service:
        for session_id in ids:
            assert (await service.read(session_id)).state.message_count == 10


async def _talk(service: SessionService, session_id: str) -> None:
    for number in range(5):
        result = await service.start_turn(session_id, f"turn {number}")
        assert result.text == f"turn {number}"


class Victim:
    """A process that runs turns on one session until it is killed; it tells each event and each answer."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.promises.victim", str(folder)]
        root = Path(__file__).resolve().parents[2]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
        assert self.process.stdout is not None
        self.output: IO[str] = self.process.stdout
        self.session_id = ""
        self.answered = 0
        self.shown = 0

    def read_until(self, answers: int, events: int) -> None:
        """Read on until so many answers and, after them, so many events were told."""
        while answers or events:
            line = codec.parse(self.output.readline())
            self._note(line)
            answers -= "answered" in line and answers > 0
            events -= "seq" in line and not answers

    def kill(self) -> None:
        """Kill it as a power cut would, and note what it still had told."""
        os.kill(self.process.pid, signal.SIGKILL)
        for line in self.output:
            if line.endswith("\n"):
                self._note(codec.parse(line))
        self.process.wait()
        self.output.close()

    def _note(self, line: dict[str, object]) -> None:
        self.session_id = str(line.get("session_id", self.session_id))
        self.answered = int(str(line.get("answered", self.answered)))
        self.shown = int(str(line.get("seq", self.shown)))


@pytest.mark.parametrize(("answers", "events"), [(0, 1), (1, 3), (2, 7), (3, 1)])
async def test_a_process_that_is_killed_in_the_middle_of_a_turn(tmp_path: Path, answers: int, events: int) -> None:
    """The last answered turn is there, the one in flight is not; numbers go on above all that anybody saw."""
    shown = answered = 0
    for _ in range(2):
        victim = Victim(tmp_path)
        victim.read_until(answers, events)
        victim.kill()
        recorder = Recorder()
        async with open_supervisor(Config(store=StoreConfig(tmp_path)), environ={}) as service:
            session_id = victim.session_id
            messages = await transcript(service, session_id)
            assert_valid_transcript(messages)
            answered += victim.answered
            shown = max(shown, victim.shown)
            assert len(messages) // 2 in (answered, answered + 1)
            assert_valid_stream(await replay(service, session_id))
            await service.start_turn(session_id, "after the crash", model="echo", on_event=recorder)
            answered = len(messages) // 2 + 1
            assert recorder.envelopes[0].seq > shown
            shown = recorder.envelopes[-1].seq


async def test_a_model_that_blocks_the_loop_is_the_hosts_problem_only(tmp_path: Path) -> None:
    """A provider that never yields delays everybody, and its turn still ends in order."""

    async def rude(_request: ModelRequest, _emit: Emit) -> ModelReply:
        BLOCKED.wait(0.05)
        return reply("rude")

    async with open_runtime(FunctionModel(rude), store=tmp_path, runner=thread_runner) as service:
        result = await service.create_session("hello")
        assert result.text == "rude"
        assert len(await transcript(service, result.session_id)) == 2


async def test_turns_that_come_just_as_their_sessions_leave_are_run(tmp_path: Path) -> None:
    """A session that goes is gone for all at once: no mail arrives where nobody reads any more."""
    config = Config(limits=Limits(idle_after=0.02))

    async def talk(service: SessionService) -> None:
        session_id = await new_session(service)
        for _ in range(30):
            await service.start_turn(session_id, "hello")
            await trio.sleep(0.02)

    model = says(*[["hi"]] * 600)
    async with (
        open_runtime(model, store=tmp_path, config=config, runner=thread_runner) as service,
        trio.open_nursery() as nursery,
    ):
        for _ in range(20):
            nursery.start_soon(talk, service)
