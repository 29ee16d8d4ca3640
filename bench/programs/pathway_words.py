"""A keyed count with Pathway, one thread, nothing durable: files read by its own reader, its fastest way.

Fed from Python, as ours is, it takes several times as long.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

parser = argparse.ArgumentParser()
for option, size in {"words": 5_000_000, "distinct": 100_000, "batches": 50}.items():
    parser.add_argument(f"--{option}", type=int, default=size)
options = parser.parse_args()
os.environ["PATHWAY_THREADS"] = "1"

import numpy as np  # noqa: E402
import pathway as pw  # noqa: E402

weights = 1 / np.arange(1, options.distinct + 1)
numbers = np.random.default_rng(0).choice(
    options.distinct, options.words, p=weights / weights.sum()
)
texts = np.array([f"w{number}" for number in range(options.distinct)], dtype=object)
counts: dict[str, int] = {}


class Word(pw.Schema):
    word: str


def changed(key, row, time, is_addition):
    if is_addition:
        counts[row["word"]] = row["count"]


folder = Path(tempfile.mkdtemp(prefix="riverrun-bench-"))
try:
    for at, part in enumerate(np.array_split(numbers, options.batches)):
        (folder / f"{at:04}.csv").write_text("\n".join(["word", *texts[part], ""]))
    words = pw.io.csv.read(str(folder), schema=Word, mode="static")
    pw.io.subscribe(
        words.groupby(words.word).reduce(words.word, count=pw.reducers.count()), changed
    )
    start = time.perf_counter()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    taken = time.perf_counter() - start
finally:
    shutil.rmtree(folder)
expected = np.bincount(numbers, minlength=options.distinct)
assert all(counts.get(text, 0) == count for text, count in zip(texts, expected, strict=True))
print(
    json.dumps(
        {"version": f"pathway {pw.__version__}", "words_per_s": round(options.words / taken)}
    )
)
