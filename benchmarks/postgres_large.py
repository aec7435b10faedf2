"""Does a large database slow one session down? A million sessions with ten million events against a thousand.

`python -m benchmarks.postgres_large [SESSIONS [ROUNDS]]`, 1,000,000 and 100 unless given; so many need 10 GB of disk.
Both databases are on one server, started for it with the settings of a new one; each question goes to both in turn,
each time about another session. The rows are made by the server: a million turns through the runtime would take hours.
A machine without PostgreSQL leaves it out.
"""

import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final

import psycopg
import trio
from tests.support.postgres import Server, available, fill

from benchmarks.models import FixedModel
from benchmarks.report import Goal, report
from warren import Config, PostgresConfig, SessionService, open_supervisor
from warren.transport.cli.process.tuning import tune

SESSIONS: Final = 1_000_000
SMALL: Final = 1_000
MESSAGES: Final = 4
EVENTS: Final = 10
ROUNDS: Final = 100
COMMON: Final = 10
"""One of so many sessions has the label `team=red`."""
RARE: Final = 20
"""So many sessions have the label `case=lost`, whatever the size."""
# Rows of turns that ran side by side are mixed: the first rows of all sessions, then the second ones.
_ROWS: Final = (
    """
    INSERT INTO warren.sessions (session_id, created_at, updated_at, state, model, turns, steps, message_count,
        last_seq, head, labels, marks, details)
    SELECT '0190a000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'), 1700000000000000 + i, 1700000000000000 + i, 0,
        'fixed', %(messages)s / 2, %(messages)s / 2, %(messages)s, %(events)s, 0,
        CASE WHEN lost THEN '{"case":"lost"}' WHEN red THEN '{"team":"red"}' ELSE '{}' END,
        CASE WHEN lost THEN ARRAY['["case","lost"]'] WHEN red THEN ARRAY['["team","red"]'] ELSE '{}' END,
        '{"provider":"fixed"}'
    FROM (
        SELECT i, mod(i, %(sessions)s / %(rare)s) = 0 AS lost, mod(i, %(common)s) = 0 AS red
        FROM generate_series(1, %(sessions)s) i
    ) AS numbered ORDER BY i
    """,
    """
    INSERT INTO warren.messages (session, position, created_at, body)
    SELECT key, i, created_at, CASE mod(i, 2)
        WHEN 0 THEN '{"role":"user","content":"What is room ' || i || ' of the warren like?"}'
        ELSE '{"role":"assistant","blocks":[{"type":"text","text":"It is a burrow with many rooms, dug by rabbits over'
            || ' many years, and it is larger than it looks."}]}' END
    FROM generate_series(0, %(messages)s - 1) i, warren.sessions ORDER BY i, key
    """,
    """
    INSERT INTO warren.events (session, seq, first_seq, timestamp, body)
    SELECT key, i, i, created_at, '{"type":"turn_started","turn_number":' || i || '}'
    FROM generate_series(1, %(events)s) i, warren.sessions ORDER BY i, key
    """,
)
Ask = Callable[[SessionService, str], Awaitable[object]]


def make(server: Server, name: str, sessions: int) -> None:
    """Make a database with so many sessions, and do what the server does by itself within minutes after many rows came.

    Without statistics the server would guess how many rows a question finds.
    """
    server.run("postgres", f"CREATE DATABASE {name}")
    fill(server, name)
    values = {"sessions": sessions, "messages": MESSAGES, "events": EVENTS, "common": COMMON, "rare": RARE}
    with psycopg.connect(server.url(name), autocommit=True) as db:
        db.execute("SET synchronous_commit = off")
        for rows in _ROWS:
            db.execute(rows.encode(), values)
        db.execute("VACUUM ANALYZE")
        db.execute("CHECKPOINT")


ASKED: Final[dict[str, Ask]] = {
    "list": lambda service, _: service.list(limit=50),
    "list by a common label": lambda service, _: service.list(limit=50, labels={"team": "red"}),
    "list by a rare label": lambda service, _: service.list(limit=50, labels={"case": "lost"}),
    "read": lambda service, session_id: service.read(session_id),
    "history": lambda service, session_id: service.history(session_id),
    "resume": lambda service, session_id: service.resume(session_id),
    "first turn": lambda service, session_id: service.start_turn(session_id, "Go on, please."),
}


def session_of(share: float, sessions: int) -> str:
    """Return the session at a place between the oldest one (0) and the newest one (1)."""
    place = 1 + int(share * sessions)
    return f"0190a000-0000-7000-8000-{place:012x}"


def opened(url: str) -> AbstractAsyncContextManager[SessionService]:
    """Open a runtime on a database."""
    config = Config(store=PostgresConfig(url), model="fixed", provider="fixed")
    return open_supervisor(config, providers={"fixed": FixedModel()})


async def measure(large: str, sessions: int, small: str, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the milliseconds of each question, on the large database and on the small one."""
    found: dict[str, list[tuple[float, float]]] = {"open": []}
    begun = time.perf_counter()
    async with opened(large) as one:
        between = time.perf_counter()
        async with opened(small) as other:
            found["open"].append((1e3 * (between - begun), 1e3 * (time.perf_counter() - between)))
            for question, (name, ask) in enumerate(ASKED.items()):
                times = found[name] = []
                for number in range(rounds + 1):
                    share = (number * len(ASKED) + question) / ((rounds + 1) * len(ASKED))  # asked about nothing yet
                    pair = []
                    for service, size in ((one, sessions), (other, SMALL)):
                        session_id = session_of(share, size)
                        begun = time.perf_counter()
                        await ask(service, session_id)
                        pair.append(1e3 * (time.perf_counter() - begun))
                    if number:  # the first one prepares the statements
                        times.append((pair[0], pair[1]))
    return found


def main(sessions: int, rounds: int) -> None:
    """Print the times on both databases, and their ratios."""
    tune()
    question = f"Does a database of {sessions:,} sessions and {sessions * EVENTS:,} events slow one session down?"
    if not available():
        report(question, {"left out": "PostgreSQL is not installed"}, [])
        return
    figures: dict[str, Any] = {"sessions": {"large": sessions, "small": SMALL}}
    server = Server.make(durable=True)
    try:
        begun = time.perf_counter()
        make(server, "large", sessions)
        figures["seconds to fill"] = round(time.perf_counter() - begun)
        make(server, "small", SMALL)
        ((size,),) = server.run("postgres", "SELECT pg_database_size('large')")
        figures["large mb"] = round(size / 1e6)
        times = trio.run(partial(measure, server.url("large"), sessions, server.url("small"), rounds))
    finally:
        server.remove()
    goals = []
    for name, pairs in times.items():
        large, small = (statistics.median(each) for each in zip(*pairs, strict=True))
        figures[f"{name} ms"] = {"large": round(large, 3), "small": round(small, 3)}
        if name in ASKED:
            ratio = statistics.median(one / other for one, other in pairs)
            goals.append(Goal(f"{name}, {sessions:,} sessions in PostgreSQL over {SMALL:,}", ratio, "<=", 2))
    report(question, figures, goals)


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    main(*given, *(SESSIONS, ROUNDS)[len(given) :])
