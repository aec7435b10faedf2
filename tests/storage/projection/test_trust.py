"""Files are trusted only as far as they are on the disk for certain, and of this state of this store."""

import os
import shutil
from pathlib import Path

import pytest

from tests.storage.projection.histories import World


def spoil(path: Path) -> None:
    """Leave a file as a power cut may: its length is right, what it holds is not."""
    size = path.stat().st_size
    path.write_bytes(bytes(size // 2) + path.read_bytes()[size // 2 :])


def checkpoint(world: World) -> Path:
    """Return the checkpoint's file."""
    return world.config.path / "sessions" / ".checkpoint.json"


def test_what_no_checkpoint_vouches_for_is_written_anew(world: World) -> None:
    """After a power cut files may be torn that were renamed: behind the checkpoint nothing of them is kept."""
    world.turn(0)
    world.settled()
    world.turn(0)
    world.turn(1)
    world.step()
    world.die()
    for session in (0, 1):
        spoil(world.path(session, "events.jsonl"))
    assert world.settled() == world.rebuilt()


def test_what_the_checkpoint_vouches_for_is_kept(world: World) -> None:
    """After a kill the sessions up to the checkpoint are not even looked at, until they change."""
    world.turn(0)
    world.turn(1)
    world.step()
    world.clock.now += 100
    world.step()
    world.die()
    world.path(0, "events.jsonl").write_text("of somebody else")
    world.turn(1)
    world.step()
    assert world.path(0, "events.jsonl").read_text() == "of somebody else"
    assert world.follower.status().written == 1


@pytest.mark.parametrize("raw", [b"", b"{", b"null", b"\x00" * 300, b'{"format":99}', b'{"format":3,"change":-5}'])
def test_a_damaged_checkpoint_begins_anew(world: World, raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """No line is there twice, nothing is missing, and it is said."""
    for session in range(3):
        world.turn(session)
    before = world.settled()
    world.leave()
    checkpoint(world).write_bytes(raw)
    spoil(world.path(1, "events.jsonl"))
    assert world.settled() == before
    assert len(caplog.messages) == 1


def test_a_checkpoint_from_the_future_begins_anew(world: World) -> None:
    """A store that was put back to an older copy has other sessions and other events than the files."""
    world.turn(0)
    world.turn(1)
    world.settled()
    copy = world.config.path.with_name("copy.sqlite3")
    world.sql("VACUUM INTO ?", (str(copy),))
    world.turn(0, text="lost")
    world.turn(1, text="lost")
    world.turn(2, text="lost")
    world.settled()
    restore(world, copy)
    files = world.settled()
    stale = {name for name in files if world.path(2).name in name}
    assert stale, "what this store does not know is not its to remove"
    assert {name: data for name, data in files.items() if name not in stale} == world.rebuilt()


@pytest.mark.parametrize("turns", [[], [0], [1], [0, 1], [0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
def test_an_older_copy_that_went_on(world: World, turns: list[int]) -> None:
    """It is noticed whichever sessions went on, and however far: the files are those of the store that is there."""
    world.turn(0)
    world.turn(1)
    world.settled()
    copy = world.config.path.with_name("copy.sqlite3")
    world.sql("VACUUM INTO ?", (str(copy),))
    kept = dict(world.turns)
    for session in (0, 1):
        world.turn(session, text="lost")
    world.settled()
    restore(world, copy)
    world.turns = kept
    for session in turns:
        world.turn(session, text="found")
        world.sql("UPDATE sessions SET updated_at = updated_at + 1 WHERE session_id = ?", (world.path(session).name,))
        world.sql("UPDATE events SET timestamp = timestamp + 7 WHERE session = ? AND seq > 3", (session + 1,))
    files = world.settled()
    assert not any(b"lost" in data for data in files.values())
    assert files == world.rebuilt()


def restore(world: World, copy: Path) -> None:
    """Put an older copy in the place of the store."""
    world.close()
    for path in world.config.path.glob("sessions.sqlite3*"):
        path.unlink()
    shutil.move(copy, world.config.path / "sessions.sqlite3")
    world.open()


def test_another_store_in_the_same_folder(world: World) -> None:
    """Files of a store that is gone stay where this one has no session of that name; its own are whole."""
    world.turn(0)
    world.turn(1)
    world.settled()
    world.close()
    for path in world.config.path.glob("sessions.sqlite3*"):
        path.unlink()
    world.open()
    world.turns.clear()
    for _ in range(4):
        world.turn(5)
    files = world.settled()
    assert world.path(0, "session.json").exists()
    assert len(files["index.jsonl"].splitlines()) == 1
    rebuilt = world.rebuilt()
    assert not world.path(0).exists()
    assert {name: data for name, data in files.items() if name in rebuilt} == rebuilt


@pytest.mark.parametrize("name", ["events.jsonl", "session.json", "summary.txt"])
@pytest.mark.parametrize("how", ["gone", "empty", "short", "long", "folder", "link", "hard link", "pipe"])
def test_files_that_somebody_spoiled(world: World, tmp_path: Path, name: str, how: str) -> None:
    """The next turn of that session puts right what can be put right; a folder in the way has to go first."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"not ours")
    world.compact()
    world.settled()
    path = world.path(name=name)
    data = path.read_bytes()
    path.unlink()
    match how:
        case "empty" | "short" | "long":
            path.write_bytes({"empty": b"", "short": data[:-1], "long": data + b"half a li"}[how])
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(outside)
        case "hard link":
            path.hardlink_to(outside)
        case "pipe":
            os.mkfifo(path)
    world.turn()
    if how == "folder":
        world.step()
        assert world.follower.status().stuck == (name != "summary.txt")
        path.rmdir()
    world.compact()
    files = world.settled()
    assert outside.read_bytes() == b"not ours"
    assert files == world.rebuilt()
