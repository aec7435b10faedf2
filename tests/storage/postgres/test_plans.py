"""The plans of the server: what is read of many sessions comes from an index, whatever the parameters are."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg
import pytest

from tests.storage.postgres.plans import BIG, MANY, Recorder
from tests.support.postgres import database
from warren.storage.postgres.driver import Value
from warren.storage.postgres.guard import Guard
from warren.storage.postgres.lease import Holder
from warren.storage.postgres.queries import answer
from warren.storage.queries import (
    ANY_TENANT,
    Children,
    CreatedUnder,
    HandoverAnswer,
    HasSession,
    Holders,
    LivingNodes,
    LostEvents,
    NextWake,
    OpenTurns,
    OpenWaits,
    PeerNamed,
    Query,
    SessionHolder,
    SessionList,
    SessionRow,
    SessionStart,
    StoredEvents,
    StoredHistory,
    StoredMessages,
    StoredWait,
    StoreNews,
    WaitingInputs,
    WaitingSessions,
    WaitList,
    WasTold,
)

READS: Final[Sequence[Query[Any]]] = [
    SessionStart("s5"),
    SessionRow("s5", ANY_TENANT),
    SessionRow("s5", "default"),
    HasSession("s5", "default"),
    StoredHistory("s5", "default"),
    StoredMessages("s5"),
    StoredEvents("s5"),
    LostEvents("s5", "default", 2),
    WaitingSessions(),
    OpenTurns(ANY_TENANT),
    OpenTurns("default"),
    WasTold("s5", "i", "p", "t"),
    PeerNamed("default", "p"),
    CreatedUnder("default", "k"),
    HandoverAnswer("s5"),
    StoreNews(["s5", "s6"], 0),
    SessionHolder("s5", ANY_TENANT),
    Children("s5", "default"),
    Holders(["s5", "s6"]),
    LivingNodes(),
    WaitingInputs("s5", ANY_TENANT),
    StoredWait("s5", "default", "call-0", ["approval"]),
    OpenWaits(["s5", "s6"]),
    *(
        SessionList("default", 100, 50, labels, include_archived)
        for labels in ({}, {"a": "b"})
        for include_archived in (False, True)
    ),
]
"""Queries of which none may read a whole table."""


async def statements(reads: Sequence[Query[Any]] = READS) -> list[tuple[str, tuple[Value, ...]]]:
    """Return the statements of queries, with their values."""
    recorder, me = Recorder(), Holder("me", 15.0, key=1)
    for query in reads:
        await answer(recorder, me, Guard(None), query)  # type: ignore[arg-type]
    return recorder.noted


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


ASLEEP: Final = """
    UPDATE warren.sessions SET turn = '{}', wakes = 4922683200000000 + key WHERE key % 2 = 0;
    INSERT INTO warren.waits (session, tenant, reason, wait_id, state, since, until, body)
    SELECT key, 'default', 'approval', 'call-0', 'waiting', key, key, '{}' FROM warren.sessions WHERE key % 2 = 0;
    VACUUM ANALYZE
"""
"""Ten thousand turns that sleep, each of which waits for an approval."""


async def test_ten_thousand_turns_that_sleep_are_not_read(db: "psycopg.Connection[tuple[str]]") -> None:
    """Neither by those who look for work, nor for a page of what is asked: each reads a few pages of an index."""
    for each in ASLEEP.split(";"):
        db.execute(each.encode())
    lists = WaitList("default", ["approval", "question"]), WaitList("other", ["approval"])
    for sql, values in await statements([WaitingSessions(), NextWake(), *lists]):
        db.execute(f"PREPARE read AS {sql}".encode())
        given = psycopg.sql.SQL("({})").format(psycopg.sql.SQL(", ").join(map(psycopg.sql.Literal, values)))
        explain = psycopg.sql.SQL("EXPLAIN (ANALYZE, BUFFERS) EXECUTE read {}")
        found = db.execute(explain.format(given if values else psycopg.sql.SQL(""))).fetchall()
        plan = "\n".join(line for (line,) in found)
        pages = sum(map(int, re.findall(r"\d+", next(line for (line,) in found if "Buffers:" in line))))
        assert pages < 300, plan  # for a page of fifty waits, their sessions are looked up one by one
        db.execute(b"DEALLOCATE read")
