"""The one-line harness: a program, its rows, its result.

``once`` is for examples and small tests: an input for each keyword, one epoch, one result.
``each_epoch`` plays a script and gives the result after every epoch.

>>> import polars as pl, riverrun as rr
>>> from riverrun.testing import COMMIT, delete, each_epoch, insert, once
>>> once(lambda n: n.select(square=pl.col("n") ** 2), n=[{"n": 2}, {"n": 3}]).rows()
[(4,), (9,)]
>>> def degrees(edges):
...     return edges.group_by("src").count()
>>> script = [insert("edges", [(1, 2), (1, 3)]), COMMIT, delete("edges", [(1, 2)])]
>>> [result.rows() for result in each_epoch(degrees, script, edges={"src": int, "dst": int})]
[[(1, 2)], [(1, 1)]]

A program is a function of collections to a collection. When it has a parameter ``flow`` that is no input,
it is given the dataflow too, for ``flow.vertex`` and ``flow.loop``.

Cost: a few milliseconds, to build and to start.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from riverrun.errors import PlanError, SchemaError
from riverrun.frontends.collection import Collection
from riverrun.frontends.flow import Dataflow
from riverrun.run import Result
from riverrun.run.rows import as_schema
from riverrun.run.values import fields_of
from riverrun.testing.playing import Stage
from riverrun.testing.script import COMMIT, Item, insert

Program = Callable[..., Any]
RESULT = "result"


def once(program: Program, /, **inputs: Any) -> Result:
    """What a program makes of some rows: lists of dicts, or Arrow, Polars or pandas frames, by input."""
    flow = build(program, {name: schema_of(rows, name) for name, rows in inputs.items()})
    script: list[Item] = [
        *(insert(name, rows) for name, rows in inputs.items() if len(rows)),
        COMMIT,
    ]
    return Stage(flow.plan).play(script)[0][RESULT]


def each_epoch(program: Program, script: Iterable[Item], /, **schemas: Any) -> list[Result]:
    """What a program gives after every epoch of a script; the inputs are declared by their schemas."""
    flow = build(program, schemas)
    return [results[RESULT] for results in Stage(flow.plan).play(script)]


def build(
    program: Program,
    schemas: Mapping[str, Any],
    keys: Mapping[str, Sequence[str] | str | None] | None = None,
) -> Dataflow:
    """A dataflow around a function of collections; what it gives is its output, or outputs by name."""
    flow = Dataflow("testing")
    collections = [
        flow.input(name, schema, (keys or {}).get(name)) for name, schema in schemas.items()
    ]
    named = {"flow": flow} if "flow" not in schemas and _has_parameter(program, "flow") else {}
    made = program(*collections, **named)
    outputs = made if isinstance(made, Mapping) else {RESULT: made}
    for name, collection in outputs.items():
        if not isinstance(collection, Collection):
            raise PlanError(
                "testing.program",
                f"cannot test {_name(program)}: it gave {collection!r}, not a collection",
                hint="a program is a function of collections that returns a collection, or several by name",
            )
        flow.output(name, collection)
    return flow


def schema_of(rows: Any, name: str) -> pa.Schema:
    """The columns of some rows."""
    attempt = f"declare input {name!r}"
    if isinstance(rows, Mapping):
        return pa.table({column: list(values) for column, values in rows.items()}).schema
    if not isinstance(rows, list | tuple):
        return as_schema(rows, attempt)
    dicts = [row if isinstance(row, Mapping) else fields_of(row) for row in rows]
    if not dicts or not all(isinstance(row, Mapping) for row in dicts):
        raise SchemaError(
            "testing.columns",
            f"cannot {attempt}: its rows do not say what their columns are",
            hint="give dicts, a frame (also for no rows at all), or use each_epoch, which takes schemas",
            input=name,
        )
    return pa.Table.from_pylist([dict(row or {}) for row in dicts]).schema


def _has_parameter(function: Program, name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _name(function: Program) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
