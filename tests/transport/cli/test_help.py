"""The examples of the help, and the completions of a shell."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner, Result

from tests.transport.cli.process import clean_environ
from warren.reports.audit import ACTIONS
from warren.transport.cli.app import cli as root
from warren.transport.cli.approvals import COLUMNS as OF_APPROVALS
from warren.transport.cli.completion import SHELLS
from warren.transport.cli.groups import CommandGroup, commands_of
from warren.transport.cli.models import COLUMNS as OF_MODELS
from warren.transport.cli.nodes import COLUMNS as OF_NODES
from warren.transport.cli.sessions import sessions
from warren.transport.cli.settings.options import Mode
from warren.transport.cli.settings.values import LIMITS
from warren.transport.cli.terminal import tables
from warren.transport.cli.tokens import TITLES

BASH = shutil.which("bash") or ""
PROMISED = (
    "run",
    "chat",
    "resume",
    "compact",
    "sessions list",
    "sessions show",
    "sessions delete",
    "sessions archive",
    "memory search",
    "serve",
    "rpc",
    "mcp",
    "acp",
    "doctor",
    "backup",
    "restore",
    "copy",
    "project rebuild",
    "store init",
    "store migrate",
    "store status",
    "config show",
    "completion",
    "models",
)


def leaves(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that can be run, with its words."""
    for name, command in commands_of(group).items():
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path}{name} ")


def shown_examples(command: click.Command) -> list[str]:
    """Return the lines under `Examples:`."""
    _, found, after = (command.epilog or "").partition("Examples:\n")
    assert found, command.name
    return [line.strip() for line in after.splitlines()]


def test_every_promised_command_is_there() -> None:
    """The commands that the documentation lists can be run."""
    assert set(PROMISED) <= {path for path, _ in leaves(root)}


@pytest.mark.parametrize("group", [root, sessions], ids=lambda group: group.name)
def test_a_list_of_commands_has_the_first_sentence_of_each(group: CommandGroup) -> None:
    """The table of a group, from which it lists commands without their import, says what their help says."""
    found = commands_of(group)
    assert {name: line for name, (_, line) in group.table.items()} == {
        name: " ".join((command.help or "").partition("\n\n")[0].split()) for name, command in found.items()
    }


@pytest.mark.parametrize(
    ("path", "command"), list(leaves(root)), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_has_examples_that_parse(path: str, command: click.Command) -> None:
    """Each example is of this command, and the command takes its options and arguments."""
    for example in shown_examples(command):
        words = shlex.split(example, comments=True)
        if words[0] == "eval":  # it runs what is inside
            words = shlex.split(words[1].removeprefix("$(").removesuffix(")"))
        start = words.index("warren") + 1
        end = next((at for at, word in enumerate(words) if at >= start and word in ("|", "<", ">")), len(words))
        arguments = words[start:end]
        assert arguments[: len(path.split())] == path.split(), example
        context = click.Context(root, info_name="warren")
        command.make_context(path, arguments[len(path.split()) :], parent=context)


METAVAR: Final = re.compile(r"\[?[A-Z0-9]+(?:[-=|:][A-Z0-9]+)*\]?(?:\.\.\.)?|[\[{][a-z0-9_:.|-]+[\]}]")
PYTHON: Final = re.compile(r"\b(?:None|True|False|[a-z]+_[a-z_]+(?:_of)?|[A-Z][a-z]+[A-Z]\w+Error)\b")
OF_THE_PROTOCOL: Final = frozenset({"web_search", "structured_output", "session_id", "text_id", *LIMITS, *ACTIONS})
"""Names with an underscore that a user meets in JSON, in the audit or in a list of tokens."""


@pytest.mark.parametrize(
    ("path", "command"), list(leaves(root)), ids=lambda value: value if isinstance(value, str) else ""
)
def test_help_has_no_names_of_the_code(path: str, command: click.Command) -> None:
    """Values are words for people, such as NAME, and no sentence has a Python name."""
    context = click.Context(command, info_name=path)
    for param in command.params:
        if getattr(param, "is_flag", False) or getattr(param, "hidden", False):
            continue
        assert METAVAR.fullmatch(param.make_metavar(context)), (param.opts, param.make_metavar(context))
    shown = command.get_help(context)
    variables = {str(param.envvar) for param in command.params}
    found = set(PYTHON.findall(shown.replace("\n", " "))) - OF_THE_PROTOCOL - variables
    assert found == set()


LISTS: Final = (
    ("sessions list", tables.COLUMNS),
    ("token list", TITLES),
    ("nodes list", OF_NODES),
    ("approvals", OF_APPROVALS),
    ("models", OF_MODELS),
)


@pytest.mark.parametrize(("path", "titles"), LISTS, ids=lambda value: value if isinstance(value, str) else "")
def test_the_help_of_a_list_has_its_columns(path: str, titles: tuple[str, ...]) -> None:
    """A program that reads the fields between tabs finds their number and their order in the help."""
    shown = " ".join(ask(*path.split(), "--help").stdout.split())
    fields = shown.partition("fields between tabs: ")[2].partition(".")[0].split(", ")
    assert len(fields) == len(titles)


def ask(*args: str) -> Result:
    """Run a command that looks at nothing but itself."""
    return CliRunner().invoke(root, args, obj=Mode(), prog_name="warren")


def test_help_shows_the_examples_line_by_line() -> None:
    """They are not filled into a paragraph, so they can be pasted."""
    lines = ask("sessions", "list", "--help").stdout.splitlines()
    assert "    warren sessions list --limit 10" in lines


@pytest.mark.parametrize("shell", SHELLS)
def test_the_completion_scripts_ask_warren(shell: str) -> None:
    """Each shell's script is printed, and nothing else."""
    done = ask("completion", shell)
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"_WARREN_COMPLETE={shell}_complete" in done.stdout


def test_another_shell_is_refused() -> None:
    """By name, with the ones that there are."""
    done = ask("completion", "tcsh")
    assert done.exit_code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in done.stderr


@pytest.mark.skipif(not BASH, reason="it is bash that completes")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["warren", "se"], {"serve", "sessions"}),
        (["warren", "config", "show", "--out"], {"--output"}),
    ],
)
def test_bash_completes(tmp_path: Path, words: list[str], expected: set[str]) -> None:
    """The script works in a real shell: it finds commands, options and their values."""
    program = tmp_path / "warren"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m warren "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "script").write_text(ask("completion", "bash").stdout, encoding="utf-8")
    array = " ".join(map(shlex.quote, words))
    code = (
        f"source ./script; COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; "
        '_warren_completion warren; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environ = clean_environ() | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [BASH, "--norc", "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == expected
    assert done.stderr == ""
