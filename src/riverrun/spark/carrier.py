"""The carrier of runs on Spark: it starts the cluster of ``flow.run(on="spark")`` or ``flow.run(on=session)``.

Only `runtime.carriers` imports this module, and only when a run asks for Spark.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from riverrun.runtime.carried import CarriedRun
from riverrun.runtime.carriers import ClusterRequest, FrameCarrier
from riverrun.spark.cluster import SparkCluster, free_slots


class SparkCarrier(FrameCarrier):
    """Workers are tasks of a session."""

    place = "on Spark"
    takes = frozenset({"tls", "balance", "silence"})

    def start(self, request: ClusterRequest) -> CarriedRun:
        return SparkCluster(
            request.plan,
            request.on,
            request.workers,
            history=request.history,
            memory=request.memory,
            tls=request.tls,
            timeout=request.timeout,
            silence=request.silence,
            balance=request.balance,
            most=request.most_workers,
            **request.durability,
        )

    def suitable_workers(self, on: Any) -> int:
        """As many workers as a session has slots for, beside other runs and data jobs; in a new local session, one for
        each core."""
        return free_slots(on)

    def frame_of(self, table: pa.Table, session: Any = None) -> Any:
        from riverrun.spark.frames import of_table

        return of_table(table, session)


CARRIER = SparkCarrier()
