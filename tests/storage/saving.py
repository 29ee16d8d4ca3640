"""States to save, storages to save them in, and what must hold of what comes back."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from obstore.store import LocalStore, MemoryStore

from riverrun.errors import RiverrunError, TransportError
from riverrun.progress import Antichain
from riverrun.state import block as block_module
from riverrun.state import merge as merge_module
from riverrun.state import spine as spine_module
from riverrun.state.schema import Order, Schema
from riverrun.state.shards import END
from riverrun.state.spine import Spine
from riverrun.state.view import View
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.manifest import Manifest
from riverrun.storage.store import Storage
from tests.drawn_rows import plain_rows
from tests.oracle import Row, Time
from tests.state.checks import check_block, readable

KINDS = ("local", "memory")
SCHEMA = Schema.of(
    {"k": pa.string()},
    {"v": pa.list_(pa.int64()), "w": pa.float64()},
    order=[Order("w", descending=True)],
)


class Watched(Storage):
    """A storage that counts puts, and fails at the one it is told to."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage.store, storage.prefix)
        self.written: list[str] = []
        self.fail_at: int | None = None

    def put(self, name: str, data: Any) -> None:
        self._count(name)
        super().put(name, data)

    def create(self, name: str, data: Any) -> bool:
        self._count(name)
        return super().create(name, data)

    def _count(self, name: str) -> None:
        if self.fail_at is not None and len(self.written) >= self.fail_at:
            raise TransportError("storage.unreachable", f"cannot write {name}: told so")
        self.written.append(name)


def storage_of(kind: str, path: Path) -> Storage:
    return Storage(LocalStore(path, mkdir=True) if kind == "local" else MemoryStore(), "run/one")


def make_blocks_small(patch: pytest.MonkeyPatch) -> None:
    """Many blocks of few rows; and merges that wait for `work`."""
    patch.setattr(block_module, "BLOCK_ROWS", 16)
    patch.setattr(block_module, "CHUNK_ROWS", 8)
    patch.setattr(merge_module, "CHUNK_ROWS", 8)
    patch.setattr(spine_module, "LEAST_FUEL", 0)


def rows_of(rng: random.Random, count: int) -> pa.Table:
    return pa.table(
        {
            "k": [rng.choice([None, f"key {rng.randrange(80)}"]) for _ in range(count)],
            "v": pa.array(
                [rng.choice([None, [], [rng.randrange(3)] * 2]) for _ in range(count)],
                pa.list_(pa.int64()),
            ),
            "w": [rng.choice([None, 1.5, -0.0, float("nan")]) for _ in range(count)],
        }
    )


def grow(spine: Spine, rng: random.Random, epochs: int, rows: int = 40) -> Spine:
    """Some epochs more; merges are under way."""
    for _ in range(epochs):
        [(epoch,)] = spine.upper
        table = rows_of(rng, rows)
        spine.insert(table, (epoch,), [rng.choice([1, 1, 2, -1]) for _ in range(rows)])
        spine.work(rng.randrange(3 * rows))
    return spine


def state(seed: int = 0, epochs: int = 5) -> Spine:
    return grow(Spine("state", SCHEMA), random.Random(seed), epochs)


def contents(view: View, largest: int = 30) -> dict[Time, list[Row]]:
    """All that can be read of a view, at every time it can be read at."""
    names = [*view.schema.key.names, *view.schema.value.names, "count"]
    return {t: plain_rows(view.to_batch(t), names) for t in readable(view, largest)}


def check_chain(view: View) -> None:
    """Batches are adjacent up to the upper, and blocks keep their laws."""
    for a, b in pairwise(view.batches):
        assert a.upper == b.lower
    assert all(batch.upper == view.upper for batch in view.batches[-1:])
    for batch in view.batches:
        assert all(a.last < b.first for a, b in pairwise(batch.blocks))
        for block in batch.blocks:
            check_block(block, view.batches[0].lower)  # chains that are joined were cut differently


def part_of(view: View, low: int, high: int, since: Antichain | None = None) -> View:
    batches = tuple(batch.slice(low, high) for batch in view.batches)
    return View(view.name, view.schema, batches, view.since if since is None else since, view.upper)


def ranges(workers: int) -> list[tuple[int, int]]:
    cuts = [END * at // workers for at in range(workers + 1)]
    return list(pairwise(cuts))


def refused(action: Callable[[], object], code: str) -> RiverrunError:
    """The error an action ends in, which crosses process borders as it is."""
    with pytest.raises(RiverrunError) as caught:
        action()
    error = caught.value
    assert error.code == code
    assert error.hint
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.fields) == (type(error), str(error), error.fields)
    return error


def save(checkpoints: Checkpoints, spines: list[Spine]) -> Manifest:
    """As workers and their coordinator do it."""
    number = checkpoints.next_number()
    parts = [
        Checkpoints(checkpoints.storage).write({"state": spine.view()}, number, [(low, high)])
        for spine, (low, high) in zip(spines, ranges(len(spines)), strict=True)
    ]
    return checkpoints.publish(number, pickle.loads(pickle.dumps(parts[::-1])))
