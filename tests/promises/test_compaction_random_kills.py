"""A long conversation whose process is killed at any moment, again and again: nothing of it is lost or doubled."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from tests.promises.compaction_talker import CONFIG, WINDOW, answer, fact, leaf, prompt, question
from tests.support.checks import assert_valid_transcript
from tests.support.compacting import assert_fits, assert_whole, everything, summaries, whole_log
from tests.support.memories import hits, memory_in, recalling_model, remembered
from tests.support.runtime import open_runtime
from warren.actors.resources.memory import indexable
from warren.base.errors import SessionNotRunningError
from warren.conversation import codec
from warren.conversation.messages import AssistantMessage, Message, UserMessage

pytestmark = pytest.mark.virtual_time
ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE: Final = 60.0


@attrs.define(eq=False)
class Told:
    """The reports of the processes before they were killed.

    Attributes:
        folder: where they worked.
        session_id: of the one conversation.
        asked: the number of the newest turn that was begun.
        answered: turns whose answer somebody has had.
    """

    folder: Path
    session_id: str = ""
    asked: int = -1
    answered: list[int] = attrs.field(factory=list)

    def live(self, chance: random.Random, most: int) -> None:
        """Run the program and kill it as a power cut would: mostly within `most` turns, sometimes while it starts."""
        output = self.folder / "told"
        with output.open("wb") as told:
            command = [sys.executable, "-m", "tests.promises.compaction_talker", str(self.folder), str(self.asked + 1)]
            process = subprocess.Popen(command, stdout=told, cwd=ROOT)
        try:
            if self.session_id and chance.random() < 0.2:
                time.sleep(chance.uniform(0.2, 0.8))
            else:
                _await_answers(process, output, chance.randint(1, most))
                time.sleep(chance.uniform(0.0, 0.02))
            assert process.poll() is None, "the program ended by itself"
        finally:
            process.kill()
            process.wait()
        for line in output.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                self._note(codec.parse(line))

    def _note(self, line: dict[str, Any]) -> None:
        assert "oversized" not in line, line
        self.session_id = line.get("session_id", self.session_id)
        self.asked = line.get("asked", self.asked)
        self.answered += [line["answered"]] if "answered" in line else []


def _await_answers(process: "subprocess.Popen[bytes]", output: Path, count: int) -> None:
    end = time.monotonic() + PATIENCE
    while output.read_bytes().count(b"answered") < count:
        assert process.poll() is None, "the program ended by itself"
        assert time.monotonic() < end, "the program answers too little"
        time.sleep(0.002)


async def check(told: Told, chance: random.Random) -> int:
    """Look at what a new process finds, and talk on; return how often the context was compacted."""
    model, memory = recalling_model(), told.folder / "memory"
    async with open_runtime(model, store=told.folder, config=CONFIG, tools=[leaf], memory=memory_in(memory)) as service:
        with suppress(SessionNotRunningError):
            await service.wait_turn(told.session_id)  # one that was left open goes on
        entries, moves = await everything(service, told.session_id)
        messages, head = [entry.message for entry in entries], max([0, *(move.head for move in moves)])
        check_history(messages, told.answered)
        check_memory(remembered(memory), told.session_id, messages[:head])
        left = {message.content for message in messages[:head] if isinstance(message, UserMessage)}
        gone = [number for number in told.answered if prompt(number) in left]
        for number in chance.sample(gone, min(3, len(gone))):
            by_hand = await service.search_memory(question(number), session_id=told.session_id)
            assert any(fact(number) in hit.content for hit in by_hand), f"{fact(number)} is forgotten"
        for number in gone[-1:]:
            by_tool = await hits(service, told.session_id, query=question(number))
            assert any(fact(number) in hit.content for hit in by_tool), f"{fact(number)} is forgotten"
        if not gone:
            await service.start_turn(told.session_id, "recall")
        assert all(len(summaries(context)) == bool(moves) for context in model.contexts[:1])
        assert_fits(model.asked, WINDOW)
        view = await service.read(told.session_id)
        assert view.state.compactions >= len(moves)
    return len(moves)


def check_history(messages: Sequence[Message], answered: Sequence[int]) -> None:
    """Fail where a turn is missing that somebody has had the answer of, where one is there twice, or half of one."""
    assert_valid_transcript(messages)
    prompts = [message.content for message in messages if isinstance(message, UserMessage)]
    stories = [each for each in prompts if each.startswith("Turn ")]
    assert len(set(stories)) == len(stories)
    expected = {prompt(number): answer(number) for number in answered}
    assert [each for each in stories if each in expected] == list(expected)
    answers = [message.text for message in messages if isinstance(message, AssistantMessage) and message.text]
    texts = set(expected.values())
    assert [each for each in answers if each in texts] == list(expected.values())


def check_memory(found: dict[tuple[str, int], str], session_id: str, gone: Sequence[Message]) -> None:
    """Fail where what has left the context is not remembered word for word, in its place.

    Behind the head there may be more: what a compaction took in whose commit never came.
    """
    expected = {(session_id, at): text for at, message in enumerate(gone) if (text := indexable(message)).strip()}
    assert {key: text for key, text in found.items() if key[1] < len(gone)} == expected


async def lives(folder: Path, count: int, most: int, seed: int) -> None:
    """Go through so many lives, each of another length; at the end look at the whole of it."""
    chance, told, moved = random.Random(seed), Told(folder), 0  # noqa: S311 - it hides nothing
    for _ in range(count):
        told.live(chance, most)
        moves = await check(told, chance)
        assert moves >= moved
        moved = moves
    async with open_runtime(recalling_model(), store=folder, config=CONFIG) as service:
        assert_whole(await whole_log(service, told.session_id))
    assert moved >= count // 2  # a slow machine gets less far in each life


async def test_a_conversation_that_is_killed_a_few_times(tmp_path: Path) -> None:
    """After each kill: every answered turn once, one summary, what has left remembered once and found by the tool."""
    await lives(tmp_path, 4, 30, seed=7)


@pytest.mark.soak
async def test_a_conversation_that_is_killed_for_long(tmp_path: Path, soak_seconds: float) -> None:
    """The same, fifty times and more: some two thousand turns."""
    await lives(tmp_path, max(50, int(soak_seconds)), 80, seed=int.from_bytes(os.urandom(4)))
