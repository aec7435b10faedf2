"""Makes commands of functions: their options come as one object, and their help ends with examples."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, Final

import click

from warren.transport.cli.settings.options import gather

UNWRAPPED: Final = "\b\n"
"""Click does not refill the lines after this character, up to a blank line."""
ID_HELP: Final = "ID is a session's id, the end of it that no other session has, or `last`."


def examples(*commands: str, note: str = "") -> str:
    """Return the end of a command's help: a note, if there is one, then commands to paste, each on its line."""
    lines = "\n".join(["Examples:", *(f"  {command}" for command in commands)])
    return (f"{note}\n\n" if note else "") + UNWRAPPED + lines


def command(
    *shown: str, name: str | None = None, note: str = "", of: click.Group | None = None, **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a command of a function.

    The function gets the parameters of the command that it names. If it has a parameter `options`, that gets the others
    as one object; see `gather`, which may raise.

    Args:
        shown: the examples in its help.
        name: its name, if it is not that of the function.
        note: a sentence before the examples.
        of: the group to which it belongs.
        settings: as of click.Command.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        names = signature(function).parameters

        @wraps(function)
        def run(**given: Any) -> Any:
            own = {each: given.pop(each) for each in names if each in given}
            return function(**own, **({"options": gather(given)} if "options" in names else {}))

        make: Any = click.command(name, epilog=examples(*shown, note=note), **settings)
        made: click.Command = make(run)
        if of is not None:
            of.add_command(made)
        return made

    return decorate
