"""A result as one HTML file with figures, charts and violations. The file loads nothing, so the library is in it."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

from warren.base.values import frozen
from warren.transport.load.result import Result, unit_of

MARKS: Final = ((0.0, "0 %"), (1.0, "90 %"), (2.0, "99 %"), (3.0, "99.9 %"), (4.0, "99.99 %"))
"""Positions on the axis of percentiles: each step leaves a tenth of the turns before it."""
LIBRARY: Final = files("warren.transport.console") / "static" / "vendor"
EXPORT: Final = "export{"
STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 800px; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .15rem .8rem .15rem 0; text-align: left }
td.n { text-align: right; font-variant-numeric: tabular-nums } th { border-bottom: 1px solid #999 }
figure { margin: 1.5rem 0 } figcaption { font-weight: 600 } .u-legend { font-size: 12px }
.passed { color: #2b7a4b } .failed { color: #b3261e } .warning { background: #fff3cd; padding: .5rem }
@media (prefers-color-scheme: dark) { body { background: #1b1b1b; color: #ddd } .warning { background: #4a3f14 } }
"""
DRAW: Final = """
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const [text, line] = dark ? ["#aaa", "#444"] : ["#555", "#ddd"];
const colours = ["#2f6db5", "#c8553d"];
const charts = JSON.parse(document.getElementById("charts").textContent);
document.querySelectorAll("figure").forEach((figure, index) => {
  const { title, unit, lines, marks } = charts[index];
  const xs = [...new Set(lines.flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
  const values = lines.map(({ points }) => { const of = new Map(points); return xs.map((x) => of.get(x) ?? null); });
  const last = marks.length ? marks.at(-1)[0] : Math.max(1, xs.at(-1) ?? 1);
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, font: "11px system-ui" };
  const percentile = (x) => `${(100 - 100 / 10 ** x).toPrecision(4)} %`;
  const across = marks.length ? { splits: () => marks.map(([at]) => at), values: () => marks.map(([, name]) => name) }
    : { values: (_plot, seconds) => seconds.map((each) => `${each} s`) };
  const plot = new uPlot({
    width: figure.clientWidth,
    height: 240,
    scales: {
      x: { time: false, range: () => (marks.length ? [0, last] : [-0.02 * last, 1.02 * last]) },
      y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] },
    },
    axes: [{ ...axis, ...across }, { ...axis, size: 72, values: (_plot, ticks) => ticks.map((y) => `${y} ${unit}`) }],
    series: [
      marks.length ? { label: "percentile", value: (_plot, x) => x && percentile(x) } : { label: "second" },
      ...lines.map(({ name }, at) => ({
        label: name,
        stroke: colours[at],
        width: 2,
        points: { show: xs.length < 60, size: 6, fill: colours[at] },
      })),
    ],
  }, [xs, ...values], figure);
  plot.root.setAttribute("role", "img");
  plot.root.setAttribute("aria-label", title);
  addEventListener("resize", () => plot.setSize({ width: figure.clientWidth, height: 240 }));
});
"""

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
        f"<style>{LIBRARY.joinpath('uplot.css').read_text(encoding='utf-8')}{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(result.finished_at)}, {escape(_described(result.machine))}</p>",
        f'<p class="{verdict}"><b>{result.violation_count} violations: {word}.</b></p>',
        *(f'<p class="failed"><b>Not tried:</b> {escape(part)}</p>' for part in result.untried),
        *(f'<p class="warning">{escape(warning)}</p>' for warning in result.warnings),
        *_violations(result),
        *(f"<figure><figcaption>{escape(chart.title)}</figcaption></figure>" for chart in charts(result)),
        "<h2>Figures</h2><p>Latency counts from when a turn was meant to start.</p>",
        _table(
            ("figure", "value", "unit"),
            ((name, f"{value:g}", unit_of(name)) for name, value in result.figures.items()),
        ),
        *_errors(result.errors),
        "<h2>Plan</h2>",
        _table(("setting", "value"), _flat(result.plan)),
        f'<script type="application/json" id="charts">{_data(result)}</script>',
        f'<script type="module">{_library()}{DRAW}</script>',
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _data(result: Result) -> str:
    """Return the charts as JSON that no text in it can end."""
    data = [
        {
            "title": chart.title,
            "unit": chart.unit,
            "lines": [{"name": name, "points": points} for name, points in chart.lines.items()],
            "marks": chart.marks,
        }
        for chart in charts(result)
    ]
    return json.dumps(data).replace("<", "\\u003c")


def _library() -> str:
    """Return the code of the library, a module whose one export is a name in this page's module instead."""
    code, _, exported = LIBRARY.joinpath("uplot.js").read_text(encoding="utf-8").rpartition(EXPORT)
    return f"{code}const uPlot = {exported.split()[0]};"


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
    rows = ((each.session_id, each.rule, each.detail) for each in result.violations)
    return ["<h2>Violations</h2>", _table(("session", "rule", "detail"), rows)]


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
