"""Rows of the store that are damaged: the files name them, stay readable, and show everything else."""

import json
from typing import Any

import pytest

from tests.storage.damaging import KINDS, put
from tests.storage.projection.histories import World
from warren.storage.sqlite.file import FILE_NAME

SECOND = "rowid = (SELECT min(rowid) + 1 FROM events)"


def lines(world: World, session: int = 0) -> list[dict[str, Any]]:
    """Return what a session's file has, a JSON object a line."""
    data = world.path(session, "events.jsonl").read_bytes()
    return [json.loads(line) for line in data.splitlines()]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "huge"])
def test_a_damaged_event_has_a_marker(world: World, kind: str) -> None:
    """Every line is JSON; the damaged event is named as in a replay, and those around it are there."""
    world.turn(0)
    put(world.config.path / FILE_NAME, "events", "body", KINDS[kind], SECOND)
    world.step()
    found = lines(world)
    assert [line["seq"] for line in found] == list(range(1, len(found) + 1))
    assert found[1]["event"] == {"type": "stream_truncated", "dropped": 1, "resume_after": 2, "cause": "damaged"}
    assert sum(line["event"]["type"] == "stream_truncated" for line in found) == 1


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_damaged_time_hides_no_event(world: World, kind: str) -> None:
    """An event whose time cannot be read keeps its line."""
    world.turn(0)
    put(world.config.path / FILE_NAME, "events", "timestamp", KINDS[kind], SECOND)
    world.step()
    assert [line["seq"] for line in lines(world)][:3] == [1, 2, 3]


@pytest.mark.parametrize("kind", ["bad UTF-8", "null", "a blob"])
def test_a_damaged_change_stops_nobody(world: World, kind: str) -> None:
    """A session whose number of its last change is none is passed over; all others are projected."""
    world.turn(0)
    world.turn(1)
    put(world.config.path / FILE_NAME, "sessions", "change", KINDS[kind], "key = 1")
    world.step()
    assert lines(world, 1)
