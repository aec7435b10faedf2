"""index.jsonl of each tenant: a line a session, written whole, and seldom: it costs little however many there are."""

import contextlib
import time
from collections.abc import Callable
from typing import Final

import attrs

from warren.base.values import define
from warren.storage.projection.feed import Feed
from warren.storage.projection.formats import INDEX, Change, folder_of_tenant, tenant_of_folder
from warren.storage.projection.places import Places

SHARE: Final = 0.04
"""Of the time, for writing it."""
PAUSE: Final = 1.0
"""Seconds between two of them at least."""
QUICK: Final = 0.25
"""Seconds for the index at the end of the process."""
NOTHING: Final = Change(-1, 0)


@define(eq=False)
class Index:
    """The files that list the sessions, one in the folder of each tenant.

    Attributes:
        places: the folders of the tenants.
        clock: seconds, of any beginning.
        shown: the last change that all of them show; `NOTHING` if they have to be written anyway.
        seconds: how long the last write of those that had changed took.
        due: when they may be written again.
        unsynced: folders of tenants with a new file that may not be on the disk itself; the caller empties it.
    """

    places: Places
    clock: Callable[[], float]
    shown: Change = NOTHING
    seconds: float = 0.0
    due: float = 0.0
    unsynced: set[str] = attrs.field(factory=set)
    _known: set[str] = attrs.field(factory=set)
    _look: float = 0.0

    def go_on(self, shown: Change, seconds: float) -> None:
        """Take over from another process, which wrote them when the files say."""
        self.shown, self.seconds = shown, seconds
        self._known = self.places.names()
        self.due = self.clock() + min(self._pause(), max(0.0, self._pause() - self._age()))

    def bring_forward(self, feed: Feed, newest: Change) -> None:
        """Write the files of the tenants with changes as of a change or later, and those that are missing.

        Raises OSError if one of them cannot be written, when the others are; and the errors of the feed.
        """
        began, fault = self.clock(), None
        tenants = set(self._missing(began))
        if self.shown != newest:
            tenants.update(feed.tenants(self.shown))
        elif not tenants:
            return
        try:
            for tenant in tenants:
                try:
                    self._write(feed, tenant)
                except OSError as exc:
                    fault = exc
            if fault is not None:
                raise fault
            self.shown = newest
        finally:
            self.seconds = self.clock() - began
            self.due = self.clock() + self._pause()

    def _write(self, feed: Feed, tenant: str) -> None:
        name = folder_of_tenant(tenant)
        if name is None:  # a damaged row; its session is left out and logged
            return
        with self.places.of(name) as folder:
            folder.replace(INDEX, (page.data for page in feed.index(tenant)))
        self.unsynced.add(name)
        self._known.add(name)

    def _missing(self, began: float) -> list[str]:
        """Return tenants without their file. With many tenants it looks more seldom."""
        if began < self._look:
            return []
        missing = [name for name in self._known if self._written_at(name) is None]
        self._look = self.clock() + max(PAUSE, (self.clock() - began) / SHARE)
        return [tenant for name in missing if (tenant := tenant_of_folder(name)) is not None]

    def _pause(self) -> float:
        return max(PAUSE, self.seconds / SHARE)

    def _age(self) -> float:
        times = [at for name in self._known if (at := self._written_at(name)) is not None]
        return time.time() - max(times) if times else self._pause()

    def _written_at(self, name: str) -> float | None:
        with contextlib.suppress(OSError), self.places.of(name, make=False) as folder:
            return folder.stat(INDEX).st_mtime
        return None
