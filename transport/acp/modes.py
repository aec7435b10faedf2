"""The modes of a session: the kinds of tool calls that wait for the user. No I/O."""

from collections.abc import Mapping
from typing import Any, Final

from warren.conversation.categories import Gates

DEFAULT: Final = "default"
MODES: Final[Mapping[str, tuple[str, str, Gates | None]]] = {
    DEFAULT: ("Default", "Asks for the kinds of tools that the agent was started with.", None),
    "ask": (
        "Ask",
        "Asks before files, the shell and tools of MCP servers are used.",
        Gates(builtins="ask", shell="ask", mcp="ask"),  # noqa: S604 - a kind of tools
    ),
}
"""Name, description and gates of each mode. No mode asks for less than the flags that the agent was started with."""


def shown(current: str) -> Mapping[str, Any]:
    """Return the modes in the form of the protocol."""
    found = [{"id": mode, "name": name, "description": about} for mode, (name, about, _) in MODES.items()]
    return {"currentModeId": current, "availableModes": found}


def gates(mode: str) -> Gates | None:
    """Return the kinds of calls that wait for the user in a mode; None leaves the choice to the runtime."""
    return MODES[mode][2]
