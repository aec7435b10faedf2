"""The commands that the pages, the help and the messages name."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from tests.conftest import ROOT
from warren.transport.cli.app import cli
from warren.transport.cli.groups import commands_of

CODE: Final = ("src", "mailbox", "storage", "actors", "transport", "examples", "benchmarks")
NAMED: Final = re.compile(r"(?:`|^[ \t]*\$ |\| )warren ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?([^`\n|;]*)", re.MULTILINE)
FLAG: Final = re.compile(r"(?<=\s)--[a-z][a-z-]*")
OF_EVERY_COMMAND: Final = {"--help", "--version"}


def texts() -> Iterator[Path]:
    """Yield the pages and the sources."""
    yield from [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for folder in CODE:
        yield from sorted(path for path in (ROOT / folder).rglob("*.py") if "site-packages" not in path.parts)


def unknown(text: str) -> Iterator[str]:
    """Yield the commands and options in a text that do not exist."""
    top = commands_of(cli)
    for name, inner, rest in NAMED.findall(text):
        command = top.get(name)
        if isinstance(command, click.Group) and inner and (inner in commands_of(command) or name != "load"):
            command = commands_of(command).get(inner)
        if command is None:
            yield f"warren {name} {inner}".rstrip()
        elif type(command) is click.Command:  # others take the options of all commands, or pass them on
            known = OF_EVERY_COMMAND | {
                flag for param in command.params for flag in (*param.opts, *param.secondary_opts)
            }
            yield from (
                f"warren {name} {inner} {flag}" for flag in FLAG.findall(rest.partition(" -- ")[0]) if flag not in known
            )


@pytest.mark.parametrize(
    ("text", "found"), [("`warren prune`", 1), ("`warren doctor prune --dry-runs`", 1), ("$ warren models", 0)]
)
def test_an_unknown_command_is_found(text: str, found: int) -> None:
    """The check sees commands in words and in examples, with their options."""
    assert len(list(unknown(text))) == found


def test_every_named_command_is_real() -> None:
    """A page, a docstring or a message sends nobody to a command or an option that does not exist."""
    assert {
        os.fspath(path.relative_to(ROOT)): found
        for path in texts()
        if (found := list(unknown(path.read_text(encoding="utf-8"))))
    } == {}
