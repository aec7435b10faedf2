"""`warren project`: the files of the store, as a user has them made anew."""

import json
import shutil
import signal
from pathlib import Path

from tests.support.postgres import database
from tests.support.waiting import wait_until
from tests.transport.cli.process import Cli, one_line


def files(folder: Path) -> dict[str, bytes]:
    """Return all files of the projection in the default store but the checkpoint, by their paths."""
    return written(folder / ".rkat")


def written(store: Path) -> dict[str, bytes]:
    """Return all files of a projection but the checkpoint, by their paths."""
    paths = [*store.glob("index.jsonl"), *store.glob("sessions/*/*")]
    return {str(path.relative_to(store)): path.read_bytes() for path in paths}


def test_a_turn_leaves_its_files(cli: Cli) -> None:
    """After `run` they are there, with what was said; a deleted session's are gone after `sessions delete`."""
    session = cli.run("run", "hello there", "--output", "json").data["session_id"]
    found = files(cli.folder)
    assert set(found) == {
        "index.jsonl",
        f"sessions/{session}/session.json",
        f"sessions/{session}/events.jsonl",
    }
    assert json.loads(found["index.jsonl"])["title"] == "hello there"
    cli.run("sessions", "delete", session)
    assert files(cli.folder) == {"index.jsonl": b""}


def test_rebuild_makes_the_same_files(cli: Cli) -> None:
    """Removed altogether they come back, to the byte; it says where they are and how many sessions there are."""
    for prompt in ("one", "two"):
        cli.run("run", prompt)
    before = files(cli.folder)
    shutil.rmtree(cli.folder / ".rkat" / "sessions")
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


def test_a_gateway_on_a_database_writes_the_files_where_asked(cli: Cli) -> None:
    """All sessions, also those of other processes; after kill -9 the next one catches up; `rebuild` changes nothing."""
    with database() as url:
        place = ("--store", url, "--project", "files")
        gateway = cli.start("serve", "--port", "0", *place)
        gateway.read_until("listening")
        first = cli.run("run", "one", "--store", url, "--output", "json").data["session_id"]
        wait_until((cli.folder / "files" / "sessions" / first / "session.json").exists)
        assert f"process {gateway.process.pid} " in one_line(cli.run("project", "rebuild", *place), 1)
        cli.run("run", "beside", "--store", url, "--project", "other")
        gateway.signal(signal.SIGKILL)
        gateway.process.wait()
        cli.run("resume", first, "two", "--store", url)
        gone = cli.run("run", "gone", "--store", url, "--output", "json").data["session_id"]
        assert cli.run("sessions", "delete", gone, "--store", url).code == 0
        again = cli.start("serve", "--port", "0", env={"WARREN_PROJECT": "files", "WARREN_STORE": url})
        again.read_until("listening")
        log = cli.folder / "files" / "sessions" / first / "events.jsonl"
        wait_until(lambda: b"two" in log.read_bytes())
        again.signal(signal.SIGTERM)
        again.end()
        found = written(cli.folder / "files")
        done = cli.run("project", "rebuild", *place)
        assert (done.code, done.out) == (0, "files: 2 sessions\n")
        assert written(cli.folder / "files") == found
        assert not (cli.folder / ".rkat").exists()
        cli.run("run", "three", "--store", url, "--project", "other")
        assert cli.run("project", "rebuild", *place).code == 0
        assert written(cli.folder / "other") == written(cli.folder / "files")


def test_a_folder_for_a_store_in_files_is_refused(cli: Cli) -> None:
    """Its files have their place, and the message says so: by flag and in the configuration file."""
    assert "storage.project: is a setting of a store in a database" in one_line(
        cli.run("run", "hi", "--project", "files"), 2
    )
    (cli.folder / "settings.toml").write_text('[storage]\nproject = "files"\n', encoding="utf-8")
    assert "storage.project" in one_line(cli.run("run", "hi", "--config", "settings.toml"), 2)
    assert not (cli.folder / "files").exists()
