"""The handler of the call that creates a session, and runs its first turn."""

from contextlib import ExitStack
from typing import Any, Final

import attrs

from warren.actors.calls.creating import create_once
from warren.actors.calls.handlers.turns import beginning_of, by_name, enqueue, fetch_of, kept_of, no_compaction
from warren.actors.calls.local import Local
from warren.actors.events.eventlog import utc_now
from warren.actors.limits.limiter import FOR_SESSION, FOR_TURN
from warren.actors.limits.tenancy import Acceptance
from warren.actors.protocol import Loaded, StartTurn
from warren.actors.session.actor import SessionActor
from warren.actors.session.ending import result_of
from warren.actors.session.offered import instructions_of, names_of, warnings_of
from warren.actors.session.planning import candidates_for, check_priced
from warren.actors.shared import NO_HOST_OBJECTS, HostObjects
from warren.actors.turn import attaching
from warren.actors.turn.schemas import check_options
from warren.agents.agent import Agent
from warren.base.errors import InvalidParamsError
from warren.base.fields import FieldValueError, encodable
from warren.base.ids import new_session_id
from warren.base.values import define
from warren.calls.creation import FIRST_PROMPT, Creation, creation_of
from warren.calls.turns import SessionCall
from warren.calls.typed import decoder
from warren.compaction.policy import Compactor, NewCompactor, compactor_of
from warren.conversation.attachments import Attachment, Blob
from warren.conversation.inputs import Input
from warren.conversation.options import (
    DEFAULTS,
    NO_OPTIONS,
    CompactionConfig,
    SessionOptions,
    SessionRequest,
    given,
    session_options,
)
from warren.conversation.records import SessionRecord
from warren.conversation.views import TurnResult
from warren.models.tools import Tool
from warren.reports.audit import AuditEntry
from warren.reports.tracing import caller


async def create(local: Local, call: SessionCall) -> TurnResult:
    """Create a session, and run its first turn."""
    local.supervisor.check_open()
    shared, config = local.supervisor.shared, local.supervisor.shared.config
    agent = None if call.agent is None else shared.agents.named(call.agent, local.principal.tenant)
    asked = await _asked(local, call)
    if agent is not None:
        asked = agent.under(asked)
        asked.check_kinds(shared.categories)
    options = shared.options if asked is DEFAULTS else config.settled(asked)
    now = utc_now()
    record = SessionRecord(
        session_id=new_session_id(),
        created_at=now,
        updated_at=now,
        model=asked.model or config.model,
        options=shared.options if options == shared.options else options,  # idle sessions share them
        labels=dict(call.labels or {}),
        title=call.title,
        tenant=local.principal.tenant,
        owner=local.principal.name,
        agent=None if agent is None else agent.pin,
    )
    new = _NewSession(local, call, asked, record, agent)
    warnings = warnings_of(record, shared, local.supervisor.comms, {**new.tools, **new.turn_tools})
    if call.attachments:
        new.sent = await attaching.prepared(call.attachments, config.limits.max_attachment, _has_none)
    entry, key = local.entry("create", record.session_id), call.idempotency_key
    with new.holding:
        result = await (new.run(entry) if key is None else new.run_once(key, entry))
    return attrs.evolve(result, warnings=warnings) if warnings else result


async def _asked(local: Local, call: SessionCall) -> SessionOptions:
    """Return the options that a session is asked for with, checked against the runtime."""
    shared = local.supervisor.shared
    asked = session_options(call, None if call.tools is None else names_of(call.tools))
    if asked is not DEFAULTS:
        asked = await check_options(asked)
        asked.check_kinds(shared.categories)
    if call.compactor is not None:
        _check_compactor(call.compactor, asked.compaction or shared.config.compaction)
    if (asked.compaction is not None or call.compactor is not None) and shared.config.compaction is None:
        raise no_compaction()
    return asked


@define(eq=False)
class _NewSession:
    """A session that is being created.

    Attributes:
        local: the runtime.
        call: the call.
        asked: the options that it asks for.
        record: the record of the session.
        agent: the agent that it is made of; None for none.
        tools: the session's own tools.
        turn_tools: the tools of the first turn.
        sent: the files of the first prompt, as they were sent.
        holding: holds the first turn against the limits of the caller until it is accepted: no session is without it.
        accepted: that turn, once it is held.
        turn: the first turn, once its files are here; None for a session without a prompt.
    """

    local: Local
    call: SessionCall
    asked: SessionOptions
    record: SessionRecord
    agent: Agent[Any] | None
    tools: dict[str, Tool] = attrs.field(init=False)
    turn_tools: dict[str, Tool] = attrs.field(init=False)
    sent: tuple[Blob, ...] = ()
    holding: ExitStack = attrs.field(factory=ExitStack)
    accepted: Acceptance | None = None
    turn: StartTurn | None = None

    def __attrs_post_init__(self) -> None:
        self.tools, self.turn_tools = by_name(self.call.tools or ()), by_name(self.call.extra_tools)

    async def run(self, entry: AuditEntry) -> TurnResult:
        """Create the session, and run its first turn."""
        actor = await self._create(entry)
        session_id = self.record.session_id
        if self.turn is None:
            await actor.mailbox.ask(Loaded())
            return TurnResult(session_id)
        running = self.local.turn(session_id, attrs.evolve(self.turn, begun=beginning_of(self.call)), self.accepted)
        return await (self.local.counted(self.turn.blobs, running) if self.turn.blobs else running)

    async def run_once(self, key: str, entry: AuditEntry) -> TurnResult:
        """Create the session under a key and run its first turn, unless an earlier call did so.

        The prompt goes through the session's inbox: there it outlives the process, and is taken once.
        """
        creation = self._creation(key)

        async def new() -> str:
            return (await (await self._create(entry, creation)).mailbox.ask(Loaded())).session_id

        local = self.local
        found = await create_once(local.supervisor.shared.storage, local.principal.tenant, creation, new)
        session_id = found.session_id
        if found.outcome:
            return result_of(found.outcome, session_id)
        turn = await self._first_turn()
        if turn is None:
            await local.view(session_id)
            return TurnResult(session_id)
        files, payer = turn.attachments, turn.payer
        input_ = Input(new_session_id(), "queue", turn.prompt, utc_now(), FIRST_PROMPT, attachments=files, payer=payer)
        accepted = self.accepted if session_id == self.record.session_id else None
        return await enqueue(
            local, session_id, input_, turn.tools, beginning_of(self.call), blobs=turn.blobs, accepted=accepted
        )

    def _creation(self, key: str) -> Creation:
        compared = given(SessionRequest, self.call) | {
            "tools": None if self.call.tools is None else names_of(self.call.tools),
            "labels": self.call.labels or None,
            "idempotency_key": None,
            # The same files, whether they came with their bytes or were uploaded before, or by the same URL.
            "attachments": attaching.references(self.sent) or None,
            # Also at its default, as under the keys that older stores have.
            "structured_output_retries": self.call.structured_output_retries,
        }
        return creation_of(key, compared)

    async def _create(self, entry: AuditEntry, creation: Creation | None = None) -> SessionActor:
        local, call, record = self.local, self.call, self.record
        shared, comms = local.supervisor.shared, local.supervisor.comms
        try:
            candidates = candidates_for(NO_OPTIONS, record, shared)
        except InvalidParamsError as exc:
            raise _of_default(exc, self.asked) from None
        attaching.check_kinds(attaching.references(self.sent), candidates)
        check_priced(candidates, shared.config.limits.turn, record.options.budget)
        await comms.check_free(record)
        if call.prompt is not None:
            candidates[0].choice.check_ready()
        if self.agent is not None:  # before a session names the version
            await shared.agents.keep(shared.storage, record.tenant, self.agent)
        by = local.by
        if fetch_of(local, self.sent) is not None:  # what is refused asks no other server
            await self._check_limits()
        turn = await self._first_turn()
        if turn is not None:
            await local.check_room(turn.blobs)
        await self._check_limits()
        if by and turn is not None:
            self.accepted = self.holding.enter_context(shared.limiter.accepting(by, record.session_id))
        first, spec = None, None if self.agent is None else self.agent.spec
        if spec is None or spec.made_by is None:  # else its first turn is told
            own = None if spec is None else spec.instructions
            instructions = call.system_prompt or own or shared.config.system_prompt
            first = instructions_of(instructions, record, shared, comms, self.tools)
        objects = HostObjects(self.tools, call.compactor, tuple(call.hooks)) or NO_HOST_OBJECTS

        async def save(actor: SessionActor) -> None:
            await actor.conversation.create(record, first, creation, entry)

        return local.supervisor.spawn(record.session_id, save, objects, by=by)

    async def _first_turn(self) -> StartTurn | None:
        """Return the turn of the session, with its files; None for a session without a prompt."""
        if self.turn is None and self.call.prompt is not None:
            kept = await kept_of(self.local, self.sent)
            files, new = attaching.references(kept), attaching.new_of(kept)
            payer = self.local.payer
            decode = None if self.call.output_type is None else decoder(self.call)
            self.turn = StartTurn(
                self.call.prompt, NO_OPTIONS, self.turn_tools, caller(), files, new, payer, decode=decode
            )
        return self.turn

    async def _check_limits(self) -> None:
        """Raise CapacityExceededError for one session or one turn too many.

        There is no checkpoint after the checks, nor until the caller has begun both: others would take the same places.
        """
        supervisor, by = self.local.supervisor, self.local.by
        limiter = supervisor.shared.limiter
        if by:
            await limiter.look(by, FOR_SESSION)
            await limiter.look(by, FOR_TURN)
        supervisor.scheduler.check_session(by)
        if self.call.prompt is not None:
            supervisor.scheduler.check_turn()
            if by:
                limiter.check_turn(by, self.record.session_id)


async def _has_none(_sha256: str) -> Attachment | None:
    """Return None: a session that is only to be created has no files."""
    return None


def _of_default(error: InvalidParamsError, asked: SessionOptions) -> InvalidParamsError:
    """Return an option error that says so if the request does not have the option."""
    name = error.path.removeprefix("$.").partition(".")[0].partition("[")[0]
    if getattr(asked, name, None) is not None:
        return error
    return InvalidParamsError(f"{error.message} (the setting of this runtime, the request has none)", path=error.path)


def _check_compactor(compactor: Compactor | NewCompactor | None, config: CompactionConfig | None) -> None:
    """Refuse a compactor that cannot work with a session's settings. Raises InvalidParamsError."""
    try:
        compactor_of(compactor, config or CompactionConfig(), None)
    except Exception as exc:  # a host's own code may raise anything
        raise FieldValueError("compactor", encodable(f"cannot be used: {exc}")).refusal() from exc


HANDLERS: Final[dict[type, Any]] = {SessionCall: create}
