"""Layout: where the blocks of a layered drawing go, and along which points their links run.

`svg` calls `place` for each scope of a plan: for the whole, and for the inside of each loop. `place` takes five steps,
as Sugiyama, Tagawa and Toda have them. Links that close a cycle are set aside. Every block gets a layer: the longest
path to the block, or further down, where that makes links shorter. Links over several layers get a slot in each. Some
sweeps sort layers by barycentres, and the order in which the fewest links cross is kept. Then blocks move to where
their links are straightest (least squares that respect the distances, solved exactly for one layer at a time). Links
that go back run around the side.

Laws, for the result of `place`:

- **No overlap.** Blocks do not overlap, and no link that goes forward runs through a block.
- **Downward.** Every link starts at the bottom of a block and ends at the top of one. A link that goes forward ends in
  a later layer; a link that goes back may end in any.
- **In the frame.** Everything is in the rectangle from (0, 0) to (width, height).
- **Same input, same drawing.** The same blocks and links give the same result.

>>> blocks = [Rectangle(40, 20), Rectangle(40, 20), Rectangle(40, 20)]
>>> placed = place(blocks, [Curve(0, 1), Curve(0, 2)])
>>> placed.width, [y for _, y in placed.corners]  # two beside each other, below the first
(106.0, [0.0, 52.75, 52.75])
>>> placed.routes[0]
((53.0, 20.0), (20.0, 52.75))

Cost: a constant number of sweeps over blocks, links and the slots of long links, each with a sort.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Point = tuple[float, float]
Route = tuple[Point, ...]

BESIDE = 26.0  # between neighbours in a layer
BELOW = 30.0  # between layers
SLOT = 14.0  # the width that a long link takes in a layer
LANE = 10.0  # between links that go back
NEARLY = 14.0  # a link that bends by less is made straight
CENTRING = 0.15  # the weight of the middle, where a link has at least 1
CROSSING = 120.0  # the length of a way around that is worth a crossing less
SWEEPS = 16
STRAIGHTENING = 40


@dataclass(frozen=True)
class Rectangle:
    """A rectangle to place."""

    width: float
    height: float
    pinned: str = ""
    """In "first" or "last", the layer at that border; else wherever it fits."""
    swaps: bool = True
    """Whether links that arrive may change places, so that they do not cross."""


@dataclass(frozen=True)
class Curve:
    """A link from the bottom of a block to the top of another; `leaves` and `arrives` count from the middles."""

    source: int
    target: int
    leaves: float = 0.0
    arrives: float = 0.0
    back: bool = False


@dataclass(frozen=True)
class Placement:
    """The upper left corners of blocks, and the points of links, in the order they were given.

    Between two points, a link that goes forward is straight down or bends to the side; one that goes
    back only turns at right angles.
    """

    width: float
    height: float
    corners: tuple[Point, ...]
    routes: tuple[Route, ...]
    back: tuple[bool, ...]
    """Which links go back: those that are marked so, and those that close a cycle."""


def place(blocks: Sequence[Rectangle], links: Sequence[Curve]) -> Placement:
    """Place the blocks of one level."""
    if not blocks:
        return Placement(0.0, 0.0, (), (), ())
    back = _going_back(len(blocks), links)
    forward = [link for at, link in enumerate(links) if not back[at]]
    layers = _layers(blocks, forward)
    grid = _Grid.of(blocks, links, back, layers)
    grid.reduce_crossings()
    grid.swap_arrivals()
    grid.straighten()
    return grid.placement(back)


def _going_back(count: int, links: Sequence[Curve]) -> tuple[bool, ...]:
    """Which links go back: those marked, and those that would close a cycle."""
    back = [link.back or link.source == link.target for link in links]
    leaving: list[list[int]] = [[] for _ in range(count)]
    for at, link in enumerate(links):
        if not back[at]:
            leaving[link.source].append(at)
    state = [0] * count  # 1 while on the path, 2 when done
    for root in range(count):
        if state[root]:
            continue
        state[root] = 1
        path = [(root, iter(leaving[root]))]
        while path:
            block, rest = path[-1]
            leads = next(rest, None)
            if leads is None:
                state[block] = 2
                path.pop()
                continue
            target = links[leads].target
            if state[target] == 1:
                back[leads] = True
            elif state[target] == 0:
                state[target] = 1
                path.append((target, iter(leaving[target])))
    return tuple(back)


def _layers(blocks: Sequence[Rectangle], forward: Sequence[Curve]) -> list[int]:
    """The layer of each block: the longest path to it, then down where that makes links shorter."""
    count = len(blocks)
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for link in forward:
        below[link.source].append(link.target)
        above[link.target].append(link.source)
    missing = [len(sources) for sources in above]
    waiting = [at for at in range(count) if not missing[at]]
    lowest = int(any(block.pinned == "first" for block in blocks))
    layers = [0 if block.pinned == "first" else lowest for block in blocks]
    order: list[int] = []
    for block in waiting:  # grows
        order.append(block)
        for target in below[block]:
            layers[target] = max(layers[target], layers[block] + 1)
            missing[target] -= 1
            if not missing[target]:
                waiting.append(target)
    for block in reversed(order):
        if not blocks[block].pinned and below[block] and len(above[block]) <= len(below[block]):
            layers[block] = max(layers[block], min(layers[target] for target in below[block]) - 1)
    lasts = [at for at in range(count) if blocks[at].pinned == "last"]
    if lasts:
        others = [layers[at] + 1 for at in range(count) if blocks[at].pinned != "last"]
        bottom = max([*others, *(layers[at] for at in lasts)])
        for at in lasts:
            layers[at] = bottom
    return layers


@dataclass(eq=False)
class _Spot:
    """A block, or the slot of a long link, in a layer."""

    number: int
    layer: int
    width: float
    height: float = 0.0
    block: int | None = None
    x: float = 0.0  # of the middle
    at: int = 0  # in its layer
    above: list[_Segment] = field(default_factory=list)
    below: list[_Segment] = field(default_factory=list)

    @property
    def margin(self) -> float:
        return BESIDE if self.block is not None else SLOT


@dataclass(eq=False)
class _Segment:
    """The part of a link between two layers that follow each other."""

    upper: _Spot
    lower: _Spot
    leaves: float
    arrives: float

    @property
    def alone(self) -> bool:
        """Whether no other link leaves its upper spot, and none arrives at its lower one."""
        return len(self.upper.below) == 1 and len(self.lower.above) == 1

    @property
    def weight(self) -> float:
        """How much it matters that the segment is straight: more in long links, and in chains."""
        slots = (self.upper.block is None) + (self.lower.block is None)
        return (1.0, 2.0, 8.0)[slots] * (3.0 if self.alone else 1.0)

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the segment, as places in the orders of their layers."""
        upper, lower = self.upper, self.lower
        return upper.at + self.leaves / upper.width, lower.at + self.arrives / lower.width


@dataclass(eq=False)
class _Grid:
    blocks: Sequence[Rectangle]
    links: Sequence[Curve]
    rows: list[list[_Spot]]
    spots: list[_Spot]  # of the blocks
    paths: list[list[_Segment]]  # of each link; none for those that go back

    @classmethod
    def of(
        cls,
        blocks: Sequence[Rectangle],
        links: Sequence[Curve],
        back: Sequence[bool],
        layers: Sequence[int],
    ) -> _Grid:
        spots = [
            _Spot(at, layers[at], max(block.width, 1.0), block.height, at)
            for at, block in enumerate(blocks)
        ]
        rows: list[list[_Spot]] = [[] for _ in range(max(layers) + 1)]
        for spot in spots:
            rows[spot.layer].append(spot)
        paths: list[list[_Segment]] = []
        for link, goes_back in zip(links, back, strict=True):
            paths.append([])
            if goes_back:
                continue
            upper = spots[link.source]
            for layer in range(layers[link.source] + 1, layers[link.target] + 1):
                lower = spots[link.target]
                if layer < layers[link.target]:
                    lower = _Spot(len(rows[layer]), layer, 1.0)
                    rows[layer].append(lower)
                leaves = link.leaves if upper.block is not None else 0.0
                fixed = lower.block is not None and not blocks[lower.block].swaps
                segment = _Segment(upper, lower, leaves, link.arrives if fixed else 0.0)
                upper.below.append(segment)
                lower.above.append(segment)
                paths[-1].append(segment)
                upper = lower
        return cls(blocks, links, rows, spots, paths)

    # -- order

    def reduce_crossings(self) -> None:
        """Sort layers by barycentres, down and up, and keep the best order."""
        self._number()
        best, order = self._crossings(), [list(row) for row in self.rows]
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            rows = self.rows if down else self.rows[::-1]
            for row in rows:
                # Equal barycentres swap every other time, so that the search does not get stuck.
                if sweep % 4 >= 2:
                    row.reverse()
                row.sort(key=lambda spot: _barycentre(spot, down))
                for at, spot in enumerate(row):
                    spot.at = at
            self._swap_neighbours()
            crossings = self._crossings()
            if crossings < best:
                best, order = crossings, [list(row) for row in self.rows]
            if not best:
                break
        self.rows = order
        self._number()

    def _swap_neighbours(self) -> None:
        for row in self.rows:
            for at in range(len(row) - 1):
                left, right = row[at], row[at + 1]
                if _crossings_of(left, right) > _crossings_of(right, left):
                    row[at], row[at + 1] = right, left
                    left.at, right.at = at + 1, at

    def swap_arrivals(self) -> None:
        """Give links the places where they arrive from left to right."""
        wanted: dict[int, list[float]] = {}
        for link, path in zip(self.links, self.paths, strict=True):
            if path:
                wanted.setdefault(link.target, []).append(link.arrives)
        for spot in self.spots:
            if self.blocks[spot.number].swaps:
                spot.above.sort(key=lambda segment: segment.ends[0])
                places = sorted(wanted.get(spot.number, ()))
                for segment, arrives in zip(spot.above, places, strict=True):
                    segment.arrives = arrives

    def _number(self) -> None:
        for row in self.rows:
            for at, spot in enumerate(row):
                spot.at = at

    def _crossings(self) -> int:
        crossings = 0
        for row in self.rows:
            ends: list[float] = []
            for _, lower in sorted(s.ends for spot in row for s in spot.below):
                crossings += len(ends) - bisect_right(ends, lower)
                insort(ends, lower)
        return crossings

    # -- coordinates

    def straighten(self) -> None:
        """Move spots along their layers to where their links are straightest."""
        for row in self.rows:
            x = 0.0
            for spot in row:
                spot.x = x + spot.width / 2
                x += spot.width + BESIDE
        for turn in range(STRAIGHTENING):
            rows = self.rows if turn % 2 == 0 else self.rows[::-1]
            settled = turn >= STRAIGHTENING // 2
            places = [spot.x for row in rows for spot in row]
            middle = sum(places) / len(places)
            for row in rows:
                _settle(row, middle, settled or turn % 2 == 0, settled or turn % 2 == 1)
        for row in self.rows[1:]:
            _align(row)
        left = min(spot.x - spot.width / 2 for row in self.rows for spot in row)
        for row in self.rows:
            for spot in row:
                spot.x = round(spot.x - left, 1)
        for row in self.rows:
            for spot in row:
                self._make_straight(spot)

    def _make_straight(self, spot: _Spot) -> None:
        """Move the ends of links that are almost straight, rather than have them bend."""
        reach = min(NEARLY, spot.width / (len(spot.above) + 1) / 3)
        for segment in spot.above:
            lower, upper = segment.lower.block, segment.upper.block
            bend = segment.upper.x + segment.leaves - spot.x - segment.arrives
            if lower is not None and self.blocks[lower].swaps:
                if abs(bend) <= reach:
                    segment.arrives += bend
            elif upper is not None and self.blocks[upper].swaps and abs(bend) <= NEARLY:
                segment.leaves -= min(max(bend, -segment.upper.width / 3), segment.upper.width / 3)

    def placement(self, back: tuple[bool, ...]) -> Placement:
        count = len(self.rows)
        heights = [max((spot.height for spot in row), default=0.0) for row in self.rows]
        returning = [at for at, goes_back in enumerate(back) if goes_back]
        # A link that goes back runs below its source's layer and above its target's.
        under, over = [0] * count, [0] * count
        lanes: dict[int, tuple[int, int]] = {}
        for at in returning:
            source, target = (
                self.spots[end] for end in (self.links[at].source, self.links[at].target)
            )
            lanes[at] = under[source.layer], over[target.layer]
            under[source.layer] += 1
            over[target.layer] += 1
        tops: list[float] = []
        y = LANE * (over[0] + (over[0] > 0))
        for layer in range(count):
            tops.append(y)
            y += heights[layer]
            more = under[layer] + (over[layer + 1] if layer + 1 < count else 0)
            if layer + 1 < count:
                y += self._distance(layer) + LANE * more
            else:
                y += LANE * (more + (more > 0))
        routes: list[Route] = [() for _ in self.links]
        for at, path in enumerate(self.paths):
            if path:
                routes[at] = self._forward(path, tops, heights)
        sides = [0, 0]
        for at in sorted(returning, key=self._span):
            routes[at] = self._around(at, lanes[at], tops, heights, sides)
        corners = [(spot.x - spot.width / 2, tops[spot.layer]) for spot in self.spots]
        rights = [c[0] + b.width for c, b in zip(corners, self.blocks, strict=True)]
        xs = [point[0] for route in routes for point in route]
        left = min([0.0, *xs])
        width = max([*rights, *xs]) - left
        return Placement(
            width,
            y,
            tuple((x - left, y) for x, y in corners),
            tuple(tuple((x - left, y) for x, y in route) for route in routes),
            back,
        )

    def _distance(self, layer: int) -> float:
        """Layers with links that go far to the side are further apart, so that these are not flat."""
        far = max(
            (
                abs(s.upper.x + s.leaves - s.lower.x - s.arrives)
                for spot in self.rows[layer]
                for s in spot.below
            ),
            default=0.0,
        )
        return BELOW + min(far / 12, 40.0)

    def _forward(
        self, path: Sequence[_Segment], tops: Sequence[float], heights: Sequence[float]
    ) -> Route:
        first = path[0].upper
        points = [(first.x + path[0].leaves, tops[first.layer] + first.height)]
        for segment in path:
            upper, lower = segment.upper, segment.lower
            points.append((upper.x + segment.leaves, tops[upper.layer] + heights[upper.layer]))
            points.append((lower.x + segment.arrives, tops[lower.layer]))
        return tuple(dict.fromkeys(points))

    def _span(self, at: int) -> tuple[int, int]:
        link = self.links[at]
        return self.spots[link.source].layer - self.spots[link.target].layer, at

    def _around(
        self,
        at: int,
        lane: tuple[int, int],
        tops: Sequence[float],
        heights: Sequence[float],
        sides: list[int],
    ) -> Route:
        """From the bottom of the source, past the side of all between, to the top of the target."""
        link = self.links[at]
        source, target = self.spots[link.source], self.spots[link.target]
        upper, lower = sorted((source.layer, target.layer))
        between = [spot for row in self.rows[upper : lower + 1] for spot in row]
        left = min(spot.x - spot.width / 2 for spot in between)
        right = max(spot.x + spot.width / 2 for spot in between)
        to_left, to_right = source.x + target.x - 2 * left, 2 * right - source.x - target.x
        for place, mine in [
            *((s.upper.x + s.leaves, source) for c in self.rows[source.layer] for s in c.below),
            *((s.lower.x + s.arrives, target) for c in self.rows[target.layer] for s in c.above),
        ]:
            to_left += CROSSING * (place < mine.x)
            to_right += CROSSING * (place > mine.x)
        on_left = to_left < to_right
        side = left if on_left else right
        step = -LANE if on_left else LANE
        x = side + step * (2 + sides[on_left])
        sides[on_left] += 1
        # It leaves and arrives beside the links that go forward.
        start = source.x + link.leaves + step / LANE * min(source.width / 4, 24.0)
        end = target.x + link.arrives + step / LANE * min(target.width / 4, 24.0)
        bottom = tops[source.layer] + heights[source.layer] + LANE * (lane[0] + 1.2)
        top = tops[target.layer] - LANE * (lane[1] + 1.8)
        return (
            (start, tops[source.layer] + source.height),
            (start, bottom),
            (x, bottom),
            (x, top),
            (end, top),
            (end, tops[target.layer]),
        )


def _barycentre(spot: _Spot, down: bool) -> float:
    ends = [s.ends[0] for s in spot.above] if down else [s.ends[1] for s in spot.below]
    return sum(ends) / len(ends) if ends else float(spot.at)


def _crossings_of(left: _Spot, right: _Spot) -> int:
    """How many links of two neighbours cross, when they stand in this order."""
    crossings = 0
    for mine, its in (
        ([s.ends[1] for s in left.below], [s.ends[1] for s in right.below]),
        ([s.ends[0] for s in left.above], [s.ends[0] for s in right.above]),
    ):
        crossings += sum(a > b for a in mine for b in its)
    return crossings


def _settle(row: Sequence[_Spot], middle: float, above: bool, below: bool) -> None:
    """Put a layer where the squares of its links' bends add up to the least, the order kept.

    A weak pull to the middle keeps long plans from wandering off to a side.
    """
    wanted: list[tuple[float, float]] = []
    for spot in row:
        pulls: list[tuple[float, float]] = []
        if above:
            pulls += [(s.upper.x + s.leaves - s.arrives, s.weight) for s in spot.above]
        if below:
            pulls += [(s.lower.x + s.arrives - s.leaves, s.weight) for s in spot.below]
        pulls.append((middle, CENTRING) if pulls else (spot.x, CENTRING))
        weight = sum(pull[1] for pull in pulls)
        wanted.append((sum(x * w for x, w in pulls) / weight, weight))
    _move(row, wanted)


def _align(row: Sequence[_Spot]) -> None:
    """Put a spot that follows one spot right below that spot, and a spot that follows several below their middle."""
    wanted: list[tuple[float, float]] = []
    for spot in row:
        above = spot.above[0] if spot.above else None
        slots = above is not None and above.upper.block is None and spot.block is None
        if above is not None and (above.alone or slots):
            wanted.append((above.upper.x + above.leaves - above.arrives, 1000.0))
        elif len(spot.above) > 1:
            pulls = [s.upper.x + s.leaves - s.arrives for s in spot.above]
            wanted.append((sum(pulls) / len(pulls), 1.0))
        else:
            wanted.append((spot.x, 1.0))
    _move(row, wanted)


def _move(row: Sequence[_Spot], wanted: Sequence[tuple[float, float]]) -> None:
    """Put each spot of a layer next to where it is wanted, by weight, without overlap."""
    shifts = [0.0]
    for before, spot in pairwise(row):
        apart = (before.width + spot.width + before.margin + spot.margin) / 2
        shifts.append(shifts[-1] + apart)
    shifted = [(x - by, weight) for (x, weight), by in zip(wanted, shifts, strict=True)]
    for spot, x, by in zip(row, _ascending(shifted), shifts, strict=True):
        spot.x = x + by


def _ascending(wanted: Iterable[tuple[float, float]]) -> list[float]:
    """The ascending numbers next to those wanted, by weighted squares: neighbours that conflict are pooled.

    >>> _ascending([(1.0, 1.0), (5.0, 1.0), (3.0, 1.0)])
    [1.0, 4.0, 4.0]
    """
    pools: list[tuple[float, float, int]] = []
    for x, weight in wanted:
        size = 1
        while pools and pools[-1][0] > x:
            other, heavy, many = pools.pop()
            x = (x * weight + other * heavy) / (weight + heavy)
            weight += heavy
            size += many
        pools.append((x, weight, size))
    return [x for x, _, size in pools for _ in range(size)]
