"""Delta iterations on arrays: supersteps and microsteps, on one worker and on all; and the conditions of microsteps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from tests.soaking import seeds

INT, TEXT = pl.Int64, pl.String
EDGES = {"src": INT, "dst": INT, "w": INT}
ROWS = {"node": INT, "far": INT}
FORMS = [
    ("microstep", "all"), ("superstep", "all"), ("microstep", "one"), ("superstep", "one"), ("auto", "auto")
]  # fmt: skip
Modes = dict[str, str]


def paths(edges: Any, rows: Any, modes: Modes) -> Any:
    def send(near: Any) -> Any:
        there = near.join(edges, left_on="node", right_on="src")
        return there.select(node="dst", far=pl.col("far") + pl.col("w"))

    return rows.iterate_delta(
        send(rows), key="node", send=send, better=rr.loops.least("far"), missing="add", **modes
    )


def components(edges: Any, rows: Any, modes: Modes) -> Any:
    both = edges.concat(edges.select(src="dst", dst="src", w="w"))

    def send(labels: Any) -> Any:
        return labels.join(both, left_on="node", right_on="src").select(node="dst", far="far")

    best = rr.loops.least("far")
    return rows.iterate_delta(send(rows), key="node", send=send, better=best, **modes)


def widest(edges: Any, rows: Any, modes: Modes) -> Any:
    def send(near: Any) -> Any:
        there = near.join(edges, left_on="node", right_on="src")
        return there.select(node="dst", far=pl.min_horizontal("far", "w"))

    best = rr.loops.greatest("far")
    return rows.iterate_delta(send(rows), key="node", send=send, better=best, **modes)


def named(edges: Any, rows: Any, modes: Modes) -> Any:
    """Keys of two columns, one of them text."""
    ends = [(pl.lit("n") + pl.col(end).cast(TEXT), pl.col(end) % 2) for end in ("src", "dst")]
    (a, b), (c, d) = ends
    links = edges.select(a=a, b=b, c=c, d=d, w="w")
    start = rows.select(a=pl.lit("n") + pl.col("node").cast(TEXT), b=pl.col("node") % 2, far="far")

    def send(near: Any) -> Any:
        there = near.join(links, on=["a", "b"])
        return there.select(a="c", b="d", far=pl.col("far") + pl.col("w"))

    best = rr.loops.least("far")
    return start.iterate_delta(
        send(start), key=["a", "b"], send=send, better=best, missing="add", **modes
    )


def bodies(edges: Any, rows: Any, modes: Modes) -> Any:
    """A loop of `iterate`, which spreads too."""
    over = {name: modes[name] for name in ("spread_over",) if name in modes}
    over["mode"] = "differential" if modes["mode"] == "differential" else "auto"

    def body(near: Any) -> Any:
        there = near.join(edges, left_on="node", right_on="src")
        sent = there.select(node="dst", far=pl.col("far") + pl.col("w"))
        return rows.concat(sent).group_by("node").agg(far=rr.min("far"))

    return rows.iterate(body, **over)


def without_nulls(columns: Any) -> pa.Schema:
    return pa.schema([pa.field(name, pa.int64(), nullable=False) for name in columns])


LOOPS: dict[str, Callable[..., Any]] = {
    "paths": paths, "components": components, "widest": widest, "named": named, "bodies": bodies
}  # fmt: skip


def from_scratch(name: str, edges: list[Any], rows: list[Any]) -> list[Any]:
    """The answer by rounds over everything, in plain Python."""
    links = [(a, b, w) for a, b, w in edges]
    if name == "components":
        links += [(b, a, w) for a, b, w in edges]

    def key(node: Any) -> Any:
        return (f"n{node}", node % 2) if name == "named" else (node,)

    def is_better(new: Any, old: Any) -> bool:
        if new is None or old is None:
            return new is not None and old is None
        return bool(new > old if name == "widest" else new < old)

    values: dict[Any, Any] = {}
    for node, far in rows:
        if node not in values or is_better(far, values[node]):
            values[node] = far
    grows = name in ("paths", "named", "bodies")
    while True:
        changed = False
        for a, b, w in links:
            if a not in values or not (grows or b in values):
                continue
            if name == "components":
                far = values[a]
            elif name == "widest":
                far = min(values[a], w)
            else:
                far = None if values[a] is None or w is None else values[a] + w
            if b not in values or is_better(far, values[b]):
                values[b], changed = far, True
        if not changed:
            return sorted([(*key(node), far) for node, far in values.items()], key=repr)


def check(seed: int) -> None:
    draw = random.Random(seed)
    name = draw.choice(list(LOOPS))
    schemas = [EDGES, ROWS] if name != "widest" else [without_nulls(EDGES), without_nulls(ROWS)]
    nodes, weights = draw.choice([4, 9, 30]), draw.choice([(0,), (0, 0, 1, 2, 5), (1, None, 3)])
    forms: list[tuple[Modes, int]] = [({"mode": "differential"}, 1)]
    for mode, over in draw.sample(FORMS, 3):
        forms.append(({"mode": mode, "spread_over": over}, draw.randint(1, 4)))
    forms.append(({"mode": draw.choice(["microstep", "superstep"]), "spread_over": "all"}, 3))
    runs = []
    for modes, workers in forms:
        flow = rr.Dataflow("loop")
        edges, rows = flow.input("edges", schemas[0]), flow.input("rows", schemas[1])
        flow.output("result", LOOPS[name](edges, rows, modes))
        runs.append(flow.run(workers=workers, seed=draw.randrange(1000)))
    there: dict[str, list[Any]] = {"edges": [], "rows": []}

    def change(what: str, row: Any) -> None:
        deletes = bool(there[what]) and draw.random() < 0.45
        if deletes:
            row = there[what].pop(draw.randrange(len(there[what])))
        else:
            if name == "widest":
                row = tuple([0 if cell is None else cell for cell in row])
            count = draw.choice([1, 1, 2])  # the same row may be there twice
            there[what] += [row] * count
        for run in runs:
            if deletes:
                run.delete(what, [row])
            else:
                run.insert(what, [row] * count)

    for epoch in range(8):
        for _ in range(draw.choice([0, 1, 3, 3 * nodes])):
            source, target = draw.randrange(nodes), draw.randrange(nodes)
            change("edges", (source, target, draw.choice(weights)))
        for _ in range(draw.choice([0, 0, 1, nodes])):
            change("rows", (draw.randrange(nodes), draw.choice([0, 3, 3, 100, None])))
        expected = from_scratch(name, there["edges"], there["rows"])
        for run, form in zip(runs, forms, strict=True):
            run.commit()
            found = sorted(run.read("result").rows(), key=repr)
            assert found == expected, (seed, epoch, name, form, found, expected)
    for run in runs:
        run.close()


@pytest.mark.drawn
def test_every_way_to_run_a_loop_gives_what_a_run_from_scratch_gives() -> None:
    for seed in seeds(15, soak=600):
        check(seed)


def flow_of(modes: Modes, program: Callable[..., Any] = paths, **options: Any) -> rr.Dataflow:
    flow = rr.Dataflow("loop")
    edges, rows = flow.input("edges", EDGES, **options), flow.input("rows", ROWS)
    flow.output("result", program(edges, rows, modes))
    return flow


def test_a_loop_on_all_workers_is_rescaled() -> None:
    with flow_of({"mode": "microstep", "spread_over": "all"}).run(workers=1) as run:
        run.insert("rows", [(0, 0)])
        run.insert("edges", [(at, at + 1, 1) for at in range(200)])
        run.commit()
        for workers, edge in ((3, 150), (2, 70), (4, 190)):
            run.scale(workers)
            run.delete("edges", [(edge, edge + 1, 1)])
            run.insert("edges", [(edge, edge + 1, 2)])
            run.commit()
        assert run.read("result").rows()[-1] == (200, 203)
        lost = [(100, 101, 1)]
        run.delete("edges", lost)
        run.commit()
        assert len(run.read("result").rows()) == 101


def test_an_epoch_that_is_refused_leaves_nothing_behind() -> None:
    with flow_of({"mode": "microstep", "spread_over": "all"}).run(workers=3) as run:
        run.insert("rows", [(0, 0)])
        run.insert("edges", [(at, at + 1, 1) for at in range(50)])
        run.commit()
        before = run.read("result").rows()
        run.insert("edges", [(50, 0, -60)])
        with pytest.raises(rr.RiverrunError) as caught:
            run.commit()
        assert caught.value.code == "operator.diverges", caught.value
        run.insert("edges", [(7, 9, 1)])
        run.commit()
        assert len(run.read("result").rows()) == len(before)
        assert run.read("result").rows()[9] == (9, 8)


def test_a_message_that_leaves_its_type_refuses_the_epoch_on_several_workers() -> None:
    with flow_of({"mode": "superstep", "spread_over": "all"}).run(workers=2) as run:
        run.insert("rows", [(0, (1 << 63) - 5)])
        run.insert("edges", [(at, at + 1, 1) for at in range(10)])
        with pytest.raises(rr.RiverrunError) as caught:
            run.commit()
        assert caught.value.code == "operator.overflow", caught.value


def test_explain_says_who_does_the_work_and_why() -> None:
    def shown(modes: Modes, **options: Any) -> str:
        return flow_of(modes, **options).explain()

    assert "on all workers, as asked for" in shown({"spread_over": "all"})
    assert "on one worker, as asked for" in shown({"spread_over": "one"})
    assert "on one worker, as no size is known" in shown({})
    assert "on one worker, for 1,000 rows: about" in shown({}, expect=1000)
    assert "on all workers, for 1,000,000,000 rows: about" in shown({}, expect=10**9)
    assert "(microsteps)" in shown({"spread_over": "all"})
    assert "(supersteps)" in shown({"mode": "superstep", "spread_over": "all"})


def test_supersteps_that_arrays_do_not_know_run_by_rounds() -> None:
    def shown(modes: Any, program: Callable[..., Any]) -> str:
        return flow_of({"mode": "superstep", **modes}, program).explain()

    assert "by rounds" not in shown({}, paths)
    assert "spread the least value" in shown({}, paths)
    assert "by rounds, mode='superstep'" in shown({"maintain": "restart"}, paths)
    assert "at most 3 rounds; by rounds" in shown({"rounds": 3}, paths)
    for program in (other_side, replacing, with_the_way):
        assert "by rounds, mode='superstep'" in shown({}, program)
        with pytest.raises(rr.PlanError) as caught:
            shown({"spread_over": "one"}, program)
        assert caught.value.code == "plan.no_arrays"


def test_what_inputs_and_loops_expect_are_two_things() -> None:
    """`expect` of an input is a number of rows, and decides on workers; `expect` of a loop is one of rounds."""
    both = flow_of({"expect": 900}, expect=10**9).explain()  # type: ignore[dict-item]
    assert "on all workers, for 1,000,000,000 rows: about" in both
    alone = flow_of({"expect": 900}, replacing, expect=10**9).explain()  # type: ignore[dict-item]
    assert "by rounds, since 900 rounds are expected" in alone


def test_the_same_loop_is_taken_over_by_any_number_of_workers(tmp_path: Any) -> None:
    modes = {"mode": "microstep", "spread_over": "all"}
    with flow_of(modes).run(workers=3, checkpoint=tmp_path, every=2) as run:
        run.insert("rows", [(0, 0), (7, 1)])
        run.insert("edges", [(at, at + 1, 1) for at in range(30)])
        run.commit()
        run.delete("edges", [(20, 21, 1)])
        run.commit()
        run.insert("edges", [(20, 21, 5)])
        run.commit()
        before = run.read("result").rows()
    with flow_of({**modes, "mode": "superstep"}).run(workers=2, checkpoint=tmp_path) as run:
        assert run.read("result").rows() == before
        run.delete("edges", [(3, 4, 1)])
        run.commit()
        assert len(run.read("result").rows()) == 28


# -- what is refused


def delta_of(step: Callable[..., Any], **options: Any) -> None:
    flow = rr.Dataflow("steps")
    edges, rows = flow.input("edges", EDGES), flow.input("rows", ROWS)
    first = rows.join(edges, left_on="node", right_on="src").select(node="dst", far="far")
    best = rr.loops.least("far")
    rows.iterate_delta(
        first, key="node", body=lambda s, w: step(s, w, edges), better=best, mode="microstep", **options
    )  # fmt: skip


def onward(delta: Any, edges: Any) -> Any:
    return delta.join(edges, left_on="node", right_on="src").select(node="dst", far="far")


def grouped(solution: Any, workset: Any, edges: Any) -> Any:
    delta = workset.group_by("node").agg(far=rr.sum("far"))
    return delta, onward(delta, edges)


def taken_back(solution: Any, workset: Any, edges: Any) -> Any:
    delta = workset.join(edges, left_on="node", right_on="dst", how="anti")
    return delta, onward(delta, edges)


def two_that_change(solution: Any, workset: Any, edges: Any) -> Any:
    pairs = workset.join(workset.select(node="node", other="far"), on="node")
    delta = pairs.select(node="node", far="other")
    return delta, onward(delta, edges)


def past_the_delta(solution: Any, workset: Any, edges: Any) -> Any:
    return workset, onward(workset, edges).concat(onward(solution, edges))


def another_key(solution: Any, workset: Any, edges: Any) -> Any:
    both = workset.join(solution.select(node="node", now="far"), on="node")
    delta = both.select(node=pl.col("node") + 1, far="far")
    return delta, onward(delta, edges)


def by_another_column(solution: Any, workset: Any, edges: Any) -> Any:
    both = workset.join(solution.select(other="node", far="far"), on="far")
    delta = both.select(node="other", far="far")
    return delta, onward(delta, edges)


@pytest.mark.parametrize(
    ("step", "condition", "words"),
    [
        (grouped, "M1", ("many rows at a time", "better=")),
        (taken_back, "M1", ("many rows at a time",)),
        (two_that_change, "M2", ("joins two collections", "join on node")),
        (past_the_delta, "M3", ("past the delta", "return delta, send(delta)")),
        (another_key, "M4", ("does not keep the key 'node'", "select")),
        (by_another_column, "M4", ("joins rows of the solution by far",)),
    ],
)
def test_a_step_that_has_no_meaning_in_microsteps_is_refused(
    step: Callable[..., Any], condition: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(rr.PlanError) as caught:
        delta_of(step)
    said = str(caught.value)
    assert caught.value.code == "plan.microstep", said
    assert caught.value.fields["condition"] == condition, said
    assert "test_microsteps.py:" in said
    for word in words:
        assert word in said, said


def test_words_for_modes() -> None:
    for modes, code, word in (
        ({"mode": "arrays"}, "plan.mode", "mode='microstep' runs on arrays"),
        ({"mode": "fast"}, "plan.mode", "mode='superstep', mode='microstep' and"),
        ({"spread_over": 2}, "plan.spread_over", "spread_over='all'"),
        ({"mode": "differential", "spread_over": "all"}, "plan.no_arrays", "all workers"),
        ({"maintain": "differential", "spread_over": "one"}, "plan.no_arrays", "leave out"),
        ({"maintain": "restart", "spread_over": "one"}, "plan.no_arrays", "in each epoch"),
        ({"mode": "superstep", "rounds": 3, "spread_over": "all"}, "plan.no_arrays", "a number"),
        ({"mode": "microstep", "maintain": "differential"}, "plan.maintain", "one of the two"),
        ({"mode": "microstep", "maintain": "restart"}, "plan.no_arrays", "from its start"),
        ({"expect": 0}, "plan.expect", "how many rounds"),
    ):
        with pytest.raises(rr.PlanError) as caught:
            flow_of(modes)
        assert caught.value.code == code
        assert word in str(caught.value)
    with pytest.raises(rr.PlanError) as caught:
        flow_of({}, expect=0)
    assert caught.value.code == "plan.expect"


# -- what depends on the order of work


def other_side(edges: Any, rows: Any, modes: Modes) -> Any:
    """A better row sends a worse message: M6 is broken."""

    def send(near: Any) -> Any:
        there = near.join(edges, left_on="node", right_on="src")
        return there.select(node="dst", far=pl.col("w") - pl.col("far"))

    best = rr.loops.least("far")
    return rows.iterate_delta(
        send(rows), key="node", send=send, better=best, missing="add", **modes
    )


def replacing(edges: Any, rows: Any, modes: Modes) -> Any:
    """Every row takes the place of another one: M5 is broken."""

    def send(near: Any) -> Any:
        there = near.join(edges, left_on="node", right_on="src").filter(pl.col("far") < 50)
        return there.select(node="dst", far=pl.col("far") + pl.col("w"))

    return rows.iterate_delta(send(rows), key="node", send=send, missing="add", **modes)


def with_the_way(edges: Any, rows: Any, modes: Modes) -> Any:
    """Values of two columns, by a function and over two joins: nothing tells whether M6 holds. It does."""
    start = rows.select("node", "far", way="node")
    known = edges.select("src", "dst").join(edges, on=["src", "dst"])
    names = edges.select("dst").distinct()

    def send(near: Any) -> Any:
        there = near.join(known, left_on="node", right_on="src").join(names, on="dst")
        further = there.select(node="dst", far=pl.col("far") + pl.col("w"), way="node")
        columns = {"node": INT, "far": INT, "way": INT}
        return further.flat_map(lambda row: [row] if row["far"] < 90 else [], columns)

    best = rr.loops.least("far", "way")
    return start.iterate_delta(
        send(start), key="node", send=send, better=best, missing="add", **modes
    )


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (other_side, "M6 is not certain"),
        (replacing, "M5 is broken"),
        (with_the_way, "M6 is not certain"),
    ],
)
def test_a_step_whose_result_may_depend_on_the_order_runs_where_that_is_asked_for(
    program: Callable[..., Any], words: str
) -> None:
    flow = flow_of({"mode": "microstep"}, program)
    shown = flow.explain()
    assert words in shown, shown
    assert "depends on arrival" in shown
    assert flow.plan.arrival_dependent
    judge = flow_of({"mode": "differential"}, program)
    assert not judge.plan.arrival_dependent
    draw = random.Random(4)
    with flow.run(workers=2) as run, judge.run() as other:
        # On a tree every key hears of one other key at most, so the order of work does not show.
        edges = [(draw.randrange(at), at, draw.choice([0, 1, 5])) for at in range(1, 40)]
        gone = draw.sample(edges, 5)
        for each in (run, other):
            each.insert("rows", [(0, 3)])
            each.insert("edges", edges)
            each.commit()
        assert run.read("result").rows() == other.read("result").rows()
        for each in (run, other):
            each.delete("edges", gone)
            each.insert("edges", [(a, b, w + 1) for a, b, w in gone[:2]])
            each.commit()
        assert run.read("result").rows() == other.read("result").rows()
        assert len(run.read("result").rows()) > 5


def test_microsteps_without_end_are_refused() -> None:
    with flow_of({"mode": "microstep", "patience": 40}, replacing).run() as run:  # type: ignore[dict-item]
        run.insert("rows", [(0, 0)])
        run.insert("edges", [(0, 1, 1), (1, 0, -1), (1, 1, 1)])
        with pytest.raises(rr.RiverrunError) as caught:
            run.commit()
        assert caught.value.code == "operator.diverges", caught.value
        assert "after 40 turns" in str(caught.value)
