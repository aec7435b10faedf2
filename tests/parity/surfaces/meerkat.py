"""Meerkat's protocol on lines: `warren rpc --contract 0.6`. Its own client drives it elsewhere."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar, Final

import attrs

from tests.parity.outcome import Outcome, envelope_of, failed, fields_of, joined, meaning
from tests.parity.surface import CREATE, OPTIONS, REGISTER, TURN, Client, Surface, UnsayableError
from tests.parity.surfaces.jsonrpc import ClientWithTools
from tests.parity.surfaces.wire import Message, over_lines
from tests.parity.world import World
from tests.support.envelopes import NOW
from warren.base.errors import ErrorCode
from warren.conversation.events import Event
from warren.conversation.views import Billing, SessionState
from warren.transport.rpc.contracts import dialect_of
from warren.transport.rpc.stdio_server import StdioConfig, serve_stdio

SAME: Final = frozenset({CREATE, TURN, REGISTER, "session/archive"})
"""Methods that are answered in our shapes."""
METHODS: Final = SAME | {"session/inject_context", "turn/interrupt", "session/list", "session/read", "session/history"}
OURS: Final = {
    "compaction",
    "fallback",
    "hosted_tools",
    "tools",
    "overrides",
    "approvals",
    "peer",
    "mode",
    "idempotency_key",
    "not_before",
}
"""Options that it has no words for."""
READ: Final = {"session_id", "message_count", "is_active", "last_assistant_text", "labels", "model"}
UNTOLD: Final = ("extraction_", "files_complete", "input_taken", "tool_approval_")
"""How the kinds of events begin that its clients are not told of."""
MORE: Final[Mapping[str, set[str]]] = {
    "run_started": {"input"},
    "run_failed": {"error_class", "error_report", "terminal_cause_kind"},
    "tool_execution_completed": {"content"},
}
"""Fields of events that are not ours."""


class Meerkat(Surface):
    """`warren rpc --contract 0.6`."""

    name: ClassVar[str] = "meerkat"
    column: ClassVar[str | None] = "jsonrpc"
    can: ClassVar[frozenset[str]] = METHODS | {OPTIONS}
    lists_archived: ClassVar[bool] = False
    lists_by_turn: ClassVar[bool] = False
    swallows: ClassVar[frozenset[ErrorCode]] = frozenset({ErrorCode.SESSION_NOT_RUNNING})
    unseen: ClassVar[Mapping[str, frozenset[str]]] = {
        "session/list": frozenset({"sessions", "damaged"}),
        "session/read": fields_of(SessionState, Billing) - READ,
        "session/history": frozenset({"messages", "compactions", "kept_from", "damaged"}),
    }

    @asynccontextmanager
    async def connect(self, world: World, *, slow: bool = False) -> AsyncIterator[Client]:
        """Serve two streams in memory and say hello."""
        serve = partial(serve_stdio, world.service, StdioConfig(), dialect=dialect_of("0.6"))
        async with over_lines(serve, slow=slow) as wire:
            hello = await wire.request("initialize", {})
            assert set(hello.message["result"]["methods"]) >= METHODS
            yield _Program(world, wire)

    def kinds(self, kinds: Sequence[str]) -> list[str]:
        """Leave out what the protocol has another shape for."""
        return [kind for kind in kinds if not kind.startswith(UNTOLD)]

    def shown(self, events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Leave out the text of a refused call."""
        left_out = {"tool_result_received": "result"}
        return [{name: event[name] for name in event if name != left_out.get(event["type"])} for event in events]

    def path(self, path: str | None) -> str | None:
        """Return a field's name as the protocol writes it."""
        named = (path or "").replace("$.budget", "$.budget_limits").replace("max_seconds", "max_duration")
        return named or None


@attrs.define(eq=False)
class _Program(ClientWithTools):
    async def call(self, operation: str, /, **params: Any) -> Outcome:
        if operation not in METHODS:
            raise UnsayableError(f"there is no method for {operation}")
        reply = await self.wire.request(operation, _renamed(operation, params))
        if "error" in reply.message:
            body = reply.message["error"]["data"]
            session_id = body.get("session_id", params.get("session_id"))
            outcome = failed(body, reply.message["error"]["code"])
        else:
            outcome = Outcome(data=_data(operation, reply.message["result"]))
            session_id = outcome.data.get("session_id", params.get("session_id"))
        return attrs.evolve(outcome, events=joined(_events(reply.before, session_id)))

    async def replay(self, session_id: str, after_seq: int, last: int) -> Outcome:
        raise UnsayableError(f"{session_id} cannot be followed from {after_seq} to {last}")


def _renamed(operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters under the protocol's names. Raises UnsayableError for what it has no name for."""
    named = dict(params)
    if operation in (CREATE, TURN) and OURS & named.keys():
        raise UnsayableError(f"{', '.join(OURS)} are not the client's to choose")
    if operation == CREATE and named.get("prompt", "") is None:
        named |= {"prompt": "", "initial_turn": "deferred"}
    if "budget" in named:
        if operation == TURN:
            raise UnsayableError("a turn has no budget of its own")
        budget = named.pop("budget")
        more = {"max_seconds": "max_duration"}
        named["budget_limits"] = (
            {more.get(name, name): value for name, value in budget.items()} if isinstance(budget, dict) else budget
        )
    return named


def _data(operation: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
    match operation:
        case "session/inject_context":
            return {"injected": result["status"] in {"staged", "duplicate"}}
        case "turn/interrupt":
            return {"interrupted": result["interrupted"]}
        case "session/list":
            assert all(isinstance(row["created_at"], int) for row in result["sessions"])
            return {"ids": [row["session_id"] for row in result["sessions"]]}
        case "session/read":
            assert isinstance(result["updated_at"], int)
            return {name: result[name] for name in READ}
        case "session/history":
            place = {"session_id": result["session_id"], "offset": result["offset"], "total": result["message_count"]}
            return place | {"said": _said(result["messages"])}
    return meaning(operation, result)


def _said(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return who said what."""
    found: list[tuple[str, str]] = []
    for message in messages:
        if message["role"] == "user":
            found.append(("user", message["content"]))
        blocks = [block["data"]["text"] for block in message.get("blocks", ()) if block["block_type"] == "text"]
        if text := "".join(blocks):
            found.append(("assistant", text))
    return found


def _events(messages: Iterable[Message], session_id: object) -> list[Event]:
    """Return the events of one session; they have no numbers."""
    told = [message["params"] for message in messages]
    assert all(message["method"] == "session/event" for message in messages), messages
    return [_event(params["event"]) for params in told if params["session_id"] == session_id]


def _event(data: Mapping[str, Any]) -> Event:
    """Return an event in our words."""
    own = {name: value for name, value in data.items() if name not in MORE.get(data["type"], ())}
    if own["type"] == "budget_warning":
        own["percent"] *= 100
    if own["type"] == "compaction_failed":
        own["reason"] = own["reason"]["kind"]
    return envelope_of({"session_id": "", "seq": 0, "timestamp": NOW.isoformat(), "event": own}).event
