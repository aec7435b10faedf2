"""The result of a run: figures, series, violations; as JSON and back."""

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import msgspec

from warren.base.errors import InvalidParamsError
from warren.base.values import frozen
from warren.base.version import VERSION
from warren.transport.load.plan import LoadPlan
from warren.transport.load.recorder import PERCENTILES, Histogram, Recorder, Second
from warren.transport.load.stream import Violation

SHOWN: Final = 1_000
"""The most violations in a result; `violation_count` counts all of them."""
MILLISECONDS: Final = ("setup ", "latency ", "service time ", "first event ", "refusal ", "tester's lag ")
"""Prefixes of the names of figures that are times."""
CUT_SHORT: Final = "the run was stopped before its end: the figures cover the time until then"
UNCHECKED: Final = "not checked"
"""The figure of the sessions that could not be checked to their ends."""
COUNTED: Final = {
    "interrupts": "interrupted",
    "busy": "busy",
    "disconnects": "disconnects",
    "tools": "tool calls",
    "compactions": "compactions",
    "subscribers": "followed",
}
"""The name of the count for each part of a mix."""
SLOWER: Final = "the turns are over too soon (--chunk-delay; at a gateway a slower model), or too few (--turns)"
ADVICE: Final = {
    "interrupts": SLOWER,
    "busy": SLOWER,
    "disconnects": SLOWER,
    "tools": "the model has called none (at a gateway it needs tools of its own), or the turns are too few (--turns)",
    "compactions": "there was nothing to shorten, or the turns are too few (--turns)",
    "subscribers": "the sessions are too few (--sessions)",
}
"""Advice for parts of a mix that have not happened."""


@frozen(kw_only=True)
class Result:
    """The result of a run.

    Attributes:
        format: version of this form.
        finished_at: time of its end (UTC).
        target: the name of the target.
        plan: the plan.
        machine: the machine of the tester.
        figures: the numbers by name; times in milliseconds.
        errors: errors by code.
        latency: percentiles with milliseconds, from the planned start of a turn to its answer.
        series: the seconds of the run.
        violations: the first broken promises.
        violation_count: number of all broken promises.
        warnings: reasons to doubt the figures.
        untried: sessions that were not created or not checked, and parts of the mix that have not happened.
    """

    format: Literal[1] = 1
    finished_at: str
    target: str
    plan: Mapping[str, Any]
    machine: Mapping[str, Any]
    figures: Mapping[str, float]
    errors: Mapping[str, int]
    latency: tuple[tuple[float, float], ...]
    series: tuple[Second, ...]
    violations: tuple[Violation, ...]
    violation_count: int
    warnings: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether every promise that was tried was kept."""
        return not self.violation_count

    @property
    def passed(self) -> bool:
        """Whether every session was checked, every part of the mix tried, and every promise kept."""
        return self.kept and not self.untried


@frozen
class Outcome:
    """The outcome of the checks of a run.

    Attributes:
        sessions: number of created sessions.
        violations: the broken promises.
        unchecked: for each session that could not be checked to its end, the reason.
        turned_away: the first reason why a session could not be created; "" if there was none.
        cut_short: whether the run was stopped before its end.
    """

    sessions: int
    violations: Sequence[Violation] = ()
    unchecked: Sequence[str] = ()
    turned_away: str = ""
    cut_short: bool = attrs.field(default=False, kw_only=True)


def result_of(plan: LoadPlan, target: str, recorder: Recorder, outcome: Outcome) -> Result:
    """Return the result of a run that has ended."""
    if outcome.unchecked:
        recorder.counts[UNCHECKED] = len(outcome.unchecked)
    warnings = [*_warnings(recorder), *([CUT_SHORT] if outcome.cut_short else ())]
    return Result(
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        target=target,
        plan=attrs.asdict(plan),
        machine=_machine(),
        figures=figures_of(recorder, outcome.sessions),
        errors=dict(sorted(recorder.errors.items())),
        latency=tuple(recorder.latency.curve()),
        series=tuple(recorder.series),
        violations=tuple(outcome.violations[:SHOWN]),
        violation_count=len(outcome.violations),
        warnings=tuple(warnings),
        untried=tuple(_untried(plan, recorder, outcome)),
    )


def figures_of(recorder: Recorder, sessions: int) -> dict[str, float]:
    """Return the numbers of a run so far."""
    seconds = max(recorder.elapsed, 1e-9)
    turns = recorder.counts["turns"]
    others = {name: float(count) for name, count in sorted(recorder.counts.items()) if name != "turns"}
    return {
        "sessions": float(sessions),
        "seconds": round(seconds, 3),
        "turns": float(turns),
        "turns/s": round(turns / seconds, 2),
        "events": float(recorder.events),
        "events/s": round(recorder.events / seconds, 1),
        **_spread("setup", recorder.setup),
        **_spread("latency", recorder.latency),
        **_spread("service time", recorder.service),
        **_spread("first event", recorder.first),
        **_spread("refusal", recorder.refusal),
        **_spread("tester's lag", recorder.lag),
        "errors": float(recorder.errors.total()),
        **others,
    }


def _spread(name: str, histogram: Histogram) -> dict[str, float]:
    if not len(histogram):
        return {}
    spread = {f"{name} p{percent:g}": round(value, 3) for percent, value in histogram.at(*PERCENTILES).items()}
    return {f"{name} mean": round(histogram.mean, 3), **spread}


def _warnings(recorder: Recorder) -> list[str]:
    found = []
    if recorder.late:
        found.append(
            f"the tester was late itself: its loop by {recorder.lag.at(99.0)[99.0]:.0f} ms in one moment of a hundred;"
            " times contain that. Give it fewer sessions, or a processor of its own."
        )
    if truncated := recorder.counts["truncated streams"]:
        found.append(f"{truncated} streams lack events or their ends: they were not checked further")
    return found


def _untried(plan: LoadPlan, recorder: Recorder, outcome: Outcome) -> Iterator[str]:
    """Yield the sessions that were not checked, and each part of the plan that has not happened, with advice."""
    sessions = outcome.sessions
    if outcome.unchecked:
        yield f"{len(outcome.unchecked)} of {sessions} sessions were not checked: {outcome.unchecked[0]}"
    if outcome.cut_short:
        return
    if missing := plan.sessions - sessions:
        yield f"{missing} of {plan.sessions} sessions could not be created: {outcome.turned_away}"
    for name, share in attrs.asdict(plan.mix).items():
        if share and not recorder.counts[COUNTED[name]]:
            of = f"{sessions} sessions" if name == "subscribers" else f"{recorder.counts['turns']} turns"
            yield f"{name}={share:g}: not one in {of}; {ADVICE[name]}"


def unit_of(figure: str) -> str:
    """Return the unit of a figure; empty for counts, and for rates, whose names end with their units."""
    if figure == "seconds":
        return "s"
    return "ms" if figure.startswith(MILLISECONDS) else ""


def _machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "processors": os.cpu_count() or 0,
        "python": platform.python_version(),
        "warren": VERSION,
        "trio": version("trio"),
    }


def to_json(result: Result) -> bytes:
    """Return a result as JSON."""
    return msgspec.json.format(msgspec.json.encode(result), indent=1)


def read_result(path: Path) -> Result:
    """Read a result from a file. Raises InvalidParamsError, path `$.file`, for other files."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as exc:
        raise InvalidParamsError.at("$.file", f"{path}: {exc.strerror}") from None
    except ValueError as exc:
        raise InvalidParamsError.at("$.file", f"{path} is no result of a load run: {exc}") from None
