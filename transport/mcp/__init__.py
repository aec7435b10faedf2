"""The MCP server: Warren's sessions as tools for programs that speak the Model Context Protocol.

May import `warren.transport.rpc`, `http` and `event_text`, and the packages below transport.
"""
