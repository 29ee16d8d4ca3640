"""Loops over arrays give what a plain Python loop gives, bit for bit, after every epoch of random changes.

The oracle adds with fractions and knows nothing of arrays. Each test prints the seed with which it failed.
"""

from __future__ import annotations

import math
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from riverrun.errors import OperatorFailed
from riverrun.frontends.collections.expressions import compile_columns
from riverrun.operators.iterations import compressed
from riverrun.operators.iterations.compressed import BelowZero
from riverrun.operators.iterations.pull_loop import (
    FORMS,
    Combine,
    Formula,
    PullLoop,
    SeveralRows,
    Tolerance,
)
from riverrun.operators.iterations.pulling import Pulling
from tests.soaking import first_seed

F8, I8, TEXT = pa.float64(), pa.int64(), pa.large_string()
TINY, HUGE = 5e-324, 1.7976931348623157e308
Row = tuple[Any, ...]


# -- the oracle


def total(parts: list[Any], kind: pa.DataType) -> Any:
    parts = [part for part in parts if part is not None]
    if not pa.types.is_floating(kind):
        return sum(parts)
    if any(math.isnan(part) for part in parts) or {math.inf, -math.inf} <= set(parts):
        return math.nan
    for part in parts:
        if math.isinf(part):
            return part
    exact = sum((Fraction(part) for part in parts), Fraction(0))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def order(value: Any) -> Any:
    return (isinstance(value, float) and math.isnan(value), value)


def combined(combine: Combine, parts: list[Row], kinds: tuple[pa.DataType, ...]) -> Any:
    if combine.how == "count":
        return len(parts)
    cells = [part[combine.part] for part in parts]
    valid = [cell for cell in cells if cell is not None]
    if combine.how == "valid":
        return len(valid)
    if combine.how == "sum":
        return total(cells, kinds[combine.part])
    if not valid:
        return None
    return (min if combine.how == "min" else max)(valid, key=order)


def plain(cell: Any) -> Any:
    """One zero and one NaN, and something that equals itself."""
    if not isinstance(cell, float):
        return cell
    if math.isnan(cell):
        return "NaN"
    return struct.pack("<d", cell + 0.0)


@dataclass
class Shape:
    """A kind of loop: its types, and what it does in Polars and in Python."""

    values: dict[str, pa.DataType]
    constants: dict[str, pa.DataType]
    message: dict[str, pl.Expr]
    send: Callable[..., Row]
    combine: tuple[Combine, ...]
    finish: dict[str, pl.Expr] | None = None
    finished: Callable[..., Row] | None = None
    own: dict[str, pl.Expr] | None = None
    keep: Callable[..., Row] | None = None
    formula: Formula | None = None
    key: pa.DataType = I8
    constant_of: str = "edge"
    """`source`: all edges of a source have the same constants."""
    draw_value: Callable[[random.Random], Row] = field(default=lambda rng: (rng.random(),))
    draw_constant: Callable[[random.Random], Row] = field(default=lambda rng: ())
    draw_part: Callable[[random.Random], Row] | None = None

    def loop(self) -> PullLoop:
        values, constants = pa.schema(self.values), pa.schema(self.constants)
        message = compile_columns(pa.schema([*values, *constants]), self.message, "send")
        own = finish = None
        if self.own is not None:
            own = compile_columns(values, self.own, "keep").apply
        parts = tuple(message.schema.types)
        loop = PullLoop(
            keys=(self.key,),
            values=tuple(values.types),
            parts=parts,
            message=message.apply,
            combine=self.combine,
            constants=tuple(constants.types),
            own=own,
            formula=self.formula,
        )
        if self.finish is not None:
            names = [pa.field(f"c{at}", loop.kind_of(c)) for at, c in enumerate(self.combine)]
            compiled = compile_columns(pa.schema(names), self.finish, "finish")
            assert tuple(compiled.schema.types) == loop.values
            finish = compiled.apply
        return replace(loop, finish=finish)


@dataclass
class World:
    """The net input of a loop, in plain counters."""

    edges: Counter[Row] = field(default_factory=Counter)
    extras: Counter[Row] = field(default_factory=Counter)
    start: dict[Any, Row] = field(default_factory=dict)

    def round(self, shape: Shape, rows: dict[Any, Row]) -> dict[Any, Row]:
        loop = shape.loop()
        parts: dict[Any, list[Row]] = {}
        for (source, target, *constants), times in self.edges.items():
            if source in rows:
                part = shape.send(*rows[source], *constants)
                parts.setdefault(target, []).extend([part] * times)
        for (key, *part), times in self.extras.items():
            parts.setdefault(key, []).extend([tuple(part)] * times)
        if shape.keep is not None:
            for key, values in rows.items():
                parts.setdefault(key, []).append(shape.keep(*values))
        out = {}
        for key, each in parts.items():
            cells = tuple(combined(combine, each, loop.parts) for combine in loop.combine)
            out[key] = cells if shape.finished is None else shape.finished(*cells)
        # As states keep them: the next round reads one zero and one NaN.
        return {key: tuple(tidy(cell) for cell in cells) for key, cells in out.items()}


def tidy(cell: Any) -> Any:
    if isinstance(cell, float):
        return math.nan if math.isnan(cell) else float(cell) + 0.0
    return cell


def same(a: dict[Any, Row], b: dict[Any, Row]) -> bool:
    return exactly(a) == exactly(b)


def exactly(rows: dict[Any, Row]) -> dict[Any, Row]:
    return {key: tuple(plain(cell) for cell in cells) for key, cells in rows.items()}


def as_rows(columns: tuple[pa.Array, ...]) -> dict[Any, Row]:
    lists = [column.to_pylist() for column in columns]
    rows = list(zip(*lists, strict=True))
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: tuple(row[1:]) for row in rows}


def column(cells: list[Any], kind: pa.DataType) -> pa.Array:
    """A column in which every zero has the sign that states do not keep."""
    return pa.array(
        [-0.0 if cell == 0 and isinstance(cell, float) else cell for cell in cells], kind
    )


def feed(change: Callable[..., None], groups: list[list[pa.DataType]], diffs: Counter[Row]) -> None:
    rows = list(diffs)
    kinds = [kind for group in groups for kind in group]
    columns = [column([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
    given, at = [], 0
    for group in groups:
        given.append(columns[at : at + len(group)])
        at += len(group)
    change(*given, np.array([diffs[row] for row in rows], np.int64))


class Pair:
    """A `Pulling` and the world that it should agree with."""

    def __init__(self, shape: Shape, rng: random.Random, nodes: int) -> None:
        self.shape, self.rng, self.nodes = shape, rng, nodes
        self.loop = shape.loop()
        self.pulling = Pulling(self.loop)
        self.world = World()
        self.before: dict[Any, Row] = {}
        self.constant: dict[Any, Row] = {}

    def key(self) -> Any:
        number = self.rng.randrange(self.nodes)
        return number if self.shape.key == I8 else (f"k{number}" if number else None)

    def change(self, amount: int) -> World:
        """Draw some changes, apply them to both; return the world as it was."""
        was = World(self.world.edges.copy(), self.world.extras.copy(), dict(self.world.start))
        rng, shape, world = self.rng, self.shape, self.world
        edges: Counter[Row] = Counter()
        for _ in range(amount):
            kind = rng.random()
            if kind < 0.35 and world.edges:
                edge = rng.choice(list(world.edges))
                edges[edge] -= world.edges[edge] + edges[edge] if rng.random() < 0.7 else 0
            else:
                source, target = self.key(), self.key()
                if shape.constant_of == "source" and rng.random() < 0.9:
                    constants = self.constant.setdefault(source, shape.draw_constant(rng))
                else:
                    constants = shape.draw_constant(rng)
                edges[source, target, *constants] += rng.choice([1, 1, 1, 1, 2, 3, 300])
        if shape.constant_of == "source" and rng.random() < 0.5:
            # all edges of a source get another constant at once
            source, constants = self.key(), shape.draw_constant(rng)
            self.constant[source] = constants
            after = world.edges.copy()
            after.update(edges)
            for edge, times in after.items():
                if edge[0] == source and times:
                    edges[edge] -= times
                    edges[edge[0], edge[1], *constants] += times
        edges = Counter({edge: times for edge, times in edges.items() if times})
        world.edges.update(edges)
        world.edges = Counter({edge: times for edge, times in world.edges.items() if times})
        kinds = [[self.loop.keys[0]], [self.loop.keys[0]], list(self.loop.constants)]
        halves: list[Counter[Row]] = [Counter(), Counter()]
        for edge, times in edges.items():  # in two calls, some of it there and back
            halves[0][edge] += times + 5
            halves[1][edge] -= 5
        if rng.random() < 0.5:
            feed(self.pulling.change_edges, kinds, halves[0])
            feed(self.pulling.change_edges, kinds, halves[1])
        else:
            feed(self.pulling.change_edges, kinds, edges)
        if shape.draw_part is not None:
            extras: Counter[Row] = Counter()
            for _ in range(amount):
                if rng.random() < 0.4 and world.extras:
                    row = rng.choice(list(world.extras))
                    extras[row] = -world.extras[row]
                else:
                    extras[self.key(), *shape.draw_part(rng)] += rng.choice([1, 1, 1, 2])
            world.extras.update(extras)
            world.extras = Counter({row: times for row, times in world.extras.items() if times})
            feed(self.pulling.change_extras, [[self.loop.keys[0]], list(self.loop.parts)], extras)
        start: Counter[Row] = Counter()
        for _ in range(max(amount // 3, 1)):
            key = self.key()
            if key in world.start:
                start[key, *world.start.pop(key)] -= 1
            if rng.random() < 0.7:
                world.start[key] = shape.draw_value(rng)
                start[key, *world.start[key]] += 1
        feed(self.pulling.change_start, [[self.loop.keys[0]], list(self.loop.values)], start)
        return was

    def check(self, rounds: int) -> None:
        """Run both, and compare the rows and the net change."""
        rows = {key: tuple(tidy(cell) for cell in cells) for key, cells in self.world.start.items()}
        wanted = []
        for _ in range(rounds):
            after = self.world.round(self.shape, rows)
            keys = set(rows) | set(after)
            old, new = exactly(rows), exactly(after)
            wanted.append(sum(old.get(key) != new.get(key) for key in keys))
            rows = after
        outcome = self.pulling.run(rounds=rounds)
        assert outcome.rounds == rounds
        assert exactly(as_rows(self.pulling.rows())) == exactly(rows)
        assert [each.changed for each in outcome.history] == wanted
        net = self.pulling.net()
        old, new = exactly(as_rows(net.old)), exactly(as_rows(net.new))
        before, now = exactly(self.before), exactly(rows)
        assert old == {key: cells for key, cells in before.items() if now.get(key) != cells}
        assert new == {key: cells for key, cells in now.items() if before.get(key) != cells}
        self.rows = rows

    def settle(self) -> None:
        self.pulling.settle()
        self.before = self.rows


@contextmanager
def seeded(seed: int) -> Iterator[random.Random]:
    try:
        yield random.Random(seed)
    except BaseException:
        print(f"SEED {seed}")
        raise


# -- shapes

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.1, 1e16, -1e16, 2.0**53, 3e-17, TINY, -TINY, 2.0**-1022, 1e300]
WILD = [*FLOATS, HUGE, -HUGE, math.inf, -math.inf, math.nan]
X, W = pl.col("x"), pl.col("w")


def divided(a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(a) / np.float64(b))


def times(a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(a) * np.float64(b))


def a_float(rng: random.Random) -> Row:
    return (tidy(rng.choice([rng.random(), rng.uniform(-1, 1), rng.choice(FLOATS)])),)


def wild(rng: random.Random) -> Row:
    large = rng.gauss(0, 1) * 10.0 ** rng.randint(-300, 300)
    return (tidy(rng.choice([rng.random(), rng.choice(WILD), large])),)


def flow(formula: bool, of: str) -> Shape:
    """PageRank: the constant is a degree."""
    return Shape(
        {"x": F8},
        {"w": I8},
        {"part": 0.85 * (X / W)},
        lambda x, w: (times(0.85, divided(x, w)),),
        (Combine("sum"),),
        formula=Formula("factor over", 0, 0, 0.85) if formula else None,
        constant_of=of,
        draw_constant=lambda rng: (rng.randint(1, 9),),
        draw_part=lambda rng: (rng.choice([0.15, 0.3, 0.0375]),),
    )


def weighted(form: str, draw: Callable[[random.Random], Row], formula: bool = True) -> Shape:
    message: dict[str, Any] = {
        "value": (X, lambda x, w: x),
        "times": (X * W, times),
        "over": (X / W, divided),
        "factor over": (0.3 * (X / W), lambda x, w: times(0.3, divided(x, w))),
        "factor times over": ((0.3 * X) / W, lambda x, w: divided(times(0.3, x), w)),
    }
    expression, function = message[form]
    return Shape(
        {"x": F8},
        {"w": F8},
        {"part": expression},
        lambda x, w: (function(x, w),),
        (Combine("sum"),),
        formula=Formula(form, 0, 0, 0.3) if formula else None,  # type: ignore[arg-type]
        draw_value=draw,
        draw_constant=draw,
        draw_part=draw,
    )


def least_label() -> Shape:
    return Shape(
        {"x": I8},
        {},
        {"part": X},
        lambda x: (x,),
        (Combine("min"),),
        own={"part": X},
        keep=lambda x: (x,),
        draw_value=lambda rng: (rng.randint(-50, 50),),
        key=TEXT,
    )


def nullable(rng: random.Random) -> Row:
    return (tidy(rng.choice([None, None, *WILD, rng.random()])),)


def extremes(of: str, own: bool) -> Shape:
    """Everything at once, with nulls, of floats and of ints, and names as constants."""
    return Shape(
        {"x": F8, "n": I8, "m": I8, "least": F8, "most": I8},
        {"w": F8, "s": TEXT},
        {
            "p": pl.when(pl.col("s") == "a").then(X + W).otherwise(pl.col("least") * 1.0),
            "q": pl.when(pl.col("n") > 3).then(pl.col("n") - pl.col("most")),
        },
        lambda x, n, m, least, most, w, s: (
            (None if x is None or w is None else x + w) if s == "a" else least,
            None if n is None or n <= 3 or most is None else n - most,
        ),
        (
            Combine("sum", 0),
            Combine("count"),
            Combine("valid", 1),
            Combine("min", 0),
            Combine("max", 1),
        ),
        finish={
            "x": pl.col("c0"),
            "n": pl.col("c1") + pl.col("c2"),
            "m": pl.col("c1"),
            "least": pl.col("c3"),
            "most": pl.when(pl.col("c4") < 1000).then(pl.col("c4")),
        },
        finished=lambda a, b, c, d, e: (
            a,
            b + c,
            b,
            d,
            None if e is None or e >= 1000 else e,
        ),
        own={"p": X, "q": pl.col("most")} if own else None,
        keep=(lambda x, n, m, least, most: (x, most)) if own else None,
        constant_of=of,
        key=TEXT,
        draw_value=lambda rng: (
            *nullable(rng),
            rng.choice([None, rng.randint(0, 9)]),
            rng.randint(0, 9),
            *nullable(rng),
            rng.choice([None, rng.randint(-5, 5)]),
        ),
        draw_constant=lambda rng: (*nullable(rng), rng.choice(["a", "b", None])),
        draw_part=lambda rng: (*nullable(rng), rng.choice([None, 7, -7])),
    )


def counted_paths() -> Shape:
    return Shape(
        {"x": I8},
        {},
        {"part": X},
        lambda x: (x,),
        (Combine("sum"),),
        draw_value=lambda rng: (rng.randint(-3, 3),),
    )


def greatest_float() -> Shape:
    return Shape(
        {"x": F8},
        {"w": F8},
        {"part": X * W},
        lambda x, w: (times(x, w),),
        (Combine("max"),),
        formula=Formula("times", 0, 0),
        draw_value=wild,
        draw_constant=wild,
    )


SHAPES: dict[str, Shape] = {
    "flow": flow(True, "source"),
    "flow by edge": flow(True, "edge"),
    "flow, evaluated": flow(False, "source"),
    "flow by edge, evaluated": flow(False, "edge"),
    **{f"{form}": weighted(form, a_float) for form in FORMS},
    **{f"{form}, wild": weighted(form, wild) for form in FORMS},
    "times, evaluated": weighted("times", wild, formula=False),
    "labels": least_label(),
    "extremes": extremes("edge", own=False),
    "extremes by source": extremes("source", own=True),
    "paths": counted_paths(),
    "greatest": greatest_float(),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("at", range(6))
def test_every_epoch_is_what_a_plain_loop_gives(
    name: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = first_seed() + at
    with seeded(seed) as rng:
        monkeypatch.setattr(Pulling, "CHUNK", rng.choice([1, 3, 16, 1 << 16]))
        pair = Pair(SHAPES[name], rng, rng.choice([2, 6, 30]))
        for _ in range(6):
            pair.change(rng.choice([0, 1, 4, 40]))
            pair.check(rng.choice([0, 1, 2, 5]))
            pair.settle()
            if rng.random() < 0.4:
                was = pair.change(rng.choice([1, 4, 40]))
                if rng.random() < 0.5:
                    pair.pulling.run(rounds=1)
                pair.pulling.undo()
                pair.world = was


@pytest.mark.parametrize("at", range(4))
def test_sums_of_hard_floats(at: int) -> None:
    """Rows of all lengths whose sums are ties, cancel, or hide small parts behind large ones."""
    seed = first_seed() + at
    with seeded(seed) as rng:
        shape = weighted("value", wild)
        keys, sources, values = [], [], []
        expected = {}
        number = 0
        for target in range(400):
            size = rng.choice([1, 2, 3, 5, 17, 200, 5000 if target % 50 == 0 else 40])
            kind = rng.randrange(6)
            cells: list[float] = []
            for _ in range(size):
                if kind == 0:
                    cells.append(rng.random())
                elif kind == 1:
                    cells.append(float(rng.randint(1, 2**53)) * 2.0 ** rng.randint(-3, 3))
                elif kind == 2:
                    cells.append(rng.choice([1e16, -1e16, 1.0, 2.0**-53, -(2.0**-53), 3.0]))
                elif kind == 3:
                    cells.append(rng.gauss(0, 1) * 2.0 ** rng.randint(-1074, 900))
                elif kind == 4:
                    cells.append(rng.choice(FLOATS))
                else:
                    cells.append(rng.choice([TINY, -TINY, 2.0**-1022, -(2.0**-1022) + TINY]))
            for cell in cells:
                keys.append(target)
                sources.append(1000 + number)
                values.append(cell)
                number += 1
            expected[target] = plain(total(cells, F8))
        loop = Pulling(shape.loop())
        one = np.ones(number, np.int64)
        loop.change_edges([pa.array(sources)], [pa.array(keys)], [pa.array(np.ones(number))], one)
        loop.change_start([pa.array(sources)], [pa.array(values)], one)
        loop.run(rounds=1)
        got = exactly(as_rows(loop.rows()))
        assert got == {key: (cell,) for key, cell in expected.items()}


def test_ordinary_sums_are_sure_at_once() -> None:
    rng = np.random.default_rng(first_seed())
    loop = Pulling(weighted("over", wild).loop())
    size, nodes = 20_000, 1000
    one = np.ones(size, np.int64)
    s, t = rng.integers(0, nodes, size), rng.integers(0, nodes, size)
    weights = rng.random(size) * 40 + 20
    loop.change_edges([pa.array(s)], [pa.array(t)], [pa.array(weights)], one)
    all_nodes, ones = pa.array(np.arange(nodes)), np.ones(nodes, np.int64)
    loop.change_start([all_nodes], [pa.array(rng.random(nodes))], ones)
    outcome = loop.run(rounds=3)
    assert max(each.unsure for each in outcome.history) < nodes / 20


@pytest.mark.parametrize("at", range(4))
def test_stops(at: int) -> None:
    seed = first_seed() + at
    with seeded(seed) as rng:
        pair = Pair(least_label(), rng, 30)
        pair.change(60)
        rows, count = dict(pair.world.start), 0
        while True:
            after = pair.world.round(pair.shape, rows)
            count += 1
            if same(after, rows):
                break
            rows = after
        outcome = pair.pulling.run(unchanged=True)
        assert (outcome.rounds, outcome.stopped) == (count, True)
        assert outcome.history[-1].changed == 0
        assert same(as_rows(pair.pulling.rows()), rows)
        short = pair.pulling.run(rounds=max(count - 1, 0), unchanged=True)
        assert (short.rounds, short.stopped) == (max(count - 1, 0), False)


@pytest.mark.parametrize("at", range(4))
def test_a_tolerance_stops(at: int) -> None:
    seed = first_seed() + at
    with seeded(seed) as rng:
        pair = Pair(flow(True, "source"), rng, 12)
        edges = {(rng.randrange(12), rng.randrange(12)) for _ in range(40)}
        degrees = Counter(source for source, _ in edges)
        world = pair.world
        world.edges = Counter({(s, t, degrees[s]): 1 for s, t in edges})
        world.extras = Counter({(node, 0.0125): 1 for node in range(12)})
        world.start = dict.fromkeys(range(12), (1 / 12,))
        kinds = [[I8], [I8], [I8]]
        feed(pair.pulling.change_edges, kinds, world.edges)
        feed(pair.pulling.change_extras, [[I8], [F8]], world.extras)
        start = Counter({(key, *cells): 1 for key, cells in world.start.items()})
        feed(pair.pulling.change_start, [[I8], [F8]], start)
        rows, count = dict(world.start), 0
        while True:
            after = world.round(pair.shape, rows)
            count += 1
            near = rows.keys() == after.keys() and all(
                abs(after[key][0] - rows[key][0]) <= 1e-9 for key in rows
            )
            rows = after
            if near:
                break
        outcome = pair.pulling.run(within=Tolerance(0, 1e-9), rounds=500)
        assert (outcome.rounds, outcome.stopped) == (count, True)
        assert same(as_rows(pair.pulling.rows()), rows)


# -- refusals and undoing


def paths(edges: list[tuple[int, int]], start: dict[int, int]) -> Pulling:
    loop = Pulling(counted_paths().loop())
    feed(loop.change_edges, [[I8], [I8], []], Counter(edges))
    feed(loop.change_start, [[I8], [I8]], Counter(dict.fromkeys(start.items(), 1)))
    return loop


def test_a_sum_that_leaves_its_type_is_refused_and_undone() -> None:
    loop = paths([(1, 2), (3, 2), (2, 1)], {1: 1, 3: 2})
    loop.run(rounds=2)
    loop.settle()
    was = as_rows(loop.rows())
    large = (1 << 62) + 5
    feed(
        loop.change_start,
        [[I8], [I8]],
        Counter({(1, 1): -1, (1, large): 1, (3, 2): -1, (3, large): 1}),
    )
    with pytest.raises(OperatorFailed, match="a sum of integers is 9223372036854775818") as raised:
        loop.run(rounds=2)
    assert raised.value.code == "operator.overflow"
    loop.undo()
    loop.run(rounds=2)
    assert as_rows(loop.rows()) == was
    net = loop.net()
    assert len(net.old[0]) == len(net.new[0]) == 0
    # As large on the way, but not in the end.
    feed(loop.change_edges, [[I8], [I8], []], Counter([(4, 2), (5, 2)]))
    feed(
        loop.change_start,
        [[I8], [I8]],
        Counter({(1, 1): -1, (1, large): 1, (3, 2): -1, (3, large): 1, (4, -large): 1, (5, -7): 1}),
    )
    loop.run(rounds=1)
    assert as_rows(loop.rows())[2] == (large - 7,)


def test_small_changes_after_a_large_one_are_undone_with_it() -> None:
    loop = paths([(1, 2)], {1: 1})
    loop.run(rounds=1)
    loop.settle()
    many = {(source, 2): 1 for source in range(100, 200)}
    feed(loop.change_edges, [[I8], [I8], []], Counter(many))
    feed(loop.change_edges, [[I8], [I8], []], Counter({(150, 2): -1, (1, 2): 2}))
    feed(loop.change_edges, [[I8], [I8], []], Counter({(99, 2): 1, (150, 2): 1}))
    loop.undo()
    edges = loop.edges.edges()
    assert [*zip(edges.targets, edges.sources, edges.diffs, strict=True)] == [(1, 0, 1)]


def test_below_zero_changes_nothing() -> None:
    loop = paths([(1, 2), (3, 2)], {1: 1, 3: 2})
    loop.settle()
    for gone in ([(1, 2), (1, 2)], [(7, 2)], [(1, 9)]):
        with pytest.raises(BelowZero):
            feed(
                loop.change_edges,
                [[I8], [I8], []],
                Counter({e: -n for e, n in Counter(gone).items()}),
            )
        loop.undo()
        loop.run(rounds=1)
        assert as_rows(loop.rows()) == {2: (3,)}


def test_two_rows_for_a_key_are_refused() -> None:
    loop = paths([(1, 2)], {1: 1})
    loop.settle()
    for row in ((1, 1), (1, 2)):
        feed(loop.change_start, [[I8], [I8]], Counter({row: 1}))
        with pytest.raises(SeveralRows):
            loop.run(rounds=1)
        loop.undo()
        loop.run(rounds=1)
        assert as_rows(loop.rows()) == {2: (1,)}


def test_a_loop_that_goes_on_for_ever_is_refused() -> None:
    loop = paths([(1, 1), (1, 1)], {1: 1})
    with pytest.raises(OperatorFailed, match="still changes after 20 rounds"):
        loop.run(unchanged=True, patience=20)


def test_an_expression_that_raises_is_undone() -> None:
    def message(columns: list[pa.Array], rows: int) -> list[pa.Array]:
        if -1 in columns[0].to_pylist():
            raise ValueError("no")
        return [columns[0]]

    loop = Pulling(PullLoop((I8,), (I8,), (I8,), message, (Combine("sum"),)))
    feed(loop.change_edges, [[I8], [I8], []], Counter([(1, 2), (2, 3)]))
    feed(loop.change_start, [[I8], [I8]], Counter({(1, 5): 1}))
    loop.run(rounds=2)
    loop.settle()
    feed(loop.change_edges, [[I8], [I8], []], Counter([(9, 3)]))
    feed(loop.change_start, [[I8], [I8]], Counter({(1, 5): -1, (1, -1): 1}))
    with pytest.raises(ValueError, match="no"):
        loop.run(rounds=2)
    loop.undo()
    assert as_rows(loop.rows()) == {3: (5,)}
    loop.run(rounds=2)
    assert as_rows(loop.rows()) == {3: (5,)}


# -- the edges


@pytest.mark.parametrize("at", range(8))
def test_edges_are_what_a_counter_holds(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = first_seed() + at
    with seeded(seed) as rng:
        monkeypatch.setattr(compressed.Compressed, "SHARE", rng.choice([0.0, 0.1, 1e9]))
        kinds = rng.choice([0, 1, 2])
        edges, wanted = compressed.Compressed(kinds), Counter()  # type: ignore[var-annotated]
        slots = 1
        for _ in range(25):
            slots += rng.randint(0, 5)
            diffs: Counter[Row] = Counter()
            for _ in range(rng.choice([0, 1, 5, 60])):
                if wanted and rng.random() < 0.5:
                    edge = rng.choice(list(wanted))
                    diffs[edge] = -rng.randint(0, wanted[edge])
                else:
                    ends = min(rng.randrange(slots), rng.randrange(slots)), rng.randrange(slots)
                    diffs[*ends, *[rng.randint(-1, 1) for _ in range(kinds)]] += rng.choice(
                        [1, 1, 2]
                    )
            rows = list(diffs)
            rng.shuffle(rows)
            words = np.array([row[2:] for row in rows], np.int64).reshape(len(rows), kinds).T
            net = edges.change(
                np.array([row[0] for row in rows]),
                np.array([row[1] for row in rows]),
                words,
                np.array([diffs[row] for row in rows]),
                slots=slots,
            )
            if rng.random() < 0.2:
                edges.apply(net.negated(), slots)
            else:
                wanted.update(diffs)
                wanted = Counter({edge: n for edge, n in wanted.items() if n})
            if rng.random() < 0.05:
                edges.widen()
                kinds += 1
                wanted = Counter({(*edge, 0): n for edge, n in wanted.items()})
            listed = edges.edges()
            got = {
                (int(t), int(s), *map(int, w)): int(n)
                for t, s, w, n in zip(
                    listed.targets, listed.sources, listed.words.T, listed.diffs, strict=True
                )
            }
            assert got == wanted
            assert edges.size == len(wanted)
            for target in range(slots):
                row = slice(edges.start[target], edges.start[target] + edges.count[target])
                order_ = list(zip(edges.source[row], *edges.words[:, row], strict=True))
                assert order_ == sorted(order_)


def test_a_small_change_leaves_the_pool() -> None:
    rng = np.random.default_rng(first_seed())
    edges = compressed.Compressed(0)
    t, s = rng.integers(0, 1000, 20_000), rng.integers(0, 1000, 20_000)
    edges.change(t, s, edges.no_words(20_000), np.ones(20_000, np.int64), slots=1000)
    for at in range(200):
        edges.change(t[at : at + 1], s[at : at + 1], edges.no_words(1), np.array([1]), slots=1000)
    assert edges.built == 1
