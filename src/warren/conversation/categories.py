"""Kinds of tools: switches that offer them to a model, and gates that let their calls wait for approval."""

from typing import Final, Literal, get_args

import attrs

from warren.base.fields import OneOf
from warren.base.values import frozen

Category = Literal["builtins", "shell", "memory", "mcp", "comms", "callback"]
"""The origin of a tool: the workspace, the shell, the memory, MCP servers, peers, or the host's own code."""
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
Switch = Literal["inherit", "enable", "disable"]
Gate = Literal["auto", "ask", "deny"]
Answer = Literal["allow", "deny"]
_SWITCHES: Final[tuple[Switch, ...]] = get_args(Switch)
_GATES: Final[tuple[Gate, ...]] = get_args(Gate)
TOUCH_THE_MACHINE: Final[frozenset[Category]] = frozenset({"builtins", "shell"})
"""Kinds that are off unless a runtime, a session or a turn enables them."""


@frozen
class Switches:
    """Switches of the kinds of tools: a model is offered the kinds that are on, if the runtime has them.

    `inherit` takes the switch of the level above: a turn that of its session, a session that of the runtime. In the
    runtime it means on, except for the kinds that touch the machine (`builtins` and `shell`), which are off.

    Attributes:
        builtins: files, fetching, the clock.
        shell: commands on the machine.
        memory: searching remembered texts.
        mcp: tools of MCP servers.
        comms: messages to peers.
        callback: the host's own functions, and tools that a client runs.
    """

    builtins: Switch = attrs.field(default="inherit", validator=OneOf(_SWITCHES))
    shell: Switch = attrs.field(default="inherit", validator=OneOf(_SWITCHES))
    memory: Switch = attrs.field(default="inherit", validator=OneOf(_SWITCHES))
    mcp: Switch = attrs.field(default="inherit", validator=OneOf(_SWITCHES))
    comms: Switch = attrs.field(default="inherit", validator=OneOf(_SWITCHES))
    callback: Switch = attrs.field(default="inherit", validator=OneOf(_SWITCHES))

    def of(self, category: Category) -> Switch:
        """Return the switch of a kind."""
        switch: Switch = getattr(self, category)
        return switch

    def over(self, above: "Switches | None") -> "Switches":
        """Return these switches, with `inherit` replaced by the switches of the level above."""
        if above is None or above == INHERIT:
            return self
        chosen = {name: self.of(name) for name in CATEGORIES if self.of(name) != "inherit"}
        return attrs.evolve(above, **chosen)

    def on(self, category: Category) -> bool:
        """Tell whether tools of a kind are offered, if there is no level above."""
        switch = self.of(category)
        return category not in TOUCH_THE_MACHINE if switch == "inherit" else switch == "enable"


INHERIT: Final = Switches()


@frozen
class Gates:
    """Gates of tool calls, by the tool's kind: a call runs (`auto`), waits for approval (`ask`) or is refused (`deny`).

    A session may only be stricter than its runtime, and a turn only stricter than its session.

    Attributes:
        builtins: files, fetching, the clock.
        shell: commands on the machine.
        memory: searching remembered texts.
        mcp: tools of MCP servers.
        comms: messages to peers.
        callback: the host's own functions, and tools that a client runs.
    """

    builtins: Gate = attrs.field(default="auto", validator=OneOf(_GATES))
    shell: Gate = attrs.field(default="auto", validator=OneOf(_GATES))
    memory: Gate = attrs.field(default="auto", validator=OneOf(_GATES))
    mcp: Gate = attrs.field(default="auto", validator=OneOf(_GATES))
    comms: Gate = attrs.field(default="auto", validator=OneOf(_GATES))
    callback: Gate = attrs.field(default="auto", validator=OneOf(_GATES))

    def of(self, category: Category) -> Gate:
        """Return the gate of a kind."""
        gate: Gate = getattr(self, category)
        return gate

    def and_(self, other: "Gates | None") -> "Gates":
        """Return the stricter gate of the two for each kind."""
        if other is None or other == self:
            return self
        return Gates(**{name: max(self.of(name), other.of(name), key=_GATES.index) for name in CATEGORIES})


@frozen
class Decision:
    """The answer to a tool call that waits for approval.

    Attributes:
        allow: whether the call runs.
        reason: the reason, which the model reads.
        remember: whether later calls of the tool in the session run without approval.
    """

    allow: bool
    reason: str | None = None
    remember: bool = False

    @property
    def answer(self) -> Answer:
        """The decision in the words of `SessionService.approve_tool`."""
        return "allow" if self.allow else "deny"
