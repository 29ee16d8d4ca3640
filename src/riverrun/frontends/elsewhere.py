"""Names that people bring along, from Polars, pandas, Spark, SQL and other engines, and what to write here instead.

Each table has the hints of one class for attributes that the class does not have (`attributes.missing_attribute`).
Laws:

- **True hints.** What a hint says to write works as written, for the class at hand (``tests/frontends/test_hints.py``
  runs a program for each hint).
"""

from __future__ import annotations

_FIRST_ROWS = "a collection has no order; group_by().top(k, by=...) gives the first rows of all"
_SORTED = (
    "a collection has no order; group_by(...).top(k, by=...) gives the first rows of each group, and "
    "run.read(name).rows() is sorted"
)
_GROUPS = (
    "group_by(...).apply(function, schema) gives one row for each group, with many=True any number; the function takes "
    "a Polars frame"
)
_NEIGHBOURS = (
    "rows have no neighbours, but those of a group can be sorted: "
    'group_by("k").apply(lambda group: group.sort("at").select("at", before=pl.col("v").shift()), schema, many=True)'
)
_NO_ROWS = (
    "a collection is a description and has no rows yet: flow.output(name, collection), and run.read(name) has them; "
    "inspect() prints what passes"
)
_SUBTRACT = (
    'distinct().anti_join(other, on=["a", "b"]), with all columns, leaves out the rows that are in other; '
    "nulls match nothing"
)
_WRITTEN = (
    "flow.output(name, collection), and the run writes: run.write_parquet(name, path), run.write_delta(name, path), "
    "or run.for_each_epoch(name, function)"
)

COLLECTION = {
    "as_state": "rows of another collection are looked up: stream.lookup(collection, on=...)",
    **dict.fromkeys(("sort", "orderBy", "sort_values", "order_by", "sort_by", "sortBy"), _SORTED),
    **dict.fromkeys(("limit", "tail", "take", "head"), _FIRST_ROWS),
    **dict.fromkeys(
        ("top", "topk", "top_k", "bottom_k", "nlargest", "nsmallest"),
        "group_by().top(k, by=...) gives the first rows of all, group_by(...).top(k, by=...) those of each group",
    ),
    **dict.fromkeys(
        ("first", "last"),
        'group_by().agg(rr.first("a", by="at")) takes one of all rows, group_by("k").agg(...) one of each group',
    ),
    **dict.fromkeys(("len", "size", "height", "shape"), "count() is a collection of one row"),
    **dict.fromkeys(
        ("n_unique", "nunique", "countDistinct", "approx_count_distinct"),
        'count_distinct("a") is a collection of one row; of each group: group_by("k").agg(n=rr.count_distinct("a"))',
    ),
    "value_counts": 'group_by("a").count()',
    **dict.fromkeys(
        ("unique", "drop_duplicates", "dropDuplicates", "dropDuplicatesWithinWatermark"),
        'distinct(), or distinct("a", "b") for one row of each value of these columns',
    ),
    "where": "filter(...)",
    **dict.fromkeys(
        ("union", "unionAll", "unionByName", "vstack", "append", "extend"), "concat(...)"
    ),
    "connect": "concat(other) for the rows of both, join(other, on) for pairs of them",
    "merge": "join(...)",
    **dict.fromkeys(("crossJoin", "cross_join", "cartesian"), 'join(other, how="cross")'),
    "join_asof": "a state is asked as of a time: stream.fetch(state, key=..., at=..., rule=rr.rules.latest)",
    **dict.fromkeys(
        ("intersect", "intersection"),
        'distinct().semi_join(other, on=["a", "b"]), with all columns; nulls match nothing',
    ),
    **dict.fromkeys(("subtract", "minus", "except_", "difference"), _SUBTRACT),
    **dict.fromkeys(
        ("exceptAll", "except_all"),
        f"concat(other.negate()), where every row of other is here as often; else {_SUBTRACT}",
    ),
    **dict.fromkeys(
        ("cogroup", "coGroup"),
        "co_group(other, on, function, schema): the function takes a key and the two groups as Polars frames",
    ),
    "agg": "group_by().agg(...) aggregates all rows",
    **dict.fromkeys(
        ("sum", "mean", "avg", "min", "max", "median", "std", "var"),
        'group_by().agg(rr.sum("a")) aggregates all rows, group_by("k").agg(...) those of each group',
    ),
    **dict.fromkeys(
        ("reduceByKey", "aggregateByKey", "reduce", "aggregate", "reduce_by_key"),
        'group_by("k").agg(total=rr.sum("v")); group_by("k").apply(function, schema) for a function of your own',
    ),
    **dict.fromkeys(
        ("groupBy", "groupby", "groupByKey", "keyBy", "key_by", "partition_by"), "group_by(...)"
    ),
    **dict.fromkeys(
        (
            "applyInPandas", "apply_in_pandas", "mapGroups", "map_groups", "flatMapGroups",
            "applyInArrow",
        ),
        _GROUPS,
    ),
    "apply": 'flat_map(function, schema) calls it for each row, group_by("k").apply(function, schema) for each group',
    **dict.fromkeys(
        ("fill_null", "fillna", "fill_nan"),
        'with_columns(a=pl.col("a").fill_null(0)), column by column',
    ),
    **dict.fromkeys(("drop_nulls", "dropna"), 'filter(pl.col("a").is_not_null())'),
    **dict.fromkeys(
        ("pivot", "unpivot", "melt"),
        "columns are declared, not found in the rows: group_by(...).agg(...) with an expression for each column "
        "widens, flat_map(function, schema) lengthens",
    ),
    **dict.fromkeys(
        ("rolling", "window", "group_by_dynamic", "resample"),
        "windows(column, size, step), and group_by the window",
    ),
    **dict.fromkeys(
        ("session_window", "sessions", "sessionize"),
        'group_by("user").apply(function, schema, many=True), where the function cuts the sorted rows of a user at the '
        "gaps: docs/cookbook/sessions.md",
    ),
    **dict.fromkeys(
        ("withWatermark", "with_watermark"),
        'leave it out, or expire("at", after=span, late=span): then rows leave, and those that come later are dropped',
    ),
    "map": "select(...), flat_map(function, schema) or map_batches(function, schema)",
    **dict.fromkeys(
        ("map_rows", "map_elements", "applymap", "flatMap"),
        "flat_map(function, schema): the function takes a row as a dict and gives a list of rows",
    ),
    **dict.fromkeys(
        (
            "mapInPandas", "mapInArrow", "map_in_pandas", "map_in_arrow", "mapPartitions", "map_partitions",
        ),
        "map_batches(function, schema): the function takes a Polars frame and gives a frame of any kind",
    ),
    "process": "flat_map(function, schema), or flow.vertex(MyVertex, ...) for a step with state of its own",
    **dict.fromkeys(("pipe", "transform"), "call the function: function(collection)"),
    **dict.fromkeys(("assign", "withColumn", "withColumns", "mutate"), "with_columns(...)"),
    **dict.fromkeys(
        ("withColumnRenamed", "withColumnsRenamed", "rename_columns"), 'rename({"old": "new"})'
    ),
    "toDF": 'rename({"old": "new"}), or select(new="old")',
    **dict.fromkeys(("selectExpr", "select_expr", "sql"), 'select(pl.sql_expr("a + 1 AS b"))'),
    **dict.fromkeys(("cast", "astype"), 'with_columns(a=pl.col("a").cast(pl.Int64))'),
    **dict.fromkeys(
        ("explode_outer", "explodeOuter"),
        'explode("a") after with_columns(a=pl.when(pl.col("a").list.len() > 0).then("a").otherwise([None]))',
    ),
    **dict.fromkeys(
        ("shift", "diff", "lag", "lead", "cum_sum", "cumsum", "cum_count", "rank", "pct_change"),
        _NEIGHBOURS,
    ),
    "over": 'an aggregate beside each row: rows.join(rows.group_by("k").agg(total=rr.sum("v")), "k")',
    **dict.fromkeys(
        ("with_row_index", "with_row_count", "zipWithIndex", "reset_index"),
        'rows have no number; group_by().apply(lambda rows: rows.sort("a").with_row_index(), schema, many=True) '
        "numbers them anew whenever one changes",
    ),
    **dict.fromkeys(
        ("cache", "persist", "unpersist"),
        "leave it out: a collection is computed once, however many steps use it",
    ),
    **dict.fromkeys(
        ("repartition", "coalesce", "shuffle", "rebalance", "repartitionByRange"),
        "leave it out: steps bring rows to the workers by their keys; flow.run(workers=4) says how many workers",
    ),
    **dict.fromkeys(
        ("checkpoint", "localCheckpoint"), 'flow.run(checkpoint="path") keeps the whole program'
    ),
    **dict.fromkeys(("printSchema", "dtypes", "info"), "schema, or polars_schema"),
    "explain": "flow.explain()",
    **dict.fromkeys(
        (
            "write", "writeStream", "foreachBatch", "foreach", "write_parquet", "write_delta", "to_parquet",
            "sink_parquet", "saveAsTable", "write_csv", "to_csv",
        ),
        _WRITTEN,
    ),
    **dict.fromkeys(
        ("insert", "upsert", "delete", "insertInto"),
        "rows go into an input of the run: run.insert(name, rows), run.upsert(name, rows), run.delete(name, rows)",
    ),
    **dict.fromkeys(
        (
            "show", "collect", "print", "to_polars", "to_pandas", "to_arrow", "rows", "read", "toPandas", "to_dicts",
            "iter_rows", "fetchall", "display", "compute",
        ),
        _NO_ROWS,
    ),
}  # fmt: skip
"""Hints for attributes of a collection."""

_APPLY = (
    "apply(function, schema) gives one row for each group, with many=True any number; the function takes a Polars "
    "frame and gives a value, a dict, a list of rows or a frame"
)
_SORTED_GROUP = 'apply(lambda group: group.sort("at").select("at", before=pl.col("v").shift()), schema, many=True)'

GROUPS = {
    **dict.fromkeys(
        (
            "applyInPandas", "apply_in_pandas", "applyInArrow", "mapGroups", "map_groups", "flatMapGroups",
            "flatMapGroupsWithState", "applyInPandasWithState", "transformWithState", "map", "flat_map", "transform",
            "pipe", "reduce", "process", "mapValues",
        ),
        _APPLY,
    ),
    **dict.fromkeys(
        ("top_k", "topk", "nlargest", "head", "limit", "take"), 'top(k, by="v"), the largest first'
    ),
    **dict.fromkeys(
        ("bottom_k", "nsmallest", "tail"), 'top(k, by="v", descending=False), the smallest first'
    ),
    **dict.fromkeys(("first", "last"), 'agg(x=rr.first("v", by="at")), or rr.last'),
    **dict.fromkeys(("len", "size"), "count()"),
    **dict.fromkeys(
        ("n_unique", "nunique", "countDistinct", "count_distinct", "approx_count_distinct"),
        'agg(n=rr.count_distinct("v"))',
    ),
    **{name: f'agg(total=rr.{name}("v"))' for name in ("sum", "mean", "min", "max")},
    **dict.fromkeys(("avg", "average"), 'agg(average=rr.mean("v"))'),
    **{
        name: f'agg(x=pl.col("v").{name}()): any aggregation of Polars will do'
        for name in ("median", "std", "var", "product")
    },
    "quantile": 'agg(x=pl.col("v").quantile(0.9)): any aggregation of Polars will do',
    **dict.fromkeys(("collect_list", "implode", "to_list"), 'agg(all=pl.col("v"))'),
    "aggregate": "agg(...)",
    **dict.fromkeys(("having", "filter"), 'agg(n=rr.count()).filter(pl.col("n") > 1)'),
    **dict.fromkeys(
        ("shift", "diff", "lag", "lead", "cum_sum", "cumsum", "cum_count", "cumcount", "rank", "over", "sort"),
        _SORTED_GROUP,
    ),
    "pivot": 'agg(a=pl.col("v").filter(pl.col("kind") == "a").sum()), with an expression for each column',
    **dict.fromkeys(
        ("cogroup", "co_group", "coGroup"),
        "that is of two collections, not of their groups: left.co_group(right, on, function, schema)",
    ),
}  # fmt: skip
"""Hints for attributes of groups."""

_READ = "a dataflow is a description and has no rows: run = flow.run(), and run.read(name) has those of an output"
_RUN = "run(), which gives a run: with flow.run() as run: run.insert(name, rows); run.commit()"
_INPUT = (
    "flow.input(name, schema) declares rows from outside, and run.insert(name, rows) brings them"
)
_PICTURE = "to_svg() and to_dot() draw the plan; explain() tells it"

DATAFLOW = {
    **dict.fromkeys(
        ("read", "result", "results", "collect", "get", "fetch", "show", "to_pandas", "to_polars", "to_arrow"), _READ
    ),
    **dict.fromkeys(
        ("start", "execute", "submit", "launch", "compute", "serve", "go", "compile", "awaitTermination"), _RUN
    ),
    **dict.fromkeys(
        (
            "source", "from_source", "add_source", "read_csv", "read_parquet", "from_polars", "from_pandas",
            "from_arrow", "from_collection", "createDataFrame", "table", "add_input", "create_input",
        ),
        _INPUT,
    ),
    **dict.fromkeys(
        ("readStream", "from_stream", "from_kafka"),
        "flow.input(name, schema), and run.stream(name, frame) with a streaming DataFrame of Spark",
    ),
    **dict.fromkeys(
        ("sink", "to", "write", "add_sink", "writeStream", "subscribe", "on_change"),
        "flow.output(name, collection), and the run writes: run.write_parquet(name, path), "
        "run.write_delta(name, path), or run.for_each_epoch(name, function)",
    ),
    **dict.fromkeys(("add_output", "create_output", "out"), "output(name, collection)"),
    **dict.fromkeys(
        ("to_png", "to_mermaid", "draw", "plot", "graph", "visualize", "render", "show_graph"), _PICTURE
    ),
    "checkpoint": 'run(checkpoint="path") keeps checkpoints, and run.checkpoint() makes one now',
    "iterate": "flow.input(name, schema).iterate(body): loops are of collections; loop() makes one by hand",
    **dict.fromkeys(("columns", "dtypes", "printSchema"), "schema(name), of an input or output"),
}  # fmt: skip
"""Hints for attributes of a dataflow."""

_ASKED = (
    "rows of a collection ask the state: stream.fetch(state, key=..., at=...), or stream.fetch_uncommitted(state, "
    "key=...) for what is there"
)
_UPDATED = (
    "rows of a collection update the state: stream.update(state, key=..., time=..., value=...)"
)
_ENTRIES = (
    "entries() is a collection: flow.output(name, state.entries()), and run.read(name) has the rows"
)

STATE = {
    **dict.fromkeys(("fetch", "get", "lookup", "query", "latest", "within", "ask"), _ASKED),
    "fetch_uncommitted": "rows of a collection ask the state: stream.fetch_uncommitted(state, key=...)",
    **dict.fromkeys(
        ("update", "put", "set", "insert", "write", "add", "append", "upsert", "delete", "remove"), _UPDATED
    ),
    **dict.fromkeys(
        ("read", "rows", "items", "values", "keys", "scan", "collect", "show", "to_polars", "to_pandas", "to_arrow"),
        _ENTRIES,
    ),
    "progress": 'rows of a collection report it: stream.progress(state, "update", at=...)',
    "columns": "schema.names",
}  # fmt: skip
"""Hints for attributes of a state."""
