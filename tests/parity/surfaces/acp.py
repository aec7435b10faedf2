"""ACP: prompts, updates of the conversation, and stop reasons."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar, Final

import attrs
import trio

from tests.parity.outcome import Outcome, failed, fields_of
from tests.parity.surface import CREATE, TURN, Client, Surface, UnsayableError
from tests.parity.surfaces.conversation import ENDED, FIELDS, SHOWN, data_of, events_of
from tests.parity.surfaces.wire import Reply, Wire, over_lines
from tests.parity.world import World
from warren.base.errors import ErrorCode
from warren.conversation.views import Billing, SessionState
from warren.transport.acp import AgentSettings, serve_acp

FOLDER: Final = "/work"
HELLO: Final = {"protocolVersion": 1, "clientCapabilities": {"_meta": {"warren": {"unstable": True}}}}
"""Asks for the members that are no part of the protocol yet: the token counts of a turn."""
METHODS: Final[Mapping[str, str]] = {
    CREATE: "session/new",
    TURN: "session/prompt",
    "session/list": "session/list",
    "session/history": "session/load",
    "session/resume": "session/resume",
    "session/fork": "session/fork",
    "session/delete": "session/delete",
}
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "session/compact": ("/compact", "instructions"),
    "memory/search": ("/memory", "query"),
}
CANCEL: Final = "turn/interrupt"
STOPS: Final = {
    "cancelled": Outcome(ErrorCode.AGENT_ERROR, cause="cancelled"),
    "max_turn_requests": Outcome(ErrorCode.BUDGET_EXHAUSTED, cause="steps"),
    "max_tokens": Outcome(ErrorCode.BUDGET_EXHAUSTED, cause="tokens"),
}
"""The ends of a prompt that are errors elsewhere."""


class Acp(Surface):
    """`warren acp`."""

    name: ClassVar[str] = "acp"
    column: ClassVar[str | None] = "acp"
    can: ClassVar[frozenset[str]] = frozenset({*METHODS, *COMMANDS, CANCEL})
    lists_by_turn: ClassVar[bool] = False
    swallows: ClassVar[frozenset[ErrorCode]] = frozenset({ErrorCode.SESSION_NOT_RUNNING})
    unseen: ClassVar[Mapping[str, frozenset[str]]] = {
        TURN: frozenset({"steps", "tool_calls", "first_seq", "last_seq", "attachments"}),
        "session/list": frozenset({"sessions"}),
        "session/compact": frozenset({"messages_before", "messages_after", "summary_tokens"}),
        "memory/search": frozenset({"found"}),
        "session/fork": fields_of(SessionState, Billing) - {"session_id"},
    }

    @asynccontextmanager
    async def connect(self, world: World, *, slow: bool = False) -> AsyncIterator[Client]:
        """Run an agent on two streams in memory."""
        async with over_lines(partial(_serve, world), slow=slow) as wire:
            await wire.request("initialize", HELLO)
            yield _Editor(world, wire)

    def kinds(self, kinds: Sequence[str]) -> list[str]:
        """Compaction, retries and turns are no part of a conversation; a tool that ran has ended once."""
        ran = ENDED[0] in kinds
        return [kind for kind in kinds if kind in SHOWN or kind == ENDED[not ran]]

    def shown(self, events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return what an update has of an event."""
        ran = {event["id"] for event in events if event["type"] == ENDED[0]}
        found = [event for event in events if event["type"] in {*SHOWN, *ENDED}]
        kept = [event for event in found if event["type"] != ENDED[1] or event["id"] not in ran]
        return [{name: value for name, value in event.items() if name in FIELDS[event["type"]]} for event in kept]

    def path(self, path: str | None) -> str | None:
        """Return a field's name as the protocol writes it."""
        return {"$.session_id": "$.sessionId", "$.query": "$.prompt"}.get(path or "", path)


async def _serve(world: World, streams: tuple[trio.abc.ReceiveStream, trio.abc.SendStream]) -> None:
    settings = AgentSettings(FOLDER, world.setting.config(world.build).compaction)
    await serve_acp(world.service, settings, streams)


@attrs.define(eq=False)
class _Editor(Client):
    behind: World
    wire: Wire

    @property
    def world(self) -> World:
        return self.behind

    async def first_turn(self, prompt: str, **options: Any) -> Outcome:
        made = await self.call(CREATE, prompt=None, **options)
        if made.code is not None:
            return made
        turn = await self.call(TURN, session_id=made.data["session_id"], prompt=prompt)
        return attrs.evolve(turn, data={**made.data, **turn.data})

    async def call(self, operation: str, /, **params: Any) -> Outcome:
        session_id = params.get("session_id")
        if operation == CANCEL:
            await self.wire.notify("session/cancel", {"sessionId": session_id})
            await self.wire.request("initialize", HELLO)  # it has been read by now
            return Outcome()
        if operation in COMMANDS:
            command, name = COMMANDS[operation]
            words = params.pop(name, "")
            if not isinstance(words, str):
                raise UnsayableError("a command's words are text")
            prompt = f"{command} {words}".strip()
            return _outcome(operation, await self._prompt({**params, "prompt": prompt}), session_id)
        if operation == TURN:
            return _outcome(TURN, await self._prompt(params), session_id)
        if operation not in METHODS or (operation == CREATE and "prompt" not in params):
            raise UnsayableError(f"there is no method for {operation}")
        reply = await self.wire.request(METHODS[operation], _renamed(operation, params))
        return _outcome(operation, reply, session_id)

    async def _prompt(self, params: dict[str, Any]) -> Reply:
        said = params.pop("prompt", None)
        blocks = [{"type": "text", "text": said}] if isinstance(said, str) else said
        return await self.wire.request(METHODS[TURN], _renamed(TURN, params) | {"prompt": blocks})

    async def replay(self, session_id: str, after_seq: int, last: int) -> Outcome:
        raise UnsayableError(f"{session_id} cannot be followed from {after_seq} to {last}")


def _renamed(operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters under the protocol's names. Raises UnsayableError for what it has no name for."""
    given = {name: value for name, value in params.items() if value is not None}
    opening = operation in (CREATE, "session/history", "session/resume", "session/fork")
    named: dict[str, Any] = {"cwd": FOLDER, "mcpServers": []} if opening else {}
    if "session_id" in given:
        named["sessionId"] = given.pop("session_id")
    if given:
        raise UnsayableError(f"there are no words for {', '.join(given)}")
    return named


def _outcome(operation: str, reply: Reply, session_id: object) -> Outcome:
    own = [message["params"] for message in reply.before if message["params"]["sessionId"] == session_id]
    updates = [params["update"] for params in own]
    events = events_of(updates)
    if "error" in reply.message:
        error = reply.message["error"]
        return attrs.evolve(failed(error["data"], error["code"]), events=events)
    result = reply.message["result"]
    if result.get("stopReason") in STOPS:
        return attrs.evolve(STOPS[result["stopReason"]], events=events)
    return Outcome(data=data_of(operation, result, updates), events=events)
