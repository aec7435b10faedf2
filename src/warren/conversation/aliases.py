"""Aliases of options and tools: their names in the documents that Warren was designed from, and in Meerkat's protocol.

Every surface takes them; `docs/protocol.md` has the table. A request without an alias never comes here.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from warren.base.fields import FieldValueError
from warren.conversation.categories import Category, Switch

KINDS: Final[tuple[Category, ...]] = ("builtins", "shell", "memory")
"""The kinds of tools whose switch has an alias."""
TURN_OPTIONS: Final[Mapping[str, str]] = {
    "host_mode": "keep_alive",
    **{f"{verb}_{kind}": f"overrides.{kind}" for verb in ("override", "enable") for kind in KINDS},
}
"""The path of the option behind each alias that a turn takes."""
SESSION_OPTIONS: Final[Mapping[str, str]] = {**TURN_OPTIONS, "comms_name": "peer.name"}
"""The path of the option behind each alias that a new session takes."""
TOOLS: Final[Mapping[str, str]] = {"search_project_history": "memory_search"}
"""The tool behind each alias."""
SWITCHES: Final[Mapping[bool | None, Switch]] = {None: "inherit", True: "enable", False: "disable"}
"""The switches of tools by Meerkat's flags."""
_UNSET: Final[Collection[Any]] = (None, "inherit")


def resolved(given: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """Return options, as plain data, under their own names.

    Raises FieldValueError, which names the alias, if the option is given under its own name, too.
    """
    found = {name: value for name, value in given.items() if name not in paths}
    for alias in sorted(given.keys() & paths.keys()):
        *outer, name = paths[alias].split(".")
        inside = found
        for step in outer:
            within = found.get(step)
            inside = found[step] = dict(within) if isinstance(within, Mapping) else {}
        if inside.get(name) not in _UNSET:
            raise FieldValueError(alias, f"is an alias of `{paths[alias]}`, which is given too")
        value = given[alias]
        inside[name] = SWITCHES[value] if "overrides" in outer and isinstance(value, bool | None) else value
    return found


def given_as(path: str, given: Mapping[str, Any], paths: Mapping[str, str]) -> str:
    """Return the path of a bad value under the name that the request has for it."""
    return next((alias for alias in paths if alias in given and paths[alias] == path), path)
