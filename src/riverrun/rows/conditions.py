"""Conditions on rows that are read: applied where the rows are.

>>> rows = pa.record_batch({"n": [1, None, 3]})
>>> Where("n", ">", 1).mask(rows).to_pylist()
[False, False, True]
>>> Where("n", ">", 1, negated=True).mask(rows).to_pylist()  # null is neither
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
    """A condition on one column: ``Where("node", ">", 3)``. Nulls satisfy "null" and nothing else.

    Besides `COMPARISONS`: "in", "null", and "same", which is "=" where null equals null.
    """

    column: str
    relation: str
    value: Any = None
    negated: bool = False

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """Which rows satisfy it; SQL's unknown is false, negated or not."""
        column = batch.column(batch.schema.get_field_index(self.column))
        if pa.types.is_dictionary(
            column.type
        ):  # whoever asks knows the values alone: an enum is text to Spark
            column = column.cast(column.type.value_type)
        if self.relation == "null" or (self.relation == "same" and self.value is None):
            found = pc.is_null(column)
        elif self.relation == "in":
            fitting = [value for value in self.value if _fits(value, column.type)]
            found = pc.is_in(column, pa.array(fitting, column.type))
            found = pc.if_else(pc.is_null(column), pa.scalar(None, pa.bool_()), found)
        elif self.relation == "same":
            found = pc.fill_null(pc.equal(column, _scalar(self.value, column.type)), False)
        elif self.relation in ("starts with", "ends with", "contains"):
            found = COMPARISONS[self.relation](column, self.value)
        else:
            found = COMPARISONS[self.relation](column, _scalar(self.value, column.type))
        if self.negated:
            found = pc.invert(found)
        return pc.fill_null(found, False)


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A value to compare a column with; one that is beyond its type as it is: 300, where bytes are."""
    return pa.scalar(value, kind) if _fits(value, kind) else pa.scalar(value)
