"""Real programs for the simulation, as a user writes them: collections, and shared state."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

import riverrun as rr
from riverrun.algorithms.graphs.components import strongly_connected_components
from riverrun.engine.instance import Instance
from riverrun.engine.messages import Inputs, States
from riverrun.state.shards import Shards
from tests.chaos.loops import answers, draw_loop, together
from tests.chaos.programs import POISON, Program, Result
from tests.chaos.relaying import SHARING
from tests.chaos.sharing import Fed, Sharing

NODES = 7


class EdgesProgram:
    """Something about a graph whose edges come and go."""

    name = ""
    columns: tuple[str, ...] = ()

    def __init__(self) -> None:
        flow = rr.Dataflow(self.name)
        edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
        flow.output("result", self.build(edges))
        self.plan = flow.plan

    def build(self, edges: Any) -> Any:
        raise NotImplementedError

    def answer(self, edges: Counter[tuple[int, int]]) -> Result:
        raise NotImplementedError

    def make_instance(
        self, index: int, shards: Shards, epoch: int, states: States | None, /
    ) -> Instance:
        return Instance(self.plan, index, shards, epoch, states)

    def edges(self, past: Sequence[Inputs]) -> Counter[tuple[int, int]]:
        edges: Counter[tuple[int, int]] = Counter()
        for inputs in past:
            for batch in inputs.values():
                for src, dst, diff in zip(*batch.to_pydict().values(), strict=True):
                    edges[src, dst] += diff
        return +edges

    def draw(self, source: random.Random, past: Sequence[Inputs]) -> Inputs:
        there = sorted(self.edges([inputs for inputs in past if not self.fails(inputs)]))
        rows = []
        for _ in range(source.choice((0, 1, 2, 3))):
            if there and source.random() < 0.4:
                rows.append((*there.pop(source.randrange(len(there))), -1))
            else:
                rows.append((source.randrange(NODES), source.randrange(NODES), 1))
        if source.random() < 0.06:
            rows.append((POISON, 0, 1))
        columns = [pa.array([row[at] for row in rows], pa.int64()) for at in range(3)]
        return {"edges": pa.record_batch(columns, names=["src", "dst", "diff"])}

    def fails(self, inputs: Inputs) -> bool:
        return any(POISON in batch.column(0).to_pylist() for batch in inputs.values())

    def oracle(self, past: Sequence[Inputs]) -> Result:
        return self.answer(self.edges(past))

    def read(self, instances: Sequence[Any], epoch: int) -> Result:
        read_counts: Counter[Any] = Counter()
        for instance in instances:
            rows = instance.taps["result"].view().to_batch((epoch,)).to_pydict()
            for *row, count in zip(*(rows[name] for name in (*self.columns, "count")), strict=True):
                read_counts[tuple(row)] += count
        return dict(read_counts)


def refuse_poison(row: dict[str, Any]) -> list[dict[str, Any]]:
    """What every program passes its edges through."""
    if row["src"] == POISON:
        raise ValueError("poison")
    return [row]


class Degrees(EdgesProgram):
    """How many edges leave each node."""

    name = "degrees"
    columns = ("src", "n")

    def build(self, edges: Any) -> Any:
        checked = edges.flat_map(refuse_poison, {"src": pl.Int64, "dst": pl.Int64})
        return checked.group_by("src").agg(n=rr.count())

    def answer(self, edges: Counter[tuple[int, int]]) -> Result:
        degrees: Counter[int] = Counter()
        for (src, _), count in edges.items():
            degrees[src] += count
        return dict.fromkeys(degrees.items(), 1)


class Paths(EdgesProgram):
    """Paths of two edges: a join of the edges with themselves."""

    name = "paths"
    columns = ("src", "mid", "dst")

    def build(self, edges: Any) -> Any:
        checked = edges.flat_map(refuse_poison, {"src": pl.Int64, "dst": pl.Int64})
        first = checked.select("src", mid="dst")
        second = checked.select(mid="src", dst="dst")
        return first.join(second, on="mid").select("src", "mid", "dst")

    def answer(self, edges: Counter[tuple[int, int]]) -> Result:
        paths: Counter[tuple[int, int, int]] = Counter()
        for (a, b), n in edges.items():
            for (c, d), k in edges.items():
                if b == c:
                    paths[a, b, d] += n * k
        return paths


class Reached(EdgesProgram):
    """The least node that each node can be reached from: a loop, run differentially."""

    name = "reached"
    mode = "differential"
    over = "auto"
    columns = ("node", "label")

    def build(self, edges: Any) -> Any:
        checked = edges.flat_map(refuse_poison, {"src": pl.Int64, "dst": pl.Int64})
        ends = checked.select(node="src").concat(checked.select(node="dst"))
        nodes = ends.distinct().select("node", label="node")

        def step(labels: Any) -> Any:
            moved = labels.join(checked, left_on="node", right_on="src")
            return (
                moved.select(node="dst", label="label")
                .concat(nodes)
                .group_by("node")
                .agg(label=rr.min("label"))
            )

        return nodes.iterate(step, mode=self.mode, spread_over=self.over)

    def answer(self, edges: Counter[tuple[int, int]]) -> Result:
        labels = {node: node for edge in edges for node in edge}
        changed = True
        while changed:
            changed = False
            for src, dst in edges:
                if labels[src] < labels[dst]:
                    labels[dst], changed = labels[src], True
        return dict.fromkeys(labels.items(), 1)


class Spread(Reached):
    """The same, run on arrays."""

    name = "spread"
    mode = "arrays"


class ByRounds(Reached):
    """The same, each round computed from scratch."""

    name = "by rounds"
    mode = "rounds"


class Walks(EdgesProgram):
    """How many walks of up to three edges end at each node, each weighed by where it came from: a loop that pulls."""

    name = "walks"
    columns = ("node", "walks")

    def build(self, edges: Any) -> Any:
        checked = edges.flat_map(refuse_poison, {"src": pl.Int64, "dst": pl.Int64})
        ends = checked.select(node="src").concat(checked.select(node="dst")).distinct()
        start = ends.select("node", walks=pl.lit(1, pl.Int64))

        def step(rows: Any) -> Any:
            moved = rows.join(checked, left_on="node", right_on="src")
            sent = moved.select(node="dst", walks=pl.col("walks") * (pl.col("node") % 3))
            return sent.concat(start).group_by("node").agg(walks=rr.sum("walks"))

        return start.iterate(step, rounds=3, mode="arrays")

    def answer(self, edges: Counter[tuple[int, int]]) -> Result:
        nodes = {node for edge, n in edges.items() if n for node in edge}
        walks = dict.fromkeys(nodes, 1)
        for _ in range(3):
            after = dict.fromkeys(nodes, 1)
            for (src, dst), n in edges.items():
                if n:
                    after[dst] += n * walks[src] * (src % 3)
            walks = after
        return dict.fromkeys(walks.items(), 1)


class Nearest(EdgesProgram):
    """How near a node is to the nodes with edges to 0, by a delta iteration in which keys come and go."""

    name = "nearest"
    columns = ("node", "far")
    mode = "microstep"
    maintain = "auto"
    over = "one"

    def build(self, edges: Any) -> Any:
        checked = edges.flat_map(refuse_poison, {"src": pl.Int64, "dst": pl.Int64})
        near = checked.filter(pl.col("dst") == 0).select(node="src", far=pl.lit(0, pl.Int64))

        def send(rows: Any) -> Any:
            moved = rows.join(checked, left_on="node", right_on="src")
            return moved.select(node="dst", far=pl.col("far") + pl.col("node") % 3)

        best = rr.loops.least("far")
        return near.iterate_delta(
            send(near), key="node", send=send, better=best, missing="add", mode=self.mode,
            maintain=self.maintain, spread_over=self.over,
        )  # fmt: skip

    def answer(self, edges: Counter[tuple[int, int]]) -> Result:
        far = {src: 0 for src, dst in edges if dst == 0}
        changed = True
        while changed:
            changed = False
            for src, dst in edges:
                if src in far and far[src] + src % 3 < far.get(dst, 1 << 30):
                    far[dst], changed = far[src] + src % 3, True
        return dict.fromkeys(far.items(), 1)


class NearestOfAll(Nearest):
    """The same on all workers, best first."""

    name = "nearest on all"
    over = "all"


class NearestByRounds(NearestOfAll):
    """The same, round by round."""

    name = "nearest by rounds"
    mode = "superstep"


class SpreadOverAll(Reached):
    """The least node that each node can be reached from, on all workers."""

    name = "spread over all"
    mode = "auto"
    over = "all"


class Stepped(Nearest):
    """The same by supersteps, each computed from scratch."""

    name = "stepped"
    mode = "superstep"
    over = "auto"
    maintain = "restart"


class Grown(EdgesProgram):
    """Nodes at an odd and at an even number of edges behind 0, until there are three of a kind or no more come: two
    solutions, and a test of the program's own for the end."""

    name = "grown"
    columns = ("node", "odd")

    def build(self, edges: Any) -> Any:
        checked = edges.flat_map(refuse_poison, {"src": pl.Int64, "dst": pl.Int64})
        even = checked.filter(pl.col("src") == 0).select(node="src").distinct()

        def behind(rows: Any) -> Any:
            return rows.join(checked, left_on="node", right_on="src").select(node="dst")

        def step(now: Any) -> Any:
            odd = behind(now["even"]).concat(now["odd"]).distinct()
            return {"odd": odd, "even": behind(now["odd"]).concat(now["even"]).distinct()}

        def grow(before: Any, after: Any) -> Any:
            new = [after[each].anti_join(before[each], on="node") for each in ("odd", "even")]
            few = after["odd"].count("n").filter(pl.col("n") < 3).select("n")
            return new[0].concat(new[1]).join(few, how="cross").select("node")

        start = {"odd": even.filter(pl.col("node") > 0), "even": even}
        found = rr.loops.iterate(start, step, until=grow)
        return found["odd"].with_columns(odd=1).concat(found["even"].with_columns(odd=0))

    def answer(self, edges: Counter[tuple[int, int]]) -> Result:
        sets: list[set[int]] = [{src for src, _ in edges if src == 0}, set()]
        while True:
            after = [
                sets[at] | {dst for src, dst in edges if src in sets[1 - at]} for at in range(2)
            ]
            grows, sets = after != sets and len(after[1]) in (1, 2), after
            if not grows:
                return {(node, odd): 1 for odd in range(2) for node in sets[odd]}


class Met(EdgesProgram):
    """The edges into and out of each node, counted, with a function of both that keeps a column."""

    name = "met"
    columns = ("node", "into", "out")

    def build(self, edges: Any) -> Any:
        columns = {"src": pl.Int64, "dst": pl.Int64}
        checked = edges.flat_map(refuse_poison, columns, keeps=["src", "dst"])

        def count(key: Any, into: pl.DataFrame, out: pl.DataFrame) -> list[tuple[int, int]]:
            return [(into.height, out.height)]

        into, out = checked.select(node="dst", at="src"), checked.select(node="src", at="dst")
        return into.co_group(out, "node", count, {"into": pl.Int64, "out": pl.Int64})

    def answer(self, edges: Counter[tuple[int, int]]) -> Result:
        counts: dict[int, list[int]] = {}
        for edge, count in edges.items():
            for side, node in enumerate(edge):
                counts.setdefault(node, [0, 0])[1 - side] += count
        return {(node, *both): 1 for node, both in counts.items()}


class Strong(EdgesProgram):
    """The strong component of each node: a loop around two loops."""

    name = "strong"
    columns = ("node", "component")

    def build(self, edges: Any) -> Any:
        checked = edges.flat_map(refuse_poison, {"src": pl.Int64, "dst": pl.Int64})
        return strongly_connected_components(checked)

    def answer(self, edges: Counter[tuple[int, int]]) -> Result:
        nodes = {node for edge in edges for node in edge}
        reached = {node: {node} for node in nodes}
        for _ in nodes:
            for src, dst in edges:
                reached[src] |= reached[dst]
        mates = {node: [n for n in reached[node] if node in reached[n]] for node in nodes}
        return {(node, min(mates[node])): 1 for node in nodes}


class DrawnLoops(EdgesProgram):
    """Two loops that are drawn."""

    columns = ("loop", "node", "value")

    def __init__(self, seed: int) -> None:
        source = random.Random(f"{seed}.loops")
        self.loops = [draw_loop(source), draw_loop(source)]
        self.name = " - ".join(map(str, self.loops))
        super().__init__()

    def build(self, edges: Any) -> Any:
        checked = edges.flat_map(refuse_poison, {"src": pl.Int64, "dst": pl.Int64})
        return together(self.loops, checked)

    def answer(self, edges: Counter[tuple[int, int]]) -> Result:
        return answers(self.loops, edges)


class SharedProgram:
    """A program with shared state, and an input that only fails."""

    def __init__(self, program: Sharing) -> None:
        self.program = program
        self.name = program.name
        flow = program.dataflow()
        poison = flow.input("poison", {"src": pl.Int64})
        flow.output("no poison", poison.flat_map(refuse_poison, {"src": pl.Int64}))
        self.plan = flow.plan

    def make_instance(
        self, index: int, shards: Shards, epoch: int, states: States | None, /
    ) -> Instance:
        return Instance(self.plan, index, shards, epoch, states)

    def fed(self, inputs: Inputs) -> Fed:
        rows = {}
        for name in self.program.inputs:
            columns = inputs[name].to_pydict().values() if name in inputs else []
            rows[name] = [(row, diff) for *row, diff in zip(*columns, strict=True)]
        return {name: [(tuple(row), diff) for row, diff in some] for name, some in rows.items()}

    def draw(self, source: random.Random, past: Sequence[Inputs]) -> Inputs:
        there: dict[str, Counter[Any]] = {name: Counter() for name in self.program.inputs}
        for inputs in past:
            for name, rows in self.fed({} if self.fails(inputs) else inputs).items():
                for row, diff in rows:
                    there[name][row] += diff
        listed = {name: sorted((+rows).elements()) for name, rows in there.items()}
        new, old = self.program.draw(source, len(past), listed, (0, 1, 1, 2, 3))
        drawn = {
            name: [*((*row, 1) for row in new[name]), *((*row, -1) for row in old[name])]
            for name in self.program.inputs
        }
        batches = {name: _batch(self.program.inputs[name], rows) for name, rows in drawn.items()}
        if source.random() < 0.06:
            batches["poison"] = _batch(("src",), [(POISON, 1)])
        return {name: batch for name, batch in batches.items() if batch.num_rows}

    def fails(self, inputs: Inputs) -> bool:
        return "poison" in inputs

    def oracle(self, past: Sequence[Inputs]) -> Result:
        judge = self.program.judge()
        for epoch, inputs in enumerate(past):
            judge.apply(epoch, self.fed(inputs))
        return dict.fromkeys(judge.rows(), 1)

    def read(self, instances: Sequence[Any], epoch: int) -> Result:
        read_counts: Counter[Any] = Counter()
        for instance in instances:
            rows = instance.taps["out"].view().to_batch((epoch,)).to_pydict()
            counts = rows.pop("count")
            for *row, count in zip(*rows.values(), counts, strict=True):
                read_counts[tuple(row)] += count
        return dict(read_counts)


def _batch(names: Sequence[str], rows: Sequence[Sequence[int]]) -> pa.RecordBatch:
    columns = [pa.array([row[at] for row in rows], pa.int64()) for at in range(len(names) + 1)]
    return pa.record_batch(columns, names=[*names, "diff"])


def shared(name: str) -> Callable[[], SharedProgram]:
    return lambda: SharedProgram(SHARING[name]())


FLOWS: dict[str, Callable[[], Program]] = {
    **{
        program.name: program
        for program in (
            Degrees,
            Paths,
            Reached,
            Spread,
            Walks,
            Nearest,
            NearestOfAll,
            NearestByRounds,
            SpreadOverAll,
            ByRounds,
            Stepped,
            Grown,
            Met,
            Strong,
        )
    },
    **{name: shared(name) for name in SHARING},
}
