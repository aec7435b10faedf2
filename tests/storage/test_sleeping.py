"""Ten thousand turns that sleep cost those who look for work, or for what is asked, no more than a few do."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import apsw
import attrs
import pytest

from tests.storage.samples import NOW, opened, step, turn, wait, written
from warren.conversation.inputs import Input
from warren.conversation.views import TURN_STATES
from warren.settings.config import StoreConfig
from warren.storage.operations import Enqueue, Release
from warren.storage.queries import (
    ANY_TENANT,
    InTurn,
    NextWake,
    OpenTurns,
    Query,
    SessionList,
    WaitingSessions,
    WaitList,
)
from warren.storage.rows import microseconds
from warren.storage.sqlite import Holder
from warren.storage.sqlite.file import FILE_NAME
from warren.storage.sqlite.queries import answer

SLEEPERS: Final = 10_000
WAKES: Final = datetime(2126, 1, 1, tzinfo=UTC)
READS: Final[list[Query[Any]]] = [
    WaitingSessions(),
    NextWake(),
    WaitList("default", ["approval"]),
    WaitList("other", ["approval", "question"]),
]
# Copies of the session with the key 1, and of what it waits for: with keys from 1001 on.
COPY: Final = """
    WITH RECURSIVE n (i) AS (SELECT 1001 UNION ALL SELECT i + 1 FROM n LIMIT {count})
    INSERT INTO {table} ({names}) SELECT {values} FROM n, {table} WHERE {key} = 1
"""


@contextmanager
def sleeping(path: Path, count: int, *, idle: bool = False) -> Iterator[apsw.Connection]:
    """Open the file of a store with so many copies more of the session `asleep`; an idle one has no open turn."""
    of_turn = {"turn": "NULL", "wakes": "NULL"} if idle else {}
    with closing(apsw.Connection(str(path / "store" / FILE_NAME))) as db:
        db.execute("BEGIN")
        for table, key, changed in (
            ("sessions", "key", {"key": "i", "session_id": "'s' || i", "change": "i", **of_turn}),
            ("waits", "session", {"key": "i", "session": "i", "since": f"{microseconds(WAKES)} - i"}),
        ):
            names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            values = ", ".join(changed.get(name, f"{table}.{name}") for name in names)
            db.execute(COPY.format(count=count, table=table, names=", ".join(names), values=values, key=key))
        yield db
        db.execute("ROLLBACK")


def steps(db: apsw.Connection, query: Query[Any], config: StoreConfig) -> int:
    """Return how many instructions of SQLite's machine a query takes."""
    count = 0

    def one() -> bool:
        nonlocal count
        count += 1
        return False

    db.set_progress_handler(one, 1)
    answer(db, Holder.of(config), query)
    db.set_progress_handler(None)
    return count


async def fill(path: Path) -> None:
    """Store a turn that sleeps, and some that go on."""
    async with opened(path) as store:
        await written(store, attrs.evolve(step("asleep", wakes=WAKES), waits=(wait(0),)))
        await written(store, *(step(f"awake {number}") for number in range(5)))
        await written(store, Release("asleep", step("asleep").lease))


@pytest.mark.parametrize(
    ("query", "idle"),
    [
        *((query, False) for query in READS),
        *((query, True) for query in (*READS, OpenTurns(ANY_TENANT), OpenTurns("default"))),
        *((SessionList("default", in_turn=InTurn(state)), True) for state in TURN_STATES),
    ],
)
async def test_a_file_is_not_searched_for_work(tmp_path: Path, query: Query[Any], *, idle: bool) -> None:
    """A query takes as many instructions beside ten thousand sleeping turns, or idle sessions, as beside a hundred."""
    await fill(tmp_path)
    counted = list[int]()
    config = StoreConfig(tmp_path / "store")
    for count in (100, SLEEPERS):
        with sleeping(tmp_path, count, idle=idle) as db:
            counted.append(steps(db, query, config))
    few, many = counted
    assert 10 < many < 1.2 * few + 50


@pytest.mark.parametrize("query", READS[:2], ids=lambda query: type(query).__name__)
async def test_inputs_that_wait_for_a_time_are_passed_over(query: Query[Any], tmp_path: Path) -> None:
    """Ten thousand of them cost no more than a few."""
    later = Input("i", "queue", "water", NOW, not_before=WAKES)
    async with opened(tmp_path) as store:
        await written(store, turn("a"), Enqueue("a", later, 9), Enqueue("a", attrs.evolve(later, input_id="j"), 9))
    copy = """
        WITH RECURSIVE n (i) AS (SELECT 1001 UNION ALL SELECT i + 1 FROM n LIMIT {})
        INSERT INTO inbox (number, session, id, starts, body, not_before)
        SELECT i, session, id || i, starts, body, not_before + i FROM n, inbox WHERE id = 'i'
    """
    counted = list[int]()
    for count in (100, SLEEPERS):
        with closing(apsw.Connection(str(tmp_path / "store" / FILE_NAME))) as db:
            db.execute("BEGIN")
            db.execute(copy.format(count))
            counted.append(steps(db, query, StoreConfig(tmp_path / "store")))
            db.execute("ROLLBACK")
    few, many = counted
    assert 10 < many < 1.2 * few + 50
