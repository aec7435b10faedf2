"""The simulation finds faults: those that are planted in a copy of the package."""

import time
from pathlib import Path

import pytest

from tests.simulation.planted import PACKAGE, PLANTED, SEEDS, Planted, plant, sought

SOON = [each for each in PLANTED if each.soon]
TURNS = 2
"""The faults that the suite plants: others each day."""


def expect(fault: Planted, folder: Path) -> None:
    """Plant a fault, and have it found."""
    found = sought(fault, folder)
    assert found is not None, f"{SEEDS} seeds do not find this fault: {fault.name}. It breaks a promise: {fault.breaks}"


@pytest.mark.parametrize("turn", range(TURNS))
def test_a_planted_fault_is_found(tmp_path: Path, turn: int) -> None:
    """Faults that few seeds are enough for are found; each day it is the turn of others."""
    day = int(time.time()) // 86_400
    expect(SOON[(day * TURNS + turn) % len(SOON)], tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_each_planted_fault_is_found(tmp_path: Path, fault: Planted) -> None:
    """Each of the faults is found by the check for its promise, within 300 seeds."""
    expect(fault, tmp_path)


def test_a_fault_has_one_place(tmp_path: Path) -> None:
    """A fault whose text is not there exactly once is no fault: its row says so."""
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(AssertionError, match=r"2 times in a\.py"):
        plant(Planted("two", "a.py", "x = 1", "x = 2", "none", "none"), tmp_path)
    with pytest.raises(AssertionError, match=r"0 times in a\.py"):
        plant(Planted("none", "a.py", "y = 1", "y = 2", "none", "none"), tmp_path)


def test_each_fault_has_its_place() -> None:
    """The source text of each fault is in the package exactly once: else nobody would know until its day."""
    times = {each.name: (PACKAGE / each.file).read_text().count(each.text) for each in PLANTED}
    assert set(times.values()) == {1}, times


def test_there_are_many_faults_with_names_of_their_own() -> None:
    """At least 20 faults are planted."""
    assert len({each.name for each in PLANTED}) == len(PLANTED) >= 20
    assert len(SOON) >= TURNS
