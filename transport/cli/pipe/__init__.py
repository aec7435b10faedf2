"""The commands that serve the program which starts them: `warren rpc`, `mcp` and `acp`."""
