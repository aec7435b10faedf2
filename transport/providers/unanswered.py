"""Items of OpenAI's responses that wait for the program: the server refuses a request that has no answer to them.

Warren runs no such tools, and cannot approve those of a server: it says so to the user, and to the model. No I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from warren.transport.providers import wire

NOT_RUN: Final = "not run: this program does not run tools of this kind"
NOT_APPROVED: Final = "this program cannot ask anybody for the approval"
_EMPTY_PICTURE: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
_SHELL: Final = {"stdout": "", "stderr": NOT_RUN, "outcome": {"type": "exit", "exit_code": 1}}
_OUTPUTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "local_shell_call": {"output": NOT_RUN},
    "custom_tool_call": {"output": NOT_RUN},
    "shell_call": {"output": [_SHELL]},
    "apply_patch_call": {"status": "failed", "output": NOT_RUN},
    "computer_call": {"output": {"type": "computer_screenshot", "image_url": _EMPTY_PICTURE}},
    "tool_search_call": {"execution": "client", "status": "completed", "tools": []},
}
"""The members of the answers beside the call, by the types in openai-python 3.57.0, November 2026."""


def answer(item: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the item that answers one of an answer; None if it needs none, or has one among the items."""
    kind, call = wire.as_text(item.get("type")), item.get("call_id")
    if kind == "mcp_approval_request":
        asked = {"type": "mcp_approval_response", "approval_request_id": item.get("id")}
        return asked | {"approve": False, "reason": NOT_APPROVED}
    own = _OUTPUTS.get(kind)
    if own is None or (kind == "tool_search_call" and item.get("execution") != "client"):
        return None
    kind_of_output = "tool_search_output" if kind == "tool_search_call" else f"{kind}_output"
    named = "id" if kind == "local_shell_call" else "call_id"
    if any(each.get("type") == kind_of_output and each.get(named) == call for each in items):
        return None
    return {"type": kind_of_output, named: call, **own}


def notes(found: Iterable[Mapping[str, Any]]) -> str:
    """Return what the user is told about the items of an answer that wait for the program; nothing if none does."""
    items = [item for item in found if item]
    return "\n".join(_note(item) for item in items if answer(item, items) is not None)


def _note(item: Mapping[str, Any]) -> str:
    if item.get("type") == "mcp_approval_request":
        server, tool = wire.as_text(item.get("server_label")), wire.as_text(item.get("name"))
        more = "approvals of a provider's own tools cannot be answered here; `require_approval` of the server decides"
        return f"[The MCP server {server!r} asks to call {tool!r}. It was not called: {more}.]"
    name = wire.as_text(item.get("name"))
    return f"[The model asks for {item.get('type')}{f' of {name!r}' if name else ''}. It was {NOT_RUN}.]"
