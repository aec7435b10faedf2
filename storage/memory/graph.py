"""The USearch indexes of a memory's vectors: a graph in a file, and a flat one in memory that is searched exactly.

Both are caches of the vectors in the database. A builder in a process of its own makes the file of the graph; the
runtime only looks into it, mapped into its memory. USearch holds the interpreter's lock while it writes an index, a
millisecond for every megabyte, and all other threads would wait.

The file ends with a note that names its database and a checksum. It is replaced as a whole by a rename.

USearch is imported with the first index: a memory without vectors does without it.
"""

import os
import struct
import zlib
from collections.abc import Collection, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self

import attrs
import numpy as np

from warren.base.values import frozen
from warren.conversation import codec
from warren.storage.folders import Disk, Folder
from warren.storage.memory.spaces import Vectors

if TYPE_CHECKING:
    from usearch.index import Index

FILE_NAME: Final = "memory.usearch"
CONNECTIVITY: Final = 16
EXPANSION_ADD: Final = 200
EXPANSION_SEARCH: Final = 100
_DTYPE: Final = "bf16"
"""Beside i8 as quick to search, and it finds 0.999 of the nearest ten instead of 0.965; half the memory of f32, and the
time of an exact search too."""
_TAIL: Final = struct.Struct("<II8s")
"""The length of the note, the checksum of all bytes before this, and a mark."""
_MARK: Final = b"WARRENv2"
_BLOCK: Final = 1 << 22


class UnusableGraphError(Exception):
    """The saved graph cannot be used; the argument is the reason in one word."""


@frozen
class Note:
    """The origin of a saved graph.

    Attributes:
        store: the identity of the database.
        space: the name of its space.
        watermark: every entry up to this id was considered.
    """

    store: str
    space: str
    watermark: int


class Graph:
    """Vectors by the ids of their entries. Searching is safe from any thread; adding is for the builder alone."""

    def __init__(self, index: "Index", note: Note) -> None:
        self._index = index
        self._note = note

    @classmethod
    def empty(cls, dimensions: int, note: Note) -> Self:
        """Return a graph without vectors."""
        return cls(_index(dimensions), note)

    @classmethod
    def view(cls, path: Path, dimensions: int, expected: Note) -> Self:
        """Return the saved graph, to look into: it takes no memory of its own, and cannot be changed.

        Raises UnusableGraphError: "missing", "damaged", "other_embedder", or "stale" if it is of another database or
        knows more than this one (`expected.watermark` is the last id ever given out).
        """
        return cls._open(path, dimensions, expected, for_changes=False)

    @classmethod
    def load(cls, path: Path, dimensions: int, expected: Note) -> Self:
        """Return the saved graph, to be added to. Raises UnusableGraphError as `view` does."""
        return cls._open(path, dimensions, expected, for_changes=True)

    @classmethod
    def _open(cls, path: Path, dimensions: int, expected: Note, *, for_changes: bool) -> Self:
        note = read_note(path)
        if note.space != expected.space:
            raise UnusableGraphError("other_embedder")
        if note.store != expected.store or note.watermark > expected.watermark:
            raise UnusableGraphError("stale")
        index = _index(dimensions)
        try:
            # USearch checks nothing of a file that it maps: the checksum was looked at just before.
            (index.load if for_changes else index.view)(os.fspath(path))
        except Exception as exc:  # USearch raises whatever its C++ side threw
            raise UnusableGraphError("damaged") from exc
        if index.ndim != dimensions:
            raise UnusableGraphError("damaged")
        return cls(index, note)

    @property
    def watermark(self) -> int:
        """The id up to which every entry with a vector is in the graph."""
        return self._note.watermark

    def __len__(self) -> int:
        return len(self._index)

    def add(self, keys: Iterable[int], vectors: Vectors, watermark: int) -> None:
        """Add vectors and move the watermark. A vector of length 0 is left out: it is near nothing."""
        _add(self._index, keys, vectors)
        self._note = attrs.evolve(self._note, watermark=watermark)

    def keep_only(self, ids: Iterable[int]) -> None:
        """Remove every vector of an entry that is not among `ids`."""
        # By a slice: one by one, USearch would look up each anew.
        present = np.asarray(self._index.keys[: len(self._index)], dtype=np.uint64)
        gone = np.setdiff1d(present, np.fromiter(ids, dtype=np.uint64))
        if gone.size:
            self._index.remove(gone)

    def nearest(self, vector: Vectors, count: int) -> list[int]:
        """Return the ids of about the `count` nearest vectors, nearest first."""
        return _nearest(self._index, vector, count, exact=False)

    def save(self, path: Path) -> None:
        """Write the graph beside its file, then put it in that place. Raises OSError."""
        body = memoryview(self._index.save() or b"")
        with (
            closing(Folder.at(Disk(), path.parent)) as folder,
            folder.replacing(path.name, path.name + ".new") as number,
            open(number, "wb", closefd=False) as file,
        ):
            _write_with_note(file, body, self._note)
            os.fsync(number)


class Flat:
    """Vectors by the ids of their entries, compared one by one. One caller at a time: adding may move them.

    Adding takes some microseconds for each, and searching does not hold the interpreter's lock.
    """

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._index: Index | None = None

    def __len__(self) -> int:
        return 0 if self._index is None else len(self._index)

    def add(self, keys: Iterable[int], vectors: Vectors) -> None:
        """Add vectors of ids that are not here. A vector of length 0 is left out: it is near nothing."""
        if self._index is None:
            # The neighbours that USearch links to each vector are never looked at.
            self._index = _index(self._dimensions, connectivity=2, expansion_add=1)
        _add(self._index, keys, vectors)

    def remove(self, keys: Collection[int]) -> set[int]:
        """Remove the vectors of these ids; return the ids that had one."""
        if self._index is None:
            return set()
        mine = {key for key in keys if key in self._index}
        if mine:
            self._index.remove(np.fromiter(mine, dtype=np.uint64))
        return mine

    def nearest(self, vector: Vectors, count: int) -> list[int]:
        """Return the ids of the `count` nearest vectors, nearest first."""
        return [] if self._index is None else _nearest(self._index, vector, count, exact=True)


def _index(dimensions: int, *, connectivity: int = CONNECTIVITY, expansion_add: int = EXPANSION_ADD) -> "Index":
    from usearch.index import Index  # noqa: PLC0415 - a memory without vectors has no index

    return Index(
        ndim=dimensions,
        metric="cos",
        dtype=_DTYPE,
        connectivity=connectivity,
        expansion_add=expansion_add,
        expansion_search=EXPANSION_SEARCH,
    )


def _add(index: "Index", keys: Iterable[int], vectors: Vectors) -> None:
    some = vectors.any(axis=1)
    if some.any():
        index.add(np.fromiter(keys, dtype=np.uint64)[some], vectors[some], threads=1)


def _nearest(index: "Index", vector: Vectors, count: int, *, exact: bool) -> list[int]:
    if not len(index) or not vector.any():
        return []
    keys: list[int] = index.search(vector, count, threads=1, exact=exact).keys.tolist()
    return keys


def _write_with_note(file: BinaryIO, body: memoryview, note: Note) -> None:
    tail = codec.encode(note)
    file.write(body)
    file.write(tail + _TAIL.pack(len(tail), zlib.crc32(tail, zlib.crc32(body)), _MARK))
    file.flush()


def read_note(path: Path) -> Note:
    """Return the note of a saved graph, after its checksum; raises UnusableGraphError: "missing", "damaged"."""
    try:
        with path.open("rb") as file:
            return _verified(file)
    except FileNotFoundError:
        raise UnusableGraphError("missing") from None
    except (OSError, ValueError, struct.error) as exc:
        raise UnusableGraphError("damaged") from exc


def _verified(file: BinaryIO) -> Note:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL.size))
    length, checksum, mark = _TAIL.unpack(file.read())
    end = size - _TAIL.size
    if mark != _MARK or length > end or _checksum(file, end) != checksum:
        raise UnusableGraphError("damaged")
    file.seek(end - length)
    note: Note = codec.decode_stored(Note, file.read(length))
    return note


def _checksum(file: BinaryIO, end: int) -> int:
    """Return the checksum of the file's first `end` bytes; zlib lets other threads run meanwhile."""
    checksum = 0
    file.seek(0)
    while end > 0:
        block = file.read(min(end, _BLOCK))
        if not block:
            raise UnusableGraphError("damaged")
        checksum = zlib.crc32(block, checksum)
        end -= len(block)
    return checksum
