"""The carrier of runs on Spark: what ``flow.run(on="spark")``, or a session in place of the word, leads to.

`runtime.carriers` imports this module when a run asks for it, and nobody else does.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from riverrun.runtime.carriers import ClusterRequest
from riverrun.runtime.cluster import Cluster
from riverrun.runtime.frames import FrameCarrier
from riverrun.spark.cluster import SparkCluster, free_slots


class SparkCarrier(FrameCarrier):
    """Workers are tasks of a session."""

    place = "on Spark"
    takes = frozenset({"tls", "balance"})

    def start(self, request: ClusterRequest) -> Cluster:
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
        """As many as a session has slots for, beside other runs and data jobs; on a local one of ours, one a core."""
        return free_slots(on)

    def frame_of(self, table: pa.Table, session: Any = None) -> Any:
        from riverrun.spark.frames import of_table

        return of_table(table, session)


CARRIER = SparkCarrier()
