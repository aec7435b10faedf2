"""`docs/performance.md`, made of a run's results: goals, figures, and what they were measured on.

`python -m benchmarks.page [FILE]` prints it, made of the results that are kept or of those in another file.
"""

import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.limits import LIMITS

ROOT: Final = Path(__file__).parent.parent
RUN: Final = Path(__file__).parent / "run.json"
PAGE: Final = ROOT / "docs" / "performance.md"
SCRIPTS: Final = (
    "model_over_http",
    "peer_over_http",
    "prompt_cache",
    "mailbox_ask",
    "memory_turn",
    "durable_turn",
    "durable_steps",
    "postgres_turn",
    "postgres_memory",
    "postgres_vectors",
    "postgres_large",
    "peer_turns",
    "projection",
    "growth",
    "peer_growth",
    "large_file",
    "stored_sessions",
    "concurrency",
    "children",
    "aio",
    "peer_concurrency",
    "gateway",
    "cluster_turn",
    "workers",
    "websocket_turn",
    "rest_turn",
    "logins",
    "flood",
    "loop_lag",
    "compaction",
    "idle_session",
    "turn_walk",
    "instructions",
    "metrics",
    "watching",
    "traces",
    "tenants",
    "import_time",
    "start_time",
    "memory_quality",
    "memory_index",
    "memory_graph",
)
"""All benchmarks, in the order of the page."""
APART: Final = ("failed", "versions")
"""Figures that are shown in tables of their own."""

HEAD: Final = """\
# Performance

Made by `make bench-page` from `benchmarks/run.json`; do not edit. Ratios are measured side by side in one run: ours and
the other in turn, several rounds, the median of the ratios round by round; the spread is the least and the greatest.
Absolute figures hold for the machine below and what else ran on it; ratios travel better.

To repeat it: `make bench` prints everything, `python -m benchmarks NAME` one of them, `make bench-page` makes this page
too. The environments of other frameworks are made in `.peers/` from the pins in `benchmarks/peers/`; each has the same
fake model behind its own interface to models, and no network.
"""


def page(run: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page."""
    parts = [
        HEAD,
        *_machines(run),
        "## Goals\n",
        *_goals(run),
        *_limits(run),
        *_versions(run),
        *_failed(run),
        "## Figures\n",
    ]
    for name, result in run.items():
        parts += [f"### {_sentence(result['question'])}\n", f"`{name}`\n", *_figures(result["figures"])]
    return "\n".join(parts).rstrip() + "\n"


def table(goals: Iterable[Mapping[str, Any]]) -> str:
    """Return goals as lines of text."""
    return "\n".join(
        f"{goal['what']:<80} {_number(goal['value']):>10} {_spread(goal):>18}  goal {_wanted(goal):<9} {_mark(goal)}"
        for goal in goals
    )


def machine() -> dict[str, str]:
    """Return what this process runs on; nothing that tells whose machine it is."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processors": str(os.cpu_count()),
        "memory": f"{pages * size / 2**30:.0f} GiB",
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load": f"{os.getloadavg()[1]:.1f}",
    }


def _machines(run: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each machine and day; the load is the mean number of programs that wanted a processor."""
    met: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    for name, result in run.items():
        on = result["machine"]
        key = tuple(on[part] for part in ("date", "processors", "memory", "system", "python"))
        met.setdefault(key, []).append((name, float(on["load"])))
    yield "| date | processors | memory | system | Python | load | benchmarks |\n|---|---|---|---|---|---|---|"
    for key, names in met.items():
        loads = [load for _, load in names]
        yield f"| {' | '.join(key)} | {min(loads):.1f} to {max(loads):.1f} | {len(names)} |"
    yield "\nLoad is how many programs wanted a processor, the benchmark and those beside it.\n"


def missed(run: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the goals that their figures do not reach."""
    return [goal for result in run.values() for goal in result["goals"] if not goal["met"]]


def _goals(run: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "| what | figure | spread | goal | |\n|---|---|---|---|---|"
    for result in run.values():
        for goal in result["goals"]:
            if goal["met"] or goal["what"] not in LIMITS:
                yield f"| {_cells(goal)} | {_mark(goal)} |"
    yield ""


def _limits(run: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    known = [goal for goal in missed(run) if goal["what"] in LIMITS]
    if known:
        yield "## Limits\n\nWhat we aimed at and do not reach, and why.\n"
        yield "| what | figure | spread | aimed at | why |\n|---|---|---|---|---|"
        yield from (f"| {_cells(goal)} | {LIMITS[goal['what']]} |" for goal in known)
        yield ""


def _versions(run: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    versions: dict[str, str] = {}
    for result in run.values():
        found = result["figures"].get("versions", {})
        for each in found.values() if all(isinstance(each, dict) for each in found.values()) else [found]:
            versions |= each
    yield "## Versions\n"
    yield "\n".join(f"* {name} {version}" for name, version in sorted(versions.items())) + "\n"


def _failed(run: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    lines = [
        f"* {peer}, in `{name}`: {why}"
        for name, result in run.items()
        for peer, why in result["figures"].get("failed", {}).items()
    ]
    lines += [f"* `{name}` has not been run" for name in SCRIPTS if name not in run]
    if lines:
        yield "## What was not measured\n"
        yield from lines
        yield ""


def _figures(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table: a row a figure, or a row a part of a figure where the parts have parts."""
    yield "| | |\n|---|---|"
    for name, value in figures.items():
        if name in APART:
            continue
        if isinstance(value, dict) and any(isinstance(each, dict) for each in value.values()):
            yield from (_row(f"{name}: {inner}", each) for inner, each in value.items())
        else:
            yield _row(name, value)
    yield ""


def _row(name: str, value: Any) -> str:
    return f"| {name.replace('_', ' ')} | {_value(value)} |"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name.replace('_', ' ')} {_value(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_value, value)) or "none"
    return _number(value) if isinstance(value, int | float) else str(value)


def _number(value: float) -> str:
    """Return a number with as many digits as it is worth."""
    large, middle = 1_000, 10
    digits = 0 if abs(value) >= large else 1 if abs(value) >= middle else 3
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def _cells(goal: Mapping[str, Any]) -> str:
    return f"{goal['what']} | {_number(goal['value'])} | {_spread(goal)} | {_wanted(goal)}"


def _spread(goal: Mapping[str, Any]) -> str:
    spread = goal.get("spread")
    return "" if spread is None else " to ".join(map(_number, spread))


def _wanted(goal: Mapping[str, Any]) -> str:
    return f"{goal['relation']} {goal['goal']:g}"


def _mark(goal: Mapping[str, Any]) -> str:
    return "met" if goal["met"] else "**missed**"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    kept = Path(sys.argv[1]) if len(sys.argv) > 1 else RUN
    sys.stdout.write(page(json.loads(kept.read_text(encoding="utf-8"))))
