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

A program is a function of collections to a collection. Inputs are handed over by name: an input goes to the parameter
of the same name. A program with a parameter ``flow`` that is no input gets the dataflow too, for ``flow.vertex`` and
``flow.loop``.

Cost: a few milliseconds, to build the dataflow and to start the run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from riverrun.errors import PlanError, SchemaError
from riverrun.frontends.collection import Collection
from riverrun.frontends.dataflow import Dataflow
from riverrun.rows.schemas import as_schema
from riverrun.rows.values import fields_of, show
from riverrun.run import Result
from riverrun.testing.playing import ScriptPlayer
from riverrun.testing.script import COMMIT, Item, insert

Program = Callable[..., Any]
RESULT = "result"


def once(program: Program, /, **inputs: Any) -> Result:
    """The result of a `program`, a function of collections, for some rows.

    `inputs` are keywords: lists of dicts, or Arrow, Polars or pandas frames, by the names of the program's parameters.
    """
    flow = build(program, {name: schema_of(rows, name) for name, rows in inputs.items()})
    script: list[Item] = [
        *(insert(name, rows) for name, rows in inputs.items() if len(rows)),
        COMMIT,
    ]
    return ScriptPlayer(flow.plan).play(script)[0][RESULT]


def each_epoch(program: Program, script: Iterable[Item], /, **schemas: Any) -> list[Result]:
    """The results of a `program`, a function of collections, after every epoch of a `script`.

    `schemas` are keywords: the columns of each input, by the names of the program's parameters.
    """
    flow = build(program, schemas)
    return [results[RESULT] for results in ScriptPlayer(flow.plan).play(script)]


def build(
    program: Program,
    schemas: Mapping[str, Any],
    keys: Mapping[str, Sequence[str] | str | None] | None = None,
    *,
    in_order: bool = False,
) -> Dataflow:
    """A dataflow around a function of collections, whose result is the output, or several outputs by name.

    Inputs go to the parameters of their names. With `in_order`, where no parameter has the name of an input, inputs go
    to the parameters in order.
    """
    flow = Dataflow("testing")
    takes_flow, by_name = passing(program, list(schemas), in_order=in_order)
    collections = {
        name: flow.input(name, schema, (keys or {}).get(name)) for name, schema in schemas.items()
    }
    named = {"flow": flow} if takes_flow else {}
    if by_name:
        returned = program(**collections, **named)
    else:
        returned = program(*collections.values(), **named)
    outputs = returned if isinstance(returned, Mapping) else {RESULT: returned}
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


def passing(program: Program, inputs: list[str], *, in_order: bool) -> tuple[bool, bool]:
    """Whether a program takes the dataflow, and whether its inputs are handed over by name."""
    if not callable(program):
        raise PlanError(
            "testing.program",
            f"cannot test {show(program)}: that is not a function",
            hint="a program is a function of collections that returns a collection, or several by name",
        )
    try:
        parameters = list(inspect.signature(program).parameters.values())
    except (TypeError, ValueError):  # the parameters of a function in C are not known
        return False, False
    takes_flow = "flow" not in inputs and any(each.name == "flow" for each in parameters)
    wanted = [each for each in parameters if not (takes_flow and each.name == "flow")]
    several = any(each.kind is each.VAR_POSITIONAL for each in wanted)
    others = any(each.kind is each.VAR_KEYWORD for each in wanted)
    named = {e.name for e in wanted if e.kind in (e.POSITIONAL_OR_KEYWORD, e.KEYWORD_ONLY)}
    needed = {e.name for e in wanted if e.name in named and e.default is e.empty}
    unnamed = any(each.kind is each.POSITIONAL_ONLY for each in wanted)
    if not unnamed and needed <= set(inputs) and (others or set(inputs) <= named):
        return takes_flow, True
    places = [
        each for each in wanted if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    least = len([each for each in places if each.default is each.empty])
    fits = least <= len(inputs) and (several or len(inputs) <= len(places))
    nameless = unnamed or (several and not named)
    if fits and (nameless or (in_order and not named & set(inputs))):
        return takes_flow, False
    raise PlanError(
        "testing.program",
        f"cannot test {_name(program)}: its parameters are {', '.join(e.name for e in wanted) or 'none'}, and the "
        f"inputs are {', '.join(inputs) or 'none'}",
        hint="inputs are handed over by name: call each as the parameter is called",
    )


def _name(function: Program) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
