"""The table: every scenario on every surface in every build that it fits, and the choice that a run makes of it."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from tests.parity.scenarios import (
    agents,
    approvals,
    capabilities,
    children,
    client_tools,
    endings,
    forks,
    inbox,
    models,
    outside,
    peers,
    pictures,
    schedules,
    sessions,
    structured,
    triggers,
    turns,
    webhooks,
)
from tests.parity.stage import SCENARIOS, Scenario
from tests.parity.surface import Surface
from tests.parity.surfaces import SURFACES
from tests.parity.world import BUILDS, DATABASES, Build

MODULES: Final = (
    agents,
    approvals,
    capabilities,
    children,
    client_tools,
    endings,
    forks,
    inbox,
    models,
    outside,
    peers,
    pictures,
    schedules,
    sessions,
    structured,
    triggers,
    turns,
    webhooks,
)
"""Importing them has filled the table."""
TURNS: Final = 4
"""Runs with consecutive seeds that together play what one run would take too long for: rows with processes."""
Row = tuple[Scenario, Surface, Build]


def everything(builds: Sequence[Build] = BUILDS) -> list[Row]:
    """Return all rows of some builds."""
    return [
        (scenario, surface, build)
        for scenario in SCENARIOS
        for surface in SURFACES
        for build in builds
        if scenario.fits(surface, build)
    ]


def on_database() -> list[Row]:
    """Return the rows whose store is in a database."""
    return everything(DATABASES)


def chosen_on_database(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield one row for each scenario, on one surface after the other, and those of the memory on every surface."""
    for number, scenario in enumerate(SCENARIOS):
        fitting = [row for row in rows if row[0] is scenario]
        if "memory" in scenario.needs:
            surfaces = dict.fromkeys(row[1] for row in fitting)
            for place, surface in enumerate(surfaces):
                on_it = [row for row in fitting if row[1] is surface]
                yield on_it[place % len(on_it)]
        elif fitting:
            yield fitting[number % len(fitting)]


def pairs(row: Row) -> set[frozenset[str]]:
    """Return which two things meet in a row."""
    scenario, surface, build = row
    names = (f"played {scenario.name}", f"on {surface.name}", f"in {build.name}")
    return {frozenset(pair) for pair in combinations(names, 2)}


def inside(rows: Sequence[Row]) -> list[Row]:
    """Return the choice among the surfaces in this process."""
    return list(chosen([row for row in rows if not row[1].forks]))


def forked(rows: Sequence[Row], seed: int) -> list[Row]:
    """Return this seed's share of the choice among the surfaces whose calls are processes."""
    return list(chosen([row for row in rows if row[1].forks]))[seed % TURNS :: TURNS]


def chosen(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield rows until every two things that can meet in them have met; the same ones each time."""
    places = dict[frozenset[str], int]()
    waiting = [(row, sum(1 << places.setdefault(pair, len(places)) for pair in pairs(row))) for row in rows]
    left = (1 << len(places)) - 1  # a bit for each two things: sets take ten times as long
    while left:
        best, met = max(waiting, key=lambda each: (each[1] & left).bit_count())
        left &= ~met
        waiting = [each for each in waiting if each[1] & left]
        yield best


def name_of(row: Row) -> str:
    """Return a row's name."""
    return "-".join(part.name for part in row)
