"""Programs for tests on Spark, each with its expected output, computed from scratch.

Functions and classes that programs use are defined inside the functions here, so that they travel
to workers by value, as those of a user's script or notebook do.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import polars as pl

import riverrun as rr

Rows = dict[str, Counter[tuple[Any, ...]]]
Edges = Iterable[tuple[int, int]]


@dataclass(frozen=True)
class Program:
    """A dataflow with inputs of two columns, `k` and `v`, and one output."""

    flow: rr.Dataflow
    oracle: Callable[[Rows], list[tuple[Any, ...]]]
    """The rows of the output, sorted, given how often each row of each input is there."""
    keyed: bool = False


def _inputs(flow: rr.Dataflow, *names: str, **options: Any) -> list[rr.Collection]:
    return [flow.input(name, {"k": pl.Int64, "v": pl.Int64}, **options) for name in names]


def counting() -> Program:
    flow = rr.Dataflow("counting")
    (a,) = _inputs(flow, "a")
    flow.output("out", a.group_by("k").agg(n=rr.count(), total=rr.sum("v")))

    def oracle(rows: Rows) -> list[tuple[Any, ...]]:
        groups: dict[int, list[int]] = {}
        for k, v in rows["a"].elements():
            groups.setdefault(k, []).append(v)
        return sorted((k, len(values), sum(values)) for k, values in groups.items())

    return Program(flow, oracle)


def joining() -> Program:
    flow = rr.Dataflow("joining")
    a, b = _inputs(flow, "a", "b")
    flow.output("out", a.join(b, on="k").select("k", "v", w="v_right"))

    def oracle(rows: Rows) -> list[tuple[Any, ...]]:
        right = list(rows["b"].elements())
        return sorted(
            (k, v, w) for k, v in rows["a"].elements() for other, w in right if other == k
        )

    return Program(flow, oracle)


def looping() -> Program:
    flow = rr.Dataflow("looping")
    (a,) = _inputs(flow, "a")

    def longer(paths: rr.Collection) -> rr.Collection:
        steps = paths.join(a, left_on="v", right_on="k").select("k", v="v_right")
        return steps.concat(a).distinct()

    flow.output("out", a.distinct().iterate(longer))
    return Program(flow, lambda rows: sorted(closed(set(rows["a"].elements()))))


def closed(edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Who can be reached from whom."""
    pairs = set(edges)
    while more := {(a, d) for a, b in pairs for c, d in edges if b == c} - pairs:
        pairs |= more
    return pairs


def with_vertex() -> Program:
    class RunningCount(rr.Vertex):
        """How many rows each key has: state in a table."""

        deterministic = True

        def start(self) -> None:
            self.waiting: dict[Any, Counter[int]] = {}

        def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
            if time not in self.waiting:
                self.waiting[time] = Counter()
                self.notify_at(time)
            for key, diff in zip(rows["k"], rows["diff"], strict=True):
                self.waiting[time][key] += diff

        def on_notify(self, time: Any) -> None:
            table = self.table("counts")
            changed = {key: diff for key, diff in self.waiting.pop(time).items() if diff}
            old = dict(table.read([(key,) for key in changed]).iter_rows())
            new = {key: old.get(key, 0) + diff for key, diff in changed.items()}
            table.write([(key, n) for key, n in new.items() if n])
            table.delete([(key,) for key, n in new.items() if not n])
            out = [(key, n, -1) for key, n in old.items()]
            out += [(key, n, 1) for key, n in new.items() if n]
            if out:
                self.send(pl.DataFrame(out, ["k", "n", "diff"], orient="row"))

    flow = rr.Dataflow("vertex")
    (a,) = _inputs(flow, "a")
    counted = flow.vertex(
        RunningCount,
        {"rows": a},
        {"k": pl.Int64, "n": pl.Int64},
        routes={"rows": "k"},
        tables={"counts": ({"k": pl.Int64}, {"n": pl.Int64})},
    )
    flow.output("out", counted)

    def oracle(rows: Rows) -> list[tuple[Any, ...]]:
        return sorted(Counter(k for k, _ in rows["a"].elements()).items())

    return Program(flow, oracle)


def upserting() -> Program:
    flow = rr.Dataflow("upserting")
    (a,) = _inputs(flow, "a", key="k")
    flow.output("out", a)
    return Program(flow, lambda rows: sorted(rows["a"].elements()), keyed=True)


def with_python() -> Program:
    add, spread = 3, "spread"

    def shift(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.select("k", v=pl.col("v") + add)

    def extremes(frame: pl.DataFrame) -> dict[str, Any]:
        values = frame["v"].to_list()
        return {"low": min(values), spread: max(values) - min(values)}

    def digits(value: int) -> int:
        return sum(map(int, str(abs(value))))

    flow = rr.Dataflow("python")
    (a,) = _inputs(flow, "a")
    shifted = a.map_batches(shift, {"k": pl.Int64, "v": pl.Int64})
    grouped = shifted.group_by("k").apply(extremes, {"low": pl.Int64, spread: pl.Int64})
    digest = pl.col("low").map_elements(digits, return_dtype=pl.Int64)
    flow.output("out", grouped.with_columns(digest=digest))

    def oracle(rows: Rows) -> list[tuple[Any, ...]]:
        groups: dict[int, list[int]] = {}
        for k, v in rows["a"].elements():
            groups.setdefault(k, []).append(v + add)
        return sorted((k, min(vs), max(vs) - min(vs), digits(min(vs))) for k, vs in groups.items())

    return Program(flow, oracle)


PROGRAMS = [counting, joining, looping, with_vertex, upserting, with_python]


def change(run: Any, program: Program, rows: Rows, source: random.Random, size: int) -> None:
    """Random inserts and deletes, in a run and in `rows`."""
    for name in program.flow.inputs:
        present = rows.setdefault(name, Counter())
        new = [(source.randrange(12), source.randrange(-20, 20)) for _ in range(size)]
        old = source.sample(sorted(present.elements()), min(size // 2, present.total()))
        if not program.keyed:
            run.delete(name, old)
            run.insert(name, new)
            present.update(new)
            present.subtract(old)
            rows[name] = +present
            continue
        run.delete(name, [(k,) for k, _ in old])
        run.upsert(name, new)
        latest = dict(present) and {k: v for k, v in present if (k, v) not in old}
        latest = {**latest, **dict(new)}
        rows[name] = Counter(latest.items())


def eventually(holds: Callable[[], Any], patience: float = 60) -> bool:
    """Whether something becomes true."""
    deadline = time.monotonic() + patience
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(holds())
