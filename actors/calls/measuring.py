"""The metrics of a runtime, made of the numbers that its parts keep. Making them takes no longer than a turn."""

import resource
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from warren.actors.observe.counters import OF_CALLS, Counters, Histogram, ModelCounters
from warren.actors.observe.metrics import LoopLag, Writes
from warren.actors.supervisor.gauge import resident
from warren.actors.supervisor.supervisor import Supervisor
from warren.base.version import VERSION
from warren.calls.facade import Health
from warren.models.model import Providers, Waits
from warren.reports.health import Status
from warren.reports.metrics import Kind, Metric, Metrics, Series

OF_MODELS: Final = ("provider", "model")
DIRECTIONS: Final = ("input", "output", "cache_read", "cache_creation")
STATUS: Final[dict[Status, float]] = {"ok": 0.0, "degraded": 1.0, "failed": 2.0}


def metrics_of(supervisor: Supervisor, loop: LoopLag, health: Health) -> Metrics:
    """Return the metrics of a runtime at this moment."""
    shared = supervisor.shared
    node = shared.config.node
    found = (
        *_of_turns(shared.counters),
        *_of_models(shared.counters),
        *_of_waiting(shared.providers),
        *_of_sessions(supervisor),
        *_of_store(shared.storage.writes, supervisor),
        *_of_memory(shared.memory.searches, health),
        *_of_process(loop, health),
    )
    return Metrics(found, None if node is None else node.worker)


def _of_turns(counters: Counters) -> Iterator[Metric]:
    turns = {(outcome, *key): count for key, each in _models(counters) for outcome, count in each.turns.copy().items()}
    yield _labelled("warren_turns_total", "Turns that have ended, by outcome.", ("outcome", *OF_MODELS), turns.items())
    yield _histogram("warren_turn_duration_seconds", "Durations of turns, with their commit.", counters.turn_seconds)
    help_ = "Turns that this process has gone on with, as another one had ended or this one had crashed during them."
    yield _one("warren_turns_resumed_total", "counter", help_, counters.resumed)
    yield _one("warren_steps_total", "counter", "Steps of turns that have ended.", counters.steps)
    yield _one("warren_events_total", "counter", "Events of turns that have ended.", counters.events)
    help_ = "Tool calls that have ended, by outcome."
    yield _labelled("warren_tool_calls_total", help_, ("tool", "outcome"), counters.tools.copy().items())
    yield _histogram("warren_tool_duration_seconds", "Durations of tool calls that were begun.", counters.tool_seconds)
    yield _counted("warren_compactions_total", "Attempts to compact, by outcome.", "outcome", counters.compactions)


def _of_models(counters: Counters) -> Iterator[Metric]:
    models = _models(counters)
    help_ = "Durations of model calls that succeeded; each attempt is a call."
    seconds = [each.seconds.series(*key) for key, each in models]
    yield Metric("warren_model_call_duration_seconds", "histogram", help_, OF_MODELS, OF_CALLS, tuple(seconds))
    help_ = "Times from the beginning of model calls to their first pieces."
    first = [each.first_piece.series(*key) for key, each in models]
    yield Metric("warren_model_first_chunk_seconds", "histogram", help_, OF_MODELS, OF_CALLS, tuple(first))
    errors = {(*key, cause): count for key, each in models for cause, count in each.errors.copy().items()}
    yield _labelled(
        "warren_model_errors_total", "Model calls that failed, by cause.", (*OF_MODELS, "cause"), errors.items()
    )
    help_ = "Model calls that were made again after an error."
    yield _labelled("warren_model_retries_total", help_, OF_MODELS, ((key, each.retries) for key, each in models))
    help_ = "Tokens of model calls. The cached ones (cache_read, cache_creation) are part of the input."
    tokens = {(name, *key): getattr(each, f"{name}_tokens") for key, each in models for name in DIRECTIONS}
    yield _labelled("warren_tokens_total", help_, ("direction", *OF_MODELS), tokens.items())


def _of_waiting(providers: Providers) -> Iterator[Metric]:
    waiting = providers.waiting() if isinstance(providers, Waits) else {}
    help_ = "Model calls that wait for the rate limit of their key."
    yield _counted("warren_model_calls_waiting", help_, "provider", waiting, "gauge")


def _of_sessions(supervisor: Supervisor) -> Iterator[Metric]:
    scheduler = supervisor.scheduler
    yield _one("warren_sessions_live", "gauge", "Sessions in memory.", len(scheduler.live))
    yield _one("warren_sessions_idle", "gauge", "Sessions in memory that can be evicted.", len(scheduler.idle))
    yield _one("warren_turns_running", "gauge", "Turns that run.", len(scheduler.running))
    yield _one("warren_turns_limit", "gauge", "Turns that may run at once.", scheduler.limits.max_sessions)
    help_ = "Turns of the store that no process runs, and that go on when one takes them up."
    yield _one("warren_turns_parked", "gauge", help_, supervisor.parked_turns)
    help_ = "Turns of the store whose calls all wait, for approval or for a result."
    yield _one("warren_turns_waiting", "gauge", help_, supervisor.waiting_turns)
    help_ = "Sessions with an input that waits for room to begin a turn."
    yield _one("warren_sessions_waiting", "gauge", help_, len(scheduler.waiting))
    help_ = "Turns and sessions that were refused for want of room, by reason."
    yield _counted("warren_admission_refused_total", help_, "reason", scheduler.refused + scheduler.tenancy.refused)
    help_ = "Sessions that were told to leave memory."
    yield _one("warren_evictions_total", "counter", help_, scheduler.evictions)
    help_ = "Calls that were passed on to other nodes."
    yield _one("warren_forwarded_total", "counter", help_, supervisor.shared.counters.forwarded)
    help_ = "Attempts to deliver to webhooks, by outcome: dead is one that failed for good."
    yield _counted("warren_webhook_attempts_total", help_, "outcome", supervisor.shared.counters.deliveries)
    help_ = "Deliveries of the store to webhooks that wait for an attempt, counted once in a lease."
    yield _one("warren_webhook_deliveries_pending", "gauge", help_, supervisor.pending_deliveries)
    yield _one("warren_subscribers", "gauge", "Readers of events.", supervisor.subscriptions)


def _of_store(writes: Writes | None, supervisor: Supervisor) -> Iterator[Metric]:
    if writes is None:
        return
    storage = supervisor.shared.storage
    found = storage.statistics()
    yield _histogram("warren_commit_duration_seconds", "Durations of commits.", writes.seconds)
    yield _histogram("warren_commit_group_size", "Operations of commits.", writes.groups)
    help_ = "Operations and renewals that the store did not take, by cause."
    yield _counted("warren_commit_errors_total", help_, "cause", writes.errors)
    help_ = "Operations that wait for the next commit."
    yield _one("warren_store_queue", "gauge", help_, 0 if found is None else found.queued)
    help_ = "Renewals of the leases that came too late: other processes may have taken sessions over."
    yield _one("warren_lease_lapses_total", "counter", help_, storage.lapses)
    auditor = supervisor.shared.auditor
    yield _one("warren_audit_waiting", "gauge", "Entries of the audit that are not stored yet.", auditor.waiting)
    help_ = "Entries of the audit that are in the log alone: too many waited for the store."
    yield _one("warren_audit_lost_total", "counter", help_, auditor.lost)


def _of_memory(searches: Histogram | None, health: Health) -> Iterator[Metric]:
    if searches is None or health.memory is None:
        return
    yield _histogram("warren_memory_search_seconds", "Durations of searches of the memory.", searches)
    help_ = "Texts of the memory that its index does not have yet."
    yield _one("warren_memory_behind", "gauge", help_, health.memory.behind)


def _of_process(loop: LoopLag, health: Health) -> Iterator[Metric]:
    yield _histogram("warren_loop_lag_seconds", "Times by which timers of the event loop are late.", loop.seconds)
    parts = {"store": health.store, "memory": health.memory, "projector": health.projector, "loop": health.loop}
    states = {"all": health.status, **{name: part.status for name, part in parts.items() if part is not None}}
    help_ = "Health by part: 0 is ok, 1 degraded, 2 failed."
    yield _counted("warren_health", help_, "part", {name: STATUS[each] for name, each in states.items()}, "gauge")
    used = resource.getrusage(resource.RUSAGE_SELF)
    help_ = "Seconds of the processor that the process has used."
    yield _one("warren_process_cpu_seconds_total", "counter", help_, used.ru_utime + used.ru_stime)
    memory = resident()
    if memory is not None:
        yield _one("warren_process_resident_memory_bytes", "gauge", "Memory of the process.", memory)
    labels = Series((VERSION,), 1.0)
    yield Metric("warren_build_info", "info", "The release of Warren.", ("version",), series=(labels,))


def _models(counters: Counters) -> list[tuple[tuple[str, str], ModelCounters]]:
    return list(counters.models.items())


def _one(name: str, kind: Kind, help_: str, value: float) -> Metric:
    return Metric(name, kind, help_, series=(Series((), value),))


def _counted(name: str, help_: str, label: str, counts: Mapping[str, float], kind: Kind = "counter") -> Metric:
    return _labelled(name, help_, (label,), (((value,), count) for value, count in dict(counts).items()), kind)


def _labelled(
    name: str,
    help_: str,
    labels: tuple[str, ...],
    counts: Iterable[tuple[tuple[str, ...], float]],
    kind: Kind = "counter",
) -> Metric:
    return Metric(name, kind, help_, labels, series=tuple(Series(*each) for each in counts))


def _histogram(name: str, help_: str, histogram: Histogram) -> Metric:
    return Metric(name, "histogram", help_, (), histogram.bounds, (histogram.series(),))
