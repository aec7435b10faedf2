"""`warren project`: the files of the store, as a user has them made anew."""

import json
import shutil
import signal
from pathlib import Path

from tests.support.waiting import wait_until
from tests.transport.cli.process import Cli, one_line


def files(folder: Path) -> dict[str, bytes]:
    """Return all files of the projection but the checkpoint, by their paths."""
    store = folder / ".rkat"
    paths = [store / "index.jsonl", *store.glob("sessions/*/*")]
    return {str(path.relative_to(store)): path.read_bytes() for path in paths}


def test_a_turn_leaves_its_files(cli: Cli) -> None:
    """After `run` they are there, with what was said; a deleted session's are gone after `sessions delete`."""
    session = cli.run("run", "hello there", "--output", "json").data["session_id"]
    found = files(cli.folder)
    assert set(found) == {"index.jsonl", f"sessions/{session}/session.json", f"sessions/{session}/events.jsonl"}
    assert json.loads(found["index.jsonl"])["title"] == "hello there"
    cli.run("sessions", "delete", session)
    assert files(cli.folder) == {"index.jsonl": b""}


def test_rebuild_makes_the_same_files(cli: Cli) -> None:
    """Removed altogether they come back, to the byte; it says where they are and how many sessions there are."""
    for prompt in ("one", "two"):
        cli.run("run", prompt)
    before = files(cli.folder)
    shutil.rmtree(cli.folder / ".rkat" / "sessions")
    (cli.folder / ".rkat" / "index.jsonl").unlink()
    ended = cli.run("project", "rebuild")
    assert (ended.code, ended.out, ended.err) == (0, ".rkat: 2 sessions\n", "")
    assert files(cli.folder) == before
    assert cli.run("project", "rebuild", "--output", "json").data == {"path": ".rkat", "sessions": 2, "skipped": {}}
    assert files(cli.folder) == before


def test_rebuild_is_refused_while_a_gateway_follows(cli: Cli) -> None:
    """It says who does, and what to do; what it advises makes the gateway write all of it anew."""
    cli.run("run", "one")
    gateway = cli.start("serve", "--port", "0")
    gateway.read_until("listening")
    line = one_line(cli.run("project", "rebuild"), 1)
    assert f"process {gateway.process.pid} " in line
    assert "remove .rkat/sessions" in line
    error = cli.run("project", "rebuild", "--output", "json").error
    assert (error["code"], error["retryable"]) == ("SESSION_STORE_ERROR", True)
    before = files(cli.folder)
    shutil.rmtree(cli.folder / ".rkat" / "sessions")
    for name in before:
        wait_until((cli.folder / ".rkat" / name).exists)
    gateway.signal(signal.SIGTERM)
    gateway.end()
    assert files(cli.folder) == before


def test_rebuild_without_a_store(cli: Cli) -> None:
    """There is nothing to project, and nothing is made."""
    assert "there is no store" in one_line(cli.run("project", "rebuild"), 1)
    assert not (cli.folder / ".rkat").exists()


def test_rebuild_with_a_link_in_the_way(cli: Cli) -> None:
    """It names the place in one line, and touches nothing behind it."""
    cli.run("run", "one")
    store, outside = cli.folder / ".rkat", cli.folder / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    shutil.rmtree(store / "sessions")
    (store / "sessions").symlink_to(outside)
    assert "sessions" in one_line(cli.run("project", "rebuild"), 1)
    assert (outside / "kept").read_text() == "kept"
