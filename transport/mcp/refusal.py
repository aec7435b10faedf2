"""The protocol's errors for a bad request, which is refused before any tool or resource handles it."""

from mcp.shared.exceptions import MCPError

from warren.base.errors import InvalidParamsError
from warren.transport.rpc import jsonrpc


def refusal(path: str, problem: str) -> MCPError:
    """Return the error that names the bad field by its path."""
    exc = InvalidParamsError.at(path, problem)
    return MCPError(code=exc.numbers.jsonrpc, message=exc.message, data=exc.body())


def bad_id() -> bytes:
    """Return the reply to a request whose id JSON-RPC allows and the protocol does not: a number with a fraction."""
    problem = InvalidParamsError.at("$.id", "must be a string or an integer")
    return jsonrpc.error(None, problem, jsonrpc.INVALID_REQUEST)
