"""Examples in the help of commands, and the commands of a group."""

from collections.abc import Mapping
from typing import Final

import click

UNWRAPPED: Final = "\b\n"
"""Click does not refill the lines after this character, up to a blank line."""


ID_HELP: Final = "ID is a session's id, the end of it that no other session has, or `last`."


def examples(*commands: str, note: str = "") -> str:
    """Return the end of a command's help: a note, if there is one, then commands to paste, each on its line."""
    lines = "\n".join(["Examples:", *(f"  {command}" for command in commands)])
    return (f"{note}\n\n" if note else "") + UNWRAPPED + lines


def commands_of(group: click.Group) -> Mapping[str, click.Command]:
    """Return the commands of a group by name. Those that were not needed before are imported."""
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}
