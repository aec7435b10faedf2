"""Whatever happens to sessions, and to the processes that project them: the files are those that a rebuild makes."""

import json
from typing import Final

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.projection.histories import IDS, World
from tests.storage.samples import kept, step, turn

VERBS: Final = ("turn", "turn", "turn", "compact", "archive", "delete", "retain")
doings = st.tuples(st.sampled_from(VERBS), st.integers(0, 3))
followings = st.sampled_from(("step", "step", "leave", "die", "wait"))
scripts = st.lists(doings | followings, max_size=20)


def play(world: World, script: list[tuple[str, int] | str]) -> None:
    """Do what a script says; what the store refuses is passed over."""
    gone: set[int] = set()
    for line in script:
        if line == "wait":
            world.clock.now += 40
        elif isinstance(line, str):
            getattr(world, line)()
        elif line[1] in gone or (line[0] not in ("turn", "compact") and not knows(world, line[1])):
            continue
        else:
            getattr(world, line[0])(line[1])
            gone |= {line[1]} if line[0] == "delete" else set()


def knows(world: World, session: int) -> bool:
    """Tell whether a session has had a turn."""
    return world.path(session).name in world.turns


@given(scripts)
def test_what_is_followed_is_what_is_rebuilt(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, int] | str]
) -> None:
    """Files that grew turn by turn, over ends and kills of the projector, equal those made at once, to the byte."""
    world = World.at(tmp_path_factory.mktemp("history") / "store")
    try:
        play(world, script)
        followed = world.settled()
        assert world.follower.status().lag == 0
        assert followed == world.rebuilt()
    finally:
        world.close()


def test_new_turns_are_appended(world: World) -> None:
    """A session's log is not written again for every turn: the file stays the one that it was, over a good end too."""
    world.turn()
    world.settled()
    first = world.path(name="events.jsonl").stat()
    world.turn()
    world.step()
    world.leave()
    world.turn()
    world.settled()
    last = world.path(name="events.jsonl").stat()
    assert (last.st_ino, last.st_size) == (first.st_ino, first.st_size * 3)


def test_an_open_turn_shows_what_is_kept(world: World) -> None:
    """Its events and the count of its messages, which stay in their places when it has ended."""
    world.turn()
    world.write(step(IDS[0], 1, calls=(kept(0),)))
    world.settled()
    lines = world.path(name="events.jsonl").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert json.loads(world.path(name="session.json").read_text())["state"]["message_count"] == 4
    world.write(attrs.evolve(turn(IDS[0], 2), settles=True))
    files = world.settled()
    assert world.path(name="events.jsonl").read_text().splitlines()[:6] == lines
    assert files == world.rebuilt()


def test_a_pass_takes_a_session_once(world: World) -> None:
    """However many turns it had since the last one."""
    for _ in range(20):
        world.turn()
    world.step()
    assert world.follower.status().written == 1


def test_a_deleted_session_leaves_nothing(world: World) -> None:
    """Its folder goes with all that is in it, its line goes from the index, its words are in no file."""
    world.turn(0, text="a secret")
    world.turn(1)
    world.settled()
    (world.path(0) / "notes").mkdir()
    (world.path(0) / "notes" / "of the user's").write_text("x")
    world.delete(0)
    files = world.settled()
    assert not any(world.path(0).name in name for name in files)
    assert not any(b"secret" in data for data in files.values())


def test_nobody_else_can_read_the_files(world: World) -> None:
    """Folders and files are for their owner alone."""
    world.turn()
    world.compact()
    world.settled()
    paths = [world.config.path / "index.jsonl", *(world.config.path / "sessions").rglob("*")]
    assert len(paths) == 6
    assert {path.stat().st_mode & 0o077 for path in paths} == {0}


def test_many_events_and_long_ones(world: World) -> None:
    """A log of many pages is whole and in order, and a line of megabytes is one line."""
    world.turn(text="x")
    world.sql("DELETE FROM events")
    body = """'{"type":"text_delta","delta":"' || iif(value = 700, printf('%.*c', 3000000, 'x'), value) || '"}'"""
    numbers = "WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n LIMIT 1700)"
    world.sql(f"{numbers} INSERT INTO events SELECT 1, value, value, value, {body}, NULL FROM n")  # noqa: S608 - ours
    lines = world.settled()[f"sessions/{world.path().name}/events.jsonl"].splitlines()
    assert [int(line.split(b'"seq":')[1].split(b",")[0]) for line in lines] == list(range(1, 1701))
    assert max(map(len, lines)) > 3_000_000


def test_the_index_is_not_written_for_every_change(world: World) -> None:
    """It waits in proportion to how long it takes, and shows the newest state then; it is there at a good end."""
    world.turn(0)
    world.step()
    world.turn(1)
    world.step()
    assert len(world.files()["index.jsonl"].splitlines()) == 1
    world.clock.now += 1
    world.step()
    assert len(world.files()["index.jsonl"].splitlines()) == 2
    world.turn(2)
    world.leave()
    assert len(world.files()["index.jsonl"].splitlines()) == 3


def test_a_slow_index_takes_a_small_share_of_the_time(world: World) -> None:
    """One that takes two seconds is not written again for fifty, also not by the next process."""
    world.turn(0)
    world.step()
    world.clock.now += 10
    slow = world.follower._opened()._index  # noqa: SLF001 - time passes only here
    real, slow.clock = slow.clock, iter((0.0, 2.0, world.clock.now)).__next__
    world.turn(1)
    world.step()
    slow.clock = real
    written = (world.tenant() / "index.jsonl").stat().st_ino
    world.clock.now += 45
    world.turn(2)
    world.step()
    world.leave()
    world.turn(3)
    world.step()
    assert (world.tenant() / "index.jsonl").stat().st_ino == written
    world.clock.now += 60
    world.step()
    assert len(world.files()["index.jsonl"].splitlines()) == 4
