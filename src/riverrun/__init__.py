"""Riverrun keeps the answers of a Python program up to date while its data changes."""

from riverrun.errors import (
    CheckpointError,
    OperatorFailed,
    PlanError,
    RiverrunError,
    SchemaError,
    TimeViolation,
    TransportError,
)
from riverrun.frontends.aggregates import (
    Aggregate,
    count,
    count_distinct,
    first,
    last,
    max,
    mean,
    min,
    sum,
)
from riverrun.frontends.collection import Collection
from riverrun.frontends.flow import Dataflow
from riverrun.frontends.grouping import Grouped
from riverrun.run import Commit, Result, Run

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "CheckpointError",
    "Collection",
    "Commit",
    "Dataflow",
    "Grouped",
    "OperatorFailed",
    "PlanError",
    "Result",
    "RiverrunError",
    "Run",
    "SchemaError",
    "TimeViolation",
    "TransportError",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "sum",
]
