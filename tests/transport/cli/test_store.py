"""`warren store init`, `migrate` and `status` as a user meets them: on files and in a database."""

import shutil
from pathlib import Path
from typing import Final

import apsw
import pytest

from tests.storage.conformance.faults import every, postgres_opened
from tests.storage.samples import turn
from tests.support.postgres import database, name_in, server
from tests.transport.cli.filling import HERE
from tests.transport.cli.process import Cli, one_line
from tests.transport.cli.terminals import Terminal
from warren.storage.postgres.schema import SCHEMA
from warren.storage.sqlite.file import VERSION

VERSIONS: Final = Path(__file__).parents[2] / "storage" / "versions"
NEWEST: Final = SCHEMA.version


def test_a_store_in_files(cli: Cli) -> None:
    """It is made once; a status makes nothing."""
    missing = cli.run("store", "status", *HERE, "--output", "json")
    assert (missing.code, missing.data["state"], missing.data["version"]) == (1, "missing", 0)
    assert "there is no store at store" in one_line(cli.run("store", "migrate", *HERE), 1)
    assert not (cli.folder / "store").exists()
    made = "store/sessions.sqlite3: version"
    first = cli.run("store", "init", *HERE, "--verbose")
    assert (first.out, first.err) == (f"{made} {VERSION}\n", "")
    assert cli.run("store", "init", *HERE).out == f"store/sessions.sqlite3: was there already, version {VERSION}\n"
    assert cli.run("store", "status", *HERE, "--output", "json").data == {
        "state": "current",
        "path": "store/sessions.sqlite3",
        "version": VERSION,
        "needs": VERSION,
        "known": VERSION,
        "release": None,
        "contractible": False,
        "programs": [],
    }
    assert cli.run("run", "hello", *HERE).code == 0


def test_a_file_of_another_version(cli: Cli) -> None:
    """An older one is migrated; a newer one is told apart from a damaged one, and refused by `migrate`."""
    (cli.folder / "store").mkdir()
    file = cli.folder / "store" / "sessions.sqlite3"
    shutil.copy(next(iter(sorted(VERSIONS.glob("*1*.sqlite3")))), file)
    old = cli.run("store", "status", *HERE, "--output", "json")
    assert (old.code, old.data["state"]) == (1, "older")
    migrated = cli.run("store", "migrate", *HERE, "--verbose")
    steps = VERSION - old.data["version"]
    assert migrated.err.count("INFO warren.storage: the session store gets what schema_") == steps
    assert f", {steps} of {steps}\n" in migrated.err
    assert migrated.out == f"store/sessions.sqlite3: version {old.data['version']} before, {VERSION} now\n"
    assert cli.run("store", "migrate", *HERE).out == f"store/sessions.sqlite3: up to date already, version {VERSION}\n"
    with apsw.Connection(str(file)) as db:
        db.pragma("user_version", 99)
    new = cli.run("store", "status", *HERE)
    assert (new.code, "too old for it" in new.out, "version:  99" in new.out) == (1, True, True)
    assert "has version 99" in one_line(cli.run("store", "migrate", *HERE), 1)


async def test_a_store_in_a_database(cli: Cli) -> None:
    """It is made once, and its living programs are named."""
    with database() as url:
        server().run(name_in(url), "DROP SCHEMA warren CASCADE")
        place = ("--store", url, "--output", "json")
        missing = cli.run("store", "status", *place)
        assert (missing.code, missing.data["state"]) == (1, "missing")
        assert "run `warren store init`" in cli.run("store", "migrate", *place).error["message"]
        assert cli.run("store", "status", *place).data["state"] == "missing"
        made = cli.run("store", "init", *place).data
        assert (made["state"], made["version"], made["needs"], made["programs"]) == ("current", NEWEST, 1, [])
        async with postgres_opened(url, lease=60.0) as store:
            await every(store, turn("a"))
            found = cli.run("store", "status", *place)
            ((program,), code) = found.data["programs"], found.code
            assert (program["version"], code) == (NEWEST, 0)
        again = cli.run("store", "init", "--store", url)
        assert again.out.endswith(f": was there already, version {NEWEST}\n")
        server().run(name_in(url), "UPDATE warren.meta SET version = 99")
        newer = cli.run("store", "status", *place)
        assert (newer.code, newer.data["state"]) == (0, "newer")
        server().run(name_in(url), "UPDATE warren.meta SET needs = 98, release = '7.0.0'")
        refused = cli.run("store", "migrate", "--store", url)
        assert "version 99 and need a program that knows version 98 (Warren 7.0.0" in one_line(refused, 1)
        assert "too old for it" in cli.run("store", "status", "--store", url).out


GRANTS: Final = """
    GRANT USAGE ON SCHEMA warren TO {0};
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA warren TO {0};
    GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA warren TO {0};
    ALTER DEFAULT PRIVILEGES IN SCHEMA warren GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {0};
    ALTER DEFAULT PRIVILEGES IN SCHEMA warren GRANT USAGE, SELECT ON SEQUENCES TO {0};
"""
"""The rights of a role that runs Warren: `docs/postgres.md` has the same ones."""


def test_a_role_that_may_not_create_tables(cli: Cli) -> None:
    """Every command tells it to ask another role; with the tables there it runs turns, and cannot change the tables."""
    with database() as url:
        name = name_in(url)
        role = f"app_{name}"
        server().run(name, f"DROP SCHEMA warren CASCADE; CREATE ROLE {role} LOGIN")
        limited = ("--store", url.replace("warren@", f"{role}@"))
        try:
            for command in (("run", "hello"), ("store", "init")):
                line = one_line(cli.run(*command, *limited), 1)
                assert "the tables of the store are missing, and this role may not change that" in line
                assert "run `warren store init` with a role that may" in line
            assert cli.run("store", "init", "--store", url).code == 0
            denied = one_line(cli.run("run", "hello", *limited), 1)
            assert "lacks a privilege (permission denied for schema warren)" in denied
            server().run(name, GRANTS.format(role))
            assert cli.run("run", "hello", *limited).code == 0
            # The table of a later version: its owner has made it, and the role may use it.
            server().run(name, "CREATE TABLE warren.later (name text)")
            assert cli.run("store", "status", *limited).code == 0
            server().run(name, f"SET ROLE {role}; SELECT FROM warren.later")
            server().run(name, "UPDATE warren.meta SET version = 0")
            line = one_line(cli.run("run", "hello", *limited), 1)
            assert "this role may not change that" in line
        finally:
            server().run(name, f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("args", [("--store", "postgresql://app:s3cret@127.0.0.1:1/db"), ("--ephemeral",)])
def test_no_store_can_be_reached(cli: Cli, args: tuple[str, ...]) -> None:
    """It is one line, without the password."""
    for command in ("init", "migrate", "status"):
        ended = cli.run("store", command, *args)
        assert ended.code in (1, 2)
        assert "Traceback" not in ended.err
        assert "s3cret" not in ended.out + ended.err


def test_a_bar_on_a_terminal(cli: Cli, terminal: Terminal) -> None:
    """A migration shows how far it is; piped, nothing but the result is said."""
    (cli.folder / "store").mkdir()
    shutil.copy(VERSIONS / "1.sqlite3", cli.folder / "store" / "sessions.sqlite3")
    terminal.start("store", "migrate", *HERE)
    shown = terminal.read_until(f"version 1 before, {VERSION} now\r\n")
    assert ("migrating" in shown, "100%" in shown) == (True, True), shown
