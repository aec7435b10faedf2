"""Each tenant has a folder of its own, and no file of it has anything of another tenant."""

import json
import shutil

import pytest

from tests.storage.projection.faulty_disk import FaultyDisk, KilledError, Trouble
from tests.storage.projection.histories import IDS, World
from warren.storage.projection.formats import folder_of_tenant, tenant_of_folder


def listed(world: World, folder: str) -> list[str]:
    """Return the ids in the index of a tenant."""
    lines = (world.tenant(folder) / "index.jsonl").read_bytes().splitlines()
    return [json.loads(line)["id"] for line in lines]


def of_two(world: World) -> dict[str, bytes]:
    """Store two sessions of `acme` and one of `default`, and return the files."""
    for session, tenant in enumerate(("acme", "default", "acme")):
        world.turn(session, text=f"said in {tenant}", tenant=tenant)
    return world.settled()


def test_no_file_of_a_tenant_names_a_session_of_another(world: World) -> None:
    """Neither the index nor any other file, after a rebuild as well."""
    files = of_two(world)
    assert (listed(world, "acme"), listed(world, "default")) == ([IDS[0], IDS[2]], [IDS[1]])
    for name, data in files.items():
        for session_id, tenant in zip(IDS[:3], ("acme", "default", "acme"), strict=True):
            if name.startswith("tenants/acme/") != (tenant == "acme"):
                assert session_id not in name
                assert session_id.encode() not in data
    assert files == world.rebuilt()


def test_a_deletion_writes_the_index_of_its_tenant_alone(world: World) -> None:
    """The session is gone from the files of its tenant; the index of the other one is the file that it was."""
    of_two(world)
    other = (world.tenant() / "index.jsonl").stat()
    world.delete(0)
    files = world.settled()
    assert not any(IDS[0] in name for name in files)
    assert (listed(world, "acme"), listed(world, "default")) == ([IDS[2]], [IDS[1]])
    assert (world.tenant() / "index.jsonl").stat().st_ino == other.st_ino
    assert files == world.rebuilt()


def test_an_index_that_cannot_be_written_holds_no_tenant_up(world: World) -> None:
    """The error is in the status; the other tenant's index is written, and this one when its place is free."""
    (world.tenant("acme") / "index.jsonl").mkdir(parents=True)
    of_two(world)
    assert listed(world, "default") == [IDS[1]]
    assert "index.jsonl" in str(world.follower.status().trouble)
    (world.tenant("acme") / "index.jsonl").rmdir()
    assert world.settled() == world.rebuilt()


def test_names_that_differ_in_case_have_two_folders(world: World) -> None:
    """Folders are in small letters, and each leads back to its tenant."""
    for session, tenant in enumerate(("Acme", "acme", ".".join("AZ"), "checkpoint.json", "v1..2")):
        world.turn(session, tenant=tenant)
        folder = folder_of_tenant(tenant)
        assert folder == str(folder).lower()
        assert tenant_of_folder(str(folder)) == tenant
    files = world.settled()
    assert (listed(world, "%41cme"), listed(world, "acme")) == ([IDS[0]], [IDS[1]])
    assert [tenant_of_folder(name) for name in ("Acme", "%61cme", ".checkpoint.json", "..")] == [None] * 4
    assert files == world.rebuilt()


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden", "x" * 65, "a\n"])
def test_another_name_is_no_folder(world: World, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The session is left out and logged; the others have their files."""
    world.turn(0)
    world.turn(1)
    world.sql("UPDATE sessions SET tenant = ? WHERE session_id = ?", (name, IDS[0]))
    files = world.settled()
    assert IDS[0] in caplog.text
    assert not any(IDS[0] in path for path in files)
    assert listed(world, "default") == [IDS[1]]


def former(world: World) -> dict[str, bytes]:
    """Leave the files of two tenants as an earlier version had them; return the files that there should be."""
    expected = of_two(world)
    world.leave()
    root = world.config.path
    (root / "tenants" / "default").mkdir()
    for name in ("sessions", "index.jsonl"):
        shutil.move(root / name, root / "tenants" / "default" / name)
    shutil.move(root / "tenants" / "default" / "sessions" / ".checkpoint.json", root / "tenants")
    return expected


def test_the_former_layout_is_moved(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The files themselves are moved, those of the user too, and nothing is written again; the log says so once."""
    expected = former(world)
    old = world.config.path / "tenants" / "default" / "sessions"
    (old / "notes").write_text("of the user")
    inode = (old / IDS[1] / "session.json").stat().st_ino
    world.step()
    assert world.path(1, "session.json").stat().st_ino == inode
    assert (world.config.path / "sessions" / "notes").read_text() == "of the user"
    assert world.follower.status().written == 0
    (world.config.path / "sessions" / "notes").unlink()
    assert world.settled() == expected
    world.leave()
    world.settled()
    assert caplog.messages == ["the projections in tenants/default were moved to sessions"]
    assert not old.parent.exists()


def test_a_file_of_the_user_whose_name_is_taken_stays(world: World) -> None:
    """The former layout is moved around it, and the file that is there stays, too."""
    former(world)
    old, now = world.config.path / "tenants" / "default" / "sessions", world.config.path / "sessions"
    (old / "notes").write_text("old")
    now.mkdir(exist_ok=True)
    (now / "notes").write_text("new")
    world.settled()
    assert [path.name for path in old.iterdir()] == ["notes"]
    assert [(each / "notes").read_text() for each in (old, now)] == ["old", "new"]


def follow_a_turn(world: World) -> None:
    """Open the projection, and write the files of one more turn."""
    world.settled()
    world.turn(3)
    world.settled()


@pytest.mark.parametrize("call", range(1, 12))
def test_killed_while_the_former_layout_is_moved(world: World, call: int) -> None:
    """The next process moves the rest."""
    expected = former(world)
    world.disk = lambda: FaultyDisk(Trouble(kill_at=call))
    with pytest.raises(KilledError):
        follow_a_turn(world)
    world.die()
    world.disk = FaultyDisk.__mro__[1]
    found = world.settled()
    assert {name: data for name, data in found.items() if IDS[3] not in name and name != "index.jsonl"}.items() >= {
        name: data for name, data in expected.items() if name != "index.jsonl"
    }.items()
    assert found == world.rebuilt()


def test_the_first_layout_is_sorted_by_tenants(world: World) -> None:
    """It had the sessions of all tenants in one folder: those of others leave it, and a file of the user stays."""
    expected = of_two(world)
    world.leave()
    root = world.config.path
    for path in root.glob("tenants/*/sessions/*"):
        shutil.move(path, root / "sessions" / path.name)
    shutil.rmtree(root / "tenants")
    (root / "index.jsonl").write_text("of all tenants")
    (root / "sessions" / ".checkpoint.json").rename(root / "sessions" / "checkpoint.json")
    (root / "sessions" / "notes").write_text("of the user")
    found = world.settled()
    assert found.pop("sessions/notes") == b"of the user"
    assert found == expected
    assert not (root / "sessions" / "checkpoint.json").exists()


def test_the_folder_of_tenants_is_removed_while_nobody_follows(world: World) -> None:
    """The next process makes its files again."""
    expected = of_two(world)
    world.leave()
    shutil.rmtree(world.config.path / "tenants")
    assert world.settled() == expected
