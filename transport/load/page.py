"""A result as one HTML file with figures, charts and violations; it loads nothing else. No I/O."""

import math
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final

from warren.transport.load.result import Result, unit_of
from warren.transport.load.svg import Chart, Points, draw

MARKS: Final = ((0.0, "0 %"), (1.0, "90 %"), (2.0, "99 %"), (3.0, "99.9 %"), (4.0, "99.99 %"))
STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 800px; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .15rem .8rem .15rem 0; text-align: left }
td.n { text-align: right; font-variant-numeric: tabular-nums } th { border-bottom: 1px solid #999 }
svg { width: 100%; font: 11px system-ui, sans-serif; fill: #555; margin: 1rem 0 } .title { font-size: 14px; fill: #222 }
.grid { stroke: #ddd } .passed { color: #2b7a4b } .failed { color: #b3261e }
.warning { background: #fff3cd; padding: .5rem }
@media (prefers-color-scheme: dark) { body { background: #1b1b1b; color: #ddd } svg { fill: #aaa }
.title { fill: #eee } .grid { stroke: #444 } .warning { background: #4a3f14 } }
"""


def render(result: Result) -> str:
    """Return the page."""
    verdict = "passed" if result.passed else "failed"
    word = "every promise was kept" if result.kept else "promises were NOT kept"
    title = f"Load on {result.target}"
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(result.finished_at)}, {escape(_described(result.machine))}</p>",
        f'<p class="{verdict}"><b>{result.violation_count} violations: {word}.</b></p>',
        *(f'<p class="failed"><b>Not tried:</b> {escape(part)}</p>' for part in result.untried),
        *(f'<p class="warning">{escape(warning)}</p>' for warning in result.warnings),
        *_violations(result),
        *(draw(chart) for chart in charts(result)),
        "<h2>Figures</h2><p>Latency counts from when a turn was meant to start.</p>",
        _table(
            ("figure", "value", "unit"),
            ((name, f"{value:g}", unit_of(name)) for name, value in result.figures.items()),
        ),
        *_errors(result.errors),
        "<h2>Plan</h2>",
        _table(("setting", "value"), _flat(result.plan)),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


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
