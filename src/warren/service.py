"""The one interface of Warren. Every surface is a thin client of it; it never changes shape with the capabilities."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

import attrs

from warren.budget import Budget
from warren.categories import Gates, Switches
from warren.compaction.config import CompactionConfig
from warren.compaction.policy import Compactor, NewCompactor
from warren.events import Envelope
from warren.health import LoopHealth, McpHealth, MemoryHealth, ProjectorHealth, Status, StoreHealth
from warren.inputs import Input, TurnMode
from warren.memory import MemoryHit
from warren.peers import Peer, PeerInfo, PeerMessage
from warren.records import CompactionEntry
from warren.tools import Tool
from warren.views import HistoryPage, SessionPage, SessionView, TurnResult

OnEvent = Callable[[Envelope], None]
"""Receives a turn's events in order, synchronously: it must not block; what it raises is logged and dropped."""


@attrs.frozen
class Capabilities:
    """Which optional capabilities are on, in the names of the contract.

    Attributes:
        session_store: whether sessions outlive the process.
        session_compaction: whether contexts are compacted.
        memory_store: whether what was compacted away can be searched.
        tools: for each kind of tools whether sessions get them; those that are off may be asked for.
    """

    session_store: bool
    session_compaction: bool
    memory_store: bool
    tools: Mapping[str, Literal["on", "off", "unavailable"]] = attrs.field(factory=dict)


@attrs.frozen
class Health:
    """How the runtime does, and each part of it; the counts are of this moment.

    Attributes:
        status: the worst of its parts' and, while it shuts down or as many turns run as may, degraded. Failed is for a
            store that cannot be written for half a minute: turns run, and none of them can be kept.
        live_sessions: sessions with an actor.
        running_turns: turns that run.
        max_sessions: turns that may run.
        store: None without a store.
        projector: None where nothing is projected.
        memory: None without a memory.
        mcp: the MCP servers of all sessions; None without any.
        loop: the event loop.
    """

    status: Status
    live_sessions: int
    running_turns: int
    max_sessions: int
    store: StoreHealth | None = None
    projector: ProjectorHealth | None = None
    memory: MemoryHealth | None = None
    mcp: tuple[McpHealth, ...] | None = None
    loop: LoopHealth = attrs.field(factory=LoopHealth)


class SessionService(Protocol):
    """What a host can do with sessions.

    All of it is called on the event loop that the runtime was opened on; a call from another one, such as another
    thread's, raises RuntimeError before it changes anything.

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
        title: str | None = None,
        budget: Budget | None = None,
        compaction: CompactionConfig | None = None,
        compactor: Compactor | NewCompactor | None = None,
        tools: Sequence[str | Tool] | None = None,
        overrides: Switches | None = None,
        approvals: Gates | None = None,
        output_schema: Mapping[str, Any] | None = None,
        structured_output_retries: int = 2,
        peer: Peer | None = None,
        idempotency_key: str | None = None,
        extra_tools: Sequence[Tool] = (),
        on_event: OnEvent | None = None,
    ) -> TurnResult:
        """Create a session and run its first turn; with `prompt=None` only create it.

        What is None takes the runtime's default; a session without a `title` is called by the first words of its
        first prompt. `budget` limits the session over all its turns. `tools` are names
        of the runtime's tools or tools of this session's own, which do not outlive the process; `extra_tools` are for
        the first turn, see `start_turn`. `compaction` says how the session's context is compacted, where the runtime's
        way shall not do. `compactor` is a strategy for this session alone, as `Config.compactor` is for all: it does
        not outlive the process either, and forks of the session have it too. `overrides` switches kinds of tools on
        and off, and `approvals` says which calls wait for `approve_tool`; both hold for all turns, unless one says
        otherwise. `peer` is the name under which other sessions may speak to it, whom it trusts, and whether their
        messages begin turns.

        With an `output_schema`, a JSON schema, every turn's answer is asked for once more as data that fits it: that is
        `TurnResult.structured_output`. What does not fit is tried again `structured_output_retries` times.

        An `idempotency_key` creates one session: a call with the key of an earlier one gets that one's result, waits
        for it, or runs the first turn if the process died before the turn was stored. With a store this holds across
        restarts and processes. Other parameters under the same key are an InvalidParamsError; `compactor`,
        `extra_tools` and `on_event` are not compared.

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
        overrides: Switches | None = None,
        approvals: Gates | None = None,
        output_schema: Mapping[str, Any] | None = None,
        structured_output_retries: int | None = None,
        mode: TurnMode = "busy",
        idempotency_key: str | None = None,
        extra_tools: Sequence[Tool] = (),
        on_event: OnEvent | None = None,
    ) -> TurnResult:
        """Run one turn; a stored session is revived. Returns after the commit and after the last event.

        The options hold for this turn alone. `extra_tools` are offered besides the session's own, unless the session
        was created with a list of names and theirs are not in it; one of a known name takes its place.

        In `mode` "queue" the turn begins when those before it have ended; in "steer" the prompt enters the running turn
        at its next step, and the result is that turn's; where none runs both begin one. Until a turn takes it the
        prompt waits in the session's inbox, which is stored: whoever gives up waiting does not take it back, see
        `withdraw`. A prompt with the `idempotency_key` of an earlier one is not taken twice: it gets that one's result.

        Raises SessionBusyError at once while another turn runs, SessionNotFoundError, CapacityExceededError,
        InvalidParamsError; ProviderError, BudgetExhaustedError, AgentError(cause="cancelled") for a turn that ended so,
        stored all the same; AgentError(cause="structured_output") where the answer would not fit the schema, stored
        too, with its `text` and the last `errors` in the details; StoreError for a turn that could not be stored: its
        answer is in `details["text"]` and the session stands where it stood before.
        """
        ...

    async def compact(self, session_id: str, *, instructions: str | None = None) -> CompactionEntry:
        """Summarise the session's context now; the session is busy meanwhile. `instructions` go to the model.

        Raises CompactionDisabledError, SessionNotFoundError, SessionBusyError, CapacityExceededError,
        BudgetExhaustedError; AgentError(cause="compaction_failed") whose `details["reason"]` says why nothing changed,
        or AgentError(cause="cancelled").
        """
        ...

    async def inject_context(
        self, session_id: str, text: str, *, source: str | None = None, idempotency_key: str | None = None
    ) -> bool:
        """Tell the model something that nobody said: it enters the running turn at its next step, or the next turn.

        It opens no exchange and is not remembered by the memory. Returns once it is in the session's inbox: True, or
        False if it was taken earlier under the same key. Raises SessionNotFoundError, StoreError,
        CapacityExceededError(cause="inbox_full"), InvalidParamsError.
        """
        ...

    async def inputs(self, session_id: str) -> tuple[Input, ...]:
        """Return what waits in a session's inbox, in order. Raises SessionNotFoundError."""
        ...

    async def withdraw(self, session_id: str, input_id: str) -> None:
        """Take back what waits; who waits for its turn gets AgentError(cause="cancelled").

        Raises InvalidParamsError where nothing of that id waits: a turn may have taken it.
        """
        ...

    async def send_message(self, session_id: str, to: str, message: PeerMessage) -> str:
        """Say something to a peer in a session's name; returns its id once it is in the peer's inbox.

        Raises InvalidParamsError where one of both does not trust the other, SessionNotFoundError, StoreError,
        CapacityExceededError.
        """
        ...

    async def peers(self, session_id: str) -> tuple[PeerInfo, ...]:
        """Return whom a session trusts, and which of them it can reach. Raises SessionNotFoundError."""
        ...

    async def approve_tool(self, session_id: str, call_id: str, *, allow: bool, reason: str | None = None) -> None:
        """Settle a tool call that waits for somebody's word, as `tool_approval_requested` has told; first come counts.

        `reason` is told to the model. Raises InvalidParamsError where no call of that id waits, SessionNotRunningError,
        SessionNotFoundError.
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
        """Return messages of finished turns, oldest first: the `limit` positions from `offset` on.

        Those that retention has removed are left out; all others keep their positions. Raises SessionNotFoundError.
        """
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
        configured number gets one `stream_truncated` and goes on with the newest; it never slows the turn. So does one
        that begins below what retention has left of the log; asking for that again brings the same marker. The
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

    async def fork(
        self,
        session_id: str,
        *,
        at: int | None = None,
        labels: Mapping[str, str] | None = None,
        title: str | None = None,
    ) -> SessionView:
        """Make a session of the first `at` messages of another one; None takes those of all its finished turns.

        Nothing is run again. The fork has the settings and limits of the other, of its labels those that `labels` does
        not replace, and its title unless `title` is given; it has used nothing yet, its events are numbered from 1, and
        what the other remembers is not remembered for it. The other may be live, stored or archived, and may run a
        turn: it is not touched.

        Trap: a summary was written by a model that saw some messages after those that it stands for. A fork that is cut
        between may know of them.

        Raises SessionNotFoundError, StoreError, and InvalidParamsError where `at` is ahead of the conversation, comes
        between a tool call and its results, or needs messages that retention has removed.
        """
        ...

    async def label(
        self, session_id: str, labels: Mapping[str, str | None] | None = None, *, title: str | None = None
    ) -> SessionView:
        """Set labels of a session, or its title, also while a turn runs.

        A label that is None is taken away, all others stay; so does the title where `title` is None.

        Raises SessionNotFoundError, also for an archived session, InvalidParamsError, StoreError, LeasedError where
        another process has the session.
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

    async def drain(self) -> None:
        """Refuse new turns from now on, and return when those that run have ended; all else goes on being answered.

        For a host that is told to end and has time: put a time limit around it. What still runs when the runtime is
        left is interrupted. Trap: it cannot be taken back.
        """
        ...

    async def stop(self) -> None:
        """End every session and return when all have ended: running turns are interrupted and stored.

        Callers that wait for a turn get AgentError(cause="shutting_down") after its last event, as does every later
        call; subscriptions end. For a host whose own clients have to read that before it leaves the runtime, which
        does the same. It takes the drain time at most, unless a provider or tool shields itself from cancellation.
        Idempotent. Trap: it cannot be taken back.
        """
        ...

    def capabilities(self) -> Capabilities:
        """Return which optional capabilities are on."""
        ...

    def health(self) -> Health:
        """Return how the runtime does; never waits."""
        ...
