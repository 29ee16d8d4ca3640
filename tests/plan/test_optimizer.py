"""The optimizer: the same rows by fewer states, whichever rewrites there are, and were when a checkpoint was made."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.plan.diff import StoredProgram, compare, states_of
from riverrun.plan.explain import explain
from riverrun.plan.lineage import lineage_of
from riverrun.plan.optimizer import REWRITES, optimized
from riverrun.plan.plan import Plan, Port
from tests.frontends.collections.checking import (
    Comparison,
    Rows,
    any_row,
    build,
    check,
    feed,
    from_scratch,
)
from tests.frontends.collections.random_loops import draw_sum, rests
from tests.soaking import draws, first_seed

NUMBERS = {"src": pl.Int64, "dst": pl.Int64}
SCHEMAS: dict[str, dict[str, Any]] = {"edges": NUMBERS, "others": NUMBERS}
src, dst = pl.col("src"), pl.col("dst")


@contextmanager
def rewriting(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> Iterator[None]:
    """Only these rewrites are done."""
    some = {kind: REWRITES[kind] for kind in kinds}
    with monkeypatch.context() as patch:
        patch.setattr("riverrun.frontends.dataflow.optimized", partial(optimized, rewrites=some))
        yield


def is_on(plan: Plan) -> Mapping[str, int]:
    """How many nodes each rewrite has changed."""
    return {reason.kind: len(reason.nodes) for reason in plan.reasons}


# -- programs


def step(rows: Any, edges: Any) -> Any:
    return rows.join(edges, left_on="dst", right_on="src", suffix="_2").select("src", dst="dst_2")


def least(rows: Any, edges: Any) -> Any:
    near = rows.join(edges, left_on="src", right_on="src", suffix="_2").select(
        src="dst_2", dst="dst"
    )
    return near.concat(rows).group_by("src").agg(dst=rr.min("dst"))


def two_loops(edges: Any, others: Any) -> dict[str, Any]:
    """Two loops over the same edges, which a step outside joins with by the same key."""
    starts = others.distinct()
    return {
        "reach": starts.iterate(lambda rows: step(rows, edges).concat(rows).distinct()),
        "labels": starts.iterate(lambda rows: least(rows, edges), rounds=6),
        "near": step(others, edges),
    }


def nested(edges: Any, others: Any) -> Any:
    """A loop in a loop, both over edges from outside."""

    def outer(rows: Any) -> Any:
        inside = rows.iterate(lambda each: step(each, edges).concat(each).distinct(), rounds=3)
        return inside.semi_join(others, on="src").concat(rows).distinct()

    return edges.distinct().iterate(outer, rounds=3)


def keyed(edges: Any, others: Any) -> Any:
    """A loop that joins with the result of a group by the same key."""
    best = edges.group_by("src").agg(dst=rr.max("dst"))
    return others.distinct().iterate(lambda rows: step(rows, best).concat(rows).distinct())


def unread(edges: Any, others: Any) -> dict[str, Any]:
    """Groups of all kinds whose results only go on as changes."""
    groups = edges.group_by("src")
    sums = groups.agg(
        total=rr.sum("dst"), n=rr.count("dst"), mean=rr.mean("dst"), least=rr.min("dst")
    )
    return {
        "sums": sums.filter(pl.col("total") > 1).select(
            "n", "mean", "src", least=pl.col("least") + 1
        ),
        "counts": groups.count().select(n=pl.col("count") * 2),
        "distinct": edges.select("dst").distinct().select(d=dst + 1),
        "top": edges.group_by("dst").top(2, by="src").select("src", d="dst"),
        "last": groups.agg(last=rr.last("dst", by="dst")).join(others, on="src"),
        "whole": edges.group_by()
        .agg(n=rr.count(), total=rr.sum("dst"))
        .select(both=pl.col("n") + pl.col("total")),
    }


def reordered(edges: Any, others: Any) -> dict[str, Any]:
    """Outputs that only have the columns of a result in another order, and others that have more to do."""
    top = edges.group_by("dst").top(2, by="src")
    counts = others.group_by("src").count()
    return {
        "top": top,
        "counts": counts.select("count", "src"),
        "twice": counts.select("count", "src").select("src", "count").select("count", "src"),
        "distinct": others.distinct().select("dst", "src"),
        "renamed": counts.select(n="count", src="src"),
        "fewer": edges.group_by("src").agg(a=rr.min("dst"), b=rr.max("dst")).select("b", "src"),
        "swapped": others.distinct().select(src="dst", dst="src"),
    }


PROGRAMS: dict[str, Callable[..., Any]] = {
    "two loops": two_loops, "nested": nested, "keyed": keyed, "unread": unread, "reordered": reordered
}  # fmt: skip


# -- the same rows


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kinds", [(), *((kind,) for kind in REWRITES), (*REWRITES,)], ids=str)
def test_rows_are_those_from_scratch(
    name: str, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with rewriting(monkeypatch, *kinds):
        for seed in range(2):
            check(
                PROGRAMS[name], SCHEMAS, seed=seed, epochs=4, most=6, workers=seed + 1, scale=True
            )


EDGES = {"edges": NUMBERS}


def test_random_loops_give_the_same_rows_with_each_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    first = first_seed()
    for seed in range(first, first + draws(8, sample=60, soak=300)):
        source = random.Random(seed)
        drawn = Rows(lambda s: (s.randrange(3), s.randrange(3)))
        changes, there = [], []
        for _ in range(3):
            changes.append(drawn.epoch(source, 4))
            there.append(list(drawn.there.elements()))
        program = draw_sum(source, depth=1 + seed % 2)
        while "hoisted" not in is_on(build(program, EDGES).plan) or not rests(program, there):
            program = draw_sum(source, depth=1 + seed % 2)
        for kinds in ((), (*REWRITES,)):
            workers = source.choice((1, 2, 3))
            comparison = Comparison(f"{seed=}, {kinds}, {workers=}: {program}")
            with (
                rewriting(monkeypatch, *kinds),
                build(program, EDGES).run(workers=workers) as run,
            ):
                for some, rows in zip(changes, there, strict=True):
                    feed(run, "edges", some)
                    run.commit()
                    comparison.compare(run, from_scratch(program, EDGES, {"edges": rows}))


# -- fewer states


def states(program: Callable[..., Any]) -> list[str]:
    plan = build(program, SCHEMAS).plan
    return [name for node in plan.nodes for name in states_of(node)]


def test_loops_and_steps_outside_read_one_arrangement(monkeypatch: pytest.MonkeyPatch) -> None:
    with rewriting(monkeypatch):
        before = states(two_loops)
    after = states(two_loops)
    plan = build(two_loops, SCHEMAS).plan
    assert sum("loop" in name for name in before) - sum("loop" in name for name in after) == 2
    (kept,) = [
        node for node in plan.nodes
        if node.operator.copied_by == ("src",) and node.depth == 1 and node.operator.arranged_by
    ]  # fmt: skip
    readers = [n for n in plan.nodes if any(port.node == kept.number for port in n.inputs)]
    assert sorted(reader.operator.kind for reader in readers) == ["index", "index", "join"]
    assert len(after) < len(before)


def test_a_loop_reads_the_result_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    with rewriting(monkeypatch):
        before = states(keyed)
    assert (
        len(before) - len(states(keyed)) == 2
    )  # the arrangement inside; and distinct() keeps none


def test_outputs_read_what_is_kept_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    with rewriting(monkeypatch, "shown"):
        flow = build(reordered, SCHEMAS)
        kept = {
            name: flow.plan.arranged(node).operator.kind for name, node in flow.plan.outputs.items()
        }
    shown = ("top", "counts", "twice", "distinct")
    assert kept == {name: "reduce" if name in shown else "arrange" for name in kept}
    with flow.run() as run:
        run.insert("edges", [(1, 2), (3, 2)])
        run.commit()
        assert run.read("top").rows() == [(1, 2), (3, 2)]
        assert run.changes("top").rows() == [(1, 2, 1), (3, 2, 1)]


def test_what_is_read_named_or_a_users_function_is_kept() -> None:
    def program(edges: Any, others: Any) -> dict[str, Any]:
        counts = edges.group_by("src").count()
        named = edges.group_by("dst").named("mine").count()
        applied = edges.group_by("dst").apply(lambda rows: rows.height, {"n": pl.Int64})
        return {
            "read": counts,
            "too": counts.filter(pl.col("count") > 1),
            "named": named.filter(pl.col("count") > 1),
            "applied": applied.filter(pl.col("n") > 1),
        }

    assert "unread" not in is_on(build(program, SCHEMAS).plan)
    assert "mine" in states(program)


def test_equal_rows_travel_as_one_to_where_they_are_added_up() -> None:
    flow = rr.Dataflow("added")
    shops = flow.input("shops", {"shop": pl.Int64, "city": pl.String}, key="shop")
    sales = flow.input("sales", {"shop": pl.Int64, "price": pl.Int64})
    flow.output("dear", sales.group_by("shop").agg(most=rr.max("price")).join(shops, on="shop"))
    flow.output(
        "mapped", sales.map_batches(lambda rows: rows, {"shop": pl.Int64, "price": pl.Int64})
    )
    plan = flow.plan
    behind = {
        taker.operator.kind: node.operator.as_exchange.adds_before
        for node in plan.nodes
        if node.operator.as_exchange is not None
        for taker, _ in plan.consumers[Port(node.number)]
    }
    # The commands of a keyed input are each for itself: the last one counts.
    assert behind == {"upsert": False, "arrange": True}


WIDE = {"src": pl.Int64, "dst": pl.Int64, "a": pl.String, "b": pl.Float64}


def wide(edges: Any, others: Any) -> dict[str, Any]:
    """Joins behind which few columns are looked at, one of them in a loop."""
    pairs = others.join(edges, on="src", suffix="_2")
    starts = others.select("src", "dst").distinct()
    return {
        "picked": pairs.select("dst", "a"),
        "summed": pairs.group_by("dst_2").agg(n=rr.count(), total=rr.sum("src")),
        "keys": others.join(edges, left_on="dst", right_on="src", suffix="_2")
        .group_by("src")
        .count(),
        "reach": starts.iterate(lambda rows: step(rows, edges).concat(rows).distinct()),
        "whole": others.join(edges, left_on="src", right_on="dst", suffix="_2"),
    }


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_columns_that_nobody_reads_make_no_difference(workers: int) -> None:
    check(wide, {"edges": WIDE, "others": WIDE}, seed=workers, workers=workers, epochs=4, most=6)


def test_columns_that_nobody_reads_are_dropped_where_nothing_is_stored(tmp_path: Path) -> None:
    def columns(run: rr.Run) -> Mapping[str, list[str]]:
        return {
            f"{node.name}, of {node.inputs[0].node}": node.schemas[0].names
            for node in run.plan.nodes
            if node.operator.copied_by is not None and not node.named
        }

    flow = build(wide, {"edges": WIDE, "others": WIDE})
    with flow.run() as run:
        narrow = columns(run)
        assert "narrowed" in is_on(run.plan)
        assert "keeps src, dst: what else there is, nobody reads" in run.explain()
    with flow.run(checkpoint=tmp_path) as run:
        assert "narrowed" not in is_on(run.plan)
        assert sum(map(len, columns(run).values())) > sum(map(len, narrow.values()))
    # What an output shows has all columns, and so have the arrangements that it is made of.
    assert sorted(map(len, narrow.values()))[-2:] == [4, 4]


# -- the same states


def stored(plan: Plan) -> StoredProgram:
    kept = frozenset(name for node in plan.nodes for name in states_of(node))
    return StoredProgram(3, plan.fingerprint, kept, lineage_of(plan))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_finds_its_states_whatever_was_rewritten(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rewriting(monkeypatch):
        written = build(PROGRAMS[name], SCHEMAS).plan
    plan = build(PROGRAMS[name], SCHEMAS).plan
    assert plan.reasons
    assert not written.reasons
    assert plan.fingerprint == written.fingerprint
    found = compare(plan, stored(written))
    assert found.is_straight, str(found)
    assert not found.differences


@pytest.mark.parametrize("name", ["two loops", "nested", "keyed", "reordered"])
def test_a_run_goes_on_from_a_checkpoint_that_was_made_without_rewrites(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on other workers, twice, with deletions behind."""
    program, source = PROGRAMS[name], random.Random(7)
    rows = {each: Rows(any_row(schema)) for each, schema in SCHEMAS.items()}
    for life, kinds in enumerate([(), (*REWRITES,), (*REWRITES,)]):
        with (
            rewriting(monkeypatch, *kinds),
            build(program, SCHEMAS).run(workers=life + 1, checkpoint=tmp_path, every=1) as run,
        ):
            comparison = Comparison(f"{name}, life {life}")
            for epoch in range(3):
                for each, drawn in rows.items():
                    feed(run, each, drawn.epoch(source, 6))
                run.commit()
                there = {each: list(rows[each].there.elements()) for each in rows}
                comparison.compare(
                    run, from_scratch(program, SCHEMAS, there), again=epoch + life > 0
                )


def longer(least: int) -> Callable[..., Any]:
    """A loop whose step was changed, and a count that was added, over edges that are kept outside of the loop alone."""

    def program(edges: Any, others: Any) -> dict[str, Any]:
        reach = others.distinct().iterate(
            lambda rows: step(rows, edges).filter(dst >= least).concat(rows).distinct()
        )
        outputs = {"reach": reach, "starts": others}
        if least:
            outputs["sizes"] = others.group_by("dst").count().select(n=pl.col("count") + 1)
        return outputs

    return program


@pytest.mark.parametrize("workers", [1, 2])
def test_a_changed_loop_is_built_anew_from_what_stands_outside(
    workers: int, tmp_path: Path
) -> None:
    source = random.Random(workers)
    rows = {each: Rows(any_row(schema)) for each, schema in SCHEMAS.items()}
    for life, least in enumerate((0, 2)):
        program, many = longer(least), workers + life
        options: dict[str, Any] = {"checkpoint": tmp_path, "every": 1, "rebuild": life > 0}
        with build(program, SCHEMAS).run(workers=many, **options) as run:
            for _ in range(3):
                for each, drawn in rows.items():
                    feed(run, each, drawn.epoch(source, 6))
                run.commit()
                there = {each: list(rows[each].there.elements()) for each in rows}
                expected = from_scratch(program, SCHEMAS, there)
                Comparison(f"life {life}").compare(run, expected, again=True)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_result_that_was_not_kept_is_added_at_once(workers: int, tmp_path: Path) -> None:
    """As one that was kept would be: without ``rebuild``."""

    def program(edges: Any, others: Any, more: bool = False) -> dict[str, Any]:
        counts, kinds = edges.group_by("src").count(), others.distinct()
        outputs = {
            "many": counts.filter(pl.col("count") > 1),
            "kinds": kinds.select(src=dst, dst=src),
        }
        return {**outputs, **({"counts": counts, "distinct": kinds} if more else {})}

    source = random.Random(workers)
    rows = {each: Rows(any_row(schema)) for each, schema in SCHEMAS.items()}
    for life in range(3):
        each_program = partial(program, more=life > 0)
        options: dict[str, Any] = {"workers": (workers + life) % 3 + 1, "checkpoint": tmp_path}
        with build(each_program, SCHEMAS).run(**options) as run:
            if life:
                there = {each: list(rows[each].there.elements()) for each in rows}
                expected = from_scratch(each_program, SCHEMAS, there)
                Comparison(f"life {life}").compare(run, expected, again=True)
            for each, drawn in rows.items():
                feed(run, each, drawn.epoch(source, 8))
            run.commit()
            there = {each: list(rows[each].there.elements()) for each in rows}
            expected = from_scratch(each_program, SCHEMAS, there)
            Comparison(f"life {life}, on").compare(run, expected, again=True)
            run.checkpoint()


# -- told


def test_explain_of_a_run_counts_the_rows_of_states() -> None:
    with build(two_loops, SCHEMAS).run() as run:
        run.insert("edges", [(n, n + 1) for n in range(7)])
        run.commit()
        assert "rows" not in run.explain().split("hoisted")[1].split("(instead")[1].split(")")[0]
        text = run.explain(rows=True)
    (line,) = [line for line in text.splitlines() if line.startswith("  hoisted")]
    assert line.endswith("(instead: arranged once more in each loop; 7 rows there)")
    (kept,) = [line for line in text.splitlines() if "arrange by src; 7 rows; shared by" in line]
    assert kept


def test_explain_says_what_was_done_and_what_was_not_chosen() -> None:
    text = explain(build(two_loops, SCHEMAS).plan)
    (hoisted,) = [line for line in text.splitlines() if line.startswith("  hoisted")]
    assert (
        "by src, outside of the loops that read it (instead: arranged once more in each loop)"
        in hoisted
    )
    (left,) = [line for line in text.splitlines() if line.startswith("  unread")]
    assert "instead: " in left


@pytest.mark.parametrize("draw", [rr.Dataflow.to_svg, rr.Dataflow.to_dot])
@pytest.mark.parametrize("name", PROGRAMS)
def test_pictures_are_drawn_of_what_was_rewritten(
    name: str, draw: Callable[[rr.Dataflow], str]
) -> None:
    flow = build(PROGRAMS[name], SCHEMAS)
    text = draw(flow)
    assert all(node.operator.kind in text for node in flow.plan.nodes if node.operator.has_actor)
