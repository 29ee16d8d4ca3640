"""Saving and restoring a gigabyte of state, beside writing and reading the same bytes plainly.

All in terms of memory and the page cache: nothing is synced, nothing is dropped. "Plain" is one
`write` and one `readinto` for each file of the same sizes, in one thread, into memory that was used before.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.state.checkpoint import Checkpoints
from riverrun.state.files import write_block
from riverrun.state.schema import Schema
from riverrun.state.spine import Spine
from riverrun.state.view import View

BYTES = 1 << 30
REPEATS = 3
EPOCHS = 4


def build(size: int) -> View:
    """A state of `size` bytes: int64 keys and values, in a few batches."""
    spine = Spine("bench", Schema.of({"key": pa.int64()}, {"value": pa.int64()}))
    rows = size // 16 // EPOCHS
    for epoch in range(EPOCHS):
        keys = np.arange(epoch * rows, (epoch + 1) * rows)
        spine.insert(pa.table({"key": keys, "value": keys}), (epoch,))
    return spine.view()


def median(action: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> float:
    """Seconds, after one round to warm up."""
    seconds = []
    for _ in range(REPEATS + 1):
        prepare()
        start = time.perf_counter()
        result = action()
        seconds.append(time.perf_counter() - start)
        del result
    return statistics.median(seconds[1:])


def main(size: int = BYTES) -> dict[str, Any]:
    view = build(size)
    blocks = list({block.uid: block for block in view.blocks}.values())
    folder = Path(tempfile.mkdtemp(prefix="riverrun-bench-"))

    def clear() -> None:
        shutil.rmtree(folder)
        folder.mkdir()

    try:
        files = [write_block(block) for block in blocks]
        total = sum(file.size for file in files)
        room = bytearray(max(file.size for file in files))

        def plain_write() -> None:
            for at, file in enumerate(files):
                with open(folder / str(at), "wb", buffering=0) as target:
                    target.write(file)

        def plain_read() -> None:
            for at in range(len(files)):
                with open(folder / str(at), "rb", buffering=0) as source:
                    source.readinto(room)

        seconds = {"plain_write": median(plain_write, clear)}
        seconds["plain_read"] = median(plain_read)
        files.clear()
        clear()
        seconds["save"] = median(lambda: Checkpoints(folder).save({"bench": view}), clear)
        seconds["restore"] = median(lambda: Checkpoints(folder).restore("bench"))
        seconds["restore_mapped"] = median(
            lambda: Checkpoints(folder).restore("bench", mapped=True)
        )
        again = Checkpoints(folder)
        seconds["save_unchanged"] = median(lambda: again.save({"bench": view}))
    finally:
        shutil.rmtree(folder)
    speed = {f"{name}_MB_s": round(total / s / 1e6) for name, s in seconds.items()}
    return {
        "megabytes": round(total / 1e6),
        "files": len(blocks),
        **speed,
        "save_to_plain_write": round(seconds["plain_write"] / seconds["save"], 3),
        "restore_to_plain_read": round(seconds["plain_read"] / seconds["restore"], 3),
        "save_unchanged_ms": round(seconds["save_unchanged"] * 1e3, 2),
    }


if __name__ == "__main__":
    print(json.dumps(main()))
