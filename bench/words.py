"""A keyed count of 5 million words of a Zipf distribution, in 50 batches.

Ours takes Arrow strings and gives, after each batch, a result that can be read as of it. `Counter` takes
lists of Python strings, which are ready before. Polars counts all words again (recomputed), or adds the counts of a
batch to the counts so far (incremental), with as many threads as it likes; Bytewax and Pathway are fed as their own
users would do it. No system is durable here.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import riverrun as rr
from bench.apart import run_apart
from bench.measure import at_least, ratio, scale, version

Counts = dict[str, int]


def main() -> dict[str, Any]:
    words, distinct = scale("words", 5e6), scale("distinct", 100_000)
    batches, repeats = scale("batches", 50), scale("repeats", 3)
    weights = 1 / np.arange(1, distinct + 1)
    numbers = np.random.default_rng(0).choice(distinct, words, p=weights / weights.sum())
    texts = np.array([f"w{number}" for number in range(distinct)], dtype=object)
    parts = [texts[part].tolist() for part in np.array_split(numbers, batches)]
    tables = [pa.table({"word": pa.array(part, pa.string())}) for part in parts]
    frames = [pl.DataFrame({"word": part}) for part in parts]
    occurring = np.bincount(numbers, minlength=distinct).tolist()
    expected = {text: count for text, count in zip(texts.tolist(), occurring, strict=True) if count}
    ours(tables[:1])
    takers: dict[str, Callable[[], tuple[float, Counts]]] = {
        "ours": lambda: ours(tables),
        "counter": lambda: with_counter(parts),
        "polars_recomputed": lambda: with_polars(frames, recompute),
        "polars_incremental": lambda: with_polars(frames, add_up),
    }
    taken: dict[str, list[float]] = {name: [] for name in takers}
    for _ in range(repeats):  # in turns, so that a change of the machine's speed hits all alike
        for name, run in takers.items():
            spent, counts = run()
            assert counts == expected, name
            taken[name].append(spent)
    speed = {name: round(words / float(np.median(each))) for name, each in taken.items()}
    mine = speed.pop("ours")
    sizes = {"words": words, "distinct": distinct, "batches": batches}
    versions = {"counter": f"python {platform.python_version()}"}
    peers: dict[str, dict[str, Any]] = {
        name: {"version": versions.get(name, version("polars")), "words_per_s": rate}
        for name, rate in speed.items()
    }
    peers["bytewax"] = run_apart("bytewax_words", "bytewax", **sizes)
    peers["pathway"] = run_apart("pathway_words", "pathway", **sizes)
    return {
        **sizes,
        "words_per_s": mine,
        "asked": {"words_per_s": at_least(mine, 4_000_000)},
        "peers": peers,
        "ratios": {
            name: ratio(mine, peer["words_per_s"])
            for name, peer in peers.items()
            if "words_per_s" in peer
        },
    }


def ours(tables: list[pa.Table]) -> tuple[float, Counts]:
    """Seconds for all batches, and the counts."""
    flow = rr.Dataflow("words")
    words = flow.input("words", {"word": pl.String})
    flow.output("counts", words.group_by("word").count())
    with flow.run() as run:
        start = time.perf_counter()
        for table in tables:
            run.insert("words", table)
            run.commit()
        spent = time.perf_counter() - start
        return spent, dict(run.read("counts").rows())


def with_counter(parts: list[list[str]]) -> tuple[float, Counts]:
    counts: Counter[str] = Counter()
    start = time.perf_counter()
    for part in parts:
        counts.update(part)
    return time.perf_counter() - start, dict(counts)


def with_polars(frames: list[pl.DataFrame], step: Callable[..., Any]) -> tuple[float, Counts]:
    state = counts = None
    start = time.perf_counter()
    for frame in frames:
        state, counts = step(state, frame)
    spent = time.perf_counter() - start
    assert counts is not None
    return spent, dict(counts.rows())


def recompute(words: pl.DataFrame | None, fresh: pl.DataFrame) -> tuple[Any, pl.DataFrame]:
    words = fresh if words is None else pl.concat([words, fresh], rechunk=False)
    return words, words.group_by("word").len()


def add_up(counts: pl.DataFrame | None, fresh: pl.DataFrame) -> tuple[Any, pl.DataFrame]:
    counted = fresh.group_by("word").len()
    if counts is not None:
        counted = pl.concat([counts, counted]).group_by("word").agg(pl.col("len").sum())
    return counted, counted
