"""Exchange: rows travel between workers.

Front ends put an exchange before each operator for which it matters on which worker a row is. The routes:

- **key**: a row goes to the worker that owns the hash of its key. Workers own ranges of hashes, so the hash of a row
  stays the same whatever the number of workers. The key of no columns has the hash 0: all rows go to one worker.
- **row**: equal rows meet on one worker, no matter which. Rows move by all of their columns; where some key places
  them already, they do not move (`plan.placement`).
- **all**: every worker gets every row.
- **one**: all rows go to the worker that owns the first shard.
- **any**: rows go to the workers in turn, for balance; which worker gets a row depends on arrival.

Cost: by key and by row, hashing the key and cutting the batch in as many parts as there are workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from riverrun.operators.linear import PickedColumns, Project
from riverrun.plan.operator import Columns, Exchanging, PlacedInput, Placement
from riverrun.state.changes import Changes
from riverrun.state.shards import Shards


@dataclass(frozen=True)
class Exchange(Exchanging):
    """Sends rows to workers by a route; `columns` are the positions of the key."""

    route: str
    columns: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    combine: bool = False
    """Whether equal rows may be added up before they travel."""
    kind: ClassVar[str] = "exchange"

    @property
    def adds_before(self) -> bool:
        return self.combine

    def of_picked(
        self, positions: Sequence[int], schema: pa.Schema
    ) -> tuple[Project, Exchange] | None:
        places = {position: at for at, position in enumerate(positions)}
        if not self.goes_by_content or self.may_pass or not places.keys() >= {*self.columns}:
            return None
        fewer = pa.schema([schema.field(at) for at in positions])
        columns = tuple([places[at] for at in self.columns])
        picked = Project(PickedColumns(fewer, tuple(positions)), ", ".join(fewer.names))
        return picked, replace(self, columns=columns)

    def adding_before(self) -> Exchange | None:
        return replace(self, combine=True) if self.goes_by_content else None

    @property
    def goes_by_content(self) -> bool:
        return self.route in ("key", "row")

    @property
    def may_pass(self) -> bool:
        return self.route == "row"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        """The placement of the rows after they moved. `plan.placement` does not ask an exchange that lets rows pass."""
        if inputs[0].keys is None:
            return None
        return {self.columns} if self.goes_by_content else set()

    @property
    def dealt_by(self) -> Columns:
        return self.columns if self.route == "key" else ()

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return self.route != "any"

    def describe(self) -> str:
        by = "by row" if self.route == "row" else f"to {self.route}"
        if self.route == "key":
            by = f"by {', '.join(self.names)}" if self.names else "to one"
        return f"exchange {by}" + (", added up before" if self.combine else "")

    def dispatch(self, changes: Changes, shards: Shards, turn: int) -> list[Changes | None]:
        """The changes for each worker; None for none."""
        workers = shards.workers
        if self.route == "all":
            return [changes] * workers
        if self.route == "any":
            return [changes if at == turn % workers else None for at in range(workers)]
        if self.route == "one":
            return [changes if at == shards.first else None for at in range(workers)]
        return changes.partition(self.columns, shards)
