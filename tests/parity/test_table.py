"""The table itself: nothing falls out of it unseen."""

from collections.abc import Mapping
from typing import Final

import pytest

from tests.parity.bad_input import BAD
from tests.parity.stage import SCENARIOS
from tests.parity.surface import COMPACTION_OPTIONS, OPTIONS, Surface
from tests.parity.surfaces import SURFACES
from tests.parity.table import TURNS, chosen, chosen_on_database, everything, forked, name_of, on_database, pairs
from tests.parity.world import BUILDS, DATABASES
from warren.base.errors import ErrorCode

NEVER: Final[Mapping[str, Mapping[ErrorCode, str]]] = {
    "meerkat": {
        ErrorCode.SESSION_PERSISTENCE_DISABLED: "no method of it needs a store",
        ErrorCode.SESSION_COMPACTION_DISABLED: "no method of it compacts",
        ErrorCode.SESSION_MEMORY_DISABLED: "it comes for an option of its own, in the tests of its client",
    },
    "mcp": {ErrorCode.SESSION_PERSISTENCE_DISABLED: "no tool of it needs a store"},
    "cli": {
        ErrorCode.SESSION_BUSY: "two processes compete for the lease before they could for the turn",
        ErrorCode.SESSION_NOT_RUNNING: "Ctrl-C without a turn ends the command",
        ErrorCode.CAPACITY_EXCEEDED: "a process runs one turn",
        ErrorCode.SESSION_MEMORY_DISABLED: "it is about the extra, which is installed here",
        ErrorCode.PERMISSION_DENIED: "who has the store may do everything with it",
    },
    "cli-server": dict.fromkeys(
        (
            ErrorCode.SESSION_BUSY,
            ErrorCode.SESSION_NOT_RUNNING,
            ErrorCode.SESSION_PERSISTENCE_DISABLED,
            ErrorCode.SESSION_MEMORY_DISABLED,
            ErrorCode.CAPACITY_EXCEEDED,
            ErrorCode.PERMISSION_DENIED,
        ),
        "its scenario begins with a session without a turn; the tests of --server come to it",
    ),
}
"""Errors that cannot come on a surface, or whose scenarios it has no words for, and why."""


@pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.name)
def test_every_error_is_met_on_every_surface(surface: Surface) -> None:
    """The scenarios that fit a surface, and its bad input, come to every code but those that never come there."""
    fitting = [row for row in SCENARIOS if any(row.fits(surface, build) for build in BUILDS)]
    met = {ErrorCode.INVALID_PARAMS}.union(*(row.codes for row in fitting))
    assert set(ErrorCode) - met == NEVER.get(surface.name, {}).keys()


def test_every_operation_is_used() -> None:
    """Each operation of the service is part of a scenario or of the bad input."""
    used = frozenset[str]().union(*(row.uses for row in SCENARIOS)) | {bad.operation for bad in BAD}
    assert SURFACES[1].can <= used | {
        OPTIONS,
        COMPACTION_OPTIONS,
        "file/put",
        "session/attachment",
        "config/get",
        "health",
        "metrics/get",
        "metrics/history",
        "nodes/list",
        "nodes/drain",
        "store/check",
    }


def test_the_choice_leaves_no_pair_out() -> None:
    """Every scenario meets each surface and build that it can, every surface each build, and always in the same way."""
    for forks in (False, True):
        rows = [row for row in everything() if row[1].forks is forks]
        today = list(chosen(rows))
        assert set().union(*map(pairs, today)) == set().union(*map(pairs, rows))
        assert len(today) < len(rows)
        assert today == list(chosen(rows))


def test_four_seeds_have_the_whole_choice_of_commands() -> None:
    """No row of a surface of processes is played by no seed, and none by two seeds in a row."""
    rows = [row for row in everything() if row[1].forks]
    shares = [forked(rows, seed) for seed in range(41, 41 + TURNS)]
    assert sorted(name_of(row) for share in shares for row in share) == sorted(map(name_of, chosen(rows)))
    assert forked(rows, 41 + TURNS) == shares[0]


def test_the_daily_choice_on_a_database_has_every_scenario_surface_and_build() -> None:
    """Each scenario that can be played there, once; those of the memory once on each surface that can play them."""
    rows = on_database()
    today = list(chosen_on_database(rows))
    plain = [row for row in today if "memory" not in row[0].needs]
    assert [row[0].name for row in plain] == list(
        dict.fromkeys(row[0].name for row in rows if "memory" not in row[0].needs)
    )
    recalling = [(row[0].name, row[1].name) for row in today if "memory" in row[0].needs]
    assert recalling == list(dict.fromkeys((row[0].name, row[1].name) for row in rows if "memory" in row[0].needs))
    assert {row[1].name for row in today} == {surface.name for surface in SURFACES}
    assert {row[2].name for row in today} == {build.name for build in DATABASES}


def test_there_are_bad_inputs_of_many_kinds() -> None:
    """No two are the same."""
    assert len({str(bad) for bad in BAD}) == len(BAD) >= 30
