"""The gateway: one port, on which it serves WebSockets itself and passes all other requests to REST and MCP.

May import `warren.transport.cluster.door`, `rest`, `mcp`, `http` and `rpc`, and the packages below transport.
"""
