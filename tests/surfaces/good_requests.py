"""Good requests of each surface, for noise to be made of. SESSION stands for a session that is there."""

from collections.abc import Mapping
from typing import Any, Final

from warren.transport.mcp.tools import TOOLS
from warren.transport.rpc.contracts import dialect_of
from warren.transport.rpc.methods import METHODS

SESSION: Final = "SESSION"
ONE: Final = {"session_id": SESSION}
PARAMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "initialize": {"client_info": {"name": "test", "version": "1"}},
    "session/create": {"prompt": "hi", "model": "echo", "labels": {"a": "b"}, "budget": {"max_steps": 3}},
    "session/watch": {"labels": {"a": "b"}, "include_archived": True},
    "session/list": {"offset": 0, "limit": 5, "labels": {"a": "b"}, "include_archived": True},
    "session/history": {**ONE, "offset": 0, "limit": 3},
    "session/subscribe": {**ONE, "after_seq": 0},
    "turn/start": {**ONE, "prompt": "and again", "max_tokens": 100},
    "tenants/list": {"all_tenants": False, "limit": 3},
    "usage/get": {"by": "model", "since": "2026-01-01T00:00:00Z", "limit": 3},
    "memory/search": {"query": "oats", "scope": "project", "limit": 3},
    "nodes/drain": {"name": "somewhere"},
    "memory/forget": {**ONE, "turn": 1},
    "file/put": {"data": "aGk=", "size": 2, "name": "a.txt"},
    "tools/register": {"tools": [{"name": "look", "description": "", "input_schema": {"type": "object"}}]},
}
"""The parameters of methods; those that are not here name a session at most."""
BARE: Final = (
    "initialized",
    "session/unwatch",
    "capabilities/get",
    "config/get",
    "health",
    "metrics/get",
    "metrics/history",
    "nodes/list",
    "store/check",
)
MORE: Final[Mapping[str, Mapping[str, Any]]] = {
    "session/inject_context": {"text": "t"},
    "session/withdraw": {"input_id": "i"},
    "tool/approve": {"call_id": "c", "decision": "allow"},
    "peer/send": {"to": "b", "body": "t"},
    "session/label": {"labels": {"a": "b"}},
    "session/attachment": {"sha256": "0" * 64},
}
"""More parameters of methods that have to be whole."""


def params_of(method: str) -> dict[str, Any]:
    """Return good parameters of a method."""
    found = PARAMS.get(method, {} if method in BARE else {"session_id": SESSION})
    return {name: "s" if value == SESSION else value for name, value in {**found, **MORE.get(method, {})}.items()}


def request(method: str, params: Any, number: object = 7) -> dict[str, Any]:
    """Make a JSON-RPC request."""
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def _calls(names: Any) -> list[dict[str, Any]]:
    return [request(name, PARAMS.get(name, {} if name in BARE else ONE)) for name in sorted(names)]


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
                "arguments": PARAMS.get(tool.method.name, ONE),
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
