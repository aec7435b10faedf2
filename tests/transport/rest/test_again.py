"""Answers that say whether a request may be sent again."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.transport.rest.serving import served

LOCK = """
import sqlite3, sys
lock = sqlite3.connect(sys.argv[1], isolation_level=None)
lock.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Have another process lock a database for a body: in this one two copies of SQLite would not see each other."""
    command = [sys.executable, "-c", LOCK, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        try:
            yield
        finally:
            process.communicate()


async def test_an_archived_session_conflicts(tmp_path: Path) -> None:
    """What it cannot do is 409, as it can be read; a session that is not there is 404."""
    async with served(tmp_path) as (_, http):
        made = (await http.post("/sessions", json={"prompt": "hi"})).json()["session_id"]
        await http.post(f"/sessions/{made}/archive")
        assert (await http.get(f"/sessions/{made}")).status_code == 200
        for path, body in (("messages", {"prompt": "x"}), ("resume", {}), ("context", {"text": "x"})):
            refused = await http.post(f"/sessions/{made}/{path}", json=body)
            assert (refused.status_code, refused.json()["code"]) == (409, "SESSION_NOT_FOUND"), path
        await http.delete(f"/sessions/{made}")
        assert (await http.post(f"/sessions/{made}/messages", json={"prompt": "x"})).status_code == 404


async def test_a_server_that_drains_asks_to_come_again() -> None:
    """Nothing was begun: 503, `Retry-After`, and `retryable`."""
    async with served() as (service, http):
        await service.drain()
        refused = await http.post("/sessions", json={"prompt": "hi"})
        body = refused.json()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (body["retryable"], body["details"]["cause"]) == (True, "shutting_down")


@pytest.mark.time_limit(60)
async def test_what_cannot_be_stored(tmp_path: Path) -> None:
    """A turn had begun, so it is 500 without `Retry-After`; later ones, and new sessions, are refused with 503."""
    async with served(tmp_path) as (_, http):
        made = (await http.post("/sessions", json={"prompt": "hi"})).json()["session_id"]
        with locked(tmp_path / "sessions.sqlite3"):
            failed = await http.post(f"/sessions/{made}/messages", json={"prompt": "again"})
            assert (failed.status_code, "retry-after" in failed.headers) == (500, False)
            assert (failed.json()["retryable"], failed.json()["details"]["cause"]) == (True, "locked")
            assert failed.json()["details"]["text"] == "again"
            for path in ("/sessions", f"/sessions/{made}/messages"):
                refused = await http.post(path, json={"prompt": "hi"})
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert (refused.json()["retryable"], refused.json()["details"]["cause"]) == (True, "locked")
                assert "text" not in refused.json()["details"]
