"""Opens a folder under a root step by step, so that no name and no link leads out of it, not even a late one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from warren.models.tools import ToolError
from warren.storage.folders import Disk, Folder

_DISK: Final = Disk()


@contextmanager
def open_folder(root: Path, name: str) -> Iterator[int]:
    """Open a folder under the root for a body, by its path from the root or its absolute path.

    Each part of the path is opened from the one before. A folder that is renamed or replaced meanwhile can change the
    result, but it is reached from the root without a link in each case. Raises ToolError if there is no such folder.
    """
    parts = _parts(root, name)
    try:
        folder = Folder.at(_DISK, root)
    except OSError as exc:
        raise ToolError(f"the root folder cannot be opened: {exc.strerror}") from exc
    try:
        for part in parts:
            folder = _step(folder, part, name)
        yield folder.fd
    finally:
        folder.close()


def _parts(root: Path, name: str) -> tuple[str, ...]:
    """Return the steps from the root; `..` removes the step before it, without a look at the file system."""
    path = PurePosixPath(name or ".")
    if "\0" in name or ".." in path.parts:
        raise ToolError(f"working_dir: {name!r} must not have '..' or a null character in it")
    if not path.is_absolute():
        return path.parts
    for base in (root.absolute(), root.resolve()):  # `pwd` shows the model the resolved path
        if path.is_relative_to(base):
            return path.relative_to(base).parts
    raise ToolError(f"working_dir: {name!r} is not under the root; give its path from the root")


def _step(folder: Folder, part: str, name: str) -> Folder:
    try:
        return folder.step(part)
    except NotADirectoryError as exc:
        raise ToolError(f"working_dir: {name!r}: {part!r} is no folder; symbolic links are not followed") from exc
    except OSError as exc:
        raise ToolError(f"working_dir: {name!r}: {part!r}: {exc.strerror}") from exc
    except UnicodeError as exc:
        raise ToolError("working_dir: half a character: UTF-8 cannot hold it") from exc
