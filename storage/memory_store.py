"""The interface of a memory: a home of remembered texts, found by their words and by their meaning."""

from collections.abc import Collection, Sequence
from typing import Protocol

from warren.base.principals import DEFAULT_TENANT
from warren.conversation.memory import Chosen, MemoryEntry, MemoryHit, MemoryStats, Progress, Tail, Unsettled, Weighs


class MemoryStore(Protocol):
    """Remembered texts as the actors and the commands use them; safe to call from any task.

    When `index` returns, its entries are stored, and searches find them by their words, and by their vectors unless the
    embedder failed. `catch_up` makes the vectors that are missing then, and those of entries from a time with another
    embedder. All methods work meanwhile.

    Every method raises StoreError if the home fails; its `cause` says why: "locked", "disk_full", "unreachable",
    "closed" and so on.
    """

    @property
    def is_behind(self) -> bool:
        """Whether `catch_up` has something to do."""

    @property
    def behind(self) -> int:
        """How many entries have no vector of this embedder, as far as this process knows; also those it has refused."""

    @property
    def weighs(self) -> Weighs:
        """The parts that a search weighs now: words alone without an embedder, and since it failed the newest query."""

    async def aclose(self) -> None:
        """Close. Idempotent, cannot be cancelled. Calls that come later fail with StoreError(cause="closed")."""

    async def index(
        self, entries: Sequence[MemoryEntry], tail: Tail | None = None, *, tenant: str = DEFAULT_TENANT
    ) -> int:
        """Remember entries, all or none of them; return how many are new. On return they are stored.

        Session and position identify an entry: the same text changes nothing, another text replaces the old one. Of two
        entries for one place in a call the first counts. Blank texts are left out, and so are those in the places of
        texts that `forget_texts` has removed. If the call is cancelled, or the process ends, the outcome is unknown:
        call again, it is idempotent.

        Args:
            entries: the texts.
            tail: if given, the entries are all there is from its position on: other texts there are removed, and the
                session is `unsettled`.
            tenant: the tenant of the sessions that are new to the memory; it never changes.

        Raises:
            SessionNotFoundError: if a session of an entry was forgotten.
            StoreError: if the home fails. Nothing was stored. If the embedder fails, or takes more than ten seconds,
                the entries are stored without vectors.
        """

    async def last_before(self, session_id: str, position: int) -> tuple[int, int]:
        """Return the position and the turn of a session's newest entry before a position; -1 and 0 if there is none.

        A text that `forget_texts` has removed counts as an entry.
        """

    async def unsettled(self) -> list[Unsettled]:
        """Return the sessions with a tail that may be uncommitted, the oldest first."""

    async def settle(self, mark: Unsettled, count: int | None) -> int:
        """Remove the entries of a session beyond its `count` committed messages; return how many were removed.

        With None, for a session that is in no store, nothing is removed. If a newer tail came since the mark was read,
        nothing happens, because its commit may still follow.
        """

    async def search(
        self, query: str, *, limit: int = 5, session_id: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> list[MemoryHit]:
        """Return the best answers to a query among the texts of a tenant, best first.

        They are of one session, or of all of the tenant if `session_id` is None. Texts of other tenants count for
        nothing: not as answers, and not for the score of an answer.

        At most `limit` hits and never more than 20; none that has nothing in common with the query. Of a long query
        the first 4,000 characters count. A session is searched exactly; all sessions by candidates, each of which is
        then weighed exactly. If the embedder fails, the words alone decide.

        Raises InvalidParamsError for a limit below 1.
        """

    async def texts(self, tenant: str, sessions: Collection[str] | None = None) -> int:
        """Return the number of entries of a tenant, or of some sessions of it."""

    async def forget(self, session_id: str) -> int:
        """Remove all entries of a session for good; return how many there were.

        Idempotent. Later calls of `index` for the session are refused.
        """

    async def forget_texts(self, chosen: Chosen) -> int | None:
        """Remove texts of a session for good, all or none; return how many, None if the tenant has no such session.

        Idempotent. Their places stay taken: `index` leaves out what comes for them. Later messages of the session are
        remembered.
        """

    async def catch_up(self, progress: Progress | None = None) -> None:
        """Bring the index up to date: make the missing vectors, and the graph of many.

        Searches and other calls go on meanwhile. `progress` is called after each step. Safe to cancel at any time: the
        vectors that were made stay. A text that the embedder refuses is left without a vector, and it is not asked for
        that text again until the memory is opened anew. Raises StoreError; other errors of the embedder pass through.
        """

    async def rebuild(self, progress: Progress | None = None) -> None:
        """Remove the vectors of other embedders, and make the index again.

        If it is cancelled, `catch_up` does the rest. Raises as `catch_up` does.
        """

    async def stats(self) -> MemoryStats:
        """Return the size of the memory and the progress of its index."""
