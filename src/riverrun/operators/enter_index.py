"""Enter index: an arrangement outside of a loop, as it is seen from inside.

What does not depend on a loop is the same in all of its rounds. So its arrangement need not be made once more inside:
the optimizer puts an `EnterIndex` between an arrangement outside and the readers inside (`plan.optimizer.hoisting`),
as an `Enter` (`operators.loops`) stands between changes outside and those inside. Several loops, and steps outside of
all loops, then read one arrangement. Laws:

- **Round 0.** Readers see each change of time t at t with round 0 (`View.at_depth`).
- **No rows.** It keeps no rows: readers find those of the arrangement outside.

Cost: some microseconds for each batch that is appended outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from riverrun.plan.operator import Actor, Arranged, Arrangement, Context, Operator
from riverrun.progress import Summary, Timestamp
from riverrun.state import Schema, Spine
from riverrun.state.batch import Batch
from riverrun.state.times import frontier_at_depth, time_at_depth
from riverrun.state.view import View


@dataclass(frozen=True)
class EnterIndex(Operator):
    """Brings an arrangement into a loop."""

    kind: ClassVar[str] = "index"
    same_rows: ClassVar[bool] = True
    steps_out: ClassVar[int] = -1
    reads_arrangements: ClassVar[bool] = True

    @property
    def passes_arrangement(self) -> bool:
        return True

    def summary(self, depth: int) -> Summary:
        return Summary.enter(depth)

    def describe(self) -> str:
        return "enter, as an index"

    def start(self, context: Context) -> Actor:
        return EnteredIndex(context)


class EnteredIndex(Arranged):
    """An arrangement outside of a loop on a worker, for readers inside."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        (source,) = context.sources
        assert isinstance(source, Arranged)
        self.arrangement = _Inside(source.arrangement, self.node.depth)
        source.arrangement.readers.append(self._came)

    def _came(self, batch: Batch, time: Timestamp) -> None:
        """A batch was appended outside."""
        self.announced(0, batch, time)

    def announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        """Announce a batch, or the whole content in a backfill, to the readers inside."""
        self.context.arrive(port, time)
        inside = self.arrangement
        assert isinstance(inside, _Inside)
        entered, depth = inside.entered(batch), self.node.depth
        for reader in inside.readers:
            reader(entered, time_at_depth(time, depth))

    def boundary(self, epoch: int) -> None:
        """Nothing: the arrangement outside moves its frontiers by itself."""


class _Inside(Arrangement):
    """What readers inside a loop know of an arrangement outside."""

    __slots__ = ("_batches", "_seen", "depth", "source")

    def __init__(self, source: Arrangement, depth: int) -> None:
        super().__init__(cast("Spine", _SpineInside(self)))
        self.source = source
        self.depth = depth
        self._seen: tuple[View, View] | None = None
        self._batches: dict[Batch, Batch] = {}
        """The batches of the arrangement outside, each as it is seen inside."""

    def entered(self, batch: Batch) -> Batch:
        """A batch as it is seen inside; the same object for the same batch."""
        entered = self._batches.get(batch)
        if entered is None:
            entered = self._batches[batch] = batch.at_depth(self.depth)
        return entered

    def view(self) -> View:
        """The arrangement as it stands."""
        outside = self.source.spine.view()
        if self._seen is None or self._seen[0] is not outside:
            batches = tuple([self.entered(batch) for batch in outside.batches])
            self._batches = dict(zip(outside.batches, batches, strict=True))
            since = frontier_at_depth(outside.since, self.depth)
            upper = frontier_at_depth(outside.upper, self.depth)
            self._seen = outside, View(outside.name, outside.schema, batches, since, upper)
        return self._seen[1]


class _SpineInside:
    """As much of a spine as readers inside a loop use."""

    __slots__ = ("_inside",)

    def __init__(self, inside: _Inside) -> None:
        self._inside = inside

    @property
    def schema(self) -> Schema:
        return self._inside.source.spine.schema

    def view(self) -> View:
        return self._inside.view()
