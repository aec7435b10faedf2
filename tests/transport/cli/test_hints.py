"""The hints for a mistyped command or option."""

import re

import pytest

from tests.transport.cli.parsing import commands
from tests.transport.cli.process import Cli
from warren.transport.cli.app import cli as root
from warren.transport.cli.groups import NEVER_SUGGESTED


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("session list", "`warren sessions`"),
        ("sesions", "`warren sessions`"),
        ("Sessions list", "`warren sessions`"),
        ("sessions lst", "`warren sessions list`"),
        ("sessions search doors", "`warren memory search`"),
        ("list", "`warren nodes list` or `warren token list` or `warren sessions list`"),
        ("sessions run hello", "`warren run`"),
        ("sessions help", "`warren sessions --help`"),
        ("version", "`warren --version`"),
        ("run --titel hello", "`--title`"),
        ("memory serach doors", "`warren memory search`"),
    ],
)
def test_a_mistyped_word_gets_a_hint(cli: Cli, words: str, hint: str) -> None:
    """The error suggests the nearest commands, those of the same name in other groups, or the nearest options."""
    done = cli.run(*words.split())
    assert done.code == 2
    assert f"Did you mean {hint}" in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [
        "sessions archiv x",
        "sessions serch x",
        "sessions delte x",
        "memory forgt x",
        "doctor prun",
        "prune",
        "restor x",
        "token revok x",
        "nodes drian x",
        "run --approve hello",
        "backup --forc x",
        "doctor prune --rewrit",
        "store migrate --contrct",
        "run --ephemerl hello",
        "sessions label x --remov a",
    ],
)
def test_no_hint_destroys(cli: Cli, words: str) -> None:
    """A command or option that ends, replaces or removes something is not suggested, however near it is."""
    done = cli.run(*words.split())
    assert done.code == 2
    suggested = set(re.findall(r"`(?:warren [a-z]+ )?([a-z-]+)`", done.err.partition("Did you mean")[2]))
    assert suggested & NEVER_SUGGESTED == set()


def test_what_asks_or_replaces_is_never_suggested() -> None:
    """Each command that asks before it works is in the list, and each option that replaces a file."""
    asks = {command.name for command in commands(root) for param in command.params if "--yes" in param.opts}
    assert asks <= NEVER_SUGGESTED
    assert {"--yes", "--force"} <= NEVER_SUGGESTED


def test_json_has_the_hint(cli: Cli) -> None:
    """A program that reads errors as JSON gets the same message."""
    done = cli.run("sesions", env={"WARREN_OUTPUT": "json"})
    assert done.error["message"] == "No such command 'sesions'. Did you mean `warren sessions`?"


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("run --tools most hello", "$.tools"),
        ("sessions list --tenant / --server ws://x", "$.tenant"),
        ("run --max-steps none hello", "$.max_steps"),
    ],
)
def test_the_path_of_a_bad_option_is_its_name(cli: Cli, words: str, path: str) -> None:
    """In JSON an error names the option as the user typed it, not its variable in the code."""
    error = cli.run(*words.split(), env={"WARREN_OUTPUT": "json"}).error
    assert error.get("details", {}).get("path") == path
