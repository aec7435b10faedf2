"""The record of a run blames what breaks a promise, and nothing else."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
import trio

from tests.simulation.record import RESUMPTIONS, Record
from tests.storage.samples import step
from warren.conversation.budget import NO_EXPENSE
from warren.conversation.delegation import ChildEnd
from warren.conversation.inputs import Input
from warren.storage.operations import NOTHING, Archive, Claim, Claimed, Delete, EndInputs, Sent

pytestmark = pytest.mark.virtual_time
FIRST: dict[str, Any] = {"resumed": 1, "deaths": 1}
AGAIN: dict[str, Any] = {"resumed": 2, "deaths": 1}


LAST: dict[str, Any] = {"resumed": RESUMPTIONS, "deaths": RESUMPTIONS}
CLAIMS: dict[str, Any] = {"claims": True}
"""In place of a commit: a process takes the session."""


def written(steps: Sequence[tuple[str, dict[str, Any] | None]]) -> Record:
    """Return the record of commits of an open turn by some processes; None stands for one that ends it."""
    record = Record()
    for name, values in steps:
        if values is CLAIMS:
            commit = step("s")
            record.wrote(name, [Claim("s")], [Claimed(commit.record, commit.lease)])
            continue
        commit = step("s", **(values or {}))
        lease = attrs.evolve(commit.lease, epoch=("anna", "berta").index(name))
        after = commit.record if values is not None else commit.record.changed(turn=None, turn_open=False)
        record.wrote(name, [attrs.evolve(commit, record=after, lease=lease)], [None])
    return record


@pytest.mark.parametrize(
    ("steps", "blamed"),
    [
        ([("anna", FIRST), ("berta", AGAIN)], True),
        ([("anna", FIRST), ("berta", AGAIN | {"deaths": 2})], False),
        ([("anna", FIRST), ("anna", AGAIN)], False),  # it has not ended
        ([("anna", FIRST), ("berta", FIRST)], False),  # it stores what it has of an earlier turn, and does not go on
        ([("anna", FIRST | {"parked": True}), ("berta", FIRST), ("berta", AGAIN)], False),  # it has only woken the turn
        ([("anna", FIRST), ("berta", AGAIN | {"deaths": 3})], True),  # only one has ended
        ([("anna", FIRST), ("anna", AGAIN | {"deaths": 2})], True),
        ([("anna", FIRST), ("anna", CLAIMS), ("anna", AGAIN | {"deaths": 2})], True),  # its lease has lapsed alone
        ([("anna", FIRST), ("berta", CLAIMS), ("anna", AGAIN | {"deaths": 2})], False),  # berta may have ended
        ([("anna", FIRST), ("berta", CLAIMS), ("anna", CLAIMS), ("anna", AGAIN)], False),
        ([("anna", FIRST), ("berta", CLAIMS), ("anna", AGAIN | {"deaths": 3})], True),
        ([("anna", LAST), ("berta", {"resumed": RESUMPTIONS + 1, "deaths": RESUMPTIONS + 1})], True),  # once too often
    ],
)
async def test_deaths_are_counted_by_those_who_go_on(steps: list[tuple[str, dict[str, Any]]], *, blamed: bool) -> None:
    """A process that goes on with the turn of another one counts its end; one that stores something else does not."""
    await trio.lowlevel.checkpoint()
    assert bool(written(steps).wrong) == blamed


@pytest.mark.parametrize(
    ("steps", "worn"),
    [
        ([("anna", LAST), ("berta", None)], [RESUMPTIONS + 1]),
        ([("anna", LAST), ("anna", None)], []),  # it has ended the turn itself
        ([("anna", LAST | {"parked": True}), ("berta", None)], []),  # anna has put it back
        ([("anna", LAST | {"deaths": RESUMPTIONS - 1}), ("berta", None)], []),
    ],
)
async def test_a_turn_is_worn_by_one_death_too_many(
    steps: list[tuple[str, dict[str, Any] | None]], worn: list[int]
) -> None:
    """Only a turn that is left open by one more process than it survives may end for that."""
    await trio.lowlevel.checkpoint()
    record = written(steps)
    assert record.wrong == []
    assert list(record.worn.values()) == worn


@pytest.mark.parametrize(
    ("ends", "told"), [([Delete, Delete], 1), ([Archive, Delete], 2), ([Archive, Archive], 1), ([Delete, EndInputs], 1)]
)
async def test_the_end_of_a_child_that_is_told_in_vain_is_none(ends: Sequence[Any], told: int) -> None:
    """The store drops what comes with another end of a session, or with inputs of one that has ended."""
    await trio.lowlevel.checkpoint()
    end = ChildEnd("child", "call-0", "key", True, NO_EXPENSE, NO_EXPENSE)
    notice = Input("i", "answer", "over", datetime(2027, 1, 1, tzinfo=UTC), starts=False, end=end)
    record, more = Record(), {"sends": (Sent("parent", notice),)}
    for each in ends:
        record.wrote("anna", [each("child", **({"inputs": NOTHING} if each is EndInputs else {}), **more)], [None])
    assert len(record.told["child"]) == told
