"""The options that give the model tools."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from warren.transport.cli.settings.option import group, option
from warren.transport.cli.settings.values import existing_folder_of

if TYPE_CHECKING:
    from warren.transport.cli.settings.file import ConfigFile

TOOLS: Final = ("root", "builtins", "shell", "skills", "mcp_config")
"""Their names."""
tool_options: Final = group(
    option("--root", type=existing_folder_of, metavar="DIR", help="The model may read and write the files in DIR."),
    option(
        "--builtins/--no-builtins",
        default=None,
        help="It may read the web and the clock too; with --no-builtins not even files, unless a client enables them.",
    ),
    option(
        "--shell/--no-shell",
        default=False,
        help="It may run commands, which start in --root DIR (needed) and can do whatever you can; off by default.",
    ),
    option(
        "--skills",
        type=existing_folder_of,
        multiple=True,
        metavar="DIR",
        help="It may load the skills in DIR; repeatable.",
    ),
    option(
        "--mcp-config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="It may use the MCP servers that a JSON file names under mcpServers.",
    ),
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
