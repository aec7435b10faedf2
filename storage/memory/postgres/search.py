"""The way of a search in SQL: candidates by postings and by vectors, each weighed exactly, the best returned."""
# ruff: noqa: S608 - only constants of this package and numbers become part of the SQL

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

import attrs
import numpy as np

from warren.base.values import define, frozen
from warren.conversation.memory import MemoryHit, Unsettled, text_id_of
from warren.storage.memory import weighing
from warren.storage.memory.homes import Query
from warren.storage.memory.postgres.vectors import Table, literals
from warren.storage.memory.spaces import Space
from warren.storage.memory.weights import LENGTH, SATURATION, Corpus, Question
from warren.storage.memory.words import Analyzer, Terms
from warren.storage.postgres.driver import Connection, Row, array, escaped, unescaped
from warren.storage.postgres.guard import Guard, Guarded
from warren.storage.postgres.reading import snapshot
from warren.storage.rows import moment
from warren.storage.runner import Runner

ROWS_FOR_WORDS: Final = 8_000
"""Postings that are ranked: with more of them no better answers were found."""
EXACT: Final = 20_000
"""Texts of one of several tenants up to which the query is compared with all of them, and not by the graph of all."""
AT_ONCE_ON_LOOP: Final = 64 * 1024
"""Bytes of terms that are weighed on the event loop: less than a millisecond. More are weighed in a thread."""
_TOTALS: Final = "SELECT sum(entries)::int8, sum(terms)::int8 FROM warren.memory_totals"
_CONTAINING: Final = """
    SELECT term, (SELECT count(*) FROM warren.memory_postings p WHERE p.term = asked.term)
    FROM unnest($1::int4[]) AS asked(term)
"""
# Of a tenant that has the memory for itself nothing but the memory has to be looked at.
_ALONE: Final = "SELECT min(tenant) = $1 AND max(tenant) = $1 FROM warren.memory_sessions"
_TEXTS_OF: Final = "SELECT coalesce(sum(entries), 0)::int8 FROM warren.memory_sessions WHERE tenant = $1"
_TEXTS_IN: Final = f"{_TEXTS_OF} AND session_id = ANY($2::text[])"
_TERMS_OF: Final = """
    SELECT coalesce(sum(length(e.terms) / 4), 0)::int8
    FROM warren.memory_entries e JOIN warren.memory_sessions s ON s.key = e.session WHERE s.tenant = $1
"""
_CONTAINING_OF: Final = """
    SELECT term, (
        SELECT count(*) FROM warren.memory_postings p JOIN warren.memory_entries e ON e.id = p.entry
        JOIN warren.memory_sessions s ON s.key = e.session WHERE p.term = asked.term AND s.tenant = $2
    ) FROM unnest($1::int4[]) AS asked(term)
"""
_OF_TENANT: Final = """
    JOIN warren.memory_entries o ON o.id = p.entry
    JOIN warren.memory_sessions t ON t.key = o.session AND t.tenant = $4
"""
_ALL_OF: Final = """
    SELECT e.id FROM warren.memory_entries e JOIN warren.memory_sessions s ON s.key = e.session WHERE s.tenant = {}
"""
TENANTS: Final = 100
"""Tenants whose counts of terms are remembered."""
_SESSION: Final = "SELECT key, entries FROM warren.memory_sessions WHERE session_id = $1 AND tenant = $2"
# BM25 without the rarity of the terms, which comes as their worth; in floating point, which is ten times as fast as the
# decimal arithmetic of a constant without a type. OFFSET 0 keeps the index in use, whatever the
# planner guesses of the terms.
_BY_WORDS: Final = f"""
    SELECT p.entry FROM unnest($1::int4[], $2::float8[]) AS asked(term, worth), LATERAL (
        SELECT entry, times, length FROM warren.memory_postings WHERE term = asked.term OFFSET 0
    ) AS p {{}} GROUP BY p.entry
    ORDER BY
        sum(worth * times / (times::float8 + {SATURATION * (1 - LENGTH)}::float8 + $3::float8 * length)) DESC, p.entry
    LIMIT {weighing.BY_WORDS}
"""
_WITHIN: Final = "JOIN warren.memory_entries o ON o.id = p.entry AND o.session = $4::int8"
_WHOLE: Final = "SELECT id FROM warren.memory_entries WHERE session = $1::int8"
_CANDIDATES: Final = """
    SELECT e.id, e.terms, {} FROM ({}) AS c(entry) JOIN warren.memory_entries e ON e.id = c.entry {} ORDER BY e.id
"""
_HITS: Final = """
    SELECT id, content, session_id, turn, position
    FROM warren.memory_entries JOIN warren.memory_sessions ON key = session WHERE id = ANY ($1::int8[]) AND tenant = $2
"""
_NEWEST_BEFORE: Final = """
    SELECT position, turn FROM {} JOIN warren.memory_sessions ON key = session
    WHERE session_id = $1 AND position < $2::int8 ORDER BY position DESC LIMIT 1
"""
_BEFORE: Final = f"""
    ({_NEWEST_BEFORE.format("warren.memory_entries")}) UNION ALL ({_NEWEST_BEFORE.format("warren.memory_tombstones")})
    ORDER BY position DESC LIMIT 1
"""
_UNSETTLED: Final = """
    SELECT session_id, unsettled_since FROM warren.memory_sessions WHERE unsettled_since IS NOT NULL
    ORDER BY unsettled_since
"""
_SESSIONS: Final = "SELECT count(*) FROM warren.memory_sessions WHERE entries > 0"


@define(eq=False)
class _Counts:
    """The counts of the texts of a tenant as they were at one time; those of terms come with the questions."""

    texts: int
    terms: int
    containing: dict[int, int] = attrs.field(factory=dict)


@frozen
class _Scope:
    """The texts of one tenant: how many there are, how long they are, and whether the memory has no others."""

    tenant: str
    alone: bool
    texts: int
    counts: _Counts


@define(eq=False)
class Searcher:
    """Searches, on any connection.

    Attributes:
        space: the space of the vectors.
        table: their table; None if words alone decide.
        runner: runs long computing, beside the event loop.
        guard: of the reads of texts. Postings and vectors are searched without it: they give the keys of the texts.
    """

    space: Space
    table: Table | None
    runner: Runner
    guard: Guard
    _analyzer: Analyzer = attrs.field(factory=Analyzer)
    _counts: dict[tuple[str, bool], _Counts] = attrs.field(factory=dict)

    async def find(self, db: Connection, query: Query) -> list[MemoryHit]:
        """Return the best answers, best first; one that is removed meanwhile is left out. Raises as `Connection.fetch`.

        The candidates are of one state of the database, and an entry never changes: so no transaction is needed, whose
        ends would take as long as the search.
        """
        asked = self._analyzer.terms(query.text[: weighing.QUERY_LENGTH])
        if not len(asked) and query.vector is None:
            return []
        scope = await self._scope(db, query.tenant)
        question = await self._question(db, scope, asked)
        vector = None if query.vector is None else literals([query.vector])[0]
        rows = await self._candidates(db, query, scope, question, vector)
        if not rows:
            return []
        floor = await self._floor(db, scope, vector)
        weigh = partial(self._weighed, rows, question, floor, vector)
        short = sum(len(row[1]) for row in rows) <= AT_ONCE_ON_LOOP
        weighed = weigh() if short else await self.runner(weigh)
        return await _hits(self.guard.on(db, query.tenant), query, rows, weighed)

    async def _scope(self, db: Connection, tenant: str) -> _Scope:
        alone = await db.value(_ALONE, tenant)
        if alone:
            texts, terms = await totals(db)
        else:
            texts = await db.value(_TEXTS_OF, tenant)
            terms = None
        counts = self._counts.get((tenant, bool(alone)))
        # The counts of a term are remembered until the texts are a twentieth more or fewer.
        if counts is None or abs(texts - counts.texts) * 20 > counts.texts:
            if len(self._counts) >= TENANTS:
                self._counts.clear()
            if terms is None:
                terms = await db.value(_TERMS_OF, tenant)
            self._counts[tenant, bool(alone)] = counts = _Counts(texts, terms)
        elif terms is not None:
            counts.terms = terms
        return _Scope(tenant, bool(alone), texts, counts)

    async def _question(self, db: Connection, scope: _Scope, asked: Terms) -> Question:
        counts = scope.counts
        distinct = set(asked.tolist())
        # A count of 0 is not relied on: the next text may have the term.
        await self._count(db, scope, sorted(term for term in distinct if not counts.containing.get(term)))
        containing = {term: counts.containing[term] for term in distinct}
        return Question.of(asked, containing, Corpus(scope.texts, counts.terms / max(scope.texts, 1)))

    async def _count(self, db: Connection, scope: _Scope, terms: Sequence[int]) -> None:
        """Learn how many texts of a tenant contain each term."""
        if terms:
            asked = array(_signed(terms))
            rows = await (
                db.fetch(_CONTAINING, asked) if scope.alone else db.fetch(_CONTAINING_OF, asked, scope.tenant)
            )
            scope.counts.containing |= dict(zip(terms, [count for _, count in rows], strict=True))

    async def _candidates(
        self, db: Connection, query: Query, scope: _Scope, question: Question, vector: str | None
    ) -> list[Row]:
        """Return the candidates, of each the id, the terms, and the cosine with the query if it has a vector."""
        if query.session_id is not None:
            found = await db.fetch(_SESSION, escaped(query.session_id), scope.tenant)
            if not found:
                return []
            ((session, entries),) = found
            if entries <= weighing.SMALL_SESSION or self.table is not None:
                return await self._fetched(db, [_WHOLE], [session], vector)
            return await self._by_words(db, scope, question, None, session)
        return await self._by_words(db, scope, question, vector, None)

    async def _by_words(
        self, db: Connection, scope: _Scope, question: Question, vector: str | None, session: int | None
    ) -> list[Row]:
        terms = weighing.rarest(question, scope.counts.containing, ROWS_FOR_WORDS)
        parts: list[str] = []
        values: list[Any] = []
        if terms:
            at = np.searchsorted(question.terms, np.array(terms, dtype=np.uint32))
            damping = SATURATION * LENGTH / max(question.corpus.average_length, 1.0)
            values = [
                array(_signed(terms)),
                array(question.worth[at].tolist()),
                repr(damping),
            ]
            within = _WITHIN if session is not None else "" if scope.alone else _OF_TENANT
            parts.append("(" + _BY_WORDS.format(within) + ")")
            if within:
                values.append(scope.tenant if session is None else session)
        if vector is not None and self.table is not None:
            if scope.alone:
                parts.append(self.table.near(f"${len(values) + 1}"))
            elif scope.texts <= weighing.SMALL_SESSION:
                values.append(scope.tenant)
                parts.append(_ALL_OF.format(f"${len(values)}"))
            else:
                values.append(scope.tenant)
                exact = scope.texts <= EXACT
                parts.append(self.table.near(f"${len(values) + 1}", tenant=f"${len(values)}", exact=exact))
        return await self._fetched(db, parts, values, vector) if parts else []

    async def _fetched(self, db: Connection, parts: list[str], values: list[Any], vector: str | None) -> list[Row]:
        columns, joined = "NULL", ""
        if vector is not None and self.table is not None:
            columns = self.table.cosine(f"${len(values) + 1}")
            joined = f"LEFT JOIN warren.memory_vectors v ON v.entry = e.id AND v.space = {self.table.space}"
            values = [*values, vector]
        return await db.fetch(_CANDIDATES.format(columns, " UNION ".join(parts), joined), *values)

    async def _floor(self, db: Connection, scope: _Scope, vector: str | None) -> float:
        """Return the cosine with the query that unrelated texts of the tenant have."""
        if vector is None or self.table is None:
            return 0.0
        if scope.alone:
            some: dict[int, float] = dict(await db.fetch(self.table.some("$1"), vector))
        else:
            some = dict(await db.fetch(self.table.some_of("$1", "$2"), vector, scope.tenant))
        return weighing.floor_of(np.array(list(some.values()), dtype=np.float64))

    def _weighed(self, rows: Sequence[Row], question: Question, floor: float, vector: str | None) -> weighing.Weighed:
        words = weighing.by_words(question, [np.frombuffer(row[1], dtype="<u4") for row in rows])
        if vector is None:
            return weighing.mixed(words, 0.0, [], np.zeros(0))
        at = [number for number, row in enumerate(rows) if row[2] is not None]
        cosines = np.array([rows[number][2] for number in at], dtype=np.float64)
        return weighing.mixed(
            words, self.space.share, at, weighing.above(cosines, floor) if self.space.has_floor else cosines
        )


async def totals(db: Connection) -> tuple[int, int]:
    """Return how many texts there are, and how many terms they have. Raises as `Connection.fetch`."""
    ((texts, terms),) = await db.fetch(_TOTALS)
    return texts, terms


async def texts(db: Connection, tenant: str, sessions: Collection[str] | None) -> int:
    """Return how many entries a tenant has, or some sessions of it. Raises as `Connection.fetch`."""
    if sessions is None:
        return int(await db.value(_TEXTS_OF, tenant))
    return int(await db.value(_TEXTS_IN, tenant, array([escaped(each) for each in sessions])))


async def counts(db: Connection) -> tuple[int, int]:
    """Return how many entries there are, and how many sessions they come from. Raises as `Connection.fetch`."""
    async with snapshot(db):
        entries, _ = await totals(db)
        return entries, await db.value(_SESSIONS)


async def last_before(db: Connection, session_id: str, position: int) -> tuple[int, int]:
    """Return position and turn of the last text before a position, or (-1, 0). Raises as `Connection.fetch`."""
    rows = await db.fetch(_BEFORE, escaped(session_id), position)
    return (rows[0][0], rows[0][1]) if rows else (-1, 0)


async def unsettled(db: Connection) -> list[Unsettled]:
    """Return the sessions that are unsettled, the oldest mark first. Raises as `Connection.fetch`."""
    return [Unsettled(unescaped(session_id), moment(since)) for session_id, since in await db.fetch(_UNSETTLED)]


async def _hits(
    db: Connection | Guarded, query: Query, rows: Sequence[Row], weighed: weighing.Weighed
) -> list[MemoryHit]:
    best = weighing.best_first(weighed.scores)
    hits: list[MemoryHit] = []
    # The next best take the places of entries that were removed meanwhile.
    while best and len(hits) < query.limit:
        some, best = best[: query.limit - len(hits)], best[query.limit - len(hits) :]
        found = {row[0]: row[1:] for row in await db.fetch(_HITS, array([rows[at][0] for at in some]), query.tenant)}
        for at in some:
            if rows[at][0] in found:
                content, session_id, turn, position = found[rows[at][0]]
                score, place = weighing.score_of(float(weighed.scores[at])), (turn, text_id_of(position))
                hits.append(MemoryHit(unescaped(content), score, unescaped(session_id), *place, weighed.parts(at)))
    return hits


def _signed(terms: Sequence[int]) -> list[int]:
    """Return terms as numbers of four bytes with a sign."""
    signed: list[int] = np.array(terms, dtype=np.uint32).view(np.int32).tolist()
    return signed
