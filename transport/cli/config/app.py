"""The commands of `warren config`, their arguments and their help."""

from collections.abc import Iterator
from typing import Any

import click

from warren.transport.cli.groups import CommandGroup
from warren.transport.cli.help import commands_of, examples
from warren.transport.cli.options import Mode


class _SettingsCommand(click.Command):
    """A command with the options of all other commands that a variable or a file can set, too."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options of all commands. It is called late, when every command is defined."""
        own = super().get_params(ctx)
        return [*settings_of_commands(ctx.find_root().command), *own]


@click.group(cls=CommandGroup)
def config() -> None:
    """Look at the settings."""


@config.command(
    "show",
    cls=_SettingsCommand,
    epilog=examples(
        "warren config show",
        "warren config show --output json",
        "WARREN_MODEL=echo warren config show --max-steps 5",
    ),
)
@click.pass_context
def config_show(context: click.Context, /, **_: Any) -> None:
    """Show every setting, its value and its origin.

    The command line wins over the environment, the environment over the configuration file. Options that are given here
    are shown as another command would read them. API keys are not shown, only whether there is one.

    Piped, each setting is a line of fields between tabs: name, value, origin.
    """
    from warren.transport.cli.config import show as work  # noqa: PLC0415 - help does without it

    work.show(context, context.ensure_object(Mode))


def settings_of_commands(root: click.Command) -> list[click.Parameter]:
    """Return the options of all commands that a variable or a file can set too, each once."""
    from warren.transport.cli.config.file import FILE_NAMES  # noqa: PLC0415 - the other commands do without it

    found = [param for param in _options(root) if param.envvar is not None or param.name in FILE_NAMES]
    found.sort(
        key=lambda param: param.envvar is not None
    )  # of two options of one name, the one that is a setting stays
    return list({param.name: param for param in found}.values())


def _options(command: click.Command) -> Iterator[click.Option]:
    if isinstance(command, click.Group):
        for below in commands_of(command).values():
            yield from _options(below)
    yield from (param for param in command.params if isinstance(param, click.Option))
