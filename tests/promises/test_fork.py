"""Forks among real processes: one that is killed while it forks, one that has the session that is forked."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Final

import apsw
import pytest
import trio

from tests.promises.processes import here, other, soon
from warren.base.errors import LeasedError
from warren.conversation.records import Parent
from warren.settings.config import StoreConfig
from warren.storage.maintenance.doctor import examine
from warren.storage.sqlite.file import FILE_NAME

LIVES: Final = 4
TURNS: Final = 40


async def told(folder: Path, session_id: str, forks: int) -> list[str]:
    """Run the victim until it has told of so many forks, kill it at some moment, and return them all."""
    command = [sys.executable, "-m", "tests.promises.fork_victim", str(folder), session_id]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    lines = b""
    try:
        while lines.count(b"\n") < forks:
            lines += (chunk := await process.stdout.receive_some())
            assert chunk, "it ended"
        process.kill()
        async for chunk in process.stdout:
            lines += chunk
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            await process.stdout.aclose()
    return [json.loads(line)["fork"] for line in lines.splitlines() if line.endswith(b"}")]


async def test_killed_while_it_forks(tmp_path: Path) -> None:
    """After every kill each fork that was told of is there, and every one that is there is whole."""
    chance = random.Random(7)  # noqa: S311 - the same moments each time
    async with here(tmp_path) as service:
        session_id = (await service.create_session(None)).session_id
        for number in range(TURNS):
            await service.start_turn(session_id, f"word {number}")
    promised = [fork for _ in range(LIVES) for fork in await told(tmp_path, session_id, chance.randint(1, 30))]
    assert len(promised) >= LIVES
    db = apsw.Connection(str(tmp_path / FILE_NAME), flags=apsw.SQLITE_OPEN_READONLY)
    found = "SELECT session_id, count(position) FROM sessions LEFT JOIN messages ON session = key GROUP BY key"
    counts: dict[str, int] = {str(fork): int(str(count)) for fork, count in db.execute(found)}
    db.close()
    assert set(promised) <= counts.keys()
    assert set(counts.values()) == {2 * TURNS}
    assert not [each for each in examine(StoreConfig(tmp_path), full=True).findings if each.level == "problem"]
    async with here(tmp_path) as service:
        assert (await service.read(promised[-1])).state.parent == Parent(session_id, 2 * TURNS)
        assert (await service.start_turn(promised[-1], "go on")).text == "go on"


async def test_a_session_that_another_process_has(tmp_path: Path) -> None:
    """It can be forked, and the fork goes on here; its labels are that process's to change while a turn runs there."""
    async with other(tmp_path) as process, here(tmp_path) as service:
        fork = (await service.fork(process.session_id, labels={"from": "there"})).state
        assert (await service.start_turn(fork.session_id, "here")).text == "here"
        assert (await process.ask("there"))["text"] == "there"
        assert (await service.read(process.session_id)).state.message_count == 4
        await process.begin_to_wait()
        with pytest.raises(LeasedError, match="the other program"):
            await service.label(process.session_id, {"a": "b"})
        process.process.kill()
        await process.process.wait()
        view = await soon(lambda: service.label(process.session_id, {"a": "b"}))
        assert view.state.labels == {"a": "b"}
        assert (await service.start_turn(process.session_id, "mine")).text == "mine"
        assert (await service.read(process.session_id)).state.labels == {"a": "b"}
