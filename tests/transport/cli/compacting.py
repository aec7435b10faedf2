"""Commands that compact often, and their output."""

from typing import Any

from tests.transport.cli.process import Cli

LONG = "many words " * 200


OFTEN = ("--compact-threshold", "200", "--compact-every", "1", "--compact-keep", "1")


def shown(cli: Cli, session: str) -> Any:
    """Return what `sessions show` tells a program."""
    return cli.run("sessions", "show", session, "--output", "json").data
