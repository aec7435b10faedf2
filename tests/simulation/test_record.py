"""The record of a run blames what breaks a promise, and nothing else."""

from typing import Any

import attrs
import pytest
import trio

from tests.simulation.record import Record
from tests.storage.samples import step

pytestmark = pytest.mark.virtual_time
FIRST: dict[str, Any] = {"resumed": 1, "deaths": 1}


@pytest.mark.parametrize(
    ("node", "changes", "blamed"),
    [
        ("berta", {"resumed": 2, "deaths": 1}, True),
        ("berta", {"resumed": 2, "deaths": 2}, False),
        ("anna", {"resumed": 2, "deaths": 1}, False),  # it has not ended
        ("berta", FIRST, False),  # it stores what it has of an earlier turn, and does not go on
    ],
)
async def test_deaths_are_counted_by_those_who_go_on(node: str, changes: dict[str, Any], *, blamed: bool) -> None:
    """A process that goes on with the turn of another one counts its end; one that stores something else does not."""
    await trio.lowlevel.checkpoint()
    record = Record()
    for epoch, (name, values) in enumerate((("anna", FIRST), (node, changes)), 1):
        commit = step("s", **values)
        lease = attrs.evolve(commit.lease, epoch=epoch)
        record.wrote(name, [attrs.evolve(commit, lease=lease)], [None])
    assert bool(record.wrong) == blamed
