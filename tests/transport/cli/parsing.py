"""The commands' options, parsed without running them."""

from typing import Any

import click
from click.testing import CliRunner

from warren.transport.cli.app import cli
from warren.transport.cli.groups import commands_of
from warren.transport.cli.settings.options import Options, gather, label_option, turn_options


def parse(*argv: str, **environ: str) -> Options:
    """Return the options of a command that has all groups of them; raises what click raises."""
    seen: list[Options] = []

    @click.command()
    @label_option
    @turn_options("this turn")
    def command(**given: Any) -> None:
        seen.append(gather(given))

    runner = CliRunner(env={**dict.fromkeys(variables()), **environ})
    with runner.isolation(env=runner.env):
        command.main(list(argv), prog_name="warren", standalone_mode=False)
    return seen[0]


def variables() -> set[str]:
    """Return the environment variables of all options."""
    names = {param.envvar for command in commands_of(cli).values() for param in command.params}
    return {name for name in names if isinstance(name, str)}


def commands(group: click.Group) -> list[click.Command]:
    """Every command below a group."""
    below = [commands(one) if isinstance(one, click.Group) else [one] for one in commands_of(group).values()]
    return [command for part in below for command in part]
