"""Aliases of options: their names in the documents that Warren was designed from, and in Meerkat's command line."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, get_args

import click

from warren.conversation.aliases import KINDS
from warren.conversation.categories import Switch
from warren.transport.cli.settings.kinds import SWITCHES
from warren.transport.cli.settings.option import group

OVERRIDES: Final = {f"override_{kind}": kind for kind in KINDS}
ALIASES: Final = ("preset", *OVERRIDES)
"""The parameters of the options."""
alias_options: Final = group(
    click.option(
        "--tools",
        "preset",
        type=click.Choice(["full"]),
        help="The model may use the files of the working folder, the web, the shell and the memory.",
    ),
    *(
        click.option(
            f"--override-{kind}",
            type=click.Choice(get_args(Switch)),
            hidden=True,
            help=f"As --enable {kind} or --disable {kind}.",
        )
        for kind in KINDS
    ),
)


def resolved(
    given: Mapping[str, Any], named: Collection[str], *, at_server: bool
) -> tuple[Mapping[str, Any], Collection[str]]:
    """Return options under their own names, and the names of those that the user has set by these or by aliases.

    Args:
        given: the options of a command.
        named: the options that the user has set, on the command line or in the environment.
        at_server: whether another process runs the sessions, which has its tools already.
    """
    switched = {name: [kind for alias, kind in OVERRIDES.items() if given.get(alias) == name] for name in SWITCHES}
    preset: dict[str, Any] = {}
    if given.get("preset") == "full":
        if at_server:
            switched["enable"] += [kind for kind in KINDS if kind not in switched["disable"]]
        else:
            preset = {"root": given["root"] or Path(), "builtins": True, "shell": True, "memory": True}
    found = {name: value for name, value in preset.items() if name not in named}
    found |= {name: (*given[name], *kinds) for name, kinds in switched.items() if kinds}
    return {**given, **found}, {*named, *found}
