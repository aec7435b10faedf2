"""Processes that wait for the lock of a file get it in order."""

import time
from pathlib import Path

import trio

from tests.storage.samples import opened, turn, written
from warren.storage.runner import thread_runner
from warren.storage.sqlite.queueing import PATIENCE, Queue

GROUPS = 400


async def test_nobody_waits_while_another_process_writes_group_after_group(tmp_path: Path) -> None:
    """A process that wants to write gets the lock after a few groups of one that never rests."""
    async with opened(tmp_path, runner=thread_runner) as busy, opened(tmp_path, runner=thread_runner) as patient:
        done = 0

        async def write_on() -> None:
            nonlocal done
            while done < GROUPS:
                await busy.write([turn(f"busy-{done}-{number}") for number in range(20)])
                done += 1

        waits = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_on)
            for number in range(15):
                before = done
                assert await patient.write([turn(f"patient-{number}")]) == [None]
                waits.append(done - before)
            nursery.cancel_scope.cancel()
        assert max(waits) < 10, waits


async def test_the_first_write_of_a_process_waits_in_order_too(tmp_path: Path) -> None:
    """A process that comes while others write waits in the queue to be known in the file, and then to write."""
    async with opened(tmp_path) as late:
        busy = Queue(tmp_path / "store" / "holders")
        with busy.ahead():
            begun = time.monotonic()
            await written(late, turn("late"))
            assert time.monotonic() - begun >= 2 * PATIENCE
        busy.close()


def test_the_next_one_waits_behind_one_that_waits(tmp_path: Path) -> None:
    """Whoever holds the first place lets nobody pass before its time is up; a place that is left is free at once."""
    first, second = Queue(tmp_path), Queue(tmp_path)
    with first.ahead():
        begun = time.monotonic()
        with second.ahead():
            assert time.monotonic() - begun >= PATIENCE
    begun = time.monotonic()
    with second.ahead(), first.ahead():
        pass
    assert time.monotonic() - begun >= PATIENCE
    first.close()
    begun = time.monotonic()
    with second.ahead():
        assert time.monotonic() - begun < PATIENCE
    second.close()


def test_without_the_folder_nobody_waits(tmp_path: Path) -> None:
    """A folder that cannot be made keeps no queue, and holds no write up."""
    (tmp_path / "holders").write_text("no folder")
    queue = Queue(tmp_path / "holders")
    with queue.ahead(), queue.ahead():
        pass
    queue.close()
