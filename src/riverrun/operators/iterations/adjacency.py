"""Adjacency: the edges of a graph that changes, by source and by target.

`spreading` keeps one. Ends of edges are slots. Laws, which the kernels state more closely:

- **Counts.** An edge with the same ends and the same weight may be there several times; it is there while the sum of
  its diffs is above 0.
- **Constant work.** A change of an edge costs the same however many edges its ends have.

>>> graph = Adjacency(weighted=False)
>>> ends = np.array([0, 1], np.int32), np.array([1, 0], np.int32)
>>> change = graph.change(2, *ends, NO_WEIGHTS, np.array([2, 1]), 1, np.zeros(3, np.int64))
>>> len(change.fresh), len(change.gone)
(2, 0)
>>> change = graph.change(2, *ends, NO_WEIGHTS, np.array([1, 1]), -1, np.zeros(3, np.int64))
>>> change.gone.tolist()  # source, target and weight
[[1, 0, 0]]

Cost: 70 ns an edge that is loaded, 200 ns an edge that is changed; 60 bytes an edge, 16 more with weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from riverrun.operators.iterations.slots import Numbers, grown
from riverrun.state.columns import Ints
from riverrun.state.counted import counted
from riverrun.state.kernels.iterations import edges as kernels

NO_WEIGHTS = np.zeros(0, np.int64)
NO_EDGES = np.zeros(0, np.int32)
NO_ENDS = np.zeros((0, 3), np.int64)
_LEAST = 64
_MANY = 1024  # edges from which lists are built at once


@dataclass(frozen=True, slots=True)
class EdgeChange:
    """What became of the edges of a change."""

    fresh: Numbers
    """The ids of edges that became live."""
    gone: Ints
    """Source, target and weight of edges that are no longer there."""
    forbidden: tuple[int, int, int] | None
    """Source, target and weight of an edge whose weight is forbidden."""


class Adjacency:
    """The edges, in arrays that kernels read: `lists`, `ends` and `weights` by side, `edges` by id."""

    def __init__(self, *, weighted: bool) -> None:
        self._weighted = weighted
        self.sizes = np.zeros(kernels.SIZE_FIELDS, np.int64)
        self.sizes[kernels.FIRST_FREE] = -1
        self._table = np.full(2 * _LEAST, -1, np.int32)
        self.edges = np.empty((kernels.EDGE_FIELDS, _LEAST), np.int32)
        self.edge_weights = np.empty(_LEAST if weighted else 0, np.int64)
        self._counts = np.empty(_LEAST, np.int64)
        self.lists = np.zeros((2, kernels.LIST_FIELDS, _LEAST), np.int64)
        self._slots = 0
        self._make_pool(4 * _LEAST)

    def __len__(self) -> int:
        return int(self.sizes[kernels.LIVE])

    @property
    def improving(self) -> int:
        """How many edges have a weight along which a message may be better than the value."""
        return int(self.sizes[kernels.IMPROVING])

    def reserve(self, slots: int) -> None:
        """Have lists for so many slots."""
        room = self.lists.shape[2]
        if slots > room:
            self.lists = grown(self.lists, max(slots, 2 * room), self._slots, 0)
        self._slots = slots

    def change(
        self, slots: int, sources: Numbers, targets: Numbers, weights: Ints, diffs: Ints, sign: int, how: Ints
    ) -> EdgeChange:  # fmt: skip
        """Add diffs, times `sign`, to the counts of edges. There are `slots` slots in all.

        A target is the complement of a slot where the weight is null.
        """
        self.reserve(slots)
        rows = len(sources)
        self._reserve_records(int(self.sizes[kernels.RECORDS]) + rows)
        ids = np.empty(rows, np.int32)
        with counted:
            kernels.tally(
                sources, targets, weights, diffs, sign, self._table, self.edges, self.edge_weights,
                self._counts, self.sizes, ids,
            )  # fmt: skip
        built = rows >= _MANY and not len(self)
        if built:
            records = int(self.sizes[kernels.RECORDS])
            ids = np.arange(records, dtype=np.int32)
            self._make_pool(records + records // 4)
            self._build(slots)
        count = len(ids)
        fresh, gone = np.empty(count, np.int32), np.empty((count, 3), np.int64)
        found = np.array([0, 0, -1])
        done = 0
        while True:
            done = kernels.list_edges(
                ids, done, self._table, self.edges, self.edge_weights, self._counts, self.sizes,
                self.lists, self.ends, self._numbers, self.weights, how, built, fresh, gone, found,
            )  # fmt: skip
            if done == count:
                break
            self._make_room()
        came, went, forbidden = found.tolist()
        return EdgeChange(
            fresh[:came], gone[:went], None if forbidden < 0 else self._edge(forbidden)
        )

    def _edge(self, edge: int) -> tuple[int, int, int]:
        weight = int(self.edge_weights[edge]) if self._weighted else 0
        return (
            int(self.edges[kernels.SOURCE, edge]),
            int(self.edges[kernels.TARGET, edge]),
            weight,
        )

    def _build(self, slots: int) -> None:
        kernels.build_lists(
            self.edges, self.edge_weights, self._counts, self.sizes, self.lists, slots, self.ends,
            self._numbers, self.weights,
        )  # fmt: skip

    def _make_pool(self, room: int) -> None:
        self.ends = np.empty((2, room), np.int32)
        self._numbers = np.empty((2, room), np.int32)
        self.weights = np.empty((2, room if self._weighted else 0), np.int64)

    def _make_room(self) -> None:
        """More room in the pool; or the same, where half of it is gaps. Lists are written anew, without gaps."""
        longest = int(self.lists[:, kernels.COUNT, : self._slots].max(initial=0))
        self._make_pool(max(2 * len(self) + 2 * longest, 4 * _LEAST))
        self._build_listed()

    def _build_listed(self) -> None:
        """Write the lists anew with the edges that are in them, which may be others than the live ones."""
        counts = np.where(self.edges[kernels.PLACE, : len(self._counts)] >= 0, 1, 0)
        kernels.build_lists(
            self.edges, self.edge_weights, counts, self.sizes, self.lists, self._slots, self.ends,
            self._numbers, self.weights,
        )  # fmt: skip

    def _reserve_records(self, count: int) -> None:
        room = len(self._counts)
        if count > room:
            room = max(count, 2 * room)
            used = int(self.sizes[kernels.RECORDS])
            self.edges = grown(self.edges, room, used)
            self._counts = grown(self._counts, room, used)
            if self._weighted:
                self.edge_weights = grown(self.edge_weights, room, used)
        if 2 * count > len(self._table):
            self._table = np.empty(1 << (2 * count - 1).bit_length(), np.int32)
            kernels.fill_edges(self._table, self.edges, self.edge_weights, self.sizes)
