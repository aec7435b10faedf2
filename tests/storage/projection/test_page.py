"""The statements of the page on projections hold."""

import json
import re

from tests.conftest import ROOT
from tests.storage.files import blob
from tests.storage.projection.histories import IDS, World
from warren.storage.operations import Attach
from warren.storage.projection.file_feed import FileFeed
from warren.storage.projection.formats import Change
from warren.storage.projection.projection import SYNC_EVERY, TRY_AGAIN, WITNESSES

PAGE = (ROOT / "docs" / "projections.md").read_text(encoding="utf-8")


def test_the_table_has_every_file(world: World) -> None:
    """Each file that is there after a compaction is in the table, and no other; those of messages by their folder."""
    world.turn()
    world.write(Attach(IDS[0], (blob(),)))
    world.compact()
    world.settled()
    root = world.config.path
    made = [root / "projector.lock", root / "index.jsonl", *(root / "sessions").rglob("*.*")]
    names = {str(path.relative_to(root)).replace(world.path().name, "ID") for path in made}
    names = {re.sub(r"(?<=/files/).*", "", name) for name in names}
    assert set(re.findall(r"^\| `([^`]+)`", PAGE, re.MULTILINE)) == names


def test_a_line_of_the_index_is_as_described(world: World) -> None:
    """Its fields are those of the page, in that order."""
    world.turn()
    described = re.search(r"^\| `index.jsonl` \| .*order of creation: (.*) \|$", PAGE, re.MULTILINE)
    assert described is not None
    assert list(json.loads(world.settled()["index.jsonl"])) == re.findall(r"`(\w+)`", described[1])


def test_the_figures_are_those_of_the_code(world: World) -> None:
    """How often, how many and how soon."""
    assert (SYNC_EVERY, WITNESSES) == (30.0, 32)
    assert "every half minute" in PAGE
    assert f"the {WITNESSES} sessions that were changed last" in " ".join(PAGE.split())
    for session in range(3):
        world.turn(session)
    feed = FileFeed(world.config)
    assert [witness.change for witness in feed.witnesses(Change(2, 2), WITNESSES)] == [2, 1]
    feed.close()
    assert TRY_AGAIN <= 30
