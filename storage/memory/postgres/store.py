"""The memory in PostgreSQL as the rest of the runtime sees it: async, safe to call from any task."""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final, Self, TypeVar

import trio
from psycopg import errors

from warren.base.errors import InvalidParamsError, StoreError, WarrenError
from warren.base.principals import DEFAULT_TENANT
from warren.conversation.memory import (
    Chosen,
    Embedder,
    MemoryConfig,
    MemoryEntry,
    MemoryHit,
    Tail,
    Unsettled,
)
from warren.settings.config import PostgresConfig
from warren.storage.memory.homes import EMBED_AT_ONCE, Bare, HomeOfTexts, Query
from warren.storage.memory.postgres import search, writer
from warren.storage.memory.postgres.search import Searcher
from warren.storage.memory.postgres.vectors import Table, drop_others, literals, table_for
from warren.storage.memory.spaces import Space, TermSpace
from warren.storage.memory.weighing import space_of
from warren.storage.memory.words import Analyzer
from warren.storage.postgres.driver import Connection, LostError, array, unescaped
from warren.storage.postgres.faults import translate
from warren.storage.postgres.guard import Guard, guard_of
from warren.storage.postgres.pool import Readers
from warren.storage.postgres.schema import prepare
from warren.storage.runner import Runner, thread_runner

logger: Final = logging.getLogger("warren.memory")
R = TypeVar("R")
NOUN: Final = "memory store"
# Compiling a query takes longer than any query of a memory, and so does planning it anew each time; the graph has to
# return as many as are asked for.
_SETTINGS: Final = "SET jit = off; SET plan_cache_mode = force_generic_plan; SET hnsw.ef_search = 100"
_TABLES: Final = ("sessions", "entries", "tombstones", "postings", "totals", "spaces", "vectors")
_BYTES: Final = """
    SELECT coalesce(sum(pg_total_relation_size(to_regclass(name))), 0)::int8,
        coalesce((SELECT pg_relation_size(to_regclass($2))), 0)
    FROM unnest($1::text[]) AS named(name)
"""
_NAMES: Final = "SELECT name FROM warren.memory_spaces ORDER BY key DESC"


class PostgresMemory(HomeOfTexts):
    """Texts in a PostgreSQL database. Made by `open`, ended by `aclose`; for the methods see MemoryStore.

    Several processes may use one database at once. A connection that breaks is replaced, and the call made again, for
    as long as the settings allow. Vectors need pgvector.
    """

    def __init__(self, pool: Readers, space: Space, table: Table | None, runner: Runner, guard: Guard) -> None:
        super().__init__(space, runner)
        self._pool = pool
        self._table = table
        self._searcher = Searcher(space, table, runner, guard)
        self._analyzer = Analyzer()
        # One connection at most writes; the others are free for searches.
        self._writing = trio.Lock()

    @classmethod
    async def open(
        cls, config: MemoryConfig, embedder: Embedder | None = None, *, runner: Runner = thread_runner
    ) -> Self:
        """Open the memory in the database `config.url`; create its tables, or bring them up to this version.

        Args:
            config: the address and the settings.
            embedder: makes the vectors; without one the config's has to be "bm25".
            runner: runs the blocking calls.

        Raises InvalidParamsError for an embedder that it cannot have, StoreError with `cause` "unreachable",
        "newer_schema", "permission", "cannot_open" and so on.
        """
        space = _space(config, embedder)
        pool = _pool(config)
        try:
            table, guard = await pool.run(partial(_prepared, space=space))
        except (WarrenError, LostError, errors.Error) as exc:
            pool.close()
            raise _shown(exc, config) from None
        if isinstance(table, str):
            logger.warning("%s", table)
            return cls(pool, TermSpace(), None, runner, guard)
        made = cls(pool, space, table, runner, guard)
        try:
            made._behind = await made._count_bare()
        except BaseException:
            await made.aclose()
            raise
        return made

    async def aclose(self) -> None:
        self._closed = True
        self._pool.close()

    async def index(
        self, entries: Sequence[MemoryEntry], tail: Tail | None = None, *, tenant: str = DEFAULT_TENANT
    ) -> int:
        """Remember entries and return how many are new, without those of an attempt whose commit lost its answer."""
        fresh = await self._read(partial(writer.unknown, entries=entries))
        packed = await self._vectorizer.soon([entry.content for entry in fresh])
        if not fresh and tail is None:
            return 0
        kept = [entry.position for entry in entries if entry.content.strip()]
        async with self._writing:
            vectors = packed if self._table is not None else []
            given = await self._runner(partial(writer.Prepared.of, fresh, vectors, self._analyzer))
            add = partial(writer.add, given=given, kept=kept, tail=tail, table=self._table, tenant=tenant)
            added = await self._read(add)
        self._behind += sum(vector is None for vector in vectors)
        return added

    async def last_before(self, session_id: str, position: int) -> tuple[int, int]:
        return await self._read(partial(search.last_before, session_id=session_id, position=position))

    async def unsettled(self) -> list[Unsettled]:
        """Return the sessions with a tail that may be uncommitted; their times are of the server's clock."""
        return await self._read(search.unsettled)

    async def settle(self, mark: Unsettled, count: int | None) -> int:
        async with self._writing:
            return await self._read(partial(writer.settle, mark=mark, count=count))

    async def texts(self, tenant: str, sessions: Collection[str] | None = None) -> int:
        return await self._read(partial(search.texts, tenant=tenant, sessions=sessions))

    async def forget(self, session_id: str) -> int:
        """Remove a session's entries and return how many, without those of an attempt whose commit lost its answer."""
        async with self._writing:
            return await self._read(partial(writer.forget, session_id=session_id))

    async def forget_texts(self, chosen: Chosen) -> int | None:
        """Remove texts and return how many, without those of an attempt whose commit lost its answer."""
        async with self._writing:
            return await self._read(partial(writer.forget_texts, chosen=chosen))

    async def _find(self, query: Query) -> list[MemoryHit]:
        return await self._read(partial(self._searcher.find, query=query))

    async def _bare(self, after: int) -> Sequence[Bare]:
        where = f"{self._without_vector} AND e.id > $1::int8 ORDER BY e.id LIMIT $2::int8"
        rows = await self._read(lambda db: db.fetch(f"SELECT e.id, e.content {where}", after, EMBED_AT_ONCE))
        return [Bare(key, unescaped(content)) for key, content in rows]

    async def _count_bare(self) -> int:
        sql = "SELECT 0" if self._table is None else f"SELECT count(*) {self._without_vector}"
        return int(await self._read(lambda db: db.value(sql)))

    @property
    def _without_vector(self) -> str:
        space = 0 if self._table is None else self._table.space
        return f"""
            FROM warren.memory_entries e LEFT JOIN warren.memory_vectors v ON v.entry = e.id AND v.space = {space}
            WHERE v.entry IS NULL
        """

    async def _add_vectors(self, vectors: dict[int, bytes]) -> None:
        if self._table is not None:
            bodies = await self._runner(partial(literals, list(vectors.values())))
            await self._read(partial(self._table.add, entries=list(vectors), vectors=bodies))

    async def _begin_anew(self) -> None:
        if self._table is not None:
            await self._read(partial(drop_others, table=self._table))

    async def _counts(self) -> tuple[int, int]:
        return await self._read(search.counts)

    async def _sizes(self) -> tuple[int, int]:
        """Return the bytes of the memory's tables, and those of the graph."""
        index = "" if self._table is None else f"warren.{self._table.index}"
        names = array([f"warren.memory_{name}" for name in _TABLES])
        ((database_bytes, index_bytes),) = await self._read(lambda db: db.fetch(_BYTES, names, index or None))
        return database_bytes - index_bytes, index_bytes

    async def _read(self, query: Callable[[Connection], Awaitable[R]]) -> R:
        if self._closed:
            raise StoreError(f"the {NOUN} is closed", cause="closed", retryable=False)
        try:
            return await self._pool.run(query)
        except (LostError, errors.Error, UnicodeError) as exc:
            raise translate(exc, noun=NOUN) from exc


async def known_dimensions(config: MemoryConfig, embedder: str) -> int:
    """Return the length of an embedder's newest vectors in the memory of a database; 0 if it has none."""
    pool = _pool(config)
    try:
        rows = await pool.run(lambda db: db.fetch(_NAMES))
    except (WarrenError, LostError, errors.Error):
        return 0
    finally:
        pool.close()
    for (name,) in rows:
        of, _, dimensions = unescaped(name).rpartition("/")
        if of == embedder and dimensions.isdecimal():
            return int(dimensions)
    return 0


def _space(config: MemoryConfig, embedder: Embedder | None) -> Space:
    space = space_of(config, embedder)
    if embedder is None and space.dimensions:
        problem = f"{config.embedder} needs a memory in a folder; in a database there are bm25 and models"
        raise InvalidParamsError.at("$.embedder", problem)
    return space


def _pool(config: MemoryConfig) -> Readers:
    url, lock_timeout = config.url or "", max(0.001, config.busy_timeout)
    settings = PostgresConfig(url, lock_timeout=lock_timeout, readers=config.readers)
    return Readers(settings, name="memory", settings=_SETTINGS)


async def _prepared(db: Connection, space: Space) -> tuple[Table | str | None, Guard]:
    """Make the tables; return that of the vectors, or why there are none although there should be, and the guard."""
    await prepare(db)
    guard = await guard_of(db)
    return await table_for(db, space) if space.dimensions else None, guard


def _shown(exc: Exception, config: MemoryConfig) -> WarrenError:
    error = translate(exc, noun=NOUN)
    if not isinstance(error, StoreError):
        return error
    return StoreError(f"{config.place}: {error.message}", cause=error.cause, retryable=error.retryable)
