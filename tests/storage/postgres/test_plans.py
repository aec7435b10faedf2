"""The plans of the server: what is read of many sessions comes from an index, whatever the parameters are."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.storage.postgres.plans import BIG, MANY, Recorder
from tests.support.postgres import database
from warren.storage.postgres import inbox, queries
from warren.storage.postgres.driver import Value
from warren.storage.postgres.lease import Holder


async def statements() -> list[tuple[str, tuple[Value, ...]]]:
    """Return the statements of every read, with their values."""
    db, me = Recorder(), Holder("me", 15.0, key=1)
    reads = [
        queries.load(db, "s5", 1),  # type: ignore[arg-type]
        queries.record(db, "s5"),  # type: ignore[arg-type]
        queries.is_of(db, "default", "s5"),  # type: ignore[arg-type]
        queries.history(db, "s5", "default", 0, 100),  # type: ignore[arg-type]
        queries.messages(db, "s5", 0, 100),  # type: ignore[arg-type]
        queries.replay(db, "s5", 0, 1000),  # type: ignore[arg-type]
        queries.lost(db, "s5", "default", 2, me),  # type: ignore[arg-type]
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
            queries.listing(db, "default", offset=100, limit=50, include_archived=archived, keys=keys)  # type: ignore[arg-type]
            for keys in (None, [5, 6])
            for archived in (False, True)
        ),
        *(
            queries.marked(
                db,  # type: ignore[arg-type]
                "default",
                offset=100,
                limit=50,
                labels={"a": "b"},
                include_archived=archived,
            )
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
