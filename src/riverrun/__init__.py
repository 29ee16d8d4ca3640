"""Riverrun keeps the answers of a Python program up to date while its data changes.

Names are loaded when they are first used: a process that needs a part only, such as those in which
Spark plans queries, does not wait for all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from riverrun.version import __version__ as __version__

if TYPE_CHECKING:
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
    from riverrun.frontends.shared import (
        State,
        add,
        append,
        compaction,
        distinct,
        drop_before,
        fetch_rule,
        fold,
        keep_latest,
        latest,
        replace,
        total,
        update_rule,
        within,
    )
    from riverrun.run import Commit, Result, Run, Sink, read_checkpoint

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
    "Sink",
    "State",
    "TimeViolation",
    "TransportError",
    "Vertex",
    "add",
    "append",
    "compaction",
    "count",
    "count_distinct",
    "distinct",
    "drop_before",
    "fetch_rule",
    "first",
    "fold",
    "keep_latest",
    "last",
    "latest",
    "max",
    "mean",
    "min",
    "read_checkpoint",
    "replace",
    "sum",
    "total",
    "update_rule",
    "within",
]

_HOMES = {
    "riverrun.errors": (
        "CheckpointError",
        "OperatorFailed",
        "PlanError",
        "RiverrunError",
        "SchemaError",
        "TimeViolation",
        "TransportError",
    ),
    "riverrun.frontends.aggregates": (
        "Aggregate",
        "count",
        "count_distinct",
        "first",
        "last",
        "max",
        "mean",
        "min",
        "sum",
    ),
    "riverrun.frontends.collection": ("Collection",),
    "riverrun.frontends.dataflow": (
        "TO_ALL",
        "TO_ANY",
        "TO_ONE",
        "Loop",
        "Route",
        "Vertex",
    ),
    "riverrun.frontends.flow": ("Dataflow",),
    "riverrun.frontends.grouping": ("Grouped",),
    "riverrun.frontends.shared": (
        "State",
        "add",
        "append",
        "compaction",
        "distinct",
        "drop_before",
        "fetch_rule",
        "fold",
        "keep_latest",
        "latest",
        "replace",
        "total",
        "update_rule",
        "within",
    ),
    "riverrun.run": ("Commit", "Result", "Run", "Sink", "read_checkpoint"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


# What people look for who come from elsewhere.
_ELSEWHERE = {
    "avg": "rr.mean(column)",
    "average": "rr.mean(column)",
    "len": "rr.count()",
    "n_unique": "rr.count_distinct(column)",
    "nunique": "rr.count_distinct(column)",
    "col": "columns are Polars': pl.col(name)",
    "lit": "constants are Polars': pl.lit(value)",
    "read": "run.read(output), of a run: run = flow.run()",
} | dict.fromkeys(
    ("median", "std", "var", "quantile"),
    "any Polars aggregation will do: agg(x=pl.col(name).median())",
)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        hint = f"\nHint: {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"module 'riverrun' has no attribute {name!r}{hint}")
    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
