"""Tools for models: files, shell, web, clock, skills, MCP servers.

`workspace` makes the tools of a runtime from its settings. Of the actors this package may import `supervision` alone.
"""
