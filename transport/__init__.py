"""Everything that crosses the process: gateway, command line and model providers."""
