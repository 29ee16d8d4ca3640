"""The baseline that kernels are compiled for, beside the processor that is here: appending and searching."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from bench.measure import scale

CODE = """
import json, sys, time
import numpy as np, pyarrow as pa
from riverrun.progress import Antichain
from riverrun.state import Schema, Spine
from riverrun.state.kernels import compiling
rows, rounds = int(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(1)
schemas = {
    "integers": Schema.of({"k": pa.int64()}, {"v": pa.int64()}),
    "strings": Schema.of({"k": pa.string()}, {"v": pa.string()}),
}
least, spent = {}, {}
def measure(name, act):
    start = time.thread_time()
    value = act()
    least[name] = min(least.get(name, 1e9), time.thread_time() - start)
    return value
for turn in range(rounds + 1):
    if turn == 1:
        least.clear()  # kernels are loaded by now
    for kind, schema in schemas.items():
        parts = []
        for part in range(16):
            keys = rng.integers(0, rows, rows // 16)
            columns = keys if kind == "integers" else np.char.add("key-", keys.astype(str))
            parts.append(pa.table({"k": columns, "v": columns}))
        spine = Spine("bench", schema)
        for epoch, part in enumerate(parts):
            start = time.thread_time()
            spine.insert(part, (epoch,))
            spine.advance_since(Antichain([(epoch,)]))
            spent[kind] = spent.get(kind, 0.0) + time.thread_time() - start
        least[f"append {kind}"] = min(least.get(f"append {kind}", 1e9), spent.pop(kind))
        wanted = parts[0].column("k").combine_chunks()
        measure(f"search {kind}", lambda: spine.lookup(wanted, (15,)).to_batch())
        measure(f"changes {kind}", lambda: spine.view().changes(wanted))
print(json.dumps({"processor": compiling.PROCESSOR[1], "seconds": least}))
"""


def run(rows: int, rounds: int, processor: str, folder: str) -> dict[str, Any]:
    environment = {**os.environ, "RIVERRUN_CPU": processor, "NUMBA_CACHE_DIR": folder}
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(rows), str(rounds)],
        check=True,
        capture_output=True,
        env=environment,
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> dict[str, Any]:
    rows, turns = scale("rows", 1e6), 3
    best: dict[str, dict[str, float]] = {"": {}, "host": {}}
    names = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(turns):  # by turns, since machines have moods
            for processor, least in best.items():
                figures = run(rows, 3, processor, folder)
                names[processor] = figures["processor"]
                for name, seconds in figures["seconds"].items():
                    least[name] = min(least.get(name, seconds), seconds)
    return {
        "rows": rows,
        "baseline": names[""],
        "processor": names["host"],
        "baseline_ms": {name: round(each * 1e3, 2) for name, each in best[""].items()},
        "processor_ms": {name: round(each * 1e3, 2) for name, each in best["host"].items()},
        "ratios": {name: round(best["host"][name] / best[""][name], 3) for name in best[""]},
    }
