"""Riverrun keeps the answers of a Python program up to date while its data changes.

Names are imported when they are first used, so a process that needs only a part, such as one in which Spark plans
queries, does not wait for the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from riverrun.attributes import missing_name
from riverrun.version import __version__ as __version__

if TYPE_CHECKING:
    from riverrun import graphs, learning, loops, options, rules
    from riverrun.errors import (
        CheckpointError,
        OperatorFailed,
        PlanError,
        RiverrunError,
        SchemaError,
        TimeViolation,
        TransportError,
    )
    from riverrun.frontends.collection import Collection
    from riverrun.frontends.collections.aggregates import (
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
    from riverrun.frontends.collections.groups import Grouped
    from riverrun.frontends.dataflow import Dataflow
    from riverrun.frontends.shared.state import State
    from riverrun.frontends.timely import TO_ALL, TO_ANY, TO_ONE, Loop, Route, Vertex
    from riverrun.run import Commit, Result, Rounds, Run, Sink, read_checkpoint

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
    "Rounds",
    "Route",
    "Run",
    "SchemaError",
    "Sink",
    "State",
    "TimeViolation",
    "TransportError",
    "Vertex",
    "count",
    "count_distinct",
    "first",
    "graphs",
    "last",
    "learning",
    "loops",
    "max",
    "mean",
    "min",
    "options",
    "read_checkpoint",
    "rules",
    "sum",
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
    "riverrun.frontends.collections.aggregates": (
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
    "riverrun.frontends.timely": (
        "TO_ALL",
        "TO_ANY",
        "TO_ONE",
        "Loop",
        "Route",
        "Vertex",
    ),
    "riverrun.frontends.dataflow": ("Dataflow",),
    "riverrun.frontends.collections.groups": ("Grouped",),
    "riverrun.frontends.shared.state": ("State",),
    "riverrun.run": ("Commit", "Result", "Rounds", "Run", "Sink", "read_checkpoint"),
}
_NAMESPACES = ("graphs", "learning", "loops", "options", "rules", "testing")
_HOME = {name: home for home, names in _HOMES.items() for name in names}


_NAMES = {
    "rules": (
        "add", "append", "compact", "distinct", "drop_before", "fetch", "fold", "keep_latest", "latest", "replace",
        "total", "update", "within",
    ),
    "graphs": (
        "Graph", "adaptive_pagerank", "bfs", "clustering_coefficient", "components", "cycles", "k_core",
        "label_propagation", "nodes_of", "pagerank", "pregel", "shortest_paths", "strongly_connected_components",
        "triangle_counts", "triangles", "undirected",
    ),
    "learning": ("Clusters", "Model", "Regression", "ftrl", "k_means", "logistic_regression"),
    "loops": ("greatest", "least"),
    "options": ("Checkpoint", "Recovery", "Security"),
    "testing": (
        "CHECKPOINT", "COMMIT", "CRASH", "KILL", "LAWS", "REFUSE", "SCALE", "Checked", "Draw", "LawBroken",
        "check_dataflow", "check_operator", "delete", "each_epoch", "insert", "once", "play", "upsert",
    ),
}  # fmt: skip
"""The names of each namespace, its ``__all__``. Written here too: who asks for a name that is not there, as pickle does
of every module, should not have to wait for the import of all namespaces."""

# What people look for who come from elsewhere, or from before.
_ELSEWHERE = {
    **{name: f"rr.{space}.{name}" for space, names in _NAMES.items() for name in names},
    **{
        name: f"rows go into a run, run.{name}(name, rows); in scripts of tests it is rr.testing.{name}"
        for name in ("delete", "insert", "upsert")
    },
    "update_rule": "rr.rules.update(function)",
    "fetch_rule": "rr.rules.fetch(function, schema)",
    "compaction": "rr.rules.compact(function)",
    "algorithms": "rr.graphs and rr.learning",
    "avg": "rr.mean(column)",
    "average": "rr.mean(column)",
    "len": "rr.count()",
    "n_unique": "rr.count_distinct(column)",
    "nunique": "rr.count_distinct(column)",
    "col": "columns are Polars': pl.col(name)",
    "lit": "constants are Polars': pl.lit(value)",
    "when": "conditions are Polars': pl.when(...)",
    "concat": "of a collection: left.concat(right)",
    "read": "run.read(output), of a run: run = flow.run()",
} | dict.fromkeys(
    ("median", "std", "var", "quantile"),
    "any Polars aggregation will do: agg(x=pl.col(name).median())",
)


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return import_module(f"riverrun.{name}")
    if name not in _HOME:
        if name == "algorithms" or name not in _ELSEWHERE:  # the first one can be imported
            hint = f"\nHint: {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"module 'riverrun' has no attribute {name!r}{hint}", name=name)
        raise missing_name("riverrun", name, _ELSEWHERE[name])
    exported = globals()[name] = getattr(import_module(_HOME[name]), name)
    return exported


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
