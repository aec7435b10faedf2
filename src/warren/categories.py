"""Kinds of tools: which a model is offered, and which calls wait for somebody's word."""

from typing import Final, Literal, get_args

import attrs

from warren.fields import OneOf

Category = Literal["builtins", "shell", "memory", "mcp", "comms", "callback"]
"""Where a tool comes from: the workspace, the shell, the memory, MCP servers, peers, or the host's own code."""
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
Switch = Literal["inherit", "enable", "disable"]
Gate = Literal["auto", "ask", "deny"]
_SWITCHES: Final[tuple[Switch, ...]] = get_args(Switch)
_GATES: Final[tuple[Gate, ...]] = get_args(Gate)
TOUCH_THE_MACHINE: Final[frozenset[Category]] = frozenset({"builtins", "shell"})
"""Off, unless somebody enables them."""


@attrs.frozen
class Switches:
    """Which kinds of tools are offered, of those that the runtime has.

    `inherit` leaves it to whoever stands above: a turn to its session, the session to the runtime, and the runtime to
    the rule that all are on but those that touch the machine.

    Attributes:
        builtins: files, fetching, the clock.
        shell: commands on the machine.
        memory: searching what was said before.
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
        """Return what is said of a kind."""
        switch: Switch = getattr(self, category)
        return switch

    def over(self, above: "Switches | None") -> "Switches":
        """Return these, with what they inherit."""
        if above is None or above == INHERIT:
            return self
        said = {name: self.of(name) for name in CATEGORIES if self.of(name) != "inherit"}
        return attrs.evolve(above, **said)

    def on(self, category: Category) -> bool:
        """Tell whether tools of a kind are offered, where nobody stands above."""
        switch = self.of(category)
        return category not in TOUCH_THE_MACHINE if switch == "inherit" else switch == "enable"


INHERIT: Final = Switches()


@attrs.frozen
class Gates:
    """What becomes of a call, by its tool's kind: it runs, it waits for somebody's word, or it is refused.

    A session or a turn may only be stricter than what stands above it.

    Attributes:
        builtins: files, fetching, the clock.
        shell: commands on the machine.
        memory: searching what was said before.
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
        """Return what is said of a kind."""
        gate: Gate = getattr(self, category)
        return gate

    def and_(self, other: "Gates | None") -> "Gates":
        """Return the stricter of both, for each kind."""
        if other is None or other == self:
            return self
        return Gates(**{name: max(self.of(name), other.of(name), key=_GATES.index) for name in CATEGORIES})


@attrs.frozen
class Decision:
    """Somebody's word on a tool call that waited for it; the reason is told to the model."""

    allow: bool
    reason: str | None = None
