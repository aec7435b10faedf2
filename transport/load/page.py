"""A result as one HTML file with figures, charts and violations. The file loads nothing, so the library is in it."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

import attrs

from warren.base.values import frozen
from warren.transport.load.result import Result, unit_of

MARKS: Final = ((0.0, "0 %"), (1.0, "90 %"), (2.0, "99 %"), (3.0, "99.9 %"), (4.0, "99.99 %"))
"""Positions on the axis of percentiles: each step leaves a tenth of the turns before it."""
HERE: Final = files("warren.transport.load")
LIBRARY: Final = files("warren.transport.console") / "static" / "vendor"
EXPORT: Final = "export{"

Points = Sequence[tuple[float, float]]


@frozen
class Chart:
    """A chart.

    Attributes:
        title: the title.
        unit: the unit of the vertical axis.
        lines: the points of each line, by its name.
        marks: positions on the horizontal axis with their labels; without any the axis has the seconds of the run.
    """

    title: str
    unit: str
    lines: Mapping[str, Points]
    marks: Sequence[tuple[float, str]] = ()


def render(result: Result) -> str:
    """Return the page."""
    verdict = "passed" if result.passed else "failed"
    word = "every promise was kept" if result.kept else "promises were NOT kept"
    title = f"Load on {result.target}"
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{_read(LIBRARY, 'uplot.css')}{_read(HERE, 'page.css')}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(result.finished_at)}, {escape(_described(result.machine))}</p>",
        f'<p class="{verdict}"><b>{result.violation_count} violations: {word}.</b></p>',
        *(f'<p class="failed"><b>Not tried:</b> {escape(part)}</p>' for part in result.untried),
        *(f'<p class="warning">{escape(warning)}</p>' for warning in result.warnings),
        *_violations(result),
        *(f"<figure><figcaption>{escape(chart.title)}</figcaption></figure>" for chart in charts(result)),
        "<h2>Figures</h2><p>Latency counts from when a turn was meant to start.</p>",
        _table(("figure", "value", "unit"), _figures(result)),
        *_errors(result.errors),
        "<h2>Plan</h2>",
        _table(("setting", "value"), _flat(result.plan)),
        f'<script type="application/json" id="charts">{_data(result)}</script>',
        f'<script type="module">{_script()}</script>',
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _data(result: Result) -> str:
    """Return the charts as JSON that no text in it can end."""
    return json.dumps([attrs.asdict(chart) for chart in charts(result)]).replace("<", "\\u003c")


def _script() -> str:
    """Return the module of the page: the code of the library, whose one export becomes a name, and that of the page."""
    code, _, exported = _read(LIBRARY, "uplot.js").rpartition(EXPORT)
    return f"{code}const uPlot = {exported.split()[0]};\n" + _read(HERE, "page.js")


def _read(folder: Traversable, name: str) -> str:
    return folder.joinpath(name).read_text(encoding="utf-8")


def charts(result: Result) -> list[Chart]:
    """Return the charts of a result."""
    latency = [(-math.log10(1 - percent / 100), value) for percent, value in result.latency if percent < 100]  # noqa: PLR2004
    return [
        Chart("Latency by percentile", "ms", {"latency": [(x, y) for x, y in latency if x <= MARKS[-1][0]]}, MARKS),
        Chart("Latency of each second's turns", "ms", {"p50": _series(result, "p50"), "p99": _series(result, "p99")}),
        Chart("Turns", "/s", {"answered": _series(result, "turns"), "running": _series(result, "running")}),
        Chart("Events", "/s", {"events": _series(result, "events")}),
        Chart("Refusals and errors", "/s", {"busy": _series(result, "busy"), "errors": _series(result, "errors")}),
        Chart("The tester's own lag, longest of each second", "ms", {"lag": _series(result, "lag")}),
    ]


def _series(result: Result, name: str) -> Points:
    return [(float(second.second), float(getattr(second, name))) for second in result.series]


def _violations(result: Result) -> list[str]:
    if result.kept:
        return []
    return ["<h2>Violations</h2>", _table(("session", "rule", "detail"), map(attrs.astuple, result.violations))]


def _figures(result: Result) -> Iterable[tuple[str, ...]]:
    return ((name, f"{value:g}", unit_of(name)) for name, value in result.figures.items())


def _errors(errors: Mapping[str, int]) -> list[str]:
    rows = ((code, str(count)) for code, count in errors.items())
    return ["<h2>Errors</h2>", _table(("code", "count"), rows)] if errors else []


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    titles = "".join(f"<th>{title}</th>" for title in head)
    return f"<table><tr>{titles}</tr>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _flat(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in data.items():
        inner = isinstance(value, Mapping)
        found += _flat(value, f"{name}.") if inner else [(f"{prefix}{name}", "" if value is None else str(value))]
    return found


def _described(machine: Mapping[str, Any]) -> str:
    python, warren = machine["python"], machine["warren"]
    return f"{machine['system']}, {machine['processors']} processors, Python {python}, Warren {warren}"
