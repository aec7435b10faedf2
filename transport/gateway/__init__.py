"""The gateway: one port that serves WebSocket clients itself and hands all other requests to REST and MCP.

May import `warren.transport.rest`, `mcp`, `http` and `rpc`, and the packages below transport.
"""
