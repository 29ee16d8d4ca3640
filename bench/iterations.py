"""Bulk, incremental and microstep iterations on real graphs, round by round: the figures 7 to 12 of the paper.

The paper is "Spinning Fast Iterative Data Flows" (Ewen and others, 2012). The graphs are votes, trust and roads (see
`bench.real_graphs`), and a random one. Its figures, as tables here:

- *7*: PageRank, all rounds, on arrays, by rounds with one worker and with two, and on Spark.
- *8*: each of these rounds on one of the graphs.
- *9*: components by the least label, to the end: in bulk (every node hears all its neighbours in every round) on arrays
  and by rounds; incrementally (only nodes that changed send) by rounds and on arrays; in microsteps, best first; and on
  Spark in bulk, and with an incremental iteration simulated: a column says which labels changed in the round before,
  and only these are joined with edges, but all rows go on.
- *10*: time and messages of each incremental round, where paths are long (roads).
- *11*: time of each round of all these ways.
- *12*: time against messages: milliseconds for 1,000 messages, by least squares, and how far the two go together (r).

A table by round has for each round [rows touched, messages, milliseconds], as `run.rounds` has them; of long loops the
first BENCH_SHOWN rounds. Microsteps have no rounds, and on arrays an incremental round sees what the same round did
before, so it has fewer of them. Spark stops after BENCH_PEER_ROUNDS rounds (the paper stopped after 20 of 744 as well);
totals of Spark with an `until` are of so many rounds.

BENCH_SVG names a folder for drawings: figures 7 to 12, and `Rounds.to_svg` of each of our loops. All our ways give the
same labels, which are those of a search; ranks are the same to the last bit; Spark's are checked by its programs.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numba
import numpy as np
import polars as pl
import pyarrow as pa

import riverrun as rr
from bench.apart import run_apart
from bench.measure import granted, ratio, scale, timed
from bench.pagerank import program as pagerank_program
from bench.programs.processor import processor_seconds
from bench.real_graphs import (
    ROADS,
    TRUST,
    VOTES,
    Ints,
    missing,
    number_of_nodes,
    random_graph,
    real_graphs,
)
from riverrun.plan.picture.chart import Line, Panel, chart

GRAPHS = (TRUST, VOTES, ROADS)
LOOP = "loop"
WAYS = ("bulk", "bulk_by_rounds", "incremental_by_rounds", "incremental", "microstep")
"""How components are found. On arrays where nothing else is said."""
RANKED = {  # how ranks are found -> mode, workers
    "arrays": ("arrays", 1),
    "rounds": ("rounds", 1),
    "rounds, two workers": ("rounds", 2),
}
MOST_ROUNDS = 1_000_000
Round: TypeAlias = list[Any]
"""Rows touched, messages and milliseconds of a round."""


def components_program(way: str) -> rr.Dataflow:
    """Components in one of the `WAYS`, of an input `edges`; the loop is called `LOOP`, the output `components`."""
    flow = rr.Dataflow("components")
    both = rr.graphs.undirected(flow.input("edges", {"src": pl.Int64, "dst": pl.Int64}))
    start = both.select(node="src").distinct().select("node", label="node")

    def send(labels: rr.Collection) -> rr.Collection:
        return labels.join(both, left_on="node", right_on="src").select(node="dst", label="label")

    def least(labels: rr.Collection) -> rr.Collection:
        heard = send(labels).concat(labels)
        return heard.group_by("node").agg(label=rr.min("label"))

    def step(labels: rr.Collection, heard: rr.Collection) -> tuple[rr.Collection, rr.Collection]:
        lowest = heard.group_by("node").agg(label=rr.min("label"))
        beside = lowest.join(labels, on="node", suffix="_now")
        less = beside.filter(pl.col("label") < pl.col("label_now")).select("node", "label")
        return less, send(less)

    def delta(mode: str, **how: Any) -> rr.Collection:
        return start.iterate_delta(send(start), key="node", mode=mode, name=LOOP, **how)

    best = rr.loops.least("label")
    made: dict[str, Callable[[], rr.Collection]] = {
        "bulk": lambda: start.iterate(least, mode="arrays", rounds=MOST_ROUNDS, name=LOOP),
        "bulk_by_rounds": lambda: start.iterate(least, mode="rounds", name=LOOP),
        "incremental_by_rounds": lambda: delta("superstep", body=step, better=best),
        "incremental": lambda: delta("superstep", send=send, better=best),
        "microstep": lambda: delta("microstep", send=send, better=best),
        "differential": lambda: start.iterate(least, mode="differential", name=LOOP),
    }
    flow.output("components", made[way]())
    return flow


@numba.njit(cache=False, nogil=True)  # type: ignore[untyped-decorator]
def least_of_components(nodes: int, src: Ints, dst: Ints) -> Ints:
    """The least node of the component of each node, by union and find."""
    above = np.arange(nodes)
    for edge in range(len(src)):
        one, other = src[edge], dst[edge]
        while above[one] != one:
            above[one] = above[above[one]]
            one = above[one]
        while above[other] != other:
            above[other] = above[above[other]]
            other = above[other]
        if one < other:
            above[other] = one
        else:
            above[one] = other
    for node in range(nodes):  # what is above a node is less than it, so it is known
        above[node] = above[above[node]]
    return above


def check_components(run: rr.Run, src: Ints, dst: Ints, column: str = "label") -> None:
    """The output `components` has the least node of the component of each node that has an edge."""
    rows = run.read("components").to_arrow()
    nodes = rows["node"].to_numpy()
    assert np.array_equal(np.sort(nodes), np.unique(np.concatenate([src, dst])))
    known = least_of_components(number_of_nodes(src, dst), src, dst)
    assert np.array_equal(rows[column].to_numpy(), known[nodes])


def first_rounds(src: Ints, dst: Ints) -> None:
    """Have kernels loaded, by a run of each kind over a few edges."""
    few = pa.table({"src": src[:50], "dst": dst[:50]})
    for way in WAYS:
        with components_program(way).run() as run:
            run.insert("edges", few)
            run.commit()
    for mode in ("arrays", "rounds"):
        with pagerank_program(2, mode).run() as run:
            run.insert("edges", few)
            run.commit()


def measured(
    flow: rr.Dataflow, loop: str, src: Ints, dst: Ints, workers: int = 1
) -> tuple[dict[str, Any], rr.Run]:
    """What a load took, with its rounds, and the run."""
    place: dict[str, Any] = {} if workers == 1 else {"on": "processes", "workers": workers}
    run = flow.run(**place)
    if workers > 1:  # these processes are new, and load kernels first
        for change in (run.insert, run.delete):
            change("edges", pa.table({"src": src[:9], "dst": dst[:9]}))
            run.commit()
    run.insert("edges", pa.table({"src": src.copy(), "dst": dst.copy()}))
    wall, cpu = timed(run.commit, processor_seconds)
    figures = {"load_s": round(wall, 3), "load_cpu_s": round(cpu, 3), **of_rounds(run, loop)}
    return figures, run


def of_rounds(run: rr.Run, loop: str = LOOP) -> dict[str, Any]:
    """What the rounds of the last epoch of a loop did, each, and together."""
    table = run.rounds(loop).to_polars()
    last = table.filter(pl.col("epoch") == pl.col("epoch").max())
    rows = last.select("touched", "messages", pl.col("ms").round(3)).rows()
    return {
        "rounds": int(last["rounds"].sum()),
        "touched": int(last["touched"].sum()),
        "messages": int(last["messages"].sum()),
        "ms": round(float(last["ms"].sum()), 3),
        "by_round": [list(row) for row in rows],
    }


def all_components(src: Ints, dst: Ints, pictures: Pictures, name: str) -> dict[str, Any]:
    """Components of a graph in each way."""
    found = {}
    for way in WAYS:
        found[way], run = measured(components_program(way), LOOP, src, dst)
        with run:
            check_components(run, src, dst)
            pictures.keep(f"components-{name}-{way}", run.rounds(LOOP).to_svg())
    return found


def all_ranks(src: Ints, dst: Ints, rounds: int, pictures: Pictures, name: str) -> dict[str, Any]:
    """Ranks of a graph in each way."""
    found, ranks = {}, []
    for way, (mode, workers) in RANKED.items():
        flow = pagerank_program(rounds, mode)
        found[way], run = measured(flow, "ranks", src, dst, workers)
        with run:
            ranks.append(run.read("ranks").to_polars().sort("node"))
            pictures.keep(f"ranks-{name}-{way}", run.rounds("ranks").to_svg())
    assert all(each.equals(ranks[0]) for each in ranks)
    return found


def on_spark(src: Ints, dst: Ints, rounds: int, most: int) -> dict[str, dict[str, Any]]:
    """The same on Spark: PageRank, and components in bulk and with a simulated incremental iteration."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "graph.npz")
        np.savez(file, src=src, dst=dst)
        labels: dict[str, int | str] = {"graph": str(file), "rounds": most}
        return {
            "ranks": run_apart(
                "spark_pagerank", "pyspark", graph=str(file), rounds=rounds, fewer=1
            ),
            "bulk": run_apart("spark_labels", "pyspark", changed=0, **labels),
            "simulated": run_apart("spark_labels", "pyspark", changed=1, **labels),
        }


def per_message(rounds: list[Round]) -> dict[str, float] | None:
    """Milliseconds for 1,000 messages, and how far time and messages go together; None where rounds are too few."""
    if len(rounds) < 3:
        return None
    messages, taken = (np.array([float(each[at]) for each in rounds[1:]]) for at in (1, 2))
    if not (messages.std() and taken.std()):  # in bulk every round sends the same messages
        return {"ms_for_1000": round(float(taken.sum() / max(messages.sum(), 1) * 1e3), 4)}
    slope, start = np.polyfit(messages, taken, 1)
    return {
        "ms_for_1000": round(float(slope) * 1e3, 4),
        "ms_of_a_round": round(float(start), 4),
        "r": round(float(np.corrcoef(messages, taken)[0, 1]), 3),
    }


class Pictures:
    """Drawings, written to a folder, if there is one."""

    def __init__(self, folder: str | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self.names: list[str] = []
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)

    def keep(self, name: str, svg: str) -> None:
        if self._folder is not None:
            self.names.append(f"{re.sub('[^a-zA-Z0-9]+', '-', name)}.svg")
            (self._folder / self.names[-1]).write_text(svg)

    def totals(self, number: int, title: str, figures: Mapping[str, Mapping[str, float]]) -> None:
        """A picture of seconds: a panel for each graph, with a dot for each way."""
        ways = list(dict.fromkeys(way for each in figures.values() for way in each))
        panels = [
            Panel(
                f"{name}: seconds",
                tuple([Line(way, ((ways.index(way), each[way]),)) for way in each]),
            )
            for name, each in figures.items()
        ]
        along = "the ways, in the order of their names on the right"
        self.keep(f"figure-{number}", chart(f"Figure {number}", title, along, panels))

    def by_round(
        self, number: int, title: str, ways: Mapping[str, list[Round]], *shown: str
    ) -> None:
        """A picture of rounds, with a line for each way, of those of messages and milliseconds that are `shown`."""
        panels = [
            Panel(what, tuple([Line(way, _points(each, what)) for way, each in ways.items()]))
            for what in shown
        ]
        self.keep(f"figure-{number}", chart(f"Figure {number}", title, "round", panels))


def _points(rounds: list[Round], what: str) -> tuple[tuple[int, float], ...]:
    at = ("rows touched", "messages", "milliseconds").index(what)
    return tuple([(number, float(each[at])) for number, each in enumerate(rounds)])


def graphs() -> Iterator[tuple[str, Ints, Ints]]:
    yield from real_graphs(GRAPHS)
    yield "random", *random_graph(scale("nodes", 100_000), scale("edges", 200_000))


def seconds_of(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The seconds of the rounds of each way, without the load of the graph."""
    return {way: round(each["ms"] / 1e3, 4) for way, each in figures.items() if "ms" in each}


def main() -> dict[str, Any]:
    rounds, most = scale("rounds", 20), scale("peer_rounds", 20)
    shown = scale("shown", 30)
    pictures = Pictures(os.environ.get("BENCH_SVG"))
    ranks: dict[str, dict[str, Any]] = {}
    labels: dict[str, dict[str, Any]] = {}
    peers: dict[str, Any] = missing(GRAPHS)
    for number, (name, src, dst) in enumerate(graphs()):
        if not number:
            first_rounds(src, dst)
        ranks[name] = all_ranks(src, dst, rounds, pictures, name)
        labels[name] = all_components(src, dst, pictures, name)
        spark = on_spark(src, dst, rounds, most)
        peers |= {f"spark_{what}_{name}": each for what, each in spark.items()}
        for what, each in spark.items():
            if "skipped" not in each:
                into = ranks[name] if what == "ranks" else labels[name]
                into["spark" if what == "ranks" else f"spark_{what}"] = of_spark(each)
    first, long = next(iter(labels)), ROADS if ROADS in labels else list(labels)[-1]
    by_round = {way: each["by_round"] for way, each in labels[first].items()}
    of_ranks = {way: each["by_round"] for way, each in ranks[first].items()}
    incremental = labels[long]["incremental_by_rounds"]["by_round"]
    tables = {
        "figure_7": {name: seconds_of(each) for name, each in ranks.items()},
        "figure_8": {first: {way: each[:shown] for way, each in of_ranks.items()}},
        "figure_9": {name: seconds_of(each) for name, each in labels.items()},
        "figure_10": {long: incremental[:shown]},
        "figure_11": {first: {way: each[:shown] for way, each in by_round.items()}},
        "figure_12": {
            name: {way: per_message(each["by_round"]) for way, each in ways.items()}
            for name, ways in labels.items()
        },
    }
    pictures.totals(7, f"{rounds} rounds of PageRank", tables["figure_7"])
    pictures.by_round(8, f"PageRank on {first}", of_ranks, "milliseconds")
    pictures.totals(9, "components by the least label", tables["figure_9"])
    pictures.by_round(
        10, f"components of {long}", {"incremental": incremental}, "milliseconds", "messages"
    )
    pictures.by_round(11, f"components of {first}", by_round, "milliseconds")
    pictures.by_round(12, f"components of {first}", by_round, "messages", "milliseconds")
    ratios = {}
    for name, seconds in tables["figure_9"].items():
        for way in ("incremental", "microstep"):
            ratios[f"{name}_{way}"] = ratio(seconds["bulk"], max(seconds[way], 1e-6))
        ratios[f"{name}_incremental_by_rounds"] = ratio(
            seconds["bulk_by_rounds"], max(seconds["incremental_by_rounds"], 1e-6)
        )
    for name, ways in labels.items():
        for way in ("bulk", "simulated"):
            if f"spark_{way}" in ways:
                done = ways[f"spark_{way}"]["rounds"]
                ours = ways["bulk_by_rounds" if way == "bulk" else "incremental_by_rounds"]
                same = sum(each[2] for each in ours["by_round"][:done])  # as many rounds of ours
                ratios[f"{name}_spark_{way}"] = ratio(ways[f"spark_{way}"]["ms"], max(same, 1e-6))
    for each in (*ranks.values(), *labels.values()):
        for figures in each.values():
            del figures["by_round"]
    return {
        "rounds": rounds,
        "ranks": ranks,
        "components": labels,
        "tables": tables,
        "pictures": pictures.names,
        "granted": granted(),
        "asked": {},
        "peers": {
            name: {what: peer[what] for what in ("version", "skipped", "until") if what in peer}
            for name, peer in peers.items()
        },
        "ratios": ratios,
    }


def of_spark(report: Mapping[str, Any]) -> dict[str, Any]:
    """The rounds of a program on Spark, in the form of ours. It does not say which rows it touches."""
    sent = report.get("messages", [None] * len(report["ms"]))
    rounds = [[None, messages, ms] for messages, ms in zip(sent, report["ms"], strict=True)]
    return {
        "rounds": len(rounds),
        "messages": sum(each or 0 for each in sent),
        "ms": round(sum(report["ms"]), 3),
        "by_round": rounds,
    }
