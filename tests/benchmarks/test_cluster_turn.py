"""The benchmark of nodes, at a size for a test."""

import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.time_limit(60)
async def test_the_benchmark_of_nodes_measures_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns and events come at the session's node, through the other one, and at a server alone."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    from benchmarks import cluster_turn as it  # noqa: PLC0415 - its folder is not on the path of the suite

    with it.three() as servers:
        figures, goals = await it.measure(*servers, turns=4, interrupts=2, rounds=1, alone_turns=2)
    assert all(value > 0 for value in figures.values())
    assert [goal.relation for goal in goals] == ["<=", "<=", ">=", ">="]
