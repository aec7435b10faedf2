"""A database with many rows, and a stand-in for a connection that notes the statements of the reads."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs

from warren.storage.postgres.driver import Row, Value

MANY = """
    INSERT INTO warren.sessions (session_id, created_at, updated_at, state, model, turns, steps, message_count,
        last_seq, head, labels, marks, details)
    SELECT 's' || i, i, (i * 7919) % 20000, CASE WHEN i % 10 = 0 THEN 1 ELSE 0 END, 'm', 1, 1, 2, 3, 0, '{}',
        CASE WHEN i % 500 = 0 THEN ARRAY['["a","b"]'] ELSE '{}' END, '{}' FROM generate_series(1, 20000) i;
    UPDATE warren.sessions SET turn = '{}' WHERE key % 100 = 0;
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

    async def fetch_each(self, *statements: tuple[Any, ...]) -> list[list[Row]]:
        self.noted += [(sql, tuple(values)) for sql, *values in statements]
        return [[(None,)] if "max(seq)" in sql else [] for sql, *_ in statements]

    async def value(self, sql: str, *values: Value) -> Any:
        rows = await self.fetch(sql, *values)
        return rows[0][0] if rows else None

    @asynccontextmanager
    async def transaction(self, _begin: str = "BEGIN") -> AsyncIterator[None]:
        yield
