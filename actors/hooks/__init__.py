"""Hooks that the settings name: commands and web addresses, in the dialect of Claude Code.

It imports `io` and `tools`.
"""
