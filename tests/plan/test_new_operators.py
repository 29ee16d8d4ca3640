"""Law: a new operator is one class. All that a program does with an operator is asked of the operator itself.

Four operators that nothing in the package knows, one for each way to work, go through everything that looks at a plan:
pictures, placements, shares, schedules, checkpoints of a program that changed, backfill, and the laws of operators.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import riverrun as rr
from riverrun.engine.coordinator.shares import routes_of
from riverrun.engine.schedule import Alone, Together
from riverrun.errors import CheckpointError
from riverrun.frontends.names import describe_stream
from riverrun.operators.arrange import changes_of, state_schema
from riverrun.plan.diff import Comparison, StoredProgram, compare, states_of
from riverrun.plan.kernels_needed import kernels_of
from riverrun.plan.lineage import lineage_of
from riverrun.plan.operator import (
    Actor,
    Arranged,
    Arrangement,
    Columns,
    Context,
    Exchanging,
    Linear,
    Operator,
    PlacedInput,
    Placement,
    hold,
    moved_keys,
    so_far,
)
from riverrun.plan.placement import placements, staying
from riverrun.plan.plan import Plan
from riverrun.progress import Antichain, Timestamp
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.entries import ROWS as ROW_KERNELS
from riverrun.state.entries import labels
from riverrun.state.shards import Shards
from riverrun.testing import check_operator
from tests.soaking import first_seed

ROWS = pa.schema({"k": pa.int64(), "v": pa.int64()})
TALLY = pa.schema({"k": pa.int64(), "n": pa.int64()})


@dataclass(frozen=True)
class Shift(Linear):
    """A new linear operator: v and so much more."""

    by: int
    kind: ClassVar[str] = "shift"

    def describe(self) -> str:
        return f"shift v by {self.by}"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        keys = inputs[0].keys
        return None if keys is None else moved_keys(keys, {0: 0})

    def apply(self, changes: Changes) -> Changes:
        k, v = changes.columns
        return changes.with_columns((k, pc.add(v, self.by)))


@dataclass(frozen=True)
class Homeward(Exchanging):
    """A new exchange, by the key k."""

    kind: ClassVar[str] = "homeward"
    goes_by_content = True

    def describe(self) -> str:
        return "exchange homeward"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        return None if inputs[0].keys is None else {(0,)}

    @property
    def dealt_by(self) -> Columns:
        return (0,)

    def dispatch(self, changes: Changes, shards: Shards, turn: int) -> Sequence[Changes | None]:
        return changes.partition((0,), shards)


@dataclass(frozen=True)
class Tally(Operator):
    """A new operator with a state: how many rows there are of each k."""

    content: bool = True
    kind: ClassVar[str] = "tally"
    keeps_state: ClassVar[bool] = True

    @property
    def gives_content(self) -> bool:  # type: ignore[override]
        return self.content

    def identity(self) -> str:
        return "tally by k"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        keys = inputs[0].keys
        return None if keys is None else keys & {(0,)}

    def start(self, context: Context) -> Tallier:
        return Tallier(context)


class Tallier(Arranged):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.arrangement = Arrangement(context.spine(state_schema(TALLY, ("k",))))
        self._held: dict[Timestamp, list[Changes]] = {}

    def receive(self, port: int, changes: Changes) -> None:
        hold(self._held, changes, self.context.request)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        changes = Changes.concat(self._held.pop(time))
        spine, sums = self.arrangement.spine, Counter[int]()
        for k, diff in zip(changes.columns[0].to_pylist(), changes.diff_array(), strict=True):
            sums[k] += int(diff)
        there = {row["k"]: row["n"] for row in so_far(spine, upper).to_batch(time).to_pylist()}
        rows = [(k, there[k], -1) for k in sums if k in there]
        rows += [(k, n, 1) for k in sums if (n := there.get(k, 0) + sums[k])]
        *columns, diffs = (pa.array(column, pa.int64()) for column in zip(*rows, strict=True))
        made = Changes(tuple(columns), len(rows), (time,), None, 0, diffs.to_numpy())
        batch = Batch.of(spine.schema, made, (0, 1), spine.upper, upper)
        if len(batch):
            self.arrangement.append(batch, time)
            self.context.push(changes_of(batch, time), 0)


@dataclass(frozen=True)
class Weighing(Operator):
    """A new operator that says more numbers about a state of another's."""

    state: str
    kind: ClassVar[str] = "weighing"
    kernels: ClassVar[tuple[str, ...]] = ("values.mix", "presence.find_present")
    common_figures: ClassVar[frozenset[str]] = frozenset({"limit"})
    same_rows: ClassVar[bool] = True

    def start(self, context: Context) -> Weigher:
        return Weigher(context)


class Weigher(Actor):
    def receive(self, port: int, changes: Changes) -> None:
        self.context.push(changes, 0)

    def figures(self) -> dict[str, dict[str, Any]]:
        operator = self.node.operator
        assert isinstance(operator, Weighing)
        return {operator.state: {"limit": 7, "weight": 2}}


@dataclass(frozen=True)
class Newest(Operator):
    """A new operator that reads an arrangement and keeps nothing: the rows that come, once more."""

    kind: ClassVar[str] = "newest"
    reads_arrangements: ClassVar[bool] = True
    tracked: ClassVar[bool] = False
    may_be_tracked: ClassVar[bool] = False
    same_rows: ClassVar[bool] = True

    def start(self, context: Context) -> Newer:
        return Newer(context)


class Newer(Actor):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        (source,) = context.sources
        assert isinstance(source, Arranged)
        source.arrangement.readers.append(lambda batch, time: self.announced(0, batch, time))

    def announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        self.context.push(changes_of(batch, time), 0)


def tally(rows: rr.Collection, name: str | None = None, *, content: bool = True) -> rr.Collection:
    shifted = rows._add(Shift(2), [rows._add(Shift(1), [rows], ROWS)], ROWS)
    moved = shifted._add(Homeward(), [shifted], ROWS)
    return moved._add(Tally(content), [moved], TALLY, name, ("k",))


def program(
    *, more: bool = False, shift: int = 0, tallied: bool = True, content: bool = True
) -> rr.Dataflow:
    flow = rr.Dataflow("new")
    sales = flow.input("sales", {"k": pl.Int64, "v": pl.Int64})
    flow.output("sales", sales)
    moved = sales._add(Homeward(), [sales], ROWS)
    flow.output("moved", moved.filter(pl.col("v") > 1))
    if tallied:
        shifted = sales._add(Shift(shift), [sales], ROWS) if shift else sales
        counts = tally(shifted, "tally", content=content)
        flow.output("tally", counts)
        if more:
            flow.output("sizes", counts.group_by("n").count())
            again = counts._add(Newest(), [counts], TALLY)
            flow.output("again", again.group_by("k").agg(n=rr.sum("n")))
    return flow


def answers(rows: Counter[tuple[int, int]]) -> dict[str, list[Any]]:
    counts = Counter[int]()
    for (k, _), times in rows.items():
        counts[k] += times
    there = {k: n for k, n in counts.items() if n}
    return {
        "tally": sorted(there.items()),
        "sizes": sorted(Counter(there.values()).items()),
        "again": sorted(there.items()),
    }


def node_of(plan: Plan, kind: str) -> int:
    return next(node.number for node in plan.nodes if node.operator.kind == kind)


def port_of(plan: Plan, kind: str) -> Any:
    (port,) = {p for n in plan.nodes for p in n.inputs if p.node == node_of(plan, kind)}
    return port


# -- what is looked at before anything runs


def test_they_are_shown() -> None:
    flow = program(more=True)
    text = flow.explain()
    rows = {line.split("  ")[-1].strip(): line for line in text.splitlines()}
    assert "┌" in rows["shift v by 1"]
    assert "└" in rows["shift v by 2"]
    assert "■" in next(line for what, line in rows.items() if what.startswith("tally"))
    assert "⇄" in rows["exchange homeward"]
    assert "newest-1" in text
    for drawn in (flow.to_svg(), flow.to_dot()):
        for said in ("shift v by 1", "tally", "newest"):
            assert said in drawn
    assert ElementTree.fromstring(flow.to_svg()).tag.endswith("svg")
    assert describe_stream(flow.plan.nodes, port_of(flow.plan, "homeward")) == "'sales'"


def test_their_rows_are_placed_and_what_need_not_move_does_not() -> None:
    plan = program(more=True).plan
    placed = placements(plan)
    assert placed[port_of(plan, "homeward")] == {(0,)}
    assert placed[port_of(plan, "tally")] == {(0,)}
    assert placed[port_of(plan, "newest")] == {(0,)}
    flow = rr.Dataflow("twice")
    once = tally(flow.input("sales", {"k": pl.Int64, "v": pl.Int64}))
    moved = once._add(Homeward(), [once], TALLY)
    flow.output("n", moved)
    assert port_of(flow.plan, "tally").node + 1 in staying(flow.plan)


def test_rows_are_shared_out_as_they_wish() -> None:
    def routes(**others: Any) -> Mapping[str, Any]:
        flow = rr.Dataflow("routes")
        sales = flow.input("sales", {"k": pl.Int64, "v": pl.Int64})
        flow.output("homeward", sales._add(Homeward(), [sales], ROWS).filter(pl.col("v") > 1))
        if others:
            flow.output("shifted", sales._add(Shift(1), [sales], ROWS))
        return {name: route.columns for name, route in routes_of(flow.plan).items()}

    assert routes() == {"sales": (0,)}
    assert routes(shifted=True) == {}


def test_their_kernels_are_compiled_ahead() -> None:
    flow = program()
    counts = flow.outputs["tally"]
    before = kernels_of(flow.plan)
    assert before == labels(*ROW_KERNELS)
    flow.output("weighed", counts._add(Weighing("tally"), [counts], TALLY))
    assert kernels_of(flow.plan) == [*before, *labels(*Weighing.kernels)]


def test_a_schedule_knows_what_crosses() -> None:
    plan = program().plan
    crossing = [node.number for node in plan.nodes if node.operator.kind == "homeward"]
    for number in crossing:
        assert Together(plan, 0, 0, 3).crosses(number)
        assert not Alone(plan, 0).crosses(number)


# -- running


@pytest.mark.parametrize("workers", [1, 3])
def test_they_run(workers: int) -> None:
    source, there = random.Random(first_seed()), Counter[tuple[int, int]]()
    with program(more=True).run(workers=workers) as run:
        for _ in range(5):
            there += change(run, source, there)
            for name, rows in answers(there).items():
                assert sorted(run.read(name).rows()) == rows, name


@pytest.mark.parametrize("workers", [1, 3])
def test_their_figures_are_added_up_unless_they_are_common(workers: int) -> None:
    flow = program()
    counts = flow.outputs["tally"]
    flow.output("weighed", counts._add(Weighing("tally"), [counts], TALLY))
    with flow.run(workers=workers) as run:
        run.insert("sales", [(1, 5), (2, 6), (3, 0)])
        run.commit()
        assert sorted(run.read("weighed").rows()) == [(1, 1), (2, 1), (3, 1)]
        figures = run.status()["states"]["tally"]
        assert (figures["limit"], figures["weight"]) == (7, 2 * workers)


def change(run: Any, source: random.Random, there: Counter[Any]) -> Counter[Any]:
    """Some rows come and some go; those that came in all."""
    new = [(source.randrange(6), source.randrange(3)) for _ in range(9)]
    gone = source.sample(sorted(there.elements()), k=there.total() // 3)
    run.insert("sales", new)
    if gone:
        run.delete("sales", gone)
    run.commit()
    there.subtract(gone)
    return Counter(new)


@pytest.mark.parametrize("workers", [1, 3])
def test_they_go_around_in_loops(workers: int) -> None:
    flow = rr.Dataflow("around")
    sales = flow.input("sales", {"k": pl.Int64, "v": pl.Int64})

    def step(rows: rr.Collection) -> rr.Collection:
        further = rows._add(Shift(1), [rows], ROWS).filter(pl.col("v") < 7)
        moved = further._add(Homeward(), [further], ROWS)
        return moved.concat(rows).distinct()

    flow.output("up", sales.iterate(step))
    with flow.run(workers=workers) as run:
        run.insert("sales", [(1, 5), (2, 6), (3, 0)])
        run.commit()
        run.delete("sales", [(3, 0)])
        run.commit()
        assert sorted(run.read("up").rows()) == [(1, 5), (1, 6), (2, 6)]


def test_the_laws_of_operators_hold() -> None:
    def counted(*, sales: list[dict[str, int]]) -> list[dict[str, int]]:
        counts = Counter(row["k"] for row in sales)
        return [{"k": k, "n": n} for k, n in counts.items()]

    example = [{"k": 1, "v": 1}, {"k": 2, "v": 1}]
    checked = check_operator(tally, {"sales": example}, oracle=counted, rounds=2)
    assert checked.exempt == ()


# -- going on from the checkpoint of another program


def compared(old: rr.Dataflow, new: rr.Dataflow) -> Comparison:
    states = frozenset(name for node in old.plan.nodes for name in states_of(node))
    return compare(new.plan, StoredProgram(3, old.plan.fingerprint, states, lineage_of(old.plan)))


def test_what_can_be_built_anew_is_told() -> None:
    found, plan = compared(program(), program(more=True)), program(more=True).plan
    assert "tally" in found.keep
    assert found.routes.announces == ((node_of(plan, "newest"), 0),)
    assert not found.routes.stuck
    found = compared(program(), program(shift=5))
    assert found.rebuild["tally"] == "because of 'shift-1'"
    assert not found.routes.stuck
    found = compared(program(content=False), program(content=False, more=True))
    assert dict(found.routes.stuck) == {"tally": "what it has given is not kept"}


CHANGES = {
    "behind its content": ({}, {"more": True}),
    "from rows that are kept": ({"tallied": False}, {"more": True}),
    "another of its kind": ({}, {"shift": 3, "more": True}),
}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_program_goes_on(name: str, workers: int, tmp_path: Path) -> None:
    source, there = random.Random(first_seed()), Counter[tuple[int, int]]()
    before, after = CHANGES[name]
    with program(**before).run(checkpoint=tmp_path, every=None, workers=workers) as run:
        for _ in range(3):
            there += change(run, source, there)
        run.checkpoint()
    with pytest.raises(CheckpointError) as caught:
        program(**after).run(checkpoint=tmp_path, workers=workers)
    assert caught.value.code == "checkpoint.incompatible"
    with program(**after).run(checkpoint=tmp_path, rebuild=True, workers=4 - workers) as run:
        for _ in range(3):
            for output, rows in answers(there).items():
                assert sorted(run.read(output).rows()) == rows, output
            there += change(run, source, there)
