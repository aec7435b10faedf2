"""A disk that fails on demand, under a real SQLite file."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import apsw
import attrs

_NUMBERS: Final = itertools.count(1)


@attrs.define
class Disk:
    """What the disk is made to do from now on, and what it has done.

    Attributes:
        room: bytes by which files may still grow before it is full; None is no limit.
        write: what a write fails with.
        sync: what a flush fails with.
        read: what a read fails with.
        written: bytes written.
        syncs: flushes.
        faults: calls that were made to fail.
    """

    room: int | None = None
    write: type[Exception] | None = None
    sync: type[Exception] | None = None
    read: type[Exception] | None = None
    written: int = 0
    syncs: int = 0
    faults: int = 0

    def heal(self) -> None:
        """Let everything work again."""
        self.room = self.write = self.sync = self.read = None

    def on_write(self, size: int, growth: int) -> None:
        self._fail(self.write)
        if self.room is not None:
            self._fail(apsw.FullError if growth > self.room else None)
            self.room -= growth
        self.written += size

    def on_sync(self) -> None:
        self._fail(self.sync)
        self.syncs += 1

    def on_read(self) -> None:
        self._fail(self.read)

    def _fail(self, error: type[Exception] | None) -> None:
        if error is not None:
            self.faults += 1
            raise error("injected")


class _File(apsw.VFSFile):
    """A file of the real disk behind the faults."""

    def __init__(self, disk: Disk, base: str, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        super().__init__(base, name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - the name is SQLite's
        self._disk.on_read()
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - the name is SQLite's
        self._disk.on_write(len(data), max(0, offset + len(data) - self.xFileSize()))
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802 - the name is SQLite's
        self._disk.on_sync()
        super().xSync(flags)


class _Vfs(apsw.VFS):
    def __init__(self, disk: Disk, base: str) -> None:
        self._disk = disk
        self._base = base
        self.name = f"faulty-{next(_NUMBERS)}"
        super().__init__(self.name, base, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - as above
        return _File(self._disk, self._base, name, flags)


@contextmanager
def faulty_disk() -> Iterator[Disk]:
    """Put a `Disk` under every database file that is opened inside; all must be closed before the end."""
    before = apsw.vfs_names()[0]
    disk = Disk()
    vfs = _Vfs(disk, before)
    try:
        yield disk
    finally:
        vfs.unregister()
        apsw.set_default_vfs(before)
