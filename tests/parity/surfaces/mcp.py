"""MCP: tools, and the events of a turn as the progress of the call."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar, Final

import attrs

from tests.parity.outcome import Outcome, envelope_of, failed, meaning, went_well
from tests.parity.surface import (
    COMPACTION_OPTIONS,
    CREATE,
    MODES,
    OPTIONS,
    PEERS,
    SAMPLING,
    SWITCHES,
    TURN,
    Client,
    Surface,
    UnsayableError,
)
from tests.parity.surfaces.wire import Message, Wire, over_lines
from tests.parity.world import World
from warren.conversation import codec
from warren.conversation.events import Envelope
from warren.transport.mcp.stdio import serve_mcp
from warren.transport.mcp.tools import TOOLS

NAMES: Final[Mapping[str, str]] = {
    CREATE: "warren_run",
    TURN: "warren_resume",
    "turn/wait": "warren_wait",
    "turn/interrupt": "warren_interrupt",
    "session/list": "warren_sessions",
    "session/read": "warren_read",
    "session/history": "warren_history",
    "session/fork": "warren_fork",
    "session/delegate": "warren_delegate",
    "session/label": "warren_label",
    "session/archive": "warren_archive",
    "tool/approve": "warren_approve",
    "tool/complete": "warren_complete",
    "approvals/list": "warren_approvals",
    "agents/list": "warren_agents",
    "agents/get": "warren_agent",
    "schedule/create": "warren_schedule",
    "schedule/list": "warren_schedules",
    "schedule/change": "warren_schedule_change",
    "schedule/delete": "warren_schedule_delete",
    "trigger/create": "warren_trigger",
    "trigger/list": "warren_triggers",
    "trigger/change": "warren_trigger_change",
    "trigger/delete": "warren_trigger_delete",
    "webhook/create": "warren_webhook",
    "webhook/list": "warren_webhooks",
    "webhook/change": "warren_webhook_change",
    "webhook/delete": "warren_webhook_delete",
    "delivery/list": "warren_deliveries",
    "delivery/resend": "warren_resend",
    "session/inject_context": "warren_inject_context",
    "session/inputs": "warren_inputs",
    "peer/send": "warren_send",
    "memory/search": "warren_memory_search",
    "memory/forget": "warren_memory_forget",
}
HELLO: Final = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "parity", "version": "1"}}


class Mcp(Surface):
    """`warren mcp`; the official client drives it elsewhere, here every line is seen."""

    name: ClassVar[str] = "mcp"
    column: ClassVar[str | None] = None
    can: ClassVar[frozenset[str]] = frozenset({*NAMES, OPTIONS, SAMPLING, COMPACTION_OPTIONS, SWITCHES, MODES, PEERS})

    @asynccontextmanager
    async def connect(self, world: World, *, slow: bool = False) -> AsyncIterator[Client]:
        """Serve two streams in memory and shake hands."""
        assert NAMES.keys() == {tool.method.name for tool in TOOLS.values()}
        async with over_lines(partial(serve_mcp, world.service), slow=slow) as wire:
            await wire.request("initialize", HELLO)
            await wire.notify("notifications/initialized", {})
            yield _Program(world, wire)


@attrs.define(eq=False)
class _Program(Client):
    behind: World
    wire: Wire
    _calls: int = 0

    @property
    def world(self) -> World:
        return self.behind

    async def call(self, operation: str, /, **params: Any) -> Outcome:
        if operation not in NAMES:
            raise UnsayableError(f"there is no tool for {operation}")
        self._calls += 1
        token = self._calls
        asked = {"name": NAMES[operation], "arguments": params, "_meta": {"progressToken": token}}
        reply = await self.wire.request("tools/call", asked)
        result = reply.message["result"]
        data, events = result["structuredContent"], _events(reply.before, token)
        assert codec.parse(result["content"][0]["text"]) == data
        if result.get("isError"):
            return failed(data, None, events)
        return went_well(meaning(operation, data), events)

    async def replay(self, session_id: str, after_seq: int, last: int) -> Outcome:
        raise UnsayableError(f"{session_id} cannot be followed from {after_seq} to {last}")


def _events(messages: Iterable[Message], call: int) -> list[Envelope]:
    """Return the events that came as the progress of one call."""
    told = [message["params"] for message in messages if message["method"] == "notifications/progress"]
    own = [params for params in told if params["progressToken"] == call]
    assert [params["progress"] for params in own] == list(range(1, len(own) + 1))
    return [envelope_of(params["_meta"]["warren/event"]) for params in own]
