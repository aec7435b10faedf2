"""The tools of MCP servers: processes and web services that speak the Model Context Protocol, as tools of sessions."""
