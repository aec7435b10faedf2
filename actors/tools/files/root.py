"""Files under a root, by descriptors: no path of a model, and no link swapped in meanwhile, leads out of it.

POSIX only. Every step is opened from the folder before it and never through a link, so that nothing can change between
a check and its use. Failures raise ToolError with a text that the model can act on.
"""

import contextlib
import errno
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from warren.base.fields import FieldValueError
from warren.base.values import frozen
from warren.models.tools import ToolError
from warren.storage.folders import Disk, Folder

LOCK_SECONDS: Final = 20.0
MAX_DEPTH: Final = 64
"""The most folders in one path; each takes a descriptor while it is open."""
_DISK: Final = Disk()
_LOCKS: Final = tuple(threading.Lock() for _ in range(64))
_KINDS: Final = (
    (stat.S_ISLNK, "a symbolic link; links are not followed, use the path of its target"),
    (stat.S_ISDIR, "a folder, not a file"),
    (stat.S_ISFIFO, "a pipe, not a file"),
    (stat.S_ISSOCK, "a socket, not a file"),
    (stat.S_ISCHR, "a device, not a file"),
    (stat.S_ISBLK, "a device, not a file"),
)


def shown(name: str) -> str:
    """Return the name of a file as text, with escapes for control characters and for bytes that are not UTF-8."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


@contextlib.contextmanager
def told(path: str) -> Iterator[None]:
    """Raise errors of the system in a body as ToolErrors for the model."""
    try:
        yield
    except FileNotFoundError:
        raise ToolError(f"{shown(path)}: there is no such file or folder; list_files shows the files") from None
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.ENOTDIR):
            problem = "a part of it is a file or a symbolic link instead of a folder; links are not followed"
        else:
            problem = exc.strerror or str(exc)
        raise ToolError(f"{shown(path)}: {problem}") from exc


def regular(path: str, found: os.stat_result) -> os.stat_result:
    """Return the status if it is that of a plain file. Raises ToolError with the actual kind if it is not."""
    for is_kind, words in _KINDS:
        if is_kind(found.st_mode):
            raise ToolError(f"{shown(path)}: is {words}")
    if not stat.S_ISREG(found.st_mode):
        raise ToolError(f"{shown(path)}: is not a plain file")
    return found


@contextlib.contextmanager
def open_regular(name: str, folder: Folder, path: str) -> Iterator[int]:
    """Open a plain file for a body that reads it. Nothing else in its place can block this or redirect it."""
    with told(path):
        regular(path, folder.stat(name))  # a device may act on being opened
        file = _DISK.open(name, os.O_RDONLY, folder.fd)
    try:
        regular(path, os.fstat(file))
        yield file
    finally:
        os.close(file)


@frozen
class Place:
    """A name in an open folder.

    Attributes:
        folder: the folder.
        name: the last part of the path; "." for the root itself.
        path: the path from the root, as the model writes it.
    """

    folder: Folder
    name: str
    path: str

    def reading(self) -> AbstractContextManager[int]:
        """Open the file for a body."""
        return open_regular(self.name, self.folder, self.path)

    def is_folder(self) -> bool:
        """Return whether it is a folder, not a link to one."""
        with told(self.path):
            return stat.S_ISDIR(self.folder.stat(self.name).st_mode)

    def found(self) -> os.stat_result | None:
        """Return the status of the file, or None if there is no file."""
        with told(self.path):
            try:
                return regular(self.path, self.folder.stat(self.name))
            except FileNotFoundError:
                return None

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Exclude other changes in the same folder by any session of this process."""
        found = os.fstat(self.folder.fd)
        lock = _LOCKS[hash((found.st_dev, found.st_ino)) % len(_LOCKS)]
        if not lock.acquire(timeout=LOCK_SECONDS):
            raise ToolError(f"{shown(self.path)}: another change goes on for long; try again later")
        try:
            yield
        finally:
            lock.release()

    def replace(self, data: bytes, expected: os.stat_result | None) -> None:
        """Write the whole content or nothing, with the owner and the mode of the old file.

        A link that appears there at the last moment is replaced, not followed.

        Raises:
            ToolError: if the file is no longer the `expected` one.
        """
        if expected is not None and not expected.st_mode & 0o222:
            raise ToolError(f"{shown(self.path)}: is read-only")
        unfinished = f".{secrets.token_hex(8)}.tmp"
        # The mode of an old file may be stricter than the usual one: the new file has the strictest while it is filled.
        mode = 0o666 if expected is None else 0o600
        with told(self.path):
            with self.folder.replacing(self.name, unfinished, mode) as file:
                _DISK.write(file, data)
                if expected is not None:
                    with contextlib.suppress(PermissionError):
                        os.fchown(file, expected.st_uid, expected.st_gid)
                    os.fchmod(file, stat.S_IMODE(expected.st_mode) & 0o777)
                _DISK.sync(file)
                if _version(self.found()) != _version(expected):
                    raise ToolError(f"{shown(self.path)}: was changed by another program meanwhile; read it again")
            self.folder.sync()


def _version(found: os.stat_result | None) -> tuple[int, ...] | None:
    return None if found is None else (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


@frozen
class Root:
    """The folder that bounds the tools for files.

    Attributes:
        path: the path of the folder.
        identity: its device and inode when the tools were made; another folder in its place is refused.
    """

    path: Path
    identity: tuple[int, int]

    @classmethod
    def at(cls, path: Path) -> "Root":
        """Return the root at a path, which may lead through links. Raises FieldValueError if it is no folder."""
        try:
            real = path.resolve(strict=True)
            found = real.stat()
        except (OSError, RuntimeError, ValueError) as exc:
            raise FieldValueError("root", f"is not a folder that can be used: {exc}") from exc
        if not stat.S_ISDIR(found.st_mode):
            raise FieldValueError("root", f"is not a folder: {path}")
        return cls(real, (found.st_dev, found.st_ino))

    @contextlib.contextmanager
    def place(self, path: str, *, make: bool = False) -> Iterator[Place]:
        """Open the parent folder of a path of the model for a body; with `make`, missing folders are made."""
        parts = self._parts(path)
        with told(str(self.path)):
            folder = Folder.at(_DISK, self.path)
        try:
            found = os.fstat(folder.fd)
            if (found.st_dev, found.st_ino) != self.identity:
                raise ToolError("the root folder was replaced by another one; nothing under it can be used any more")
            with told(path):
                for part in parts[:-1]:
                    folder = folder.step(part, make=make, mode=0o777)
            yield Place(folder, parts[-1] if parts else ".", "/".join(parts) or ".")
        finally:
            folder.close()

    def _parts(self, path: str) -> list[str]:
        """Split a path into names. An absolute path has to begin with that of the root."""
        try:
            os.fsencode(path)
        except ValueError:
            raise ToolError(f"path: {path!r} has characters that no file name can have") from None
        if "\0" in path:
            raise ToolError("path: no file name has a zero byte in it")
        inner = path
        if path.startswith("/"):
            root = f"{self.path}/".replace("//", "/")
            if not f"{path}/".startswith(root):
                raise ToolError(f"path: {shown(path)} is outside of the root; give paths from the root, as in src/a.py")
            inner = path[len(root) :]
        parts = [part for part in inner.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ToolError(f"path: {shown(path)} has '..' in it; give the path from the root, without '..'")
        if len(parts) > MAX_DEPTH:
            raise ToolError(f"path: is more than {MAX_DEPTH} folders deep")
        return parts
