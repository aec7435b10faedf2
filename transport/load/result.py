"""What came of a run: figures, series, violations; as JSON and back."""

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec

from warren.errors import InvalidParamsError
from warren.transport.load.plan import LoadPlan
from warren.transport.load.recorder import PERCENTILES, Histogram, Recorder, Second
from warren.transport.load.stream import Violation

FORMAT: Final = 1
SHOWN: Final = 1_000
"""Violations that a result keeps; `violation_count` has all of them."""
EXPECTED: Final = 5
"""Something that should have happened so often, and has not happened at all, does not happen here."""
CUT_SHORT: Final = "the run was stopped before its end: the figures are of what there was until then"
COUNTED: Final = {
    "interrupts": "interrupted",
    "busy": "busy",
    "disconnects": "disconnects",
    "tools": "tool calls",
    "compactions": "compactions",
    "subscribers": "followed",
}
"""Under which name each part of a mix is counted."""


@attrs.frozen(kw_only=True)
class Result:
    """What came of a run.

    Attributes:
        format: version of this form.
        finished_at: when, UTC.
        target: what it was pointed at.
        plan: what it did.
        machine: what it ran on.
        figures: the numbers, by name; times in milliseconds.
        errors: errors by code.
        latency: percentiles and milliseconds, from the moment a turn was meant to start.
        series: second by second.
        violations: promises that were not kept.
        violation_count: how many there were.
        warnings: what makes the figures doubtful.
    """

    format: int
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

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return not self.violation_count


def result_of(
    plan: LoadPlan,
    target: str,
    recorder: Recorder,
    sessions: int,
    violations: Sequence[Violation],
    *,
    cut_short: bool = False,
) -> Result:
    """Return the result of a run that has ended; `sessions` is how many there were."""
    warnings = [*_warnings(recorder), *([CUT_SHORT] if cut_short else _lacking(plan, recorder, sessions))]
    return Result(
        format=FORMAT,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        target=target,
        plan=attrs.asdict(plan),
        machine=_machine(),
        figures=figures_of(recorder, sessions),
        errors=dict(sorted(recorder.errors.items())),
        latency=tuple(recorder.latency.curve()),
        series=tuple(recorder.series),
        violations=tuple(violations[:SHOWN]),
        violation_count=len(violations),
        warnings=tuple(warnings),
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
        found.append(f"{truncated} streams said that they lack events: what they told was not checked to the end")
    return found


def _lacking(plan: LoadPlan, recorder: Recorder, sessions: int) -> list[str]:
    found = [f"the mix wants {name}, and not one has happened" for name in _missing(plan, recorder)]
    if sessions < plan.sessions:
        found.append(f"{plan.sessions - sessions} of {plan.sessions} sessions could not be created")
    return found


def _missing(plan: LoadPlan, recorder: Recorder) -> list[str]:
    """Return the parts of the mix that should have happened, and have not: what they test was not tested."""
    turns = max(recorder.counts["turns"], plan.sessions)
    shares = {name: share for name, share in attrs.asdict(plan.mix).items() if not recorder.counts[COUNTED[name]]}
    return [name for name, share in shares.items() if share * turns >= EXPECTED]


def _machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "processors": os.cpu_count() or 0,
        "python": platform.python_version(),
        "warren": version("warren"),
        "trio": version("trio"),
    }


def to_json(result: Result) -> bytes:
    """Return a result as JSON."""
    return msgspec.json.format(msgspec.json.encode(attrs.asdict(result)), indent=1)


def read_result(path: Path) -> Result:
    """Read a result from a file. Raises InvalidParamsError (path `$.file`) for what is none."""
    try:
        data = msgspec.json.decode(path.read_bytes())
        _check_format(data["format"])
        lists = {
            "series": tuple(Second(**each) for each in data["series"]),
            "violations": tuple(Violation(**each) for each in data["violations"]),
            "latency": tuple((float(percent), float(value)) for percent, value in data["latency"]),
            "warnings": tuple(data["warnings"]),
        }
        return Result(**(data | lists))
    except OSError as exc:
        raise InvalidParamsError(f"$.file: {path}: {exc.strerror}", path="$.file") from None
    except (ValueError, TypeError, KeyError) as exc:
        raise InvalidParamsError(f"$.file: {path} is no result of a load run: {exc}", path="$.file") from None


def _check_format(number: object) -> None:
    if number != FORMAT:
        raise ValueError(f"it is of format {number}, not {FORMAT}")
