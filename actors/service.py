"""The service: what hosts and surfaces call. It checks the input, finds the actor, and asks."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import trio

from warren import codec
from warren.actors import forking
from warren.actors.checks import (
    check_callback,
    check_changes,
    check_compactor,
    check_count,
    check_flag,
    check_given,
    check_id,
    check_key,
    check_labels,
    check_mode,
    check_name,
    check_own_tools,
    check_prompt,
    check_retries,
    check_text,
    check_title,
    check_tools,
    check_value,
    check_words,
)
from warren.actors.erasing import erase
from warren.actors.eventlog import utc_now
from warren.actors.protocol import Compact, Decide, Interrupt, Loaded, Relabel, Retire, StartTurn
from warren.actors.reading import Reads, no_store
from warren.actors.schemas import check_schema
from warren.actors.session.comms import ended
from warren.actors.session.planning import instructions_of
from warren.actors.session.session import SessionActor
from warren.actors.shared import Own
from warren.actors.supervisor.creating import create_once
from warren.budget import UNLIMITED, Budget
from warren.categories import CATEGORIES, Decision, Gates, Switches
from warren.compaction.config import CompactionConfig
from warren.compaction.policy import Compactor, NewCompactor
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
from warren.inputs import Input, TurnMode, TurnOptions
from warren.mailbox import Message
from warren.peers import Peer, PeerMessage
from warren.records import CompactionEntry, SessionRecord
from warren.service import OnEvent
from warren.structured.output import RETRIES
from warren.tools import Tool
from warren.views import (
    SessionView,
    TurnResult,
)

R = TypeVar("R")


@attrs.define(eq=False)
class Service(Reads):
    """The sessions of one runtime; each method's promise is written down in `warren.service.SessionService`."""

    # -- turns

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
        structured_output_retries: int = RETRIES,
        peer: Peer | None = None,
        idempotency_key: str | None = None,
        extra_tools: Sequence[Tool] = (),
        on_event: OnEvent | None = None,
    ) -> TurnResult:
        """See SessionService."""
        self._supervisor.check_open()
        shared, config = self._supervisor.shared, self._supervisor.shared.config
        own_tools = check_own_tools(tools, "tools", names=True)
        brought = check_own_tools(extra_tools, "extra_tools")
        check_callback(on_event, "on_event")
        now = utc_now()
        record = SessionRecord(
            session_id=new_session_id(),
            created_at=now,
            updated_at=now,
            model=check_name(model, "model") or config.model,
            provider=check_name(provider, "provider") or config.provider,
            max_tokens=check_count(max_tokens, "max_tokens") or config.max_tokens,
            tools=check_tools(tools, {*shared.tool_names, *own_tools, *brought}),
            overrides=self._check_overrides(overrides),
            approvals=check_value(approvals, Gates, "approvals"),
            output_schema=await check_schema(output_schema),
            structured_output_retries=check_retries(structured_output_retries),
            peer=check_value(peer, Peer, "peer"),
            labels=check_labels(labels),
            title=check_title(title),
            budget=check_value(budget, Budget, "budget") or UNLIMITED,
            compaction=check_value(compaction, CompactionConfig, "compaction"),
        )
        if (compaction is not None or compactor is not None) and config.compaction is None:
            raise _no_compaction()
        check_compactor(compactor, record.compaction or config.compaction)
        turn = None if prompt is None else StartTurn(check_prompt(prompt), on_event=on_event, tools=brought)
        instructions = check_text(system_prompt, "system_prompt") or config.system_prompt

        async def create(creation: Creation | None = None) -> SessionActor:
            shared.providers.resolve(record.model, record.provider)
            await self._comms.check_free(record.peer)
            self._supervisor.room.check_memory(self._supervisor.live)
            if turn is not None:
                self._supervisor.room.check()
            said = instructions_of(instructions, record, shared, self._comms, own_tools)
            return self._supervisor.spawn(record, said, Own(own_tools, compactor), creation)

        key = check_key(idempotency_key)
        if key is not None:
            given = {
                "prompt": prompt,
                "model": model,
                "provider": provider,
                "system_prompt": system_prompt,
                "max_tokens": max_tokens,
                "labels": labels or None,
                "title": title,
                "budget": budget,
                "compaction": compaction,
                "tools": record.tools,
                "overrides": overrides,
                "approvals": approvals,
                "output_schema": output_schema,
                "structured_output_retries": structured_output_retries,
                "peer": peer,
            }
            return await self._create_once(creation_of(key, given), create, turn)
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

        found = await create_once(self._supervisor.shared.storage, self._supervisor.creations, creation, new)
        session_id = found.session_id
        if turn is None:
            await self.read(session_id)
            return TurnResult(session_id)
        if found.outcome:
            return ended(found.outcome, session_id)
        said = Input(new_session_id(), "queue", turn.prompt, utc_now(), FIRST_PROMPT)
        return await self._comms.say(session_id, said, on_event=turn.on_event, tools=turn.tools)

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
        """See SessionService."""
        options = TurnOptions(
            check_name(model, "model"),
            check_name(provider, "provider"),
            check_count(max_tokens, "max_tokens"),
            check_value(budget, Budget, "budget"),
            self._check_overrides(overrides),
            check_value(approvals, Gates, "approvals"),
            await check_schema(output_schema),
            None if structured_output_retries is None else check_retries(structured_output_retries),
        )
        listener, brought = check_callback(on_event, "on_event"), check_own_tools(extra_tools, "extra_tools")
        check_mode(mode, idempotency_key)
        if mode != "busy":
            said = Input(new_session_id(), mode, check_prompt(prompt), utc_now(), idempotency_key, options=options)
            return await self._comms.say(check_id(session_id), said, on_event=listener, tools=brought)
        turn = StartTurn(check_prompt(prompt), options, listener, brought)
        return await self._turn(self._supervisor.revive(check_id(session_id)), turn)

    async def inject_context(
        self, session_id: str, text: str, *, source: str | None = None, idempotency_key: str | None = None
    ) -> bool:
        """See SessionService."""
        check_mode("queue", idempotency_key)
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

    def _check_overrides(self, overrides: Switches | None) -> Switches | None:
        """Refuse to enable tools that the runtime does not have."""
        if check_value(overrides, Switches, "overrides") is None or overrides is None:
            return None
        there = self._supervisor.shared.categories
        for category in CATEGORIES:
            if overrides.of(category) == "enable" and category not in there:
                problem = f"this runtime has no {category} tools"
                raise InvalidParamsError(f"$.overrides.{category}: {problem}", path=f"$.overrides.{category}")
        return overrides

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
        if storage is None:
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
        await self._supervisor.room.drained()

    async def stop(self) -> None:
        """See SessionService."""
        self._supervisor.check_loop()
        await self._supervisor.stop()


def _no_compaction() -> CompactionDisabledError:
    return CompactionDisabledError("session compaction is disabled: the runtime was started without it")
