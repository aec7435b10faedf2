"""The way of a search: candidates by words and by vectors, each weighed exactly, the best returned."""
# ruff: noqa: S608 - only constants of this package become part of the SQL

import json
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any, Final

import apsw
import numpy as np

from warren.base.principals import DEFAULT_TENANT
from warren.base.values import frozen
from warren.conversation import codec
from warren.conversation.memory import MemoryHit, Unsettled, text_id_of
from warren.storage.memory import weighing
from warren.storage.memory.homes import Query
from warren.storage.memory.ranking import counted, ranked
from warren.storage.memory.spaces import BLOB, Space, Vectors, cosines
from warren.storage.memory.vectors import VectorIndex
from warren.storage.memory.weights import Corpus, Question, Scores
from warren.storage.memory.words import Analyzer, Terms, release_gil
from warren.storage.memory.writer import OTHER, session_mark, tenant_marks
from warren.storage.results import Rows
from warren.storage.rows import MAX_NUMBER, number_in, shown, text_in, time_in
from warren.storage.sqlite.columns import raw
from warren.storage.sqlite.database import snapshot

WITHOUT_VECTOR: Final = 500
ROWS_FOR_WORDS: Final = 12_000
"""Rows the full-text table may rank: of the query's terms it is given the rarest that stay within."""
_TERM: Final = 4
"""Bytes of a term."""
_ROWS: Final = f"""
    SELECT id, {BLOB.format("terms")}, {BLOB.format("body")} FROM entries LEFT JOIN vectors ON space = ?2 AND entry = id
    WHERE id IN (SELECT value FROM json_each(?1))
"""
_AT_OR_AFTER: Final = (
    f"SELECT entry, {BLOB.format('body')} FROM vectors WHERE space = ? AND entry >= ? ORDER BY entry LIMIT 1"
)
_NEWEST_BEFORE: Final = f"""
    SELECT position, {raw("turn")} FROM {{}}
    WHERE session = (SELECT key FROM sessions WHERE session_id = ?1) AND position < ?2 ORDER BY position DESC LIMIT 1
"""
_BEFORE: Final = f"""
    SELECT * FROM ({_NEWEST_BEFORE.format("entries")}) UNION ALL SELECT * FROM ({_NEWEST_BEFORE.format("tombstones")})
    ORDER BY position DESC LIMIT 1
"""
_WITHOUT_VECTOR: Final = """
    SELECT count(*) FROM entries LEFT JOIN vectors ON space = (SELECT key FROM spaces WHERE name = ?) AND entry = id
    WHERE id > ? AND body IS NULL AND ?
"""
_UNSETTLED: Final = f"SELECT {raw('session_id, since')} FROM unsettled JOIN sessions ON key = session ORDER BY since"
_HITS: Final = f"""
    SELECT id, {raw("content, session_id, turn, position")} FROM entries JOIN sessions ON key = session
    WHERE id IN (SELECT value FROM json_each(?1))
"""


_TENANT: Final = f"SELECT {raw('entries, terms')} FROM tenants WHERE name = ?"
_TEXTS_IN: Final = """
    SELECT coalesce(sum(entries), 0) FROM sessions
    WHERE tenant = ? AND session_id IN (SELECT value FROM json_each(?)) AND typeof(entries) = 'integer'
"""
_COUNT_OF_TENANT: Final = """
    SELECT count(*), sum(length(terms) / 4) FROM entries JOIN sessions ON key = session WHERE tenant = ?
"""
_ALL_OF_TENANT: Final = (
    "SELECT id FROM entries WHERE session IN (SELECT key FROM sessions WHERE tenant = ?) ORDER BY id"
)
_NEWEST: Final = "SELECT id FROM entries WHERE id > ?1 ORDER BY id DESC LIMIT ?2"
_NEWEST_OF_TENANT: Final = """
    SELECT id FROM entries WHERE id > ?1 AND session IN (SELECT key FROM sessions WHERE tenant = ?3)
    ORDER BY id DESC LIMIT ?2
"""
_MATCHING: Final = f"""
    SELECT id, {BLOB.format("terms")} FROM entries WHERE id IN (SELECT rowid FROM words WHERE words MATCH ?) ORDER BY id
"""
_VECTORS: Final = f"""
    SELECT {BLOB.format("body")} FROM vectors
    WHERE space = ? AND entry IN (SELECT value FROM json_each(?)) ORDER BY entry
"""
TENANTS: Final = 100
"""Tenants whose counts of terms are remembered."""


@frozen
class _Scope:
    """The texts of one tenant.

    Attributes:
        tenant: the tenant.
        corpus: how many there are, and how long they are.
        alone: whether the memory has no others.
    """

    tenant: str
    texts: int
    terms: int
    alone: bool

    @property
    def matched(self) -> str:
        """The full-text query that they fit, with a place for the words."""
        if self.alone:
            return "{}"
        if self.tenant == DEFAULT_TENANT:
            return f"({{}}) NOT {OTHER}"
        return f"{tenant_marks(self.tenant).split()[1]} AND ({{}})"


@frozen(eq=False)
class _Candidates:
    ids: list[int]
    terms: list[Terms]
    packed: list[bytes | None]


class MemoryReader:
    """Searches; synchronous, one caller at a time for each reader."""

    def __init__(self, db: apsw.Connection, space: Space, index: VectorIndex) -> None:
        self._db = db
        self._space = space
        self._index = index
        self._analyzer = Analyzer()
        self._containing: dict[tuple[str, bool], tuple[int, dict[int, int]]] = {}

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._db.close()

    def counts(self) -> tuple[int, int]:
        """Return how many entries there are, and how many sessions they come from."""
        entries, _ = self._totals()
        return entries, int(self._db.execute("SELECT count(*) FROM sessions WHERE entries > 0").get)

    def without_vector(self) -> int:
        """Return how many entries have no vector in this space."""
        return without_vector(self._db, self._space, self._index.watermark)

    def last_before(self, session_id: str, position: int) -> tuple[int, int]:
        row: Any = self._db.execute(_BEFORE, (session_id, position)).fetchone()
        if row is None:
            return -1, 0
        return row[0], row[1] if type(row[1]) is int else 0

    def unsettled(self) -> list[Unsettled]:
        """Return the sessions that are unsettled, the oldest mark first."""
        return Rows(self._db.execute(_UNSETTLED), _unsettled, lambda row: shown(row[0]))

    def texts(self, tenant: str, sessions: Collection[str] | None) -> int:
        """Return how many entries a tenant has, or some sessions of it."""
        if sessions is None:
            return self._scope(tenant).texts
        return int(self._db.execute(_TEXTS_IN, (tenant, json.dumps(list(sessions)))).get)

    def find(self, query: Query) -> list[MemoryHit]:
        """Return the best answers, best first, all from one state of the database. Raises apsw.Error."""
        with snapshot(self._db):
            return self._find(query)

    def _find(self, query: Query) -> list[MemoryHit]:
        scope = self._scope(query.tenant)
        question = self._question(scope, self._analyzer.terms(query.text[: weighing.QUERY_LENGTH]))
        vector = None if query.vector is None else self._space.unpack([query.vector])[0]
        found = self._fetch(self._ids(query, scope, question, vector))
        if not found.ids:
            return []
        weighed = self._weighed(found, question, scope, vector)
        return self._hits(found.ids, weighed, query.limit)

    def _scope(self, tenant: str) -> _Scope:
        texts, terms = self._totals()
        row: Any = self._db.execute(_TENANT, (tenant,)).fetchone()
        mine = (0, 0) if row is None else row
        if row is not None and not all(type(each) is int and 0 <= each <= MAX_NUMBER for each in row):
            mine = self._db.execute(_COUNT_OF_TENANT, (tenant,)).fetchone()
        return _Scope(tenant, mine[0], mine[1] or 0, (texts, terms) == mine)

    def _question(self, scope: _Scope, asked: Terms) -> Question:
        # The count of a term, unless it is 0, is remembered until the texts are a twentieth more or fewer.
        counted_at, _ = self._containing.get((scope.tenant, scope.alone), (0, {}))
        if abs(scope.texts - counted_at) * 20 > counted_at:
            if len(self._containing) > TENANTS:
                self._containing.clear()
            self._containing[scope.tenant, scope.alone] = scope.texts, {}
        containing = {term: self._count(scope, term) for term in set(asked.tolist())}
        return Question.of(asked, containing, Corpus(scope.texts, scope.terms / max(scope.texts, 1)))

    def _totals(self) -> tuple[int, int]:
        """Return how many texts there are, and how many terms they have; counted anew if the count is damaged."""
        found: Any = self._db.execute(f"SELECT {raw('entries, terms')} FROM totals").fetchone()
        if found is None or not all(type(each) is int and 0 <= each <= MAX_NUMBER for each in found):
            found = self._db.execute("SELECT count(*), sum(length(terms) / 4) FROM entries").fetchone()
        return found[0], found[1] or 0

    def _count(self, scope: _Scope, term: int) -> int:
        """Return how many texts of a tenant contain a term."""
        _, containing = self._containing.get((scope.tenant, scope.alone), (0, {}))
        count = containing.get(term)
        if count is None:
            sql = "SELECT doc FROM vocabulary WHERE term = ?", (_spelt(term),)
            if not scope.alone:
                matched = scope.matched.format(f'"{_spelt(term)}"')
                sql = "SELECT count(*) FROM words WHERE words MATCH ?", (matched,)
            count = int(self._db.execute(*sql).get or 0)
            # A term that no text has is not looked for: the next text may have it.
            if count:
                containing[term] = count
        return count

    def _ids(self, query: Query, scope: _Scope, question: Question, vector: Vectors | None) -> list[int]:
        if query.session_id is not None:
            return self._in_session(query.session_id, scope, question)
        near = [] if vector is None else self._near(scope, vector)
        return list(dict.fromkeys([*self._by_words(question, scope, None), *near]))

    def _near(self, scope: _Scope, vector: Vectors) -> list[int]:
        """Return the entries of a tenant with near vectors, and its newest entries without a vector."""
        among, newest, values = None, _NEWEST, list[str]()
        if not scope.alone:
            among = np.array(_first(self._db.execute(_ALL_OF_TENANT, (scope.tenant,))), dtype=np.int64)
            newest, values = _NEWEST_OF_TENANT, [scope.tenant]
        self._index.follow(self._db, self._space_key())
        last = self._db.execute("SELECT coalesce(max(id), 0) FROM entries").get
        while True:
            # Another reader may have followed further than this one sees.
            near = [key for key in self._index.nearest(vector, weighing.BY_VECTORS, among) if key <= last]
            stored = _first(
                self._db.execute("SELECT id FROM entries WHERE id IN (SELECT value FROM json_each(?))", (_json(near),))
            )
            gone = set(near) - set(stored)
            if not gone:
                break
            self._index.discard(gone)
        return [*near, *_first(self._db.execute(newest, (self._index.read_to, WITHOUT_VECTOR, *values)))]

    def _space_key(self) -> int:
        return int(self._db.execute("SELECT key FROM spaces WHERE name = ?", (self._space.name,)).get)

    def _in_session(self, session_id: str, scope: _Scope, question: Question) -> list[int]:
        query = f"SELECT key, {raw('entries')} FROM sessions WHERE session_id = ? AND tenant = ?"
        row: Any = self._db.execute(query, (session_id, scope.tenant)).fetchone()
        if row is None:
            return []
        if type(row[1]) is int and row[1] > weighing.SMALL_SESSION and not self._space.share:
            return self._by_words(question, scope, row[0])
        return _first(self._db.execute("SELECT id FROM entries WHERE session = ?", (row[0],)))

    def _by_words(self, question: Question, scope: _Scope, session: int | None) -> list[int]:
        terms = weighing.rarest(
            question, {term: self._count(scope, term) for term in question.terms.tolist()}, ROWS_FOR_WORDS
        )
        if not terms:
            return []
        match = " OR ".join(f'"{_spelt(term)}"' for term in terms)
        within = scope.matched if session is None else f"{session_mark(session)} AND ({{}})"
        match = within.format(match)
        if not scope.alone:
            return self._best_of_tenant(match, terms, scope, session)
        found = self._db.execute(
            "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?", (match, weighing.BY_WORDS)
        )
        return _first(found)

    def _best_of_tenant(self, match: str, terms: list[int], scope: _Scope, session: int | None) -> list[int]:
        """Return the entries that the full-text table would rank first if the tenant had it for itself."""
        ids, times, lengths = list[int](), list[Scores](), list[int]()
        rows = self._db.execute(_MATCHING, (match,))
        while page := list(islice(rows, weighing.AT_ONCE)):
            some = [row for row in page if row[1] is not None and len(row[1]) % _TERM == 0]
            texts = [np.frombuffer(row[1], dtype="<u4") for row in some]
            ids += [row[0] for row in some]
            times.append(counted(texts, terms))
            lengths += [len(text) for text in texts]
            release_gil()
        if len(ids) <= weighing.BY_WORDS:
            return ids
        together = np.concatenate(times)
        if session is None:
            containing = np.count_nonzero(together, axis=0).astype(np.float64)
        else:  # the rows are those of the session, and its mark is a term that all of them have
            containing = np.array(
                [*(self._count_now(scope, f'"{_spelt(term)}"') for term in terms), len(ids)], dtype=np.float64
            )
            containing[-1] = self._count_now(scope, session_mark(session))
            together = np.hstack([together, np.ones((len(ids), 1))])
        marks = 1 + len(tenant_marks(scope.tenant).split())
        average = scope.terms / max(scope.texts, 1) + marks
        places = ranked(together, np.array(lengths, dtype=np.float64) + marks, containing, scope.texts, average)
        return [ids[at] for at in places[: weighing.BY_WORDS]]

    def _count_now(self, scope: _Scope, matched: str) -> int:
        found = self._db.execute("SELECT count(*) FROM words WHERE words MATCH ?", (scope.matched.format(matched),))
        return int(found.get)

    def _fetch(self, ids: Sequence[int]) -> _Candidates:
        space = self._space_key()
        rows: list[tuple[Any, ...]] = []
        for at in range(0, len(ids), weighing.AT_ONCE):
            if at:
                release_gil()
            rows += self._db.execute(_ROWS, (_json(ids[at : at + weighing.AT_ONCE]), space))
        rows = sorted(row for row in rows if row[1] is not None and len(row[1]) % _TERM == 0)
        terms = [np.frombuffer(row[1], dtype="<u4") for row in rows]
        return _Candidates([row[0] for row in rows], terms, [row[2] for row in rows])

    def _weighed(
        self, found: _Candidates, question: Question, scope: _Scope, vector: Vectors | None
    ) -> weighing.Weighed:
        words, share = weighing.by_words(question, found.terms), self._space.share
        if vector is None or not share:
            return weighing.mixed(words, 0.0, [], np.zeros(0))
        there = {number: body for number, body in enumerate(found.packed) if body is not None}
        return weighing.mixed(words, share, list(there), self._likeness(scope, vector, list(there.values())))

    def _likeness(self, scope: _Scope, vector: Vectors, packed: Sequence[bytes]) -> Scores:
        """Return the likeness of each to the query: its cosine above that of unrelated texts."""
        likeness = cosines(self._space, vector, packed)
        return weighing.above(likeness, self._floor(scope, vector)) if self._space.has_floor else likeness

    def _floor(self, scope: _Scope, vector: Vectors) -> float:
        """Return the cosine with the query that unrelated texts of the tenant have."""
        space = self._space_key()
        if not scope.alone:
            return weighing.floor_of(cosines(self._space, vector, self._some_of(scope, space)))
        last = self._db.execute("SELECT max(entry) FROM vectors WHERE space = ?", (space,)).get or 0
        places = dict.fromkeys(np.linspace(1, last, weighing.BACKGROUND, dtype=np.int64).tolist())
        found = {row for place in places for row in self._db.execute(_AT_OR_AFTER, (space, place))}
        return weighing.floor_of(cosines(self._space, vector, [body for _, body in sorted(found)]))

    def _some_of(self, scope: _Scope, space: int) -> list[bytes]:
        """Return vectors of some entries of a tenant, spread over all of them."""
        ids = _first(self._db.execute(_ALL_OF_TENANT, (scope.tenant,)))
        some = [
            ids[at] for at in dict.fromkeys(np.linspace(0, len(ids) - 1, weighing.BACKGROUND, dtype=np.int64).tolist())
        ]
        found = self._db.execute(_VECTORS, (space, _json(some))) if ids else ()
        return [body for (body,) in found if body is not None]

    def _hits(self, ids: Sequence[int], weighed: weighing.Weighed, limit: int) -> list[MemoryHit]:
        best = weighing.best_first(weighed.scores)
        hits: list[MemoryHit] = []
        # Damaged entries are passed over, and the next best take their places.
        while best and len(hits) < limit:
            some, best = best[: limit - len(hits)], best[limit - len(hits) :]
            rows = {row[0]: row[1:] for row in self._db.execute(_HITS, (_json([ids[at] for at in some]),))}
            found = [(rows[ids[at]], at) for at in some if ids[at] in rows]
            hits += Rows(found, lambda pair: _hit(pair[0], pair[1], weighed), lambda pair: shown(pair[0][1]))
        return hits


def without_vector(db: apsw.Connection, space: Space, after: int) -> int:
    """Return how many entries with an id above `after` have no vector in a space that has vectors."""
    return int(db.execute(_WITHOUT_VECTOR, (space.name, after, space.dimensions > 0)).get)


def _unsettled(row: tuple[Any, ...]) -> Unsettled:
    session_id, since = row
    return Unsettled(text_in(session_id, "session_id"), time_in(since, "since"))


def _hit(row: tuple[Any, ...], at: int, weighed: weighing.Weighed) -> MemoryHit:
    """Return the hit at a place, of `raw("content, session_id, turn, position")`. Raises ValueError."""
    content, session_id, turn, position = row
    text, session = text_in(content, "content"), text_in(session_id, "session_id")
    place = number_in(turn, "turn"), text_id_of(number_in(position, "position"))
    return MemoryHit(text, weighing.score_of(float(weighed.scores[at])), session, *place, weighed.parts(at))


def _spelt(term: int) -> str:
    """Return a term as the full-text table has it: the hexadecimal of its four bytes, the lowest first."""
    return term.to_bytes(4, "little").hex()


def _json(ids: Sequence[int]) -> str:
    return codec.encode(ids).decode()


def _first(rows: Iterable[tuple[Any, ...]]) -> list[int]:
    return [row[0] for row in rows]
