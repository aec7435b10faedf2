"""A fault of the files stays with the files, and is made up for when its cause has ended."""

import errno
import shutil
from pathlib import Path

import pytest

from tests.storage.projection.faulty_disk import FaultyDisk, Trouble
from tests.storage.projection.histories import IDS, World
from warren.base.errors import StoreError
from warren.storage.projection import Follower


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT, errno.EACCES])
def test_a_disk_that_fails_for_a_while(world: World, error: int) -> None:
    """Every step says so while it lasts, by the store's own words for it; then the files are as if nothing had been."""
    trouble = Trouble()
    world.disk = lambda: FaultyDisk(trouble)
    for session in range(12):
        world.turn(session)
    world.step()
    trouble.error = error
    for session in range(12):
        world.turn(session, text="meanwhile")
    for _ in range(3):
        with pytest.raises(StoreError) as caught:
            world.step()
        assert "projections" in caught.value.message
        assert caught.value.cause == {13: "permission", 5: "io_error", 30: "read_only"}.get(error, "disk_full")
    assert world.follower.status().lag
    trouble.error = None
    assert world.settled() == world.rebuilt()
    assert world.follower.status().lag == 0


def test_a_few_that_cannot_be_written_hold_nobody_up(world: World) -> None:
    """Sessions whose folders have something in their way are tried again; all others go on, and the index."""
    (world.tenant() / "sessions").mkdir(parents=True)
    for session in (0, 1):
        world.path(session).write_text("in the way")
        world.turn(session)
    world.turn(2)
    world.step()
    status = world.follower.status()
    assert (status.stuck, status.written, status.lag) == (2, 1, 3)
    assert status.trouble is not None
    assert IDS[1] in status.trouble
    assert len(world.files()["index.jsonl"].splitlines()) == 3
    for session in (0, 1):
        world.path(session).unlink()
    world.clock.now += 10
    world.step()
    assert (world.follower.status().stuck, world.follower.status().trouble) == (0, None)
    assert world.settled() == world.rebuilt()


def test_no_checkpoint_goes_past_what_is_stuck(world: World) -> None:
    """A process that ends while some files cannot be written leaves that to the next one."""
    world.turn(0)
    world.turn(1)
    world.settled()
    shutil.rmtree(world.path(0))
    world.path(0).write_text("in the way")
    world.turn(0)
    world.turn(1)
    world.leave()
    world.path(0).unlink()
    world.step()
    assert world.settled() == world.rebuilt()


def test_links_are_not_followed_out_of_the_folder(world: World, tmp_path: Path) -> None:
    """A folder that is a link gets nothing, neither does a deleted session's link lose what it leads to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (world.tenant() / "sessions").mkdir(parents=True)
    for session in (0, 1):
        world.path(session).symlink_to(outside)
        world.turn(session)
    world.step()
    assert world.follower.status().stuck == 2
    world.delete(1)
    world.step()
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert not world.path(1).is_symlink()


def test_a_link_in_place_of_the_whole_folder(world: World, tmp_path: Path) -> None:
    """Nothing is written through it; it is said, and made up for when it is gone."""
    outside = tmp_path / "outside"
    outside.mkdir()
    world.turn()
    (world.config.path / "sessions").symlink_to(outside)
    with pytest.raises(StoreError, match="sessions"):
        world.step()
    assert list(outside.iterdir()) == []
    (world.config.path / "sessions").unlink()
    assert world.settled() == world.rebuilt()


def test_the_store_may_lie_behind_a_link(tmp_path: Path) -> None:
    """The user's own link to the store's folder is followed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "real")
    world = World.at(tmp_path / "store")
    world.turn()
    world.settled()
    world.close()
    assert (tmp_path / "real" / "sessions" / IDS[0] / "session.json").exists()


def test_something_in_the_way_of_the_index(world: World) -> None:
    """Sessions go on; the index comes when it can."""
    (world.tenant() / "index.jsonl").mkdir(parents=True)
    world.turn()
    world.step()
    assert world.path(name="session.json").exists()
    assert "index.jsonl" in str(world.follower.status().trouble)
    (world.tenant() / "index.jsonl").rmdir()
    world.clock.now += 10
    world.step()
    assert world.follower.status().trouble is None
    assert (world.tenant() / "index.jsonl").is_file()


def test_the_folder_is_removed_while_it_is_followed(world: World) -> None:
    """The next look at it makes all of it anew, also of sessions that never change again."""
    for session in range(5):
        world.turn(session)
    before = world.settled()
    shutil.rmtree(world.config.path / "sessions")
    world.clock.now += 1
    world.step()
    assert world.settled() == before


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_the_folder_is_gone_at_the_end(world: World, how: str) -> None:
    """A process that ends then writes nothing into what is no longer there; the next one makes it anew."""
    world.turn()
    before = world.settled()
    world.turn(1)
    folder = world.config.path / "sessions"
    shutil.rmtree(folder) if how == "removed" else folder.rename(folder.with_name("away"))
    world.leave()
    world.step()
    assert before.items() - world.settled().items() <= {("index.jsonl", before["index.jsonl"])}


def test_the_index_is_removed_while_nothing_changes(world: World) -> None:
    """It comes back by itself."""
    world.turn()
    before = world.settled()
    (world.tenant() / "index.jsonl").unlink()
    world.clock.now += 10
    world.step()
    assert world.files() == before


def test_the_store_is_gone(world: World) -> None:
    """If there is no store, nothing is made in its place."""
    nowhere = world.config.path / "nowhere"
    follower = Follower(world.config.__class__(nowhere))
    with pytest.raises(StoreError):
        follower.step(1)
    follower.close()
    assert not nowhere.exists()


def test_one_process_at_a_time(world: World) -> None:
    """The second one does nothing, and does not rebuild; when the first one dies it goes on from there."""
    world.turn(0)
    world.step()
    other = Follower(world.config, clock=world.clock)
    assert not other.step(1).more
    assert (other.status().projecting, other.status().lag) == (False, None)
    with pytest.raises(StoreError, match=r"process \d+ on .* keeps the projections up to date") as caught:
        other.begin_anew()
    assert caught.value.cause == "locked"
    world.turn(1)
    world.die()
    other.step(1)
    assert (other.status().projecting, other.status().lag) == (True, 0)
    assert world.path(1, "session.json").exists()
    other.close()
    assert world.settled() == world.rebuilt()


def test_the_lock_is_removed(world: World) -> None:
    """Whoever makes the file anew first projects from then on; the other one notices."""
    world.turn()
    world.step()
    (world.config.path / "projector.lock").unlink()
    other = Follower(world.config, clock=world.clock)
    other.step(1)
    assert other.status().projecting
    world.turn()
    world.step()
    assert (world.follower.status().projecting, world.follower.status().lag) == (False, None)
    other.close(1)
    assert world.settled() == world.rebuilt()


def test_the_process_goes_elsewhere(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that was named from the working folder is followed after that has changed."""
    monkeypatch.chdir(world.config.path.parent)
    follower = Follower(world.config.__class__(Path(world.config.path.name)))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    world.turn()
    follower.step(1)
    follower.close(1)
    assert world.path(name="session.json").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_damaged_store_is_said(world: World) -> None:
    """A table that cannot be read is an error of the store, not of the files; afterwards it goes on."""
    world.turn()
    world.sql("ALTER TABLE events RENAME TO hidden")
    with pytest.raises(StoreError):
        world.step()
    world.sql("ALTER TABLE hidden RENAME TO events")
    assert world.settled() == world.rebuilt()
