"""The MCP server: Warren's sessions as tools for the programs that speak the Model Context Protocol."""
