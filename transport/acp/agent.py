"""The agent: each method of the Agent Client Protocol as calls of the service."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from warren.base.errors import InvalidParamsError, SessionBusyError, WarrenError
from warren.base.values import define, frozen
from warren.base.version import VERSION
from warren.calls.facade import SessionService
from warren.conversation.events import Envelope
from warren.conversation.memory import MAX_HITS
from warren.conversation.options import DEFAULT_THRESHOLD, CompactionConfig
from warren.conversation.views import SessionSummary, SessionView
from warren.models.catalog import NO_MODELS, Models, window_of
from warren.settings.tool_config import McpServer
from warren.transport.acp import commands, modes, params, updates
from warren.transport.acp.content import AcpPrompt, prompt_of
from warren.transport.acp.files import blocks_of
from warren.transport.acp.listing import CWD, listed
from warren.transport.acp.permission import Ask, Permissions
from warren.transport.acp.prompt import PendingPrompt, Tell, outcome_of, unwrap
from warren.transport.acp.servers import Servers, read_servers

if TYPE_CHECKING:
    from warren.actors.tools.session_tools import SessionTools

Say = Callable[[str, updates.Update], Awaitable[None]]
"""Sends an update of a session to the client; returns once it is on its way, in order with everything else."""

PROTOCOL: Final = 1
PROMPT: Final = "session/prompt"
CANCEL: Final = "session/cancel"
REPLAYED: Final = 10
"""Messages of a conversation that are in memory at once while it is replayed; each may be a large one."""
logger: Final = logging.getLogger(__name__)


@frozen
class MethodResult:
    """The result of a request, and the updates that follow it.

    Attributes:
        result: the result for the client.
        session_id: the session of the updates.
        after: updates that are sent behind the result, because they name a session that the client learns from it.
    """

    result: Mapping[str, Any]
    session_id: str = ""
    after: Sequence[updates.Update] = ()


@frozen
class AgentSettings:
    """The facts about the runtime that an agent needs beyond the service.

    Attributes:
        folder: the absolute path that the agent shows as the folder of sessions that no ACP client created.
        compaction: the settings of compaction; None if it is off.
        tools: connects sessions to the MCP servers that a client names; None if the runtime connects to none.
        models: the configuration's facts about models.
    """

    folder: str
    compaction: CompactionConfig | None = None
    tools: "SessionTools | None" = None
    models: Models = NO_MODELS

    def size_of(self, model: str) -> int | None:
        """Return the tokens that a context may have: the model's window, or else the threshold of compaction."""
        window = window_of(model, self.models)
        if self.compaction is None:
            return window
        return self.compaction.window or window or self.compaction.auto_compact_threshold or DEFAULT_THRESHOLD


@define(eq=False)
class Agent:
    """One client's agent.

    Attributes:
        service: the runtime.
        say: sends updates to the client.
        ask: sends requests to the client.
        settings: the facts about the runtime.
        servers: the MCP servers that the client named for each session that it opened.
        tasks: the nursery in which the turns that the client comes back to are followed.
        unstable: whether the client has asked for members that are no part of the protocol yet; others may refuse them.
    """

    service: SessionService
    say: Say
    ask: Ask
    settings: AgentSettings
    servers: Servers
    tasks: trio.Nursery
    unstable: bool = False
    _pending: dict[str, PendingPrompt] = attrs.field(factory=dict)
    _followed: dict[str, tuple[PendingPrompt, trio.CancelScope]] = attrs.field(factory=dict)
    _modes: dict[str, str] = attrs.field(factory=dict)
    _permissions: dict[str, Permissions] = attrs.field(factory=dict)
    _replaying: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))
    _with_files: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))

    def begin(self, method: str, data: object) -> Callable[[], Awaitable[MethodResult]] | None:
        """Return the work that answers a request; None for an unknown method.

        A prompt is pending from here on, so a `session/cancel` that follows it finds it.

        Raises:
            InvalidParamsError: if the parameters are bad.
            SessionBusyError: if the session has a prompt that is not answered yet.
        """
        if method == PROMPT:
            given = params.read(params.Prompt, data)
            return partial(self._prompt, prompt_of(given.prompt), self._admit(given.sessionId))
        if method not in METHODS:
            return None
        kind, handler = METHODS[method]
        return partial(handler, self, params.read(kind, data))

    def notice(self, method: str, data: object) -> None:
        """Handle a notification. An unknown one is ignored. Raises InvalidParamsError for bad parameters."""
        if method == CANCEL:
            session_id = params.read(params.OneSession, data).sessionId
            if (pending := self._pending.get(session_id)) is not None:
                pending.cancel()
            elif session_id in self._followed:
                self._followed[session_id][0].cancel()

    def cancel_all(self) -> None:
        """Cancel every pending prompt."""
        for pending in self._pending.values():
            pending.cancel()

    # -- the connection

    async def initialize(self, given: params.AcpInitialize) -> MethodResult:
        """Return the agent's name, its capabilities and the one version of the protocol that it speaks."""
        stored, self.unstable = self.service.capabilities().session_store, given.wants_unstable
        sessions: dict[str, Any] = {"list": {}, "close": {}}
        sessions |= {"resume": {}, "delete": {}} if stored else {}
        sessions |= {"fork": {}} if self.unstable else {}
        capabilities = {
            "loadSession": stored,
            "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
            "mcpCapabilities": {"http": self.settings.tools is not None, "sse": False},
            "sessionCapabilities": sessions,
        }
        info = {"name": "warren", "title": "Warren", "version": VERSION}
        result = {"protocolVersion": PROTOCOL, "agentCapabilities": capabilities, "agentInfo": info, "authMethods": []}
        return MethodResult(result)

    # -- sessions

    async def new(self, given: params.NewSession) -> MethodResult:
        """Create a session without a turn."""
        servers = read_servers(given.mcpServers)
        created = await self.service.create_session(None, labels={CWD: given.cwd})
        return await self._opened(created.session_id, servers, {"sessionId": created.session_id})

    async def load(self, given: params.LoadSession) -> MethodResult:
        """Open a stored session, and replay its whole conversation before the result."""
        servers = read_servers(given.mcpServers)
        shown = await self._follow(await self.service.resume(given.sessionId))
        await self._replay(given.sessionId)
        shown.set()
        return await self._opened(given.sessionId, servers, {})

    async def resume(self, given: params.ResumeSession) -> MethodResult:
        """Open a stored session without a replay: the client knows its conversation."""
        servers = read_servers(given.mcpServers)
        (await self._follow(await self.service.resume(given.sessionId))).set()
        return await self._opened(given.sessionId, servers, {})

    async def fork(self, given: params.ResumeSession) -> MethodResult:
        """Create a session from the finished turns of another one, without a replay."""
        servers = read_servers(given.mcpServers)
        state = (await self.service.fork(given.sessionId, labels={CWD: given.cwd})).state
        return await self._opened(state.session_id, servers, {"sessionId": state.session_id})

    async def list(self, given: params.ListSessions) -> MethodResult:
        """Return a page of sessions, the most recently changed one first."""
        page = await listed(self.service, _offset(given.cursor), given.cwd, self.settings.folder)
        shown = {"sessions": [self._row(row) for row in page.rows]}
        return MethodResult(shown if page.following is None else shown | {"nextCursor": str(page.following)})

    async def close(self, given: params.OneSession) -> MethodResult:
        """Cancel a session's prompt and forget the session here. Without a store this archives the session."""
        await self.service.read(given.sessionId)
        await self._end(given.sessionId)
        if not self.service.capabilities().session_store:
            await self.service.archive(given.sessionId)
        return MethodResult({})

    async def delete(self, given: params.OneSession) -> MethodResult:
        """Delete a session and everything that is stored of it."""
        if self.service.capabilities().session_store:
            await self._end(given.sessionId)
        await self.service.delete(given.sessionId)
        return MethodResult({})

    async def set_mode(self, given: params.SetMode) -> MethodResult:
        """Change the mode of a session: which tool calls wait for the user, from the next prompt on."""
        await self.service.read(given.sessionId)
        if given.modeId not in modes.MODES:
            raise InvalidParamsError.at("$.modeId", f"must be one of {', '.join(modes.MODES)}")
        self._modes[given.sessionId] = given.modeId
        return MethodResult({})

    # -- prompts

    async def _prompt(self, prompt: AcpPrompt, pending: PendingPrompt) -> MethodResult:
        command = None if prompt.files else commands.parse(prompt.text)
        try:
            if command is None:
                return await self._turn(prompt, pending)
            await self._obey(command, pending)
        except WarrenError as exc:
            reason = updates.stop_reason_of(exc)
            if reason is None:
                raise
            return MethodResult({"stopReason": reason})
        finally:
            pending.over.set()
            del self._pending[pending.session_id]
        return MethodResult({"stopReason": "end_turn"})

    async def _narrator(self, session_id: str) -> Tell:
        """Return a function that tells the client of the events of one turn. Raises the errors of `read`."""
        view = await self.service.read(session_id)
        narrator = updates.Narrator(self.settings.size_of(view.state.model))

        async def tell(envelope: Envelope) -> None:
            for update in narrator.updates(envelope):
                await self._tell(session_id, update)

        return tell

    async def _follow(self, view: SessionView) -> trio.Event:
        """Begin to follow the open turn of a session, if it has one, and tell of it once the returned event is set."""
        session_id, shown = view.state.session_id, trio.Event()
        self._leave(session_id)
        if view.state.turn is not None and session_id not in self._pending:
            await self.tasks.start(self._followed_turn, session_id, shown)
        return shown

    async def _followed_turn(self, session_id: str, shown: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
        turn = PendingPrompt(self.service, session_id)
        mine = self._followed[session_id] = turn, trio.CancelScope()
        with mine[1]:
            try:
                tell, approve = await self._narrator(session_id), self._asker(session_id).approve
                await turn.follow(shown, tell, approve, task_status=task_status)
            except WarrenError as exc:
                logger.warning("session %s: its turn cannot be followed: %s", session_id, exc)
                task_status.started()
            await self._tell_info(session_id)
        if self._followed.get(session_id) is mine:
            del self._followed[session_id]

    def _leave(self, session_id: str) -> None:
        """Follow the open turn of a session no longer; it goes on."""
        if session_id in self._followed:
            self._followed.pop(session_id)[1].cancel()

    async def _turn(self, prompt: AcpPrompt, pending: PendingPrompt) -> MethodResult:
        tell = await self._narrator(pending.session_id)
        approve, gates = self._asker(pending.session_id).approve, modes.gates(self._mode(pending.session_id))
        outcome = await outcome_of(pending.turn(prompt, tell, approve, gates))
        await self._tell_info(pending.session_id)
        result = unwrap(prompt.located(outcome) if isinstance(outcome, InvalidParamsError) else outcome)
        usage = {"usage": updates.usage_of(result.usage)} if self.unstable else {}
        answer, data = {"stopReason": updates.stop_reason(result.stop_reason), **usage}, result.structured_output
        return MethodResult(answer if data is None else updates.with_data(answer, data))

    async def _obey(self, command: commands.SlashCommand, pending: PendingPrompt) -> None:
        """Run a slash command, and send its output to the client as a message of the agent."""
        session_id, words = pending.session_id, command.words
        if command.name != "compact":  # `compact` reports an unknown session by itself, after the check that it is on
            await self.service.read(session_id)
        match command.name:
            case "compact":
                text = commands.compacted_text(await pending.compact(words or None))
            case "memory":
                search = partial(self.service.search_memory, _words(words), session_id=session_id, limit=MAX_HITS)
                text = commands.memory_text(await pending.look_up(search))
            case "help":
                text = commands.help_text(self.service.capabilities())
        await self.say(session_id, updates.chunk("agent_message_chunk", text))

    def _admit(self, session_id: str) -> PendingPrompt:
        if session_id in self._pending:
            raise SessionBusyError("a prompt of this session has no answer yet", session_id=session_id)
        pending = self._pending[session_id] = PendingPrompt(self.service, session_id)
        return pending

    # -- parts

    async def _opened(self, session_id: str, servers: tuple[McpServer, ...], result: Mapping[str, Any]) -> MethodResult:
        await self.servers.take(session_id, servers)
        found = commands.advertised(self.service.capabilities())
        update = {"sessionUpdate": "available_commands_update", "availableCommands": found}
        return MethodResult({**result, "modes": modes.shown(self._mode(session_id))}, session_id, [update])

    def _mode(self, session_id: str) -> str:
        return self._modes.get(session_id, modes.DEFAULT)

    def _asker(self, session_id: str) -> Permissions:
        """Return the user's answers for the tools of a session; they last until the session is closed."""
        if session_id not in self._permissions:
            self._permissions[session_id] = Permissions(self.service, session_id, self.ask)
        return self._permissions[session_id]

    async def _end(self, session_id: str) -> None:
        """Cancel a session's prompt, wait for its end, and drop the session's mode, permissions and servers."""
        self._leave(session_id)
        pending = self._pending.get(session_id)
        if pending is not None:
            pending.cancel()
            await pending.over.wait()
        self._modes.pop(session_id, None)
        self._permissions.pop(session_id, None)
        await self.servers.drop(session_id)

    async def _replay(self, session_id: str) -> None:
        """Send the whole conversation as updates, also the part that was compacted away, one page at a time."""
        offset, total = 0, 1
        async with self._replaying:
            while offset < total:
                page = await self.service.history(session_id, offset=offset, limit=REPLAYED)
                for entry in page.messages:
                    for update in updates.replayed(entry.message):
                        await self._tell(session_id, update)
                offset, total = offset + REPLAYED, page.total

    async def _tell(self, session_id: str, update: updates.Update | updates.UpdateWithFiles) -> None:
        """Send an update; first read the files that it has."""
        if not isinstance(update, updates.UpdateWithFiles):
            await self.say(session_id, update)
            return
        async with self._with_files:  # the bytes of one update are in memory, however many sessions have files
            blocks = await blocks_of(self.service, session_id, update.files)
            await self.say(session_id, update.filled(blocks))

    def _row(self, row: SessionSummary) -> Mapping[str, Any]:
        shown = {
            "sessionId": row.session_id,
            "cwd": row.labels.get(CWD, self.settings.folder),
            "updatedAt": row.updated_at,
        }
        return shown if row.title is None else shown | {"title": row.title}

    async def _tell_info(self, session_id: str) -> None:
        """Send the session's title and the time of its last change, unless the session is gone."""
        try:
            view = await self.service.read(session_id)
        except WarrenError:
            return
        await self.say(session_id, updates.session_info(view.state.title, view.state.updated_at))


METHODS: Final[Mapping[str, tuple[type, Callable[[Agent, Any], Awaitable[MethodResult]]]]] = {
    "initialize": (params.AcpInitialize, Agent.initialize),
    "session/new": (params.NewSession, Agent.new),
    "session/load": (params.LoadSession, Agent.load),
    "session/resume": (params.ResumeSession, Agent.resume),
    "session/fork": (params.ResumeSession, Agent.fork),
    "session/list": (params.ListSessions, Agent.list),
    "session/close": (params.OneSession, Agent.close),
    "session/delete": (params.OneSession, Agent.delete),
    "session/set_mode": (params.SetMode, Agent.set_mode),
}
"""The handler of each request and the class of its parameters. `session/prompt` is missing: `begin` handles it."""


def _offset(cursor: str | None) -> int:
    """Return the offset that a cursor of `session/list` stands for. Raises InvalidParamsError for any other text."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < len(str(2**53))):
        raise InvalidParamsError.at("$.cursor", "must be a nextCursor of an earlier answer")
    return int(cursor)


def _words(words: str) -> str:
    if not words:
        raise InvalidParamsError.at("$.prompt", "/memory needs a query")
    return words
