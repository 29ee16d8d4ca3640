"""Programs that the simulation runs: an instance, random input, and the expected output.

`Counting` stands in for a plan: small enough to be read quickly, and sensitive to faults of the protocol. Rows go to
the worker that owns the hash of their key, in several messages. Workers announce themselves and the number of messages
that they have sent; an epoch is complete on a worker that has all of these. Half of the keys store the epoch of their
rows, so a row that is counted in a wrong epoch shows. Old versions are compacted away, so a state that is restored as
of a wrong epoch shows. A key of -1 makes the worker that owns it fail.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from riverrun.engine.messages import Inputs, InstanceInterface, States
from riverrun.errors import OperatorFailed
from riverrun.progress import Antichain
from riverrun.state import Schema, Spine
from riverrun.state.batch import hash_key
from riverrun.state.columns import node_table
from riverrun.state.shards import Shards
from riverrun.state.view import View

Result = Mapping[Any, int]
POISON = -1
SCHEMA = Schema.of({"key": pa.int64()}, {"epoch": pa.int64()})


class Program(Protocol):
    """What the simulation needs to know of a program."""

    name: str
    saves_rounds: bool
    """Whether it has a loop that can be saved between two rounds."""

    def make_instance(
        self, index: int, shards: Shards, epoch: int, states: States | None, /
    ) -> InstanceInterface: ...

    def draw(self, source: random.Random, past: Sequence[Inputs]) -> Inputs:
        """Random input of an epoch; `past` is that of the epochs before."""

    def fails(self, inputs: Inputs) -> bool:
        """Whether the input of an epoch makes an instance fail."""

    def oracle(self, past: Sequence[Inputs]) -> Result:
        """The result as of the end, from scratch."""

    def read(self, instances: Sequence[Any], epoch: int) -> Result:
        """The result that the instances of all workers hold as of an epoch."""


def owners(keys: np.ndarray[Any, Any], shards: Shards) -> np.ndarray[Any, Any]:
    """Which worker owns each key."""
    nodes = node_table([pa.array(keys, pa.int64())], [False])
    hashes = hash_key(SCHEMA, nodes, len(keys))
    inner = np.array(shards.bounds[1:-1], np.uint64)
    return np.array(shards.owners)[np.searchsorted(inner, hashes, side="right")]


class CountingInstance:
    """One worker's share of the keys."""

    def __init__(
        self, index: int, shards: Shards, epoch: int, states: States | None, chunk: int = 2
    ) -> None:
        self.index = index
        self.completed = epoch
        self.fed = epoch
        self._shards = shards
        self._peers = shards.workers
        self._chunk = chunk
        if states is None:
            self.spine = Spine("counts", SCHEMA)
        else:
            self.spine = Spine.from_view(states["counts"])
            assert self.spine.upper == Antichain([(epoch,)]), (self.spine.upper, epoch)
        hello = ("hello", epoch, None)
        self._out: list[tuple[int, Any]] = [(p, hello) for p in range(self._peers) if p != index]
        self._greeted = {index}
        self._in: list[tuple[int, Any]] = []
        self._rows: dict[int, list[tuple[int, int]]] = {}
        self._chunks: Counter[tuple[int, int]] = Counter()
        self._announced: dict[tuple[int, int], int] = {}

    def feed(self, epoch: int, inputs: Inputs) -> None:
        assert epoch == self.fed == self.completed, (epoch, self.fed, self.completed)
        self.fed = epoch + 1
        shares: list[list[tuple[int, int]]] = [[] for _ in range(self._peers)]
        batch = inputs.get("rows")
        if batch is not None:
            keys = batch.column(0).to_numpy()
            for owner, key, diff in zip(
                owners(keys, self._shards), keys, batch.column(1).to_numpy(), strict=True
            ):
                shares[int(owner)].append((int(key), int(diff)))
        for peer, rows in enumerate(shares):
            chunks = [rows[at : at + self._chunk] for at in range(0, len(rows), self._chunk)]
            messages = [("rows", epoch, chunk) for chunk in chunks] + [("sent", epoch, len(chunks))]
            if peer == self.index:
                self._in += [(peer, message) for message in messages]
            else:
                self._out += [(peer, message) for message in messages]

    def receive(self, sender: int, payload: Any) -> None:
        self._in.append((sender, payload))

    def work(self) -> bool:
        if self._in:
            sender, (kind, epoch, what) = self._in.pop(0)
            assert epoch >= self.completed, (epoch, self.completed)
            if kind == "hello":
                assert sender not in self._greeted
                self._greeted.add(sender)
            elif kind == "sent":
                self._announced[sender, epoch] = what
            else:
                self._chunks[sender, epoch] += 1
                self._rows.setdefault(epoch, []).extend(what)
            return True
        epoch = self.completed
        if self.fed > epoch and all(
            peer in self._greeted
            and self._announced.get((peer, epoch)) == self._chunks[peer, epoch]
            for peer in range(self._peers)
        ):
            self._apply(epoch, self._rows.pop(epoch, []))
            return True
        return False

    def _apply(self, epoch: int, rows: list[tuple[int, int]]) -> None:
        if any(key == POISON for key, _ in rows):
            raise OperatorFailed("operator.poison", f"poison in epoch {epoch}", hint="none")
        if rows:
            keys, diffs = (np.array(column, np.int64) for column in zip(*rows, strict=True))
            table = pa.record_batch({"key": keys, "epoch": np.where(keys % 2, epoch, 0)})
            self.spine.insert(table, (epoch,), diffs)
        else:
            self.spine.advance_upper(Antichain([(epoch + 1,)]))
        self.spine.advance_since(Antichain([(epoch,)]))
        self.completed = epoch + 1

    def take(self) -> list[tuple[int, Any]]:
        out, self._out = self._out, []
        return out

    def notes(self) -> tuple[dict[str, Any], ...]:
        return ()

    def pin(self) -> Mapping[str, View]:
        assert self.fed == self.completed
        return {"counts": self.spine.view()}


class Counting:
    """How often each key is there."""

    name = "counting"
    saves_rounds = False

    def make_instance(
        self, index: int, shards: Shards, epoch: int, states: States | None, /
    ) -> CountingInstance:
        return CountingInstance(index, shards, epoch, states)

    def draw(self, source: random.Random, past: Sequence[Inputs]) -> Inputs:
        count = source.choice((0, 1, 1, 2, 5))
        keys = [source.randrange(8) for _ in range(count)]
        if source.random() < 0.08:
            keys.append(POISON)
        return rows_of(keys, [source.choice((1, 1, -1, 2)) for _ in keys])

    def fails(self, inputs: Inputs) -> bool:
        return any(POISON in batch.column(0).to_pylist() for batch in inputs.values())

    def oracle(self, past: Sequence[Inputs]) -> Result:
        counts: Counter[tuple[int, int]] = Counter()
        for epoch, inputs in enumerate(past):
            for batch in inputs.values():
                columns = batch.column(0).to_pylist(), batch.column(1).to_pylist()
                for key, diff in zip(*columns, strict=True):
                    counts[key, epoch if key % 2 else 0] += diff
        return {key: count for key, count in counts.items() if count}

    def read(self, instances: Sequence[Any], epoch: int) -> Result:
        counts: dict[tuple[int, int], int] = {}
        for instance in instances:
            rows = instance.spine.to_batch((epoch,)).to_pydict()
            for key, at, count in zip(rows["key"], rows["epoch"], rows["count"], strict=True):
                assert (key, at) not in counts, f"{key} is held by two workers"
                counts[key, at] = count
        return counts


def rows_of(keys: Sequence[int], diffs: Sequence[int] | None = None) -> Inputs:
    """Input for `Counting`."""
    diffs = [1] * len(keys) if diffs is None else diffs
    return {
        "rows": pa.record_batch(
            {"key": pa.array(keys, pa.int64()), "diff": pa.array(diffs, pa.int64())}
        )
    }
