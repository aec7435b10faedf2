"""Processes of this machine that have ended: who opens the store removes their rows, and no others."""

import contextlib
import os
from typing import Final

import psycopg
import pytest
from psycopg.rows import scalar_row

from tests.storage.conformance.faults import postgres_opened
from tests.support.postgres import database, name_in, server
from warren.storage.membership import status_text
from warren.storage.own_process import own_name
from warren.storage.postgres.schema import LOCK
from warren.storage.rows import moment

OWN: Final = own_name() or ""
ENDED: Final = f"{OWN.partition(' ')[0]} {2**30} 1"
KEY: Final = 4711
ENTER: Final = """
    WITH entered AS (
        INSERT INTO warren.holders (name, version, status, expires_at, graced_until, key)
        VALUES ('other', 1, %s, now() + interval '1 h', now() + interval '1 h', %s) RETURNING key
    ) INSERT INTO warren.writers (holder, generation, groups) SELECT key, 0, 0 FROM entered
"""
LEFT: Final = "SELECT (SELECT count(*) FROM warren.holders) + (SELECT count(*) FROM warren.writers)"

pytestmark = pytest.mark.skipif(not OWN, reason="the system has no names of processes")


@pytest.mark.parametrize(
    ("process", "left"),
    [(ENDED, 0), (OWN, 2), (f"x{ENDED}", 2), (None, 2)],
    ids=["ended", "lives", "elsewhere", "unknown"],
)
async def test_only_one_that_has_ended_for_sure_is_buried(process: str | None, left: int) -> None:
    """All others are taken for living ones until their leases say otherwise."""
    with database() as url:
        server().run(name_in(url), ENTER, status_text(moment(0), None, process=process), KEY)
        async with postgres_opened(url):
            assert server().run(name_in(url), LEFT) == [(left,)]


async def test_one_whose_connection_has_not_ended_stays() -> None:
    """The opening does not wait for it for long, and a later one buries it."""
    with database() as url:
        server().run(name_in(url), ENTER, status_text(moment(0), None, process=ENDED), KEY)
        with psycopg.connect(url, autocommit=True, row_factory=scalar_row) as held:
            held.execute("SELECT pg_advisory_lock(%s, %s)", (LOCK, KEY))
            async with postgres_opened(url):
                assert server().run(name_in(url), LEFT) == [(2,)]
        async with postgres_opened(url):
            assert server().run(name_in(url), LEFT) == [(0,)]


async def test_a_role_that_may_only_read_opens_the_store() -> None:
    """It buries nobody."""
    role = f"reader_{os.getpid()}"
    with database() as url, contextlib.ExitStack() as after:
        name = name_in(url)
        server().run(name, ENTER, status_text(moment(0), None, process=ENDED), KEY)
        server().run(name, f"CREATE ROLE {role} LOGIN")
        after.callback(server().run, name, f"DROP OWNED BY {role}; DROP ROLE {role}")
        server().run(name, f"GRANT USAGE ON SCHEMA warren TO {role}")
        server().run(name, f"GRANT SELECT ON ALL TABLES IN SCHEMA warren TO {role}")
        async with postgres_opened(url.replace("warren@", f"{role}@")):
            assert server().run(name, LEFT) == [(2,)]
