"""Loops that are saved between two rounds: from any of these they go on, on any number of workers, to the same bits."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.engine.instance import Instance
from riverrun.errors import CheckpointError
from riverrun.plan.plan import Plan
from riverrun.plan.saved_rounds import SavedRows
from riverrun.state.shards import Shards
from tests.frontends.collections.checking import build
from tests.frontends.collections.loops import test_rounds as rounds

EDGES, TWO = rounds.EDGES, rounds.TWO
Saves = Mapping[tuple[str, int], Mapping[int, SavedRows]]
"""By loop and round, the rows of each worker."""


class Together:
    """The instances of a plan, and their messages; whenever they may be saved, they are."""

    def __init__(self, plan: Plan, shards: Shards) -> None:
        self.plan = plan
        self.shards = shards
        self.instances = [Instance(plan, index, shards) for index in range(shards.workers)]
        self.saves: dict[tuple[str, int], dict[int, SavedRows]] = defaultdict(dict)
        self.asked = 0

    def run(
        self, epoch: int, inputs: dict[str, pa.RecordBatch], saved: Saves | None = None
    ) -> list[int]:
        """Do an epoch, from saved rows if there are some; the rounds that were done."""
        instances = self.instances
        for index, instance in enumerate(instances):
            if saved:
                instance.saves.bring(
                    [self.brought(loop, index, rows) for (loop, _), rows in saved.items()]
                )
            instance.feed(epoch, inputs if index == 0 else {})
        while any(instance.completed <= epoch for instance in instances):
            for index, instance in enumerate(instances):
                self.asked += 1
                instance.saves.asked = self.asked
                instance.work()
                for peer, message in instance.take():
                    instances[peer].receive(index, message)
                for rows in instance.saves.take(self.asked):
                    self.saves[rows.loop, rows.round][index] = rows
        figures = [
            each for instance in instances for loop in instance.rounds() for each in loop.rounds
        ]
        return sorted({each.at[0] for each in figures})

    def brought(self, loop: str, index: int, rows: Mapping[int, SavedRows]) -> SavedRows:
        if len(rows) == len(self.instances):
            return rows[index]
        parts: dict[str, list[Any]] = defaultdict(list)
        for each in rows.values():
            for part, batches in each.parts.items():
                parts[part] += batches
        one = rows[0]
        return SavedRows(loop, one.epoch, one.round, 0, False, parts)

    def result(self, epoch: int) -> list[tuple[Any, ...]]:
        rows = []
        for instance in self.instances:
            (name,) = instance.taps
            portion = instance.taps[name].view().to_batch((epoch,))
            rows += zip(*portion.to_pydict().values(), strict=True)
        return sorted(rows, key=repr)


def epochs_of(schemas: Any, source: random.Random, nodes: int = 8) -> list[dict[str, Any]]:
    """Two epochs: some rows; then more of them, and some gone."""
    make = rounds.small(nodes)
    first = {name: [make[name](source) for _ in range(2 * nodes)] for name in schemas}
    second = {
        name: [(*make[name](source), 1) for _ in range(3)] + [(*row, -1) for row in first[name][:2]]
        for name in schemas
    }
    given = {name: [(*row, 1) for row in rows] for name, rows in first.items()}
    return [
        {
            name: pa.record_batch(
                [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)],
                names=[*schemas[name], "diff"],
            )
            for name, rows in epoch.items()
        }
        for epoch in (given, second)
    ]


def bulk(name: str, **how: Any) -> Any:
    return lambda **rows: rounds.LABELS[name](**rows, **{"mode": "rounds", **how})


def far(edges, **how):
    """A delta iteration by supersteps that arrays do not know."""
    start = edges.filter(pl.col("dst") == 0).select(node="src", far=pl.lit(0, pl.Int64)).distinct()

    def send(rows):
        moved = rows.join(edges, left_on="node", right_on="src")
        return moved.select(node="dst", far=pl.col("far") + pl.col("w") % 3)

    return start.iterate_delta(
        send(start), key="node", send=send, better=rr.loops.least("far"), missing="add",
        mode="superstep", maintain="restart",
    )  # fmt: skip


def doubled(edges, **how):
    """A step with a body, in which rows of the solution are looked up, and all of them counted in each round."""
    start = edges.select(node="src", far=pl.lit(50, pl.Int64)).distinct()
    first = edges.filter(pl.col("w") == 0).select(node="src", far=pl.lit(20, pl.Int64)).distinct()

    def step(solution, heard):
        least = (
            heard.group_by("node").agg(far=rr.min("far")).join(solution, on="node", suffix="_now")
        )
        all_rows = solution.count("n")
        better = least.filter(pl.col("far") < pl.col("far_now")).join(all_rows, how="cross")
        delta = better.select("node", far=pl.col("far") + pl.col("n") * 0)
        sent = delta.join(edges, left_on="node", right_on="src").filter(pl.col("far") > 0)
        return delta, sent.select(node="dst", far=pl.col("far") - 1)

    return start.iterate_delta(first, key="node", body=step, mode="superstep", patience=100)


def until_within(edges, **how):
    """A loop whose last round depends on how near two rounds are."""
    degrees = edges.group_by("src").agg(n=rr.count())
    shares = edges.join(degrees, on="src")
    base = rounds.both_ways(edges).select(node="src").distinct().with_columns(part=pl.lit(0.15))

    def flow(ranks):
        parts = ranks.join(shares, left_on="node", right_on="src")
        parts = parts.select(node="dst", part=0.85 * (pl.col("rank") / pl.col("n")))
        return parts.concat(base).group_by("node").agg(rank=rr.sum("part"))

    start = base.select("node", rank="part")
    return start.iterate(
        flow, until=rr.loops.tolerance("rank", 1e-3), key="node", rounds=99, mode="rounds"
    )


def squares(edges, **how):
    """Sums of floats, for a number of rounds."""
    start = edges.select(node="src", x=pl.col("w") + 0.1).group_by("node").agg(x=rr.sum("x"))

    def step(now):
        moved = now.join(edges, left_on="node", right_on="src")
        parts = moved.select(node="dst", x=pl.col("x") * 0.37 + pl.col("x") ** 2 / 1e3)
        return parts.concat(start).group_by("node").agg(x=rr.sum("x"))

    return start.iterate(step, rounds=9, mode="rounds")


def two_of_a_start(edges, **how):
    """Two variables that begin with the same rows, and a program's own test for the end."""
    start = edges.select(node="src").distinct()

    def step(now):
        onward = now["a"].join(edges, left_on="node", right_on="src").select(node="dst")
        onward = now["a"].select(node=pl.col("node") + 1).concat(onward)
        return {"a": onward.distinct(), "b": now["b"].concat(onward).distinct()}

    def grown(before, after):
        return after["b"].anti_join(before["b"], on="node")

    found = rr.loops.iterate({"a": start, "b": start}, step, until=grown, rounds=9)
    return found["b"].with_columns(b=1).concat(found["a"].with_columns(b=0))


PROGRAMS: dict[str, tuple[Any, Any]] = {
    **{
        each.__name__: (bulk(each.__name__), schemas)
        for each, schemas in rounds.PROGRAMS.items()
        if each is not rounds.ranks  # which rests at once
    },
    "squares": (squares, EDGES),
    "far": (far, EDGES),
    "doubled": (doubled, EDGES),
    "until within": (until_within, EDGES),
    "two of a start": (two_of_a_start, EDGES),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("workers", [1, 3])
def test_goes_on_from_every_round_on_any_number_of_workers(name: str, workers: int) -> None:
    program, schemas = PROGRAMS[name]
    plan = build(program, schemas).plan
    first, second = epochs_of(schemas, random.Random(f"{name} {workers}"))
    whole = Together(plan, Shards.even(workers))
    whole.run(0, first)
    whole.saves.clear()
    rounds_done = whole.run(1, second)
    expected = whole.result(1)
    assert whole.saves, "no round was saved"
    saves = sorted(whole.saves.items())
    for (loop, at), rows in [saves[0], saves[len(saves) // 2], saves[-1]]:
        assert len(rows) == workers
        for count in {2, workers}:
            shards = Shards.even(count)
            again = Together(plan, shards)
            again.run(0, first)
            done = again.run(1, second, {(loop, at): rows})
            assert again.result(1) == expected, (name, at, count)
            first_round = min(each.first for each in rows.values())
            assert done == [each for each in rounds_done if each >= first_round], (name, at, count)


def test_shards_that_moved_take_their_own_rows() -> None:
    """As many workers as before, that own other hashes."""
    program, schemas = PROGRAMS["squares"]
    plan = build(program, schemas).plan
    first, second = epochs_of(schemas, random.Random(5))
    whole = Together(plan, Shards.even(2))
    whole.run(0, first)
    whole.saves.clear()
    whole.run(1, second)
    (loop, _), rows = max(whole.saves.items(), key=lambda item: item[0][1])
    swapped = Shards(Shards.even(2).bounds, (1, 0), 2)
    again = Together(plan, swapped)
    again.run(0, first)
    all_rows = {"0": [*rows[0].parts["0"], *rows[1].parts["0"]]}
    both = SavedRows(loop, 1, rows[0].round, 0, False, all_rows)
    again.run(1, second, {(loop, both.round): {0: both, 1: both}})
    assert again.result(1) == whole.result(1)


def test_rows_of_another_loop_are_refused_and_nothing_is_fed() -> None:
    plan = build(*PROGRAMS["squares"]).plan
    instance = Instance(plan)
    (loop,) = instance.saves.loops
    types = instance.saves.loops[loop].saved_types
    assert [str(kind) for kind in types["0"]] == ["int64", "double"]

    def bring(name: str = loop, at: int = 3, **parts: Any) -> None:
        instance.saves.bring([SavedRows(name, 0, at, 0, True, parts)])

    row = pa.record_batch([pa.array([each]) for each in (1, 0.5, 1)], names=list("012"))
    bring(**{"0": [row]})
    for mistake in (
        lambda: bring("other/", **{"0": [row]}),
        lambda: bring(at=0, **{"0": [row]}),
        lambda: bring(**{"1": [row]}),
        lambda: bring(**{"0": [row.select([0, 2])]}),
        lambda: bring(**{"0": [row.set_column(2, "2", pa.array([None], pa.int64()))]}),
    ):
        with pytest.raises(CheckpointError) as refused:
            mistake()
        assert refused.value.code == "checkpoint.other_loop"
