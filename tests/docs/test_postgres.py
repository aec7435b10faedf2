"""`docs/postgres.md`: what it prints for a shell and for a program works, on a database of the test."""

import signal
import tomllib
from typing import Any, Final

from tests.conftest import ROOT
from tests.docs.snippets import DOCS, blocks
from tests.support.postgres import database
from tests.transport.cli.process import Cli
from warren import open_supervisor

PAGE: Final = DOCS / "postgres.md"
SHOWN: Final = "postgresql://app@db.example.com/warren?sslmode=verify-full"


def text(language: str, part: str) -> str:
    """Return the block of a language that contains a text."""
    (found,) = [each.text for each in blocks(PAGE) if each.language == language and part in each.text]
    return found


def test_the_extra_exists() -> None:
    """The page installs by the name that the package gives to it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "pip install '.[postgres]'\n" in text("sh", "pip install")
    assert "psycopg" in project["optional-dependencies"]["postgres"][0]


def test_the_server_starts(cli: Cli) -> None:
    """The command serves the database."""
    with database() as url:
        program, *arguments = text("sh", "warren serve").replace(f'"{SHOWN}"', url).split()
        running = cli.start(*arguments, "--port", "0")
        assert program == "warren"
        running.read_until("listening on http://")
        running.signal(signal.SIGTERM)
        assert running.end().code == 0


async def test_the_program_opens_the_database() -> None:
    """The settings of the page open a supervisor, whose session is found again by the next one."""
    with database() as url:
        names: dict[str, Any] = {}
        exec(text("py", "open_supervisor").replace(SHOWN, url), names)  # noqa: S102
        assert names["open_supervisor"] is open_supervisor
        async with open_supervisor(names["config"]) as supervisor:
            session_id = (await supervisor.create_session("hello")).session_id
        async with open_supervisor(names["config"]) as supervisor:
            assert [each.session_id for each in (await supervisor.list()).sessions] == [session_id]


async def test_the_program_has_a_memory() -> None:
    """The settings of the page for a memory are those of a memory in the database."""
    with database() as url:
        names: dict[str, Any] = {}
        exec(text("py", "MemoryConfig").replace(SHOWN.partition("?")[0], url), names)  # noqa: S102
        async with open_supervisor(names["config"]) as supervisor:
            assert supervisor.health().memory is not None
        assert names["config"].memory.url == url


def test_a_store_moves_from_a_folder_to_a_database(cli: Cli) -> None:
    """The command of the page copies it."""
    assert cli.run("run", "hello").code == 0
    with database() as url:
        program, *arguments = text("sh", "warren copy").replace(f'"{SHOWN}"', url).split()
        assert program == "warren"
        assert cli.run(*arguments).out.endswith(": 1 sessions, 2 messages, 6 events\n")
