"""The graph of vectors: a USearch index and its file, which is a cache of what lies in the database.

The file ends with a note of what it was made of and a checksum: one file, so one rename replaces all of it.
"""

import os
import struct
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final, Self

import attrs
import numpy as np
from usearch.index import Index

from warren import codec
from warren.errors import StoreError
from warren.storage.memory.spaces import Vectors
from warren.storage.memory.words import step_aside

FILE_NAME: Final = "memory.usearch"
CONNECTIVITY: Final = 16
EXPANSION_ADD: Final = 200
EXPANSION_SEARCH: Final = 128
_DTYPE: Final = "i8"
"""Half the memory of f16 and twice as fast; what it finds is weighed again exactly."""
_TAIL: Final = struct.Struct("<II8s")
"""The length of the note, the checksum of all before it, and a mark."""
_MARK: Final = b"WARRENv1"
_BLOCK: Final = 1 << 22
_STEP: Final = 500
"""Nodes that are saved or loaded between two pauses: about a millisecond."""


class UnusableGraphError(Exception):
    """The saved graph cannot be used; the argument says why in one word."""


@attrs.frozen
class Note:
    """What a saved graph was made of.

    Attributes:
        store: the identity of the database.
        space: the name of its space.
        watermark: every entry up to this id was considered.
    """

    store: str
    space: str
    watermark: int


class Graph:
    """Vectors by the ids of their entries. Safe to search from any thread while one adds."""

    def __init__(self, index: Index, note: Note) -> None:
        self._index = index
        self._note = note
        # USearch moves its memory when it grows: nobody may be searching in it meanwhile.
        self._lock = threading.Lock()
        self._unsaved = 0

    @classmethod
    def empty(cls, dimensions: int, note: Note) -> Self:
        """Return a graph without vectors."""
        return cls(_index(dimensions), note)

    @classmethod
    def load(cls, path: Path, dimensions: int, expected: Note) -> Self:
        """Return the saved graph.

        Raises UnusableGraphError: "missing", "damaged", "other_embedder", or "stale" where it is of another database
        or knows more than this one (`expected.watermark` is the last id ever given out).
        """
        note = read_note(path)
        if note.space != expected.space:
            raise UnusableGraphError("other_embedder")
        if note.store != expected.store or note.watermark > expected.watermark:
            raise UnusableGraphError("stale")
        index = _index(dimensions)
        try:
            index.load(os.fspath(path), progress=_unhurried)
        except Exception as exc:  # USearch raises whatever its C++ side threw
            raise UnusableGraphError("damaged") from exc
        if index.ndim != dimensions:
            raise UnusableGraphError("damaged")
        return cls(index, note)

    @property
    def watermark(self) -> int:
        """Entries up to this id have been added, as far as they have a vector."""
        return self._note.watermark

    @property
    def unsaved(self) -> int:
        """How many entries were added or removed since it was loaded or saved."""
        return self._unsaved

    def __len__(self) -> int:
        return len(self._index)

    def add(self, keys: Sequence[int], vectors: Vectors, watermark: int) -> None:
        """Add vectors and move the watermark. Those of length 0 are left out: they are like nothing."""
        some = vectors.any(axis=1)
        with self._lock:
            if some.any():
                self._index.add(np.array(keys, dtype=np.uint64)[some], vectors[some], threads=1)
            self._note = attrs.evolve(self._note, watermark=watermark)
            self._unsaved += len(keys)

    def keep_only(self, ids: Sequence[int]) -> None:
        """Remove what is not among `ids`: entries that were forgotten after the graph was saved."""
        # By a slice: one by one, USearch would look each up anew.
        present = np.asarray(self._index.keys[: len(self._index)], dtype=np.uint64)
        self.remove(np.setdiff1d(present, np.array(ids, dtype=np.uint64)).tolist())

    def remove(self, keys: Sequence[int]) -> None:
        """Remove vectors, as far as they are there."""
        with self._lock:
            there = [key for key in keys if key in self._index]
            if there:
                self._index.remove(np.array(there, dtype=np.uint64))
                self._unsaved += len(there)

    def nearest(self, vector: Vectors, count: int) -> list[int]:
        """Return the ids of about the `count` nearest vectors, nearest first."""
        if not vector.any():
            return []
        with self._lock:
            if not len(self._index):
                return []
            keys: list[int] = self._index.search(vector, count, threads=1).keys.tolist()
        return keys

    def save(self, path: Path) -> None:
        """Write it beside its file, then put it in that place. Raises StoreError. Trap: nobody may add meanwhile."""
        try:
            self._write(path.with_name(path.name + ".new"), path)
        except (OSError, RuntimeError) as exc:  # USearch raises the latter for a full disk
            message = f"{path}: the memory's index cannot be saved ({exc})"
            raise StoreError(message, cause="io_error") from exc
        self._unsaved = 0

    def _write(self, temporary: Path, path: Path) -> None:
        # By way of memory: USearch keeps the interpreter's lock while it writes a file, and that takes longer.
        body = memoryview(self._index.save(progress=_unhurried) or b"")
        with open(temporary, "wb", opener=_for_its_owner) as file:
            _write_with_note(file, body, self._note)
            os.fsync(file.fileno())
        temporary.replace(path)


def _index(dimensions: int) -> Index:
    return Index(
        ndim=dimensions,
        metric="cos",
        dtype=_DTYPE,
        connectivity=CONNECTIVITY,
        expansion_add=EXPANSION_ADD,
        expansion_search=EXPANSION_SEARCH,
    )


# USearch looks at the annotations.
def _unhurried(done: int, _total: int) -> bool:
    """Let other threads run now and then; go on."""
    if done % _STEP == 0:
        step_aside()
    return True


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write_with_note(file: BinaryIO, body: memoryview, note: Note) -> None:
    checksum = 0
    for at in range(0, len(body), _BLOCK):
        block = body[at : at + _BLOCK]
        checksum = zlib.crc32(block, checksum)
        file.write(block)
    tail = codec.encode(note)
    file.write(tail + _TAIL.pack(len(tail), zlib.crc32(tail, checksum), _MARK))
    file.flush()


def read_note(path: Path) -> Note:
    """Return what a saved graph was made of, after its checksum; raises UnusableGraphError: "missing", "damaged"."""
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
