"""Fetches of the different values in a range, each once: against sets."""

from __future__ import annotations

import random

import polars as pl
import pytest

import riverrun as rr

KINDS = {
    "whole": ({"v": pl.Int64}, lambda n: (n,)),
    "names": ({"v": pl.String, "w": pl.Int64}, lambda n: (None if n == 3 else f"n{n % 4}", n // 4)),
    "lists": ({"v": pl.List(pl.Int64)}, lambda n: ([n, n % 2],)),
    "nothing": ({}, lambda n: ()),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 3])
def test_each_value_comes_once(kind, workers):
    value, make = KINDS[kind]
    chance = random.Random(f"{kind} {workers}")
    flow = rr.Dataflow("values")
    updates = flow.input("given", {"key": pl.Int64, "time": pl.Int64, **value})
    asked = flow.input("asked", {"id": pl.Int64, "k": pl.Int64, "low": pl.Int64, "high": pl.Int64})
    state = flow.state("state", key={"key": pl.Int64}, value=value)
    updates.update(state, rule=rr.rules.append, late=100)
    answers = asked.fetch(
        state, key="k", since="low", at="high", rule=rr.rules.distinct, how="inner"
    )
    flow.output("found", answers)
    entries, requests = [], []
    with flow.run(workers=workers, seed=workers) as run:
        for _ in range(6):
            fresh = [
                (chance.randrange(3), chance.randrange(30), *make(chance.randrange(8)))
                for _ in range(20)
            ]
            entries += fresh
            run.insert("given", fresh)
            gone = chance.sample(entries, 3)
            run.delete("given", gone)
            for row in gone:
                entries.remove(row)
            for _ in range(5):
                low, high = sorted(chance.sample(range(30), 2))
                requests.append((len(requests), chance.randrange(4), low, high))
            run.insert("asked", requests[-5:])
            run.commit()
        run.insert("given", [(9, 1000, *make(0))])
        run.commit()
        rows = run.read("found").rows()
    expected = [
        (*request, *values) for request in requests for values in _different(entries, *request[1:])
    ]
    assert sorted(rows, key=str) == sorted(expected, key=str)
    assert len(rows) > 10


def _different(entries, key, low, high):
    seen = []
    for k, time, *values in entries:
        if k == key and low <= time <= high and values not in seen:
            seen.append(values)
    return seen


def test_a_distinct_value_has_no_time():
    flow = rr.Dataflow("values")
    updates = flow.input("given", {"key": pl.Int64, "time": pl.Int64, "v": pl.Int64})
    state = flow.state("state", key={"key": pl.Int64}, value={"v": pl.Int64})
    updates.update(state)
    with pytest.raises(rr.PlanError) as raised:
        updates.fetch(state, key="key", at="time", rule=rr.rules.distinct, time="when")
    assert raised.value.code == "state.distinct_time"
