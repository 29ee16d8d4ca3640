"""Messages: what a value becomes on its way along an edge, and values as the words that kernels compare.

`spreading` takes a `Message`. Words are described in `state.kernels.iterations.messages`. Laws:

- **Order.** The order of words is that of `rr.min`, or the opposite one for the greatest: NaN is the greatest float and
  equal to itself, zero has no sign.
- **Arithmetic.** A message is what Polars computes from value and weight in the type of the value, except that an
  integer never wraps around. A message made of a null is null.

>>> words = Words(pa.float64(), greatest=True)
>>> read, ranks = words.read(pa.array([1.5, None, float("nan")]))
>>> bool(read[2] < read[0] < read[1]), words.write(read, ranks).to_pylist()
(True, [1.5, None, nan])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.state.columns import Ints, cell_width, column_table, kind_of
from riverrun.state.kernels import layout
from riverrun.state.kernels.iterations import messages as kernels

Ranks = np.ndarray[Any, np.dtype[np.int8]]

_OPERATIONS = {
    "copy": kernels.COPY,
    "add": kernels.ADD,
    "multiply": kernels.MULTIPLY,
    "min": kernels.LESSER,
    "max": kernels.GREATER,
}
_T = pa.types


@dataclass(frozen=True)
class Message:
    """What is sent along an edge: the value itself, or the value and a weight put together."""

    operation: str = "copy"
    """``copy``, ``add``, ``multiply``, ``min`` or ``max``."""
    constant: Any = None
    """The weight of every edge; None where each edge has its own, or needs none."""

    @property
    def is_weighted(self) -> bool:
        """Whether edges have weights of their own."""
        return self.operation != "copy" and self.constant is None


class Words:
    """Turns columns of values into words and back."""

    def __init__(self, kind: pa.DataType, *, greatest: bool) -> None:
        node = kind_of(kind)
        if node not in (layout.INT, layout.UINT, layout.FLOAT, layout.BIT) or (
            kind.bit_width == 16 and node == layout.FLOAT
        ):
            raise PlanError(
                "iteration.type",
                f"cannot spread values of type {kind}: values are integers, floats of 32 or 64 bits, dates, times, "
                "timestamps, durations or truth values",
                hint="use a loop without arrays",
                type=str(kind),
            )
        self.kind = kind
        self.node = node
        self.width = cell_width(kind)
        self.flip = -1 if greatest else 0
        self.form, self.low, self.high = kernels.WHOLE, 0, 0
        if node == layout.FLOAT:
            self.form = kernels.DOUBLE if self.width == 8 else kernels.SINGLE
        elif node == layout.UINT:
            self.high = (1 << 8 * self.width) - 1
            if self.width == 8:
                self.form, self.high = kernels.UNSIGNED, 0
        elif node == layout.INT:
            self.low, self.high = -(1 << 8 * self.width - 1), (1 << 8 * self.width - 1) - 1

    def read(self, column: pa.Array, *, plain: bool = False) -> tuple[Ints, Ranks]:
        """The words and ranks of values; or, where `plain`, the integers themselves, and floats as bits of doubles."""
        rows = len(column)
        words, ranks = np.empty(rows, np.int64), np.empty(rows, np.int8)
        kernels.read_words(column_table([column]), rows, self.form, self.flip, plain, words, ranks)
        return words, ranks

    def write(self, words: Ints, ranks: Ranks) -> pa.Array:
        """The values of words; null where the rank is not that of a value."""
        rows = len(words)
        size = (rows + 7) // 8
        cells = np.zeros(size if self.node == layout.BIT else rows * self.width, np.uint8)
        valid = np.zeros(size, np.uint8)
        nulls = kernels.write_words(
            words, ranks, self.form, self.flip, self.node, self.width, cells, valid
        )
        bitmap = pa.py_buffer(valid) if nulls else None
        return pa.Array.from_buffers(self.kind, rows, [bitmap, pa.py_buffer(cells)], nulls)

    def shown(self, word: int) -> Any:
        """The value of a word, for people."""
        return self.write(np.array([word]), np.zeros(1, np.int8))[0].as_py()

    def operation(self, message: Message) -> int:
        """The number of an operation, which is refused where values of this type have no such arithmetic."""
        number = _OPERATIONS.get(message.operation)
        arithmetic = message.operation in ("add", "multiply")
        able = _T.is_integer(self.kind) or _T.is_floating(self.kind)
        if message.operation == "add":
            able |= _T.is_timestamp(self.kind) or _T.is_duration(self.kind)
        if number is None or (arithmetic and not able):
            raise PlanError(
                "iteration.message",
                f"cannot {message.operation!r} values of type {self.kind} and a weight",
                hint="messages are copy, add, multiply, min and max; add and multiply are for numbers",
                operation=message.operation,
                type=str(self.kind),
            )
        return number

    @property
    def weight_kind(self) -> pa.DataType:
        """The type of weights: that of values, but what is added to a timestamp is a duration."""
        return pa.duration(self.kind.unit) if _T.is_timestamp(self.kind) else self.kind
