"""Claude Code's names for tools and their arguments: files that are written for it name our tools by these."""

from collections.abc import Mapping
from typing import Final

CLAUDE_TOOLS: Final[Mapping[str, str]] = {
    "Read": "read_file",
    "Write": "write_file",
    "Edit": "edit_file",
    "MultiEdit": "edit_file",
    "Glob": "list_files",
    "LS": "list_files",
    "Grep": "search_files",
    "Bash": "shell",
    "WebFetch": "fetch",
    "Task": "delegate",
    "Agent": "delegate",
}
"""Our tool for each of Claude's."""
CLAUDE_NAMES: Final[Mapping[str, str]] = {CLAUDE_TOOLS[name]: name for name in reversed(tuple(CLAUDE_TOOLS))}
"""Claude's name for each of our tools: the first one above."""
CLAUDE_ARGUMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "read_file": {"path": "file_path", "offset_lines": "offset", "limit_lines": "limit"},
    "write_file": {"path": "file_path"},
    "edit_file": {"path": "file_path", "old": "old_string", "new": "new_string"},
    "list_files": {"glob": "pattern"},
    "search_files": {"ignore_case": "-i"},
    "shell": {"timeout_seconds": "timeout"},
}
"""Claude's names for the arguments of our tools that have other names there."""
