"""The methods of `SessionService` that change sessions: each finds the session's actor, and asks it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, TypeVar

import attrs
import trio

from warren.actors import attaching
from warren.actors.calls import forking
from warren.actors.calls.access import guarded, scoped
from warren.actors.calls.creating import create_once
from warren.actors.calls.reading import Reads, action_of
from warren.actors.erasing import erase
from warren.actors.eventlog import Beginning, Telling, utc_now
from warren.actors.limits.limiter import FOR_SESSION, FOR_TURN
from warren.actors.limits.tenancy import Acceptance, Accounts
from warren.actors.protocol import Compact, Decide, Interrupt, Loaded, Retire, StartTurn
from warren.actors.session.actor import SessionActor
from warren.actors.session.ending import result_of
from warren.actors.session.offered import instructions_of, names_of, warnings_of
from warren.actors.session.planning import candidates_for, check_priced
from warren.actors.shared import HostObjects
from warren.actors.turn.schemas import check_options
from warren.base.end_budget import EndBudget
from warren.base.errors import (
    AgentError,
    CompactionDisabledError,
    InvalidParamsError,
    SessionBusyError,
    SessionNotFoundError,
    SessionNotRunningError,
    StoreError,
    WarrenError,
)
from warren.base.fields import FieldValueError, encodable
from warren.base.ids import new_session_id
from warren.base.values import define
from warren.calls.creation import FIRST_PROMPT, Creation, creation_of
from warren.calls.keywords import keywords_of
from warren.calls.requests import (
    ApproveRequest,
    CompactRequest,
    ContextRequest,
    ForgetRequest,
    ForkRequest,
    LabelRequest,
    SessionRef,
    WithdrawRequest,
)
from warren.calls.service import SessionCall, TurnCall
from warren.compaction.policy import Compactor, NewCompactor, compactor_of
from warren.conversation.attachments import Attachment, Blob, File
from warren.conversation.categories import Decision
from warren.conversation.inputs import Input
from warren.conversation.options import (
    DEFAULTS,
    NO_OPTIONS,
    CompactionConfig,
    SessionOptions,
    SessionRequest,
    TurnOptions,
    given,
    session_options,
    turn_options,
)
from warren.conversation.peers import PeerMessage
from warren.conversation.records import CompactionEntry, SessionRecord
from warren.conversation.views import (
    SessionView,
    TurnResult,
)
from warren.mailbox import Message
from warren.models.tools import Tool
from warren.reports.tracing import caller
from warren.storage import leased

R = TypeVar("R")
MOMENT: Final = 0.25
"""Seconds that an interrupted turn has to end before the interrupter hears of a store that does not answer."""


@define(eq=False)
class Service(Reads):
    """The sessions of one runtime; each method's promise is written down in `warren.calls.service.SessionService`."""

    _by: Accounts = attrs.field(init=False)

    @_by.default
    def _accounts(self) -> Accounts:
        """Return the accounts of the caller."""
        return self._supervisor.shared.limiter.tenancy.of(self.principal)

    # -- turns

    @keywords_of(SessionCall)
    @scoped
    async def create_session(self, call: SessionCall) -> TurnResult:
        """See SessionService."""
        self._supervisor.check_open()
        shared, config = self._supervisor.shared, self._supervisor.shared.config
        session_tools, turn_tools = _by_name(call.tools or ()), _by_name(call.extra_tools)
        asked = await self._asked(call)
        now, session_id = utc_now(), new_session_id()
        record = SessionRecord(
            session_id=session_id,
            created_at=now,
            updated_at=now,
            model=asked.model or config.model,
            options=shared.options if asked is DEFAULTS else config.settled(asked),
            labels=dict(call.labels or {}),
            title=call.title,
            tenant=self.principal.tenant,
            owner=self.principal.name,
        )
        warnings = warnings_of(record, shared, self._comms, {**session_tools, **turn_tools})
        sent = await self._sent(call.attachments, _has_none) if call.attachments else ()
        instructions = call.system_prompt or config.system_prompt
        entry = self._entry("create", session_id)
        accepted: dict[str, Acceptance] = {}
        begin = _once(partial(self._first_turn, call, sent, turn_tools))

        async def create(creation: Creation | None = None) -> SessionActor:
            try:
                candidates = candidates_for(NO_OPTIONS, record, shared)
            except InvalidParamsError as exc:
                raise _of_default(exc, asked) from None
            attaching.check_kinds(attaching.references(sent), candidates)
            check_priced(candidates, config.limits.turn, record.options.budget)
            await self._comms.check_free(record)
            if call.prompt is not None:
                candidates[0].choice.check_ready()
            by = self._by
            if self._fetch(sent) is not None:  # what is refused asks no other server
                await self._check_new(session_id, call)
            turn = await begin()
            if turn is not None:
                await self._check_room(turn.blobs)
            await self._check_new(session_id, call)
            if by and turn is not None:  # from before there is a session until its turn is accepted: none is without it
                accepted[session_id] = holding.enter_context(shared.limiter.accepting(by, session_id))
            first = instructions_of(instructions, record, shared, self._comms, session_tools)
            objects = HostObjects(session_tools, call.compactor)
            return self._supervisor.spawn(record, first, objects, creation, entry, by=by)

        begun = _beginning(call)
        with ExitStack() as holding:
            if call.idempotency_key is not None:
                compared = given(SessionRequest, call) | {
                    "tools": asked.tools,
                    "labels": call.labels or None,
                    "idempotency_key": None,
                    # The same files, whether they came with their bytes or were uploaded before, or by the same URL.
                    "attachments": attaching.references(sent) or None,
                    # Also at its default, as under the keys that older stores have.
                    "structured_output_retries": call.structured_output_retries,
                }
                creation = creation_of(call.idempotency_key, compared)
                result = await self._create_once(creation, create, begin, begun, accepted)
            else:
                actor = await create()
                if (turn := await begin()) is None:
                    await actor.mailbox.ask(Loaded())
                    result = TurnResult(session_id)
                else:
                    running = self._turn(session_id, attrs.evolve(turn, begun=begun), accepted.get(session_id))
                    result = await self._counted(turn.blobs, running)
        return attrs.evolve(result, warnings=warnings) if warnings else result

    async def _asked(self, call: SessionCall) -> SessionOptions:
        """Return the options that a session is asked for with, checked against the runtime."""
        shared = self._supervisor.shared
        asked = session_options(call, None if call.tools is None else names_of(call.tools))
        if asked is not DEFAULTS:
            asked = await check_options(asked)
            asked.check_kinds(shared.categories)
        if call.compactor is not None:
            _check_compactor(call.compactor, asked.compaction or shared.config.compaction)
        if (asked.compaction is not None or call.compactor is not None) and shared.config.compaction is None:
            raise _no_compaction()
        return asked

    async def _first_turn(
        self, call: SessionCall, sent: tuple[Blob, ...], tools: Mapping[str, Tool]
    ) -> StartTurn | None:
        """Return the turn of a new session, with its files; None for a session without a prompt."""
        if call.prompt is None:
            return None
        kept = await self._kept(sent)
        files, new = attaching.references(kept), attaching.new_of(kept)
        return StartTurn(call.prompt, NO_OPTIONS, tools, caller(), files, new, self.principal.payer)

    async def _check_new(self, session_id: str, call: SessionCall) -> None:
        """Raise CapacityExceededError for one session too many, or a turn; behind that is no checkpoint."""
        by, shared = self._by, self._supervisor.shared
        if by:
            await shared.limiter.look(by, FOR_SESSION)
            await shared.limiter.look(by, FOR_TURN)
        self._supervisor.scheduler.check_session(by)
        if call.prompt is not None:
            self._supervisor.scheduler.check_turn()
            if by:
                shared.limiter.check_turn(by, session_id)

    async def _create_once(
        self,
        creation: Creation,
        create: Callable[[Creation], Awaitable[SessionActor]],
        begin: Callable[[], Awaitable[StartTurn | None]],
        begun: Beginning | None,
        accepted: Mapping[str, Acceptance],
    ) -> TurnResult:
        """Create a session under a key and run its first turn, unless an earlier call did so.

        The prompt goes through the session's inbox: there it outlives the process, and is taken once. `accepted` has
        its turn if `create` has held it against the limits of the caller.
        """

        async def new() -> str:
            return (await (await create(creation)).mailbox.ask(Loaded())).session_id

        found = await create_once(self._supervisor.shared.storage, self.principal.tenant, creation, new)
        session_id = found.session_id
        if found.outcome:
            return result_of(found.outcome, session_id)
        turn = await begin()
        if turn is None:
            await self._view(session_id)
            return TurnResult(session_id)
        files, payer = turn.attachments, turn.payer
        input_ = Input(new_session_id(), "queue", turn.prompt, utc_now(), FIRST_PROMPT, attachments=files, payer=payer)
        accepted_turn = accepted.get(session_id)
        return await self._enqueue(session_id, input_, turn.tools, begun, turn.blobs, accepted=accepted_turn)

    @keywords_of(TurnCall)
    @guarded
    async def start_turn(self, call: TurnCall) -> TurnResult:
        """See SessionService."""
        options, turn_tools = turn_options(call), _by_name(call.extra_tools)
        if options is not NO_OPTIONS:
            options = await check_options(options)
            options.check_kinds(self._supervisor.shared.categories)
        files, new = await self._attached(call, options) if call.attachments else ((), ())
        if call.mode != "busy":
            key = call.idempotency_key
            input_ = Input(
                new_session_id(),
                call.mode,
                call.prompt,
                utc_now(),
                key,
                options=options,
                attachments=files,
                payer=self.principal.payer,
            )
            return await self._enqueue(call.session_id, input_, turn_tools, _beginning(call), new)
        payer, begun = self.principal.payer, _beginning(call)
        turn = StartTurn(call.prompt, options, turn_tools, caller(), files, new, payer, begun=begun)
        return await self._counted(new, self._turn(call.session_id, turn))

    async def _attached(self, call: TurnCall, options: TurnOptions) -> tuple[tuple[Attachment, ...], tuple[Blob, ...]]:
        """Return the files of a prompt, which its model takes, and those of them that are to be stored."""
        shared, session_id = self._supervisor.shared, call.session_id
        record = await self._record(session_id)
        find = partial(attaching.find_in, shared.storage, record.tenant, session_id)
        sent = await self._sent(call.attachments, find)
        attaching.check_kinds(attaching.references(sent), candidates_for(options, record, shared))
        fetches = self._fetch(sent) is not None and not await self._is_known(call)
        kept = await self._kept(sent) if fetches else sent
        new = attaching.new_of(kept)
        await self._check_room(new)
        return attaching.references(kept), new

    async def _sent(self, files: Sequence[File], find: attaching.Find) -> tuple[Blob, ...]:
        """Return the files of a prompt as they were sent."""
        return await attaching.prepared(files, self._supervisor.shared.config.limits.max_attachment, find)

    async def _kept(self, sent: tuple[Blob, ...]) -> tuple[Blob, ...]:
        """Return the files of a prompt, those at a URL with their bytes if the host fetches them."""
        if (fetch := self._fetch(sent)) is None:
            return sent
        return await attaching.fetched(sent, self._supervisor.shared.config.limits.max_attachment, fetch)

    def _fetch(self, sent: Sequence[Blob]) -> attaching.FetchFile | None:
        """Return what fetches the files of a prompt; None if none of them is fetched."""
        fetch = self._supervisor.shared.fetch_file
        return fetch if fetch is not None and any(each.attachment.url is not None for each in sent) else None

    async def _is_known(self, call: TurnCall) -> bool:
        """Return whether a prompt is in the store already, under its key, before its files are fetched.

        Raises the error of one that is sure to be refused: it asks no other server.
        """
        limiter, actor = self._supervisor.shared.limiter, self._supervisor.registry.find(call.session_id)
        if call.mode == "busy":
            if actor is not None and actor.turn_runs:
                raise SessionBusyError("the session already runs a turn", session_id=call.session_id)
        elif (key := call.idempotency_key) is not None:
            input_ = Input(new_session_id(), call.mode, call.prompt, utc_now(), key)
            if await self._inboxes.is_known(call.session_id, input_):
                return True
        if self._by:
            await limiter.look(self._by, FOR_TURN)
            limiter.check_turn(self._by, call.session_id)
        return False

    async def _check_room(self, blobs: Sequence[Blob]) -> None:
        """Raise CapacityExceededError if the caller has no room for files."""
        limiter, by = self._supervisor.shared.limiter, self._by
        if by and blobs:
            await limiter.look(by, ("stored_bytes",))
            limiter.tenancy.check_growth(by, _size_of(blobs))

    def _counted(self, blobs: Sequence[Blob], storing: Awaitable[R]) -> Awaitable[R]:
        """Count files as stored while a call stores them; if it fails, they are counted anew, as they may not be."""
        return self._counting(blobs, storing) if blobs else storing

    async def _counting(self, blobs: Sequence[Blob], storing: Awaitable[R]) -> R:
        figures = [account.figure("stored_bytes") for account in self._by]
        for figure in figures:
            figure.add(_size_of(blobs))
        try:
            return await storing
        except WarrenError:
            for figure in figures:
                figure.expire()
            raise

    async def _enqueue(
        self,
        session_id: str,
        input_: Input,
        tools: Mapping[str, Tool],
        begun: Beginning | None,
        blobs: tuple[Blob, ...] = (),
        *,
        accepted: Acceptance | None = None,
    ) -> TurnResult:
        by, put = self._by, self._inboxes.put_and_wait
        turn = put(session_id, input_, tools, by, blobs, accepted=accepted, begun=begun)
        return await self._counted(blobs, turn if begun is None else begun.of(turn))

    @keywords_of(ContextRequest)
    @guarded
    async def inject_context(self, wanted: ContextRequest) -> bool:
        """See SessionService."""
        input_ = Input(
            new_session_id(), "context", wanted.text, utc_now(), wanted.idempotency_key, wanted.source, starts=False
        )
        return await self._inboxes.put(wanted.session_id, input_, self._by)

    @keywords_of(WithdrawRequest)
    @guarded
    async def withdraw(self, wanted: WithdrawRequest) -> None:
        """See SessionService."""
        await self._inboxes.withdraw(wanted.session_id, wanted.input_id)

    @keywords_of(PeerMessage)
    @guarded
    async def send_message(self, message: PeerMessage) -> str:
        """See SessionService."""
        return await self._comms.send(await self._record(message.session_id), message, self._by, self.principal.payer)

    @keywords_of(ApproveRequest)
    @guarded
    async def approve_tool(self, request: ApproveRequest) -> None:
        """See SessionService."""
        actor, decision = await self._running(request.session_id), Decision(request.decision == "allow", request.reason)
        entry = self._entry(action_of(request.decision), request.session_id, call=request.call_id)
        await actor.mailbox.ask(Decide(request.call_id, decision, entry))

    @keywords_of(SessionRef)
    @guarded
    async def interrupt(self, session: SessionRef) -> None:
        """See SessionService."""
        actor = await self._running(session.session_id)
        grace, storage = self._supervisor.shared.config.limits.interrupt_grace, self._supervisor.shared.storage
        reply = actor.mailbox.post(Interrupt(self._entry("interrupt", session.session_id)))
        deadline = trio.current_time() + grace
        while True:
            with trio.move_on_at(min(deadline, trio.current_time() + MOMENT)):
                return await reply.wait()
            if storage.stalled:
                problem = "the turn is interrupted, and ends when the store answers, which it does not just now"
                raise StoreError(problem, session_id=session.session_id, cause="unreachable")
            if trio.current_time() >= deadline:
                break
        raise AgentError(
            f"the turn has not ended within {grace:g} s; it will",
            session_id=session.session_id,
            cause="interrupt_timeout",
        )

    async def _running(self, session_id: str) -> SessionActor:
        """Return the actor of a session.

        Raises SessionNotFoundError if there is no such session, LeasedError if another process has it, and
        SessionNotRunningError if nobody does.
        """
        self._supervisor.check_loop()
        actor = self._supervisor.find(session_id)
        if actor is None:
            await self._view(session_id)
            rival = await self._supervisor.shared.storage.rival(session_id)
            if rival is not None:
                raise leased(session_id, rival.name)
            raise SessionNotRunningError("the session runs no turn", session_id=session_id)
        return actor

    async def _turn(
        self,
        session_id: str,
        turn: Message[R],
        accepted: Acceptance | None = None,
    ) -> R:
        by = self._by
        if by and accepted is None:
            await self._supervisor.shared.limiter.look(by, FOR_TURN)
        try:
            reply = self._supervisor.admit(session_id, turn, by, accepted)
        except WarrenError:
            await trio.lowlevel.checkpoint()  # a caller that retries in a loop would starve the turn it waits for
            raise
        begun = turn.begun if isinstance(turn, StartTurn) else None
        return await (reply.wait() if begun is None else begun.of(reply.wait()))

    @keywords_of(CompactRequest)
    @scoped
    async def compact(self, wanted: CompactRequest) -> CompactionEntry:
        """See SessionService."""
        if not self.capabilities().session_compaction:
            raise _no_compaction()  # whatever the session, so before it is looked up
        if not self.has_live(wanted.session_id):
            await self.find(wanted.session_id)
        return await self._turn(wanted.session_id, Compact(wanted.instructions, caller(), self.principal.payer))

    @keywords_of(ForgetRequest)
    @scoped
    async def forget_memory(self, wanted: ForgetRequest) -> int:
        """See SessionService."""
        self._supervisor.check_open()
        which = {"turn": wanted.turn, "text_id": wanted.text_id}
        shown = {name: str(value) for name, value in which.items() if value is not None}
        refused = False
        try:
            removed = await self._supervisor.shared.memory.forget_texts(wanted.of(self.principal.tenant))
            if removed is None:  # as yet nothing of it is remembered, or there is no such session
                await self.find(wanted.session_id)
        except WarrenError:
            refused = True
            raise
        finally:
            if not refused:  # also if the caller has left: the texts are forgotten nevertheless
                self.note(self._entry("forget", wanted.session_id, **shown))
        return removed or 0

    # -- forks and labels

    @keywords_of(ForkRequest)
    @guarded
    async def fork(self, wanted: ForkRequest) -> SessionView:
        """See SessionService."""
        return await forking.fork(self._supervisor, wanted, self.principal)

    @keywords_of(LabelRequest)
    @guarded
    async def label(self, wanted: LabelRequest) -> SessionView:
        """See SessionService."""
        return await forking.label(self._supervisor, wanted)

    # -- endings

    @keywords_of(SessionRef)
    @guarded
    async def archive(self, session: SessionRef) -> None:
        """See SessionService."""
        entry = self._entry("archive", session.session_id)
        await self._supervisor.revive(session.session_id).mailbox.ask(Retire("archive", entry))
        self._supervisor.shared.limiter.tenancy.retired(self.principal.tenant)

    @keywords_of(SessionRef)
    @guarded
    async def delete(self, session: SessionRef) -> None:
        """See SessionService."""
        session_id = session.session_id
        shared = self._supervisor.shared
        entry = self._entry("delete", session_id)
        try:
            await self._supervisor.revive(session_id).mailbox.ask(Retire("delete", entry))
        except (SessionNotFoundError, StoreError) as exc:
            if self._supervisor.find(session_id) is not None:
                raise  # its actor lives, and must not be robbed of its rows
            if isinstance(exc, StoreError) and exc.away:
                raise
            # Deleted before, which is fine, or damaged so that no actor can load it.
            await erase(session_id, shared.storage, shared.memory, entry)
            self._supervisor.watchers.gone(session_id, self.principal.tenant)
            if isinstance(exc, SessionNotFoundError):
                return
        shared.limiter.tenancy.retired(self.principal.tenant, deleted=True)

    async def drain(self) -> None:
        """See SessionService."""
        self._supervisor.check_loop()
        await self._supervisor.drain()

    async def stop(self, budget: EndBudget | None = None) -> None:
        """See SessionService."""
        self._supervisor.check_loop()
        await self._supervisor.stop(budget)


def _beginning(call: SessionCall | TurnCall) -> Beginning | None:
    on_begin = call.on_begin if call.on_event is None else Telling(call.on_event)
    return None if on_begin is None else Beginning(on_begin)


def _size_of(blobs: Sequence[Blob]) -> int:
    return sum(len(each.data) for each in blobs)


def _once(make: Callable[[], Awaitable[R]]) -> Callable[[], Awaitable[R]]:
    """Return a function that makes a value when it is called first, and returns it from then on."""
    made = list[R]()

    async def get() -> R:
        if not made:
            made.append(await make())
        return made[0]

    return get


async def _has_none(_sha256: str) -> Attachment | None:
    """Return None: a session that is only to be created has no files."""
    return None


def _of_default(error: InvalidParamsError, asked: SessionOptions) -> InvalidParamsError:
    """Return an error about the options of a new session, which says so if the request does not have the option."""
    name = error.path.removeprefix("$.").partition(".")[0].partition("[")[0]
    if getattr(asked, name, None) is not None:
        return error
    return InvalidParamsError(f"{error.message} (the setting of this runtime, the request has none)", path=error.path)


def _no_compaction() -> CompactionDisabledError:
    return CompactionDisabledError("session compaction is disabled: the runtime was started without it")


def _check_compactor(compactor: Compactor | NewCompactor | None, config: CompactionConfig | None) -> None:
    """Refuse a compactor that cannot work with a session's settings. Raises InvalidParamsError."""
    try:
        compactor_of(compactor, config or CompactionConfig(), None)
    except Exception as exc:  # a host's own code may raise anything
        raise FieldValueError("compactor", encodable(f"cannot be used: {exc}")).refusal() from exc


def _by_name(tools: Sequence[str | Tool]) -> dict[str, Tool]:
    """Return the tools among tools and names of tools, by their names."""
    return {tool.spec.name: tool for tool in tools if isinstance(tool, Tool)}
