"""A turn costs the same at the end of a long session as at its beginning."""

from pathlib import Path

from tests.faults import Disk, faulty_disk
from tests.storage.samples import opened, turn, written
from warren.storage.operations import Commit
from warren.storage.sqlite import SqliteStore

LONG = 3_000


async def _bytes_per_turn(store: SqliteStore, disk: Disk, session_id: str, first: int) -> float:
    """Write twenty turns one by one and return the bytes that each wrote to the disk."""
    before = disk.written
    for number in range(first, first + 20):
        await written(store, turn(session_id, number, text="word " * 100))
    return (disk.written - before) / 20


async def test_turn_three_thousand_writes_no_more_than_turn_ten(tmp_path: Path) -> None:
    """Bytes written and flushes by a turn stay flat along a session, alone in its file or among others."""
    with faulty_disk() as disk:
        async with opened(tmp_path) as store:
            await written(store, *_long("a", 0, 10))
            early = await _bytes_per_turn(store, disk, "a", 10)
            await written(store, *_long("a", 30, LONG), *_long("b", 0, LONG))
            late = await _bytes_per_turn(store, disk, "a", LONG)
            syncs = disk.syncs
            await written(store, turn("b", LONG))
            assert disk.syncs == syncs + 1
    assert late <= 1.2 * early


def _long(session_id: str, first: int, last: int) -> list[Commit]:
    return [turn(session_id, number, text="word " * 100) for number in range(first, last)]
