"""Conditions on rows that are read, applied by the worker that has the rows.

The data source of Spark (`spark.source`) pushes its filters down as these; `records.narrowed` applies them.

>>> rows = pa.record_batch({"n": [1, None, 3]})
>>> Where("n", ">", 1).mask(rows).to_pylist()
[False, False, True]
>>> Where("n", ">", 1, negated=True).mask(rows).to_pylist()  # null satisfies neither
[True, False, False]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

COMPARISONS = {
    "=": pc.equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    "starts with": pc.starts_with,
    "ends with": pc.ends_with,
    "contains": pc.match_substring,
}


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on one column: ``Where("node", ">", 3)``.

    Relations are those of `COMPARISONS`, and "in", "null", and "same", which is "=" with null equal to null. For any
    relation but "null" and "same" a null is unknown, as in SQL, and satisfies the condition neither plain nor negated.
    """

    column: str
    relation: str
    value: Any = None
    negated: bool = False

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """Which rows satisfy the condition."""
        column = batch.column(batch.schema.get_field_index(self.column))
        if pa.types.is_dictionary(column.type):  # Spark compares an enum as text
            column = column.cast(column.type.value_type)
        if self.relation == "null" or (self.relation == "same" and self.value is None):
            satisfied = pc.is_null(column)
        elif self.relation == "in":
            fitting = [value for value in self.value if _fits(value, column.type)]
            satisfied = pc.is_in(column, pa.array(fitting, column.type))
            satisfied = pc.if_else(pc.is_null(column), pa.scalar(None, pa.bool_()), satisfied)
        elif self.relation == "same":
            satisfied = pc.fill_null(pc.equal(column, _scalar(self.value, column.type)), False)
        elif self.relation in ("starts with", "ends with", "contains"):
            satisfied = COMPARISONS[self.relation](column, self.value)
        else:
            satisfied = COMPARISONS[self.relation](column, _scalar(self.value, column.type))
        if self.negated:
            satisfied = pc.invert(satisfied)
        return pc.fill_null(satisfied, False)


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A value to compare with a column: in the type of the column if it fits, else in its own (300 with an int8)."""
    return pa.scalar(value, kind) if _fits(value, kind) else pa.scalar(value)
