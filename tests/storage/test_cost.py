"""A turn costs the same at the end of a long session as at its beginning."""

from pathlib import Path

import apsw
import attrs

from tests.faults import Disk, faulty_disk
from tests.storage.samples import kept, opened, step, turn, wait, written
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


async def test_a_text_turn_looks_at_no_tool_call(tmp_path: Path) -> None:
    """No statement of it is about tool calls or what they wait for; a step has one for each of both."""
    said = list[str]()

    def listen(db: apsw.Connection) -> None:
        db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: said.append(event["sql"]))

    async def about_calls(*commits: Commit) -> list[str]:
        said.clear()
        await written(store, *commits)
        assert said
        return [" ".join(each.split()[:3]) for each in said if "calls" in each or "waits" in each]

    apsw.connection_hooks.append(listen)
    try:
        async with opened(tmp_path) as store:
            first = step("b", calls=(kept(0),))
            base = first.record.message_count, first.record.last_seq
            assert await about_calls(turn("a")) == []
            assert await about_calls(attrs.evolve(turn("a", 1), base=(2, 3))) == []
            opens = ["DELETE FROM calls", "UPDATE waits SET", "INSERT INTO calls"]
            assert await about_calls(first) == opens
            later = attrs.evolve(Commit(first.record, base=base), calls=(kept(0, result="x"),))
            assert await about_calls(later) == opens[2:]
            waits = attrs.evolve(later, calls=(), waits=(wait(0), wait(1)))
            assert await about_calls(waits) == ["INSERT INTO waits"] * 2
    finally:
        apsw.connection_hooks.remove(listen)


def _long(session_id: str, first: int, last: int) -> list[Commit]:
    return [turn(session_id, number, text="word " * 100) for number in range(first, last)]
