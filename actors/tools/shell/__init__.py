"""The tool that runs commands: each with a keeper process, which ends all of its processes.

`tool` makes it. `keeper` is a program of its own and imports nothing of Warren. May import what `tools` may import.
"""
