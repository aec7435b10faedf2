"""What the sessions of a runtime have in common."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal

import attrs
import trio

from warren.actors.memory import SEARCH, MemoryActor
from warren.actors.storage import Storage
from warren.categories import Category
from warren.compaction.policy import Compactor, NewCompactor
from warren.config import Config
from warren.errors import StoreError
from warren.health import McpHealth, MemoryHealth
from warren.model import Providers
from warren.tools import Tool

PassingTools = Callable[[str | None, Collection[str]], Mapping[str, Tool]]
McpHealthOf = Callable[[], Sequence[McpHealth]]


@attrs.frozen
class Own:
    """What only one session has, and no store can hold.

    Attributes:
        tools: by name.
        compactor: its compaction strategy, in place of the runtime's.
    """

    tools: Mapping[str, Tool] = attrs.field(factory=dict)
    compactor: Compactor | NewCompactor | None = None

    def __bool__(self) -> bool:
        """Tell whether there is anything."""
        return bool(self.tools) or self.compactor is not None


NOTHING_OWN: Final = Own()


@attrs.frozen
class Shared:
    """What all sessions of a runtime share.

    Attributes:
        config: its settings.
        providers: resolves models.
        tools: the runtime's tools, by name.
        storage: where the sessions are kept.
        memory: None without the memory-store capability.
        passing_tools: returns tools that come and go, by name, such as those of servers, under none of the names that
            are taken: what all sessions get, and with a session's id what that session gets too.
        mcp_health: tells how the servers of all sessions do.
        notes: what the instructions of a new session say of a tool, by the tool's name, where it is offered.
        tool_threads: bounds sync tools that run at once.
        memory_fault: why there is no memory although the runtime was to have one.
        session_store: whether sessions outlive the process. Only the service asks for it, to answer calls that need it.
    """

    config: Config
    providers: Providers
    tools: Mapping[str, Tool]
    storage: Storage
    memory: MemoryActor | None
    tool_threads: trio.CapacityLimiter
    passing_tools: PassingTools | None = None
    mcp_health: McpHealthOf | None = None
    notes: Mapping[str, str] = attrs.field(factory=dict)
    memory_fault: StoreError | None = None
    session_store: bool = False

    @property
    def tool_names(self) -> Collection[str]:
        """The names of all tools that a session may be given."""
        there = {*self.tools, *([SEARCH] if self.memory is not None else [])}
        return there if self.passing_tools is None else {*there, *self.passing_tools(None, there)}

    def memory_health(self) -> MemoryHealth | None:
        """Return how the memory is; None if the runtime was to have none."""
        if self.memory_fault is not None:
            return MemoryHealth("degraded", 0, self.memory_fault.message)
        return None if self.memory is None else self.memory.health()

    @property
    def categories(self) -> frozenset[Category]:
        """The kinds of tools that there may be."""
        there: set[Category] = {"callback", "comms", *(tool.category for tool in self.tools.values())}
        if self.memory is not None:
            there.add("memory")
        if self.passing_tools is not None:
            there.add("mcp")
        return frozenset(there)

    def switch_of(self, category: Category) -> Literal["on", "off", "unavailable"]:
        """Return whether sessions that do not say otherwise get tools of a kind."""
        if category not in self.categories:
            return "unavailable"
        return "on" if self.config.switches.on(category) else "off"
