"""The variables of the settings in the tables that are made from classes."""

from collections.abc import Mapping
from typing import Final

from warren.transport.cli.settings.service_links import service_links

WORKER: Final = "WARREN_WORKER"
"""The variable with the place of a worker among the others of its command."""
COMPLETION: Final = "_WARREN_COMPLETE"
"""The variable for the questions of a completion script; click derives the same name from `warren`."""
PREFIXES: Final = tuple(
    f"WARREN_{table}_"
    for table in (
        "STORAGE",
        "LIMITS",
        "RETRY",
        "INTENSITY",
        "SERVE",
        "JWT",
        "TOOLS",
        "TRACES",
        "COMPACTION",
        "RETENTION",
    )
)
OPTIONS: Final[Mapping[str, str]] = {
    "limits.drain": "drain",
    "limits.model_silence": "model_silence",
    "storage.synchronous": "synchronous",
    "storage.projections": "projections",
    "storage.project": "project",
}
"""Settings with an option, and the name of the option in the code. The two share a variable."""
SHARED: Final = frozenset(f"WARREN_{option.upper()}" for option in OPTIONS.values())
BUDGET: Final = {
    "max_total_tokens": "max_tokens",
    "max_duration": "max_seconds",
    "max_tool_calls": "max_tool_calls",
    "max_steps": "max_steps",
    "max_cost": "max_cost",
}
"""The fields of a budget by the names of their options, which the file has too."""


def variable_of(name: str) -> str:
    """Return the variable of a setting by its name in the file."""
    return "WARREN_" + OPTIONS.get(name, name).replace(".", "_").upper()


def variables_in(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that set something in these tables, or would if there were such a setting."""
    found = [name for name, text in environ.items() if text and (name in SHARED or name.startswith(PREFIXES))]
    others = service_links(environ) if found else ()
    return [name for name in found if name not in others]
