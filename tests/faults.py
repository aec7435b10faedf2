"""A disk that fails on demand, under a real SQLite file."""

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import apsw
import attrs

_NUMBERS: Final = itertools.count(1)


@attrs.define
class Disk:
    """The faults of the disk from now on, and its calls so far.

    Attributes:
        room: bytes by which files may still grow before it is full; None is no limit.
        write: what a write fails with.
        sync: what a flush fails with.
        read: what a read fails with.
        written: bytes written.
        syncs: flushes.
        faults: calls that were made to fail.
        calls: writes and flushes so far.
        fail_at: the number of the one call that fails.
        fail_as: how: with an error of its own, or "short" for a write of which only half arrives.
        platters: what each file would hold after a power cut; None where nobody wants to know.
    """

    room: int | None = None
    write: type[Exception] | None = None
    sync: type[Exception] | None = None
    read: type[Exception] | None = None
    written: int = 0
    syncs: int = 0
    faults: int = 0
    calls: int = 0
    fail_at: int | None = None
    fail_as: type[Exception] | Literal["short"] = apsw.IOError
    platters: "dict[str, Platter] | None" = None

    def heal(self) -> None:
        """Let everything work again."""
        self.room = self.write = self.sync = self.read = None

    def on_write(self, size: int, growth: int) -> bool:
        """Return whether all of it is written."""
        short = self._call(may_be_short=True)
        self._fail(self.write)
        if self.room is not None:
            self._fail(apsw.FullError if growth > self.room else None)
            self.room -= growth
        self.written += size
        return not short

    def on_sync(self) -> None:
        self._call(may_be_short=False)
        self._fail(self.sync)
        self.syncs += 1

    def on_read(self) -> None:
        self._fail(self.read)

    def platter(self, path: str) -> "Platter":
        """Return what is kept of a file."""
        return self.platters.setdefault(path, Platter()) if self.platters is not None else Platter()

    def cut_power(self, folder: Path, chance: random.Random | None = None) -> None:
        """Write into a folder what a power cut would leave; with `chance`, some of what was not flushed is there."""
        folder.mkdir()
        for path, platter in (self.platters or {}).items():
            (folder / Path(path).name).write_bytes(platter.after_a_cut(chance))

    def _call(self, *, may_be_short: bool) -> bool:
        """Count a call; fail if it is the one that shall. Return whether it is to be a short write."""
        self.calls += 1
        if self.calls != self.fail_at:
            return False
        if self.fail_as == "short":
            self.faults += may_be_short
            return may_be_short
        self._fail(self.fail_as)
        return False

    def _fail(self, error: type[Exception] | None) -> None:
        if error is not None:
            self.faults += 1
            raise error("injected")


@attrs.define
class Platter:
    """One file: what was flushed, and the writes since."""

    flushed: bytes = b""
    since: list[tuple[int, bytes | None]] = attrs.field(factory=list)

    def flush(self) -> None:
        self.flushed, self.since = _with(self.flushed, self.since), []

    def after_a_cut(self, chance: random.Random | None) -> bytes:
        lucky = [] if chance is None else [write for write in self.since if chance.random() < 0.5]
        return _with(self.flushed, lucky)


def _with(content: bytes, writes: list[tuple[int, bytes | None]]) -> bytes:
    """Return a file's content after some writes; one without data cuts the file there."""
    new = bytearray(content)
    for offset, data in writes:
        new.extend(bytes(max(0, offset - len(new))))
        new[offset : len(new) if data is None else offset + len(data)] = data or b""
    return bytes(new)


class _File(apsw.VFSFile):
    """A file of the real disk behind the faults."""

    def __init__(self, disk: Disk, base: str, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._platter = disk.platter(path or "")
        super().__init__(base, name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - the name is SQLite's
        self._disk.on_read()
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - the name is SQLite's
        if not self._disk.on_write(len(data), max(0, offset + len(data) - self.xFileSize())):
            super().xWrite(data[: len(data) // 2], offset)
            raise apsw.IOError("injected: a short write")
        super().xWrite(data, offset)
        self._platter.since.append((offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - the name is SQLite's
        super().xTruncate(newsize)
        self._platter.since.append((newsize, None))

    def xSync(self, flags: int) -> None:  # noqa: N802 - the name is SQLite's
        self._disk.on_sync()
        super().xSync(flags)
        self._platter.flush()


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
