"""The data source "riverrun": outputs and shared states of live runs as DataFrames, and their changes as streams.

::

    spark.read.format("riverrun").option("run", "social").load("components")
    spark.read.format("riverrun").option("epoch", 7).load("components")
    spark.read.format("riverrun").option("changes", "true").option("epoch", 7).load("components")
    spark.readStream.format("riverrun").option("changes", "true").load("components")
    spark.read.format("riverrun").load("/path/of/checkpoints")

A path is read from storage, without asking a run (`checkpoints`). Spark loads `pyspark_riverrun` by itself, a module
with a source for paths. A run on the session puts its own source, for runs and paths, in the place of that one
(`register`). Where Spark does not allow that, runs are read as "riverrun-live" (`live_format`).

Options for runs: `run`, the name of the dataflow, needed where several runs are alive; `name`, the same as the argument
of load(); `epoch`; `changes`; `columns`, the names of the columns to read, separated by commas (a schema given by
``.schema(...)`` says the same); and `pushFilters`. Any other option is refused. The rows of a result go from the
workers to Spark's tasks directly, one partition for each worker. A batch of a stream is one partition, whose rows the
driver has.

With `pushFilters`, "true", workers apply conditions on single columns, if the session had
``spark.sql.python.filterPushdown.enabled`` on before the run started (a session that `session` makes has). Conditions
on changes are left to Spark. Filters are pushed only on request, because Spark 4 plans a DataFrame of such a source
once, with the conditions of the last query: a DataFrame that is used again without these conditions, or twice in one
query, would miss rows. So a DataFrame with `pushFilters` is for one use, in one query. Laws:

- **One epoch.** A query reads the same epoch on all workers: by default the last one that was complete when the query
  was planned.
- **Marked changes.** With `changes`, rows have two more columns: `diff` and `epoch`.
- **Each epoch's changes once.** A stream starts with the rows as of an epoch, and goes on with the changes of every
  later epoch, each once. It needs `changes`, "true", since Spark asks for the columns before it says that it streams.

The classes that Spark gets are made by `make_source`: they are pickled by value, since Spark plans queries in
processes that may not have this package.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from difflib import get_close_matches
from typing import Any
from uuid import uuid4

import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.rows.conditions import Where
from riverrun.rows.types import in_spark
from riverrun.runtime.network.client import Asker, fetch_loans, watched
from riverrun.runtime.network.connection import Credentials
from riverrun.spark import checkpoints
from riverrun.spark.checkpoints import check_options, flag_of, number_of, place_of
from riverrun.spark.checkpoints import option as _option
from riverrun.spark.shipping import loader
from riverrun.state.types import shown_schema

FORMAT = "riverrun"
LIVE = "riverrun-live"
"""The format of runs that are alive, where Spark does not let a session replace `pyspark_riverrun`."""
_LOG = logging.getLogger(__name__)
_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"
Runs = Mapping[str, tuple[str, tuple[Any, ...]]]
"""For each run that is alive, its address, and the fields of the `Credentials` that its endpoint asks for."""


def make_source(
    alive: Mapping[str, tuple[str, Credentials]],
    *,
    ship: bool,
    pushes: bool | None,
    name: str = FORMAT,
) -> type:
    """The data source over the runs that are alive, each with its address and the credentials of its endpoint.

    `pushes` is whether the session hands conditions to such sources; with None, that is found out when a reader is
    made. The classes hold plain values only, since they are unpickled before the package is known to be importable.
    """
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
    )

    load = loader(ship=ship)
    runs = {run: (address, astuple(shown)) for run, (address, shown) in alive.items()}
    name_of_format = name
    us = __name__

    class Plainly:
        """Has Spark show errors of this package without their tracebacks.

        Spark looks into its environment for whether to leave tracebacks out when it writes an error down; the process
        ends after that, so the setting affects no other error.
        """

        def __enter__(self) -> None:
            return None

        def __exit__(self, kind: Any, error: Any, calls: Any) -> None:
            import os

            if hasattr(error, "hint") and hasattr(error, "fields"):
                error.fields["line"] = ""  # no line of the user's is in this process
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"

    def call(function: str, *arguments: Any) -> Any:
        with Plainly():
            return load(us, function)(*arguments)

    class Reader(DataSourceReader):
        def __init__(self, options: dict[str, str], columns: list[str]) -> None:
            self.options, self.columns = options, columns
            self.where: list[Any] = []

        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(part) for part in call("plan", runs, self.options)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            with Plainly():
                yield from load(us, "fetch")(runs, partition.value, self.columns, self.where)

    class Pushed(Reader):
        def pushFilters(self, filters: list[Any]) -> Any:  # noqa: N802
            for each in filters:
                condition = call("pushed", each, self.columns, self.options)
                if condition is None:
                    yield each
                else:
                    self.where.append(condition)

    class StreamReader(DataSourceStreamReader):
        def __init__(self, options: dict[str, str], columns: list[str]) -> None:
            self.options, self.columns = options, columns
            self.feed = call("new_feed")

        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            # Checked here and not when the reader is made: Spark 4 loses an error of making a reader.
            call("check_stream", self.options)
            return {"epoch": 0}

        def latestOffset(self, start: Any = None, limit: Any = None) -> Any:  # noqa: N802
            call("check_stream", self.options)
            return call("latest", runs, self.options, self.feed, start)

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Any]:
            planned = call("plan_stream", runs, self.options, self.feed, start, end)
            return [InputPartition(part) for part in planned]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            with Plainly():
                yield from load(us, "fetch")(runs, partition.value, self.columns, [])

        def commit(self, end: dict[str, int]) -> None:
            call("commit", runs, self.options, self.feed, end)

    class Riverrun(DataSource):
        @classmethod
        def name(cls) -> str:
            return name_of_format

        def schema(self) -> Any:
            return call("schema", runs, dict(self.options))

        def reader(self, schema: Any) -> Reader:
            takes = call("takes_filters", dict(self.options), pushes)
            return (Pushed if takes else Reader)(dict(self.options), list(schema.names))

        def streamReader(self, schema: Any) -> StreamReader:  # noqa: N802
            return StreamReader(dict(self.options), list(schema.names))

    return Riverrun


_registered = FORMAT


def register(session: Any, alive: Mapping[str, tuple[str, Credentials]], *, ship: bool) -> None:
    """Let a session read from runs, and from paths."""
    global _registered  # noqa: PLW0603  a process has one Spark, which lets sources be replaced or does not
    from pyspark.errors import PySparkException

    pushes = session.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true"
    try:
        source = make_source(alive, ship=ship, pushes=pushes, name=_registered)
        session.dataSource.register(source)
    except PySparkException as error:
        if _registered == LIVE or "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        _registered = LIVE
        _LOG.warning("this Spark has %r for checkpoints only: runs are read as %r", FORMAT, LIVE)
        register(session, alive, ship=ship)


def live_format() -> str:
    """The format under which runs are read."""
    return _registered


# ---- what the classes call, where Spark plans and reads


def _chosen(runs: Runs, options: Mapping[str, str]) -> tuple[str, Asker]:
    """The name of the run that the options mean, and a client that asks it."""
    name = _option(options, "run")
    alive = ", ".join(map(repr, runs)) or "none"
    if name is None:
        if len(runs) != 1:
            raise PlanError(
                "spark.source",
                f"cannot tell which run to read: those alive are: {alive}",
                hint='say which: .option("run", NAME), the name of its dataflow'
                if runs
                else "the checkpoints of a run that is over are read by their path, which has a / in it",
            )
        (name,) = runs
    if name not in runs:
        raise PlanError(
            "spark.source",
            f"cannot read from run {name!r}: those alive are: {alive}",
            hint="a run is read while it is alive, in the session that it is on",
        )
    address, shown = runs[name]
    credentials = Credentials(*shown)
    return name, Asker(address, credentials)


def takes_filters(options: Mapping[str, str], pushes: bool | None) -> bool:
    """Whether a reader takes conditions. Where Spark hands out none, it refuses a reader that takes some. Where it is
    not known whether Spark does, a reader takes them only in a process that was started to hand them out."""
    if not flag_of(options, "pushFilters"):
        return False
    if pushes is not None:
        return pushes
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(main, "name", None) == _PUSHING


def _wanted(options: Mapping[str, str]) -> dict[str, Any]:
    """The question that the options put to a run."""
    output = _option(options, "name") or _option(options, "path")
    lent = _option(options, "lent")
    if output is None and lent is None:
        raise PlanError(
            "spark.source",
            "cannot read: it was not said which output",
            hint='.load("name"), with a name that the dataflow gives an output',
        )
    return {
        "output": output,
        "epoch": number_of(options, "epoch", "an epoch"),
        "changes": flag_of(options, "changes"),
        "lent": lent,
    }


def schema(runs: Runs, options: Mapping[str, str]) -> Any:
    """The columns that are read, in Spark's types."""
    from pyspark.sql.pandas.types import from_arrow_schema

    check_options(options)
    place = place_of(options)
    if place is not None:
        columns_there = checkpoints.schema(place, options)
    else:
        with _chosen(runs, options)[1] as asker:
            columns_there = pa.ipc.read_schema(pa.py_buffer(asker.ask("schema", _wanted(options))))
    listed = _option(options, "columns")
    if listed is not None:
        names = [name.strip() for name in listed.split(",")]
        unknown = [name for name in names if name not in columns_there.names]
        if unknown:
            close = get_close_matches(unknown[0], columns_there.names, n=1)
            raise PlanError(
                "spark.source",
                f"cannot read columns {', '.join(unknown)}: there are: {', '.join(columns_there.names)}",
                hint=(f"did you mean {close[0]!r}? " if close else "")
                + '.option("columns", "a,b"); a name with a comma in it needs .schema(...)',
            )
        columns_there = pa.schema([columns_there.field(name) for name in names])
    plain = pa.schema(
        [pa.field(field.name, in_spark(field.type)) for field in shown_schema(columns_there)]
    )
    return from_arrow_schema(
        plain, prefer_timestamp_ntz=True
    )  # a time without a zone has none in Spark either


def plan(runs: Runs, options: Mapping[str, str]) -> list[Any]:
    """The partitions: for each portion of the result its lenders, by address and number, and how to ask for others when
    they are lost."""
    check_options(options)
    place = place_of(options)
    if place is not None:
        return checkpoints.plan(place, options)
    name, asker = _chosen(runs, options)
    with asker:
        return [(name, *part) for part in asker.ask("open", _wanted(options))]


def check_stream(options: Mapping[str, str]) -> None:
    """Refuse a stream of checkpoints, and a stream that is not one of changes."""
    check_options(options)
    place = place_of(options)
    if place is not None:
        raise PlanError(
            "spark.source",
            f"cannot stream from the checkpoints at {place}: they do not change",
            hint="read them with spark.read; a run that is alive streams the changes of its outputs, by their names",
        )
    if not _wanted(options)["changes"]:
        raise PlanError(
            "spark.source",
            "cannot stream a result: what streams is its changes, and these have two columns more, diff and epoch",
            hint='say so: spark.readStream.format("riverrun").option("changes", "true").load(NAME)',
        )


def new_feed() -> str:
    """A name for the feed of a new stream."""
    return uuid4().hex


def latest(runs: Runs, options: Mapping[str, str], feed: str, start: Any) -> dict[str, int]:
    """The epoch up to which a stream can read. The first call begins the stream's feed."""
    since = 0 if start is None else int(start["epoch"])
    with _chosen(runs, options)[1] as asker:
        return {"epoch": asker.ask("follow", {**_wanted(options), "feed": feed, "start": since})}


def plan_stream(
    runs: Runs,
    options: Mapping[str, str],
    feed: str,
    start: Mapping[str, int],
    end: Mapping[str, int],
) -> list[Any]:
    """The partition of a stream's batch. There is one, since the driver has the changes."""
    if end["epoch"] <= start["epoch"]:
        return []
    latest(
        runs, options, feed, start
    )  # Spark does not ask for the latest offset before it repeats a batch
    name, asker = _chosen(runs, options)
    ticket = ["feed", feed, start["epoch"], end["epoch"]]
    return [(name, [(asker.address, json.dumps(ticket))], None, None)]


def commit(runs: Runs, options: Mapping[str, str], feed: str, end: Mapping[str, int]) -> None:
    """Tell the run that the stream has all epochs before `end`."""
    with _chosen(runs, options)[1] as asker:
        asker.ask("passed", {"feed": feed, "end": end["epoch"]})


def fetch(runs: Runs, part: Any, columns: list[str], where: list[Any]) -> Iterator[pa.RecordBatch]:
    """The rows of a partition."""
    if part[0] is None:
        for batch in checkpoints.fetch(part, columns, where):
            yield plainer(batch)
        return
    name, lenders, added, lent = part
    driver, shown = runs[name]
    credentials = Credentials(*shown)
    there = columns if added is None else [column for column in columns if column != added[0]]
    conditions = tuple(Where(*each) for each in where)

    def ask(question: str, **about: Any) -> Any:
        asker = Asker(driver, credentials)
        try:
            return asker.ask(question, {"lent": lent[0], "portion": lent[1], **about})
        finally:
            asker.close()

    def rows(lender: Any) -> Iterator[pa.RecordBatch]:
        address, held = lender
        ticket = json.loads(held) if isinstance(held, str) else held
        asker = Asker(address, credentials)
        try:
            batches = asker.rows((ticket, there, conditions))
            if lent is None:
                yield from batches
            else:
                yield from watched(address, batches, lambda: ask("gone", address=address))
        finally:
            asker.close()

    def renew(lender: Any) -> Any:
        return ask("renew", lease=lender[1])

    batches: Iterator[pa.RecordBatch]
    if lent is None:  # the driver has the rows
        batches = (batch for lender in lenders for batch in rows(lender))
    else:
        batches = fetch_loans(lenders, rows, renew, lent[3], ordered=lent[2])
    for batch in batches:
        if added is not None and added[0] in columns:
            constant = pa.repeat(pa.scalar(added[1], pa.int64()), batch.num_rows)
            batch = batch.append_column(added[0], constant).select(columns)
        yield plainer(batch)


def plainer(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in the types that Spark takes, which have 32-bit offsets."""
    columns = [column.cast(in_spark(column.type)) for column in batch.columns]
    return pa.record_batch(columns, names=batch.schema.names)


def pushed(
    pushed_filter: Any, columns: Sequence[str], options: Mapping[str, str]
) -> tuple[Any, ...] | None:
    """A filter of Spark's as plain values, for `fetch`; None for a filter that is left to Spark."""
    condition = as_where(pushed_filter, columns, options)
    return None if condition is None else astuple(condition)


def as_where(
    pushed_filter: Any, columns: Sequence[str], options: Mapping[str, str] | None = None
) -> Where | None:
    """A filter of Spark's as a `Where`; None for a filter that is left to Spark."""
    from pyspark.sql import datasource as ds

    if options and _option(options, "changes"):
        return None
    if isinstance(pushed_filter, ds.Not):
        inner = as_where(pushed_filter.child, columns)
        if inner is None or inner.negated or inner.relation in ("same",):
            return None
        return Where(inner.column, inner.relation, inner.value, negated=True)
    path = pushed_filter.attribute
    if len(path) != 1 or path[0] not in columns:
        return None
    column = path[0]
    if isinstance(pushed_filter, ds.IsNull):
        return Where(column, "null")
    if isinstance(pushed_filter, ds.IsNotNull):
        return Where(column, "null", negated=True)
    relations: dict[Any, str] = {
        ds.EqualTo: "=", ds.EqualNullSafe: "same", ds.GreaterThan: ">", ds.GreaterThanOrEqual: ">=",
        ds.LessThan: "<", ds.LessThanOrEqual: "<=", ds.In: "in", ds.StringStartsWith: "starts with",
        ds.StringEndsWith: "ends with", ds.StringContains: "contains",
    }  # fmt: skip
    relation = relations.get(type(pushed_filter))
    if relation is None:
        return None
    value = pushed_filter.value
    if isinstance(value, float) and value != value:
        return None  # Spark's NaN equals itself and is above all; Arrow's is not
    plain = (bool, int, float, str, bytes, type(None))
    listed = value if isinstance(value, tuple | list) else [value]
    if relation != "in" and isinstance(value, tuple | list):
        return None
    if not all(isinstance(each, plain) for each in listed) or (relation == "in" and None in listed):
        return None
    if any(isinstance(each, float) for each in listed) and relation not in ("=", "same", "in"):
        return None  # rows may have NaN, which Spark and Arrow compare differently
    return Where(column, relation, tuple(listed) if relation == "in" else value)
