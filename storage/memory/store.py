"""The semantic memory as the rest of the runtime sees it: async, safe to call from any task."""

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

import apsw
import attrs
import trio

from warren.base.errors import StoreError
from warren.base.principals import DEFAULT_TENANT
from warren.base.values import define
from warren.conversation.memory import (
    Chosen,
    Embedder,
    MemoryConfig,
    MemoryEntry,
    MemoryHit,
    Progress,
    Tail,
    Unsettled,
)
from warren.storage.memory import graph as graphs
from warren.storage.memory.file import FILE_NAME, MEMORY_STORE, locate, open_reader, open_writer
from warren.storage.memory.graph import Graph, Note, UnusableGraphError
from warren.storage.memory.homes import EMBED_AT_ONCE, Bare, HomeOfTexts, Query
from warren.storage.memory.search import MemoryReader
from warren.storage.memory.spaces import Space
from warren.storage.memory.vectors import EXACT_BYTES, VectorIndex
from warren.storage.memory.weighing import space_of
from warren.storage.memory.writer import Writer
from warren.storage.runner import Runner, thread_runner
from warren.storage.sqlite.faults import precise
from warren.storage.sqlite.pool import SqlitePool

logger: Final = logging.getLogger("warren.memory")
R = TypeVar("R")
INHERITED: Final = ("PATH", "HOME", "TMPDIR", "LANG", "LC_", "PYTHON", "LD_", "DYLD_", "OMP_")
"""Beginnings of the variables that a builder process gets: API keys are not among them."""


@define(eq=False)
class _Opened:
    """The result of opening."""

    writer: Writer
    readers: list[MemoryReader]
    index: VectorIndex
    note: Note
    rebuilt: str | None
    behind: int


class FileMemory(HomeOfTexts):
    """Texts in a file, or in this process alone. Made by `open`, ended by `aclose`; for the methods see MemoryStore.

    When `index` returns, its entries are on the disk. `catch_up` also builds the graph for searches among many vectors.

    Every method raises StoreError if a file fails, with `cause` "locked", "disk_full", "io_error", "corrupt",
    "read_only", "closed" and so on.
    """

    def __init__(self, config: MemoryConfig, space: Space, opened: _Opened, runner: Runner) -> None:
        super().__init__(space, runner, behind=opened.behind, rebuilt=opened.rebuilt)
        self._path = config.path
        self._index = opened.index
        self._note = opened.note
        self._last_id = opened.note.watermark
        self._writing = SqlitePool([opened.writer], runner)
        self._reading = SqlitePool(opened.readers, runner)

    @classmethod
    async def open(
        cls,
        config: MemoryConfig,
        embedder: Embedder | None = None,
        *,
        runner: Runner = thread_runner,
        exact_bytes: int = EXACT_BYTES,
    ) -> Self:
        """Open the memory in the folder `config.path`, or make it.

        Without `embedder` the config's has to be a built-in one. A saved graph is used if it is whole, of this embedder
        and of this database; otherwise `catch_up` builds it anew if it is needed.

        Args:
            config: the folder and how to open it.
            embedder: makes the vectors.
            runner: runs the blocking calls.
            exact_bytes: bytes of vectors, four for each number, up to which they are compared one by one.

        Raises InvalidParamsError for an unknown embedder, StoreError with `cause` "newer_schema", "not_a_store",
        "not_a_database", "permission", "cannot_open" and so on.
        """
        space = space_of(config, embedder)
        opened = await runner(partial(_connect, config, space, exact_bytes))
        return cls(config, space, opened, runner)

    @property
    def is_behind(self) -> bool:
        return super().is_behind or self._needs_graph

    @property
    def _needs_graph(self) -> bool:
        return self._path is not None and self._space.dimensions > 0 and self._index.is_overgrown(self._last_id)

    async def aclose(self) -> None:
        # Shielded: the runtime may end by cancellation, and the files have to be closed all the same.
        with trio.CancelScope(shield=True):
            self._closed = True
            await self._reading.run_on_all(MemoryReader.close)
            await self._writing.run_on_all(Writer.close)

    async def index(
        self, entries: Sequence[MemoryEntry], tail: Tail | None = None, *, tenant: str = DEFAULT_TENANT
    ) -> int:
        fresh = await self._write(partial(Writer.unknown, entries=entries))
        vectors = await self._vectorizer.soon([entry.content for entry in fresh])
        if not fresh and tail is None:
            return 0
        kept = [entry.position for entry in entries if entry.content.strip()]
        add = partial(Writer.add, entries=fresh, vectors=vectors, kept=kept, tail=tail, tenant=tenant)
        added = await self._write(add)
        self._behind += sum(vector is None for vector in vectors)
        self._last_id = max([self._last_id, *added])
        return len(added)

    async def last_before(self, session_id: str, position: int) -> tuple[int, int]:
        return await self._read(partial(MemoryReader.last_before, session_id=session_id, position=position))

    async def unsettled(self) -> list[Unsettled]:
        return await self._read(MemoryReader.unsettled)

    async def settle(self, mark: Unsettled, count: int | None) -> int:
        return len(await self._write(partial(Writer.settle, mark=mark, count=count)))

    async def texts(self, tenant: str, sessions: Collection[str] | None = None) -> int:
        return await self._read(partial(MemoryReader.texts, tenant=tenant, sessions=sessions))

    async def forget(self, session_id: str) -> int:
        return len(await self._write(partial(Writer.forget, session_id=session_id)))

    async def forget_texts(self, chosen: Chosen) -> int | None:
        removed = await self._write(partial(Writer.forget_texts, chosen=chosen))
        return None if removed is None else len(removed)

    async def _find(self, query: Query) -> list[MemoryHit]:
        return await self._read(partial(MemoryReader.find, query=query))

    def _bare_from(self) -> int:
        return self._index.watermark

    async def _bare(self, after: int) -> Sequence[Bare]:
        return await self._write(partial(Writer.without_vector, after=after, count=EMBED_AT_ONCE))

    async def _count_bare(self) -> int:
        return await self._read(MemoryReader.without_vector)

    async def _add_vectors(self, vectors: dict[int, bytes]) -> None:
        await self._write(partial(Writer.add_vectors, vectors=vectors))

    async def _complete(self, progress: Progress | None) -> None:
        """Build the graph. Raises StoreError with `cause` "index_not_built"."""
        if self._path is not None and self._needs_graph:
            await self._build(self._path, progress)

    async def _begin_anew(self) -> None:
        """Also give texts the words that they lack. Vectors are compared one by one until the graph is there again."""
        await self._write(Writer.drop_stray_words)
        after = None
        while (after := await self._write(partial(Writer.add_missing_words, after=after))) is not None:
            pass
        await self._write(Writer.drop_other_spaces)
        self._index.replace_graph(None)
        if self._path is not None:
            (self._path / graphs.FILE_NAME).unlink(missing_ok=True)

    async def _counts(self) -> tuple[int, int]:
        return await self._read(MemoryReader.counts)

    async def _sizes(self) -> tuple[int, int]:
        return _size(self._path, FILE_NAME), _size(self._path, graphs.FILE_NAME)

    async def _build(self, folder: Path, progress: Progress | None) -> None:
        """Build the graph in a process of its own, and take over the graph that the process has saved."""
        # Without the working folder on its path: a file there could be taken for a module.
        command = [sys.executable, "-P", "-m", "warren.storage.memory.builder", str(folder), self._space.name]
        errors = bytearray()
        try:
            async with trio.open_nursery() as nursery:
                process = await nursery.start(
                    partial(
                        trio.run_process,
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        env={name: value for name, value in os.environ.items() if name.startswith(INHERITED)},
                        check=False,
                    )
                )
                nursery.start_soon(_collect, process.stderr, errors)
                await _follow(process.stdout, progress)
        except* OSError as group:
            raise _unbuilt(str(group.exceptions[0])) from group
        if process.returncode:
            raise _unbuilt(errors.decode(errors="replace").strip() or f"exit code {process.returncode}")
        self._last_id = await self._write(Writer.last_id)
        note = attrs.evolve(self._note, watermark=self._last_id)
        graph, why = await self._runner(partial(_look, folder, self._space, note))
        if graph is not None:
            self._index.replace_graph(graph)
        elif why is not None:
            raise _unbuilt(f"the saved index is {why}")

    async def _write(self, function: Callable[[Writer], R]) -> R:
        try:
            return await self._writing.run(lambda writer: writer.run(function))
        except (apsw.Error, UnicodeError) as exc:
            raise MEMORY_STORE.fault(exc) from exc

    async def _read(self, function: Callable[[MemoryReader], R]) -> R:
        try:
            return await self._reading.run(function)
        except apsw.Error as exc:
            raise MEMORY_STORE.fault(exc) from exc


def _connect(config: MemoryConfig, space: Space, exact_bytes: int) -> _Opened:
    opened: list[apsw.Connection] = []
    try:
        uri = locate(config)
        opened.append(open_writer(uri, config))
        opened.extend(open_reader(uri, config) for _ in range(config.readers))
        writer = Writer(opened[0], space)
        note = Note(writer.identity(), space.name, writer.last_id())
        graph, why = _look(config.path, space, note)
        index = VectorIndex(space, graph, exact_bytes)
        readers = [MemoryReader(db, space, index) for db in opened[1:]]
        return _Opened(writer, readers, index, note, why, readers[0].without_vector())
    except BaseException as exc:
        found = precise(exc, opened[0]) if opened else exc
        for db in opened:
            db.close()
        if isinstance(found, apsw.Error | OSError):
            raise MEMORY_STORE.fault(found, path=config.path) from exc
        if isinstance(exc, ValueError | TypeError | ArithmeticError):  # a value that no memory has written
            problem = f"{config.path}: a row of the memory store is damaged ({exc})"
            raise StoreError(problem, cause="corrupt", retryable=False) from exc
        raise


def _look(path: Path | None, space: Space, note: Note) -> tuple[Graph | None, str | None]:
    """Return the saved graph; None and the reason if there is one that cannot be used."""
    if path is None or not space.dimensions:
        return None, None
    try:
        return Graph.view(path / graphs.FILE_NAME, space.dimensions, note), None
    except UnusableGraphError as exc:
        # No graph was needed yet, or it was removed: a search works the same.
        return None, str(exc) if str(exc) != "missing" else None


async def _collect(stream: trio.abc.ReceiveStream, into: bytearray) -> None:
    async for part in stream:
        into += part


async def _follow(stream: trio.abc.ReceiveStream, progress: Progress | None) -> None:
    """Report the progress that a builder prints, line by line."""
    rest = b""
    async for part in stream:
        *lines, rest = (rest + part).split(b"\n")
        if lines and progress is not None:
            done, total = lines[-1].split()
            progress(int(done), int(total))


def _unbuilt(why: str) -> StoreError:
    message = f"the memory's index cannot be built ({why}); searches go on, and it is tried again"
    return StoreError(message, cause="index_not_built", retryable=True)


def _size(folder: Path | None, name: str) -> int:
    with contextlib.suppress(OSError):
        return 0 if folder is None else (folder / name).stat().st_size
    return 0
