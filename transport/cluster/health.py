"""The health and the metrics of several processes as one. No I/O."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import attrs

from warren.calls.facade import Health
from warren.reports.health import LoopHealth, MemoryHealth, ProjectorHealth, StoreHealth, worst
from warren.reports.metrics import Metric, Metrics

P = TypeVar("P", StoreHealth, MemoryHealth, ProjectorHealth, LoopHealth)


def together(own: Health, others: Sequence[Health | None]) -> Health:
    """Return the health of processes that share a store: the worst of each part, and the sum of each count.

    Args:
        own: that of this process; the MCP servers are its own.
        others: those of the others, None for one that has not answered. The result is degraded then.
    """
    found = [own, *(each for each in others if each is not None)]
    projectors = [each.projector for each in found if each.projector is not None]
    projectors.sort(key=lambda each: not each.projecting)
    return attrs.evolve(
        own,
        status=worst(*(each.status for each in found), "degraded" if None in others else "ok"),
        live_sessions=sum(each.live_sessions for each in found),
        running_turns=sum(each.running_turns for each in found),
        parked_turns=max(each.parked_turns for each in found),  # those of the store, as each of them has seen it
        waiting_turns=max(each.waiting_turns for each in found),
        max_sessions=sum(each.max_sessions for each in found),
        store=_worst([each.store for each in found]),
        projector=_worst(projectors),
        memory=_worst([each.memory for each in found]),
        tools=tuple(dict.fromkeys(tools for each in found for tools in each.tools or ())) or None,
        loop=max((each.loop for each in found), key=lambda each: each.lag_p99_ms),
        processes=len(found),
    )


def by_worker(found: Iterable[Metrics]) -> Metrics:
    """Return the metrics of the processes of one command; each series gets the number of its process as a label.

    The totals are not added up here: the sum would shrink when a process is started anew, and Prometheus would take the
    whole rest of it for an increase. Queries add them up.
    """
    merged: dict[str, Metric] = {}
    for each in sorted(found, key=lambda metrics: metrics.worker or 0):
        for metric in each.metrics:
            own = metric.of_worker(str(each.worker or 0))
            before = merged.get(metric.name)
            merged[metric.name] = own if before is None else attrs.evolve(before, series=(*before.series, *own.series))
    return Metrics(tuple(merged.values()))


def _worst(parts: Sequence[P | None]) -> P | None:
    """Return the first of the parts with the worst status; None if there are none."""
    there = [each for each in parts if each is not None]
    status = worst(*(each.status for each in there))
    return next((each for each in there if each.status == status), None)
