"""The modes of a session: how much the user wants to be asked. No I/O."""

from collections.abc import Mapping
from typing import Any, Final

from warren.categories import Gates

DEFAULT: Final = "default"
MODES: Final[Mapping[str, tuple[str, str, Gates | None]]] = {
    DEFAULT: ("Default", "Asks where the agent was told to.", None),
    "ask": (
        "Ask",
        "Asks before files, the shell and tools of MCP servers are used.",
        Gates(builtins="ask", shell="ask", mcp="ask"),  # noqa: S604 - a kind of tools
    ),
}
"""Name, description and gates of each mode. There is none that asks less: the one who runs the agent says how much."""


def shown(current: str) -> Mapping[str, Any]:
    """Return the modes as clients show them."""
    found = [{"id": mode, "name": name, "description": about} for mode, (name, about, _) in MODES.items()]
    return {"currentModeId": current, "availableModes": found}


def gates(mode: str) -> Gates | None:
    """Return which calls wait for the user's word in a mode; None leaves that to the runtime."""
    return MODES[mode][2]
