"""Parity at a second node: the same codes, meaning and events at a node that does not have the session."""

from pathlib import Path
from typing import Final

import pytest

from tests.parity.nodes import ThroughAnotherNode, TwoNodes
from tests.parity.stage import SCENARIOS
from tests.parity.table import Row, name_of
from tests.parity.world import BUILDS, DATABASES
from tests.support.postgres import needs_postgres

pytestmark = pytest.mark.time_limit(60)
NODE: Final = ThroughAnotherNode()
OTHERWISE: Final = {
    "views": "a list comes from the store, in which a session of another node is stored, and not live",
    "by_the_states_of_turns": "a list comes from the store, in which nothing is of a text turn that runs elsewhere",
    "shutting_down": "a node that ends refuses calls, and another node looks for the session again",
}
"""Scenarios that are not the same at another node, and why."""
ROWS: Final[list[Row]] = [
    (scenario, NODE, build)
    for build in (*BUILDS, *DATABASES)
    for scenario in SCENARIOS
    if "store" in build.on and scenario.name not in OTHERWISE and scenario.fits(NODE, build)
]
FITTING: Final = [[row for row in ROWS if row[0] is scenario] for scenario in SCENARIOS]
TODAY: Final = [rows[number % len(rows)] for number, rows in enumerate(FITTING) if rows]
"""Each scenario in one build, in one build after the other."""


@pytest.mark.parametrize("row", TODAY, ids=name_of)
async def test_every_scenario_at_a_second_node(row: Row, tmp_path: Path) -> None:
    """Each scenario that can have a store."""
    await _play(row, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("row", ROWS, ids=name_of)
async def test_every_scenario_at_a_second_node_in_every_build(row: Row, tmp_path: Path) -> None:
    """The whole table."""
    await _play(row, tmp_path)


async def _play(row: Row, folder: Path) -> None:
    scenario, surface, build = row
    if build.database:
        needs_postgres()
    await scenario.run(surface, build, folder, TwoNodes)
