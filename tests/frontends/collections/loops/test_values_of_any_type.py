"""Values of any type that has an order spread on arrays: with new values all the time, against plain Python."""

from __future__ import annotations

import random
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.operators.iterations import ordinals
from tests.soaking import seeds

LEVELS = ["low", "middle", "high", "alarm", "end"]  # not the order of the letters
STEMS = ("", "a", "mill", "\u00e9", "\U0001f600", "\uffff")
NAMES = [stem + end for stem in STEMS for end in ("", "b", "\0", "9")]
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "text": (pl.String, NAMES),
    "binary": (pl.Binary, [name.encode() for name in NAMES]),
    "decimal": (pl.Decimal(20, 3), [Decimal(cents).scaleb(-3) for cents in (-7, 0, 5, 12, 999, 10**15)]),
    "enum": (pl.Enum(LEVELS), LEVELS),
    "time": (pl.Time, [time(hour, 30, 5) for hour in range(0, 24, 5)]),
    "date": (pl.Date, [date(2026, 1, day) for day in range(1, 9)]),
    "flag": (pl.Boolean, [False, True]),
}  # fmt: skip
KEYS: dict[str, tuple[Any, list[Any]]] = {
    "text": (pl.String, ["", "a", "b\0", "node", "z" * 20, "\u00e9"]),
    "number": (pl.Int64, [-3, 0, 1, 2, 7, 8]),
}


def by_send(edges: Any, rows: Any, best: str, options: dict[str, Any]) -> Any:
    def send(near: Any) -> Any:
        return near.join(edges, left_on="node", right_on="src").select(node="dst", value="value")

    better = getattr(rr.loops, best)("value")
    return rows.iterate_delta(
        send(rows), key="node", send=send, better=better, missing="add", **options
    )


def by_body(edges: Any, rows: Any, best: str, options: dict[str, Any]) -> Any:
    aggregate = rr.min if best == "least" else rr.max

    def body(near: Any) -> Any:
        sent = near.join(edges, left_on="node", right_on="src").select(node="dst", value="value")
        return rows.concat(sent).group_by("node").agg(value=aggregate("value"))

    return rows.iterate(body, **{name: value for name, value in options.items() if name != "mode"})


def flow_of(kind: Any, key: Any, best: str, program: Any, **options: Any) -> rr.Dataflow:
    flow = rr.Dataflow("loop")
    edges = flow.input("edges", {"src": key, "dst": key})
    rows = flow.input("rows", {"node": key, "value": kind})
    flow.output("result", program(edges, rows, best, options))
    return flow


def from_scratch(edges: list[Any], rows: list[Any], kind: str, best: str) -> dict[Any, Any]:
    def rank(value: Any) -> Any:
        return LEVELS.index(value) if kind == "enum" else value

    def is_better(new: Any, old: Any) -> bool:
        if new is None or old is None:
            return new is not None and old is None
        return rank(new) < rank(old) if best == "least" else rank(new) > rank(old)

    values: dict[Any, Any] = {}
    changed = True
    while changed:
        changed = False
        for node, value in [*rows, *[(b, values[a]) for a, b in edges if a in values]]:
            if node not in values or is_better(value, values[node]):
                values[node], changed = value, True
    return values


class Drawn:
    """A loop that was drawn, and the rows that are there."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.kind, self.best = draw.choice(list(KINDS)), draw.choice(["least", "greatest"])
        self.type, self.values = KINDS[self.kind]
        self.key, self.nodes = KEYS[draw.choice(list(KEYS))]
        self.there: dict[str, list[Any]] = {"edges": [], "rows": []}

    def flow(self, program: Any, **options: Any) -> rr.Dataflow:
        return flow_of(self.type, self.key, self.best, program, **options)

    def change(self, runs: list[rr.Run]) -> None:
        draw = self.draw
        for what, most in (("edges", 8), ("rows", 4)):
            there = self.there[what]
            for _ in range(draw.randint(0, most)):
                if there and draw.random() < 0.4:
                    row = there.pop(draw.randrange(len(there)))
                    for run in runs:
                        run.delete(what, [row])
                    continue
                other = self.nodes if what == "edges" else [*self.values, None]
                row = draw.choice(self.nodes), draw.choice(other)
                there.append(row)
                for run in runs:
                    run.insert(what, [row])

    def check(self, run: rr.Run, said: Any) -> None:
        expected = from_scratch(self.there["edges"], self.there["rows"], self.kind, self.best)
        found = run.read("result").rows()
        assert len(found) == len(expected), said
        assert dict(found) == expected, (said, found, expected)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(8, soak=400))
def test_values_of_any_type_spread(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr(ordinals, "_END", 64)  # so that words move
        monkeypatch.setattr(ordinals, "_STEP", 2)
    drawn = Drawn(seed)
    forms: list[tuple[Any, dict[str, Any]]] = [
        (by_send, {}), (by_body, {}), (by_send, {"mode": "superstep"}), (by_send, {"mode": "differential"})
    ]  # fmt: skip
    if KINDS[drawn.kind][0] in (pl.Date, pl.Boolean, pl.Time) or drawn.kind == "enum":
        forms.append((by_send, {"spread_over": "all"}))
    runs = []
    for program, options in forms:
        flow = drawn.flow(program, **options)
        on_arrays = "spread the " in flow.explain() or "send values on" in flow.explain()
        assert on_arrays == (options.get("mode") != "differential"), (drawn.kind, options)
        runs.append(flow.run(workers=drawn.draw.randint(1, 4), seed=seed))
    for epoch in range(5):
        drawn.change(runs)
        for run, form in zip(runs, forms, strict=True):
            run.commit()
            drawn.check(run, (seed, epoch, drawn.kind, form))
    for run in runs:
        run.close()


@pytest.mark.parametrize("seed", seeds(3, soak=60))
def test_a_run_with_numbered_values_is_resumed_and_rescaled(seed: int, tmp_path: Path) -> None:
    drawn = Drawn(seed)
    for workers in (2, 1, 3):
        with drawn.flow(by_send).run(workers=workers, checkpoint=tmp_path, every=2) as run:
            if workers != 2:
                drawn.check(run, (seed, workers))
            for _ in range(3):
                drawn.change([run])
                run.commit()
                drawn.check(run, (seed, workers))
            run.scale(workers + 1)
            drawn.change([run])
            run.commit()
            drawn.check(run, (seed, workers))


def test_values_that_arrays_number_are_copied_on_one_worker_and_nothing_else() -> None:
    with pytest.raises(rr.PlanError) as caught:
        flow_of(pl.String, pl.Int64, "least", by_send, spread_over="all")
    assert caught.value.code == "plan.no_arrays"
    assert "such values are numbered by one worker" in str(caught.value)

    def longer(edges: Any, rows: Any, best: str, options: dict[str, Any]) -> Any:
        def send(near: Any) -> Any:
            there = near.join(edges, left_on="node", right_on="src")
            return there.select(node="dst", value=pl.col("value") + pl.col("dst"))

        least = rr.loops.least("value")
        return rows.iterate_delta(send(rows), key="node", send=send, better=least, **options)

    shown = flow_of(pl.String, pl.String, "least", longer).explain()
    assert "computed from the value 'value', and arrays only copy large_string" in shown
    shown = flow_of(pl.List(pl.Int64), pl.String, "least", by_send).explain()
    assert "the value 'value' is large_list<" in shown
    assert "which arrays do not know" in shown
