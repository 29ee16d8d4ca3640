"""Spreading against its reference, after every epoch of random changes."""

from __future__ import annotations

import math
import operator
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from riverrun.errors import OperatorFailed, PlanError
from riverrun.operators.iterations.spreading import Message, Settled, Spreading
from riverrun.state.kernels.iterations import cells, edges
from riverrun.state.kernels.iterations import spreading as kernels
from tests.operators.iterations import reference
from tests.operators.iterations.reference import Reference, Refused, plain
from tests.soaking import seeds

PATIENCE = 4000
NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Case:
    """A loop, and what its values and weights are drawn from."""

    kind: pa.DataType
    operation: str
    values: tuple[Any, ...]
    weights: tuple[Any, ...] = ()
    constant: Any = 0
    message: Callable[[Any, Any], Any] = lambda value, weight: value


def add(low: int, high: int) -> Callable[[Any, Any], Any]:
    return reference.whole(operator.add, low, high)


def times(low: int, high: int) -> Callable[[Any, Any], Any]:
    return reference.whole(operator.mul, low, high)


MOST = (1 << 63) - 1
UMOST = (1 << 64) - 1
SMALL = (-2, -1, 0, 1, 2, 3)
NAMES = ("", "a", "ab", "b", "a\0", "é", "\U0001f600", "\uffff", "zz" * 30)
CASES = {
    "labels": Case(pa.int64(), "copy", SMALL),
    "extremes": Case(pa.int64(), "copy", (MOST, MOST - 1, -MOST - 1, -MOST, 0)),
    "flags": Case(pa.bool_(), "copy", (False, True)),
    "dates": Case(pa.date32(), "copy", SMALL),
    "large": Case(pa.uint64(), "copy", (0, 1, UMOST, UMOST - 1, 1 << 63)),
    "halves": Case(pa.float64(), "copy", (0.0, -0.0, 1.5, NAN, INF, -INF, -2.5)),
    "bytes": Case(pa.uint8(), "copy", (0, 1, 255)),
    "names": Case(pa.large_string(), "copy", NAMES),
    "digests": Case(pa.large_binary(), "copy", tuple(name.encode() for name in NAMES)),
    "prices": Case(pa.decimal128(9, 2), "copy", tuple(Decimal(cents).scaleb(-2) for cents in SMALL)),
    "hops": Case(pa.int64(), "add", SMALL, (), 1, add(-MOST - 1, MOST)),
    "back": Case(pa.int16(), "add", SMALL, (), -1, add(-1 << 15, (1 << 15) - 1)),
    "paths": Case(pa.int64(), "add", (0, 0, 5, 100), (0, 0, 1, 1, 2, 7), None, add(-MOST - 1, MOST)),
    "signed paths": Case(pa.int64(), "add", (0, 0, 5, 100), (0, 1, 1, 2, 7, -1), None, add(-MOST - 1, MOST)),
    "narrow": Case(pa.int8(), "add", (0, 100, 127, -128), (0, 1, 20, -1), None, add(-128, 127)),
    "near": Case(pa.int64(), "add", (MOST, MOST - 3, 0, -MOST), (0, 1, 2, -1), None, add(-MOST - 1, MOST)),
    "naturals": Case(pa.uint64(), "add", (0, 3, UMOST, UMOST - 2), (0, 1, 2), None, add(0, UMOST)),
    "short": Case(pa.uint16(), "add", (0, 3, 65535), (0, 1, 2), None, add(0, 65535)),
    "times": Case(pa.timestamp("us"), "add", (0, 5, 1 << 40), (0, 1, 2, 60), None, add(-MOST - 1, MOST)),
    "waits": Case(pa.duration("s"), "add", (0, 5, 1 << 40), (0, 1, 2, 60), None, add(-MOST - 1, MOST)),
    "ways": Case(
        pa.float64(), "add", (0.0, 1e16, 0.1), (0.0, 0.1, 0.2, 0.3, 1e-17, 1.0),
        None, reference.floating(operator.add, np.float64)
    ),
    "odd ways": Case(
        pa.float64(), "add", (0.0, 1e16, -INF, INF, NAN), (0.0, 0.1, -0.1, 1.0, NAN, INF, -INF),
        None, reference.floating(operator.add, np.float64)
    ),
    "single": Case(
        pa.float32(), "add", (0.0, 16777216.0, 0.10000000149011612), (0.0, 1.0, 0.10000000149011612),
        None, reference.floating(operator.add, np.float32)
    ),
    "odds": Case(
        pa.float64(), "multiply", (1.0, 0.5, 0.0), (1.0, 0.5, 0.75, 0.1, 0.0),
        None, reference.floating(operator.mul, np.float64)
    ),
    "growth": Case(
        pa.float64(), "multiply", (1.0, 0.5, -1.0, 0.0, INF), (1.0, 1.5, 2.0, 0.5, 0.0, INF, NAN),
        None, reference.floating(operator.mul, np.float64)
    ),
    "powers": Case(pa.int32(), "multiply", (1, 2, -1, 0), (0, 1, 2, 3), None, times(-1 << 31, (1 << 31) - 1)),
    "products": Case(pa.uint64(), "multiply", (1, 2, 0, 1 << 62), (0, 1, 2, 3), None, times(0, UMOST)),
    "halving": Case(pa.float32(), "multiply", (1.0, 4.0), (), 0.5, reference.floating(operator.mul, np.float32)),
    "widths": Case(pa.int64(), "min", (0, 5, 100, MOST), (1, 2, 3, 50), None, reference.lesser),
    "float widths": Case(pa.float64(), "min", (0.0, 5.5, INF, NAN), (1.0, 2.5, NAN, INF), None, reference.lesser),
    "heights": Case(pa.int64(), "max", (0, 5, -MOST), (1, 2, 3, 50), None, reference.greater),
    "float heights": Case(pa.float64(), "max", (0.0, 5.5, INF, NAN), (1.0, 2.5, NAN, INF), None, reference.greater),
    "ceiling": Case(pa.int64(), "min", (0, 5, 100, MOST), (), 4, reference.lesser),
    "floor": Case(pa.uint64(), "max", (0, 5, UMOST), (), 4, reference.greater),
}  # fmt: skip

KEYS: dict[str, tuple[list[pa.DataType], list[tuple[Any, ...]]]] = {
    "int": ([pa.int64()], [(k,) for k in (0, 1, -1, MOST, 5, None, 17, 3)]),
    "narrow": ([pa.uint8()], [(k,) for k in (0, 1, 255, 128, 5, 17, 3)]),
    "text": ([pa.large_string()], [(k,) for k in ("", "a", "ab", None, "b" * 40, "c", "d")]),
    "pair": (
        [pa.int32(), pa.large_string()],
        [(1, "a"), (1, "b"), (2, "a"), (None, "a"), (1, None), (3, "x"), (4, "y")],
    ),
    "float": ([pa.float64()], [(k,) for k in (0.0, 1.0, INF, 2.5, -3.0, None)]),
    "list": ([pa.large_list(pa.int64())], [(None,), *(((1,) * k,) for k in range(6))]),
}  # fmt: skip


ENDING = [
    "labels",
    "extremes",
    "names",
    "flags",
    "halves",
    "paths",
    "naturals",
    "ways",
    "single",
    "odds",
    "widths",
]
ENDING += ["float widths", "heights", "float heights", "ceiling"]  # where no value goes on for long
LARGE: list[tuple[list[pa.DataType], list[tuple[Any, ...]]]] = [
    ([pa.int64()], [(k * k * k,) for k in range(250)]),
    ([pa.large_string()], [("x" * (k % 40) + str(k),) for k in range(180)]),
    ([pa.int32(), pa.bool_()], [(k // 2, k % 2 == 0) for k in range(150)]),
    ([pa.int64()], [(0,)] + [(k // 3,) for k in range(6)] + [(k,) for k in range(60)]),
]


def column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Numbers as a column of any type of values."""
    values = [NAN if value == "nan" else value for value in values]
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return pa.array(values, kind)


def numbers(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return [plain(value) for value in column.to_pylist()]


def key_columns(keys: list[tuple[Any, ...]], kinds: list[pa.DataType]) -> list[pa.Array]:
    return [pa.array([key[i] for key in keys], kind) for i, kind in enumerate(kinds)]


def key_of(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(tuple(part) if isinstance(part, list) else plain(part) for part in key)


class Drawn:
    """One loop and its reference, and random changes of both."""

    cases = tuple(CASES)

    def __init__(self, seed: int, *, large: bool = False) -> None:
        self.random = draw = random.Random(seed)
        self.large = large
        self.name = draw.choice([name for name in self.cases if not large or name in ENDING])
        self.case = CASES[self.name]
        self.kinds, keys = KEYS[draw.choice(["int", "int", *KEYS])]
        self.keys = keys[: draw.randint(2, len(keys))]
        if large:
            self.kinds, self.keys = draw.choice(LARGE)
        best, missing = draw.choice(["least", "greatest"]), draw.choice(["drop", "add"])
        if large and self.case.operation in ("add", "multiply"):
            best = "least" if self.case.operation == "add" else "greatest"
        self.options = {
            "best": best,
            "missing": missing,
            "order": draw.choice(["best", "superstep"]),
            "patience": PATIENCE,
        }
        self.values = draw.sample(self.case.values, draw.randint(1, len(self.case.values)))
        weights = self.case.weights or (self.case.constant,)
        self.weights = draw.sample(weights, draw.randint(1, len(weights)))
        if draw.random() < 0.3:
            self.values.append(None)
        if self.case.weights and draw.random() < 0.3:
            self.weights.append(None)
        self.negative = draw.random() < 0.2
        self.fixed = draw.random() < 0.5  # the solution seldom changes
        self.dense = draw.choice([1, 2, 6])
        self.there = Reference(self.case.message, best == "greatest", missing == "add")
        self.spreading = self.new()
        self.expected: dict[Any, Any] = {}
        self.saved: dict[Any, tuple[Any, int]] = {}
        self.result: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"{self.name} {self.kinds} {self.options}"

    def new(self) -> Spreading:
        copies = self.case.operation == "copy"
        constant = None if copies or self.case.weights else self.case.constant
        message = Message(self.case.operation, constant)
        return Spreading(self.kinds, self.case.kind, message, **self.options)

    @property
    def weight_kind(self) -> pa.DataType:
        if pa.types.is_timestamp(self.case.kind):
            return pa.duration(self.case.kind.unit)
        return self.case.kind

    def some_rows(
        self, counts: Counter[Any], new: Callable[[], Any], most: int
    ) -> list[tuple[Any, int]]:
        """Changes of a multiset: inserts, deletes of what is there, and now and then of what is not."""
        deleted = 0.5 if most < 100 else 0.05
        draw, changes = self.random, []
        for _ in range(draw.randint(0, most)):
            present = []
            if most < 100 or draw.random() < 0.05:
                present = [row for row, count in counts.items() if count > 0]
            if present and draw.random() < deleted:
                row = draw.choice(present)
                diff = -draw.choice([1, counts[row], 1])
                if self.negative and draw.random() < 0.3:
                    diff = -counts[row] - 1
                if draw.random() < 0.3:  # and the same, or something like it, once more
                    changes.append((row, 1))
                    counts[row] += 1
            else:
                row = new()
                diff = draw.choice([1, 1, 1, 2])
                if self.negative and draw.random() < 0.3:
                    diff = -1
            changes.append((row, diff))
            counts[row] += diff
            if not counts[row]:
                del counts[row]
        draw.shuffle(changes)
        return changes

    def change(self) -> None:
        draw, there = self.random, self.there

        def start() -> Any:
            return key_of(draw.choice(self.keys)), plain(draw.choice(self.values))

        def edge() -> Any:
            source, target = draw.choice(self.keys), draw.choice(self.keys)
            weight = plain(draw.choice(self.weights)) if self.case.weights else self.case.constant
            return key_of(source), key_of(target), weight

        quiet = self.fixed and there.solution and draw.random() < 0.8
        first = self.large and not there.edges
        solution = [] if quiet else self.some_rows(there.solution, start, 400 if first else 4)
        workset = self.some_rows(there.workset, start, 2)
        most = draw.choice([1, 2, 4 * self.dense]) if not first else draw.choice([300, 3000])
        changed = self.some_rows(there.edges, edge, most)
        calls: list[Callable[[], None]] = []
        for rows, give in (
            (solution, self.give_solution),
            (workset, self.give_workset),
            (changed, self.give_edges),
        ):
            cut = draw.randint(0, len(rows)) if draw.random() < 0.3 else len(rows)
            for part in (rows[:cut], rows[cut:]):
                calls.append(lambda part=part, give=give: give(self.spreading, part))  # type: ignore[misc]
        draw.shuffle(calls)
        for call in calls:
            call()

    def give_solution(self, to: Spreading, rows: list[Any]) -> None:
        self.give_starts(to.change_solution, rows)

    def give_workset(self, to: Spreading, rows: list[Any]) -> None:
        self.give_starts(to.change_workset, rows)

    def give_starts(self, give: Callable[..., None], rows: list[Any]) -> None:
        keys = key_columns([key for (key, _), _ in rows], self.kinds)
        values = column([value for (_, value), _ in rows], self.case.kind)
        give(keys, values, np.array([diff for _, diff in rows], np.int64))

    def give_edges(self, to: Spreading, rows: list[Any]) -> None:
        sources = key_columns([source for (source, _, _), _ in rows], self.kinds)
        targets = key_columns([target for (_, target, _), _ in rows], self.kinds)
        weights = None
        if self.case.weights:
            weights = column([weight for (_, _, weight), _ in rows], self.weight_kind)
        to.change_edges(sources, targets, weights, np.array([diff for _, diff in rows], np.int64))

    def epoch(self) -> str:
        """One epoch: what became of it."""
        before = self.there.copy()
        expected: dict[Any, Any] | None
        try:
            self.change()
            failed = None
        except OperatorFailed as error:
            failed = error
        try:
            expected = self.there.values()
        except Refused:
            expected = None
        settled = None
        if failed is None:
            try:
                settled = self.spreading.converge()
            except OperatorFailed as error:
                failed = error
        if expected is None or failed is not None:
            assert expected is None, (failed, expected)
            assert failed is not None, "no error"
            assert failed.code.startswith("operator.")
            self.spreading.undo()
            self.there = before
            return "refused"
        assert settled is not None
        if self.random.random() < 0.1:
            self.spreading.undo()
            self.there = before
            return "undone"
        self.take(settled)
        assert self.result == expected, (self.result, expected)
        assert {key: value for key, (value, _) in self.saved.items()} == expected
        self.check_supports()
        if self.random.random() < 0.1:
            self.restore()
            return "restored"
        return "fine"

    def take(self, settled: Settled) -> None:
        """Apply an epoch's changes; each has to fit."""
        columns, diffs = settled.saved()
        *keys, values, depths = columns
        named = [key_of(key) for key in zip(*(key.to_pylist() for key in keys), strict=True)]
        rows = list(zip(named, numbers(values), depths.to_pylist(), diffs.tolist(), strict=True))
        for key, value, depth, diff in rows:
            if diff < 0:
                assert self.saved.pop(key) == (value, depth)
        for key, value, depth, diff in rows:
            if diff > 0:
                assert key not in self.saved
                self.saved[key] = value, depth
        columns, diffs = settled.result()
        *keys, values = columns
        named = [key_of(key) for key in zip(*(key.to_pylist() for key in keys), strict=True)]
        changed = list(zip(named, numbers(values), diffs.tolist(), strict=True))
        assert len({(key, diff) for key, _, diff in changed}) == len(changed)
        assert len({(key, value) for key, value, _ in changed}) == len(changed)  # net
        for key, value, diff in changed:
            if diff < 0:
                assert self.result.pop(key) == value
        for key, value, diff in changed:
            if diff > 0:
                assert key not in self.result
                self.result[key] = value

    def check_supports(self) -> None:
        """The law: a value that is no start value has a support that precedes it."""
        own, there = self.spreading, self.there
        if own._rule != kernels.CLOSURE:
            starts = there.live_starts()
            for key, (value, depth) in self.saved.items():
                assert (key, value) in starts or any(
                    target == key
                    and source in self.saved
                    and not reference.has_null(source)
                    and self.precedes(self.saved[source], (value, depth))
                    and there.sent(self.saved[source][0], weight) == value
                    for (source, target, weight), count in there.edges.items()
                    if count > 0
                ), (key, value, depth)
        numbers, flags, graph = own._cells, own._flags, own._graph
        assert (flags[cells.STATE] == 0)[: own._known].all()
        assert (numbers[cells.BUCKET] == -1)[: own._known].all()
        assert (own._queues == -1).all()
        live = graph.lists[:, edges.COUNT, : own._known].sum(axis=1)
        assert live.tolist() == [len(graph)] * 2

    def precedes(self, a: tuple[Any, int], b: tuple[Any, int]) -> bool:
        if (a[0] is None) != (b[0] is None):
            return b[0] is None
        if self.spreading._rule == kernels.BY_VALUE and a[0] != b[0]:
            return self.there.better(a[0], b[0])
        return a[1] < b[1]

    def restore(self) -> None:
        """Go on with another instance, which has the same rows in another order."""
        self.spreading = self.new()
        for counts, give in (
            (self.there.edges, self.give_edges),
            (self.there.solution, self.give_solution),
            (self.there.workset, self.give_workset),
        ):
            rows = list(counts.items())
            self.random.shuffle(rows)
            give(self.spreading, rows)
        saved = list(self.saved.items())
        self.random.shuffle(saved)
        self.spreading.restore(
            key_columns([key for key, _ in saved], self.kinds),
            column([value for _, (value, _) in saved], self.case.kind),
            np.array([depth for _, (_, depth) in saved], np.int64),
        )
        assert len(self.spreading) == len(self.result)
        settled = self.spreading.converge()
        assert not len(settled.diffs)


@pytest.mark.drawn
def test_values_of_large_graphs_are_those_from_scratch() -> None:
    for seed in seeds(30, soak=600):
        drawn = Drawn(seed, large=True)
        for epoch in range(20):
            try:
                drawn.epoch()
            except Exception as error:
                error.add_note(f"seed {seed}, epoch {epoch}: {drawn}")
                raise


@pytest.mark.drawn
def test_values_are_those_from_scratch() -> None:
    for seed in seeds(400, soak=6000):
        drawn = Drawn(seed)
        for epoch in range(20):
            try:
                drawn.epoch()
            except Exception as error:
                error.add_note(f"seed {seed}, epoch {epoch}: {drawn}")
                raise


def spread_paths() -> Spreading:
    """Paths from key 1, by edges 1 -> 2 -> 3 of weight 5."""
    spreading = Spreading([pa.int64()], pa.int64(), Message("add"), missing="add")
    spreading.change_solution([pa.array([1])], pa.array([0]), np.ones(1, np.int64))
    give_edges(spreading, [(1, 2, 5, 1), (2, 3, 5, 1)])
    return spreading


def give_edges(spreading: Spreading, rows: list[tuple[Any, ...]]) -> None:
    sources, targets, weights, diffs = zip(*rows, strict=True)
    spreading.change_edges(
        [pa.array(sources)], [pa.array(targets)], pa.array(weights), np.array(diffs, np.int64)
    )


def test_errors_name_the_key_and_the_values_and_can_be_undone() -> None:
    spreading = spread_paths()
    assert spreading.converge().rows() == [((1,), 0, 1), ((2,), 5, 1), ((3,), 10, 1)]
    give_edges(spreading, [(3, 4, MOST, 1)])
    with pytest.raises(OperatorFailed) as failed:
        spreading.converge()
    assert failed.value.code == "operator.overflow"
    assert failed.value.fields == {"key": 3, "value": 10, "target": 4, "weight": MOST}
    with pytest.raises(RuntimeError):
        spreading.converge()
    spreading.undo()
    give_edges(spreading, [(3, 2, -6, 1)])
    with pytest.raises(OperatorFailed) as failed:
        spreading.converge()
    assert failed.value.code == "operator.diverges"
    assert failed.value.fields["key"] in (2, 3)
    spreading.undo()
    give_edges(spreading, [(1, 3, 7, 1)])
    assert spreading.converge().rows() == [((3,), 10, -1), ((3,), 7, 1)]


def test_a_factor_below_zero_is_refused() -> None:
    spreading = Spreading([pa.int64()], pa.float64(), Message("multiply"), missing="add")
    spreading.change_solution([pa.array([1])], pa.array([2.0]), np.ones(1, np.int64))
    with pytest.raises(OperatorFailed) as failed:
        give_edges(spreading, [(1, 2, 0.5, 1), (1, 3, -0.5, 1)])
    assert failed.value.code == "operator.not_monotone"
    assert failed.value.fields == {"key": 1, "target": 3, "weight": -0.5}
    spreading.undo()
    assert spreading.converge().rows() == []
    spreading.change_solution([pa.array([1])], pa.array([2.0]), np.ones(1, np.int64))
    give_edges(spreading, [(1, 2, 0.5, 1)])
    assert spreading.converge().rows() == [((1,), 2.0, 1), ((2,), 1.0, 1)]


def test_an_edge_of_a_hub_costs_what_any_edge_costs() -> None:
    leaves = np.arange(1, 20_001)
    hub = np.zeros_like(leaves)
    spreading = Spreading([pa.int64()], pa.int64(), Message())
    nodes = pa.array(np.arange(20_001))
    spreading.change_solution([nodes], nodes, np.ones(20_001, np.int64))
    ends = [np.concatenate([hub, leaves]), np.concatenate([leaves, hub])]
    sources, targets = ([pa.array(each)] for each in ends)
    spreading.change_edges(sources, targets, None, np.ones(40_000, np.int64))
    assert len(spreading.converge().diffs) == 20_001
    both = [pa.array([0, 77])], [pa.array([77, 0])], None
    spreading.change_edges(*both, np.array([-1, -1]))
    settled = spreading.converge()
    assert settled.rows() == [((77,), 0, -1), ((77,), 77, 1)]
    assert settled.messages == 0
    assert settled.trimmed == 1
    spreading.change_edges(*both, np.array([1, 1]))
    assert spreading.converge().messages <= 3


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(PlanError):
        Spreading([pa.int64()], pa.int64(), Message(), best="most")
    with pytest.raises(PlanError):
        Spreading([pa.int64()], pa.large_list(pa.int64()), Message())
    with pytest.raises(PlanError):
        Spreading([pa.int64()], pa.large_string(), Message("min"))
    with pytest.raises(PlanError):
        Spreading([pa.int64()], pa.date32(), Message("add"))
    with pytest.raises(PlanError):
        Spreading([pa.int64()], pa.int64(), Message("multiply", -1))
