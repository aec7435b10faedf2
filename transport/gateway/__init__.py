"""The gateway: one port that serves WebSocket clients itself and hands all other requests to REST.

Imports `warren.transport.rest`, `mcp`, `http` and `rpc`, and the layers below.
"""
