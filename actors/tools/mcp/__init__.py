"""The client of MCP servers, which are processes or web services: their tools become tools of sessions.

`pool` is the way in. `connection` needs the extra `mcp` and is imported with the first server. May import what `tools`
may import.
"""
