"""Opening a folder under a root: step by step, so that no name and no link leads out of it, not even a late one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from warren.tools import ToolError

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def open_folder(root: Path, name: str) -> Iterator[int]:
    """Hold a descriptor of a folder under the root, by its path from there or its absolute one.

    Each part is opened from the one before: what is renamed or replaced meanwhile changes which folder it is, but not
    that it was reached from the root without a link. Raises ToolError.
    """
    parts = _parts(root, name)
    try:
        folder = os.open(root, FOLDER)
    except OSError as exc:
        raise ToolError(f"the root folder cannot be opened: {exc.strerror}") from exc
    try:
        for part in parts:
            folder = _step(folder, part, name)
        yield folder
    finally:
        os.close(folder)


def _parts(root: Path, name: str) -> tuple[str, ...]:
    """Return the steps from the root; what `..` would lead to is not looked at."""
    path = PurePosixPath(name or ".")
    if "\0" in name or ".." in path.parts:
        raise ToolError(f"working_dir: {name!r} must not have '..' or a null character in it")
    if not path.is_absolute():
        return path.parts
    for base in (root.absolute(), root.resolve()):  # `pwd` tells a model the second one
        if path.is_relative_to(base):
            return path.relative_to(base).parts
    raise ToolError(f"working_dir: {name!r} is not under the root; give its path from the root")


def _step(folder: int, part: str, name: str) -> int:
    """Return the folder in a folder, in its place; the caller closes one descriptor in the end."""
    try:
        found = os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError as exc:
        raise ToolError(f"working_dir: {name!r}: {part!r} is no folder; symbolic links are not followed") from exc
    except OSError as exc:
        raise ToolError(f"working_dir: {name!r}: {part!r}: {exc.strerror}") from exc
    except UnicodeError as exc:
        raise ToolError("working_dir: half a character: UTF-8 cannot hold it") from exc
    os.close(folder)
    return found
