"""Answers of a server, as the official client takes them: one bad tool must not take the others of a list with it."""

from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types
from mcp_types import methods

from warren.actors.tools.mcp.tasks import with_task

REVISION: Final = "2025-11-25"
"""The revision of the protocol whose rules for tools are as strict as those of any other."""


def mended(message: types.JSONRPCMessage) -> types.JSONRPCMessage:
    """Return a message of a server; if it lists tools, they are such that the official client takes the list.

    A schema that is none of an object takes no object afterwards. So its tool is left out of the requests to models,
    and it is said why.

    The official client takes no task as the result of a call: it becomes an empty result that has the task beside it.
    """
    if isinstance(message, types.JSONRPCResponse) and isinstance(tools := message.result.get("tools"), list):
        result = {**message.result, "tools": [made for each in tools if (made := _mended(each)) is not None]}
        return message.model_copy(update={"result": result})
    if isinstance(message, types.JSONRPCResponse) and (made := with_task(message.result)) is not None:
        return message.model_copy(update={"result": made})
    return message


def _mended(tool: Any) -> Any:
    """Return a tool of a list; None for one that has no name."""
    try:
        methods.validate_server_result("tools/list", REVISION, {"tools": [tool]})
    except ValueError:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            return None
        texts = {name: tool[name] for name in ("title", "description") if isinstance(tool.get(name), str)}
        return {"name": tool["name"], **texts, "inputSchema": _of_object(tool.get("inputSchema", {}))}
    return tool


def _of_object(schema: Any) -> dict[str, Any]:
    """Return a schema of an object that takes those objects that a schema takes."""
    if not isinstance(schema, Mapping):
        return {"type": "object"} if schema is True else {"type": "object", "allOf": [{"type": "null"}]}
    kind = schema.get("type", "object")
    if kind != "object" and "object" not in (kind if isinstance(kind, list) else ()):
        return {"type": "object", "allOf": [{"type": "null"}]}
    made = {name: each for name, each in schema.items() if name != "required"} | {"type": "object"}
    if isinstance(members := schema.get("properties"), Mapping):
        made["properties"] = {name: each if isinstance(each, dict | bool) else {} for name, each in members.items()}
    else:
        made.pop("properties", None)
    required = schema.get("required")
    return (
        made | {"required": [each for each in required if isinstance(each, str)]}
        if isinstance(required, list)
        else made
    )
