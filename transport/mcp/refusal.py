"""The protocol's error for a bad request, which is refused before any tool or resource handles it."""

from mcp.shared.exceptions import MCPError

from warren.errors import InvalidParamsError


def refusal(path: str, problem: str) -> MCPError:
    """Return the error that names the bad field by its path."""
    exc = InvalidParamsError(f"{path}: {problem}", path=path)
    return MCPError(code=exc.numbers.jsonrpc, message=exc.message, data=exc.body())
