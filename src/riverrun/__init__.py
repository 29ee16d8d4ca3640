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
from riverrun.frontends.dataflow import TO_ALL, TO_ANY, TO_ONE, Loop, Route, Vertex
from riverrun.frontends.flow import Dataflow
from riverrun.frontends.grouping import Grouped
from riverrun.run import Commit, Result, Run

__version__ = "0.1.0"

__all__ = [
    "TO_ALL",
    "TO_ANY",
    "TO_ONE",
    "Aggregate",
    "CheckpointError",
    "Collection",
    "Commit",
    "Dataflow",
    "Grouped",
    "Loop",
    "OperatorFailed",
    "PlanError",
    "Result",
    "RiverrunError",
    "Route",
    "Run",
    "SchemaError",
    "TimeViolation",
    "TransportError",
    "Vertex",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "sum",
]
