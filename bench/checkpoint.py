"""Saving and restoring a gigabyte of state on local disk, beside writing and reading the same bytes plainly.

All figures are about memory and the page cache: nothing is synced, nothing is dropped. The plain peer writes files of
the same number and sizes, and reads them into memory of its own, in one thread. `first` figures are those of the first
round. Memory that comes fresh from the system is slow on a virtual machine, and a worker that replaces another pays for
that; the plain peer goes first here, so only its first figures are quite cold.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.measure import scale, version
from riverrun.state import Schema, Spine, View
from riverrun.state.block_files import write_block
from riverrun.storage import Checkpoints

REPEATS = 3
EPOCHS = 4


def build(size: int) -> View:
    """A state of about `size` bytes: int64 keys and values, in a few batches."""
    spine = Spine("bench", Schema.of({"k": pa.int64()}, {"v": pa.int64()}))
    rows = size // 16 // EPOCHS
    for epoch in range(EPOCHS):
        keys = np.arange(epoch * rows, (epoch + 1) * rows)
        spine.insert(pa.table({"k": keys, "v": keys}), (epoch,))
    return spine.view()


def timed(
    action: Callable[[], object], prepare: Callable[[], object] = lambda: None
) -> tuple[float, float]:
    """Seconds: the median of a few rounds after the first, and the first, which touches new memory."""
    taken = []
    for _ in range(REPEATS + 1):
        prepare()
        start = time.perf_counter()
        result = action()
        taken.append(time.perf_counter() - start)
        del result
    return statistics.median(taken[1:]), taken[0]


def main() -> dict[str, Any]:
    view = build(scale("bytes", 1 << 30))
    files = [write_block(block) for block in {b.uid: b for b in view.blocks}.values()]
    sizes = [file.size for file in files]
    folder = Path(tempfile.mkdtemp(prefix="riverrun-bench-"))

    def clear() -> None:
        shutil.rmtree(folder)
        folder.mkdir()

    def write_plainly() -> None:
        for at, file in enumerate(files):
            with open(folder / str(at), "wb", buffering=0) as target:
                target.write(file)

    def read_plainly() -> list[bytes]:
        return [(folder / str(at)).read_bytes() for at in range(len(sizes))]

    try:
        plain = {"write": timed(write_plainly, clear), "read": timed(read_plainly)}
        files.clear()
        clear()
        checkpoints = Checkpoints(folder)
        ours = {
            "save": timed(lambda: Checkpoints(folder).save({"bench": view}), clear),
            "save_unchanged": timed(lambda: checkpoints.save({"bench": view})),
            "restore": timed(lambda: checkpoints.restore("bench")),
            "restore_mapped": timed(lambda: checkpoints.restore("bench", mapped=True)),
        }
    finally:
        shutil.rmtree(folder)
    megabytes = sum(sizes) / 1e6
    speed = {name: round(megabytes / taken[0]) for name, taken in (ours | plain).items()}
    first = {name: round(megabytes / taken[1]) for name, taken in (ours | plain).items()}
    return {
        "megabytes": round(megabytes),
        "files": len(sizes),
        **{f"{name}_MB_s": speed[name] for name in ("save", "restore", "restore_mapped")},
        **{f"first_{name}_MB_s": first[name] for name in ("save", "restore", "restore_mapped")},
        "save_unchanged_ms": round(ours["save_unchanged"][0] * 1e3, 1),
        "storage": version("obstore"),
        "peers": {
            "plain": {
                **{f"{name}_MB_s": speed[name] for name in plain},
                **{f"first_{name}_MB_s": first[name] for name in plain},
            }
        },
        "ratios": {
            "save_to_plain_write": round(plain["write"][0] / ours["save"][0], 2),
            "restore_to_plain_read": round(plain["read"][0] / ours["restore"][0], 2),
        },
    }
