"""Depths: the same rows at times of another depth, as one sees them from inside of a loop or from outside.

Rows that were there before a loop begins are there in round 0 of it. So an arrangement outside of a loop serves readers
inside, who see its times with a round 0 added (`operators.entered`); and a state that a checkpoint has from inside of
a loop can be taken by a run that keeps it outside, and the other way round (`engine.coordinator.resume`). Laws:

- **Same rows.** What is read as of time t is what is read, at the other depth, as of t with rounds 0 added or left out.
- **Round 0 alone.** Rounds are left out only of states all of whose changes are in round 0.

>>> import pyarrow as pa
>>> from riverrun.state import Schema, Spine
>>> edges = Spine("edges", Schema.of({"src": pa.int64()}, {"dst": pa.int64()}))
>>> edges.insert(pa.table({"src": [1, 2], "dst": [2, 3]}), time=(4,))
>>> inside = view_at_depth(edges.view(), 2)
>>> inside.lookup(pa.array([2]), as_of=(4, 7)).column("dst").to_pylist()
[3]

Cost: some microseconds for each batch and block; nothing per row, as blocks have their times in a table.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from riverrun.progress import Antichain, Timestamp
from riverrun.state.batch import Batch
from riverrun.state.block import Block
from riverrun.state.kernels import layout
from riverrun.state.times import addressed_table
from riverrun.state.view import View


def view_at_depth(view: View, depth: int) -> View:
    """The same state at times of `depth` coordinates."""
    return View(
        view.name,
        view.schema,
        tuple([batch_at_depth(batch, depth) for batch in view.batches]),
        frontier_at_depth(view.since, depth),
        frontier_at_depth(view.upper, depth),
    )


def batch_at_depth(batch: Batch, depth: int) -> Batch:
    """The same changes at times of `depth` coordinates."""
    return replace(
        batch,
        blocks=tuple([_block_at_depth(block, depth) for block in batch.blocks]),
        lower=frontier_at_depth(batch.lower, depth),
        upper=frontier_at_depth(batch.upper, depth),
        since=frontier_at_depth(batch.since, depth),
    )


def frontier_at_depth(frontier: Antichain, depth: int) -> Antichain:
    """The same frontier at times of `depth` coordinates."""
    return Antichain([time_at_depth(time, depth) for time in frontier])


def time_at_depth(time: Timestamp, depth: int) -> Timestamp:
    """A time with rounds 0 added, or without its rounds."""
    return (*time, *(0,) * (depth - len(time)))[:depth]


def _block_at_depth(block: Block, depth: int) -> Block:
    """The same rows, over the same buffers, with a table of times of their own."""
    if any(any(time[depth:]) for time in block.times):
        raise ValueError(f"{block!r} has changes in rounds after the first")
    times = tuple([time_at_depth(time, depth) for time in block.times])
    table, address = addressed_table(times)
    descriptor = block.descriptor.copy()
    descriptor[layout.TIMES] = address
    other = object.__new__(type(block))
    other.__dict__.update(block.__dict__)
    other.__dict__.update(times=times, time_table=table, descriptor=descriptor, uid=uuid4().hex)
    return other
