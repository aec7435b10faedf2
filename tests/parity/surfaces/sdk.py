"""The service itself, as programs that embed it call it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, ClassVar, Final

import attrs
import trio

from tests.parity.outcome import Outcome, fields, raised, told, went_well
from tests.parity.surface import (
    COMPACTION_OPTIONS,
    CREATE,
    MODES,
    OPTIONS,
    PEERS,
    REPLAY,
    SAMPLING,
    STREAMS,
    SWITCHES,
    TURN,
    Client,
    Surface,
    UnsayableError,
    up_to,
)
from tests.parity.world import World
from tests.support.runtime import Recorder
from warren.base.errors import InvalidParamsError, WarrenError
from warren.calls.answers import (
    Archived,
    Completed,
    Decided,
    Delegated,
    Deleted,
    Forgotten,
    Injected,
    Inputs,
    Interrupted,
    MemoryHits,
    PeerMessageSent,
    Peers,
    Resent,
    Withdrawn,
)
from warren.calls.facade import SessionService
from warren.compaction import CompactionConfig
from warren.conversation import codec
from warren.conversation.budget import Budget
from warren.conversation.categories import Gates, Switches
from warren.conversation.events import Envelope
from warren.conversation.options import SessionTemplate
from warren.conversation.peers import Peer
from warren.transport.rpc.params import NoParams

METHODS: Final[Mapping[str, Callable[[SessionService], Callable[..., Awaitable[Any]]]]] = {
    CREATE: lambda service: service.create_session,
    TURN: lambda service: service.start_turn,
    "turn/wait": lambda service: service.wait_turn,
    "turn/interrupt": lambda service: service.interrupt,
    "session/read": lambda service: service.read,
    "session/list": lambda service: service.list,
    "session/history": lambda service: service.history,
    "session/archive": lambda service: service.archive,
    "session/delete": lambda service: service.delete,
    "session/compact": lambda service: service.compact,
    "session/fork": lambda service: service.fork,
    "session/delegate": lambda service: service.delegate,
    "session/label": lambda service: service.label,
    "session/resume": lambda service: service.resume,
    "session/inject_context": lambda service: service.inject_context,
    "session/context": lambda service: service.context,
    "session/inputs": lambda service: service.inputs,
    "session/withdraw": lambda service: service.withdraw,
    "tool/approve": lambda service: service.approve_tool,
    "tool/complete": lambda service: service.complete_tool,
    "approvals/list": lambda service: service.approvals,
    "agents/list": lambda service: service.agents,
    "agents/get": lambda service: service.agent,
    "schedule/create": lambda service: service.create_schedule,
    "schedule/change": lambda service: service.change_schedule,
    "schedule/delete": lambda service: service.delete_schedule,
    "schedule/list": lambda service: service.schedules,
    "trigger/create": lambda service: service.create_trigger,
    "trigger/change": lambda service: service.change_trigger,
    "trigger/delete": lambda service: service.delete_trigger,
    "trigger/list": lambda service: service.triggers,
    "webhook/create": lambda service: service.create_webhook,
    "webhook/change": lambda service: service.change_webhook,
    "webhook/delete": lambda service: service.delete_webhook,
    "webhook/list": lambda service: service.webhooks,
    "delivery/list": lambda service: service.deliveries,
    "delivery/resend": lambda service: service.resend,
    "peer/send": lambda service: service.send_message,
    "peer/list": lambda service: service.peers,
    "memory/search": lambda service: service.search_memory,
    "memory/forget": lambda service: service.forget_memory,
    "usage/get": lambda service: service.usage,
    "tenants/list": lambda service: service.tenants,
    "audit/list": lambda service: service.audit,
}
NOTHING: Final[Mapping[str, Any]] = {
    "turn/interrupt": Interrupted(interrupted=True),
    "session/archive": Archived(archived=True),
    "session/delete": Deleted(deleted=True),
    "session/withdraw": Withdrawn(withdrawn=True),
    "tool/approve": Decided(decided=True),
    "tool/complete": Completed(completed=True),
    "schedule/delete": Deleted(deleted=True),
    "trigger/delete": Deleted(deleted=True),
    "webhook/delete": Deleted(deleted=True),
}
"""The result of a call that returns none."""
WRAPPED: Final[Mapping[str, Callable[[Any], Any]]] = {
    "memory/search": MemoryHits,
    "memory/forget": Forgotten,
    "session/inputs": Inputs,
    "peer/list": Peers,
    "peer/send": PeerMessageSent,
    "session/delegate": Delegated,
    "delivery/resend": Resent,
    "session/inject_context": lambda _new: Injected(injected=True),
}
"""The field that has a bare result elsewhere."""
SETTINGS: Final[Mapping[str, type]] = {
    "budget": Budget,
    "compaction": CompactionConfig,
    "overrides": Switches,
    "approvals": Gates,
    "peer": Peer,
    "new_session": SessionTemplate,
}


class Sdk(Surface):
    """SessionService."""

    name: ClassVar[str] = "sdk"
    column: ClassVar[str | None] = None
    can: ClassVar[frozenset[str]] = frozenset(
        {*METHODS, REPLAY, OPTIONS, SAMPLING, COMPACTION_OPTIONS, SWITCHES, MODES, PEERS, STREAMS}
    )

    @asynccontextmanager
    async def connect(self, world: World, *, slow: bool = False) -> AsyncIterator[Client]:
        """There is nothing between the two; `slow` makes no difference to a callback."""
        del slow
        yield Program(world, world.service)


@attrs.define(eq=False)
class Program(Client):
    """A program that calls a `SessionService`."""

    behind: World
    service: SessionService

    @property
    def world(self) -> World:
        return self.behind

    async def call(self, operation: str, /, **params: Any) -> Outcome:
        if operation == REPLAY:
            return await self._subscribe(**params)
        recorder, arguments = Recorder(), _arguments(params)
        if operation in (CREATE, TURN):
            arguments["on_event"] = recorder
        try:
            result = await _bound(METHODS[operation](self.service), arguments)
        except WarrenError as exc:
            return raised(exc, recorder.envelopes)
        result = WRAPPED[operation](result) if operation in WRAPPED else result
        return went_well(fields(NOTHING.get(operation, NoParams()) if result is None else result), recorder.envelopes)

    async def streamed(self, operation: str, /, **params: Any) -> Outcome:
        heard = list[Envelope]()
        method = self.service.stream_session if operation == CREATE else self.service.stream_turn
        try:
            async with method(**_arguments(params)) as events:
                heard += [envelope async for envelope in events]
                return went_well(fields(await events.result()), heard)
        except WarrenError as exc:
            return raised(exc, heard)

    async def replay(self, session_id: str, after_seq: int, last: int) -> Outcome:
        async with self.service.subscribe(session_id, after_seq=after_seq) as envelopes:
            return told(Outcome(), await up_to(envelopes, last))

    async def to_the_end(self, session_id: str, after_seq: int, following: trio.Event) -> Outcome:
        async with self.service.subscribe(session_id, after_seq=after_seq) as envelopes:
            following.set()
            return told(Outcome(), [envelope async for envelope in envelopes])

    async def _subscribe(self, session_id: str, after_seq: int | None = None) -> Outcome:
        try:
            async with self.service.subscribe(session_id, after_seq=after_seq):
                return Outcome()
        except WarrenError as exc:
            return raised(exc)


def _arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with the objects that a program would have made; bad ones cannot be made at all."""
    made = dict(params)
    for name, kind in SETTINGS.items():
        if isinstance(made.get(name), dict):
            try:
                made[name] = codec.from_data(kind, made[name])
            except InvalidParamsError as exc:
                raise UnsayableError(str(exc)) from exc
    if isinstance(made.get("not_before"), str):
        with suppress(ValueError):  # the service refuses the text
            made["not_before"] = datetime.fromisoformat(made["not_before"])
    return made


async def _bound(method: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> Any:
    """Call a method; what Python itself refuses is no business of ours."""
    try:
        call = method(**arguments)
    except TypeError as exc:
        raise UnsayableError(str(exc)) from exc
    return await call
