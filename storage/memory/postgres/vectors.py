"""Vectors by pgvector: one table for all embedders, with a graph (HNSW) for each.

A server without the extension, or with one that is too old, has none: words alone decide then.
"""
# ruff: noqa: S608 - only numbers, and a quoted name of the server's, become part of the SQL

import contextlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from psycopg import errors

from warren.base.values import frozen
from warren.storage.memory.spaces import Space
from warren.storage.memory.weighing import BACKGROUND, BY_VECTORS
from warren.storage.postgres.driver import Connection, array
from warren.storage.postgres.schema import alone

MISSING: Final = """\
the server has no pgvector with halfvec (0.7 or newer), so texts are found by their words alone: install it (Debian: \
apt-get install postgresql-NN-pgvector), and let a superuser run CREATE EXTENSION vector in this database"""
FORBIDDEN: Final = """\
this role may not make the tables of vectors, so texts are found by their words alone: let a role that may create them \
open the memory once"""
GRAPH_LIMIT: Final = 4_000
"""Numbers of a vector up to which pgvector makes a graph; longer ones are compared one by one."""
_HOME: Final = """
    SELECT quote_ident(nspname) FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
    JOIN pg_depend d ON d.objid = t.oid AND d.deptype = 'e'
    JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'vector' WHERE typname = 'halfvec'
"""
_OFFERED: Final = "SELECT FROM pg_available_extensions WHERE name = 'vector' AND installed_version IS NULL"
_NOT_MADE: Final = (
    errors.InsufficientPrivilege,
    errors.UniqueViolation,
    errors.UndefinedFile,
    errors.InvalidSchemaName,
)
_THERE: Final = "SELECT to_regclass($1) IS NOT NULL"
_ENTER: Final = "INSERT INTO warren.memory_spaces (name) VALUES ($1) ON CONFLICT (name) DO NOTHING"
_KEY: Final = "SELECT key FROM warren.memory_spaces WHERE name = $1"
_OTHERS: Final = "SELECT key FROM warren.memory_spaces WHERE key <> $1::int"
_DROP_SOME: Final = """
    DELETE FROM warren.memory_vectors WHERE (entry, space) IN (
        SELECT entry, space FROM warren.memory_vectors WHERE space = $1::int LIMIT 5000
    )
"""


@frozen
class Table:
    """The table of the vectors, for one embedder.

    Attributes:
        space: the number of the embedder.
        dimensions: numbers in each vector.
        home: the schema of the extension, quoted.
    """

    space: int
    dimensions: int
    home: str

    @property
    def kind(self) -> str:
        """The type of a vector."""
        return f"{self.home}.halfvec({self.dimensions})"

    @property
    def index(self) -> str:
        """The name of the graph."""
        return f"memory_graph_{self.space}"

    def cosine(self, parameter: str) -> str:
        """Return SQL for the cosine of a vector with a parameter; 0 for a vector of length 0."""
        distance = f"(v.body::{self.kind} OPERATOR({self.home}.<=>) {parameter}::{self.kind})"
        return f"coalesce(1 - nullif({distance}, 'NaN'), 0)"

    def near(self, parameter: str, tenant: str | None = None, *, exact: bool = False) -> str:
        """Return SQL for the entries with the vectors nearest to a parameter, of a tenant if one is given.

        The graph finds the nearest of all tenants, and leaves those of the tenant: there may be none. An `exact` search
        compares with all vectors of the tenant instead.
        """
        # The casts are those of the graph's definition, and the number is written out: else it is not used.
        distance = f"v.body::{self.kind} OPERATOR({self.home}.<=>) {parameter}::{self.kind}"
        where = f"FROM warren.memory_vectors v WHERE v.space = {self.space}"
        if tenant is not None:
            mine = "SELECT FROM warren.memory_entries e JOIN warren.memory_sessions s ON s.key = e.session"
            where += f" AND EXISTS ({mine} WHERE e.id = v.entry AND s.tenant = {tenant})"
        order = f"({distance}) + 0, v.entry" if exact else distance  # a sum is in no index
        return f"(SELECT v.entry {where} ORDER BY {order} LIMIT {BY_VECTORS})"

    def some_of(self, parameter: str, tenant: str) -> str:
        """Return SQL for the cosines of some entries of a tenant spread over all of them, each with its entry."""
        spread = BACKGROUND - 1
        return f"""
            SELECT v.entry, {self.cosine(parameter)} FROM (
                SELECT e.id, row_number() OVER (ORDER BY e.id) - 1 AS n, count(*) OVER () AS total
                FROM warren.memory_entries e JOIN warren.memory_sessions s ON s.key = e.session
                WHERE s.tenant = {tenant}
            ) AS mine JOIN warren.memory_vectors v ON v.entry = mine.id AND v.space = {self.space}
            WHERE (n * {spread} + greatest(total - 2, 0)) / greatest(total - 1, 1) * (total - 1) / {spread} = n
        """

    def some(self, parameter: str) -> str:
        """Return SQL for the cosines of some entries spread over the memory, each with its entry."""
        return f"""
            WITH ends AS (SELECT max(entry) AS last FROM warren.memory_vectors WHERE space = {self.space})
            SELECT v.entry, {self.cosine(parameter)}
            FROM ends, generate_series(0, {BACKGROUND - 1}) AS n, LATERAL (
                SELECT entry, body FROM warren.memory_vectors
                WHERE space = {self.space} AND entry >= 1 + floor(n * (last - 1) / {BACKGROUND - 1}.0)::int8
                ORDER BY entry LIMIT 1
            ) AS v
        """

    async def add(self, db: Connection, entries: Sequence[int], vectors: Sequence[str]) -> None:
        """Store vectors of entries. One that was forgotten meanwhile gets none. Raises as `Connection.fetch`."""
        await db.fetch(
            f"""
            INSERT INTO warren.memory_vectors (space, entry, body)
            SELECT {self.space}, e.id, given.body::{self.kind}
            FROM unnest($1::int8[], $2::text[]) AS given(id, body) JOIN warren.memory_entries e USING (id)
            FOR KEY SHARE OF e
            ON CONFLICT (entry, space) DO UPDATE SET body = excluded.body
            """,
            array(entries),
            array(vectors),
        )


async def table_for(db: Connection, space: Space) -> Table | str:
    """Return the table of an embedder's vectors, made if it has to be; else the reason why there can be none.

    Raises as `Connection.fetch`.
    """
    try:
        home = await _home(db)
        return MISSING if home is None else await _made(db, space, home)
    except errors.InsufficientPrivilege:
        return FORBIDDEN


async def drop_others(db: Connection, table: Table) -> None:
    """Remove the vectors of all other embedders, and their graphs. Raises as `Connection.fetch`."""
    for (key,) in await db.fetch(_OTHERS, table.space):
        await db.script(f"DROP INDEX IF EXISTS warren.memory_graph_{int(key)}")
        while await db.script(_DROP_SOME.replace("$1::int", str(int(key)))):
            pass
        await db.script(f"DELETE FROM warren.memory_spaces WHERE key = {int(key)}")


def literals(packed: Sequence[bytes]) -> list[str]:
    """Return packed vectors as the server takes them; five digits tell apart all numbers of two bytes."""
    rows = [np.frombuffer(body, dtype="<f2").tolist() for body in packed]
    return ["[" + ",".join([format(number, ".5g") for number in row]) + "]" for row in rows]


async def _home(db: Connection) -> str | None:
    home: str | None = await db.value(_HOME)
    if home is None and await db.fetch(_OFFERED):
        # A superuser has to, or another program was faster.
        with contextlib.suppress(*_NOT_MADE):
            await db.script("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        home = await db.value(_HOME)
    return home


async def _made(db: Connection, space: Space, home: str) -> Table:
    if not await db.value(_THERE, "warren.memory_vectors"):
        await _change(
            db,
            f"""
            CREATE TABLE IF NOT EXISTS warren.memory_vectors (
                entry bigint NOT NULL REFERENCES warren.memory_entries ON DELETE CASCADE,
                space integer NOT NULL,
                body  {home}.halfvec NOT NULL,
                PRIMARY KEY (entry, space)
            )
            """,
        )
    await db.fetch(_ENTER, space.name)
    key = await db.value(_KEY, space.name)
    table = Table(key, space.dimensions, home)
    if space.dimensions <= GRAPH_LIMIT and not await db.value(_THERE, f"warren.{table.index}"):
        await _change(
            db,
            f"""
            CREATE INDEX IF NOT EXISTS {table.index} ON warren.memory_vectors
            USING hnsw ((body::{table.kind}) {home}.halfvec_cosine_ops) WHERE space = {key}
            """,
        )
    return table


async def _change(db: Connection, sql: str) -> None:
    """Run a statement that programs which open one database at the same moment have to run one after the other."""
    async with alone(db):
        await db.script(sql)
