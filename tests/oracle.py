"""The reference for a state: a list of changes, and reads that look at all of them.

Tests of everything under ``riverrun.state`` compare with it. It is slow, on one page, and without cleverness.

A change is ``(key, value, time, diff)``. Keys and values are tuples of plain Python values, one for
each column as declared: numbers, strings, bytes, booleans, None for null, tuples for lists and for
structs (``tests.drawn_rows`` turns Arrow into these and back). ``NAN`` is the only NaN, so that two rows are
the same when Python says that they are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cmp_to_key
from typing import Any

NAN = float("nan")

Row = tuple[Any, ...]
Time = tuple[int, ...]
Change = tuple[Row, Row, Time, int]


def before(a: Time, b: Time) -> bool:
    """Whether time `a` is at or before `b`: in every coordinate."""
    return all(x <= y for x, y in zip(a, b, strict=True))


def rank(cell: Any) -> Any:
    """The sort key of a cell: numbers, then NaN, then null; a list after its own prefixes."""
    if cell is None:
        return (2,)
    if cell is NAN:
        return (1,)
    return (0, tuple(map(rank, cell)) if isinstance(cell, tuple) else cell)


backwards = cmp_to_key(lambda a, b: (a < b) - (a > b))
"""A sort key for the reverse order."""


@dataclass
class Reference:
    """All changes that ever came; `order` is the declared order: (value column, descending)."""

    order: tuple[tuple[int, bool], ...] = ()
    changes: list[Change] = field(default_factory=list)

    def insert(self, changes: Iterable[Change]) -> None:
        self.changes += changes

    def read(self, as_of: Time, key: Row | None = None) -> dict[tuple[Row, Row], int]:
        """How often each (key, value) is there as of a time; those with zero are left out."""
        counts: dict[tuple[Row, Row], int] = {}
        for k, value, time, diff in self.changes:
            if before(time, as_of) and (key is None or k == key):
                counts[k, value] = counts.get((k, value), 0) + diff
        return {row: count for row, count in counts.items() if count != 0}

    def cell_rank(self, cell: Any, descending: bool) -> Any:
        """Nulls come last either way."""
        return (cell is None, backwards(rank(cell)) if descending else rank(cell))

    def value_rank(self, value: Row) -> Any:
        """The declared order first, then the other columns."""
        declared = [self.cell_rank(value[at], descending) for at, descending in self.order]
        ordered = {at for at, _ in self.order}
        return (*declared, *(rank(cell) for at, cell in enumerate(value) if at not in ordered))

    def lookup(self, key: Row, as_of: Time) -> list[tuple[Row, int]]:
        """The values of a key and how often each is there, in order."""
        rows = [(value, count) for (_, value), count in self.read(as_of, key).items()]
        return sorted(rows, key=lambda item: self.value_rank(item[0]))

    def first(
        self, key: Row, as_of: Time, k: int, skip_null: bool = False
    ) -> list[tuple[Row, int]]:
        """At most k live values from the start of the order."""
        return self._live(key, as_of, skip_null)[:k]

    def last(
        self,
        key: Row,
        as_of: Time,
        k: int,
        at: Any = ...,
        closed: bool = True,
        skip_null: bool = False,
    ) -> list[tuple[Row, int]]:
        """At most k live values from the end backwards; with `at`, only values up to this bound."""
        live = self._live(key, as_of, skip_null)
        if at is not ...:
            column, descending = self.order[0]
            bound = self.cell_rank(at, descending)

            def within(value: Row) -> bool:
                here = self.cell_rank(value[column], descending)
                return here < bound or (closed and here == bound)

            live = [item for item in live if within(item[0])]
        return live[::-1][:k]

    def _live(self, key: Row, as_of: Time, skip_null: bool) -> list[tuple[Row, int]]:
        column = self.order[0][0] if self.order else 0
        return [
            (value, count)
            for value, count in self.lookup(key, as_of)
            if count > 0 and not (skip_null and value and value[column] is None)
        ]

    def slice(self, low: int, high: int, hash_of: Callable[[Row], int]) -> Reference:
        """A reference with the changes of the keys whose hash is in [low, high)."""
        return Reference(self.order, [c for c in self.changes if low <= hash_of(c[0]) < high])

    def copy(self) -> Reference:
        return Reference(self.order, list(self.changes))
