"""`warren config show`: every setting with its value and what set it."""

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.transport.cli.parsing import commands
from tests.transport.cli.process import SETTINGS, Cli, one_line
from warren.base.errors import InvalidParamsError
from warren.settings.config import Limits
from warren.transport.cli.app import cli as root
from warren.transport.cli.settings.file import read_config
from warren.transport.cli.settings.options import Mode
from warren.transport.cli.settings.table import FILE_NAMES
from warren.transport.cli.settings.table import SETTINGS as ALL

FILE = """
model = "from-the-file"
max_steps = 7
memory = true
temperature = 0.5

[compaction]
window = 9000

[retention]
events = "1d12h"

[serve]
port = 9
origins = ["https://example.org"]

[limits]
max_sessions = 3
drain = "0"

[limits.turn]
max_duration = "2m"

[retry]
factor = 1.5
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def with_file(folder: Path, text: str = FILE) -> None:
    """Write the file that is read unless another one is named."""
    (folder / ".rkat").mkdir()
    (folder / ".rkat" / "config.toml").write_text(text, encoding="utf-8")


def show(*args: str, **environ: str) -> str:
    """Return what the command writes; nothing of the environment of whoever runs the tests is in it."""
    without = {name: None for name in os.environ if name.startswith(SETTINGS)}
    done = CliRunner(env={**without, **environ}).invoke(root, ["config", "show", *args], obj=Mode())
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def shown(*args: str, **environ: str) -> dict[str, tuple[Any, str, str | None]]:
    """Return each setting's value, source and place."""
    rows = json.loads(show("--output", "json", *args, **environ))["settings"]
    return {row["name"]: (row["value"], row["source"], row.get("where")) for row in rows}


def test_each_setting_says_where_it_came_from(folder: Path) -> None:
    """The command line wins over the environment, that over the file, the file over what is built in."""
    with_file(folder)
    found = shown("--max-steps", "5", "--no-memory", WARREN_MODEL="from-outside", WARREN_MAX_STEPS="6")
    file = ".rkat/config.toml"
    assert found["model"] == ("from-outside", "environment", "WARREN_MODEL")
    assert found["max_steps"] == (5, "flag", "--max-steps")
    assert found["memory"] == (False, "flag", "--no-memory")
    assert found["compaction.window"] == (9000, "file", file)
    assert found["retention.events"] == (36 * 3600, "file", file)
    assert found["serve.port"] == (9, "file", file)
    assert found["serve.origins"] == (["https://example.org"], "file", file)
    assert found["limits.max_sessions"] == (3, "file", file)
    assert found["limits.drain"] == (0, "file", file)
    assert found["limits.turn.max_duration"] == (120, "file", file)
    assert found["limits.turn.max_steps"] == (100, "default", None)
    assert found["retry.factor"] == (1.5, "file", file)
    assert found["retry.max_attempts"] == (3, "default", None)
    assert shown("--drain", "1m")["limits.drain"] == (60, "flag", "--drain")
    assert found["config"] == (file, "default", None)
    assert found["compaction.recent_turn_budget"] == (4, "default", None)
    assert found["compaction.auto_compact_threshold"] == (100_000, "default", None)
    assert found["store"] == (".rkat", "default", None)


def test_another_file_can_be_looked_at(folder: Path) -> None:
    """The file that is named is the one that is read, and the one that is told of."""
    with_file(folder)
    (folder / "other.toml").write_text("[compaction]\nenabled = false\n", encoding="utf-8")
    found = shown("--config", "other.toml")
    assert found["config"] == ("other.toml", "flag", "--config")
    assert found["compaction.enabled"] == (False, "file", "other.toml")
    assert found["model"] == ("echo", "default", None)


def test_what_is_shown_holds(cli: Cli, folder: Path) -> None:
    """A command that is given the same takes the value that was shown, and listens at the port of the file."""
    with_file(folder, 'model = "echo"\nsystem = "be kind"\n[serve]\nhost = "192.0.2.1"\n')
    assert shown()["system"] == ("be kind", "file", ".rkat/config.toml")
    cli.run("run", "hello")
    (first, *_) = cli.run("sessions", "show", "last", "--output", "json").data["messages"]
    assert first["message"]["content"] == "be kind"
    assert "192.0.2.1" in one_line(cli.run("serve"), 2)


def test_secrets_are_not_shown() -> None:
    """Of a key only that it is there, of an address all but user and password, in either form."""
    environ = {
        "OPENAI_API_KEY": "sk-very-secret",
        "OPENAI_BASE_URL": "http://someone:secret@127.0.0.1:8000/v1?token=secret",
        "ANTHROPIC_BASE_URL": "http://[secret",
    }
    found = shown(**environ)
    assert found["openai.api_key"] == ("***", "environment", "OPENAI_API_KEY")
    assert found["openai.base_url"] == ("http://***@127.0.0.1:8000/v1?***", "environment", "OPENAI_BASE_URL")
    assert found["anthropic.api_key"] == (None, "default", None)
    assert "secret" not in json.dumps(found)
    assert "secret" not in show(**environ)


def test_every_setting_is_shown() -> None:
    """Whatever a file may have, and each option of any command that has a variable."""
    found = shown()
    options = [param for command in commands(root) for param in command.params if isinstance(param, click.Option)]
    named = {str(param.name) for param in options if param.envvar is not None}
    assert {FILE_NAMES.get(name, name) for name in named} | set(ALL) <= set(found)
    assert found["limits.drain"] == (Limits().drain, "default", None)


def test_a_pipe_gets_fields(folder: Path) -> None:
    """Name, value and origin between tabs, a line each; what is not set is a dash, a duration has its unit."""
    with_file(folder)
    rows = [line.split("\t") for line in show().splitlines()]
    assert ["model", "from-the-file", "file .rkat/config.toml"] in rows
    assert ["max_tokens", "-", "default"] in rows
    assert ["retention.events", "129600s", "file .rkat/config.toml"] in rows
    assert ["retry.factor", "1.5", "file .rkat/config.toml"] in rows
    assert ["temperature", "0.5", "file .rkat/config.toml"] in rows
    assert {len(row) for row in rows} == {3}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[serve]\nport = 70000\n", "config.serve.port"),
        ("[serve]\nport = '1'\n", "config.serve.port"),
        ("[serve]\norigins = 'https://example.org'\n", "config.serve.origins"),
        ("[serve]\ntoken = 'secret'\n", "config.serve"),
        ("token_file = 'x'\n", "token_file"),
        ("store = 'mysql://me:secret@db/warren'\n", r"config\.store: is a URL \(mysql:…\), and has to be"),
    ],
)
def test_a_bad_file_is_refused_by_the_name_of_the_field(folder: Path, text: str, problem: str) -> None:
    """A setting that would start a server somewhere else, or let in somebody else, is never a guess."""
    with_file(folder, text)
    with pytest.raises(InvalidParamsError, match=problem):
        read_config(folder / ".rkat" / "config.toml")


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("kept", {"lease": "15s", "synchronous": "FULL", "projections": "true", "busy_timeout": "5s"}),
        ("postgresql:///app", {"lease": "12s", "synchronous": "-", "projections": "-", "busy_timeout": "-"}),
    ],
)
def test_the_settings_of_the_store_are_those_that_hold_for_it(cli: Cli, place: str, shown: dict[str, str]) -> None:
    """A store in a database has defaults of its own, and no settings of files; a set value is shown as it is."""
    rows = [line.split("\t") for line in cli.run("config", "show", env={"WARREN_STORE": place}).out.splitlines()]
    found = {name.removeprefix("storage."): value for name, value, _ in rows if name.startswith("storage.")}
    assert {name: found[name] for name in shown} == shown
    set_ = cli.run("config", "show", "--store", place, env={"WARREN_STORAGE_LEASE": "7s"}).out
    assert "storage.lease\t7s\tenvironment WARREN_STORAGE_LEASE\n" in set_


def test_projections_of_a_database_contradict_a_folder(cli: Cli) -> None:
    """A database has no files beside it, so `false` alone is no contradiction; a folder for them beside it is one."""
    ended = cli.run("run", "hi", "--store", "postgresql:///app", "--no-projections", "--project", "files")
    assert ended.code == 2
    assert "storage.projections: is false, and `project` names a folder for them" in ended.err
