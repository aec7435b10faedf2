"""A process that is killed between any two steps of a compaction: the next one finds it wholly done or not begun."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import attrs
import pytest

from tests.promises.compaction_victim import OLD, STAGES
from tests.support.checks import assert_valid_transcript, names
from tests.support.compacting import Model, assert_whole, compacting, settings, summaries, talk
from tests.support.runtime import Recorder, replay, transcript
from warren.base.errors import SessionNotRunningError
from warren.calls.facade import SessionService
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, UserMessage

pytestmark = pytest.mark.virtual_time
ROOT = Path(__file__).resolve().parents[2]
CONFIG = settings(min_turns_between_compactions=2)


@attrs.define
class Told:
    """The reports of a process before it was killed."""

    session_id: str = ""
    answered: int = 0
    seq: int = 0

    def read(self, output: IO[str]) -> None:
        """Read until it says that it has come to its stage."""
        while (line := codec.parse(output.readline())).get("at") is None:
            for name, value in line.items():
                setattr(self, name, value)


@contextmanager
def killed(folder: Path, stage: str) -> Iterator[Told]:
    """Run the victim until it is at the stage, kill it as a power cut would, and give what it had told."""
    command = [sys.executable, "-m", "tests.promises.compaction_victim", str(folder), stage]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        told = Told()
        try:
            told.read(process.stdout)
        finally:
            os.kill(process.pid, signal.SIGKILL)
    yield told


async def ended(service: SessionService, session_id: str) -> None:
    """Wait until a turn that was left open has ended, if there is one."""
    with suppress(SessionNotRunningError):
        await service.wait_turn(session_id)


@pytest.mark.parametrize("stage", STAGES)
async def test_a_kill_at(tmp_path: Path, stage: str) -> None:
    """History, head, guard, account and log are those of before the turn, or those with the new head; one summary."""
    model, recorder, new = Model(), Recorder(), stage not in OLD
    with killed(tmp_path, stage) as told:
        assert told.answered == 4
    async with compacting(model, tmp_path, config=CONFIG) as service:
        await ended(service, told.session_id)
        view = await service.read(told.session_id)
        history = await service.history(told.session_id)
        messages = [entry.message for entry in history.messages]
        assert_valid_transcript(messages)
        assert [type(each) for each in messages[8:]] == [UserMessage, AssistantMessage] * new
        assert (view.state.compactions, len(history.compactions)) == (int(new), int(new))
        assert view.billing.usage.output_tokens == 4 * 10 + (30 + 10) * new  # the summary, and the answer that goes on
        log = await replay(service, told.session_id)
        assert_whole(log)
        assert names(log)[-3:] == ["text_complete", "turn_completed", "run_completed"]
        assert names(log).count("turn_resumed") == int(new)
        # The guard is armed where the attempt is known of: the next step compacts only where it is not.
        await talk(service, told.session_id, 1, on_event=recorder)
        assert len(model.compactions) == int(not new)
        assert len(summaries(model.contexts[-1])) == 1
        assert_whole(recorder.envelopes)
        assert recorder.envelopes[0].seq > told.seq
        assert_valid_transcript(await transcript(service, told.session_id))
    async with compacting(model, tmp_path, config=CONFIG) as service:
        again = await replay(service, told.session_id)
        assert [each for each in again if each.seq <= log[-1].seq] == log
        assert_whole(again)


async def test_a_kill_of_a_process_that_only_watches(tmp_path: Path) -> None:
    """Whoever opens a store with a turn that was left open goes on with it, once; who opens it again finds it ended."""
    with killed(tmp_path, "the answer") as told:
        pass
    logs = []
    for _ in range(3):
        async with compacting(Model(), tmp_path, config=CONFIG) as service:
            await ended(service, told.session_id)
            logs.append(await replay(service, told.session_id))
    assert logs[0] == logs[1] == logs[2]
    assert (names(logs[0]).count("turn_resumed"), names(logs[0])[-1]) == (1, "run_completed")
