"""Parity: the same codes, the same meaning and the same events, whichever surface, whichever build."""

from pathlib import Path

import pytest

from tests.parity.table import Row, chosen_on_database, everything, forked, inside, name_of, on_database
from tests.support.postgres import available, needs_postgres
from tests.support.seeds import SEED

pytestmark = pytest.mark.time_limit(30)
ROWS = everything()
DATABASE_ROWS = on_database()


@pytest.mark.parametrize("row", inside(ROWS), ids=name_of)
async def test_every_two_of_scenario_surface_and_build_meet(row: Row, tmp_path: Path) -> None:
    """A scenario is as the contract has it on each surface, on it in each build, and in each build on some surface."""
    scenario, surface, build = row
    await scenario.run(surface, build, tmp_path)


@pytest.mark.outside
@pytest.mark.parametrize("row", forked(ROWS, SEED), ids=name_of)
async def test_commands_take_their_turns(row: Row, tmp_path: Path) -> None:
    """The same where each call is a process; the seed of the run names a share, and four seeds in a row have all."""
    scenario, surface, build = row
    await scenario.run(surface, build, tmp_path)


@pytest.mark.outside
@pytest.mark.parametrize("row", list(chosen_on_database(DATABASE_ROWS)), ids=name_of)
async def test_every_scenario_meets_a_store_in_a_database(row: Row, tmp_path: Path) -> None:
    """Each scenario on some surface, and those of the memory on every one."""
    needs_postgres()
    scenario, surface, build = row
    await scenario.run(surface, build, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("row", [*ROWS, *(DATABASE_ROWS if available() else [])], ids=name_of)
async def test_every_scenario_on_every_surface_in_every_build(row: Row, tmp_path: Path) -> None:
    """The whole table."""
    scenario, surface, build = row
    await scenario.run(surface, build, tmp_path)
