"""Deferred: a view of rows that somebody keeps in a form of its own, made when it is looked into.

An actor that keeps rows in memory, in whichever order suits it, gives one at every boundary. Most of
these are never looked into: only what goes into a checkpoint, or to another worker, is. Laws:

1. `make` gives the same rows whenever it is called: what it closes over never changes.
2. Looked into, it is a view like any other, of one batch.

>>> import pyarrow as pa
>>> from riverrun.state.schema import Schema
>>> schema = Schema.of({"k": pa.int64()}, {"v": pa.int64()})
>>> view = deferred(
...     "waiting", schema, 3, 1, lambda: Changes.of([pa.array([7]), pa.array([1])], (2,))
... )
>>> view
<View of 'waiting': 1 changes, readable from {(3,)} up to {(3,)}>

Cost: a microsecond, and sorting the rows when it is looked into.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from riverrun.progress import Antichain
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.schema import Schema
from riverrun.state.view import View


class Deferred(View):
    """Such a view."""

    make: Callable[[], Changes | None]

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """The one batch, once somebody looks."""
        changes = self.make()
        lower = Antichain([(0,) * len(next(iter(self.upper)))])
        if changes is None:
            return (Batch(self.schema, (), lower, self.upper, lower),)
        positions = tuple(range(len(self.schema.columns)))
        return (Batch.of(self.schema, changes, positions, lower, self.upper),)


def deferred(
    name: str, schema: Schema, epoch: int, depth: int, make: Callable[[], Changes | None]
) -> View:
    """A view, as of the boundary before `epoch`, of what `make` gives: changes at times before it, in physical order.

    None stands for no rows.
    """
    upper = Antichain.boundary(epoch, depth)
    view = object.__new__(Deferred)
    view.__dict__.update(name=name, schema=schema, since=upper, upper=upper, make=make)
    return view
