"""The plans of the server: what is read of many sessions comes from an index, whatever the parameters are."""

from collections.abc import Iterator

import attrs
import psycopg
import pytest

from tests.support.postgres import database
from warren.storage.postgres import inbox, queries
from warren.storage.postgres.driver import Row, Value
from warren.storage.postgres.lease import Holder

MANY = """
    INSERT INTO warren.sessions (session_id, created_at, updated_at, state, model, turns, steps, message_count,
        last_seq, head, labels, marks, details)
    SELECT 's' || i, i, (i * 7919) % 20000, CASE WHEN i % 10 = 0 THEN 1 ELSE 0 END, 'm', 1, 1, 2, 3, 0, '{}',
        CASE WHEN i % 500 = 0 THEN ARRAY['["a","b"]'] ELSE '{}' END, '{}' FROM generate_series(1, 20000) i;
    INSERT INTO warren.messages SELECT i, p, 0, 'x' FROM generate_series(1, 20000) i, generate_series(0, 1) p;
    INSERT INTO warren.events SELECT i, p, p, 0, 'x', NULL FROM generate_series(1, 20000) i, generate_series(1, 3) p;
    ANALYZE
"""
BIG = ("sessions", "messages", "events")


@attrs.define
class Recorder:
    """A connection that notes its statements and finds nothing."""

    noted: list[tuple[str, tuple[Value, ...]]] = attrs.field(factory=list)

    async def fetch(self, sql: str, *values: Value) -> list[Row]:
        self.noted.append((sql, values))
        return [(0,)] if "pg_current_snapshot()" in sql and "FROM" not in sql else []  # it has to have a row

    async def script(self, _sql: str) -> int:
        return 0

    async def roll_back(self) -> None:
        pass


async def statements() -> list[tuple[str, tuple[Value, ...]]]:
    """Return the statements of every read, with their values."""
    db, me = Recorder(), Holder("me", 15.0, key=1)
    reads = [
        queries.load(db, "s5", 1),  # type: ignore[arg-type]
        queries.record(db, "s5"),  # type: ignore[arg-type]
        queries.is_of(db, "default", "s5"),  # type: ignore[arg-type]
        queries.history(db, "s5", 0, 100),  # type: ignore[arg-type]
        queries.messages(db, "s5", 0, 100),  # type: ignore[arg-type]
        queries.replay(db, "s5", 0, 1000),  # type: ignore[arg-type]
        queries.lost(db, "s5", 2, me),  # type: ignore[arg-type]
        queries.sessions_that_wait(db, 1),  # type: ignore[arg-type]
        queries.was_told(db, "s5", "i", "p", "t"),  # type: ignore[arg-type]
        queries.named(db, "default", "p"),  # type: ignore[arg-type]
        queries.creation(db, "default", "k"),  # type: ignore[arg-type]
        queries.handed_over(db, "s5", 1),  # type: ignore[arg-type]
        queries.news(db, 1, ["s5", "s6"], 0),  # type: ignore[arg-type]
        queries.holder(db, "s5", 1),  # type: ignore[arg-type]
        queries.held(db, ["s5", "s6"]),  # type: ignore[arg-type]
        queries.nodes(db, 1),  # type: ignore[arg-type]
        inbox.waiting(db, "s5"),  # type: ignore[arg-type]
        *(
            queries.listing(
                db,  # type: ignore[arg-type]
                "default",
                offset=100,
                limit=50,
                labels=labels,
                include_archived=archived,
            )
            for labels in ({}, {"a": "b"})
            for archived in (False, True)
        ),
    ]
    for each in reads:
        await each
    return db.noted


@pytest.fixture
def db() -> Iterator["psycopg.Connection[tuple[str]]"]:
    """Open a database with many sessions, whose plans must fit all parameters."""
    with database() as url, psycopg.connect(url, autocommit=True, prepare_threshold=None) as opened:
        opened.execute(MANY.encode())
        opened.execute(b"SET plan_cache_mode = force_generic_plan")
        yield opened


async def test_no_read_goes_through_a_whole_table(db: "psycopg.Connection[tuple[str]]") -> None:
    """Neither a page of sessions nor anything of one session depends on the number of all sessions."""
    for sql, values in await statements():
        db.execute(f"PREPARE read AS {sql}".encode())
        given = psycopg.sql.SQL("({})").format(psycopg.sql.SQL(", ").join(map(psycopg.sql.Literal, values)))
        plan = db.execute(psycopg.sql.SQL("EXPLAIN EXECUTE read {}").format(given if values else psycopg.sql.SQL("")))
        lines = [line for (line,) in plan.fetchall()]
        assert not [line for line in lines if any(f"Seq Scan on {table}" in line for table in BIG)], "\n".join(lines)
        db.execute(b"DEALLOCATE read")
