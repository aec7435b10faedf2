"""A gateway that is killed again and again: what it has acknowledged is there, whole, once."""

import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from trio_websocket import ConnectionClosed, HandshakeError

from tests.support.checks import assert_valid_transcript
from tests.transport.clients import connect
from warren import codec
from warren.storage.file import FILE_NAME

SESSIONS = 5


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[trio.Process, int]]:
    """Run `warren serve` in a process of its own."""
    command = [sys.executable, "-m", "warren", "serve", "--port", "0", "--store", str(folder), "--model", "echo"]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            chunk = await process.stdout.receive_some()
            assert chunk, "the gateway ended before it listened"
            line += chunk
        yield process, int(line.rsplit(b":", 1)[1])
    finally:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                process.kill()
            await process.wait()
            if process.stdout is not None:
                await process.stdout.aclose()


async def converse(port: int, session_id: str, said: list[str], number: int) -> None:
    """Run turn after turn until the gateway is gone; note each prompt whose answer has come."""
    try:
        async with connect(port) as talker:
            while True:
                prompt = f"{number}-{len(said)}"
                await talker.call("turn/start", session_id=session_id, prompt=prompt)
                said.append(prompt)
    except* (ConnectionClosed, HandshakeError, OSError, trio.BrokenResourceError):
        pass


async def one_life(folder: Path, said: dict[str, list[str]], number: int, seconds: float) -> None:
    """Serve, talk, and kill in the middle of it."""
    async with served(folder) as (process, port):
        if not said:
            async with connect(port) as first:
                for _ in range(SESSIONS):
                    said[(await first.call("session/create", prompt=None))["session_id"]] = []
        async with trio.open_nursery() as nursery:
            for session_id, prompts in said.items():
                nursery.start_soon(converse, port, session_id, prompts, number)
            await trio.sleep(seconds)
            process.send_signal(signal.SIGKILL)
            await process.wait()


def check(folder: Path, said: dict[str, list[str]]) -> None:
    """Look into the file: everything acknowledged is there once and in order, and the rest is whole."""
    db = apsw.Connection(str(folder / FILE_NAME))
    assert db.pragma("integrity_check") == "ok"
    for session_id, prompts in said.items():
        key = db.execute("SELECT key FROM sessions WHERE session_id = ?", (session_id,)).get
        bodies: list[Any] = db.execute(
            "SELECT body FROM messages WHERE session = ? ORDER BY position", (key,)
        ).fetchall()
        transcript = [codec.decode_message(body) for (body,) in bodies]
        assert_valid_transcript(transcript)
        asked = [message.content for message in transcript[::2] if hasattr(message, "content")]
        assert [prompt for prompt in asked if prompt in set(prompts)] == prompts
        assert len(set(asked)) == len(asked) == len(transcript) // 2
        seqs: list[Any] = db.execute(
            "SELECT first_seq, seq FROM events WHERE session = ? ORDER BY seq", (key,)
        ).fetchall()
        assert all(last < first for (_, last), (first, _) in itertools.pairwise(seqs))
    db.close()


async def lives(folder: Path, count: int, seed: int) -> None:
    """Go through so many lives, each of another length."""
    chance = random.Random(seed)  # noqa: S311 - it hides nothing
    said: dict[str, list[str]] = {}
    for number in range(count):
        await one_life(folder, said, number, chance.uniform(0.05, 0.4))
        check(folder, said)
    assert sum(map(len, said.values())) > count


async def test_a_gateway_that_is_killed_a_few_times(tmp_path: Path) -> None:
    """After each kill every acknowledged turn is there, whole and once, and the sessions go on."""
    await lives(tmp_path / "store", 3, seed=1)


@pytest.mark.soak
@pytest.mark.time_limit(7200)
async def test_a_gateway_that_is_killed_for_long(tmp_path: Path, soak_seconds: float) -> None:
    """The same, for as long as asked."""
    await lives(tmp_path / "store", max(20, int(soak_seconds)), seed=int.from_bytes(os.urandom(4)))
