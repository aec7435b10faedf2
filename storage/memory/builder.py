"""Builds the graph of a memory's vectors, in a process of its own: `python -m warren.storage.memory.builder`.

It takes the folder and the name of the space, reads the database beside the process that writes it, adds to the saved
graph if that can be used, and replaces its file. Of several builders one works, the others leave it to that one. Each
line that it prints is `done total`.
"""

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

import apsw
import attrs

from warren.conversation.memory import MemoryConfig
from warren.storage.file_lock import FileLock
from warren.storage.memory import graph as graphs
from warren.storage.memory.file import FILE_NAME, identity, open_reader
from warren.storage.memory.graph import Graph, Note, UnusableGraphError
from warren.storage.memory.spaces import PackedSpace, unpacked
from warren.storage.memory.vectors import next_vectors

LOCK_NAME: Final = "memory.usearch.lock"


def build(folder: Path, space_name: str) -> None:
    """Bring the graph in a folder up to the last entry that has a vector, and save it.

    Raises apsw.Error and OSError.
    """
    space = PackedSpace(space_name)
    with closing(open_reader((folder / FILE_NAME).absolute().as_uri(), MemoryConfig(folder))) as db:
        key = db.execute("SELECT key FROM spaces WHERE name = ?", (space_name,)).get
        last = db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'entries'").get
        note = Note(identity(db), space_name, int(last))
        graph = _start(folder, space, note)
        # Of the entries that were removed since the graph was saved.
        graph.keep_only(row[0] for row in db.execute("SELECT id FROM entries INDEXED BY entries_position"))
        total = int(db.execute("SELECT count(*) FROM entries WHERE id > ?", (graph.watermark,)).get)
        done = 0
        while some := next_vectors(db, key, graph.watermark):
            graph.add(some, unpacked(space, list(some.values())), max(some))
            done += len(some)
            print(done, max(done, total), flush=True)  # noqa: T201 - the process that started this one reads it
        graph.save(folder / graphs.FILE_NAME)


def _start(folder: Path, space: PackedSpace, note: Note) -> Graph:
    try:
        return Graph.load(folder / graphs.FILE_NAME, space.dimensions, note)
    except UnusableGraphError:
        return Graph.empty(space.dimensions, attrs.evolve(note, watermark=0))


def main(arguments: list[str]) -> int:
    """Build as the arguments say; return the exit code, with the reason on stderr if it fails."""
    folder, space_name = Path(arguments[0]), arguments[1]
    # Processes that serve sessions come first.
    os.nice(10)
    try:
        # Held until the process ends.
        if FileLock(folder / LOCK_NAME, "builder").take():
            build(folder, space_name)
    except (apsw.Error, OSError, UnusableGraphError) as exc:
        print(exc, file=sys.stderr)  # noqa: T201 - the same
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
