"""The hooks of the settings as hooks of the runtime: each asks its commands and addresses, and does what they want."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from warren.actors.events.eventlog import utc_now
from warren.actors.hooks.claude import Verdict, named, ours, response, theirs
from warren.actors.hooks.handlers import About, Handlers
from warren.agents.hooks import (
    Asked,
    Denied,
    Go,
    Hooked,
    HookedCall,
    HookedCompaction,
    HookedRequest,
    HookedTurn,
    Hooks,
    ToolOutcome,
    TurnEnd,
)
from warren.base.ids import new_session_id
from warren.base.principals import Principal
from warren.base.values import define
from warren.conversation.inputs import Input
from warren.models.model import ModelReply
from warren.settings.hook_config import HookEvent

if TYPE_CHECKING:
    from warren.actors.runtime import Runtime
    from warren.actors.tools.session_tools import RuntimeServers
    from warren.calls.facade import RuntimeService

MOST_BLOCKS: Final = 8
"""Times in a row that hooks may keep a turn from its end."""
REMEMBERED: Final = 10_000
"""Sessions of which it is known at once that their turns are to end, or were kept from it."""
SOURCE: Final = "hook"
"""The sender of texts that hooks have for the model."""


@define(eq=False)
class Watched:
    """What the hooks of one runtime share.

    Attributes:
        handlers: asks the commands and addresses.
        servers: knows which MCP server a tool is of; None if there are none.
        stops: why turns are to end before their next model call, by session.
        blocks: how often the end of a turn was blocked in a row, and with which text at last, by session.
    """

    handlers: Handlers
    servers: "RuntimeServers | None" = None
    stops: dict[str, str] = attrs.field(factory=dict)
    blocks: dict[str, tuple[int, str]] = attrs.field(factory=dict)
    _runtime: "Runtime | None" = None
    _opened: trio.Event = attrs.field(factory=trio.Event)

    def opened(self, runtime: "Runtime") -> None:
        """Take note of the runtime, whose turns have waited for it where they need it."""
        self._runtime = runtime
        self._opened.set()

    async def service_for(self, tenant: str) -> "RuntimeService":
        """Return the sessions of a tenant, once the runtime is open."""
        await self._opened.wait()
        assert self._runtime is not None  # noqa: S101 - `opened` has set it
        return self._runtime.service.as_(Principal(tenant, SOURCE))

    async def ask(self, event: HookEvent, of: Hooked, names: Sequence[str] = ("",), **data: Any) -> Verdict:
        """Tell the hooks of an event, and return what they want."""
        return await self.handlers.ask(event, About(of.session_id, of.tenant, data, names))

    async def tell_model(self, of: Hooked, texts: Sequence[str]) -> None:
        """Have the model of a session read texts of hooks at the next step of its turn."""
        if texts:
            service = await self.service_for(of.tenant)
            await service.inject_context(of.session_id, "\n\n".join(texts), source=SOURCE)

    async def steer(self, session_id: str, text: str) -> None:
        """Have the running turn of a session take another step, before which the model reads a text."""
        await self._opened.wait()
        assert self._runtime is not None  # noqa: S101 - as above
        steer = Input(new_session_id(), "steer", text, utc_now(), source=SOURCE)
        await self._runtime.supervisor.inboxes.put(session_id, steer)

    def names_of(self, call: HookedCall) -> tuple[str, ...]:
        """Return the names of a call's tool for matchers; the first is the one that hooks are told."""
        if call.category == "mcp" and self.servers is not None:
            found = self.servers.origin_of(call.session_id, call.name)
            if found is not None:
                return (f"mcp__{found[0]}__{found[1]}", call.name)
        return named(call.name, call.category)


def remember(kept: dict[str, Any], session_id: str, value: Any) -> None:
    """Remember something of a session, and forget the oldest if there is too much."""
    kept.pop(session_id, None)
    if len(kept) >= REMEMBERED:
        del kept[next(iter(kept))]
    kept[session_id] = value


class SettingsHooks(Hooks):
    """The base of the hooks of the settings: their commands have limits of their own."""

    timeout: float = float("inf")

    def __init__(self, watched: Watched) -> None:
        self.watched: Watched = watched


class ToolHooks(SettingsHooks):
    """PreToolUse, PostToolUse and PostToolUseFailure."""

    async def on_tool(self, call: HookedCall, go: Go[HookedCall, ToolOutcome]) -> ToolOutcome | Denied | Asked:
        """Ask before a call and after it."""
        watched = self.watched
        root = str(watched.handlers.root or "")
        names = watched.names_of(call)
        about = {"tool_name": names[0], "tool_use_id": call.call_id}
        args = theirs(call.name, call.category, call.args, root)
        before = await watched.ask("PreToolUse", call, names, **about, tool_input=args)
        if before.stop is not None:
            remember(watched.stops, call.session_id, before.stop)
            return call.deny(before.stop)
        if before.decision == "deny":
            return call.deny(before.reason)
        if before.decision == "ask" and call.given is None:
            return call.ask(before.reason)
        if before.decision == "allow":
            call.allow()
        if before.args is not None:
            args = dict(before.args)
            call = call.with_args(ours(call.name, call.category, args, root))
        outcome = await go(call)
        if not outcome.ran:
            return outcome
        return await self._after(call, names, {**about, "tool_input": args}, outcome, before.context)

    async def _after(
        self,
        call: HookedCall,
        names: Sequence[str],
        about: dict[str, Any],
        outcome: ToolOutcome,
        context: tuple[str, ...],
    ) -> ToolOutcome:
        watched = self.watched
        if outcome.is_error:
            after = await watched.ask("PostToolUseFailure", call, names, **about, error=outcome.text)
        else:
            told = response(call.name, call.category, outcome.text)
            after = await watched.ask("PostToolUse", call, names, **about, tool_response=told)
        if after.stop is not None:
            remember(watched.stops, call.session_id, after.stop)
        reason = (after.reason,) if after.decision == "deny" else ()
        texts = [outcome.text if after.output is None else after.output, *context, *reason, *after.context]
        text = "\n\n".join(each for each in texts if each)
        return outcome if text == outcome.text else attrs.evolve(outcome, text=text)


class TurnHooks(SettingsHooks):
    """SessionStart and UserPromptSubmit."""

    async def on_turn(self, turn: HookedTurn, go: Go[HookedTurn, TurnEnd]) -> TurnEnd | Denied:
        """Ask before a turn begins; what has begun already was asked about."""
        watched = self.watched
        if turn.goes_on:
            return await go(turn)
        watched.stops.pop(turn.session_id, None)
        # A text that has kept a turn from its end begins one if the steps of the first were used up.
        if watched.blocks.get(turn.session_id, (0, ""))[1] != turn.prompt:
            watched.blocks.pop(turn.session_id, None)
        context: tuple[str, ...] = ()
        if turn.turn == 1:
            started = await watched.ask("SessionStart", turn, ("startup",), source="startup")
            context = started.context
            if started.stop is not None or started.decision == "deny":
                return turn.deny(started.stop or started.reason)
        submitted = await watched.ask("UserPromptSubmit", turn, prompt=turn.prompt)
        if submitted.stop is not None or submitted.decision == "deny":
            return turn.deny(submitted.stop or submitted.reason)
        await watched.tell_model(turn, (*context, *submitted.context))
        return await go(turn)


class ModelHooks(SettingsHooks):
    """Stop and SubagentStop; and the end of turns that a hook wants to end."""

    async def on_model(self, request: HookedRequest, go: Go[HookedRequest, ModelReply]) -> ModelReply | Denied:
        """End a turn that is to end, and ask before one ends by itself."""
        watched, session_id = self.watched, request.session_id
        if (stop := watched.stops.pop(session_id, None)) is not None:
            return request.deny(stop)
        reply = await go(request)
        message = reply.message
        if message.tool_calls or message.stop_reason == "pause_turn" or request.request.answer_schema is not None:
            return reply
        if not watched.handlers.have("Stop", "SubagentStop"):
            return reply
        blocks, _ = watched.blocks.get(session_id, (0, ""))
        event, names, about = await self._kind(request)
        verdict = await watched.ask(
            event, request, names, **about, stop_hook_active=blocks > 0, last_assistant_message=message.text
        )
        text = "\n\n".join(((verdict.reason,) if verdict.decision == "deny" else ()) + verdict.context)
        if verdict.stop is not None or not text or blocks >= MOST_BLOCKS:
            watched.blocks.pop(session_id, None)
            return reply
        remember(watched.blocks, session_id, (blocks + 1, text))
        await watched.steer(session_id, text)
        return reply

    async def _kind(self, request: HookedRequest) -> tuple[HookEvent, Sequence[str], dict[str, Any]]:
        """Return the event of the end of a turn, which is another one in a child session."""
        if self.watched.handlers.have("SubagentStop"):
            service = await self.watched.service_for(request.tenant)
            state = (await service.read(request.session_id)).state
            if state.delegated_by is not None:
                kind = request.agent or ""
                return "SubagentStop", (kind,), {"agent_id": request.session_id, "agent_type": kind}
        return "Stop", ("",), {}


class CompactionHooks(SettingsHooks):
    """PreCompact."""

    async def on_compaction(self, compaction: HookedCompaction, go: Go[HookedCompaction, str]) -> str | Denied:
        """Ask before a summary is written."""
        trigger = "auto" if compaction.instructions is None else "manual"
        about = {"trigger": trigger, "custom_instructions": compaction.instructions or ""}
        verdict = await self.watched.ask("PreCompact", compaction, (trigger,), **about)
        return compaction.deny(verdict.reason) if verdict.decision == "deny" else await go(compaction)


def hooks_of(watched: Watched) -> tuple[Hooks, ...]:
    """Return the hooks of settings: those of which there are any."""
    have = watched.handlers.have
    tools = have("PreToolUse", "PostToolUse", "PostToolUseFailure")
    made = (
        (TurnHooks, have("SessionStart", "UserPromptSubmit") or tools or have("Stop", "SubagentStop")),
        (ModelHooks, have("Stop", "SubagentStop") or tools),
        (ToolHooks, tools),
        (CompactionHooks, have("PreCompact")),
    )
    return tuple(cls(watched) for cls, wanted in made if wanted)
