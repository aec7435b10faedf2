"""Line charts as SVG text: enough for a report that has to be readable without a network. No I/O."""

from collections.abc import Sequence
from html import escape
from typing import Final

from warren.values import frozen

WIDTH: Final = 760
HEIGHT: Final = 260
LEFT: Final = 64
RIGHT: Final = 16
TOP: Final = 34
BOTTOM: Final = 42
COLOURS: Final = ("#2f6db5", "#c8553d", "#4c956c", "#8d6a9f")
STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
WANTED: Final = 5
"""The approximate number of lines of the grid."""

Points = Sequence[tuple[float, float]]


@frozen
class Chart:
    """A chart.

    Attributes:
        title: the title.
        unit: the unit of the vertical axis.
        lines: the points of each line, by its name.
        marks: positions on the horizontal axis with their labels; none makes round numbers.
    """

    title: str
    unit: str
    lines: dict[str, Points]
    marks: Sequence[tuple[float, str]] = ()


@frozen
class _Scale:
    """From values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def draw(chart: Chart) -> str:
    """Return a chart as an `svg` element."""
    points = [point for line in chart.lines.values() for point in line] or [(0.0, 0.0)]
    marks = list(chart.marks) or [(tick, f"{tick:g}") for tick in ticks(max(x for x, _ in points))]
    heights = ticks(max(y for _, y in points))
    across = _Scale(0, max(marks[-1][0], *(x for x, _ in points)), LEFT, WIDTH - RIGHT)
    up = _Scale(0, heights[-1], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">',
        f'<text class="title" x="{LEFT}" y="18">{escape(chart.title)}</text>',
        *(_rung(up(tick), f"{tick:g}") for tick in heights),
        *(f'<text x="{across(x)}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>' for x, text in marks),
        f'<text x="{LEFT - 8}" y="{TOP - 8}" text-anchor="end">{escape(chart.unit)}</text>',
    ]
    for number, (name, line) in enumerate(chart.lines.items()):
        parts += _line(name, line, across, up, number)
    return "\n".join([*parts, "</svg>"])


def ticks(highest: float) -> list[float]:
    """Return round numbers from 0 to at least a value."""
    if highest <= 0:
        return [0.0, 1.0]
    power = 1.0
    while power * WANTED < highest:
        power *= 10
    while power * WANTED > highest * 10:
        power /= 10
    power = power / 10 if power * WANTED > highest else power
    step = next((power * each for each in STEPS if power * each * WANTED >= highest), power * 10)
    found = [0.0]
    while found[-1] < highest:
        found.append(round(len(found) * step, 9))
    return found


def _rung(height: float, text: str) -> str:
    rule = f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height}" y2="{height}"/>'
    return f'{rule}<text x="{LEFT - 8}" y="{height + 4}" text-anchor="end">{text}</text>'


def _line(name: str, line: Points, across: _Scale, up: _Scale, number: int) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    path = " ".join(f"{across(x)},{up(y)}" for x, y in line)
    lone = [f'<circle fill="{colour}" r="4" cx="{across(x)}" cy="{up(y)}"/>' for x, y in line[:1] if len(line) == 1]
    legend = WIDTH - RIGHT - 130 * (number + 1)
    return [
        *lone,  # a line through one point cannot be seen
        f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>',
        f'<text x="{legend}" y="18" fill="{colour}">{escape(name)}</text>',
    ]
