"""Shares: which rows of an epoch each worker gets.

The coordinator has a `Dealer`, which makes the `Feed` of each member, and calls `shares_of` for every epoch of a run
that has several workers. An input whose rows are all exchanged by the same key right away has an `InputRoute`: each of
its rows goes to the worker that owns the hash of that key, so the exchange need not move the row again. The rows of
every other input are cut into equal parts. Which worker takes a row in makes no difference to results. Rows of Spark's
DataFrames lie at workers already, in parcels: `share_of_parcels` gives each parcel to the worker that holds it, and
deals out those whose holder is gone.

>>> import pyarrow as pa
>>> from riverrun.state.shards import Shards
>>> rows = pa.record_batch({"n": [1, 2, 3]})
>>> [share["a"].num_rows for share in shares_of({"a": rows}, Shards.even(2), {})]
[1, 2]
>>> routes = {"a": InputRoute(pa.schema({"n": pa.int64()}), (0,))}
>>> [share["a"].column(0).to_pylist() for share in shares_of({"a": rows}, Shards.even(2), routes)]
[[3], [1, 2]]

Cost: some 30 ns for each row of an input with a route; nothing per row for other inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import pyarrow as pa

from riverrun.engine.coordinator.epochs import OpenEpoch
from riverrun.engine.messages import Feed, Inputs, Parcels
from riverrun.plan.plan import Plan, Port
from riverrun.rows.records import canonical_columns
from riverrun.state.changes import split_rows
from riverrun.state.columns import take_columns
from riverrun.state.shards import Shards


@dataclass(frozen=True)
class InputRoute:
    """Each row of an input goes first to the worker that owns the hash of the columns at these positions."""

    schema: pa.Schema
    columns: tuple[int, ...]

    @cached_property
    def _key(self) -> pa.Schema:
        return pa.schema([self.schema.field(at) for at in self.columns])

    def split(self, batch: pa.RecordBatch, shards: Shards) -> list[pa.RecordBatch]:
        """Cut a batch into the rows of each worker, by index."""
        keys = canonical_columns(batch.select(list(self.columns)), self._key)
        order, starts = split_rows(keys, batch.num_rows, shards)
        columns = take_columns(batch.columns, order)
        ordered = pa.RecordBatch.from_arrays(list(columns), schema=batch.schema)
        return [ordered.slice(start, stop - start) for start, stop in pairwise(starts)]


def routes_of(plan: Plan) -> dict[str, InputRoute]:
    """The routes of the inputs that have one: all that reads the input exchanges its rows by the same key.

    Only a step that takes marks may read such an input besides: marks cost next to nothing wherever the rows are. Where
    other work reads the input too, its rows are better cut evenly, and the input has no route.
    """
    routes = {}
    for name, node in plan.inputs.items():
        takers = plan.consumers.get(Port(node.number), [])
        keys = {taker.operator.dealt_by for taker, _ in takers} - {None}
        if len(keys) == 1 and (columns := keys.pop()):
            routes[name] = InputRoute(node.schemas[0], columns)
    return routes


def shares_of(inputs: Inputs, shards: Shards, routes: Mapping[str, InputRoute]) -> list[Inputs]:
    """The inputs of an epoch, cut into one share for each worker."""
    count = shards.workers
    shares: list[dict[str, pa.RecordBatch]] = [{} for _ in range(count)]
    for name, batch in inputs.items():
        rows = batch.num_rows
        if name in routes and rows:
            parts = routes[name].split(batch, shards)
        else:
            cuts = [rows * index // count for index in range(count + 1)]
            parts = [batch.slice(start, stop - start) for start, stop in pairwise(cuts)]
        for share, part in zip(shares, parts, strict=True):
            if part.num_rows:
                share[name] = part
    return list(shares)


def share_of_parcels(parcels: Parcels, index: int, members: list[int]) -> Parcels:
    """The parcels of an epoch for one worker: the parcels that it holds, and a part of those without a holder."""
    share = {}
    for name, listed in parcels.items():
        mine = []
        for at, parcel in enumerate(listed):
            held = parcel.holder in members
            if members[index] == parcel.holder if held else at % len(members) == index:
                mine.append(parcel)
        if mine:
            share[name] = tuple(mine)
    return share


class Dealer:
    """Makes the `Feed` of each member from an open epoch."""

    def __init__(self, routes: Mapping[str, InputRoute] | None = None) -> None:
        self._routes = routes or {}

    def prepare(self, entry: OpenEpoch, shards: Shards) -> None:
        """Cut the rows of an epoch that is fed later, if that takes time; may be called at any time."""
        if self._routes and not entry.dropped and shards.workers > 1:
            self._shares(entry, shards)

    def feeds(
        self, execution: int, epoch: int, entry: OpenEpoch, members: list[int], shards: Shards
    ) -> list[tuple[int, Feed]]:
        """What each member is fed, with its address."""
        if len(members) == 1:
            return [(members[0], Feed(execution, epoch, entry.inputs, entry.parcels))]
        feeds = []
        for index, (member, share) in enumerate(
            zip(members, self._shares(entry, shards), strict=True)
        ):
            parcels = share_of_parcels(entry.parcels, index, members) if entry.parcels else {}
            feeds.append((member, Feed(execution, epoch, share, parcels)))
        entry.shares = None
        return feeds

    def _shares(self, entry: OpenEpoch, shards: Shards) -> list[Inputs]:
        """The rows of each worker, as the shards are now."""
        if entry.shares is None or entry.shares[0] is not shards:
            entry.shares = shards, shares_of(entry.inputs, shards, self._routes)
        return entry.shares[1]
