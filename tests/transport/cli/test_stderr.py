"""A stderr that nobody reads holds up no command."""

import io
import json
import logging
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

import pytest

from tests.transport.cli.process import Cli
from tests.transport.cli.serving import connected
from warren.transport.cli.terminal import stderr
from warren.transport.cli.terminal.stderr import BackgroundText

LINE: Final = "x" * 99


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """Yield the two ends of a pipe."""
    reader, writer = os.pipe()
    try:
        yield reader, writer
    finally:
        os.close(writer)
        os.close(reader)


def fill(writer: int) -> int:
    """Fill a pipe; return the bytes that it has taken."""
    size = 0
    os.set_blocking(writer, False)
    try:
        while True:
            size += os.write(writer, b"." * 4096)
    except BlockingIOError:
        return size
    finally:
        os.set_blocking(writer, True)


@pytest.fixture
def full() -> Iterator[IO[bytes]]:
    """Yield a pipe that is full, and that nobody reads."""
    with pipe() as (_, writer):
        fill(writer)
        yield io.FileIO(writer, "w", closefd=False)


def read(reader: int, size: int) -> str:
    """Read a number of bytes."""
    found = b""
    while len(found) < size:
        found += os.read(reader, size - len(found))
    return found.decode()


def test_lines_wait_for_the_reader() -> None:
    """A writer never waits; lines beyond the bound are dropped, and the reader is told how many."""
    with pipe() as (reader, writer):
        before = fill(writer)
        text = BackgroundText(writer, "utf-8")
        handler = logging.StreamHandler(text)
        logging.getLogger(stderr.__name__).addHandler(handler)
        try:
            many = 2 * stderr.MOST // (len(LINE) + 1)
            for number in range(many):
                text.write(f"{number:06}{LINE[6:]}\n")
            assert not text.settle(0.01)
            read(reader, before)
            kept = ""
            while not kept.endswith("nobody has read it\n"):
                kept += os.read(reader, 65536).decode()
        finally:
            logging.getLogger(stderr.__name__).removeHandler(handler)
        assert text.settle(10)
    *lines, last = kept.splitlines()
    assert lines == [f"{number:06}{LINE[6:]}" for number in range(len(lines))]
    found = re.fullmatch(r"(\d+) lines of stderr were dropped, as nobody has read it", last)
    assert found is not None
    assert int(found[1]) == many - len(lines) > 0


def test_a_reader_that_has_left() -> None:
    """What is written is gone, and nothing waits for it."""
    reader, writer = os.pipe()
    os.close(reader)
    text = BackgroundText(writer, "utf-8")
    text.write("nobody hears this\n" * 10_000)
    assert text.settle(10)
    os.close(writer)


@pytest.mark.parametrize("more", [[], ["--verbose"]])
def test_a_command_ends(cli: Cli, full: IO[bytes], more: list[str]) -> None:
    """Its answer is on stdout, and its exit code as with a reader."""
    ended = cli.start("run", "--ephemeral", *more, "hello", stderr=full).end()
    assert (ended.code, ended.out) == (0, "hello\n")


def test_a_failed_command_ends(cli: Cli, full: IO[bytes]) -> None:
    """With the exit code of its error."""
    assert cli.start("resume", "last", "hello", stderr=full).end().code != 0


@pytest.mark.parametrize("command", ["rpc", "mcp"])
def test_a_server_on_a_pipe_answers(cli: Cli, full: IO[bytes], command: str) -> None:
    """Each of many requests, of which it logs some, until its input ends."""
    running = cli.start(command, "--ephemeral", "--verbose", stderr=full)
    assert running.process.stdin is not None
    for number in range(2_000):  # the notification is refused, which is logged
        lines = [
            {"jsonrpc": "2.0", "method": "turn/interrupt", "params": {"session_id": 3}},
            {"jsonrpc": "2.0", "id": number, "method": "ping"},
        ]
        running.process.stdin.write(b"".join(json.dumps(each).encode() + b"\n" for each in lines))
        running.process.stdin.flush()
        running.read_until(f'"id":{number}')
    assert running.end().code == 0


async def test_a_gateway_serves(cli: Cli, full: IO[bytes]) -> None:
    """With everything in its log; it ends in time after SIGTERM."""
    running = cli.start("serve", "--ephemeral", "--port", "0", "--drain", "4s", "--verbose", stderr=full)
    first = running.read_until("\n")
    async with connected(first.removeprefix("listening on ").strip().replace("http", "ws") + "/ws") as client:
        for _ in range(20):
            result = await client.call("session/create", prompt="hello")
            assert result["text"] == "hello"
    running.signal(signal.SIGTERM)
    assert running.end().code == 0
