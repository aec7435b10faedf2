"""Counts the replies that clients have not read: beyond a bound the one with most of them is let go."""

import logging
from collections.abc import Callable
from typing import Final

import attrs

from warren.base.values import define

logger: Final = logging.getLogger(__name__)


@define(eq=False)
class Share:
    """The replies that wait for one client.

    Attributes:
        end: lets the client go; called once at most.
        size: bytes of the replies.
        ended: whether the client was let go. Its bytes are as good as free.
    """

    _unread: "UnreadReplies"
    end: Callable[[], object]
    size: int = 0
    ended: bool = False

    def hold(self, size: int) -> None:
        """Note the bytes that wait for the client now."""
        self._unread.change(self, size)


@define(eq=False)
class UnreadReplies:
    """The replies that wait for the clients of one process.

    Each connection bounds its own by reading no requests; those that run have their replies all the same.

    Attributes:
        most: bytes that there may be.
        size: bytes that there are, without those of clients that were let go.
    """

    most: int
    size: int = 0
    _shares: set[Share] = attrs.field(factory=set)  # of clients with replies

    def share(self, end: Callable[[], object]) -> Share:
        """Return the share of a client, which is empty. `end` lets the client go, and must not raise."""
        return Share(self, end)

    def change(self, share: Share, size: int) -> None:
        """Note the bytes of a share; let clients go, the greediest first, while there are too many."""
        if share.ended:
            return
        self.size += size - share.size
        share.size = size
        if size:
            self._shares.add(share)
        else:
            self._shares.discard(share)
        while self.size > self.most:
            greediest = max(self._shares, key=lambda each: each.size)
            logger.warning("a client has %d bytes of replies unread, of %d: it is let go", greediest.size, self.size)
            self._shares.remove(greediest)
            self.size -= greediest.size
            greediest.ended = True
            greediest.end()
