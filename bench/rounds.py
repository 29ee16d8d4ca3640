"""A round of a loop in which almost nothing happens, by rounds and differentially: how long it takes.

One row goes along a path of `BENCH_ROUNDS` edges, one edge a round: a round is a join, a group, and the decision
whether there is another. In one process, and with two workers in processes of their own. Times are those of an epoch,
divided by its rounds: wall, and of one process also CPU, since the machine may be shared.
"""

from __future__ import annotations

import time
from typing import Any

import polars as pl

import riverrun as rr
from bench.measure import at_most, granted, ratio, scale

TIMES = 5
ASKED = {1: 0.3, 2: 1.0}  # milliseconds, by workers
DIFFERENTIAL = 0.25  # of the rounds: a differential loop keeps the changes of all rounds


def milliseconds(mode: str, workers: int, rounds: int) -> dict[str, float]:
    """What a round takes, the least of several epochs."""
    flow = rr.Dataflow("rounds")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    roots = flow.input("roots", {"node": pl.Int64, "label": pl.Int64})

    def onward(rows: rr.Collection) -> rr.Collection:
        there = rows.join(edges, left_on="node", right_on="src").select(node="dst", label="label")
        return there.group_by("node").agg(label=rr.min("label"))

    flow.output("end", roots.iterate(onward, mode=mode))
    place = {"on": "processes"} if workers > 1 else {}
    with flow.run(workers=workers, **place) as run:
        run.insert("edges", [(at, at + 1) for at in range(rounds)])
        run.commit()
        wall, cpu = [], []
        for at in range(TIMES + 1):
            run.insert("roots", [(0, at)])
            begun = time.perf_counter(), time.process_time()
            run.commit()
            wall.append(time.perf_counter() - begun[0])
            cpu.append(time.process_time() - begun[1])
            run.delete("roots", [(0, at)])
            run.commit()
    figures = {"wall_ms": min(wall[1:]) / rounds * 1e3}
    if workers == 1:
        figures["cpu_ms"] = min(cpu[1:]) / rounds * 1e3
    return {name: round(figure, 4) for name, figure in figures.items()}


def main() -> dict[str, Any]:
    rounds = scale("rounds", 2_000)
    alone, both = milliseconds("rounds", 1, rounds), milliseconds("rounds", 2, rounds)
    before = milliseconds("differential", 1, max(int(rounds * DIFFERENTIAL), 1))
    return {
        "rounds": rounds,
        "one process": {**alone, **at_most(alone["cpu_ms"], ASKED[1])},
        "two processes": {**both, **at_most(both["wall_ms"], ASKED[2])},
        "differential, one process": before,
        "ratio to differential, CPU": ratio(before["cpu_ms"], alone["cpu_ms"]),
        "granted": granted(),
    }
