"""What a model may use on this machine and of the network: files, the shell, the web, the clock, MCP servers."""
