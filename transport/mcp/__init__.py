"""The MCP server: Warren's sessions as tools for programs that speak the Model Context Protocol.

May import `warren.transport.rpc` and `http`, and the packages below transport.
"""
