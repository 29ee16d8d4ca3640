"""A keyed count with Bytewax, one worker, nothing durable: a list of values for each key and batch."""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version

import bytewax.operators as op
import numpy as np
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

parser = argparse.ArgumentParser()
for option, size in {"words": 5_000_000, "distinct": 100_000, "batches": 50}.items():
    parser.add_argument(f"--{option}", type=int, default=size)
options = parser.parse_args()

weights = 1 / np.arange(1, options.distinct + 1)
numbers = np.random.default_rng(0).choice(
    options.distinct, options.words, p=weights / weights.sum()
)
texts = np.array([f"w{number}" for number in range(options.distinct)], dtype=object)
parts = np.array_split(numbers, options.batches)
batches = [[(word, 1) for word in texts[part].tolist()] for part in parts]
counts: dict[str, int] = {}


class Batches(StatelessSourcePartition):
    def __init__(self):
        self._left = iter(batches)

    def next_batch(self):
        return next(self._left)


class Source(DynamicSource):
    def build(self, step_id, worker_index, worker_count):
        return Batches()


class Counts(StatelessSinkPartition):
    def write_batch(self, items):
        counts.update(items)


class Sink(DynamicSink):
    def build(self, step_id, worker_index, worker_count):
        return Counts()


class Count(op.StatefulBatchLogic):
    def __init__(self, count):
        self.count = count or 0

    def on_batch(self, values):
        self.count += len(values)
        return (self.count,), False

    def snapshot(self):
        return self.count


flow = Dataflow("words")
op.output("out", op.stateful_batch("count", op.input("in", flow, Source()), Count), Sink())
start = time.perf_counter()
run_main(flow)
taken = time.perf_counter() - start
expected = np.bincount(numbers, minlength=options.distinct)
assert all(counts.get(text, 0) == count for text, count in zip(texts, expected, strict=True))
print(
    json.dumps(
        {
            "version": f"bytewax {version('bytewax')}",
            "words_per_s": round(options.words / taken),
        }
    )
)
