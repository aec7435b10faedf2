"""The reply never comes before the last event, however slowly the client reads, and nothing is missing then."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.parity.outcome import check_numbers, joined
from tests.parity.scenarios.turns import PLAIN
from tests.parity.surface import TURN, Surface
from tests.parity.surfaces import SURFACES
from tests.parity.surfaces.wire import LATE, PAUSE
from tests.parity.world import BUILDS, SCRIPT, Setting, World
from tests.transport.cli.process import clean_environ

WORDS: Final = 3_000
TEXT: Final = " ".join(f"word-{number:04}-{'x' * 60}" for number in range(WORDS))
"""More than any queue, pipe or socket holds."""
SETTING: Final = Setting(({"text": "hello"}, {"text": TEXT}))
IN_PROCESS: Final = [surface for surface in SURFACES if not surface.per_process and surface.name != "cli-server"]
FULL: Final = 64 * 1024
"""The most bytes that a pipe holds, on the system with the largest ones."""


@pytest.mark.parametrize("surface", IN_PROCESS, ids=lambda surface: surface.name)
async def test_the_last_event_comes_first(surface: Surface, tmp_path: Path) -> None:
    """A turn of 200 KB: the reply is behind all of it, nothing is told after the reply."""
    world = World(BUILDS[1], SETTING, tmp_path)
    async with world.running(), surface.connect(world, slow=True) as client:
        session_id = (await client.first_turn("hi")).data["session_id"]
        before = (await world.log(session_id))[-1].seq
        turn = await client.call(TURN, session_id=session_id, prompt="go on")
        assert turn.data["text"] == TEXT
        assert turn.kinds == surface.kinds(PLAIN)
        log = await world.log(session_id, before)
        assert list(turn.events) == surface.shown(joined(envelope.event for envelope in log))
        check_numbers(turn.seqs)
        heard = _heard(client)
        await client.call("session/list")
        assert _heard(client) == heard


def _heard(client: Any) -> list[Mapping[str, Any]]:
    """Return what has come over a connection besides replies, but for what is not about events."""
    wire = getattr(client, "wire", None)
    return [] if wire is None else list(wire.heard)


def test_the_result_of_a_command_comes_last(tmp_path: Path) -> None:
    """`warren run` into one slow pipe: every event is before the result, and the turn was stored before it is shown."""
    (tmp_path / SCRIPT).write_text(json.dumps({"steps": [{"text": TEXT}]}), encoding="utf-8")
    argv = [f"--model=scripted:{SCRIPT}", "--output=json", "--verbose", "hi"]
    with subprocess.Popen(
        [sys.executable, "-m", "warren", "run", *argv],
        cwd=tmp_path,
        env=clean_environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as command:
        *events, result = [json.loads(line) for line in _slowly(command).splitlines()]
    assert command.returncode == 0
    assert result["text"] == TEXT
    assert [event["event"]["type"] for event in events[-2:]] == list(PLAIN[-2:])
    check_numbers([(event["seq"], event["seq"]) for event in events])
    assert "".join(event["event"].get("delta", "") for event in events) == TEXT


def _slowly(command: "subprocess.Popen[bytes]") -> bytes:
    """Return all that a command writes, read late and with pauses."""
    assert command.stdout is not None
    time.sleep(LATE)
    read = b""
    while chunk := os.read(command.stdout.fileno(), FULL):
        read += chunk
        time.sleep(PAUSE)
    return read
