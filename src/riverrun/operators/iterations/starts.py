"""Start values: rows of the solution and of the workset, as multisets, and the best of them for each key.

`spreading` keeps one `StartValues`, so that the next best row of a key is found when the best one is deleted. What is
best for each key lies in the arrays of `spreading`, at the number of the key (its *slot*, see `slots`). The laws are
those of `state.kernels.iterations.starts`.

Cost: 60 ns a row that is loaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riverrun.operators.iterations.ordinals import Moves
from riverrun.operators.iterations.slots import grown
from riverrun.state.columns import Ints
from riverrun.state.counted import counted
from riverrun.state.kernels.iterations import starts as kernels

_LEAST = 64


class StartValues:
    """The rows of start values."""

    def __init__(self, *, closes: bool) -> None:
        """`closes`: keys that are not in the solution may not be there."""
        self._closes = closes
        self._sizes = np.array([0, -1, 0])
        self._table = np.full(2 * _LEAST, -1, np.int32)
        self._rows = np.empty((kernels.ROW_FIELDS, _LEAST), np.int32)
        self._amounts = np.empty((kernels.AMOUNT_FIELDS, _LEAST), np.int64)

    @property
    def turning(self) -> int:
        """How many rows have a value whose products may be better than it is."""
        return int(self._sizes[kernels.TURNING])

    def change(
        self,
        staged: tuple[Any, Ints, Any, Ints, int],
        sign: int,
        arrays: tuple[Any, Any, Any, Any],
        count: int,
        how: Ints,
    ) -> int:
        """Add diffs, times `sign`, to the counts of rows: slots, words, ranks, diffs and side.

        `arrays` are words, cells and flags by slot, and the slots whose start value may differ, of which there are
        `count` already; the new number of them is the result.
        """
        slots, row_words, ranks, diffs, side = staged
        words, cells, flags, started = arrays
        self._reserve(int(self._sizes[kernels.RECORDS]) + len(slots))
        with counted:
            return int(
                kernels.change_starts(
                    slots, row_words, ranks, diffs, sign, side, self._table, self._rows, self._amounts,
                    self._sizes, words, cells, flags, started, count, how, self._closes,
                )
            )  # fmt: skip

    def move(self, moves: Moves) -> None:
        """Take new words for all rows."""
        moves(self._amounts[kernels.WORD, : int(self._sizes[kernels.RECORDS])])
        kernels.fill_rows(self._table, self._rows, self._amounts, self._sizes)

    def _reserve(self, count: int) -> None:
        room = self._rows.shape[1]
        if count > room:
            room, used = max(count, 2 * room), int(self._sizes[kernels.RECORDS])
            self._rows = grown(self._rows, room, used)
            self._amounts = grown(self._amounts, room, used)
        if 2 * count > len(self._table):
            self._table = np.empty(1 << (2 * count - 1).bit_length(), np.int32)
            kernels.fill_rows(self._table, self._rows, self._amounts, self._sizes)
