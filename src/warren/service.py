"""The one interface of Warren. Every surface is a thin client of it; it never changes shape with the capabilities."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import attrs

from warren.budget import Budget
from warren.compaction import CompactionConfig
from warren.events import Envelope
from warren.memory import MemoryHit
from warren.records import CompactionEntry
from warren.tools import Tool
from warren.views import HistoryPage, SessionPage, SessionView, TurnResult

OnEvent = Callable[[Envelope], None]
"""Receives a turn's events in order, synchronously: it must not block; what it raises is logged and dropped."""


@attrs.frozen
class Capabilities:
    """Which optional capabilities are on, in the names of the contract."""

    session_store: bool
    session_compaction: bool
    memory_store: bool


@attrs.frozen
class Health:
    """How the runtime does: `status` is ok or degraded; the counts are of this moment.

    Attributes:
        status: degraded while the store refuses writes or the runtime shuts down.
        live_sessions: sessions with an actor.
        running_turns: turns that run.
        max_sessions: turns that may run.
        store: None without a store, else ok or what the last write said.
    """

    status: str
    live_sessions: int
    running_turns: int
    max_sessions: int
    store: str | None = None


class SessionService(Protocol):
    """What a host can do with sessions.

    Any method may raise AgentError(cause="shutting_down") once the runtime ends. No method has a timeout: use
    `trio.fail_after`. Cancelling a call never cancels a turn that was admitted: it runs on, is stored and readable;
    only the answer is lost, so the outcome of a cancelled call is unknown to its caller.
    """

    async def create_session(
        self,
        prompt: str | None,
        *,
        model: str | None = None,
        provider: str | None = None,
        system_prompt: str | None = None,
        max_tokens: int | None = None,
        labels: Mapping[str, str] | None = None,
        budget: Budget | None = None,
        compaction: CompactionConfig | None = None,
        tools: Sequence[str | Tool] | None = None,
        on_event: OnEvent | None = None,
    ) -> TurnResult:
        """Create a session and run its first turn; with `prompt=None` only create it.

        What is None takes the runtime's default. `budget` limits the session over all its turns. `tools` are names
        of the runtime's tools or tools of this session's own, which do not outlive the process. `compaction` says how
        the session's context is compacted, where the runtime's way shall not do.

        Raises InvalidParamsError and CompactionDisabledError before anything exists, CapacityExceededError, StoreError
        without a `session_id` where nothing could be created, and whatever `start_turn` raises: then the session
        exists and the error's `session_id` names it.
        """
        ...

    async def start_turn(
        self,
        session_id: str,
        prompt: str,
        *,
        model: str | None = None,
        provider: str | None = None,
        max_tokens: int | None = None,
        budget: Budget | None = None,
        on_event: OnEvent | None = None,
    ) -> TurnResult:
        """Run one turn; a stored session is revived. Returns after the commit and after the last event.

        The options hold for this turn alone. Raises SessionBusyError at once while another turn runs,
        SessionNotFoundError, CapacityExceededError, InvalidParamsError; ProviderError, BudgetExhaustedError,
        AgentError(cause="cancelled") for a turn that ended so, stored all the same; StoreError for a turn that could
        not be stored: its answer is in `details["text"]` and the session stands where it stood before.
        """
        ...

    async def compact(self, session_id: str, *, instructions: str | None = None) -> CompactionEntry:
        """Summarise the session's context now; the session is busy meanwhile. `instructions` go to the model.

        Raises CompactionDisabledError, SessionNotFoundError, SessionBusyError, CapacityExceededError,
        BudgetExhaustedError; AgentError(cause="compaction_failed") whose `details["reason"]` says why nothing changed,
        or AgentError(cause="cancelled").
        """
        ...

    async def interrupt(self, session_id: str) -> None:
        """End the running turn; returns when it has ended. The turn's own caller gets AgentError(cause="cancelled").

        A turn that is already past its last step counts as finished. Raises SessionNotRunningError without a turn,
        SessionNotFoundError, AgentError(cause="interrupt_timeout") when the turn outlives the grace period.
        """
        ...

    async def read(self, session_id: str) -> SessionView:
        """Return a session as of its last finished turn, at once also during a turn. Raises SessionNotFoundError."""
        ...

    async def list(
        self,
        *,
        offset: int = 0,
        limit: int = 50,
        labels: Mapping[str, str] | None = None,
        include_archived: bool = False,
    ) -> SessionPage:
        """Return live and stored sessions that carry all of `labels`, newest `updated_at` first, then by id."""
        ...

    async def history(self, session_id: str, *, offset: int = 0, limit: int = 100) -> HistoryPage:
        """Return messages of finished turns, oldest first, `offset` from the start. Raises SessionNotFoundError."""
        ...

    async def resume(self, session_id: str) -> SessionView:
        """Load a stored session without running a turn.

        Raises SessionNotFoundError, or PersistenceDisabledError where there is no store to load it from.
        """
        ...

    def subscribe(
        self, session_id: str, *, after_seq: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[Envelope]]:
        """Follow a session's events: first those above `after_seq` from the log, then live ones; no gap, no double.

        None begins with the next event, 0 with the first one ever. A subscriber that falls behind by more than the
        configured number gets one `stream_truncated` and goes on with the newest; it never slows the turn. The
        iteration ends when the session is archived or deleted or the runtime ends.

        Entering raises SessionNotFoundError, PersistenceDisabledError where the events are gone and no store has
        them, InvalidParamsError where `after_seq` is ahead of the log.
        """
        ...

    async def search_memory(
        self,
        query: str,
        *,
        session_id: str | None = None,
        scope: Literal["session", "project"] = "session",
        limit: int = 5,
    ) -> tuple[MemoryHit, ...]:
        """Return what is remembered that fits the query, best first, of one session or of the whole project.

        At most `limit` hits, 20 at most; none that has nothing in common with the query. Raises MemoryDisabledError,
        StoreError.
        """
        ...

    async def archive(self, session_id: str) -> None:
        """Retire a session; a running turn ends first and is stored. Idempotent. Raises SessionNotFoundError.

        With a store it stays readable, hidden from `list`; without one it is gone.
        """
        ...

    async def delete(self, session_id: str) -> None:
        """Remove a session and all it stored; a running turn is interrupted.

        Raises PersistenceDisabledError without a store, SessionNotFoundError.
        """
        ...

    def capabilities(self) -> Capabilities:
        """Return which optional capabilities are on."""
        ...

    def health(self) -> Health:
        """Return how the runtime does; never waits."""
        ...
