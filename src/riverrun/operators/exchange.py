"""Exchange: rows travel between workers. By key, by row, to all, to any, or all to one.

By key, a row goes to the worker that owns the hash of its key: the same for ever, whatever the
number of workers, since a worker owns ranges of hashes. By row, equal rows meet on one worker, it does not
matter which: rows move by all of their columns, and not at all where they are placed by some key without this
exchange (`plan.placement`). All to one is the key of no columns, whose
hash is 0. To any is for balance: which worker a row goes to depends on arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from riverrun.plan.operator import Columns, Exchanging, PlacedInput, Placement
from riverrun.state.changes import Changes
from riverrun.state.shards import Shards


@dataclass(frozen=True)
class Exchange(Exchanging):
    """Rows go to the workers that `route` says; `columns` are the positions of the key."""

    route: str
    columns: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    combine: bool = False
    """Whether equal rows may be added up before they travel."""
    kind: ClassVar[str] = "exchange"

    @property
    def adds_before(self) -> bool:
        return self.combine

    @property
    def goes_by_content(self) -> bool:
        return self.route in ("key", "row")

    @property
    def may_pass(self) -> bool:
        return self.route == "row"

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        """Where rows are moved; one by row that lets them pass leaves their placement as it is."""
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
        """What each worker gets."""
        workers = shards.workers
        if self.route == "all":
            return [changes] * workers
        if self.route == "any":
            return [changes if at == turn % workers else None for at in range(workers)]
        if self.route == "one":
            return [changes if at == shards.first else None for at in range(workers)]
        return changes.partition(self.columns, shards)
