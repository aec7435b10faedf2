"""Values that no store has written, put into the rows of a database past what its schema allows."""
# ruff: noqa: S608 - the names are those of the schema

import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import apsw

KINDS: Final = {
    "bad UTF-8": "CAST(x'22c3ff22' AS TEXT)",
    "null": "NULL",
    "a blob": "x'00ff'",
    "a number": "7",
    "huge": "replace(hex(zeroblob(250000)), '00', 'xx')",
    "the largest number": "9223372036854775807",
    "the smallest number": "-9223372036854775808",
}
STORAGE: Final = Path(__file__).parents[2] / "storage" / "sqlite"
_IMPOSSIBLE: Final = re.compile(r"NOT NULL constraint|UNIQUE constraint|datatype mismatch")
"""Damage that SQLite itself cannot hold: a row's number that is none, nothing in a key, and the key of another row."""


def columns(schema: Iterable[Path]) -> list[tuple[str, str]]:
    """Return each column of each table that the scripts make, but those that a virtual table keeps for itself."""
    found: list[tuple[str, str]] = []
    with closing(apsw.Connection(":memory:")) as db:
        for script in schema:
            db.execute(script.read_text())
        for (table,) in db.execute("SELECT name FROM pragma_table_list WHERE type = 'table' ORDER BY name").fetchall():
            if table not in ("sqlite_schema", "sqlite_temp_schema"):
                found += [(str(table), str(row[1])) for row in db.execute(f"PRAGMA table_info({table})")]
    return found


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Yield a folder in memory, if the system has one: hundreds of small stores are made, and none has to last."""
    memory = Path("/dev/shm")  # noqa: S108 - the folder inside has a random name
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def put(path: Path, table: str, column: str, value: str, where: str) -> bool:
    """Put a value, in SQL, into a column of one row; return whether the file can hold it."""
    with closing(apsw.Connection(str(path))) as db:
        db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        db.execute("PRAGMA synchronous = OFF; PRAGMA writable_schema = ON")
        schema: list[Any] = db.execute("SELECT rowid, type, sql FROM sqlite_schema").fetchall()
        triggers = db.execute("SELECT * FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        with db:
            db.execute("DELETE FROM sqlite_schema WHERE type = 'trigger'")
            for rowid, kind, sql in schema:
                if kind == "table" and "STRICT" in sql:
                    db.execute("UPDATE sqlite_schema SET sql = ? WHERE rowid = ?", (_loose(sql), rowid))
        db.execute("PRAGMA writable_schema = RESET")
        try:
            db.execute(f"UPDATE {table} SET {column} = {value} WHERE {where}")
            assert db.changes() == 1, (table, column)
            held = True
        except (apsw.ConstraintError, apsw.MismatchError) as exc:
            held = False
            if _IMPOSSIBLE.search(str(exc)) is None:
                raise
        db.execute("PRAGMA writable_schema = ON")
        with db:
            for rowid, kind, sql in schema:
                if kind == "table":
                    db.execute("UPDATE sqlite_schema SET sql = ? WHERE rowid = ?", (sql, rowid))
            db.executemany("INSERT INTO sqlite_schema VALUES (?,?,?,?,?)", triggers)
        db.execute("PRAGMA writable_schema = RESET")
    return held


def _loose(sql: str) -> str:
    """Return the table's definition without types and without rules, its row numbers apart."""
    loose = re.sub(r" (INTEGER|TEXT)(?! +PRIMARY KEY AUTO)", " BLOB", sql)
    loose = re.sub(r"\) STRICT", ") ", loose).replace(") , WITHOUT", ") WITHOUT")
    return re.sub(r"BLOB +PRIMARY KEY,", "INTEGER PRIMARY KEY,", loose).replace(" NOT NULL", "")
