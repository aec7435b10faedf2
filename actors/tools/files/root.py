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
from pathlib import Path
from typing import Final

from warren.base.fields import FieldValueError
from warren.base.values import frozen
from warren.models.tools import ToolError

LOCK_SECONDS: Final = 20.0
MAX_DEPTH: Final = 64
"""The most folders in one path; each takes a descriptor while it is open."""
_SAFE: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | _SAFE
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


def open_regular(name: str, folder: int, path: str) -> int:
    """Open a plain file for reading. A pipe, a device or a link in its place can neither block this nor redirect it."""
    regular(path, os.stat(name, dir_fd=folder, follow_symlinks=False))  # a device may act on being opened
    fd = os.open(name, os.O_RDONLY | _SAFE, dir_fd=folder)
    try:
        regular(path, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def opened(name: str, folder: int) -> Iterator[int]:
    """Open a folder within an open folder for a body. Raises OSError."""
    fd = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


@frozen
class Place:
    """A name in an open folder.

    Attributes:
        folder: the descriptor of the folder.
        name: the last part of the path; "." for the root itself.
        path: the path from the root, as the model writes it.
    """

    folder: int
    name: str
    path: str

    @contextlib.contextmanager
    def reading(self) -> Iterator[int]:
        """Open the file for a body."""
        with told(self.path):
            fd = open_regular(self.name, self.folder, self.path)
        try:
            yield fd
        finally:
            os.close(fd)

    def is_folder(self) -> bool:
        """Return whether it is a folder, not a link to one."""
        with told(self.path):
            return stat.S_ISDIR(os.stat(self.name, dir_fd=self.folder, follow_symlinks=False).st_mode)

    def found(self) -> os.stat_result | None:
        """Return the status of the file, or None if there is no file."""
        with told(self.path):
            try:
                return regular(self.path, os.stat(self.name, dir_fd=self.folder, follow_symlinks=False))
            except FileNotFoundError:
                return None

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Exclude other changes in the same folder by any session of this process."""
        found = os.fstat(self.folder)
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
        with told(self.path):
            try:
                self._fill(unfinished, data, expected)
                self._check_same(expected)
                os.rename(unfinished, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(unfinished, dir_fd=self.folder)
                raise
            os.fsync(self.folder)

    def _check_same(self, expected: os.stat_result | None) -> None:
        if _version(self.found()) != _version(expected):
            raise ToolError(f"{shown(self.path)}: was changed by another program meanwhile; read it again")

    def _fill(self, name: str, data: bytes, like: os.stat_result | None) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE
        fd = os.open(name, flags, 0o666 if like is None else 0o600, dir_fd=self.folder)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
            if like is not None:
                with contextlib.suppress(PermissionError):
                    os.fchown(fd, like.st_uid, like.st_gid)
                os.fchmod(fd, stat.S_IMODE(like.st_mode) & 0o777)
            os.fsync(fd)
        finally:
            os.close(fd)


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
        fd = self._open()
        try:
            with told(path):
                for part in parts[:-1]:
                    outer, fd = fd, _step(fd, part, make=make)
                    os.close(outer)
            yield Place(fd, parts[-1] if parts else ".", "/".join(parts) or ".")
        finally:
            os.close(fd)

    def _open(self) -> int:
        with told(str(self.path)):
            fd = os.open(self.path, _FOLDER)
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != self.identity:
            os.close(fd)
            raise ToolError("the root folder was replaced by another one; nothing under it can be used any more")
        return fd

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


def _step(folder: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    return os.open(name, _FOLDER, dir_fd=folder)
