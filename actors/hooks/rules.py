"""Rules for tool calls, such as `Bash(git *)`, by which a hook may be for some calls of a tool alone.

A rule is no guard: where it cannot tell, it holds, and the hook decides.
"""

import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Final

_BETWEEN: Final = re.compile(r"&&|\|\||\$\(|[;|&\n`()]")
_ASSIGNMENTS: Final = re.compile(r"\s*(?:[A-Za-z_]\w*=\S*\s+)*")
_DOMAIN: Final = "domain:"


def holds(rule: tuple[str, str | None], names: tuple[str, ...], args: Mapping[str, Any], root: str) -> bool:
    """Return whether a rule holds for a tool call.

    Args:
        rule: the tool and the pattern.
        names: the names of the call's tool.
        args: its arguments, with Claude's names.
        root: the folder from which patterns of paths begin; "" if there is none.
    """
    tool, pattern = rule
    if tool not in names:
        return False
    if pattern in (None, "", "*"):
        return True
    if isinstance(command := args.get("command"), str):
        return _fits_command(pattern, command)
    if isinstance(path := args.get("file_path", args.get("path")), str):
        return _fits_path(pattern, path, root)
    if pattern.startswith(_DOMAIN) and isinstance(url := args.get("url"), str):
        found = re.match(r"https?://(?:[^/@]*@)?([^/:?#]+)", url, re.IGNORECASE)
        return found is None or found[1].lower() == pattern.removeprefix(_DOMAIN).lower()
    return True


def _fits_command(pattern: str, command: str) -> bool:
    """Match a pattern with each command of a line."""
    try:
        shlex.split(command)
    except ValueError:
        return True
    fits = _command(pattern)
    if any(fits.fullmatch(_ASSIGNMENTS.sub("", part, count=1).strip()) for part in _BETWEEN.split(command)):
        return True
    says_more = len(pattern.replace(":*", " *").removesuffix("*").split()) > 1
    return says_more and ("$" in command or "`" in command)


@cache
def _command(pattern: str) -> "re.Pattern[str]":
    if pattern.endswith((":*", " *")):  # the command alone fits as well
        return re.compile(f"{_any(pattern[:-2])}(?:\\s.*)?", re.DOTALL)
    return re.compile(_any(pattern), re.DOTALL)


def _any(pattern: str) -> str:
    return ".*".join(map(re.escape, pattern.split("*")))


def _fits_path(pattern: str, path: str, root: str) -> bool:
    """Match a pattern with a path: below the root, unless it begins with //; without a slash, with the name alone."""
    pure = PurePosixPath(path)
    if pattern.startswith("//"):
        return _path(pattern[1:]).fullmatch(str(pure)) is not None
    below = pure.relative_to(root) if root and pure.is_relative_to(root) else pure
    if "/" not in pattern:
        return _path(pattern).fullmatch(pure.name) is not None
    return _path(pattern.removeprefix("./").removeprefix("/")).fullmatch(str(below)) is not None


@cache
def _path(pattern: str) -> "re.Pattern[str]":
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    made = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(made.get(part, re.escape(part)) for part in parts), re.DOTALL)
