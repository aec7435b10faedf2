"""Commands on a store in PostgreSQL: `--store postgresql://...`."""

import json
import re

import pytest

from tests.support.postgres import database, name_in, server
from tests.transport.cli.process import WITHOUT, Cli, one_line

NOWHERE = "postgresql://app:s3cret@127.0.0.1:1/db"


def test_a_session_goes_on_in_the_next_command(cli: Cli) -> None:
    """By flag, by variable and by the configuration file; nothing is made in the folder."""
    with database() as url:
        begun = cli.run("run", "hello there", "--store", url, "--output", "json")
        assert begun.code == 0, begun.err
        session_id = begun.data["session_id"]
        assert cli.run("resume", "last", "again", env={"WARREN_STORE": url}).code == 0
        assert not (cli.folder / ".rkat").exists()
        (cli.folder / ".rkat").mkdir()
        (cli.folder / ".rkat" / "config.toml").write_text(f"store = {json.dumps(url)}\n", encoding="utf-8")
        shown = cli.run("sessions", "show", session_id, "--output", "json").data
        assert [each["message"]["content"] for each in shown["messages"] if each["message"]["role"] == "user"] == [
            "hello there",
            "again",
        ]
        assert [each["session_id"] for each in cli.run("sessions", "list", "--output", "json").data["sessions"]] == [
            session_id
        ]
        assert [each.name for each in (cli.folder / ".rkat").iterdir()] == ["config.toml"]


FOR_FILES = {
    "backup x": "copy it by `pg_dump -Fc --schema=warren`",
    "restore x": "make it anew by `pg_restore`",
    "project rebuild": "name it with --project",
    "doctor prune --rewrite": "`VACUUM FULL`",
}


@pytest.mark.parametrize("command", FOR_FILES)
def test_a_command_for_files_says_so(cli: Cli, command: str) -> None:
    """It does not open the database, and names the tool that takes its place."""
    line = one_line(cli.run(*command.split(), "--store", NOWHERE), 2)
    assert FOR_FILES[command] in line
    assert "s3cret" not in line


def test_the_doctor_and_retention(cli: Cli) -> None:
    """Their output has the shape that it has for a store in files."""
    with database() as url:
        server().run(name_in(url), f"ALTER DATABASE {name_in(url)} SET synchronous_commit = 'on'")
        place = ("--store", url)
        for prompt in ("one", "two"):
            assert cli.run("run", prompt, *place).code == 0
        examined = cli.run("doctor", *place, "--full")
        facts = [line.partition(":")[0] for line in examined.out.splitlines()]
        assert facts[:7] == ["store", "schema", "server", "pgvector", "tables", "sessions", "rows"]
        assert re.search(r"^sessions: +2 open, 0 archived, 0 deleted$", examined.out, re.MULTILINE)
        assert "problem: fsync is off" in examined.out
        assert (examined.code, examined.out.splitlines()[-1]) == (1, "2 problems")
        report = cli.run("doctor", *place, "--output", "json", "--fix").data
        assert (report["healthy"], report["store"]["messages"], report["fixed"]) == (False, 4, [])
        assert report["store"]["synchronous_commit"] == "on"
        would = cli.run("doctor", "prune", "--events", "1d", "--dry-run", *place)
        assert would.out == "would go: 0 messages, 0 events, 0 archived sessions; 0 B of text\n"
        server().run(name_in(url), "UPDATE warren.events SET timestamp = 0")
        gone = cli.run("doctor", "prune", "--events", "1d", *place)
        assert re.fullmatch(
            r"gone: 0 messages, \d+ events, 0 archived sessions\nthe tables: .* before, .* after\n", gone.out
        )
        assert cli.run("doctor", *place, "--output", "json").data["store"]["events"] == 0
        assert cli.run("resume", "last", "three", *place).out == "three\n"


@pytest.mark.parametrize("args", [("--synchronous", "NORMAL"), ("--projections",)])
def test_a_setting_that_has_no_effect_is_refused(cli: Cli, args: tuple[str, ...]) -> None:
    """Settings of files need a folder."""
    line = one_line(cli.run("run", "hello", "--store", NOWHERE, *args), 2)
    assert args[0].lstrip("-") in line
    assert "s3cret" not in line


def test_the_password_is_never_shown(cli: Cli) -> None:
    """Neither by an error nor by `config show`, whatever is verbose."""
    for output in (("--output", "json"), ("--verbose",)):
        failed = cli.run("run", "hello", "--store", NOWHERE, *output)
        assert failed.code == 1
        assert "s3cret" not in failed.out + failed.err
        assert "app:***@127.0.0.1:1/db" in failed.err
    for given in ({"WARREN_STORE": NOWHERE}, {}):
        if not given:
            (cli.folder / ".rkat").mkdir()
            (cli.folder / ".rkat" / "config.toml").write_text(f"store = '{NOWHERE}'\n", encoding="utf-8")
        for form in ("json", "text"):
            shown = cli.run("config", "show", "--output", form, env=given)
            assert "s3cret" not in shown.out + shown.err
            assert "postgresql://app:***@127.0.0.1:1/db" in shown.out


def test_the_missing_extra_is_named(cli: Cli) -> None:
    """A store that was named is never replaced by another one."""
    failed = cli.run("run", "hello", "--store", NOWHERE, "--output", "json", python=("-c", WITHOUT, "psycopg"))
    assert (failed.code, failed.error["code"]) == (1, "SESSION_PERSISTENCE_DISABLED")
