"""A turn costs the same at the end of a long session as at its beginning."""

import json
from decimal import Decimal
from pathlib import Path

import apsw
import attrs

from tests.faults import Disk, faulty_disk
from tests.storage.samples import NOW, kept, opened, step, turn, wait, written
from warren.conversation.attachments import Attachment
from warren.conversation.budget import Expense, Spent
from warren.conversation.open_turn import OpenTurn, TurnStart
from warren.conversation.options import TurnOptions
from warren.conversation.usage import Usage
from warren.storage.operations import Commit
from warren.storage.rows import COLUMNS, record_to_row, turn_in
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


def test_a_step_stores_no_part_of_its_turn_that_is_at_its_default() -> None:
    """The row of a session is written whole with each step: a plain turn has few members there, any turn comes back."""
    columns = [each.strip() for each in COLUMNS.split(",")]

    def stored(turn: OpenTurn) -> str:
        row = dict(zip(columns, record_to_row(step("a").record.changed(turn=turn)), strict=True))
        assert turn_in(row["turn"], 1) == attrs.evolve(turn, wakes=None)
        return str(row["turn"])

    plain = OpenTurn(NOW, 1, 3, 0, TurnStart(0, 0, Usage(), Spent(0, 0, 0, 0)))
    assert set(json.loads(stored(plain))) == {"began", "first_seq", "kept_seq", "prompt_at", "start"}
    cost, file = Usage(1, 2, 3, 4, estimated=True, cost=Decimal("0.5")), Attachment("image/png", "f" * 64, 7, "a.png")
    more = OpenTurn(
        began=NOW,
        first_seq=1,
        kept_seq=3,
        prompt_at=0,
        start=TurnStart(4, 5, cost, Spent(1, 2.5, 3, 4)),
        options=TurnOptions(max_tokens=9, durability="step"),
        payer="me",
        key="key",
        hops=2,
        traceparent="00-trace",
        inputs=(1, 2),
        usage=cost,
        spent=Spent(5, 6.5, 7, 8),
        step_usage=cost,
        calls=9,
        cuts=1,
        answer="{}",
        text="text",
        stop_reason="tool_use",
        resumed=3,
        deaths=4,
        parked=True,
        wakes=NOW,
        files=(file,),
        lives=5,
        warned=("turn.tokens",),
        delegated=Expense(1, 2.5, 3, 4, 0.5),
    )
    assert [each.name for each in attrs.fields(OpenTurn) if getattr(more, each.name) == each.default] == []
    assert set(json.loads(stored(more))) == {each.name for each in attrs.fields(OpenTurn)} - {"wakes"}


def _long(session_id: str, first: int, last: int) -> list[Commit]:
    return [turn(session_id, number, text="word " * 100) for number in range(first, last)]
