"""A `Pulling` gives, bit for bit and after every epoch, what the differential loop with the same body gives."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.frontends.collections.expressions import compile_columns
from riverrun.operators.iterations.pull_loop import Combine, Formula, PullLoop
from riverrun.operators.iterations.pulling import Pulling
from tests.soaking import first_seed

F8, I8 = pa.float64(), pa.int64()
ROUNDS = 6
Row = tuple[Any, ...]


def exactly(rows: list[Row]) -> list[Row]:
    """Rows in an order, with floats as their bits."""
    return sorted(
        (
            tuple(struct.pack(">d", cell) if isinstance(cell, float) else cell for cell in row)
            for row in rows
        ),
        key=repr,
    )


def arrays(rows: list[Row], kinds: list[pa.DataType]) -> list[pa.Array]:
    return [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]


SENT = {
    "flow": (0.85 * (pl.col("rank") / pl.col("degree")), Formula("factor over", 0, 0, 0.85)),
    "spread": ((0.3 * pl.col("rank")) / pl.col("degree"), Formula("factor times over", 0, 0, 0.3)),
    "product": (pl.col("rank") * pl.col("degree"), Formula("times", 0, 0)),
    "evaluated": ((pl.col("rank") - 0.1).abs() / (pl.col("degree") + 2), None),
}
HARD = [0.0, -0.0, 1e16, -1e16, 1.0, 0.1, 5e-324, -5e-324, 1e300, 1.7976931348623157e308]


def ranked(name: str, how: str, own: bool) -> tuple[PullLoop, Callable[[Any, Any, Any], Any]]:
    part, formula = SENT[name]
    aggregate = {"sum": rr.sum, "min": rr.min, "max": rr.max}[how]

    def body(ranks: Any, shares: Any, base: Any) -> Any:
        sent = ranks.join(shares, left_on="node", right_on="src").select(node="dst", part=part)
        sent = sent.concat(base)
        if own:
            sent = sent.concat(ranks.select("node", part=pl.col("rank") * 0.5))
        return sent.group_by("node").agg(rank=aggregate("part"))

    values, constants = pa.schema({"rank": F8}), pa.schema({"degree": F8})
    message = compile_columns(pa.schema([*values, *constants]), {"part": part}, "send")
    kept = compile_columns(values, {"part": pl.col("rank") * 0.5}, "keep")
    loop = PullLoop(
        keys=(I8,),
        values=(F8,),
        parts=(F8,),
        message=message.apply,
        combine=(Combine(how),),  # type: ignore[arg-type]
        constants=(F8,),
        own=kept.apply if own else None,
        formula=formula,
    )
    return loop, body


@pytest.mark.parametrize("name", SENT)
@pytest.mark.parametrize("how", ["sum", "min", "max"])
@pytest.mark.parametrize("own", [False, True])
def test_the_same_rows_as_iterate(name: str, how: str, own: bool) -> None:
    seed = first_seed()
    print(f"SEED {seed}")
    rng = random.Random(seed)
    loop, body = ranked(name, how, own)
    pulling = Pulling(loop)
    flow = rr.Dataflow("loop")
    shares = flow.input("shares", {"src": pl.Int64, "dst": pl.Int64, "degree": pl.Float64})
    base = flow.input("base", {"node": pl.Int64, "part": pl.Float64})
    start = flow.input("start", {"node": pl.Int64, "rank": pl.Float64})
    result = start.iterate(lambda ranks: body(ranks, shares, base), rounds=ROUNDS)
    flow.output("ranks", result)
    nodes = 12
    held: dict[str, Counter[Row]] = {"shares": Counter(), "base": Counter()}
    first: dict[int, float] = {}
    before: list[Row] = []

    def number() -> float:
        return rng.choice([rng.random(), rng.random(), rng.uniform(-3, 3), rng.choice(HARD)]) + 0.0

    with flow.run() as run:
        for epoch in range(5):
            changes: dict[str, Counter[Row]] = {"shares": Counter(), "base": Counter()}
            for _ in range(40 if epoch == 0 else 6):
                edge = (rng.randrange(nodes), rng.randrange(nodes), number())
                changes["shares"][edge] += rng.choice([1, 1, 2])
                changes["base"][rng.randrange(nodes), number()] += 1
            for kind, counter in changes.items():
                for row in rng.sample(sorted(held[kind]), min(4, len(held[kind]))):
                    counter[row] -= held[kind][row]
                held[kind].update(counter)
                held[kind] = Counter({row: n for row, n in held[kind].items() if n})
            begun: Counter[Row] = Counter()
            for node in rng.sample(range(nodes), 4):
                if node in first:
                    begun[node, first.pop(node)] -= 1
                if rng.random() < 0.8:
                    first[node] = number()
                    begun[node, first[node]] += 1
            for kind, counter in (*changes.items(), ("start", begun)):
                for row, times in counter.items():
                    (run.insert if times > 0 else run.delete)(kind, [row] * abs(times))
            run.commit()
            edges, extras, starts = list(changes["shares"]), list(changes["base"]), list(begun)
            columns = arrays(edges, [I8, I8, F8])
            times = np.array([changes["shares"][row] for row in edges], np.int64)
            pulling.change_edges(columns[:1], columns[1:2], columns[2:], times)
            columns = arrays(extras, [I8, F8])
            times = np.array([changes["base"][row] for row in extras], np.int64)
            pulling.change_extras(columns[:1], columns[1:], times)
            columns = arrays(starts, [I8, F8])
            times = np.array([begun[row] for row in starts], np.int64)
            pulling.change_start(columns[:1], columns[1:], times)
            pulling.run(rounds=ROUNDS)
            rows = list(zip(*[column.to_pylist() for column in pulling.rows()], strict=True))
            assert exactly(rows) == exactly(run.read("ranks").rows())
            net = pulling.net()
            gone = list(zip(*[column.to_pylist() for column in net.old], strict=True))
            come = list(zip(*[column.to_pylist() for column in net.new], strict=True))
            after = Counter(exactly(before))
            after.subtract(exactly(gone))
            after.update(exactly(come))
            assert exactly(rows) == sorted(after.elements(), key=repr)
            before = rows
            pulling.settle()
