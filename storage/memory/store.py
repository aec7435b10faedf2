"""The semantic memory as the rest of the runtime sees it: async, safe to call from any task."""

import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

import apsw
import attrs
import trio

from warren.errors import InvalidParamsError, StoreError, WarrenError
from warren.memory import (
    MAX_HITS,
    Embedder,
    MemoryConfig,
    MemoryEntry,
    MemoryHit,
    MemoryStats,
    Progress,
    Tail,
    Unsettled,
)
from warren.storage.memory import graph as graphs
from warren.storage.memory.file import FILE_NAME, fault, locate, open_reader, open_writer
from warren.storage.memory.graph import Graph, Note, UnusableGraphError
from warren.storage.memory.search import QUERY_LENGTH, Query, Reader
from warren.storage.memory.spaces import MeaningSpace, Space, TermSpace, Vectors, WordSpace
from warren.storage.memory.writer import Waiting, Writer
from warren.storage.pool import Pool
from warren.storage.runner import Runner, thread_runner

logger: Final = logging.getLogger("warren.memory")
R = TypeVar("R")
BUILT_IN: Final[dict[str, Space]] = {"bm25": TermSpace(), "bag-of-words": WordSpace()}
SLICE: Final = 16
"""Entries the graph takes at a time: a search waits for no more than these, some hundredths of a second."""
EMBED_AT_ONCE: Final = 64
"""Entries that an embedder is given at a time when it has to make vectors of what is stored."""
SAVE_AFTER: Final = 2_000
"""Changes of the graph after which it is saved; in a large one a tenth of it.

USearch holds the interpreter's lock while it copies the vectors, a millisecond for every megabyte or two: seldom is
better. After a crash, what was not saved is added again.
"""


@attrs.define(eq=False)
class _Opened:
    """What opening gives."""

    writer: Writer
    readers: list[Reader]
    graph: Graph
    note: Note
    rebuilt: str | None


class MemoryStore:
    """Texts that can be found again by what they say. Made by `open`, ended by `aclose`.

    What `index` was given is on the disk and findable when it returns. The graph of vectors, which helps a search
    over all sessions, may be behind: `catch_up` brings it forward, and everything works meanwhile.

    Every method raises StoreError where the files refuse; its `cause` says why: "locked", "disk_full", "io_error",
    "corrupt", "read_only", "closed" and so on.
    """

    def __init__(self, config: MemoryConfig, space: Space, opened: _Opened, runner: Runner) -> None:
        self._path = config.path
        self._space = space
        self._graph = opened.graph
        self._note = opened.note
        self._rebuilt = opened.rebuilt
        self._last_id = opened.note.watermark
        self._runner = runner
        self._writing = Pool([opened.writer], runner)
        self._reading = Pool(opened.readers, runner)
        # Whoever changes the graph: two at once would add the same entries.
        self._changing = trio.Lock()
        self._save_after = SAVE_AFTER
        self._closed = False

    @classmethod
    async def open(
        cls, config: MemoryConfig, embedder: Embedder | None = None, *, runner: Runner = thread_runner
    ) -> Self:
        """Open the memory in the folder `config.path`, or make it; the saved graph is loaded, never made anew here.

        Without `embedder` the config's has to be a built-in one. Where the graph is missing, damaged, of another
        embedder or of another database, the memory begins with an empty one and `is_behind`. Cannot be cancelled.

        Raises InvalidParamsError for an unknown embedder, StoreError whose `cause` is "newer_schema", "not_a_store",
        "not_a_database", "permission", "cannot_open" and so on.
        """
        space = _space(config, embedder)
        with trio.CancelScope(shield=True):
            opened = await runner(partial(_connect, config, space))
        return cls(config, space, opened, runner)

    @property
    def is_behind(self) -> bool:
        """Whether `catch_up` has something to do."""
        return self.behind > 0

    @property
    def behind(self) -> int:
        """How many entries at most the graph has not come to yet."""
        return max(0, self._last_id - self._graph.watermark)

    async def aclose(self) -> None:
        """Save the graph and close. Idempotent, cannot be cancelled; a graph that cannot be saved is made anew later.

        Calls that come later fail with StoreError(cause="closed").
        """
        with trio.CancelScope(shield=True):
            async with self._changing:
                if not self._closed:
                    await self._try_to_save()
                self._closed = True
                await self._reading.run_on_all(Reader.close)
                await self._writing.run_on_all(Writer.close)

    async def index(self, entries: Sequence[MemoryEntry], tail: Tail | None = None) -> int:
        """Remember the entries, all or none of them; return how many are new.

        An entry is told by its session and position: the same text there again changes nothing, another one takes the
        place of what was there. Of two in one call the first counts. Blank ones are left out. With a tail, the entries
        are all there is of it: what else was remembered there goes, and the session is `unsettled`.

        When it returns they are on the disk. Cancelled, or at the end of the process, they are stored or not: call
        it again.

        Raises SessionNotFoundError for a session that was forgotten, whatever the embedder raises, and StoreError;
        then nothing was stored.
        """
        was_behind = self.is_behind
        fresh = await self._write(partial(Writer.unknown, entries=entries))
        vectors = await self._space.pack([e.content for e in fresh]) if isinstance(self._space, MeaningSpace) else None
        if not fresh and tail is None:
            return 0
        kept = [entry.position for entry in entries if entry.content.strip()]
        add = partial(Writer.add, entries=fresh, vectors=vectors, kept=kept, tail=tail)
        changes = await self._write(add)
        self._last_id = max([self._last_id, *changes.added])
        await self._take_out(changes.removed)
        if not was_behind and len(changes.added) <= SLICE:
            await self._follow()
        return len(changes.added)

    async def last_before(self, session_id: str, position: int) -> tuple[int, int]:
        """Return the position and the turn of a session's newest entry before a position; -1 and 0 where none is."""
        return await self._read(partial(Reader.last_before, session_id=session_id, position=position))

    async def unsettled(self) -> list[Unsettled]:
        """Return the sessions of which a tail was taken in and not settled since, the oldest first."""
        return await self._read(Reader.unsettled)

    async def settle(self, mark: Unsettled, count: int | None) -> int:
        """Say how many messages of a session its store has; return how many entries went, being beyond them.

        None is for a session that no store has: nothing goes. Where more was taken in since the mark was read, nothing
        happens: it may be on its way into the store.
        """
        ids = await self._write(partial(Writer.settle, mark=mark, count=count))
        await self._take_out(ids)
        return len(ids)

    async def search(self, query: str, *, limit: int = 5, session_id: str | None = None) -> list[MemoryHit]:
        """Return what answers the query best, best first: of one session, or of all where `session_id` is None.

        At most `limit` hits and never more than 20; none that has nothing in common with the query. Of a long query
        the first 4,000 characters count. A session is searched exactly; all sessions by candidates, each of which is
        then weighed exactly. Where the embedder fails the words alone decide.

        Raises InvalidParamsError for a limit below 1.
        """
        if limit < 1:
            raise InvalidParamsError("$.limit: must be above 0", path="$.limit")
        vector = await self._query_vector(query)
        asked = Query(query, min(limit, MAX_HITS), session_id, vector)
        return await self._read(lambda reader: reader.find(asked, self._graph))

    async def forget(self, session_id: str) -> int:
        """Remove all that is remembered of a session, for good; return how many entries that were.

        Idempotent. A late `index` for it is refused.
        """
        with trio.CancelScope(shield=True):
            async with self._changing:
                ids = await self._write(partial(Writer.forget, session_id=session_id))
                await self._runner(partial(self._graph.remove, ids))
        return len(ids)

    async def catch_up(self, progress: Progress | None = None) -> None:
        """Bring the graph up to date, a few entries at a time; searches and other calls go on between.

        `progress` is told after each step. Safe to cancel at any time: what was done stays. Raises whatever the
        embedder raises for entries that have no vector of it yet, and StoreError; a graph that cannot be saved is only
        logged.
        """
        left = await self._read(lambda reader: reader.after(self._graph.watermark))
        done = 0
        while added := await self._advance(SLICE):
            done += added
            if progress is not None:
                progress(done, max(done, left))
        async with self._changing:
            await self._try_to_save()

    async def rebuild(self, progress: Progress | None = None) -> None:
        """Make the graph anew from the texts; vectors that other embedders left are removed.

        A search answers by words meanwhile. Cancelled, the rest is left to `catch_up`. Raises as `catch_up` does.
        """
        async with self._changing:
            await self._write(Writer.drop_other_spaces)
            self._graph = Graph.empty(self._space.dimensions, attrs.evolve(self._note, watermark=0))
        await self.catch_up(progress)

    async def save(self) -> None:
        """Save the graph if it has changed. Raises StoreError(cause="io_error")."""
        async with self._changing:
            await self._save()

    async def stats(self) -> MemoryStats:
        """Return how much is remembered, and how far the graph is."""
        entries, sessions = await self._read(Reader.counts)
        behind = await self._read(lambda reader: reader.after(self._graph.watermark))
        return MemoryStats(
            entries=entries,
            sessions=sessions,
            indexed=len(self._graph),
            behind=behind,
            embedder=self._space.name.rpartition("/")[0],
            dimensions=self._space.dimensions,
            database_bytes=_size(self._path, FILE_NAME),
            index_bytes=_size(self._path, graphs.FILE_NAME),
            rebuilt=self._rebuilt,
        )

    async def _query_vector(self, query: str) -> Vectors | None:
        if not isinstance(self._space, MeaningSpace) or not query.strip():
            return None
        try:
            packed = await self._space.pack([query[:QUERY_LENGTH]])
        except WarrenError as exc:
            logger.warning("a search goes by words alone: %s", exc)
            return None
        vector: Vectors = self._space.unpack(packed)[0]
        return vector

    async def _take_out(self, ids: Sequence[int]) -> None:
        """Remove from the graph what is no longer stored."""
        if ids:
            with trio.CancelScope(shield=True):
                async with self._changing:
                    await self._runner(partial(self._graph.remove, ids))

    async def _follow(self) -> None:
        """Add to the graph what was just stored. It is stored: whatever the graph says does not count."""
        try:
            await self._advance(SLICE)
        except WarrenError as exc:
            logger.warning("the memory's index stays behind: %s", exc)

    async def _advance(self, count: int) -> int:
        """Add the next entries to the graph; return how many there were. Several may call it at once."""
        if self._space.packs:
            # Outside the lock: a model may take its time.
            await self._make_vectors(EMBED_AT_ONCE)
        async with self._changing:
            waiting = await self._waiting(count)
            ready = list(itertools.takewhile(lambda entry: entry.packed is not None, waiting))
            if ready:
                await self._runner(partial(_add, self._graph, self._space, ready))
            self._last_id = max(self._last_id, waiting[-1].id) if waiting else self._graph.watermark
            if self._graph.unsaved >= max(self._save_after, len(self._graph) // 10):
                await self._try_to_save()
        return len(ready)

    async def _waiting(self, count: int) -> list[Waiting]:
        return await self._write(partial(Writer.waiting, after=self._graph.watermark, count=count))

    async def _make_vectors(self, count: int) -> None:
        missing = [entry for entry in await self._waiting(count) if entry.packed is None]
        if missing:
            texts = [entry.content for entry in missing]
            vectors = await self._space.pack(texts) if isinstance(self._space, MeaningSpace) else None
            await self._write(partial(Writer.add_vectors, entries=missing, vectors=vectors))

    async def _try_to_save(self) -> None:
        try:
            await self._save()
        except StoreError as exc:
            logger.warning("%s", exc)
            # Not with every step from now on: it may be megabytes.
            self._save_after = 2 * self._graph.unsaved

    async def _save(self) -> None:
        if self._path is not None and self._graph.unsaved:
            await self._runner(partial(self._graph.save, self._path / graphs.FILE_NAME))

    async def _write(self, function: Callable[[Writer], R]) -> R:
        try:
            return await self._writing.run(function)
        except (apsw.Error, UnicodeError) as exc:
            raise fault(exc) from exc

    async def _read(self, function: Callable[[Reader], R]) -> R:
        try:
            return await self._reading.run(function)
        except apsw.Error as exc:
            raise fault(exc) from exc


def _space(config: MemoryConfig, embedder: Embedder | None) -> Space:
    if embedder is not None:
        return MeaningSpace(embedder)
    if config.embedder not in BUILT_IN:
        known = ", ".join(BUILT_IN)
        raise InvalidParamsError(
            f"$.embedder: must be one of {known}, or an embedder has to be given", path="$.embedder"
        )
    return BUILT_IN[config.embedder]


def _connect(config: MemoryConfig, space: Space) -> _Opened:
    opened: list[apsw.Connection] = []
    try:
        uri = locate(config)
        opened.append(open_writer(uri, config))
        opened.extend(open_reader(uri, config) for _ in range(config.readers))
        writer = Writer(opened[0], space)
        note = Note(writer.identity(), space.name, writer.last_id())
        graph, why = _load(config.path, space, note, writer)
        return _Opened(writer, [Reader(db, space) for db in opened[1:]], graph, note, why)
    except BaseException as exc:
        for db in opened:
            db.close()
        if isinstance(exc, apsw.Error | OSError):
            raise fault(exc, path=config.path) from exc
        if isinstance(exc, ValueError | TypeError | ArithmeticError):  # a value that no memory has written
            problem = f"{config.path}: a row of the memory store is damaged ({exc})"
            raise StoreError(problem, cause="corrupt", retryable=False) from exc
        raise


def _load(path: Path | None, space: Space, note: Note, writer: Writer) -> tuple[Graph, str | None]:
    """Return the saved graph, or an empty one and why."""
    empty = Graph.empty(space.dimensions, attrs.evolve(note, watermark=0))
    if path is None:
        return empty, None
    try:
        graph = Graph.load(path / graphs.FILE_NAME, space.dimensions, note)
    except UnusableGraphError as exc:
        return empty, str(exc) if note.watermark else None
    graph.keep_only(writer.ids())
    return graph, None


def _add(graph: Graph, space: Space, ready: Sequence[Waiting]) -> None:
    vectors = space.unpack([entry.packed for entry in ready if entry.packed is not None])
    graph.add([entry.id for entry in ready], vectors, ready[-1].id)


def _size(folder: Path | None, name: str) -> int:
    with contextlib.suppress(OSError):
        return 0 if folder is None else (folder / name).stat().st_size
    return 0
