"""Parity: the same codes, the same meaning and the same events, whichever surface, whichever build."""

from pathlib import Path

import pytest

from tests.parity.table import Row, chosen, everything, name_of

pytestmark = pytest.mark.time_limit(30)
ROWS = everything()
TODAY = list(chosen(ROWS))


@pytest.mark.parametrize("row", TODAY, ids=name_of)
async def test_every_two_of_scenario_surface_and_build_meet(row: Row, tmp_path: Path) -> None:
    """A scenario is as the contract has it on each surface, on it in each build, and in each build on some surface."""
    scenario, surface, build = row
    await scenario.run(surface, build, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("row", ROWS, ids=name_of)
async def test_every_scenario_on_every_surface_in_every_build(row: Row, tmp_path: Path) -> None:
    """The whole table."""
    scenario, surface, build = row
    await scenario.run(surface, build, tmp_path)
