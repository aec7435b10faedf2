"""Good requests of each surface, for noise and walks to be made of. SESSION stands for a session that is there."""

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from tests.support.completions import token_for
from warren.transport.mcp.tools import TOOLS
from warren.transport.rpc.contracts import dialect_of
from warren.transport.rpc.methods import METHODS
from warren.transport.rpc.schemas import Schemas

SESSION: Final = "SESSION"
SESSION_ID: Final = "session_id"
ONE: Final = {"session_id": SESSION}
PARAMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "initialize": {"client_info": {"name": "test", "version": "1"}},
    "session/create": {"prompt": "hi", "model": "echo", "labels": {"a": "b"}, "budget": {"max_steps": 3}},
    "session/watch": {"labels": {"a": "b"}, "include_archived": True},
    "session/list": {
        "offset": 0,
        "limit": 5,
        "labels": {"a": "b"},
        "include_archived": True,
        "turn_state": "parked",
        "delegated_by": "s1",
        "agent": "desk",
    },
    "session/read": {**ONE, "children": True},
    "session/history": {**ONE, "offset": 0, "limit": 3},
    "session/subscribe": {**ONE, "after_seq": 0},
    "turn/start": {**ONE, "prompt": "and again", "max_tokens": 100},
    "session/delegate": {**ONE, "prompt": "go", "title": "a part", "budget": {"max_steps": 3}},
    "agents/get": {"name": "desk"},
    "trigger/create": {"prompt": "go", "session_id": "s"},
    "webhook/create": {"url": "https://example.org/hook", "events": ["turn.failed"]},
    "schedule/create": {"prompt": "go", "every": "1h", "session_id": "s"},
    "tenants/list": {"all_tenants": False, "limit": 3},
    "usage/get": {"by": "model", "since": "2026-01-01T00:00:00Z", "limit": 3},
    "memory/search": {"query": "oats", "scope": "project", "limit": 3},
    "nodes/drain": {"name": "somewhere"},
    "memory/forget": {**ONE, "turn": 1},
    "file/put": {"data": "aGk=", "size": 2, "name": "a.txt"},
    "tool/complete": {"token": token_for("s"), "result": {"state": "passed"}},
    "tools/register": {"tools": [{"name": "look", "description": "", "input_schema": {"type": "object"}}]},
}
"""The parameters of methods; those that are not here are made from the class of the method's parameters."""
TEXTS: Final = ("s", "0" * 64, "1.0", "https://example.org/a")
"""Values of texts: the first one that fits a pattern is taken."""
DATES: Final = "2026-01-01T00:00:00Z"


def params_of(method: str, session_id: str = "s") -> dict[str, Any]:
    """Return good parameters of a method, about a session if it takes one."""
    params = METHODS[method].params
    found = PARAMS.get(method)
    if found is None:
        schemas = Schemas(strict=True)
        found = _made(schemas.of_class(params), schemas.definitions)
    whole = {**found, SESSION_ID: SESSION} if SESSION_ID in attrs.fields_dict(params) else found
    return {name: session_id if value == SESSION else value for name, value in whole.items()}


def _made(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:  # noqa: PLR0911 - one for each form
    """Return a value that fits a schema, with the members alone that have to be there."""
    if "$ref" in schema:
        return _made(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    if "anyOf" in schema:
        return _made(next(each for each in schema["anyOf"] if each != {"type": "null"}), definitions)
    match schema.get("type"):
        case "object":
            needed = schema.get("required", ())
            return {
                name: _made(each, definitions) for name, each in schema.get("properties", {}).items() if name in needed
            }
        case "string":
            return (
                DATES
                if "format" in schema
                else next(each for each in TEXTS if re.search(schema.get("pattern", ""), each))
            )
        case "integer" | "number":
            return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return False
        case "array":
            return []
    return "anything"


def request(method: str, params: Any, number: object = 7) -> dict[str, Any]:
    """Make a JSON-RPC request."""
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def _calls(names: Any) -> list[dict[str, Any]]:
    return [
        request(name, params_of(name, SESSION) if name in METHODS else PARAMS.get(name, ONE)) for name in sorted(names)
    ]


JSONRPC: Final = [
    *_calls(METHODS),
    request("session/create", {"prompt": None}),
    {"jsonrpc": "2.0", "id": "server-1", "result": {"content": "x", "is_error": False}},
    {"jsonrpc": "2.0", "method": "turn/interrupt", "params": ONE},
]
MEERKAT: Final = [*_calls(dialect_of("0.6").methods), request("tool/execute", {"name": "look", "arguments": {}})]
HELLO: Final = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
MCP: Final = [
    *(
        request(
            "tools/call",
            {
                "name": tool.name,
                "arguments": params_of(tool.method.name, SESSION),
                "_meta": {"progressToken": "p"},
            },
        )
        for tool in TOOLS.values()
    ),
    *(request(name, {}) for name in ("ping", "tools/list", "server/discover", "resources/list", "logging/setLevel")),
    request("initialize", HELLO),
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7, "reason": "enough"}},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]
_FOLDER: Final = {"cwd": "/home/ann", "mcpServers": []}
_OPEN: Final = {"sessionId": SESSION, **_FOLDER}
_SERVER: Final = {
    "type": "sse",
    "name": "a",
    "url": "b",
    "args": [],
    "env": [{"name": "c", "value": "d"}],
    "headers": [],
}
"""A server that is refused: one that is taken is there until its session is closed, which the gauges would show."""
ACP: Final = [
    request("initialize", {"protocolVersion": 1, "clientCapabilities": {"fs": {"readTextFile": True}}}),
    request("session/new", _FOLDER),
    request("session/new", {**_FOLDER, "mcpServers": [_SERVER]}),
    request("session/load", _OPEN),
    request("session/resume", {"sessionId": SESSION, "cwd": "/home/ann"}),
    request("session/list", {"cwd": "/home/ann", "cursor": "0"}),
    request("session/prompt", {"sessionId": SESSION, "prompt": [{"type": "text", "text": "hello"}]}),
    request("session/prompt", {"sessionId": SESSION, "prompt": [{"type": "resource", "resource": {"uri": "a"}}]}),
    request("session/prompt", {"sessionId": SESSION, "prompt": [{"type": "text", "text": "/help"}]}),
    request("session/set_mode", {"sessionId": SESSION, "modeId": "default"}),
    request("session/cancel", {"sessionId": SESSION}),
    request("session/close", {"sessionId": SESSION}),
    request("session/delete", {"sessionId": SESSION}),
]
