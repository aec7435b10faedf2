"""Folders by descriptor: a name in one of them cannot lead out of it, whatever links lie there.

POSIX only. What is made here is for its owner alone, unless a mode is given.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from warren.base.values import frozen

_SAFE: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_NOT_EMPTY: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})
UNFINISHED: Final = ".tmp"


class Disk:
    """The calls that open and change files. Tests put one in its place that fails, or that ends the process."""

    def open(self, name: str, flags: int, folder: int, mode: int = 0o600) -> int:
        """Open a file that is no link; nothing that is there in its place can block this."""
        return os.open(name, flags | _SAFE, mode, dir_fd=folder)

    def write(self, file: int, data: bytes) -> None:
        """Write all of it."""
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]

    def truncate(self, file: int, size: int) -> None:
        """Cut a file."""
        os.ftruncate(file, size)

    def sync(self, file: int) -> None:
        """Have a file or a folder on the disk itself."""
        os.fsync(file)

    def sync_all(self) -> None:
        """Have everything on the disks themselves."""
        os.sync()

    def rename(self, name: str, to: str, folder: int) -> None:
        """Put a file in the place of another, or of none."""
        os.rename(name, to, src_dir_fd=folder, dst_dir_fd=folder)

    def move(self, name: str, folder: int, to: int) -> None:
        """Move a file or a folder into another folder."""
        os.rename(name, name, src_dir_fd=folder, dst_dir_fd=to)

    def unlink(self, name: str, folder: int) -> None:
        """Remove a file or a link."""
        os.unlink(name, dir_fd=folder)

    def make_folder(self, name: str, folder: int, mode: int = 0o700) -> None:
        """Make a folder."""
        os.mkdir(name, mode, dir_fd=folder)

    def remove_tree(self, name: str, folder: int) -> None:
        """Remove a folder with its contents; links in it are removed, not followed."""
        shutil.rmtree(name, dir_fd=folder)

    def remove_folder(self, name: str, folder: int) -> None:
        """Remove an empty folder."""
        os.rmdir(name, dir_fd=folder)


@contextlib.contextmanager
def nothing_there() -> Iterator[None]:
    """Pass over that there is nothing of a name, or something else."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in _NOT_THERE:
            raise


@frozen
class Folder:
    """An open folder. Every method raises OSError.

    Attributes:
        disk: makes the changes.
        fd: its descriptor.
    """

    disk: Disk
    fd: int

    @classmethod
    def at(cls, disk: Disk, path: Path) -> "Folder":
        """Open the folder that a path leads to, through links too."""
        return cls(disk, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def close(self) -> None:
        """Close it."""
        os.close(self.fd)

    def open(self, name: str, *, make: bool = True, mode: int = 0o700) -> "Folder":
        """Open a folder in it; make the folder if there is none. A link is refused."""
        flags = os.O_RDONLY | os.O_DIRECTORY
        try:
            return Folder(self.disk, self.disk.open(name, flags, self.fd))
        except FileNotFoundError:
            if not make:
                raise
        with contextlib.suppress(FileExistsError):  # another process has made it meanwhile
            self.disk.make_folder(name, self.fd, mode)
        return Folder(self.disk, self.disk.open(name, flags, self.fd))

    def step(self, name: str, *, make: bool = False, mode: int = 0o700) -> "Folder":
        """Open a folder in it as `open` does, and close this one once that has succeeded."""
        inner = self.open(name, make=make, mode=mode)
        self.close()
        return inner

    @contextlib.contextmanager
    def inner(self, name: str, *, make: bool = True) -> Iterator["Folder"]:
        """Do the same for as long as the block lasts."""
        folder = self.open(name, make=make)
        try:
            yield folder
        finally:
            folder.close()

    @contextlib.contextmanager
    def file(self, name: str, flags: int) -> Iterator[int]:
        """Open a file in it for as long as the block lasts."""
        file = self.disk.open(name, flags, self.fd)
        try:
            yield file
        finally:
            os.close(file)

    def read(self, name: str) -> bytes | None:
        """Return the contents of a file; None if it is missing or cannot be read."""
        with contextlib.suppress(OSError), self.file(name, os.O_RDONLY) as file:
            found = os.fstat(file)
            return os.read(file, found.st_size) if stat.S_ISREG(found.st_mode) else None
        return None

    def stat(self, name: str) -> os.stat_result:
        """Return the status of what has a name in it, even if that is a link."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def has(self, name: str) -> bool:
        """Tell whether there is anything of that name."""
        try:
            self.stat(name)
        except FileNotFoundError:
            return False
        return True

    def size(self, name: str) -> int | None:
        """Return the length of a file; None if there is none, or something else."""
        try:
            found = self.stat(name)
        except FileNotFoundError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def replace(self, name: str, parts: Iterable[bytes], *, sync: bool = False) -> int:
        """Put a new file in the place of an old one, whole or not at all; return its length.

        With `sync` the contents are on the disk before the name is, so a power cut leaves no empty file.
        """
        size = 0
        with self.replacing(name, name + UNFINISHED) as file:
            for part in parts:
                self.disk.write(file, part)
                size += len(part)
            if sync:
                self.disk.sync(file)
        return size

    @contextlib.contextmanager
    def replacing(self, name: str, unfinished: str, mode: int = 0o600) -> Iterator[int]:
        """Yield a new file, and put it in the place of an old one after the block.

        Until then it has the name `unfinished`. If the block raises, it is removed, and the old file stays.
        """
        try:
            with self._new(unfinished, mode) as file:
                yield file
            self.disk.rename(unfinished, name, self.fd)
        except BaseException:
            with contextlib.suppress(OSError):
                self.disk.unlink(unfinished, self.fd)
            raise

    def move(self, name: str, to: "Folder") -> None:
        """Move a file or a folder, with its contents, into another folder."""
        self.disk.move(name, self.fd, to.fd)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its contents. A missing one is no error."""
        with contextlib.suppress(FileNotFoundError):
            try:
                self.disk.unlink(name, self.fd)
            except OSError:
                if not stat.S_ISDIR(self.stat(name).st_mode):
                    raise
                self.disk.remove_tree(name, self.fd)

    def remove_empty(self, name: str) -> None:
        """Remove a folder in it if nothing is in that. A missing one, or a file, is no error."""
        try:
            self.disk.remove_folder(name, self.fd)
        except OSError as exc:
            if exc.errno not in _NOT_THERE | _NOT_EMPTY:
                raise

    def sync(self, *names: str) -> None:
        """Have files of it, those that are there, and its list of names on the disk itself."""
        for name in names:
            with nothing_there(), self.file(name, os.O_RDONLY) as file:
                if stat.S_ISREG(os.fstat(file).st_mode):
                    self.disk.sync(file)
        self.disk.sync(self.fd)

    def leads_to(self, name: str, folder: "Folder") -> bool:
        """Tell whether a folder still is the one of that name: into one that was removed nothing can be written."""
        try:
            found = self.stat(name)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(folder.fd))

    def names(self) -> list[str]:
        """Return the names in it."""
        return os.listdir(self.fd)  # noqa: PTH208 - a path would have to be looked up again

    @contextlib.contextmanager
    def _new(self, name: str, mode: int) -> Iterator[int]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            file = self.disk.open(name, flags, self.fd, mode)
        except FileExistsError:  # a process that was killed left it
            self.disk.unlink(name, self.fd)
            file = self.disk.open(name, flags, self.fd, mode)
        try:
            yield file
        finally:
            os.close(file)
