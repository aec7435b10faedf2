"""The benchmark of a large database, at a size for a test."""

import sys

import pytest

from tests.conftest import ROOT
from tests.support.postgres import needs_postgres, server

LARGE = 2_000


async def test_the_benchmark_of_a_large_database_asks_each_question_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that the server has made are sessions for the runtime; the turns are stored in both databases."""
    needs_postgres()
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    from benchmarks import postgres_large as it  # noqa: PLC0415 - its folder is not on the path of the suite

    sizes = {"bench_large": LARGE, "bench_small": it.SMALL}
    try:
        for name, sessions in sizes.items():
            it.make(server(), name, sessions)
        times = await it.measure(server().url("bench_large"), LARGE, server().url("bench_small"), rounds=2)
        assert {name: len(pairs) for name, pairs in times.items()} == {"open": 1, **dict.fromkeys(it.ASKED, 2)}
        for name, sessions in sizes.items():
            counted = server().run(name, "SELECT count(*), sum(turns), sum(message_count) FROM warren.sessions")
            assert counted == [(sessions, it.MESSAGES // 2 * sessions + 3, it.MESSAGES * sessions + 6)]
            assert server().run(name, "SELECT count(*) FROM warren.events")[0][0] > it.EVENTS * sessions
    finally:
        for name in sizes:
            server().drop(name)
