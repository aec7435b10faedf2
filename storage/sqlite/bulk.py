"""Statements with many rows. Each statement gives up the interpreter lock and waits for it once, as one row would.

A thread that waits for the lock beside a busy event loop waits for the switch interval of the interpreter: with a
statement a row, the loop would stand still until the rows are written.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import apsw

SIZES: Final = (256, 64, 16, 4, 1)
"""Rows of a statement. They are few, so that all statements stay compiled."""


def execute_rows(db: apsw.Connection, sql: str, columns: int, values: Sequence[Any]) -> list[Any]:
    """Execute a statement with the rows of some columns in place of its `{rows}`; return what it returns.

    Args:
        db: the connection.
        sql: the statement.
        columns: values of a row.
        values: the values of all rows, one row after the other.
    """
    found: list[Any] = []
    at = 0
    for size in SIZES:
        width = size * columns
        while len(values) - at >= width:
            found += db.execute(_with_rows(sql, columns, size), values[at : at + width])
            at += width
    return found


@cache
def _with_rows(sql: str, columns: int, rows: int) -> str:
    row = f"({','.join('?' * columns)})"
    return sql.format(rows=",".join([row] * rows))
