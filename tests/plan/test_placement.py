"""Placements: rows lie where the plan says, and leaving out exchanges that move nothing changes no answer."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.engine.wiring import Take, Wiring
from riverrun.operators.exchange import Exchange
from riverrun.plan.operator import Columns, Placement
from riverrun.plan.placement import _placed, placements, staying
from riverrun.plan.plan import Node, Plan, Port
from riverrun.state.changes import Changes
from tests.frontends.collections.checking import (
    Comparison,
    Rows,
    build,
    check,
    feed,
    from_scratch,
)
from tests.soaking import Shown, seeds

pytestmark = pytest.mark.drawn
SCHEMA = {"a": pl.Int64, "b": pl.Int64}
SCHEMAS = {"rows": SCHEMA, "other": SCHEMA}
SWAPPED = ".select(a='b', b='a')"


# -- drawn programs


@dataclass
class Drawing:
    """A program in two columns, drawn as the Python that makes it: a failure shows a line to be run again."""

    source: random.Random
    loops: int = 0
    names: list[str] = field(default_factory=lambda: ["rows", "other"])

    def collection(self, depth: int) -> str:
        """Some rows: a name, or steps taken from there."""
        made = self.source.choice(self.names)
        for _ in range(self.source.randint(0, 2) if depth else 0):
            made = self.step(made, depth - 1)
        return made

    def step(self, made: str, depth: int) -> str:
        """One step further from the collection that `made` says."""
        draw = self.source.random()
        if draw < 0.45:
            return made + self.source.choice(
                (
                    SWAPPED,
                    ".select(a='a', b=pl.col('b') // 2)",
                    ".select(a='b', b='b')",
                    ".filter(pl.col('a') > 1)",
                    ".group_by('a').agg(b=rr.max('b'))",
                    ".group_by('b').agg(a=rr.min('a')).select('a', 'b')",
                    ".group_by('a', 'b').count().select('a', 'b')",
                    ".group_by('b', 'a').count().select('a', 'b')",
                    ".distinct()",
                    ".consolidate()",
                    ".flat_map(lambda r: [(r['a'], r['b'] // 2)] * 2, AB, keeps='a')",
                    ".flat_map(lambda r: [(r['b'], r['b'])], AB, keeps='b')",
                    ".map_batches(lambda f: f.select(a=pl.col('a') // 2, b='b'), AB, keeps='b')",
                    ".map_batches(lambda f: f, AB, keeps=['b', 'a'])",
                    ".group_by('a').apply(lambda g: g['b'].max(), {'b': pl.Int64}, keeps='b')",
                )
            )
        if draw < 0.55:
            return f"meet({made})"
        if draw < 0.62:
            return f"{made}.concat({made}.filter(pl.col('b') > 2).negate())"
        if draw < 0.75:
            return f"{made}.concat({self.collection(depth)})"
        if draw < 0.85 or depth < 1 or self.loops == 3:
            return self.pairs(made, self.collection(depth))
        return self.loop(made, depth)

    def pairs(self, made: str, others: str) -> str:
        """Pairs of rows of `made` and of `others` that agree, in two columns; or what a function makes of both."""
        if self.source.random() < 0.2:
            inner, keeps = self.source.choice((", inner=True", "")), self.source.choice(KEEPS)
            if self.source.random() < 0.5:
                return f"{made}.co_group({others}, 'a', least, {{'b': pl.Int64}}{inner}{keeps})"
            on = "left_on='b', right_on='a'"
            columns = "{'a': pl.Int64}"
            return (
                f"{made}.co_group({others}, None, least, {columns}, {on}{inner}).select('a', 'b')"
            )
        if self.source.random() < 0.3:
            pair = f"{made}.join({others}.distinct(), left_on='b', right_on='a', suffix='_2')"
            return pair + self.source.choice((".select('a', b='b_2')", ".select(a='b_2', b='b')"))
        on = self.source.choice(("'a'", "'b'", "['a', 'b']", "['b', 'a']"))
        return f"{made}.join({others}.distinct(), on={on}, suffix='_2').select('a', 'b')"

    def loop(self, made: str, depth: int) -> str:
        """A loop of a few rounds."""
        self.loops += 1
        name = f"x{self.loops}"
        self.names += [name, name]
        body = name
        for _ in range(self.source.randint(1, 4)):
            body = self.step(body, depth - 1)
        if self.source.random() < 0.4:  # a pair needs both rows on one worker
            body = f"{body}.concat({self.pairs(name, 'other')})"
        if self.source.random() < 0.4:  # what was moved by one key comes back with another
            body += SWAPPED
        self.names = [each for each in self.names if each != name]
        return f"{made}.iterate(lambda {name}: {body}, rounds={self.source.randint(1, 3)})"


AB = {"a": pl.Int64, "b": pl.Int64}
KEEPS = ("", ", keeps='b'", ", keeps=['a', 'b']")


def least(key: Any, left: pl.DataFrame, right: pl.DataFrame) -> list[tuple[int | None]]:
    """The least value of each side, but for the key."""
    values = [each[:, 1].min() for each in (left, right) if each.height]
    return [(value,) for value in values]


def meet(rows: Any) -> Any:
    """The same rows behind an exchange by row."""
    return rows._added_up_by_row() if isinstance(rows, rr.Collection) else rows


def program_of(text: str) -> Any:
    """The program that a text says; counted, since rows may be many times there."""
    counted = f"lambda rows, other: ({text}).group_by('a', 'b').count()"
    return eval(counted, {"pl": pl, "rr": rr, "meet": meet, "AB": AB, "least": least})


def draw_program(source: random.Random) -> str:
    drawing = Drawing(source)
    start = drawing.collection(1)
    if source.random() < 0.5:
        start += ".group_by('a', 'b').count().select('a', 'b')"
    return drawing.loop(start, 2)


SWAPPED_IN_A_LOOP = (
    "rows.group_by('a', 'b').count().select('a', 'b').iterate("
    "lambda x: x.concat(x.join(other, on=['a', 'b'])).select(a='b', b='a'), rounds=3)"
)
"""The exchange by row in this loop gives the rows a key, the swap another one, and that is what comes back to it."""


# -- a judge of placements while a program runs


class Witness:
    """Looks at all rows that come to a node, on every worker: whether they lie where `placements` says."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.looked_at = 0
        self._placements: dict[int, dict[Port, Placement]] = {}
        self._plans: list[Plan] = []  # kept, so that no other plan gets the same id
        self._where: dict[tuple[int, Port], dict[Any, int]] = defaultdict(dict)

    def look(self, wiring: Wiring, port: Port, changes: Changes) -> None:
        plan = wiring.plan
        if id(plan) not in self._placements:
            self._placements[id(plan)] = placements(plan)
            self._plans.append(plan)
        node, keys = plan.nodes[port.node], self._placements[id(plan)][port]
        if keys is None:
            self.faults.append(f"{node.name}: {changes.rows} rows where none ever comes")
            return
        for key in keys:
            if all(changes.columns[at] is not None for at in key):
                pieces = changes.partition(key, wiring.shards)
                if any(piece is not None for at, piece in enumerate(pieces) if at != wiring.index):
                    self.faults.append(f"{node.name}: rows are not placed by {key}")
                self.looked_at += 1
        if isinstance(node.operator, Exchange) and node.operator.route == "row":
            where = self._where[id(plan), port]
            for row in zip(*(column.to_pylist() for column in changes.columns), strict=True):
                if where.setdefault(row, wiring.index) != wiring.index:
                    self.faults.append(f"{node.name}: {row} lies on two workers")


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Iterator[Witness]:
    seen, original = Witness(), Wiring._take

    def take(self: Wiring, node: Node, at: int) -> Take:
        inner = original(self, node, at)

        def look_first(changes: Changes) -> Changes | None:
            if self.shards.workers > 1:
                seen.look(self, node.inputs[at], changes)
            return inner(changes)

        return look_first

    monkeypatch.setattr(Wiring, "_take", take)
    yield seen
    assert not seen.faults


def compare(text: str, source: random.Random, said: str, witness: Witness) -> None:
    """Run a program with 1, 2 and 3 workers: the rows are those of the judge, and lie where the plan says."""
    inputs = {name: Rows(lambda s: (s.randrange(5), s.randrange(5))) for name in SCHEMAS}
    epochs = []
    for _ in range(2):
        changes = {name: rows.epoch(source, 25) for name, rows in inputs.items()}
        there = {name: rows.there.copy() for name, rows in inputs.items()}
        epochs.append((changes, from_scratch(program_of(text), SCHEMAS, there)))
    for workers in (1, 2, 3):
        comparison = Comparison(f"{said}, workers={workers}: {text}")
        with build(program_of(text), SCHEMAS).run(workers=workers) as run:
            for changes, expected in epochs:
                for name, some in changes.items():
                    feed(run, name, some)
                run.commit()
                comparison.compare(run, expected)
        assert not witness.faults, f"{comparison.said}: {witness.faults[:3]}"


def test_a_move_that_places_its_own_input_is_kept(witness: Witness) -> None:
    shown = Shown(looked_at=1)
    for turn in shown.turns(1, limit=20):
        compare(SWAPPED_IN_A_LOOP, random.Random(5 + turn), f"swapped in a loop, {turn=}", witness)
        shown["looked_at"] = witness.looked_at


def test_rows_lie_where_the_plan_says_with_any_number_of_workers(witness: Witness) -> None:
    shown = Shown(looked_at=1)
    for seed in shown.seeds(30, sample=200, soak=1_000):
        source = random.Random(seed)
        compare(draw_program(source), source, f"seed={seed}", witness)
        shown["looked_at"] = witness.looked_at


# -- the laws, of plans that are not run


def is_within(some: Placement, others: Placement) -> bool:
    return others is None or (some is not None and some <= others)


def test_what_is_left_out_keeps_every_promise() -> None:
    """The law "left out", and that exchanges by row which are left out find rows that are placed."""
    shown = Shown(left_out=1, by_row=1)
    for seed in shown.seeds(200, sample=2_000, soak=8_000):
        text = draw_program(random.Random(seed))
        plan = build(program_of(text), SCHEMAS).plan
        placed = placements(plan)
        for number in staying(plan):
            node = plan.nodes[number]
            came = placed[node.inputs[0]]
            assert is_within(placed[Port(number)], came), f"seed={seed}: {node}: {text}"
            assert came != set(), f"seed={seed}: {node}: {text}"
            shown["left_out"] += 1
            if isinstance(node.operator, Exchange) and node.operator.route == "row":
                shown["by_row"] += 1


def test_fewer_keys_of_an_input_never_give_more_of_an_output() -> None:
    """The rules are monotone, so that striking out ends."""
    for seed in seeds(100, sample=500, soak=2_000):
        source = random.Random(seed)
        plan = build(program_of(draw_program(source)), SCHEMAS).plan
        ports = [Port(node.number) for node in plan.nodes if node.schemas]
        more = {port: drawn_placement(source, plan, port) for port in ports}
        fewer = {port: drawn_part(source, plan, port, keys) for port, keys in more.items()}
        moving = {node.number for node in plan.nodes if source.random() < 0.5}
        for node in plan.nodes:
            if node.schemas:
                gives = [_placed(plan, node, each, moving) for each in (fewer, more)]
                assert is_within(*gives), f"seed={seed}: {node}: {gives}"


def drawn_placement(source: random.Random, plan: Plan, port: Port) -> Placement:
    """No rows (all keys), or some keys of an output, more often those that nodes ask for."""
    columns = range(len(plan.nodes[port.node].schemas[port.output]))
    keys: list[Columns] = [
        (),
        *[(a,) for a in columns],
        *[(a, b) for a in columns for b in columns],
    ]
    return None if source.random() < 0.3 else {key for key in keys if source.random() < 0.6}


def drawn_part(source: random.Random, plan: Plan, port: Port, keys: Placement) -> Placement:
    """Some of these keys."""
    if keys is None:
        return drawn_placement(source, plan, port)
    return {key for key in keys if source.random() < 0.6}


def test_a_loop_that_nothing_enters_has_no_rows() -> None:
    flow = rr.Dataflow("empty")
    rows = flow.input("rows", SCHEMA)
    loop = flow.loop()
    back = loop.feedback(SCHEMA)
    pairs = back.join(loop.enter(rows), on="a", suffix="_2").select(a="b", b="a")
    back.connect(pairs)
    flow.output("result", loop.leave(pairs))
    plan = flow.plan
    assert placements(plan)[pairs._port] is None
    for workers in (1, 2):
        with flow.run(workers=workers) as run:
            run.insert("rows", [(1, 1), (2, 1)])
            run.commit()
            assert run.read("result").rows() == []


# -- promises of functions


def halved(row: dict[str, Any]) -> list[tuple[int, int]]:
    return [(row["a"], row["n"] // 2), (row["a"], row["n"] - row["n"] // 2)]


KEEPING = {
    "flat_map": lambda counts, **keeps: counts.flat_map(halved, {"a": pl.Int64, "n": pl.Int64}, **keeps),
    "map_batches": lambda counts, **keeps: counts.map_batches(
        lambda frame: frame.with_columns(n=pl.col("n") * 2), {"a": pl.Int64, "n": pl.Int64}, **keeps
    ),
}  # fmt: skip


@pytest.mark.parametrize("method", KEEPING)
def test_an_exchange_is_left_out_where_a_function_keeps_the_key(method: str) -> None:
    """Behind the function, rows are grouped by a column that it keeps: they lie there already."""
    left_out = {}
    for promise in ({}, {"keeps": "a"}):

        def program(rows: Any, promise: Any = promise) -> Any:
            counts = rows.group_by("a").agg(n=rr.count())
            return KEEPING[method](counts, **promise).group_by("a").agg(n=rr.sum("n"))

        plan = build(program, {"rows": SCHEMA}).plan
        by_key = [
            node for node in plan.nodes if node.operator.as_exchange and not _shown(plan, node)
        ]
        assert len(by_key) == 2
        left_out[len(promise)] = [node.number in staying(plan) for node in by_key]
        for workers in (1, 3):
            check(program, {"rows": SCHEMA}, seed=workers, workers=workers, scale=True)
    assert left_out == {0: [False, False], 1: [False, True]}


def _shown(plan: Plan, node: Node) -> bool:
    """Whether a node is there for the output."""
    return all(taker.operator.public_name for taker, _ in plan.consumers.get(Port(node.number), []))


def test_a_loop_whose_function_keeps_the_key_has_no_exchange_in_it() -> None:
    """A row goes around on the worker where it entered, round by round."""

    def program(rows: Any, **promise: Any) -> Any:
        def body(now: Any) -> Any:
            less = now.flat_map(lambda r: [(r["a"], r["b"] - 1)] if r["b"] else [], AB, **promise)
            return less.concat(now).group_by("a").agg(b=rr.min("b"))

        start = rows.filter(pl.col("b") >= 0).group_by("a").agg(b=rr.max("b"))
        return start.iterate(body)

    moves = {}
    for promise in ({}, {"keeps": ["a"]}):
        plan = build(lambda rows, promise=promise: program(rows, **promise), {"rows": SCHEMA}).plan
        inside = [n for n in plan.nodes if n.operator.as_exchange and n.scope.depth > 1]
        moves[len(promise)] = [node.number not in staying(plan) for node in inside]
        for workers in (1, 2):
            check(
                lambda rows, promise=promise: program(rows, **promise),
                {"rows": SCHEMA},
                seed=workers,
                workers=workers,
            )
    assert any(moves[0])
    assert moves[1]
    assert not any(moves[1])
