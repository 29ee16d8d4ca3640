"""The cost of compiled kernels for a process: at the first start, which compiles them, and at every later start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import riverrun

CODE = """
import json, time
start = time.perf_counter()
import numba
numba_import = time.perf_counter() - start
import numpy as np, pyarrow as pa
start = time.perf_counter()
from riverrun.progress import Antichain
from riverrun.state.schema import Schema
from riverrun.state.spine import Spine
ours = time.perf_counter() - start
start = time.perf_counter()
spine = Spine("s", Schema.of({"k": pa.string()}, {"v": pa.list_(pa.int64())}, order=["v"]))
for epoch in range(40):
    keys = [f"k{key}" for key in range(epoch, epoch + 1000)]
    spine.insert(pa.table({"k": keys, "v": [[1, epoch]] * 1000}), (epoch,))
    spine.advance_since(Antichain([(max(epoch - 2, 0),)]))
view = spine.view()
view.lookup(pa.array(keys), (39,)).to_batch()
view.first(pa.array(keys), (39,)); view.last(pa.array(keys), (39,)); view.changes(pa.array(keys))
view.to_batch((39,)); spine.compact()
first_use = time.perf_counter() - start
start = time.perf_counter()
spine.lookup(pa.array(keys), (39,)).to_batch()
print(json.dumps({"numba_import": numba_import, "import": ours, "kernels": first_use}))
"""


def start(sources: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": sources}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", CODE], check=True, capture_output=True, env=environment
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return {name: round(value, 3) for name, value in figures.items()}


def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        # A copy of the package, and of nothing that was compiled for it.
        package = Path(folder, "riverrun")
        ignored = shutil.ignore_patterns("__pycache__", "compiled")
        shutil.copytree(Path(riverrun.__file__).parent, package, ignore=ignored)
        first = start(folder)
        later = min((start(folder) for _ in range(3)), key=lambda each: each["kernels"])
    return {
        "first_start_s": first,
        "later_start_s": later,
        "ratios": {"first_to_later": round(first["kernels"] / later["kernels"], 1)},
    }
