"""Which row of a key is better: orders by columns and expressions, in every mode, against plain Python."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cmp_to_key
from math import isnan, nan
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from tests.soaking import seeds

INT, FLOAT, TEXT, c = pl.Int64, pl.Float64, pl.String, pl.col
EDGES = {"src": INT, "dst": INT}
WIDE = {"node": INT, "far": INT, "tag": FLOAT, "word": TEXT}
NARROW = {"node": INT, "far": INT}
VALUES: dict[str, list[Any]] = {
    "far": [0, 1, 2, 3, 7, -2, None], "tag": [0.5, -1.0, 3.0, nan, None], "word": ["", "a", "bb", "b", None]
}  # fmt: skip
Row = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """A column or an expression by which rows are ordered, and the same of a row in plain Python."""

    given: Any
    of_row: Callable[[Row], Any]
    reads: tuple[str, ...]


def of(name: str, function: Callable[[Any], Any] = lambda value: value) -> Callable[[Row], Any]:
    return lambda row: None if row[name] is None else function(row[name])


MEASURES = [
    Measure("far", of("far"), ("far",)),
    Measure(c("far"), of("far"), ("far",)),
    Measure(c("far") * -1, of("far", lambda far: -far), ("far",)),
    Measure((c("far") - 2).abs(), of("far", lambda far: abs(far - 2)), ("far",)),
    Measure(c("far") % 2 == 0, of("far", lambda far: far % 2 == 0), ("far",)),
    Measure(c("far") / 3.7, of("far", lambda far: far / 3.7), ("far",)),
    Measure(c("far").fill_null(1), lambda row: 1 if row["far"] is None else row["far"], ("far",)),
    Measure(pl.lit(1), lambda row: 1, ()),
    Measure("tag", of("tag"), ("tag",)),
    Measure(-c("tag"), of("tag", lambda tag: -tag), ("tag",)),
    Measure(c("word").str.len_chars(), of("word", len), ("word",)),
    Measure(c("word") + "c", of("word", lambda word: word + "c"), ("word",)),
    Measure(pl.struct("word", "far"), lambda row: (row["word"], row["far"]), ("word", "far")),
    Measure(
        (c("node") + c("far")) % 3,
        lambda row: None if row["far"] is None else (row["node"] + row["far"]) % 3,
        ("node", "far"),
    ),
]


@dataclass(frozen=True)
class OrderOfRows:
    """An order that was drawn: what is given as ``better=``, and what it means."""

    better: Any
    measures: list[Measure]
    greatest: bool

    @property
    def reads_key(self) -> bool:
        """Whether one row may be better than another one for this key, and worse for the next key: then the order in
        which rows are taken shows."""
        return any("node" in each.reads for each in self.measures)

    def compare(self, one: Row, other: Row) -> int:
        """Below zero if `one` is better."""
        for each in self.measures:
            sides = each.of_row(one), each.of_row(other)
            if None not in sides:
                found = compared(*sides)
                found = -found if self.greatest else found
            else:
                found = compared(*sides)
            if found:
                return found
        for name in one:
            found = compared(one[name], other[name])
            if found:
                return found
        return 0


def compared(one: Any, other: Any) -> int:
    """The order of two values: nulls last, NaN the greatest of floats."""
    if one is None or other is None:
        return (one is None) - (other is None)
    if isinstance(one, tuple):
        return next((found for found in map(compared, one, other) if found), 0)
    if isinstance(one, float) and (isnan(one) or isnan(other)):
        return isnan(one) - isnan(other)
    return (one > other) - (one < other)


def draw_order(draw: random.Random, columns: Any) -> OrderOfRows:
    fitting = [each for each in MEASURES if {*each.reads} <= {*columns}]
    chosen = draw.sample(fitting, draw.choice([1, 1, 2, 3]))
    names = [str(each.given) for each in chosen]
    if "far" in names and 'col("far")' in names:  # a column that is named twice is refused
        chosen = [each for each in chosen if not isinstance(each.given, str)]
    has_pairs = any(len(each.reads) == 2 and "node" not in each.reads for each in chosen)
    greatest = draw.random() < 0.4 and not has_pairs
    given = [each.given for each in chosen]
    if greatest:
        better: Any = rr.loops.greatest(*given)
    elif all(isinstance(each, pl.Expr) for each in given) and draw.random() < 0.7:
        better = given[0] if len(given) == 1 else draw.choice([given, tuple(given)])
    else:
        better = rr.loops.least(*given)
    return OrderOfRows(better, chosen, greatest)


def spread(edges: Any, rows: Any, better: Any, missing: str, modes: Any) -> Any:
    """Rows are copied along edges, and each node keeps the best one."""

    def send(near: Any) -> Any:
        there = near.join(edges, left_on="node", right_on="src")
        return there.select(node="dst", **{name: name for name in rows.columns[1:]})

    return rows.iterate_delta(
        send(rows), key="node", send=send, better=better, missing=missing, **modes
    )


def from_scratch(
    edges: list[Any], rows: list[Any], columns: Any, order: OrderOfRows, missing: str
) -> list[Any]:
    """The answer in plain Python, round by round."""
    best = cmp_to_key(order.compare)
    solution: dict[Any, Row] = {}

    def taken(candidates: list[Row], adds: bool) -> list[Row]:
        accepted = {}
        for row in sorted(candidates, key=best):
            node = row["node"]
            if node in solution:
                if order.compare(row, solution[node]) < 0:
                    solution[node] = accepted[node] = row
            elif adds:
                solution[node] = accepted[node] = row
        return list(accepted.values())

    start = [dict(zip(columns, row, strict=True)) for row in rows]
    taken(start, True)
    sent = start
    while sent:
        messages = [{**row, "node": b} for row in sent for a, b in edges if a == row["node"]]
        sent = taken(messages, missing == "add")
    return sorted([tuple(row.values()) for row in solution.values()], key=repr)


def check(seed: int) -> None:
    draw = random.Random(seed)
    columns = draw.choice([WIDE, WIDE, NARROW])
    order, missing = draw_order(draw, columns), draw.choice(["add", "drop"])
    modes: list[dict[str, str]] = [{"mode": "differential"}, {"mode": "superstep"}, {}]
    if not order.reads_key:
        modes.append({"mode": "microstep"})
    forms = [(each, draw.randint(1, 4)) for each in modes]
    runs = []
    for mode, workers in forms:
        flow = rr.Dataflow("loop")
        edges, rows = flow.input("edges", EDGES), flow.input("rows", columns)
        flow.output("result", spread(edges, rows, order.better, missing, mode))
        runs.append(flow.run(workers=workers, seed=draw.randrange(1000)))
    nodes = draw.choice([3, 8])
    there: dict[str, list[Any]] = {"edges": [], "rows": []}
    for epoch in range(5):
        for what, count in (("edges", draw.choice([0, 2, 9])), ("rows", draw.choice([0, 1, 6]))):
            for _ in range(count):
                if there[what] and draw.random() < 0.4:
                    row = there[what].pop(draw.randrange(len(there[what])))
                    for run in runs:
                        run.delete(what, [row])
                    continue
                row = (draw.randrange(nodes), draw.randrange(nodes))
                if what == "rows":
                    row = (row[0], *[draw.choice(VALUES[name]) for name in [*columns][1:]])
                there[what].append(row)
                for run in runs:
                    run.insert(what, [row])
        expected = from_scratch(there["edges"], there["rows"], columns, order, missing)
        for run, form in zip(runs, forms, strict=True):
            run.commit()
            found = sorted(run.read("result").rows(), key=repr)
            assert repr(found) == repr(expected), (seed, epoch, order.better, form, found, expected)
    for run in runs:
        run.close()


@pytest.mark.drawn
def test_every_order_gives_in_every_mode_what_plain_python_gives() -> None:
    for seed in seeds(20, soak=800):
        check(seed)


def flow_of(better: Any, columns: Any = NARROW, **modes: Any) -> rr.Dataflow:
    flow = rr.Dataflow("loop")
    edges, rows = flow.input("edges", EDGES), flow.input("rows", columns)
    flow.output("result", spread(edges, rows, better, "add", modes))
    return flow


def test_a_plain_column_runs_on_arrays_however_it_is_written() -> None:
    for better in (rr.loops.least("far"), rr.loops.least(c("far")), c("far"), [c("far")]):
        assert "spread the least value" in flow_of(better).explain()
    shown = flow_of(c("far") * -1).explain()
    assert "not on arrays: better is not the least or greatest far, but least(" in shown
    assert "by rounds, mode='superstep'" in flow_of(c("far") * -1, mode="superstep").explain()


@pytest.mark.parametrize("mode", ["auto", "superstep", "microstep", "differential"])
@pytest.mark.parametrize(
    ("better", "code", "words"),
    [
        (c("fra") + 1, "plan.column_unknown", ("'fra'", "'far'")),
        ([c("far"), c("fra") * 2], "plan.column_unknown", ("'fra'",)),
        (c("far").sum(), "plan.not_row_wise", ("sum()", "that row alone")),
        (c("far").sort(), "plan.not_row_wise", ("sort()",)),
        (pl.len(), "plan.not_row_wise", ("len()",)),
        (pl.all(), "plan.expression", ("2 columns",)),
        (c("far").str.len_chars(), "plan.expression", ("cannot be made", "String")),
        (c("far").cast(pl.Object), "plan.expression", ("cannot be made", "object")),
        ([c("far"), c("far")], "plan.column_twice", ("'far'",)),
        ("far", "plan.better", ('least("distance")',)),
        (["far", c("far") + 1], "plan.better", ("columns and expressions",)),
        ([], "plan.better", ("no order",)),
        (min, "plan.better", ("no order",)),
    ],
)
def test_an_order_that_is_none_is_refused_while_the_program_is_built(
    mode: str, better: Any, code: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(rr.PlanError) as caught:
        flow_of(better, mode=mode)
    said = str(caught.value)
    assert caught.value.code == code, said
    assert "test_better.py:" in said
    for word in words:
        assert word in said, said


@pytest.mark.parametrize("mode", ["auto", "superstep", "microstep", "differential"])
def test_an_expression_that_fails_for_a_row_refuses_the_epoch_alone(mode: str) -> None:
    columns = {"node": INT, "word": TEXT}
    with flow_of(c("word").cast(INT), columns, mode=mode).run(workers=2) as run:
        run.insert("rows", [(1, "20"), (2, "3")])
        run.insert("edges", [(2, 1), (1, 4)])
        run.commit()
        assert run.read("result").rows() == [(1, "3"), (2, "3"), (4, "3")]
        run.insert("rows", [(2, "two")])
        with pytest.raises(rr.OperatorFailed, match="two"):
            run.commit()
        run.insert("rows", [(1, "1")])
        run.commit()
        assert run.read("result").rows() == [(1, "1"), (2, "3"), (4, "1")]
