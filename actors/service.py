"""The service: what hosts and surfaces call. It checks the input, finds the actor, and asks."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import attrs
import trio

from warren import codec
from warren.actors import forking
from warren.actors.checks import (
    by_name,
    check_changes,
    check_compactor,
    check_flag,
    check_given,
    check_id,
    check_key,
    check_labels,
    check_name,
    check_text,
    check_title,
    check_words,
    names_of,
)
from warren.actors.erasing import erase
from warren.actors.eventlog import utc_now
from warren.actors.protocol import Compact, Decide, Interrupt, Loaded, Relabel, Retire, StartTurn
from warren.actors.reading import Reads, no_store
from warren.actors.schemas import check_options
from warren.actors.session.comms import ended
from warren.actors.session.planning import instructions_of
from warren.actors.session.session import SessionActor
from warren.actors.shared import Own
from warren.actors.supervisor.creating import create_once
from warren.categories import CATEGORIES, INHERIT, Decision
from warren.creation import FIRST_PROMPT, Creation, creation_of
from warren.errors import (
    AgentError,
    CompactionDisabledError,
    InvalidParamsError,
    SessionNotFoundError,
    SessionNotRunningError,
    StoreError,
    WarrenError,
)
from warren.forking import ForkRequest
from warren.ids import new_session_id
from warren.inputs import Input
from warren.keywords import keywords_of
from warren.mailbox import Message
from warren.options import (
    NO_OPTIONS,
    RETRIES,
    ModelOptions,
    SessionOptions,
    SessionRequest,
    TurnOptions,
    given,
    part,
)
from warren.peers import PeerMessage
from warren.records import CompactionEntry, SessionRecord
from warren.service import SessionCall, TurnCall
from warren.views import (
    SessionView,
    TurnResult,
)

R = TypeVar("R")


@attrs.define(eq=False)
class Service(Reads):
    """The sessions of one runtime; each method's promise is written down in `warren.service.SessionService`."""

    # -- turns

    @keywords_of(SessionCall)
    async def create_session(self, call: SessionCall) -> TurnResult:
        """See SessionService."""
        self._supervisor.check_open()
        shared, config = self._supervisor.shared, self._supervisor.shared.config
        own_tools, brought = by_name(call.tools or ()), by_name(call.extra_tools)
        tools = names_of(call.tools, {*shared.tool_names, *own_tools, *brought})
        asked = await check_options(part(SessionOptions, call, tools=tools))
        self._check_overrides(asked)
        check_compactor(call.compactor, asked.compaction or config.compaction)
        if (asked.compaction is not None or call.compactor is not None) and config.compaction is None:
            raise _no_compaction()
        now = utc_now()
        record = SessionRecord(
            session_id=new_session_id(),
            created_at=now,
            updated_at=now,
            model=asked.model or config.model,
            options=attrs.evolve(
                asked,
                model=None,
                provider=asked.provider or config.provider,
                **given(ModelOptions, asked.over(config)),
            ),
            labels=dict(call.labels or {}),
            title=call.title,
        )
        turn = None if call.prompt is None else StartTurn(call.prompt, on_event=call.on_event, tools=brought)
        instructions = call.system_prompt or config.system_prompt

        async def create(creation: Creation | None = None) -> SessionActor:
            shared.providers.resolve(record.model, record.options.provider)
            await self._comms.check_free(record.options.peer)
            self._supervisor.scheduler.check_session()
            if turn is not None:
                self._supervisor.scheduler.check_turn()
            said = instructions_of(instructions, record, shared, self._comms, own_tools)
            return self._supervisor.spawn(record, said, Own(own_tools, call.compactor), creation)

        if call.idempotency_key is not None:
            retries = call.structured_output_retries
            compared = given(SessionRequest, call) | {
                "tools": tools,
                "labels": call.labels or None,
                "idempotency_key": None,
                # The same request, whether its sender names the default or leaves it out.
                "structured_output_retries": RETRIES if retries is None else retries,
            }
            return await self._create_once(creation_of(call.idempotency_key, compared), create, turn)
        actor = await create()
        if turn is None:
            await actor.mailbox.ask(Loaded())
            return TurnResult(record.session_id)
        return await self._turn(actor, turn)

    async def _create_once(
        self,
        creation: Creation,
        create: Callable[[Creation], Awaitable[SessionActor]],
        turn: StartTurn | None,
    ) -> TurnResult:
        """Create a session under a key and run its first turn, each unless that was done before.

        The prompt goes through the session's inbox: there it outlives the process, and is taken once.
        """

        async def new() -> str:
            return (await (await create(creation)).mailbox.ask(Loaded())).session_id

        found = await create_once(self._supervisor.shared.storage, creation, new)
        session_id = found.session_id
        if turn is None:
            await self.read(session_id)
            return TurnResult(session_id)
        if found.outcome:
            return ended(found.outcome, session_id)
        said = Input(new_session_id(), "queue", turn.prompt, utc_now(), FIRST_PROMPT)
        return await self._comms.say(session_id, said, on_event=turn.on_event, tools=turn.tools)

    @keywords_of(TurnCall)
    async def start_turn(self, call: TurnCall) -> TurnResult:
        """See SessionService."""
        options, brought = part(TurnOptions, call), by_name(call.extra_tools)
        options = NO_OPTIONS if options == NO_OPTIONS else await check_options(options)
        self._check_overrides(options)
        if call.mode != "busy":
            said = Input(new_session_id(), call.mode, call.prompt, utc_now(), call.idempotency_key, options=options)
            return await self._comms.say(call.session_id, said, on_event=call.on_event, tools=brought)
        turn = StartTurn(call.prompt, options, call.on_event, brought)
        return await self._turn(self._supervisor.revive(call.session_id), turn)

    async def inject_context(
        self, session_id: str, text: str, *, source: str | None = None, idempotency_key: str | None = None
    ) -> bool:
        """See SessionService."""
        check_key(idempotency_key)
        words, by = check_words(text, "text"), check_name(source, "source")
        said = Input(new_session_id(), "context", words, utc_now(), idempotency_key, by, starts=False)
        return await self._comms.put(check_id(session_id), said, waits=False, tools={}) is True

    async def withdraw(self, session_id: str, input_id: str) -> None:
        """See SessionService."""
        await self._comms.withdraw(check_id(session_id), codec.from_data(str, input_id, root="$.input_id"))

    async def send_message(self, session_id: str, to: str, message: PeerMessage) -> str:
        """See SessionService."""
        check_given(message, PeerMessage, "message")
        record = await self._comms.record(check_id(session_id))
        return await self._comms.send(record, codec.from_data(str, to, root="$.to"), message)

    async def approve_tool(self, session_id: str, call_id: str, *, allow: bool, reason: str | None = None) -> None:
        """See SessionService."""
        self._supervisor.check_loop()
        said = Decision(check_flag(allow, "allow"), check_text(reason, "reason"))
        decision = Decide(codec.from_data(str, call_id, root="$.call_id"), said)
        actor = self._supervisor.find(check_id(session_id))
        if actor is None:
            raise await self._not_running(session_id)
        await actor.mailbox.ask(decision)

    async def interrupt(self, session_id: str) -> None:
        """See SessionService."""
        self._supervisor.check_loop()
        actor = self._supervisor.find(check_id(session_id))
        if actor is None:
            raise await self._not_running(session_id)
        grace = self._supervisor.shared.config.limits.interrupt_grace
        with trio.move_on_after(grace):
            return await actor.mailbox.ask(Interrupt())
        raise AgentError(
            f"the turn has not ended within {grace:g} s; it will", session_id=session_id, cause="interrupt_timeout"
        )

    async def _not_running(self, session_id: str) -> WarrenError:
        """Return the error for a session that is not live; raises that for one that is not there at all."""
        await self.read(session_id)
        return SessionNotRunningError("the session runs no turn", session_id=session_id)

    def _check_overrides(self, options: TurnOptions) -> None:
        """Refuse to enable tools that the runtime does not have."""
        there, switches = self._supervisor.shared.categories, options.overrides or INHERIT
        for category in CATEGORIES:
            if switches.of(category) == "enable" and category not in there:
                problem = f"this runtime has no {category} tools"
                raise InvalidParamsError(f"$.overrides.{category}: {problem}", path=f"$.overrides.{category}")

    async def _turn(self, actor: SessionActor, turn: Message[R]) -> R:
        try:
            reply = self._supervisor.admit(actor, turn)
        except WarrenError:
            await (
                trio.lowlevel.checkpoint()
            )  # or a caller that tries again and again would starve the turn it waits for
            raise
        return await reply.wait()

    async def compact(self, session_id: str, *, instructions: str | None = None) -> CompactionEntry:
        """See SessionService."""
        request = Compact(check_text(instructions, "instructions"))
        check_id(session_id)
        if not self.capabilities().session_compaction:
            raise _no_compaction()
        return await self._turn(self._supervisor.revive(session_id), request)

    # -- forks and labels

    async def fork(
        self,
        session_id: str,
        *,
        at: int | None = None,
        labels: Mapping[str, str] | None = None,
        title: str | None = None,
    ) -> SessionView:
        """See SessionService."""
        position = None if at is None else codec.from_data(int, at, root="$.at")
        wanted = ForkRequest(new_session_id(), utc_now(), position, check_labels(labels), check_title(title))
        return await forking.fork(self._supervisor, check_id(session_id), wanted)

    async def label(
        self, session_id: str, labels: Mapping[str, str | None] | None = None, *, title: str | None = None
    ) -> SessionView:
        """See SessionService."""
        change = Relabel(check_changes(labels), check_title(title))
        return await forking.label(self._supervisor, check_id(session_id), change)

    # -- endings

    async def archive(self, session_id: str) -> None:
        """See SessionService."""
        await self._supervisor.revive(check_id(session_id)).mailbox.ask(Retire("archive"))

    async def delete(self, session_id: str) -> None:
        """See SessionService."""
        check_id(session_id)
        storage = self._supervisor.shared.storage
        if not self._supervisor.shared.session_store:
            self._supervisor.check_open()
            raise no_store("nothing is stored that could be deleted")
        try:
            await self._supervisor.revive(session_id).mailbox.ask(Retire("delete"))
        except (SessionNotFoundError, StoreError):
            if self._supervisor.find(session_id) is not None:
                raise  # its actor lives, and must not be robbed of its rows
            # Deleted before, which is fine, or damaged so that no actor can load it.
            await erase(session_id, storage, self._supervisor.shared.memory)

    async def drain(self) -> None:
        """See SessionService."""
        self._supervisor.check_loop()
        await self._supervisor.drain()

    async def stop(self) -> None:
        """See SessionService."""
        self._supervisor.check_loop()
        await self._supervisor.stop()


def _no_compaction() -> CompactionDisabledError:
    return CompactionDisabledError("session compaction is disabled: the runtime was started without it")
