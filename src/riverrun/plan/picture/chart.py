"""Charts: numbers along an axis as an SVG text, in the style of the picture of a plan (`svg`).

A chart has *panels*, one above the other, which share the axis below them: rounds, or epochs. A panel has lines, the
same ones in each panel, in the same colours. A chart with one line shows bars. Laws:

- **Nothing beside the axes.** Every point of a line is inside its panel; labels of axes are round numbers.
- **Logarithms where they show more.** A panel whose values differ by a factor of `WIDE` or more has a logarithmic axis;
  0 has a place of its own below.
- **Bounded.** A line has at most `POINTS` points, however many values it has: of neighbours the greatest is shown.
- **Safe text**, and no style sheet, script or id, as in `svg`.

>>> panel = Panel("messages", (Line("epoch 0", ((0, 400.0), (1, 30.0), (2, 0.0))),))
>>> picture = chart("<reach>", "3 rounds", "round", [panel])
>>> picture.startswith("<svg "), "&lt;reach&gt;" in picture, "300" in picture
(True, True, True)

Cost: linear in the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from riverrun.plan.picture.svg import (
    ARRIVAL,
    EDGE,
    FAINT,
    INK,
    MOVES,
    PAPER,
    ROUND,
    SANS,
    SMALL,
    STATE,
    _safe,
    _wide,
)

WIDE = 50
POINTS = 500
DOTS = 60
"""A line with more points has no dots."""
COLOURS = (STATE, ROUND, MOVES, ARRIVAL, "#7c4dbd", "#2f9e5b", "#8a6d3b", "#5f6b7a")
GRID = "#e3e8ef"
LEFT, RIGHT = 62.0, 16.0  # of a panel: beside its axes
WIDTH, HEIGHT = 600.0, 118.0
ABOVE, BELOW = 24.0, 20.0  # a panel: its title, the labels of its axis
TOP = 52.0  # the title of the chart
ZERO = 0.1
"""The part of a logarithmic axis that is below its first power of ten."""


@dataclass(frozen=True)
class Line:
    """Values along the axis: places, in their order, each with the value there."""

    name: str
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Panel:
    """What is counted, and the lines."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class _Axis:
    """An axis: where a value is, as a part of its length, and the values that are labelled."""

    place: Callable[[float], float]
    ticks: tuple[float, ...]


def chart(title: str, subtitle: str, along: str, panels: Sequence[Panel]) -> str:
    """A chart. `along` says what is along the axis that the panels share."""
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    colours = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(names)}
    legend = names if len(names) > 1 else []
    beside = max((_wide(name, SMALL) + 34 for name in legend), default=0.0)
    width = 2 * EDGE + LEFT + WIDTH + RIGHT + beside
    height = EDGE + TOP + len(panels) * (ABOVE + HEIGHT + BELOW) + 18 + EDGE
    places = [at for panel in panels for line in panel.lines for at, _ in line.points]
    axis = _whole_axis(min(places, default=0), max(places, default=0), bars=len(names) < 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_safe(title)}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">',
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>',
        _text(EDGE, EDGE + 14, title, 15, INK, bold=True),
        _text(EDGE, EDGE + 31, subtitle, SMALL + 1, FAINT),
    ]
    top = EDGE + TOP
    for panel in panels:
        parts += _panel(panel, axis, colours, EDGE + LEFT, top + ABOVE)
        top += ABOVE + HEIGHT + BELOW
    parts.append(_text(EDGE + LEFT + WIDTH / 2, top + 12, along, SMALL + 1, FAINT, anchor="middle"))
    at = EDGE + TOP + ABOVE
    for name in legend:
        x = EDGE + LEFT + WIDTH + RIGHT
        parts.append(
            f'<path d="M{x:.1f} {at + 4:.1f}h18" stroke="{colours[name]}" stroke-width="2.4"/>'
        )
        parts.append(_text(x + 24, at + 7.5, name, SMALL, FAINT))
        at += 16
    return "\n".join([*parts, "</svg>"])


def _panel(
    panel: Panel, axis: _Axis, colours: dict[str, str], left: float, top: float
) -> Iterable[str]:
    """A panel, with the corner of its area at a point."""
    bottom = top + HEIGHT
    values = [value for line in panel.lines for _, value in line.points]
    height = _height_axis(values)
    yield _text(left - LEFT + 6, top - 9, panel.title, SMALL + 2, INK, bold=True)
    for tick in height.ticks:
        y = bottom - height.place(tick) * HEIGHT
        yield f'<path d="M{left:.1f} {y:.1f}h{WIDTH:.1f}" stroke="{GRID}" stroke-width="1"/>'
        yield _text(left - 7, y + 3.3, _short(tick), SMALL, FAINT, anchor="end")
    for tick in axis.ticks:
        x = left + axis.place(tick) * WIDTH
        yield f'<path d="M{x:.1f} {bottom:.1f}v4" stroke="{FAINT}" stroke-width="1"/>'
        yield _text(x, bottom + 14, _short(tick), SMALL, FAINT, anchor="middle")
    yield f'<path d="M{left:.1f} {bottom:.1f}h{WIDTH:.1f}" stroke="{FAINT}" stroke-width="1"/>'
    for number, line in enumerate(panel.lines):
        points = _thinned(line.points)
        spots = [
            (left + axis.place(at) * WIDTH, bottom - height.place(value) * HEIGHT, at, value)
            for at, value in points
        ]
        told = [f"{line.name}, {at:,}: {_number(value)}" for at, value in points]
        if len(colours) < 2:
            yield from _bars(spots, told, axis, bottom, colours[line.name])
        else:
            # A line that lies below others is wider, so that it is seen where they are the same.
            wide = 1.6 + min(len(panel.lines) - 1 - number, 3)
            yield from _curve(spots, told, colours[line.name], wide)


Spots = Sequence[tuple[float, float, int, float]]


def _bars(
    spots: Spots, told: Sequence[str], axis: _Axis, bottom: float, colour: str
) -> Iterable[str]:
    apart = (axis.place(1) - axis.place(0)) * WIDTH if len(spots) > 1 else WIDTH
    wide = max(min(apart * 0.8, 36.0), 1.0)
    for (x, y, _, value), words in zip(spots, told, strict=True):
        tall = max(bottom - y, 1.0 if value else 0.0)
        yield (
            f'<rect x="{x - wide / 2:.1f}" y="{bottom - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}" '
            f'fill="{colour}" fill-opacity="0.85"><title>{_safe(words)}</title></rect>'
        )


def _curve(spots: Spots, told: Sequence[str], colour: str, wide: float) -> Iterable[str]:
    path = "".join(f"{'L' if at else 'M'}{x:.1f} {y:.1f}" for at, (x, y, _, _) in enumerate(spots))
    yield (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{wide:.1f}" stroke-linejoin="round"/>'
    )
    if len(spots) <= DOTS:
        for (x, y, _, _), words in zip(spots, told, strict=True):
            yield (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{wide / 2 + 1.6:.1f}" fill="{colour}">'
                f"<title>{_safe(words)}</title></circle>"
            )


def _thinned(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """At most `POINTS` of the points: of each group of neighbours the one with the greatest value."""
    if len(points) <= POINTS:
        return points
    step = math.ceil(len(points) / POINTS)
    return [
        max(points[at : at + step], key=lambda point: point[1])
        for at in range(0, len(points), step)
    ]


# -- axes


def _whole_axis(first: int, last: int, *, bars: bool) -> _Axis:
    """The axis that panels share, for whole numbers. Bars need half a place more on each side."""
    room = 0.5 if bars or first == last else 0.0
    low, high = first - room, last + room
    step = max(1, math.ceil(_round_step((last - first) / 10)))
    ticks = range(math.ceil(first / step) * step, last + 1, step)
    return _Axis(lambda value: (value - low) / (high - low), tuple(ticks))


def _height_axis(values: Sequence[float]) -> _Axis:
    """The axis of a panel, for values from 0 on."""
    positive = [value for value in values if value > 0]
    if not positive:
        return _Axis(lambda value: 0.0, (0,))
    least, greatest = min(positive), max(positive)
    if greatest / least < WIDE:
        step = _round_step(greatest / 4)
        top = math.ceil(greatest / step - 1e-9) * step
        return _Axis(
            lambda value: value / top, tuple(step * at for at in range(round(top / step) + 1))
        )
    low, high = math.floor(math.log10(least) + 1e-9), math.ceil(math.log10(greatest) - 1e-9)

    def place(value: float) -> float:
        if value <= 0:
            return 0.0
        return ZERO + (1 - ZERO) * (math.log10(value) - low) / (high - low)

    every = max(1, math.ceil((high - low) / 5))
    zero = [0.0] if len(positive) < len(values) else []
    return _Axis(place, (*zero, *(10.0**power for power in range(low, high + 1, every))))


def _round_step(least: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not below `least`."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _number(value: float) -> str:
    """A number for people.

    >>> [_number(value) for value in (0, 1_200_000.0, 123.4, 12.34, 0.00456)]
    ['0', '1,200,000', '123', '12.3', '0.00456']
    """
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:.3g}"


def _short(value: float) -> str:
    """A round number beside an axis.

    >>> [_short(value) for value in (0, 50_000.0, 2_000_000.0, 0.25)]
    ['0', '50,000', '2M', '0.25']
    """
    return f"{value / 1e6:g}M" if value >= 1e6 else _number(value)


def _text(
    x: float,
    y: float,
    text: str,
    size: float,
    colour: str,
    *,
    bold: bool = False,
    anchor: str = "start",
) -> str:
    weight = ' font-weight="600"' if bold else ""
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="{SANS}" font-size="{size:g}" fill="{colour}"{weight}{where}>'
        f"{_safe(text)}</text>"
    )
