"""The end of the help of commands: examples."""

from typing import Final

UNWRAPPED: Final = "\b\n"
"""Click does not refill the lines after this character, up to a blank line."""


ID_HELP: Final = "ID is a session's id, the end of it that no other session has, or `last`."


def examples(*commands: str, note: str = "") -> str:
    """Return the end of a command's help: a note, if there is one, then commands to paste, each on its line."""
    lines = "\n".join(["Examples:", *(f"  {command}" for command in commands)])
    return (f"{note}\n\n" if note else "") + UNWRAPPED + lines
