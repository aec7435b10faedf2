"""`SessionService`, the interface for programs: a typed method for each call, over whatever performs it."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Concatenate, Final, Literal, NoReturn, ParamSpec, Protocol, Self, TypeVar

import attrs

from warren.agents.spec import AgentDetails, AgentPage
from warren.base.end_budget import EndBudget
from warren.base.errors import InvalidParamsError
from warren.base.nodes import Node
from warren.base.principals import Principal
from warren.base.values import frozen
from warren.calls import operators, schedules, sessions, triggers, turns, webhooks
from warren.calls.agents import AgentRequest, AgentsRequest
from warren.calls.base import Call, made
from warren.calls.handle import Handles
from warren.calls.reading import AttachmentRequest, ContextViewRequest, ForgetRequest, HistoryRequest, SearchRequest
from warren.calls.streams import ChangeReader, EventReader
from warren.calls.turn_stream import TurnStream
from warren.calls.typed import with_type
from warren.conversation.attachments import AttachmentContent
from warren.conversation.inputs import Input
from warren.conversation.memory import MemoryHit
from warren.conversation.peers import PeerInfo
from warren.conversation.records import CompactionEntry
from warren.conversation.schedules import SchedulePage, ScheduleView
from warren.conversation.triggers import Delivered, SignedCall, TriggerPage, TriggerView
from warren.conversation.views import ApprovalPage, ContextView, HistoryPage, SessionPage, SessionView, TurnResult
from warren.conversation.webhooks import WebhookDeliveryPage, WebhookPage, WebhookView
from warren.reports import health
from warren.reports.audit import AuditEntry, AuditPage
from warren.reports.ledger import UsageReport
from warren.reports.metrics import History, Metrics
from warren.reports.reports import StoreReport
from warren.reports.statistics import RuntimeStatistics

P = ParamSpec("P")
S = TypeVar("S")
V = TypeVar("V")
R = TypeVar("R")
_ITSELF: Final = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)


def keywords_of(
    cls: Callable[P, V],
) -> Callable[[Callable[[S, V], Coroutine[Any, Any, R]]], Callable[Concatenate[S, P], Coroutine[Any, Any, R]]]:
    """Return a decorator for a method that takes a call: its callers give the arguments that the call is made of.

    The method raises TypeError for arguments that the call does not have; awaiting it raises InvalidParamsError for a
    bad value.
    """
    return _making(cls, _refuse, _Signed)


def streams_of(
    cls: Callable[P, V],
) -> Callable[
    [Callable[[S, V], AbstractAsyncContextManager[R]]], Callable[Concatenate[S, P], AbstractAsyncContextManager[R]]
]:
    """Return a decorator as `keywords_of` does, for a method that opens something: entering it refuses a bad value."""
    return _making(cls, _Refused, _Opening)


def _making(
    cls: Callable[P, V],
    refused: Callable[[InvalidParamsError], Any],
    signed: "Callable[[Any, Callable[..., Any]], _Signed]",
) -> Callable[[Callable[[S, V], R]], Callable[Concatenate[S, P], R]]:
    def decorate(method: Callable[[S, V], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(method)
        def make(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                call = made(cls, *args, **kwargs)
            except InvalidParamsError as exc:
                found: R = refused(exc)
                return found
            return method(self, call)

        vars(make)["__wrapped__"] = signed(cls, method)  # `inspect.signature` looks there
        return make

    return decorate


class _Signed:
    """Stands for a method of the facade where its signature is asked for.

    `help` and `inspect.signature` do so. The signature is made when they do: most programs never ask.

    Attributes:
        call: the class of the calls that the method makes.
    """

    def __init__(self, call: Any, method: Callable[..., Any]) -> None:
        self.call = call
        self.__wrapped__ = method

    @property
    def __signature__(self) -> inspect.Signature:
        signature = inspect.signature(self.call)
        return signature.replace(
            parameters=[_ITSELF, *signature.parameters.values()],
            return_annotation=self.__wrapped__.__annotations__["return"],
        )


class _Opening(_Signed):
    """Stands for a method that opens a stream by the call of another method, whose events the stream takes itself."""

    @property
    def __signature__(self) -> inspect.Signature:
        signature = super().__signature__
        shown = (each for each in signature.parameters.values() if each.name not in ("on_event", "on_begin"))
        return signature.replace(parameters=list(shown))


def call_of(method: Any) -> type[Call[Any]] | None:
    """Return the class of the calls that a method of the facade makes; None for all other objects."""
    signed = getattr(method, "__wrapped__", None)
    return signed.call if isinstance(signed, _Signed) and not isinstance(signed, _Opening) else None


async def _refuse(error: InvalidParamsError) -> NoReturn:
    raise error from None


class _Refused(AbstractAsyncContextManager[Any]):
    """Stands for what a method would open, and raises an error when it is entered."""

    def __init__(self, error: InvalidParamsError) -> None:
        self._error = error

    async def __aenter__(self) -> NoReturn:
        raise self._error from None

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: it was never entered."""


@frozen
class Capabilities:
    """Which optional capabilities are on, in the names of the contract.

    Attributes:
        session_store: whether sessions outlive the process.
        session_compaction: whether contexts are compacted.
        memory_store: whether messages that left the context by compaction can be searched.
        tools: for each kind of tools, whether sessions get it; a session may switch on a kind that is off.
    """

    session_store: bool
    session_compaction: bool
    memory_store: bool
    tools: Mapping[str, Literal["on", "off", "unavailable"]] = attrs.field(factory=dict)


@frozen
class Health:
    """The health of the runtime and of each part of it. The counts are of this moment.

    Attributes:
        status: the worst status of the parts. It is at least degraded while the runtime shuts down, and while
            `max_sessions` turns run. It is failed if the store could not be written for half a minute: turns run, and
            none of them can be stored.
        live_sessions: sessions in memory.
        running_turns: turns that run.
        parked_turns: turns of the store that no process runs, and that go on when one takes them up. It is as of the
            newest look at the store, which comes at least once in a lease.
        waiting_turns: turns of the store whose calls all wait, for approval or a result, counted once in a lease.
        max_sessions: turns that may run at once.
        store: None without a store.
        projector: None if no projections are configured.
        memory: None without a memory.
        mcp: the MCP servers of all sessions; None without any.
        tools: tools that were left out of the requests to models; None for none.
        access: the tokens of clients; None if the server has no file of them, and takes no JWTs.
        files: the files that the server may open; None if there are enough for its clients, and without a server.
        loop: the event loop.
        processes: processes that it tells of: the workers of one command answer for each other.
    """

    status: health.Status
    live_sessions: int
    running_turns: int
    max_sessions: int
    store: health.StoreHealth | None = None
    projector: health.ProjectorHealth | None = None
    memory: health.MemoryHealth | None = None
    mcp: tuple[health.McpHealth, ...] | None = None
    tools: tuple[health.ToolsHealth, ...] | None = None
    access: health.AccessHealth | None = None
    files: health.FilesHealth | None = None
    parked_turns: int = 0
    waiting_turns: int = 0
    loop: health.LoopHealth = attrs.field(factory=health.LoopHealth)
    processes: int = 1


class Opened(Protocol):
    """A call of a trigger whose signature is right."""

    @property
    def principal(self) -> Principal:
        """The principal in whose name its prompt comes."""

    async def deliver(self) -> Delivered:
        """Put the prompt of the call into the inbox of its session, or of a new one, once for each id of a call.

        It is stored when this returns. Called again with the same call, here or in another process of the store, it
        returns the same.

        Raises:
            InvalidParamsError: if the call has no id, no prompt can be made of its body, or the prompt is refused.
            SessionNotFoundError: if the trigger has ended, as its session is archived.
            SessionNotRunningError: if the trigger is paused.
            CapacityExceededError: if the inbox is full, or a limit is reached.
            StoreError: if the prompt could not be stored. Send the call again.
        """


class SessionService(Handles, Protocol):
    """Everything that a host can do with sessions.

    Call the methods on the event loop that the runtime was opened on. A call from another event loop, such as that of
    another thread, raises RuntimeError before it changes anything.

    No method has a timeout: use `trio.fail_after`. Cancelling a call never cancels a turn that was admitted: the turn
    runs on, is stored and can be read. Only the answer is lost, so the outcome of a cancelled call is unknown to you.

    Each method makes a call of its arguments, and performs it: the arguments are the fields of the class that
    `keywords_of` names above it, as in `fork(session_id, at=4)` of `ForkRequest`. The classes document and check
    them: a bad argument is an InvalidParamsError that names it, and nothing has happened.

    Every method with a `session_id`, except `search_memory`, raises SessionNotFoundError if the session is unknown or
    deleted, and every method may raise AgentError(cause="shutting_down") once the runtime ends. A service is that of
    one principal, see `RuntimeService.as_`: a method whose scope it does not have raises PermissionDeniedError before
    it looks at anything, and a session of another tenant is unknown. The methods' own lists do not repeat these four.
    """

    def perform(self, call: Call[R]) -> Coroutine[Any, Any, R]:
        """Return the result of a call: all methods but `subscribe`, `watch` and `capabilities` come here."""

    def stream(self, call: turns.SessionCall | turns.TurnCall) -> AbstractAsyncContextManager[TurnStream]:
        """Open the stream of a call's turn: `stream_turn` and `stream_session` come here."""

    @keywords_of(turns.SessionCall)
    async def create_session(self, call: turns.SessionCall) -> TurnResult:
        """Create a session and run its first turn; with the prompt None only create it.

        The arguments are the fields of `SessionCall`: the prompt, and keywords, as in
        `create_session("hi", model="gpt-5", temperature=0.2)`. An option that is None takes the runtime's default.

        An `idempotency_key` creates one session: a call with the key of an earlier one gets that one's result, waits
        for it, or runs the first turn if the process died before the turn was stored. With a store this holds across
        restarts and processes. Other arguments under the same key are an InvalidParamsError; `compactor`,
        `hooks`, `extra_tools`, `on_event` and `on_begin` are not compared.

        Raises:
            InvalidParamsError: if an argument is bad, or differs from that of an earlier call with the key; no session
                exists then.
            CompactionDisabledError: if `compaction` or `compactor` is given and the capability is off; no session
                exists then.
            CapacityExceededError: if as many turns run as may run at once, or memory is short.
            StoreError: without a `session_id` if the session could not be created.
            WarrenError: every error of `start_turn`, with a `session_id`: the session exists, and its first turn
                failed.
        """
        result = await self.perform(call)
        return result if call.output_type is None else with_type(call, result)

    @keywords_of(sessions.ResumeRequest)
    async def resume(self, call: sessions.ResumeRequest) -> SessionView:
        """Load a stored session into memory without running a turn.

        Raises:
            PersistenceDisabledError: if there is no store to load the session from.
        """
        return await self.perform(call)

    @keywords_of(sessions.ReadRequest)
    async def read(self, call: sessions.ReadRequest) -> SessionView:
        """Return a session as of its last finished turn. It does not wait for a running turn.

        To count the child sessions takes a read of the store, in time linear in their number.
        """
        return await self.perform(call)

    @keywords_of(sessions.ListRequest)
    async def list(self, call: sessions.ListRequest) -> SessionPage:
        """Return live and stored sessions, newest `updated_at` first, then by id."""
        return await self.perform(call)

    @keywords_of(HistoryRequest)
    async def history(self, call: HistoryRequest) -> HistoryPage:
        """Return messages of finished turns, oldest first: those at the `limit` positions from `offset` on.

        Messages that retention has removed are left out; all others keep their positions.
        """
        return await self.perform(call)

    @keywords_of(AttachmentRequest)
    async def attachment(self, call: AttachmentRequest) -> AttachmentContent:
        """Return the bytes of a file that a session's messages have.

        Raises:
            InvalidParamsError: if the session has no attachment with that hash, also if another session has one.
        """
        return await self.perform(call)

    @keywords_of(ContextViewRequest)
    async def context(self, call: ContextViewRequest) -> ContextView:
        """Return the context of a session as its model sees it now, by part, with the estimated tokens of each."""
        return await self.perform(call)

    @keywords_of(sessions.ArchiveRequest)
    async def archive(self, call: sessions.ArchiveRequest) -> None:
        """Archive a session. A running turn ends first and is stored. Archiving it again does nothing.

        With a store the session can still be read, and `list` hides it; without a store it is gone.
        """
        await self.perform(call)

    @keywords_of(sessions.DeleteRequest)
    async def delete(self, call: sessions.DeleteRequest) -> None:
        """Delete a session with its messages, events and remembered texts. A running turn is interrupted.

        Raises:
            PersistenceDisabledError: if there is no store.
            StoreError: if the session could not be deleted.
        """
        await self.perform(call)

    @keywords_of(turns.CompactRequest)
    async def compact(self, call: turns.CompactRequest) -> CompactionEntry:
        """Summarise the session's context now. The session is busy meanwhile, as with a turn.

        Raises:
            CompactionDisabledError: if the capability is off.
            SessionBusyError: if a turn or another compaction runs.
            CapacityExceededError: if as many turns run as may run at once, or memory is short.
            BudgetExhaustedError: if the session's budget is used up.
            AgentError: if nothing changed, with the cause `compaction_failed` and the reason in `details["reason"]`;
                if it was interrupted, with the cause `cancelled`.
        """
        return await self.perform(call)

    @keywords_of(sessions.ForkRequest)
    async def fork(self, call: sessions.ForkRequest) -> SessionView:
        """Make a new session of the first messages of another one, and return its view. No model is called.

        The fork has the settings and limits of the original. Its budget is unused, its events are numbered from 1, and
        the memory of the original is not copied. The original may be live, stored or archived, and may run a turn: it
        does not change.

        Trap: the model that wrote a summary saw some messages after those that the summary stands for. A fork that is
        cut between them may know of later messages.

        Raises:
            InvalidParamsError: if `at` is beyond the conversation, lies between a tool call and its results, or needs
                messages that retention has removed.
            StoreError: if the fork could not be stored.
        """
        return await self.perform(call)

    @keywords_of(sessions.DelegateRequest)
    async def delegate(self, call: sessions.DelegateRequest) -> str:
        """Make a child session that works for another one, and return its id. Its turn begins without the caller.

        The child has the parent's tenant, owner, switches and gates. It ends with the parent: if that is archived or
        deleted, so is the child. What the child spends does not count for the parent's budget.

        Raises:
            InvalidParamsError: if the model is unknown or of another provider, a tool is not one of the parent's, or
                the parent is as deep a child as `limits.child_depth` allows.
            BudgetExhaustedError: if the parent's budget leaves nothing.
            CapacityExceededError: if `limits.children` children of the parent are at work, or a limit is reached.
            StoreError: if the child could not be stored.
        """
        return await self.perform(call)

    @keywords_of(sessions.LabelRequest)
    async def label(self, call: sessions.LabelRequest) -> SessionView:
        """Change labels of a session, or its title, also while a turn runs. Return the new view.

        Raises:
            SessionNotFoundError: also if the session is archived.
            LeasedError: if another process has the session.
            StoreError: if the change could not be stored.
        """
        return await self.perform(call)

    @keywords_of(turns.ContextRequest)
    async def inject_context(self, call: turns.ContextRequest) -> bool:
        """Tell the model something besides the conversation, and return when the text is in the session's inbox.

        It enters the running turn at its next step, or else the next turn. It opens no exchange, and the memory does
        not remember it. Return False if a text was taken earlier under the same key, else True. Trap: a connection may
        break and repeat the request, so the answer over one is True in any case. That holds for a client, and for the
        session of another node.

        Raises:
            InvalidParamsError: if an argument is bad.
            CapacityExceededError: if the inbox is full; the cause is `inbox_full`.
            StoreError: if the text could not be stored.
        """
        return await self.perform(call)

    @keywords_of(turns.InputsRequest)
    async def inputs(self, call: turns.InputsRequest) -> tuple[Input, ...]:
        """Return the inputs that wait in a session's inbox, oldest first."""
        return await self.perform(call)

    @keywords_of(turns.WithdrawRequest)
    async def withdraw(self, call: turns.WithdrawRequest) -> None:
        """Take an input back that waits in the inbox. A call that waits for its turn gets AgentError("cancelled").

        Raises:
            InvalidParamsError: if no input of that id waits; a turn may have taken it.
            StoreError: if the withdrawal could not be stored.
        """
        await self.perform(call)

    def subscribe(self, session_id: str, *, after_seq: int | None = None) -> AbstractAsyncContextManager[EventReader]:
        """Follow a session's events: first the events above `after_seq` from the log, then live events.

        There is no gap between the two, and no event comes twice. However slowly a subscriber reads, it gets every
        event that is kept, adjacent deltas as one, and never slows the turn. A `stream_truncated` event stands for
        events that are kept nowhere: retention has removed them, their row is damaged, or there is no store and memory
        keeps only newer ones. A store that cannot be reached is waited for. The iteration ends when the session is
        archived or deleted, or the runtime ends.

        The arguments are the fields of `SubscribeRequest`.

        Raises:
            PersistenceDisabledError: on entering with `after_seq`, if there is no store, and no such session in memory.
            InvalidParamsError: on entering, if `after_seq` is ahead of the log.
        """

    def watch(
        self, *, labels: Mapping[str, str] | None = None, include_archived: bool = False
    ) -> AbstractAsyncContextManager[ChangeReader]:
        """Watch the list of sessions: which of them are made, run, wait for approval, end, are labelled or deleted.

        The first changes are the sessions whose turn runs, and then come all changes from the entering on. Enter it,
        and then `list`: nothing falls between the two. A session that changes often is told of a few times a second.
        With nodes the changes of all of them come. Changes by commands beside the runtime, as
        `warren doctor prune`, do not.

        The arguments are the fields of `WatchRequest`.
        """

    @keywords_of(turns.TurnCall)
    async def start_turn(self, call: turns.TurnCall) -> TurnResult:
        """Run one turn; a stored session is revived. Returns after the commit and after the last event.

        The arguments are the fields of `TurnCall`: the session's id and the prompt, and keywords, as in
        `start_turn(session_id, "go on", max_tokens=100)`. An option that is None is as the session has it.

        In `mode` "queue" the turn begins when those before it have ended; in "steer" the prompt enters the running turn
        at its next step, and the result is that turn's; if no turn runs, both begin one. Until a turn takes it the
        prompt waits in the session's inbox, which is stored: whoever gives up waiting does not take it back, see
        `withdraw`. A prompt with the `idempotency_key` of an earlier one is not taken twice: it gets that one's result.

        Raises:
            SessionBusyError: at once if another turn runs and the mode is `busy`.
            CapacityExceededError: if as many turns run as may run at once, memory is short, or the inbox is full.
            InvalidParamsError: if an argument is bad.
            ProviderError: if the model's provider failed, also after the retries. The turn is stored.
            BudgetExhaustedError: if a budget ran out. The turn is stored.
            AgentError: if the turn was interrupted, with the cause `cancelled`; if the answer does not fit the schema,
                with the cause `structured_output`, and the `text` and the last `errors` in the details. The turn is
                stored in both cases.
            StoreError: if the turn could not be stored. The answer is in `details["text"]`, and the session is as it
                was before the turn.
        """
        result = await self.perform(call)
        return result if call.output_type is None else with_type(call, result)

    @streams_of(turns.TurnCall)
    def stream_turn(self, call: turns.TurnCall) -> AbstractAsyncContextManager[TurnStream]:
        """Run one turn, and open a stream of its events for the body of an `async with`.

        The arguments are those of `start_turn`; `on_event` and `on_begin` are the stream's own. Entering returns once
        the turn has begun, or a running turn has taken the prompt. In the mode `busy` that is at once.

            async with service.stream_turn(session_id, "go on") as events:
                async for envelope in events:
                    ...
                result = await events.result()

        Leaving the block early leaves the turn alone: it runs on and is stored, as the turn of a cancelled call is, and
        nothing of the stream stays behind. An exception of the body is raised as it is, never in an exception group. A
        prompt with the `idempotency_key` of an earlier one streams the events of that one's turn, also if it is over.

        If the connection to the turn's process is lost, the events go on from the log as those of a subscription do,
        and `result` waits for the turn's end as `wait_turn` does.

        Raises:
            WarrenError: on entering, each error of `start_turn` for a turn that does not begin, as SessionBusyError.
                The errors of a turn that has begun are raised by `TurnStream.result`.
        """
        return self.stream(call)

    @streams_of(turns.SessionCall)
    def stream_session(self, call: turns.SessionCall) -> AbstractAsyncContextManager[TurnStream]:
        """Create a session and stream its first turn, as `stream_turn` does. `TurnStream.session_id` names it.

        The arguments are those of `create_session`, with a prompt; `on_event` and `on_begin` are the stream's own.

        Raises:
            WarrenError: on entering, each error of `create_session` for a turn that does not begin.
        """
        return self.stream(call)

    @keywords_of(turns.WaitRequest)
    async def wait_turn(self, call: turns.WaitRequest) -> TurnResult:
        """Wait for the end of a session's turn, whoever started it, and return its result.

        It is for a caller that has lost its connection to a turn without a key. If no turn runs and inputs wait, the
        end is that of the next turn. If neither is so and the session is a child, the end is that of the turn in which
        it did its work, however long ago that was. If the caller gives up waiting, the turn runs on.

        Raises:
            SessionNotRunningError: if no turn runs, none waits, and the session is no child. If one has just ended,
                `read` shows its answer.
            WarrenError: the error that the turn ended with, and the errors of `start_turn`. A `retryable` one is no end
                of the turn: wait again.
        """
        return await self.perform(call)

    @keywords_of(turns.InterruptRequest)
    async def interrupt(self, call: turns.InterruptRequest) -> None:
        """End the running turn, and return when it has ended. The turn's own caller gets AgentError("cancelled").

        A turn that is already past its last step counts as finished.

        Raises:
            SessionNotRunningError: if no turn runs.
            AgentError: if the turn outlives the grace period, with the cause `interrupt_timeout`. It ends later.
            StoreError: if the turn cannot be stored just now, as the store does not answer. It ends when that is known.
        """
        await self.perform(call)

    @keywords_of(turns.ApproveRequest)
    async def approve_tool(self, call: turns.ApproveRequest) -> None:
        """Allow or deny a tool call that waits for approval, as a `tool_approval_requested` event announced it.

        The first answer to a call counts.

        Raises:
            InvalidParamsError: if no call of that id waits.
            SessionNotRunningError: if no turn runs.
        """
        await self.perform(call)

    @keywords_of(turns.CompleteRequest)
    async def complete_tool(self, call: turns.CompleteRequest) -> None:
        """Give the result of a tool call under its completion token, for a tool that returns `ToolOutput.later`.

        The result is kept when this returns, and the turn goes on with it, in whichever process. It may come before the
        tool has returned. Giving the same result again changes nothing and succeeds.

        Raises:
            InvalidParamsError: at `$.token` if the token is not of the caller's tenant, or has expired; if the call has
                another result; and if it waits no more, because the turn was interrupted or the session is gone.
            StoreError: if the result could not be stored. Give it again.
        """
        await self.perform(call)

    @keywords_of(turns.ApprovalsRequest)
    async def approvals(self, call: turns.ApprovalsRequest) -> ApprovalPage:
        """Return the tool calls and questions that wait for approval, of all sessions of the tenant.

        Whoever has the session, and if nobody has: `approve_tool` answers each. First come those that a process has in
        memory alone, as it has no store or their turn is stored at its end; then those of the store, the oldest first.
        Trap: of those in memory a node tells at most 1,000, and one that does not answer within a second tells none.
        A process that is no node does not know those of others.

        Raises:
            StoreError: if the store cannot be read.
        """
        return await self.perform(call)

    @keywords_of(AgentsRequest)
    async def agents(self, call: AgentsRequest) -> AgentPage:
        """Return the agents, by name: those of the runtime, and those that sessions were made of in the past."""
        return await self.perform(call)

    @keywords_of(AgentRequest)
    async def agent(self, call: AgentRequest) -> AgentDetails:
        """Return an agent, and the versions of it that sessions were made of.

        Raises:
            InvalidParamsError: if there is no agent of the name, or no such version of it.
        """
        return await self.perform(call)

    @keywords_of(schedules.ScheduleRequest)
    async def create_schedule(self, call: schedules.ScheduleRequest) -> ScheduleView:
        """Make a schedule: a prompt that is due once, or again and again, and return it.

        Each run happens once, in whichever process lives then: its prompt is put into the inbox of the session, or of a
        new session, under a key that follows from its time. It runs in the name of the caller, and is held against the
        limits that the caller has now. Without a store it lasts as long as the process.

        Raises:
            InvalidParamsError: if an argument is bad.
            SessionNotFoundError: if the session is unknown or archived.
            CapacityExceededError: if the tenant has as many schedules as it may have.
            StoreError: if the schedule could not be stored.
        """
        return await self.perform(call)

    @keywords_of(schedules.ScheduleChange)
    async def change_schedule(self, call: schedules.ScheduleChange) -> ScheduleView:
        """Change a schedule, pause it or let it go on; return it. A run that it is late for is not made up for then.

        Raises:
            InvalidParamsError: if an argument is bad, and if there is no such schedule.
            StoreError: if the change could not be stored.
        """
        return await self.perform(call)

    @keywords_of(schedules.ScheduleDeletion)
    async def delete_schedule(self, call: schedules.ScheduleDeletion) -> None:
        """Remove a schedule. A prompt of it that waits already is not taken back.

        Raises:
            InvalidParamsError: if there is no such schedule.
            StoreError: if the schedule could not be removed.
        """
        await self.perform(call)

    @keywords_of(schedules.SchedulesRequest)
    async def schedules(self, call: schedules.SchedulesRequest) -> SchedulePage:
        """Return schedules of the tenant with their newest runs, the oldest schedule first.

        Raises:
            StoreError: if the store cannot be read.
        """
        return await self.perform(call)

    @keywords_of(triggers.TriggerRequest)
    async def create_trigger(self, call: triggers.TriggerRequest) -> TriggerView:
        """Make a trigger: a prompt that comes when a signed HTTP call comes, and return it with its secret.

        The call goes to `POST /triggers/ID` of a gateway. Its prompt is put into the inbox of the session, or of a new
        session, once for each id that the sender gives its calls. It runs in the name of the caller, and is held
        against the limits that the caller has now. Without a store the trigger lasts as long as the process.

        Raises:
            InvalidParamsError: if an argument is bad.
            SessionNotFoundError: if the session is unknown or archived.
            CapacityExceededError: if the tenant has as many triggers as it may have.
            StoreError: if the trigger could not be stored.
        """
        return await self.perform(call)

    @keywords_of(triggers.TriggerChange)
    async def change_trigger(self, call: triggers.TriggerChange) -> TriggerView:
        """Change a trigger, pause it, let it go on or give it a new secret, which the result has then.

        Raises:
            InvalidParamsError: if an argument is bad, and if there is no such trigger.
            SessionNotFoundError: if its session is archived.
            StoreError: if the change could not be stored.
        """
        return await self.perform(call)

    @keywords_of(triggers.TriggerDeletion)
    async def delete_trigger(self, call: triggers.TriggerDeletion) -> None:
        """Remove a trigger. A prompt of it that waits already is not taken back.

        Raises:
            InvalidParamsError: if there is no such trigger.
            StoreError: if the trigger could not be removed.
        """
        await self.perform(call)

    @keywords_of(triggers.TriggersRequest)
    async def triggers(self, call: triggers.TriggersRequest) -> TriggerPage:
        """Return triggers of the tenant with their newest deliveries, the oldest trigger first, and no secrets.

        Raises:
            StoreError: if the store cannot be read.
        """
        return await self.perform(call)

    @keywords_of(webhooks.WebhookRequest)
    async def create_webhook(self, call: webhooks.WebhookRequest) -> WebhookView:
        """Make a webhook: an address to which what happens in sessions is posted; return it, with its secret.

        What it is told of is stored together with what happens, and is posted until the receiver takes it, in whichever
        process lives then. Without a store the webhook lasts as long as the process.

        Raises:
            InvalidParamsError: if an argument is bad, and if nothing may be posted to the address.
            SessionNotFoundError: if the session is unknown or archived.
            CapacityExceededError: if the tenant has as many webhooks as it may have.
            StoreError: if the webhook could not be stored.
        """
        return await self.perform(call)

    @keywords_of(webhooks.WebhookChange)
    async def change_webhook(self, call: webhooks.WebhookChange) -> WebhookView:
        """Change a webhook, pause it, let it go on, or give it a new secret; return it. A new secret is in the result.

        Raises:
            InvalidParamsError: if an argument is bad, if there is no such webhook, and if nothing may be posted to the
                address.
            StoreError: if the change could not be stored.
        """
        return await self.perform(call)

    @keywords_of(webhooks.WebhookDeletion)
    async def delete_webhook(self, call: webhooks.WebhookDeletion) -> None:
        """Remove a webhook, with all that is still to be posted to it.

        Raises:
            InvalidParamsError: if there is no such webhook.
            StoreError: if the webhook could not be removed.
        """
        await self.perform(call)

    @keywords_of(webhooks.DeliveriesRequest)
    async def deliveries(self, call: webhooks.DeliveriesRequest) -> WebhookDeliveryPage:
        """Return deliveries of a webhook, the newest first.

        Raises:
            InvalidParamsError: if there is no such webhook.
            StoreError: if the store cannot be read.
        """
        return await self.perform(call)

    @keywords_of(webhooks.ResendRequest)
    async def resend(self, call: webhooks.ResendRequest) -> int:
        """Attempt dead deliveries of a webhook again, one or all, under their ids; return how many there are.

        Raises:
            InvalidParamsError: if there is no such webhook, and if the delivery is not a dead one of it.
            StoreError: if they could not be stored.
        """
        return await self.perform(call)

    @keywords_of(webhooks.WebhooksRequest)
    async def webhooks(self, call: webhooks.WebhooksRequest) -> WebhookPage:
        """Return webhooks of the tenant, the oldest first, without their secrets.

        Raises:
            StoreError: if the store cannot be read.
        """
        return await self.perform(call)

    @keywords_of(turns.PeerMessage)
    async def send_message(self, call: turns.PeerMessage) -> str:
        """Send a message to a peer in a session's name, and return its id when it is in the peer's inbox.

        A `response` has the `request_id` of the request that it answers.

        Raises:
            InvalidParamsError: if there is no such peer or request, or one of the two does not trust the other.
            CapacityExceededError: if the peer's inbox is full; the cause is `inbox_full`.
            StoreError: if the message could not be stored.
        """
        return await self.perform(call)

    @keywords_of(turns.PeersRequest)
    async def peers(self, call: turns.PeersRequest) -> tuple[PeerInfo, ...]:
        """Return the peers that a session trusts, and for each if it can be reached."""
        return await self.perform(call)

    @keywords_of(SearchRequest)
    async def search_memory(self, call: SearchRequest) -> tuple[MemoryHit, ...]:
        """Return the remembered texts that fit the query, best first.

        A text that has nothing in common with the query is no hit.

        Raises:
            MemoryDisabledError: if the capability is off.
            StoreError: if the memory cannot be read.
        """
        return await self.perform(call)

    @keywords_of(ForgetRequest)
    async def forget_memory(self, call: ForgetRequest) -> int:
        """Remove remembered texts of a session for good; return how many. Forgetting them again removes none.

        No search finds them from then on, and neither a later compaction nor the same input to `warren memory add`
        brings them back. Messages that leave the context later are remembered. It needs the scope `session:admin`, as
        `delete` does: there is no way back.

        Trap: the messages stay in the history of the session, and the summary that replaced them may tell of them. To
        remove these, delete the session. A backup from before has the texts.

        Raises:
            MemoryDisabledError: if the capability is off.
            StoreError: if the memory cannot be written.
        """
        return await self.perform(call)

    @keywords_of(operators.AuditRequest)
    async def audit(self, call: operators.AuditRequest) -> AuditPage:
        """Return entries of the audit, oldest first.

        The entries are those of the principal's tenant. With the scope `tenant:admin` they may be those of all, and
        that read is an entry itself. Without a store there are the newest 10,000 entries of this process.

        Trap: the order is that of the times at which something was asked for. With several nodes an entry may come
        seconds later between others: who follows the audit goes back some seconds each time, and knows entries by their
        numbers, as `warren audit --follow` does.

        Raises:
            StoreError: if the store cannot be read.
        """
        return await self.perform(call)

    @keywords_of(operators.UsageRequest)
    async def usage(self, call: operators.UsageRequest) -> UsageReport:
        """Return the tokens and the cost of models, summed by hour, day, model, tenant, session or label.

        They are those of the caller's tenant, or of all tenants for a caller with the scope `tenant:admin` that asks
        for them, which is an entry in the audit. A turn counts from its end on, in the hour in which it ended; what it
        used before a compaction counts from then on. Without a store the report is that of this process.

        Raises:
            StoreError: if the store cannot be read, or a row of the ledger is damaged.
        """
        return await self.perform(call)

    @keywords_of(operators.NodesRequest)
    async def nodes(self, call: operators.NodesRequest) -> tuple[Node, ...]:
        """Return the living processes that have the store open, this one among them.

        Those with an address serve the sessions of all of them; without a shared store there is this process alone. The
        work of each is as of its newest renewal, a few seconds ago at most.

        Raises:
            StoreError: if the store cannot be read.
        """
        return await self.perform(call)

    @keywords_of(operators.DrainRequest)
    async def drain_node(self, call: operators.DrainRequest) -> None:
        """Ask a node to end in order: it takes no new sessions, ends its turns, and releases its sessions.

        The call does not wait for that: the node hears of it by its next renewal. It is an entry of the audit.

        Raises:
            InvalidParamsError: if no living node has the name.
            StoreError: if the store cannot be written.
        """
        await self.perform(call)

    @keywords_of(operators.TenantsRequest)
    async def tenants(self, call: operators.TenantsRequest) -> operators.TenantsPage:
        """Return the figures of the caller's tenant at this moment, with its limits.

        A caller with the scope `tenant:admin` may ask for those of all tenants, which is an entry in the audit. Live
        sessions and turns are those of this process; counts of the store are some seconds old at most, see
        `TenantLimits`.

        Raises:
            StoreError: if the store or the memory cannot be read.
        """
        return await self.perform(call)

    @keywords_of(operators.CheckStoreRequest)
    async def check_store(self, call: operators.CheckStoreRequest) -> StoreReport:
        """Examine the store as `warren doctor` does, and return the report.

        It reads the whole store, beside the sessions, which go on. It takes five minutes at most, and there is one at a
        time in a process. Cancelling the call ends it. Findings name sessions only for principals with `tenant:admin`,
        as they may be those of any tenant.

        Raises:
            PersistenceDisabledError: if there is no store.
            CapacityExceededError: if another examination runs.
            StoreError: if the store cannot be examined; with the cause "timeout" if it takes too long.
        """
        return await self.perform(call)

    def capabilities(self) -> Capabilities:
        """Return the optional capabilities that are on."""


CALLS: Final[Mapping[str, type[Call[Any]]]] = {
    call.facts.name: call for call in map(call_of, vars(SessionService).values()) if call is not None
}
"""Every class of calls by its name on the wire, in the order of the documentation: each has its method above."""


class RuntimeService(SessionService, Protocol):
    """The sessions of a runtime, and the runtime itself, for the program that owns it."""

    @property
    def principal(self) -> Principal:
        """The principal of all calls: they have its rights, and find its tenant's sessions."""

    def as_(self, principal: Principal) -> Self:
        """Return the same service for a caller: it creates sessions of its tenant, and finds no others.

        A session of another tenant is not found, as one that does not exist. The service that a runtime is opened with
        is that of `warren.principals.LOCAL`. It costs little: make one for each call if you like.
        """

    async def drain(self) -> None:
        """Refuse new turns from now on, and return when the running turns have ended. Other calls still work.

        Use it if your host is told to end and has time, with a time limit around it. Turns that still run when you
        leave the runtime are interrupted. Trap: draining cannot be undone.
        """

    async def stop(self, budget: EndBudget | None = None) -> None:
        """End every session, and return when all have ended. Running turns are interrupted and stored.

        A call that waits for a turn gets AgentError(cause="shutting_down") after the turn's last event, as does every
        later call. Subscriptions end. Leaving the runtime does the same: call `stop` before it if your own clients must
        read those errors. It takes at most the configured drain time, and a moment for those that are cut off then. If
        a provider or a tool shields itself from cancellation, its caller is answered all the same, and leaving the
        runtime waits for it. Stopping again does nothing. Trap: stopping cannot be undone.

        Args:
            budget: the times of the end of this process, on trio's clock; None has the configured drain time.
        """

    def note(self, entry: AuditEntry) -> None:
        """Add an entry to the audit, for a surface that has refused a client. Never waits.

        Of many refusals within a minute the first ones are entries; the others are counted in one entry at its end.
        """

    async def bearer(self, token: str) -> Principal:
        """Return the principal of whoever shows a completion token, for a surface that asks for nothing else.

        It may complete calls of the token's tenant, and nothing else. The token may have expired.

        Raises:
            InvalidParamsError: at `$.token` if no runtime of this store has made the token.
            StoreError: if the secret of the store, by which this is known, cannot be read.
        """

    async def opened(self, call: SignedCall) -> Opened:
        """Return a call of a trigger whose signature is right, for a surface that asks for nothing else.

        Nothing is written, and no session is looked at. A call whose signature is wrong takes the same work as one of
        a trigger that is not there.

        Raises:
            InvalidParamsError: at `$.trigger_id` if there is no such trigger, or the call was not signed with its
                secret, or too long ago.
            StoreError: if the store cannot be read.
        """

    @property
    def ready(self) -> bool:
        """Whether new work should be sent here: not while it drains or ends, nor while the store does not answer.

        It is what the runtime knows already: asking costs the store nothing.
        """

    def health(self) -> Health:
        """Return the health of the runtime at this moment. Never waits."""

    def statistics(self) -> RuntimeStatistics:
        """Return the figures of the runtime at this moment. Never waits; takes about 1 ms for each 1,000 sessions."""

    def load(self) -> History:
        """Return the load of the last hour, a sample for every ten seconds since the start. Never waits.

        It is that of this process. A gateway answers `metrics/history` with the load of all nodes on its store.

        Raises:
            PermissionDeniedError: if the principal does not have the scope `metrics:read`.
        """

    def metrics(self) -> Metrics:
        """Return the totals since the start of the runtime, and its figures of this moment. Never waits.

        `warren.transport.prometheus.RuntimeCollector` registers them with a `prometheus_client` registry.

        Raises:
            PermissionDeniedError: if the principal does not have the scope `metrics:read`.
        """
