"""Groups of commands, and the hints for a mistyped command or option: none of them loses anything if it is followed."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import takewhile
from typing import Final

import click

from warren.transport.cli.help import commands_of

NEVER_SUGGESTED: Final = frozenset(
    {
        *("archive", "delete", "drain", "forget", "interrupt", "prune", "restore", "revoke"),
        *("--approve-all", "--contract", "--ephemeral", "--fix", "--force", "--isolated", "--remove", "--rewrite"),
        *("--archived", "--audit", "--events", "--superseded", "--usage", "--withdraw", "--yes"),
    }
)
"""Commands and options that end, replace or remove something, or let a model do so: they have to be typed in full."""


class CommandGroup(click.Group):
    """A group whose commands are suggested to a user who mistypes one, and so are those of the same name elsewhere."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click.Group; the error for an unknown command names the commands that may be meant."""
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
        found = [f"{path} {each}" for each in _close(word, self.list_commands(ctx))]
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


def _close(word: str, names: Sequence[str]) -> list[str]:
    return _harmless(get_close_matches(word, names))


def _harmless(nearest_first: Iterable[str]) -> list[str]:
    """Return the names that are nearer than the first one that destroys: the user may well have meant that one."""
    return list(takewhile(lambda each: each not in NEVER_SUGGESTED, nearest_first))


def _named(group: click.Group, path: str, word: str) -> Iterator[str]:
    """Yield the commands of a name in a group, and in the groups below it."""
    for name, command in commands_of(group).items():
        if name == word and word not in NEVER_SUGGESTED:
            yield f"{path} {name}"
        if isinstance(command, click.Group):
            yield from _named(command, f"{path} {name}", word)
