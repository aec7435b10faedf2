"""Processes that are killed while things are said to their sessions, and processes that share a store meanwhile."""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from tests.promises.inbox_victim import COMPACTION, Talker
from tests.promises.processes import here, other
from tests.support.checks import assert_valid_transcript, assert_whole_turns
from warren.base.errors import LeasedError
from warren.calls.facade import SessionService
from warren.conversation.events import TERMINAL, RunStarted
from warren.conversation.messages import ContextMessage, Message, UserMessage
from warren.conversation.peers import Peer, PeerInfo
from warren.settings.config import Config, StoreConfig
from warren.storage.maintenance.doctor import examine
from warren.transport.embed import open_supervisor

POINTS: Final = (
    "before a transaction",
    "after a transaction",
    "after a turn is written",
    "after a commit is known",
    "before a turn is told to have ended",
    "after a turn is told to have ended",
    "after a step is stored",
    "before an event is shown",
)
NOTE: Final = re.compile(r"note \d+-\d+\.")


@attrs.define
class World:
    """One store through many lives of a process.

    Attributes:
        sessions: their ids, by name.
        done: prompts whose results have come are those below it.
        sent: messages to the peer that were acknowledged.
    """

    folder: Path
    chance: random.Random
    sessions: dict[str, str] = attrs.field(factory=dict)
    done: int = 0
    sent: list[str] = attrs.field(factory=list)
    lives: int = 0

    async def live(self) -> None:
        """Talk, and be killed at some time or at some point."""
        self.lives += 1
        point = self.chance.choice(POINTS) if self.chance.random() < 0.7 else None
        environ = {} if point is None else {"WARREN_CRASH": f"{point}:{self.chance.randint(1, 40)}"}
        command = [
            sys.executable,
            "-m",
            "tests.promises.inbox_victim",
            str(self.folder),
            str(self.lives),
            str(self.done),
        ]
        process = await trio.lowlevel.open_process(
            command, stdout=subprocess.PIPE, cwd=str(Path(__file__).parents[2]), env={**os.environ, **environ}
        )
        lines, most = b"", self.chance.randint(1, 30)
        assert process.stdout is not None
        try:
            async for chunk in process.stdout:
                lines += chunk
                if lines.count(b"\n") >= most:
                    process.kill()
        finally:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
                await process.stdout.aclose()
        for line in lines.splitlines():
            if line.endswith(b"}"):
                self._note(json.loads(line))

    def _note(self, told: dict[str, Any]) -> None:
        self.sessions = told.get("ready", self.sessions)
        self.done = told.get("done", self.done - 1) + 1
        self.sent += [told["sent"]] if "sent" in told else []

    async def check(self) -> None:
        """Let what waits run, then count: each key once, each acknowledged message once."""
        config = Config(store=StoreConfig(self.folder), model="talker", compaction=COMPACTION)
        async with open_supervisor(config, providers={"talker": Talker()}, environ={}) as service:
            said: Counter[str] = Counter()
            for name in self.sessions.values():
                await _quiet(service, name)
                messages = await _messages(service, name)
                assert_valid_transcript(messages)
                for each in messages:
                    if isinstance(each, UserMessage | ContextMessage):
                        said.update(NOTE.findall(each.content) or [each.content])
                assert_whole_turns(await _log(service, name))
        for number in range(self.done):
            assert (said[f"queue {number}"], said[f"steer {number}"]) == (1, 1), number
        assert max(said.values(), default=1) == 1, "something was said twice"
        assert not set(self.sent) - set(said), "an acknowledged message is lost"
        assert not [each for each in examine(StoreConfig(self.folder)).findings if each.level == "problem"]


async def _quiet(service: SessionService, session_id: str) -> None:
    """Wait until nothing that begins a turn waits, no turn runs, and none waits to go on."""
    while await _busy(service, session_id):  # noqa: ASYNC110 - what an earlier process left is seen in the store alone
        await trio.sleep(0.01)


async def _busy(service: SessionService, session_id: str) -> bool:
    waits = any(each.starts for each in await service.inputs(session_id))
    state = (await service.read(session_id)).state
    return waits or state.is_active or state.turn is not None


async def _messages(service: SessionService, session_id: str) -> list[Message]:
    found: list[Message] = []
    while page := (await service.history(session_id, offset=len(found), limit=500)).messages:
        found += [each.message for each in page]
    return found


async def _log(service: SessionService, session_id: str) -> list[Any]:
    """Return the events up to the end of a turn of its own."""
    found: list[Any] = []
    async with trio.open_nursery() as nursery, service.subscribe(session_id, after_seq=0) as events:
        nursery.start_soon(service.start_turn, session_id, "the last")
        last = False
        async for each in events:
            found.append(each.event)
            last = last or (isinstance(each.event, RunStarted) and each.event.prompt == "the last")
            if last and isinstance(each.event, TERMINAL):
                break
    return found


@pytest.mark.time_limit(120)
async def test_killed_while_things_are_said(tmp_path: Path) -> None:
    """After every kill each key's prompt runs exactly once, and no acknowledged message is lost or doubled."""
    world = World(tmp_path, random.Random(7))  # noqa: S311 - the same moments each time
    while world.lives < 4 or world.done < 2 or len(world.sent) < 2:
        await world.live()
    await world.check()


@pytest.mark.soak
@pytest.mark.time_limit(7200)
async def test_killed_while_things_are_said_for_long(tmp_path: Path, soak_seconds: float) -> None:
    """The same for as long as asked, with luck of its own."""
    seed = int.from_bytes(os.urandom(4))
    chance = random.Random(seed)  # noqa: S311 - it hides nothing
    end, number = time.monotonic() + soak_seconds, 0
    try:
        while not number or time.monotonic() < end:
            world = World(tmp_path / str(number), chance)
            number += 1
            for _ in range(10):
                await world.live()
            await world.check()
    except Exception as exc:
        exc.add_note(f"seed {seed}")
        raise


async def test_a_session_that_is_at_work_elsewhere_takes_no_prompt_here(tmp_path: Path) -> None:
    """A prompt that is queued to it is refused in words that name the process, and nothing of it is stored."""
    async with other(tmp_path, lease=3600) as owner, here(tmp_path) as service:
        await owner.begin_to_wait()
        with pytest.raises(LeasedError, match="the other program"):
            await service.start_turn(owner.session_id, "mine", mode="queue", idempotency_key="k")
        assert await service.inputs(owner.session_id) == ()
        owner.process.kill()
        await owner.process.wait()
        again = await service.start_turn(owner.session_id, "mine", mode="queue", idempotency_key="k")
        assert again.text == "mine"


async def test_peers_in_two_processes(tmp_path: Path) -> None:
    """A peer that another process has is known, and what is sent to it is in its inbox at once."""
    async with here(tmp_path) as service, here(tmp_path) as elsewhere:
        ann = (await service.create_session(None, peer=Peer("ann", ("bob",)))).session_id
        bob = (await elsewhere.create_session(None, peer=Peer("bob", ("ann",)))).session_id
        assert await service.peers(ann) == (PeerInfo("bob", reachable=True),)
        message_id = await service.send_message(ann, "bob", "hello")
        for each in (service, elsewhere):
            assert [(said.input_id, said.source) for said in await each.inputs(bob)] == [(message_id, "ann")]
