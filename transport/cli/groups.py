"""Groups of commands, which are imported when they are needed, and the hints for a mistyped command or option."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import takewhile
from pkgutil import resolve_name
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

NEVER_SUGGESTED: Final = frozenset(
    {
        *("approve", "archive", "delete", "drain", "forget", "interrupt", "prune", "restore", "revoke"),
        *("--approve-all", "--contract", "--ephemeral", "--fix", "--force", "--isolated", "--remove", "--rewrite"),
        *("--archived", "--audit", "--events", "--superseded", "--usage", "--withdraw", "--yes"),
    }
)
"""Commands and options that end, replace or remove something, or let a model do so: they have to be typed in full."""
Table = Mapping[str, tuple[str, str]]
"""For each name of a command its place below `warren.transport.cli`, as `module:command`, and its line in a list."""


class CommandGroup(click.Group):
    """A group whose commands are suggested to a user who mistypes one, and so are those of the same name elsewhere."""

    def __init__(self, *args: Any, table: Table | None = None, **settings: Any) -> None:
        """Make a group.

        Args:
            args: as of click.Group.
            table: the commands that are imported when they are looked up: neither help nor another command waits for
                them.
            settings: as of click.Group.
        """
        super().__init__(*args, **settings)
        self.table: Table = table or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *self.table})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None if there is none of this name."""
        if cmd_name in self.table and cmd_name not in self.commands:
            self.add_command(resolve_name(f"warren.transport.cli.{self.table[cmd_name][0]}"))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of the commands, from the table as far as that has them."""
        names = self.list_commands(ctx)
        width = formatter.width - 6 - max(map(len, names))
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._listed(name).get_short_help_str(width)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions of a name: commands of the table, without their import, or options."""
        found = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self._listed(name).get_short_help_str()) for name in found]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def _listed(self, name: str) -> click.Command:
        return click.Command(name, help=self.table[name][1]) if name in self.table else self.commands[name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the first argument; the error for an unknown one suggests similar names."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {name!r}.{self._hint(ctx, name)}", ctx)
        return super().resolve_command(ctx, args)

    def _hint(self, ctx: click.Context, name: str) -> str:
        word, path, root = name.lower(), ctx.command_path, ctx.find_root()
        if word in NEVER_SUGGESTED:
            return ""
        if word in ("help", "version"):
            return hint([f"{path if word == 'help' else root.command_path} --{word}"])
        found = [f"{path} {each}" for each in _harmless(get_close_matches(word, self.list_commands(ctx)))]
        elsewhere = _named(root.command, root.command_path, word) if isinstance(root.command, click.Group) else ()
        return hint([*found, *sorted({*elsewhere}.difference(found), key=lambda each: (len(each), each))])


def hint(found: list[str]) -> str:
    """Return the sentence that suggests commands or options; "" without any."""
    return f" Did you mean {' or '.join(f'`{each}`' for each in found)}?" if found else ""


def harmless(error: click.ClickException) -> click.ClickException:
    """Return an error of click without suggestions of options that destroy."""
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        found = _harmless(error.possibilities)
        return click.NoSuchOption(error.option_name, f"{error.message}{hint(found)}", ctx=error.ctx)
    return error


def _harmless(nearest_first: Iterable[str]) -> list[str]:
    """Return the names that are nearer than the first one that destroys: the user may well have meant that one."""
    return list(takewhile(lambda each: each not in NEVER_SUGGESTED, nearest_first))


def commands_of(group: click.Group) -> Mapping[str, click.Command]:
    """Return the commands of a group by name. Those that were not needed before are imported."""
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def _named(group: click.Group, path: str, word: str) -> Iterator[str]:
    """Yield the commands of a name in a group, and in the groups below it."""
    for name, command in commands_of(group).items():
        if name == word and word not in NEVER_SUGGESTED:
            yield f"{path} {name}"
        if isinstance(command, click.Group):
            yield from _named(command, f"{path} {name}", word)
