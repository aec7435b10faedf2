"""`warren completion`: the script that makes a shell complete the commands and their options."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from warren.transport.cli.command import command
from warren.transport.cli.settings.names import COMPLETION
from warren.transport.cli.settings.options import log_option
from warren.transport.cli.terminal.streams import Streams

SHELLS: Final = ("bash", "zsh", "fish")


@command(
    'eval "$(warren completion bash)"                                      # in ~/.bashrc',
    'eval "$(warren completion zsh)"                                       # in ~/.zshrc, after compinit',
    "warren completion fish > ~/.config/fish/completions/warren.fish",
)
@click.argument("shell", type=click.Choice(SHELLS))
@log_option
@click.pass_context
def completion(context: click.Context, /, shell: str) -> None:
    """Print the script that makes SHELL complete this command.

    SHELL is bash (4.4 or newer), zsh or fish. The script asks `warren` itself for the completions.
    """
    root = context.find_root()
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - click has each of SHELLS
    Streams().write(kind(root.command, {}, root.info_name or "warren", COMPLETION).source())
