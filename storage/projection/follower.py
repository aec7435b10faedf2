"""The projector's work, slice by slice: the lock between processes, the open files, and errors."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from warren.base.errors import StoreError
from warren.base.values import frozen
from warren.settings.config import PostgresConfig, StoreConfig
from warren.storage.file_lock import FileLock
from warren.storage.folders import Disk, Folder
from warren.storage.projection.feed import Home
from warren.storage.projection.places import SESSIONS, Places
from warren.storage.projection.projection import Projection

LOCK_NAME: Final = "projector.lock"
PAUSE: Final = 0.02
"""Seconds between two looks at a commit that others still hold back, at the end."""
logger: Final = logging.getLogger("warren.projection")


@frozen
class Step:
    """The result of a slice of work.

    Attributes:
        more: whether there is more to do at once.
        cpu: seconds of a processor that it took.
    """

    more: bool
    cpu: float


@frozen
class Status:
    """How far the files are.

    Attributes:
        projecting: whether this process writes them; else another one does.
        behind: how many changes the files do not show.
        stuck: number of sessions with files that cannot be written.
        taken: how many changed sessions were gone through since the files were begun, or gone on with.
        written: how many of them have files now.
        skipped: sessions that have no files, and why: their ids are not ours, or their rows are damaged.
        trouble: the error if only some files cannot be written.
    """

    projecting: bool
    behind: int = 0
    stuck: int = 0
    taken: int = 0
    written: int = 0
    skipped: Mapping[str, str] = attrs.field(factory=dict)
    trouble: str | None = None

    @property
    def lag(self) -> int | None:
        """How many changes the files are behind; None if another process writes them."""
        return self.behind if self.projecting else None


class Follower:
    """Keeps the files of one store up to date, while no other process does.

    Synchronous; one caller at a time, in any thread. `status` may be read beside it.
    """

    def __init__(
        self,
        config: StoreConfig | PostgresConfig,
        *,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Follow a store, with files in its own folder, or in `config.project`; nothing is opened yet."""
        self._root = folder_of(config).absolute()  # wherever the process goes
        self._path = folder_of(config) / SESSIONS
        if isinstance(config, StoreConfig):
            config = attrs.evolve(config, path=self._root)
        self._home = _home_of(config)
        self._make_root = isinstance(config, PostgresConfig)
        self._disk = disk or Disk()
        self._clock = clock
        self._lock = FileLock(self._root / LOCK_NAME, self._home.holder)
        self._work: Projection | None = None
        self._skipped: dict[str, str] = {}
        self._known = Status(projecting=False)

    def status(self) -> Status:
        """Return how far the files are; never blocks."""
        work, held = self._work, self._lock.held
        if work is None:
            return attrs.evolve(self._known, projecting=held, trouble=None)
        counts = (len(work.stuck), work.taken, work.written)
        self._known = Status(held, work.behind, *counts, dict(self._skipped), work.trouble)
        return self._known

    def step(self, seconds: float) -> Step:
        """Work for about so long; nothing while another process projects.

        Raises StoreError if it cannot go on: the next call begins again at the last checkpoint.
        """
        began = time.thread_time()
        with self._guarded():
            if self._taken():
                more = self._opened().advance(seconds)
            else:
                more = False
                self._let_go()
        return Step(more, time.thread_time() - began)

    def begin_anew(self) -> int:
        """Remove all files, so that the next steps make them anew; return how many sessions there are.

        Raises StoreError(cause="locked") while another process projects, and StoreError if a file cannot be removed.
        """
        self._let_go()  # it may be connected to another server than the next opening is
        with self._guarded():
            if not self._taken():
                problem = f"{self._lock.holder()} keeps the projections up to date: remove {self._path}, and it"
                raise StoreError(f"{problem} makes them anew by itself, or end it first", cause="locked")
            work = self._opened()
            work.places.clear()
            sessions = work.feed.count()
            self._let_go()
            return sessions

    def finish(self) -> None:
        """Write the index and the checkpoint now, all of it on the disk. Raises StoreError."""
        with self._guarded():
            if self._work is not None:
                self._work.finish(hurry=False)

    def close(self, seconds: float = 0.0) -> None:
        """Write the changes since the opening for `seconds` at most, then close. Idempotent.

        Raises StoreError if the writing failed; it is closed all the same.
        """
        try:
            with self._guarded():
                if self._work is not None and not self._work.places.are_lost():
                    self._last_steps(self._work, seconds)
        finally:
            self._let_go()
            self._lock.drop()

    def _last_steps(self, work: Projection, seconds: float) -> None:
        end = self._clock() + seconds
        if work.feed.behind(work.begun_at):
            # A commit may be held back by a transaction that began before it.
            while not work.advance(end - self._clock()) and work.feed.behind(work.cursor) and self._clock() < end:
                time.sleep(PAUSE)
        work.finish(hurry=True)

    def _taken(self) -> bool:
        if self._make_root:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._lock.take()

    def _opened(self) -> Projection:
        if self._work is not None and self._work.places.are_lost():
            self._let_go()
        if self._work is None:
            self._work = self._open()
        return self._work

    def _open(self) -> Projection:
        with contextlib.ExitStack() as undo:
            feed = self._home.open()
            undo.callback(feed.close)
            root = Folder.at(self._disk, self._root)
            undo.callback(root.close)
            places = Places.open(root)
            undo.callback(places.close)
            work = Projection.begin(feed, places, self._skipped, self._clock)
            undo.pop_all()
        return work

    def _let_go(self) -> None:
        self.status()  # saves the counts of the work that is dropped
        work, self._work = self._work, None
        if work is not None:
            work.close()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except BaseException as exc:
            self._let_go()
            if isinstance(exc, self._home.errors):
                raise self._home.fault(exc) from exc
            if isinstance(exc, OSError):
                cause = getattr(self._home.fault(exc), "cause", None)
                raise StoreError(f"the projections in {self._path} cannot be written: {exc}", cause=cause) from exc
            raise


def folder_of(config: StoreConfig | PostgresConfig) -> Path:
    """Return the folder of a store's files. Raises ValueError for a database without one."""
    if isinstance(config, StoreConfig):
        return config.path
    if config.project is None:
        raise ValueError("project: a store in a database has plain files only in a folder that is named")
    return config.project


def _home_of(config: StoreConfig | PostgresConfig) -> Home:
    """Return the home of a store; nothing is opened yet."""
    if isinstance(config, PostgresConfig):
        from warren.storage.projection import database_feed  # noqa: PLC0415 - it has an extra of its own

        return database_feed.home(config)
    from warren.storage.projection import file_feed  # noqa: PLC0415 - it has an extra of its own

    return file_feed.home(config)
