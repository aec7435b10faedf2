"""A disk that fails, and one whose process is killed: the real calls, up to one of them."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from warren.storage.folders import Disk

R = TypeVar("R")


class KilledError(BaseException):
    """Stands for the end of the process: nothing below may handle it."""


@attrs.define(eq=False)
class Trouble:
    """The faults to come; a test changes them at any time.

    Attributes:
        kill_at: the number of the call, from 1, in the middle of which the process ends.
        error: what every call that changes something raises, as an errno.
        calls: how many calls there were.
        failed: how many of them raised.
    """

    kill_at: int | None = None
    error: int | None = None
    calls: int = 0
    failed: int = 0

    def call(self, function: Callable[..., R], *args: Any, partly: Callable[[], object] = lambda: None) -> R:
        """Make a call; where the process ends in it, only its part is done."""
        self.calls += 1
        if self.kill_at is not None and self.calls >= self.kill_at:
            if self.calls == self.kill_at:
                partly()
            raise KilledError
        if self.error is not None:
            self.failed += 1
            raise OSError(self.error, os.strerror(self.error))
        return function(*args)


class FaultyDisk(Disk):
    """A disk that fails as its trouble says."""

    def __init__(self, trouble: Trouble) -> None:
        """Fail by these rules."""
        self.trouble = trouble

    def open(self, name: str, flags: int, folder: int, mode: int = 0o600) -> int:
        if flags & (os.O_CREAT | os.O_RDWR):
            return self.trouble.call(super().open, name, flags, folder, mode)
        return super().open(name, flags, folder, mode)

    def write(self, file: int, data: bytes) -> None:
        some = data[: len(data) * 2 // 3]
        self.trouble.call(super().write, file, data, partly=lambda: os.write(file, some))

    def truncate(self, file: int, size: int) -> None:
        self.trouble.call(super().truncate, file, size)

    def sync(self, file: int) -> None:
        self.trouble.call(super().sync, file)

    def sync_all(self) -> None:
        self.trouble.call(lambda: None)

    def rename(self, name: str, to: str, folder: int) -> None:
        self.trouble.call(super().rename, name, to, folder)

    def unlink(self, name: str, folder: int) -> None:
        self.trouble.call(super().unlink, name, folder)

    def make_folder(self, name: str, folder: int, mode: int = 0o700) -> None:
        self.trouble.call(super().make_folder, name, folder, mode)

    def remove_tree(self, name: str, folder: int) -> None:
        self.trouble.call(super().remove_tree, name, folder)

    def remove_folder(self, name: str, folder: int) -> None:
        self.trouble.call(super().remove_folder, name, folder)
