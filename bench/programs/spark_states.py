"""Counts in Python with Spark's transformWithState, row by row and with pandas; imported where tasks run, too."""

from __future__ import annotations

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor


class Count(StatefulProcessor):
    """A count for each key, in a value state."""

    def init(self, handle):
        self.counted = handle.getValueState("counted", "count long")

    def add(self, rows: int) -> int:
        before = self.counted.get()
        count = rows + (before[0] if before else 0)
        self.counted.update((count,))
        return count

    def close(self):
        pass


class CountRows(Count):
    def handleInputRows(self, key, rows, timer_values):  # noqa: N802
        yield Row(key=key[0], count=self.add(sum(1 for _ in rows)))


class CountFrames(Count):
    def handleInputRows(self, key, rows, timer_values):  # noqa: N802
        counted = self.add(sum(len(frame) for frame in rows))
        yield pd.DataFrame({"key": [key[0]], "count": [counted]})
