"""The options that give the model tools, and watch over them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from warren.transport.cli.settings.of_commands import OfCommands
from warren.transport.cli.settings.option import group, of_field
from warren.transport.cli.settings.values import existing_folder_of

if TYPE_CHECKING:
    from warren.transport.cli.settings.file import ConfigFile

TOOLS: Final = ("root", "builtins", "shell", "skills", "mcp_config")
"""Their names."""
tool_options: Final = group(
    of_field(OfCommands, "root", type=existing_folder_of, metavar="DIR"),
    of_field(OfCommands, "builtins", "--builtins/--no-builtins", default=None),
    of_field(OfCommands, "shell", "--shell/--no-shell", default=False),
    of_field(OfCommands, "skills", type=existing_folder_of, metavar="DIR"),
    of_field(OfCommands, "mcp_config", type=click.Path(path_type=Path), metavar="FILE"),
    of_field(OfCommands, "hooks_files", "--hooks-file", "hooks_files", type=click.Path(path_type=Path), metavar="FILE"),
)


def tools_given(given: Mapping[str, Any], file: "ConfigFile | None") -> dict[str, Any]:
    """Return the settings of tools and their switches, as `Options` has them; without these options there are no tools.

    Raises InvalidParamsError.
    """
    asked = [name for name in TOOLS if given.get(name) not in (None, False, ())]
    if "root" not in given or (file is None and not asked and given["builtins"] is None):
        return {}
    from warren.transport.cli.settings.tools import switches_of, tools_of  # noqa: PLC0415 - few have tools

    return {"tools": tools_of(given, file, os.environ), "switches": switches_of(given)}
