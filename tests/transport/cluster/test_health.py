"""The health of workers as one."""

import attrs

from warren.calls.facade import Health
from warren.reports.health import LoopHealth, ProjectorHealth, StoreHealth
from warren.reports.metrics import Metric, Metrics, Series
from warren.transport.cluster.health import by_worker, together

OWN = Health("ok", 3, 1, 10, StoreHealth("ok"), ProjectorHealth("ok", projecting=False, behind=None))
PROJECTING = ProjectorHealth("ok", projecting=True, behind=4)


def test_counts_are_summed() -> None:
    """And the projector is that of the process that writes the files."""
    other = attrs.evolve(OWN, live_sessions=5, projector=PROJECTING, loop=LoopHealth("ok", 7.0))
    assert together(OWN, [other]) == Health(
        "ok", 8, 2, 20, StoreHealth("ok"), PROJECTING, loop=LoopHealth("ok", 7.0), processes=2
    )


def test_the_worst_part_counts() -> None:
    """Whichever process has it."""
    refused = StoreHealth("failed", "the disk is full")
    found = together(OWN, [attrs.evolve(OWN, status="failed", store=refused), OWN])
    assert (found.status, found.store, found.processes) == ("failed", refused, 3)


def test_a_process_that_does_not_answer_is_no_good_sign() -> None:
    """The others are told of all the same."""
    found = together(OWN, [None, OWN])
    assert (found.status, found.live_sessions, found.processes) == ("degraded", 6, 2)


def test_the_metrics_of_workers_stay_apart() -> None:
    """Each series has the number of its process, so that none shrinks when another process starts anew."""

    def of(worker: int, value: float) -> Metrics:
        series = (Series(("x",), value), Series(("y",), 1))
        return Metrics((Metric("a_total", "counter", "A.", ("kind",), series=series),), worker)

    found = by_worker([of(2, 3), of(1, 5)])
    assert found.worker is None
    (metric,) = found.metrics
    assert metric.labels == ("worker", "kind")
    assert [(*each.labels, each.value) for each in metric.series] == [
        ("1", "x", 5),
        ("1", "y", 1),
        ("2", "x", 3),
        ("2", "y", 1),
    ]
    assert found.total("a_total", "x") == 8
