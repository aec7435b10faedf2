"""Files that are read again when they change, and connections that end with their tokens."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Generic, TypeVar

import attrs
import trio

from warren.base.errors import InvalidParamsError
from warren.base.values import define
from warren.transport.access.logins import Authenticator, Login

T = TypeVar("T")
LOOK: Final = 1.0
"""Seconds between two looks at a file, and at the tokens of open connections."""
MAX_FILE: Final = 16 * 1024 * 1024

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class WatchedFile(Generic[T]):
    """A file whose content is used. While a new version of it cannot be used, the last good one stays in use.

    Attributes:
        path: the file.
        read: makes the value of the content. Raises InvalidParamsError if the content is bad.
        field: the path of the setting in errors.
        problem: why the newest version is not in use; None if it is.
    """

    path: Path
    read: Callable[[bytes], T]
    field: str
    problem: str | None = attrs.field(default=None, init=False)
    _version: tuple[int, ...] | None = attrs.field(default=None, init=False)

    def load(self) -> T:
        """Return the value. Raises InvalidParamsError, whose message has the path of the file."""
        try:
            version = self._newest()
            data = self.path.read_bytes()
        except OSError as exc:
            raise InvalidParamsError.at(self.field, f"cannot read {self.path}: {exc.strerror or exc}") from None
        self._version = version
        try:
            return self.read(data)
        except InvalidParamsError as exc:
            raise InvalidParamsError(f"{exc.message} ({self.path})", path=exc.path) from None

    def changed(self) -> T | None:
        """Return the value if the file has changed and can be used, else None. A problem is logged once."""
        try:
            if self._newest() == self._version:
                return None
        except OSError:
            self._version = None  # a file that is gone is looked for again, and `load` says so
        try:
            value = self.load()
        except InvalidParamsError as exc:
            if exc.message != self.problem:
                logger.error("the old file stays in use: %s", exc.message)  # noqa: TRY400 - the text says all
            self.problem = exc.message
            return None
        self.problem = None
        return value

    async def follow(self, use: Callable[[T], object]) -> None:
        """Pass on the value of each later version, until cancelled; the log gets the text that `use` returns."""
        while True:
            await trio.sleep(LOOK)
            await self._look(use, logging.INFO)

    async def look_again(self, use: Callable[[T], object]) -> None:
        """Read the file now, changed or not, and pass on its value. A problem is logged again."""
        self._version = self.problem = None
        await self._look(use, logging.WARNING)  # the level that a server shows: somebody has asked for it

    async def _look(self, use: Callable[[T], object], level: int) -> None:
        value = await trio.to_thread.run_sync(self.changed)  # a file system may hang
        if value is not None:
            logger.log(level, "%s was read again: %s", self.path, use(value))

    def _newest(self) -> tuple[int, ...]:
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino


@define(eq=False)
class Stays:
    """The connections and answers that are open. Each ends soon after its client's token ends or is revoked.

    Attributes:
        authenticator: knows which logins hold.
    """

    authenticator: Authenticator
    _open: dict[object, tuple[Login, Callable[[], None]]] = attrs.field(factory=dict, init=False)

    @contextmanager
    def ends(self, login: Login, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` once the login holds no longer, during the block."""
        place = object()
        self._open[place] = (login, end)
        try:
            yield
        finally:
            self._open.pop(place, None)

    async def run(self) -> None:
        """Look at all logins every second, until cancelled."""
        while True:
            await trio.sleep(LOOK)
            for place, (login, end) in tuple(self._open.items()):
                if not self.authenticator.holds(login):
                    self._open.pop(place, None)
                    end()
