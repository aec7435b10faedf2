"""The resources that all sessions of a runtime share, and those that one session has of its own."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakValueDictionary

import attrs
import trio

from warren.actors.agents import Agents
from warren.actors.limits.limiter import Limiter
from warren.actors.limits.tenancy import Tenancy
from warren.actors.observe.counters import Counters
from warren.actors.resources.audit import Auditor
from warren.actors.resources.completions import Completions
from warren.actors.resources.storage import Storage
from warren.actors.turn.attaching import FetchFile
from warren.actors.turn.chain import DELEGATE
from warren.actors.turn.plan import TurnSettings
from warren.actors.turn.room import Lessons
from warren.actors.turn.route import Outages
from warren.agents.hooks import Hooks
from warren.base.values import frozen
from warren.compaction.policy import Compactor, NewCompactor
from warren.conversation.categories import Category
from warren.conversation.options import DEFAULTS, SessionOptions
from warren.models.model import Providers
from warren.models.tools import Tool
from warren.reports.tracing import Tracer
from warren.settings.config import Config

if TYPE_CHECKING:
    from warren.actors.resources.memory import Memory
    from warren.actors.tools.session_tools import RuntimeServers


@frozen
class HostObjects:
    """The tools, the compactor and the hooks that the host gave one session: objects, which no store can keep.

    Attributes:
        tools: the session's tools, by name.
        compactor: the session's compactor; None for that of the runtime.
        hooks: the hooks around what the session does, within those of its agent.
    """

    tools: Mapping[str, Tool] = attrs.field(factory=dict)
    compactor: Compactor | NewCompactor | None = None
    hooks: tuple[Hooks, ...] = ()

    def __bool__(self) -> bool:
        """Return whether the session has anything of its own."""
        return bool(self.tools or self.hooks) or self.compactor is not None


NO_HOST_OBJECTS: Final = HostObjects()


@frozen
class Shared:
    """The resources that all sessions of a runtime share.

    Attributes:
        config: the settings of the runtime.
        providers: resolves the names of models.
        tools: the runtime's tools, by name.
        storage: the store of the sessions.
        auditor: adds entries to the audit.
        memory: the memory of the sessions; `NoMemory` without the memory-store capability.
        servers: the MCP servers of the runtime and of its sessions; None if sessions cannot have any.
        fetch_file: gets the files that prompts have by URL; None if they stay where they are.
        agents: the agents of the runtime.
        notes: texts about tools, by the tool's name; the instructions of a new session contain those of its tools.
        tool_threads: bounds the synchronous tools that run at once.
        counters: the counts of all sessions, for the metrics.
        limiter: counts turns, sessions and tokens against the limits of tenants and tokens.
        options: the options of sessions that are created with none. They share this object, and what follows from it.
        completions: makes and checks the completion tokens of tool calls.
        outages: the models that were overloaded or away a moment ago.
        lessons: the windows and answer limits of models, as refusals have told them.
        tracer: makes the traces of turns; None for no traces.
        hooks: the hooks around what all sessions do; the first is the outermost.
        settings: the turn settings of sessions with these options, by model and tools, as long as one uses them.
    """

    config: Config
    providers: Providers
    tools: Mapping[str, Tool]
    storage: Storage
    auditor: Auditor
    memory: "Memory"
    tool_threads: trio.CapacityLimiter
    servers: "RuntimeServers | None" = None
    fetch_file: FetchFile | None = None
    agents: Agents = attrs.field(init=False)
    notes: Mapping[str, str] = attrs.field(factory=dict)
    counters: Counters = attrs.field(init=False)
    tracer: Tracer | None = None
    hooks: tuple[Hooks, ...] = ()
    lessons: Lessons = attrs.field(factory=Lessons)
    settings: WeakValueDictionary[Any, TurnSettings] = attrs.field(factory=WeakValueDictionary)
    limiter: Limiter = attrs.field(init=False)

    @agents.default
    def _agents(self) -> Agents:
        return Agents.of(self.config.agents, self.config.agent_tenants)

    @counters.default
    def _counters(self) -> Counters:
        return Counters({self.config.model, *(self.config.fallback or ()), *self.config.models})

    @limiter.default
    def _limiter(self) -> Limiter:
        return Limiter(Tenancy(self.config.tenants), self.storage, self.memory)

    options: SessionOptions = attrs.field(init=False)

    @options.default
    def _options(self) -> SessionOptions:
        return self.config.settled(DEFAULTS)

    completions: Completions = attrs.field(init=False)

    @completions.default
    def _completions(self) -> Completions:
        return Completions(self.storage)

    outages: Outages = attrs.field(init=False)

    @outages.default
    def _no_outages(self) -> Outages:
        return Outages(self.config.retry.cool_down)

    def delegates(self, options: SessionOptions) -> bool:
        """Return whether a session may delegate work: by the settings, or as its list of tools names the tool."""
        tools, named = self.config.tools, options.tools
        return (tools is not None and tools.delegate) or (named is not None and DELEGATE in named)

    @property
    def categories(self) -> frozenset[Category]:
        """The kinds of tools that sessions of this runtime may have."""
        tools = (*self.tools.values(), *self.memory.tools_of("", "").values())
        there: set[Category] = {"callback", "comms", *(tool.category for tool in tools)}
        if self.servers is not None:
            there.add("mcp")
        return frozenset(there)

    def switch_of(self, category: Category) -> Literal["on", "off", "unavailable"]:
        """Return whether sessions get tools of a kind by default."""
        if category not in self.categories:
            return "unavailable"
        return "on" if self.config.switches.on(category) else "off"
