"""A plan as a picture: an SVG text with its own background, no style sheet, no script, no ids.

Notebooks show the picture for a dataflow (``_repr_svg_``) and below the summary of a run (``_repr_html_``). The picture
can stand in any page, light or dark, also several times: it refers to nothing outside of itself, and nothing outside
can refer to its parts. A loop is drawn as a frame: what is inside is laid out first, and then placed as one block in
the scope around the loop (`layout`), so frames never overlap. Arrows run from top to bottom; only the arrows of what a
loop sends to its next round run up. Laws:

- **Text fits.** Every text fits its box, as far as its width can be known without the font (some six tenths of the size
  of type for a character, twice that for a wide one).
- **Nothing hidden.** A box that shows a shortened text has the whole text in its tooltip.
- **Safe text.** The user's texts are escaped, and control characters, which no XML may hold, are replaced.

>>> import pyarrow as pa
>>> from riverrun.operators.sources import Input
>>> from riverrun.plan.plan import PlanBuilder
>>> builder = PlanBuilder("<script>")
>>> _ = builder.add(Input("rows"), [], [pa.schema({})], name="rows")
>>> picture = to_svg(builder.build())
>>> picture.startswith("<svg "), "<script>" in picture, "&lt;script&gt;" in picture
(True, False, True)

Cost: that of `layout` for each scope; the text is linear in boxes and arrows.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from riverrun.plan.picture.figure import (
    Arrow,
    Box,
    Figure,
    description_of,
    one_line,
    place_of,
    short_name,
)
from riverrun.plan.picture.layout import Curve, Placement, Point, Rectangle, Route, place
from riverrun.plan.plan import Plan, Scope

MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SANS = "system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
TEXT, SMALL = 11.5, 9.5  # sizes of type
LEADING = 16.0
WIDEST = 38  # characters in a line of a box
LINES = 7  # of a fused chain that are shown
PAD = 10.0
TAB = 22.0  # above a box: what an exchange goes by
BAR = 30.0  # at the top of a loop: its title
FRAME = 18.0  # between the sides of a loop's frame and what is inside
FOOT = 6.0  # below it
EDGE = 24.0  # around the whole

PAPER, INK, FAINT, LINE = "#fbfcfe", "#1d2733", "#5f6b7a", "#76828f"
STATE, ROUND, MOVES, ARRIVAL = "#2f6fde", "#b86e00", "#0f8b8d", "#c2255c"
# For each role: fill, border.
COLOURS = {
    "input": ("#e6f6ec", "#2f9e5b"),
    "output": ("#f2ebfb", "#7c4dbd"),
    "state": ("#e9f1fe", STATE),
    "round": ("#fff3dc", ROUND),
}
PLAIN = ("#ffffff", "#a9b3bf")


def to_svg(plan: Plan) -> str:
    """The plan as a picture."""
    figure = Figure(plan)
    level = _Level(figure, plan.scopes[0])
    sketch = _Sketch(figure)
    header = _header(figure)
    legend = _legend(figure)
    width = max(
        level.placed.width, _wide(header[0], 15), _wide(header[1], SMALL), _legend_width(legend)
    )
    sketch.level(level, (EDGE + (width - level.placed.width) / 2, EDGE + 48))
    height = EDGE + 48 + level.placed.height + (34 if legend else 0) + EDGE
    sketch.text((EDGE, EDGE + 14), header[0], 15, INK, font=SANS, bold=True)
    sketch.text((EDGE, EDGE + 31), header[1], SMALL + 1, FAINT, font=SANS)
    _draw_legend(sketch, legend, (EDGE, height - EDGE))
    whole = width + 2 * EDGE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_safe(plan.name)}" '
            f'width="{whole:.0f}" height="{height:.0f}" viewBox="0 0 {whole:.0f} {height:.0f}">',
            f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>',
            *sketch.below,
            *sketch.links,
            *sketch.above,
            "</svg>",
        ]
    )


# -- what is in a box


@dataclass(frozen=True)
class _Face:
    """A box as it is drawn: its lines, its size, and the tabs of exchanges above it."""

    lines: tuple[str, ...]
    caption: str
    width: float
    height: float
    tab: float

    @property
    def whole(self) -> float:
        return self.height + self.tab


def _face(figure: Figure, box: Box, arriving: Sequence[Arrow]) -> _Face:
    tabs = [_label(arrow) for arrow in arriving]
    tab = TAB if any(tabs) else 0.0
    # Arrows arrive at even distances, so the widest tab decides for all.
    room = max((_wide(label, SMALL) + 18 for label in tabs if label), default=0.0)
    room *= len(tabs) + 1 if len(tabs) > 1 else 1
    if box.role in ("enter", "leave"):
        return _Face((), "", max(room, 12.0), 0.0, tab)
    lines, caption = _lines(box), _caption(figure, box)
    icon = 20.0 if box.role == "state" else 0.0
    width = max(
        max(_wide(line, TEXT) for line in lines) + 2 * PAD + icon,
        _wide(caption, SMALL) + 2 * PAD + icon,
        room,
        96.0,
    )
    height = len(lines) * LEADING + (LEADING - 3 if caption else 0) + PAD
    return _Face(lines, caption, width, height, tab)


def _lines(box: Box) -> tuple[str, ...]:
    if len(box.nodes) == 1:
        wrapped = textwrap.wrap(box.steps[0], WIDEST, max_lines=2, placeholder=" …")
        return tuple(one_line(line, WIDEST) for line in wrapped) or (box.nodes[0].operator.kind,)
    shown = [one_line(step, WIDEST) for step in box.steps]
    if len(shown) > LINES:
        shown = [*shown[: LINES - 1], f"… and {len(shown) - LINES + 1} more"]
    return tuple(shown)


def _caption(figure: Figure, box: Box) -> str:
    first = box.nodes[0]
    if box.role == "round":
        name = "start of each round"
    elif len(box.nodes) > 1:
        name = "fused"
    else:
        name = one_line(short_name(first), 24)
    parts = [name, one_line(place_of(first), 26)]
    readers = figure.readers.get(box.nodes[-1].number, ())
    if len(readers) > 1:
        parts.append(f"{len(readers)} readers")
    return " · ".join(part for part in parts if part)


def _label(arrow: Arrow) -> str:
    moves = ", ".join(description_of(node).removeprefix("exchange ") for node in arrow.exchanges)
    return one_line(moves, WIDEST)


def _tooltip(figure: Figure, box: Box) -> str:
    lines: list[str] = []
    for node in box.nodes:
        lines.append(f"{one_line(node.name)}: {description_of(node)}")
        if node.line:
            lines.append(f"    {one_line(node.line)}")
        readers = figure.readers.get(node.number, ())
        if node.operator.keeps_state:
            by = ", ".join(one_line(reader.name) for reader in readers)
            lines.append("    keeps state" + (f", read by {by}" if readers else ""))
        if node.number in figure.plan.arrival_dependent:
            lines.append("    depends on how rows arrive; results leave once the epoch is durable")
    return "\n".join(lines)


# -- where it goes


class _Level:
    """A scope: its boxes, the levels of the loops in it, and where they are placed."""

    def __init__(self, figure: Figure, scope: Scope) -> None:
        self.scope = scope
        self.title = f"↻ {one_line(scope.name, WIDEST)} · {figure.rounds(scope)}"
        arriving: dict[int, list[Arrow]] = {}
        for arrow in figure.arrows:
            if not arrow.returns:
                arriving.setdefault(arrow.target, []).append(arrow)
        inner = [one for one in figure.plan.scopes if one.parent is scope]
        self.loops = [_Level(figure, one) for one in inner]
        # Entering is drawn on the frame of the loop it enters, leaving on that of the one it leaves.
        entered = [b for b in figure.boxes if b.role == "enter" and b.scope is scope]
        left = [b for b in figure.boxes if b.role == "leave" and _left_by(figure, b) is scope]
        boxes = [b for b in figure.boxes if b.scope is scope and b.role not in ("enter", "leave")]
        self.boxes = [*entered, *boxes, *left]
        self.faces = {b.number: _face(figure, b, arriving.get(b.number, ())) for b in self.boxes}
        pins = {b.number: "first" for b in entered} | {b.number: "last" for b in left}
        blocks = [self._block(b, pins.get(b.number, "")) for b in self.boxes]
        blocks += [
            Rectangle(loop.width, loop.height + loop.tab, swaps=False) for loop in self.loops
        ]
        # Where arrows can end here: at a box, or at a dot on the frame of a loop.
        ends: dict[int, tuple[int, float]] = {
            b.number: (at, 0.0) for at, b in enumerate(self.boxes)
        }
        leaving = dict(ends)
        for at, loop in enumerate(self.loops, len(self.boxes)):
            for box in loop.boxes:
                if box.role == "enter":
                    ends[box.number] = at, loop.port(box) - loop.width / 2
                elif box.role == "leave":
                    leaving[box.number] = at, loop.port(box) - loop.width / 2
        own_exits, own_entries = {b.number for b in left}, {b.number for b in entered}
        self.arrows: list[Arrow] = []
        links: list[Curve] = []
        for arrow in figure.arrows:
            if arrow.source not in leaving or arrow.target not in ends:
                continue
            if arrow.source in own_exits or arrow.target in own_entries:
                continue  # one end is in the scope around this one
            source, leaves = leaving[arrow.source]
            target, arrives = ends[arrow.target]
            if arrow.target in self.faces and not arrow.returns:
                together = arriving[arrow.target]
                width = self.faces[arrow.target].width
                arrives = width * ((together.index(arrow) + 1) / (len(together) + 1) - 0.5)
            links.append(Curve(source, target, leaves, arrives, arrow.returns))
            self.arrows.append(arrow)
        self.placed: Placement = place(blocks, links)
        self._fit_title()

    def _block(self, box: Box, pinned: str) -> Rectangle:
        face = self.faces[box.number]
        # A tab of an entry is drawn above the frame, by the level around.
        return Rectangle(face.width, face.height if box.role == "enter" else face.whole, pinned)

    @property
    def tab(self) -> float:
        return max((self.faces[b.number].tab for b in self.boxes if b.role == "enter"), default=0.0)

    @property
    def width(self) -> float:
        return self.placed.width + 2 * FRAME + self.wider

    @property
    def height(self) -> float:
        left = any(box.role == "leave" for box in self.boxes)
        return BAR + self.placed.height + (FOOT if left else FRAME)

    def port(self, box: Box) -> float:
        """Where the dot of a box on the frame is, from the left of the frame."""
        at = self.boxes.index(box)
        return FRAME + self.placed.corners[at][0] + self.faces[box.number].width / 2

    def _fit_title(self) -> None:
        """Put the title between the arrows that come in; make the frame wider when it fits nowhere."""
        self.wider = 0.0
        need = _wide(self.title, TEXT) + 16
        taken = sorted(self.port(box) for box in self.boxes if box.role == "enter")
        borders = [2.0, *taken, self.width - 2.0]
        for before, after in pairwise(borders):
            if after - before >= need + 8:
                self.title_at = before + 10
                return
        self.title_at = borders[-2] + 10
        self.wider = need + 8 - (borders[-1] - borders[-2])


def _left_by(figure: Figure, box: Box) -> Scope:
    """The scope that a leaving box comes out of."""
    return figure.plan.nodes[box.nodes[0].inputs[0].node].scope


# -- how it is drawn


@dataclass
class _Sketch:
    """Elements in three sheets: frames, then links, then boxes and text."""

    figure: Figure
    below: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    above: list[str] = field(default_factory=list)

    def level(self, level: _Level, origin: Point) -> None:
        """Draw what is in a scope."""
        x, y = origin
        for at, loop in enumerate(level.loops, len(level.boxes)):
            left, top = level.placed.corners[at]
            self._frame(loop, (x + left, y + top + loop.tab))
        for at, box in enumerate(level.boxes):
            left, top = level.placed.corners[at]
            self._box(box, level.faces[box.number], (x + left, y + top))
        for arrow, route, back in zip(
            level.arrows, level.placed.routes, level.placed.back, strict=True
        ):
            self._arrow(level, arrow, _moved(route, origin), back)

    def _frame(self, loop: _Level, corner: Point) -> None:
        x, y = corner
        shade = "#fffdf7" if loop.scope.depth % 2 == 0 else "#fffaf0"
        self.below.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{loop.width:.1f}" height="{loop.height:.1f}" rx="12" '
            f'fill="{shade}" stroke="{ROUND}" stroke-opacity="0.55" stroke-width="1.2"/>'
        )
        self.text((x + loop.title_at, y + 20), loop.title, TEXT, ROUND, font=SANS, bold=True)
        self.level(loop, (x + FRAME, y + BAR))
        for box in loop.boxes:
            if box.role not in ("enter", "leave"):
                continue
            at = x + loop.port(box)
            if box.role == "enter":
                ends = (y, y + BAR)
            else:
                ends = (y + loop.height - FOOT, y + loop.height)
            self.links.append(
                f'<path d="M{at:.1f} {ends[0]:.1f}V{ends[1]:.1f}" fill="none" stroke="{LINE}" stroke-width="1.3"/>'
            )
            dot = ends[0] if box.role == "enter" else ends[1]
            self.above.append(
                f'<circle cx="{at:.1f}" cy="{dot:.1f}" r="4" fill="{PAPER}" stroke="{ROUND}" stroke-width="1.5">'
                f"<title>{_safe_lines(_tooltip(self.figure, box))}</title></circle>"
            )

    def _box(self, box: Box, face: _Face, corner: Point) -> None:
        if box.role in ("enter", "leave"):
            return
        x, y = corner[0], corner[1] + face.tab
        fill, border = COLOURS.get(box.role, PLAIN)
        depends = any(node.number in self.figure.plan.arrival_dependent for node in box.nodes)
        dashes = ' stroke-dasharray="2 2"' if depends else ""
        self.above.append(f"<g><title>{_safe_lines(_tooltip(self.figure, box))}</title>")
        self.above.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{face.width:.1f}" height="{face.height:.1f}" rx="6" '
            f'fill="{fill}" stroke="{ARRIVAL if depends else border}" stroke-width="1.3"{dashes}/>'
        )
        left = x + PAD
        if box.role == "state":
            self.above.append(_cylinder(left + 6, y + face.height / 2))
            left += 20
        elif len(box.nodes) > 1:
            self.above.append(
                f'<path d="M{x + 4:.1f} {y + 8:.1f}v{face.height - 16:.1f}" stroke="{border}" '
                'stroke-width="2" stroke-linecap="round"/>'
            )
        for at, line in enumerate(face.lines):
            self.text((left, y + 17 + at * LEADING), line, TEXT, INK)
        if face.caption:
            self.text((left, y + 15 + len(face.lines) * LEADING), face.caption, SMALL, FAINT)
        self.above.append("</g>")

    def _arrow(self, level: _Level, arrow: Arrow, route: Route, back: bool) -> None:
        x, y = route[-1]
        onto_frame = arrow.target not in level.faces
        role = self.figure.boxes[arrow.target].role
        if onto_frame:
            loop = next(one for one in level.loops if arrow.target in one.faces)
            tab = loop.tab
        else:
            tab = level.faces[arrow.target].tab
        tip = y + tab
        colour = ROUND if arrow.returns else STATE if arrow.reads else LINE
        label = _label(arrow)
        if label:
            colour = MOVES
        dashes = ' stroke-dasharray="5 3.5"' if label else ""
        path = _around(route) if back else _down(route)
        pointed = role not in ("enter", "leave")
        self.links.append(
            f'<path d="{path}V{tip - (5 if pointed else 0):.1f}" fill="none" stroke="{colour}" '
            f'stroke-width="{1.6 if arrow.reads or arrow.returns else 1.3}"{dashes}/>'
        )
        if pointed:
            self.links.append(f'<path d="M{x:.1f} {tip:.1f}l-4 -7.5q4 2 8 0z" fill="{colour}"/>')
        if label:
            width = _wide(label, SMALL) + 12
            full = "\n".join(f"{one_line(n.name)}: {description_of(n)}" for n in arrow.exchanges)
            self.above.append(f"<g><title>{_safe_lines(full)}</title>")
            self.above.append(
                f'<rect x="{x - width / 2:.1f}" y="{y - 3:.1f}" width="{width:.1f}" height="15" rx="7.5" '
                f'fill="#e3f4f3" stroke="{MOVES}" stroke-width="0.8"/>'
            )
            self.text((x, y + 8), label, SMALL, "#0a5f61", anchor="middle")
            self.above.append("</g>")

    def text(
        self,
        at: Point,
        text: str,
        size: float,
        colour: str,
        *,
        font: str = MONO,
        bold: bool = False,
        anchor: str = "start",
    ) -> None:
        """Draw a line of text."""
        weight = ' font-weight="600"' if bold else ""
        where = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self.above.append(
            f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" font-family="{font}" font-size="{size:g}" '
            f'fill="{colour}"{weight}{where} xml:space="preserve">{_safe(text)}</text>'
        )


def _down(route: Route) -> str:
    """A path that goes down, and to the side in curves."""
    x, y = route[0]
    parts = [f"M{x:.1f} {y:.1f}"]
    for to_x, to_y in route[1:]:
        if abs(to_x - x) < 0.75:
            parts.append(f"L{to_x:.1f} {to_y:.1f}")
        else:
            middle = (y + to_y) / 2
            parts.append(f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}")
        x, y = to_x, to_y
    return "".join(parts)


def _around(route: Route) -> str:
    """A path of right angles with round corners."""
    parts = [f"M{route[0][0]:.1f} {route[0][1]:.1f}"]
    for before, corner, after in zip(route, route[1:], route[2:], strict=False):
        near, far = _towards(corner, before), _towards(corner, after)
        parts.append(
            f"L{near[0]:.1f} {near[1]:.1f}Q{corner[0]:.1f} {corner[1]:.1f} {far[0]:.1f} {far[1]:.1f}"
        )
    return "".join(parts)


def _towards(start: Point, end: Point, radius: float = 9.0) -> Point:
    across, down = end[0] - start[0], end[1] - start[1]
    length = abs(across) + abs(down)
    part = min(radius, length / 2) / length if length else 0.0
    return start[0] + across * part, start[1] + down * part


def _moved(route: Route, origin: Point) -> Route:
    return tuple((x + origin[0], y + origin[1]) for x, y in route)


def _cylinder(x: float, y: float) -> str:
    """The mark of a box that keeps state."""
    return (
        f'<path d="M{x - 6:.1f} {y - 6:.1f}v12c0 3 12 3 12 0v-12" fill="#cfe0fb" stroke="{STATE}" stroke-width="1.1"/>'
        f'<ellipse cx="{x:.1f}" cy="{y - 6:.1f}" rx="6" ry="2.4" fill="#ffffff" stroke="{STATE}" stroke-width="1.1"/>'
    )


# -- what is said around it


def _header(figure: Figure) -> tuple[str, str]:
    nodes = figure.plan.nodes
    states = sum(node.operator.keeps_state for node in nodes)
    loops = len(figure.plan.scopes) - 1
    parts = [f"{len(nodes)} nodes", f"{states} with state"]
    if loops:
        parts.append(f"{loops} loop{'s' * (loops != 1)}")
    return one_line(figure.plan.name, 60), " · ".join(parts)


def _legend(figure: Figure) -> list[tuple[str, str]]:
    """The marks that occur in the figure, each with its meaning."""
    legend: list[tuple[str, str]] = []
    if any(box.role == "state" for box in figure.boxes):
        legend.append(("state", "keeps state"))
    if any(arrow.reads for arrow in figure.arrows):
        legend.append(("reads", "reads the state"))
    if any(arrow.exchanges for arrow in figure.arrows):
        legend.append(("moves", "moves between workers"))
    if any(arrow.returns for arrow in figure.arrows):
        legend.append(("returns", "to the next round"))
    if figure.plan.arrival_dependent:
        legend.append(("arrival", "depends on arrival, leaves once durable"))
    return legend


def _legend_width(legend: Sequence[tuple[str, str]]) -> float:
    return sum(_wide(meaning, SMALL) + 50 for _, meaning in legend)


def _draw_legend(sketch: _Sketch, legend: Sequence[tuple[str, str]], at: Point) -> None:
    x, y = at
    for mark, meaning in legend:
        if mark == "state":
            sketch.above.append(_cylinder(x + 12, y - 3))
        elif mark == "arrival":
            sketch.above.append(
                f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="24" height="12" rx="3" fill="none" '
                f'stroke="{ARRIVAL}" stroke-dasharray="2 2"/>'
            )
        else:
            colour = {"reads": STATE, "moves": MOVES, "returns": ROUND}[mark]
            dashes = ' stroke-dasharray="5 3.5"' if mark == "moves" else ""
            sketch.above.append(
                f'<path d="M{x:.1f} {y - 3:.1f}h24" stroke="{colour}" stroke-width="1.6"{dashes}/>'
            )
        sketch.text((x + 30, y), meaning, SMALL, FAINT)
        x += _wide(meaning, SMALL) + 50


def _wide(text: str, size: float) -> float:
    """How wide a text is at most, in a font that is not known."""
    widths = (
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
    return sum(widths) * size * 0.63


def _safe(text: str) -> str:
    return escape(one_line(text), quote=True)


def _safe_lines(text: str) -> str:
    indented = ((line, len(line) - len(line.lstrip())) for line in text.split("\n"))
    return "\n".join(" " * indent + _safe(line) for line, indent in indented)
