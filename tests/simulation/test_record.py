"""The record of a run blames what breaks a promise, and nothing else."""

from typing import Any

import attrs
import pytest
import trio

from tests.simulation.record import Record
from tests.storage.samples import step

pytestmark = pytest.mark.virtual_time
FIRST: dict[str, Any] = {"resumed": 1, "deaths": 1}
AGAIN: dict[str, Any] = {"resumed": 2, "deaths": 1}


@pytest.mark.parametrize(
    ("steps", "blamed"),
    [
        ([("anna", FIRST), ("berta", AGAIN)], True),
        ([("anna", FIRST), ("berta", AGAIN | {"deaths": 2})], False),
        ([("anna", FIRST), ("anna", AGAIN)], False),  # it has not ended
        ([("anna", FIRST), ("berta", FIRST)], False),  # it stores what it has of an earlier turn, and does not go on
        ([("anna", FIRST | {"parked": True}), ("berta", FIRST), ("berta", AGAIN)], False),  # it has only woken the turn
    ],
)
async def test_deaths_are_counted_by_those_who_go_on(steps: list[tuple[str, dict[str, Any]]], *, blamed: bool) -> None:
    """A process that goes on with the turn of another one counts its end; one that stores something else does not."""
    await trio.lowlevel.checkpoint()
    record = Record()
    for name, values in steps:
        commit = step("s", **values)
        lease = attrs.evolve(commit.lease, epoch=("anna", "berta").index(name))
        record.wrote(name, [attrs.evolve(commit, lease=lease)], [None])
    assert bool(record.wrong) == blamed
