"""The common part of memories in files and in databases: missing vectors, and the steps of a search."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import trio

from warren.base.errors import InvalidParamsError
from warren.base.principals import DEFAULT_TENANT
from warren.base.values import frozen
from warren.conversation.memory import MAX_HITS, MemoryHit, MemoryStats, Progress, Weighs
from warren.storage.memory.spaces import Space, Vectorizer
from warren.storage.memory.weighing import QUERY_LENGTH, weighs
from warren.storage.runner import Runner

EMBED_AT_ONCE: Final = 64
"""Stored entries that an embedder gets in one call."""


@frozen(eq=False)
class Query:
    """A search.

    Attributes:
        text: the query.
        limit: hits wanted.
        session_id: the session to search in; None for all of the tenant.
        tenant: the tenant whose texts are searched.
        vector: of the query, packed; None leaves the search to the words.
    """

    text: str
    limit: int
    session_id: str | None
    tenant: str = DEFAULT_TENANT
    vector: bytes | None = None


@frozen
class Bare:
    """An entry that has no vector yet."""

    id: int
    content: str


class HomeOfTexts(ABC):
    """A memory, but for the rows of its home; for the methods see MemoryStore."""

    def __init__(self, space: Space, runner: Runner, *, behind: int = 0, rebuilt: str | None = None) -> None:
        self._space = space
        self._runner = runner
        self._behind = behind
        self._rebuilt = rebuilt
        # Two that catch up at once would ask the embedder for the same vectors.
        self._catching_up = trio.Lock()
        self._refused = set[int]()  # entries that the embedder refuses for good: words alone find them
        self._vectorizer = Vectorizer(space, runner)
        self._closed = False

    @property
    def is_behind(self) -> bool:
        return self._behind > len(self._refused)

    @property
    def behind(self) -> int:
        return self._behind

    @property
    def weighs(self) -> Weighs:
        return weighs(self._space, embedder_fails=self._vectorizer.fails)

    async def search(
        self, query: str, *, limit: int = 5, session_id: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> list[MemoryHit]:
        if limit < 1:
            raise InvalidParamsError.at("$.limit", "must be above 0")
        vector = None
        if self._space.dimensions and query.strip():
            (vector,) = await self._vectorizer.soon([query[:QUERY_LENGTH]])
        return await self._find(Query(query, min(limit, MAX_HITS), session_id, tenant, vector))

    async def catch_up(self, progress: Progress | None = None) -> None:
        async with self._catching_up:
            self._behind = await self._count_bare()
            done, after, seen = 0, self._bare_from(), set[int]()
            while self._behind and (bare := await self._bare(after)):
                after = bare[-1].id
                seen.update(entry.id for entry in bare)
                asked = [entry for entry in bare if entry.id not in self._refused]
                vectors = await self._vectorizer.later([entry.content for entry in asked])
                made = {entry.id: vector for entry, vector in zip(asked, vectors, strict=True) if vector is not None}
                await self._add_vectors(made)
                self._refused.update(entry.id for entry in asked if entry.id not in made)
                done, self._behind = done + len(made), max(0, self._behind - len(made))
                if progress is not None:
                    progress(done, done + self._behind)
            self._refused &= seen  # others were forgotten
            await self._complete(progress)

    async def rebuild(self, progress: Progress | None = None) -> None:
        async with self._catching_up:
            await self._begin_anew()
        await self.catch_up(progress)
        if progress is not None:
            entries, _ = await self._counts()
            progress(entries, entries)

    async def stats(self) -> MemoryStats:
        entries, sessions = await self._counts()
        self._behind = await self._count_bare()
        database_bytes, index_bytes = await self._sizes()
        return MemoryStats(
            entries=entries,
            sessions=sessions,
            indexed=entries - self._behind,
            behind=self._behind,
            embedder=self._space.name.rpartition("/")[0],
            dimensions=self._space.dimensions,
            weighs=self.weighs,
            database_bytes=database_bytes,
            index_bytes=index_bytes,
            rebuilt=self._rebuilt,
        )

    def _bare_from(self) -> int:
        """Return a number up to which all entries have vectors."""
        return 0

    async def _complete(self, progress: Progress | None) -> None:  # noqa: B027 - few homes have something left
        """Do what is left when the vectors are made."""

    @abstractmethod
    async def _find(self, query: Query) -> list[MemoryHit]:
        """Return the best answers, best first."""

    @abstractmethod
    async def _bare(self, after: int) -> Sequence[Bare]:
        """Return the next `EMBED_AT_ONCE` entries after an id that have no vector of this embedder."""

    @abstractmethod
    async def _count_bare(self) -> int:
        """Return how many entries have no vector of this embedder."""

    @abstractmethod
    async def _add_vectors(self, vectors: dict[int, bytes]) -> None:
        """Store packed vectors by the ids of their entries. One that was forgotten meanwhile gets none."""

    @abstractmethod
    async def _begin_anew(self) -> None:
        """Remove the vectors of other embedders, and what is made of the entries besides."""

    @abstractmethod
    async def _counts(self) -> tuple[int, int]:
        """Return how many entries there are, and how many sessions they come from."""

    @abstractmethod
    async def _sizes(self) -> tuple[int, int]:
        """Return the bytes of the texts, and those of the index."""
