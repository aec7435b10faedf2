"""The metrics of a runtime, as plain values: totals since its start, and figures of this moment, under stable names."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

import attrs

from warren.base.values import frozen

Kind = Literal["counter", "gauge", "histogram", "info"]
"""A counter only grows while the process lives, a gauge is of this moment. An info is always 1 and has its labels."""
OTHER: Final = "other"
"""The value of a label that stands for all values beyond those that have series of their own."""
WORKER: Final = "worker"
"""The label by which the processes of one command are told apart."""


@frozen
class Series:
    """One series of a metric.

    Attributes:
        labels: the values of the metric's labels, in their order.
        value: the value; of a histogram the sum of all observed values.
        counts: of a histogram, the observed values in each bucket, and at the end those above the last bound.
    """

    labels: tuple[str, ...] = ()
    value: float = 0.0
    counts: tuple[int, ...] = ()


@frozen
class Metric:
    """One metric with its series.

    Attributes:
        name: its name for Prometheus; that of a counter ends in `_total`.
        kind: its kind.
        help: a sentence for people.
        labels: the names of its labels.
        bounds: of a histogram, the upper bounds of its buckets, which include them.
        series: the series; none for a label's value that has not occurred.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    series: tuple[Series, ...] = ()

    def of_worker(self, worker: str) -> "Metric":
        """Return the metric with the label of a process."""
        series = tuple(attrs.evolve(each, labels=(worker, *each.labels)) for each in self.series)
        return attrs.evolve(self, labels=(WORKER, *self.labels), series=series)


@frozen
class LoadSample:
    """The load of a runtime in some seconds: counts within them, gauges at their end, durations in milliseconds.

    Durations are read off the buckets of the histograms; they are None if there was nothing to measure.

    Attributes:
        at: the end of the sample (UTC).
        turns: turns that have ended.
        events: their events.
        running: turns that run.
        limit: turns that may run at once.
        live: sessions in memory.
        waiting: sessions with an input that waits for room.
        commit_p50_ms: the median of the commits.
        commit_p99_ms: 99 in a hundred commits took no longer.
        loop_p99_ms: 99 in a hundred timers of the event loop were no later.
        model_p50_ms: the median of the model calls that succeeded.
        model_p99_ms: 99 in a hundred of them took no longer.
        first_piece_p50_ms: the median of the times to the first piece of an answer.
        errors: turns that failed, by their cause, and turns and sessions that were refused, by the reason.
        buckets: the counts of the histograms that the durations are read off, `commit`, `loop`, `model` and
            `first_piece`, which add up over processes. Nodes tell them to each other; for all others there are none.
    """

    at: datetime
    turns: int
    events: int
    running: int
    limit: int
    live: int
    waiting: int
    commit_p50_ms: float | None
    commit_p99_ms: float | None
    loop_p99_ms: float | None
    model_p50_ms: float | None
    model_p99_ms: float | None
    first_piece_p50_ms: float | None
    errors: Mapping[str, int] = attrs.field(factory=dict)
    buckets: Mapping[str, tuple[int, ...]] = attrs.field(factory=dict)


@frozen
class History:
    """The load of the last hour, as the processes themselves have kept it.

    Attributes:
        seconds: the time that each sample stands for.
        samples: the samples, the oldest first.
        processes: the processes whose loads are added up. Those that have ended took theirs along.
    """

    seconds: float
    samples: tuple[LoadSample, ...] = ()
    processes: int = 1


@frozen
class Metrics:
    """The metrics of a runtime, or of the processes of one command.

    Attributes:
        metrics: the metrics; each name occurs once.
        worker: the number of this process among those of its command; None if it is alone, or if these are the metrics
            of several processes, whose series have it as the label `worker`.
    """

    metrics: tuple[Metric, ...]
    worker: int | None = None

    def __getitem__(self, name: str) -> Metric:
        """Return the metric with this name. Raises KeyError."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        raise KeyError(name)

    def total(self, name: str, *labels: str) -> float:
        """Return the sum over the series of a metric whose labels include these values; of a histogram, their count."""
        found = [each for each in self[name].series if set(labels) <= set(each.labels)]
        return sum(sum(each.counts) if each.counts else each.value for each in found)
