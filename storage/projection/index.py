"""index.jsonl: one line a session, written whole, and seldom enough to cost little however many there are."""

import os
import time
from collections.abc import Callable
from typing import Final

from warren.storage.projection.disk import Folder
from warren.storage.projection.feed import Feed
from warren.storage.projection.formats import INDEX, Change
from warren.values import define

SHARE: Final = 0.04
"""Of the time, for writing it."""
PAUSE: Final = 1.0
"""Seconds between two of them at least."""
QUICK: Final = 0.25
"""Seconds for the index at the end of the process."""
NOTHING: Final = Change(-1, 0)


@define(eq=False)
class Index:
    """The file that lists the sessions.

    Attributes:
        folder: its folder.
        clock: seconds, of any beginning.
        shown: the last change that it shows; `NOTHING` if it has to be written anyway.
        seconds: how long writing it took.
        due: when it may be written again.
    """

    folder: Folder
    clock: Callable[[], float]
    shown: Change = NOTHING
    seconds: float = 0.0
    due: float = 0.0

    def go_on(self, shown: Change, seconds: float) -> None:
        """Take over from another process, which wrote it when the file says."""
        self.shown, self.seconds = shown, seconds
        self.due = self.clock() + min(self._pause(), max(0.0, self._pause() - self._age()))

    def is_behind(self, newest: Change) -> bool:
        """Tell whether it is not as of the newest change, or not there."""
        return self.shown != newest or not self.folder.has(INDEX)

    def write(self, feed: Feed, newest: Change) -> None:
        """Write it as of a change or later. Raises OSError and the errors of the feed."""
        began = self.clock()
        try:
            self.folder.replace(INDEX, (page.data for page in feed.index()))
            self.shown = newest
        finally:
            self.seconds = self.clock() - began
            self.due = self.clock() + self._pause()

    def _pause(self) -> float:
        return max(PAUSE, self.seconds / SHARE)

    def _age(self) -> float:
        try:
            return time.time() - os.stat(INDEX, dir_fd=self.folder.fd, follow_symlinks=False).st_mtime
        except OSError:
            return self._pause()
