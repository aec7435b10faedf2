"""Tools for models: files, shell, web, clock, skills, MCP servers.

`workspace` makes the tools of a runtime from its settings. May import `supervision` and `streams` at the top of
`warren.actors`, and the domain.
"""
