"""Arguments that name columns: each is drawn in every form that somebody may give it.

For every such argument of the public interface, and every form (one name, a list, an empty list, a name that does not
exist, a number, None, an expression, a set, ...), there are two outcomes: the argument takes the form, and the result
is that of the program run from scratch; or the program is refused with our error, which names the columns that exist.
A bare Python error, and a form that is taken as something else, are defects. `test_every_argument_is_known` reads the
signatures, so that an argument that is added is drawn too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun import graphs, learning
from tests.frontends.collections.checking import check
from tests.soaking import seeds

SCHEMA = {"alpha": pl.Int64, "beta": pl.Int64, "text": pl.String}
ROWS = {"rows": SCHEMA}
alpha = pl.col("alpha")

# What is given, and what it is: an argument says which of these kinds it takes.
FORMS: dict[str, tuple[Any, str]] = {
    "name": ("alpha", "one"),
    "col": (pl.col("alpha"), "one"),
    "list_of_one": (["alpha"], "several"),
    "list": (["alpha", "beta"], "several"),
    "tuple": (("beta", "alpha"), "several"),
    "list_of_col": ([pl.col("beta"), "alpha"], "several"),
    "expression": (pl.col("alpha") + 1, "expression"),
    "list_with_expression": (["beta", pl.col("alpha") + 1], "several expressions"),
    "empty_list": ([], "empty"),
    "none": (None, "none"),
    "missing": ("alpa", "missing"),
    "missing_col": (pl.col("alpa"), "missing"),
    "missing_in_list": (["beta", "alpa"], "missing"),
    "missing_in_expression": (pl.col("alpa") + 1, "missing"),
    "twice": (["alpha", "beta", "alpha"], "wrong"),
    "number": (5, "constant"),
    "float": (0.5, "wrong"),
    "bytes": (b"alpha", "wrong"),
    "dict": ({"alpha": "beta"}, "wrong"),
    "set": ({"alpha", "beta"}, "wrong"),
    "number_in_list": (["alpha", 5], "wrong"),
    "none_in_list": (["alpha", None], "wrong"),
    "nested_list": ([["alpha"], "beta"], "wrong"),
    "object": (object(), "wrong"),
    "type": (int, "wrong"),
    "several_in_one": (pl.col("alpha", "beta"), "wrong"),
    "all": (pl.all(), "wrong"),
    "aggregate": (rr.sum("alpha"), "wrong"),
}  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """How an argument is given, and which kinds of forms it takes."""

    give: Callable[..., Any]
    takes: str
    """Of one, several, expression, several expressions, empty, none, constant."""
    unlike: tuple[str, ...] = ()
    """Forms that this argument takes although they are wrong elsewhere."""

    def accepts(self, form: str) -> bool:
        return FORMS[form][1] in self.takes.split(", ") or form in self.unlike


ONE = "one"
NAMES = "one, several"
COMPUTABLE = "one, expression, constant, none"
VALUES = ("float", "bytes", "dict")  # constants, where a column is made
ANY = "one, several, expression, several expressions"
UNPACKED = ("nested_list",)  # lists beside names, given by position: c.select(["a"], "b")


def spread(
    method: str, *, then: Callable[[Any], Any] = lambda result: result
) -> Callable[..., Any]:
    """A method that takes columns by position, given as they are, or as several arguments."""

    def give(rows: Any, columns: Any) -> Any:
        several = columns if isinstance(columns, list) and len(columns) > 1 else [columns]
        return then(getattr(rows, method)(*several))

    return give


def counted(grouped: Any) -> Any:
    return grouped.agg(n=rr.count())


def agg(**aggregates: Any) -> Callable[..., Any]:
    """An aggregate of a group by `text`."""
    return lambda rows, columns: rows.group_by("text").agg(x=aggregates["of"](columns))


COLLECTIONS: dict[str, Argument] = {
    "select.columns": Argument(spread("select"), ANY, UNPACKED),
    "select.named": Argument(lambda rows, columns: rows.select(x=columns), COMPUTABLE, VALUES),
    "with_columns.columns": Argument(spread("with_columns"), f"{ANY}, empty", UNPACKED),
    "with_columns.named": Argument(lambda rows, columns: rows.with_columns(x=columns), COMPUTABLE, VALUES),
    "drop.columns": Argument(spread("drop"), f"{NAMES}, empty", UNPACKED),
    "explode.column": Argument(lambda rows, columns: _listed(rows).explode(columns), ONE),
    "windows.column": Argument(lambda rows, columns: rows.windows(columns, 2), ONE),
    "distinct.columns": Argument(spread("distinct"), NAMES, UNPACKED),
    "group_by.columns": Argument(spread("group_by", then=counted), f"{ANY}, empty", UNPACKED),
    "group_by.named": Argument(lambda rows, columns: counted(rows.group_by(x=columns)), "one, expression"),
    "count_distinct.columns": Argument(spread("count_distinct"), ANY, UNPACKED),
    "top.by": Argument(lambda rows, columns: rows.group_by("text").top(2, by=columns), ANY),
    "join.on": Argument(lambda rows, columns: rows.join(rows, on=columns), NAMES),
    "join.left_on": Argument(lambda rows, columns: rows.join(rows, left_on=columns, right_on=_names(columns)), NAMES),
    "join.right_on": Argument(lambda rows, columns: rows.join(rows, left_on=_names(columns), right_on=columns), NAMES),
    "semi_join.on": Argument(lambda rows, columns: rows.semi_join(rows.filter(alpha > 1), on=columns), NAMES),
    "semi_join.left_on": Argument(
        lambda rows, columns: rows.semi_join(rows.filter(alpha > 1), left_on=columns, right_on=_names(columns)), NAMES,
    ),
    "semi_join.right_on": Argument(
        lambda rows, columns: rows.semi_join(rows.filter(alpha > 1), left_on=_names(columns), right_on=columns), NAMES,
    ),
    "anti_join.on": Argument(lambda rows, columns: rows.anti_join(rows.filter(alpha > 1), on=columns), NAMES),
    "anti_join.left_on": Argument(
        lambda rows, columns: rows.anti_join(rows.filter(alpha > 1), left_on=columns, right_on=_names(columns)), NAMES,
    ),
    "anti_join.right_on": Argument(
        lambda rows, columns: rows.anti_join(rows.filter(alpha > 1), left_on=_names(columns), right_on=columns), NAMES,
    ),
    "co_group.on": Argument(lambda rows, columns: _co_grouped(rows, on=columns), NAMES),
    "co_group.left_on": Argument(
        lambda rows, columns: _co_grouped(rows, left_on=columns, right_on=_names(columns)), NAMES,
    ),
    "co_group.right_on": Argument(
        lambda rows, columns: _co_grouped(rows, left_on=_names(columns), right_on=columns), NAMES,
    ),
    "co_group.keeps": Argument(
        lambda rows, columns: rows.co_group(rows, "text", lambda key, x, y: _numbers(x), NUMBERS, keeps=columns),
        f"{NAMES}, empty",
    ),
    "apply.keeps": Argument(
        lambda rows, columns: rows.group_by("text").apply(_numbers, NUMBERS, many=True, keeps=columns),
        f"{NAMES}, empty",
    ),
    "flat_map.keeps": Argument(
        lambda rows, columns: rows.flat_map(lambda row: [row, row], SCHEMA, keeps=columns), f"{NAMES}, empty",
    ),
    "map_batches.keeps": Argument(
        lambda rows, columns: rows.map_batches(lambda frame: frame, SCHEMA, keeps=columns), f"{NAMES}, empty",
    ),
    "iterate.at": Argument(
        lambda rows, columns: _started(rows).iterate(lambda now, start: now.concat(start).distinct(), at=columns),
        "one, expression, constant",
    ),
    "iterate.key": Argument(
        lambda rows, columns: rows.iterate(lambda now: now, key=columns, rounds=1, mode="rounds"),
        f"{NAMES}, none",
    ),
    "iterate_delta.key": Argument(
        lambda rows, columns: rows.iterate_delta(
            rows, key=columns, send=lambda sent: sent.filter(alpha > alpha), better=rr.loops.least("beta"),
        ),
        NAMES,
    ),
    "rr.count.column": Argument(agg(of=rr.count), "one, expression, none"),
    "rr.sum.column": Argument(agg(of=rr.sum), "one, expression"),
    "rr.mean.column": Argument(agg(of=rr.mean), "one, expression"),
    "rr.min.column": Argument(agg(of=rr.min), "one, expression"),
    "rr.max.column": Argument(agg(of=rr.max), "one, expression"),
    "rr.first.column": Argument(agg(of=lambda columns: rr.first(columns, by="beta")), "one, expression"),
    "rr.last.column": Argument(agg(of=lambda columns: rr.last(columns, by="beta")), "one, expression"),
    "rr.first.by": Argument(agg(of=lambda columns: rr.first("beta", by=columns)), ANY),
    "rr.last.by": Argument(agg(of=lambda columns: rr.last("beta", by=columns)), ANY),
    "rr.count_distinct.columns": Argument(agg(of=rr.count_distinct), ANY),
}  # fmt: skip


NUMBERS = {"alpha": pl.Int64, "beta": pl.Int64}


def _numbers(group: pl.DataFrame) -> list[Any]:
    return group.select("alpha", "beta").rows()


def _co_grouped(rows: Any, **key: Any) -> Any:
    counts = {"here": pl.Int64, "there": pl.Int64}
    return rows.co_group(rows.filter(alpha > 1), function=_heights, schema=counts, **key)


def _heights(key: Any, left: pl.DataFrame, right: pl.DataFrame) -> list[tuple[int, int]]:
    return [(left.height, right.height)]


def _listed(rows: Any) -> Any:
    """With `alpha` as a list."""
    return rows.with_columns(alpha=pl.concat_list(alpha, "beta"))


def _started(rows: Any) -> Any:
    """Rounds are small and not null."""
    return rows.filter(alpha.is_not_null()).with_columns(beta=pl.col("beta").fill_null(0))


def _names(columns: Any) -> Any:
    """The other key of a join, right whatever is given for the one."""
    if isinstance(columns, list | tuple):
        return ["beta", "alpha", "text"][: len(columns)] or "beta"
    return "beta"


def plain(columns: Any) -> Any:
    """A form as the reference takes it: names as strings, several in a list."""
    if isinstance(columns, pl.Expr):
        return columns.meta.output_name() if columns.meta.is_column() else columns
    if isinstance(columns, list | tuple):
        return [
            name
            for each in columns
            for name in (plain(each) if isinstance(each, list) else [plain(each)])
        ]
    return columns


NEEDS = {"missing_in_list": "several", "missing_in_expression": "expression"}


def check_refusal(error: rr.RiverrunError, form: str, takes: str) -> None:
    message, kind = str(error), FORMS[form][1]
    assert "test_column_arguments.py" in message, "it names the user's line"
    assert error.hint, message
    assert message.startswith("cannot ")
    if kind == "missing" and NEEDS.get(form, "one") in takes.split(", "):
        assert "'alpa'" in message
        assert "alpha" in message.replace("'alpa'", ""), "it says which columns there are"
        assert "did you mean 'alpha'?" in message


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_collection(name, form):
    argument, columns = COLLECTIONS[name], FORMS[form][0]
    if not argument.accepts(form):
        with pytest.raises(rr.PlanError) as refused:
            argument.give(rr.Dataflow("drawn").input("rows", SCHEMA), columns)
        check_refusal(refused.value, form, argument.takes)
        return

    def program(rows: Any) -> Any:
        return argument.give(rows, columns if isinstance(rows, rr.Collection) else plain(columns))

    for seed in seeds(1, soak=4):
        check(program, ROWS, seed=seed, epochs=3)


# -- states: an argument is taken as a column of the same values would be


def _state(flow: rr.Dataflow) -> rr.State:
    return flow.state("kept", key={"alpha": pl.Int64}, value={"beta": pl.Int64}, start=0)


def _updated(rows: Any, **arguments: Any) -> Any:
    """What a state holds after updates."""
    state = _state(rows.flow)
    moved = rows.collection.with_columns(time=pl.col("text").str.len_bytes().cast(pl.Int64))
    moved.update(state, **arguments)
    return state.entries()


def _fetched(rows: Any, **arguments: Any) -> Any:
    state = _state(rows.flow)
    moved = rows.collection.with_columns(time=pl.col("text").str.len_bytes().cast(pl.Int64))
    moved.update(state)
    return moved.fetch(state, **{"key": "alpha", "at": "time", "how": "inner", **arguments})


def _peeked(rows: Any, **arguments: Any) -> Any:
    state = _state(rows.flow)
    moved = rows.collection.with_columns(time=pl.col("text").str.len_bytes().cast(pl.Int64))
    moved.update(state)
    return moved.fetch_uncommitted(
        state, **{"key": "alpha", "at": "time", "how": "inner", **arguments}
    )


def _reported(rows: Any, **arguments: Any) -> Any:
    state = _state(rows.flow)
    moved = rows.collection.with_columns(time=pl.col("text").str.len_bytes().cast(pl.Int64))
    moved.update(state, progress=False)
    moved.progress(state, "update", **{"at": "time", "late": 10, **arguments})
    return moved.fetch(state, key="alpha", at=pl.col("time") - 12)


def _keyed(rows: Any, key: Any) -> Any:
    return rows.flow.input("keyed", SCHEMA, key=key)


class _Passing(rr.Vertex):
    deterministic = True

    def on_recv(self, port, rows, time):
        self.send(rows)


def _routed(rows: Any, route: Any) -> Any:
    outputs = SCHEMA | {"plus": pl.Int64}
    return rows.flow.vertex(_Passing, {"in": rows.collection}, outputs, routes={"in": route})


@dataclass(frozen=True)
class Written:
    """A dataflow with one input."""

    flow: rr.Dataflow
    collection: Any

    @classmethod
    def new(cls) -> Written:
        flow = rr.Dataflow("drawn")
        return cls(flow, flow.input("rows", SCHEMA).with_columns(plus=alpha + 1))


MAPPED = ("list_of_one", "dict")  # {"alpha": "beta"}: the key `alpha` of the state is `beta` here
TIMES = "one, expression, constant"
STATES: dict[str, Argument] = {
    "update.key": Argument(lambda rows, columns: _updated(rows, key=columns), COMPUTABLE, MAPPED),
    "update.value": Argument(lambda rows, columns: _updated(rows, value=columns), COMPUTABLE, ("list_of_one",)),
    "update.time": Argument(lambda rows, columns: _updated(rows, time=columns), f"{TIMES}, none"),
    "update.by": Argument(lambda rows, columns: _updated(rows, by=columns), f"{ONE}, none"),
    "fetch.key": Argument(lambda rows, columns: _fetched(rows, key=columns), COMPUTABLE, MAPPED),
    "fetch.at": Argument(lambda rows, columns: _fetched(rows, at=columns), TIMES),
    "fetch.since": Argument(lambda rows, columns: _fetched(rows, since=columns), f"{TIMES}, none"),
    "fetch_uncommitted.key": Argument(lambda rows, columns: _peeked(rows, key=columns), COMPUTABLE, MAPPED),
    "fetch_uncommitted.at": Argument(lambda rows, columns: _peeked(rows, at=columns), f"{TIMES}, none"),
    "fetch_uncommitted.since": Argument(lambda rows, columns: _peeked(rows, since=columns), f"{TIMES}, none"),
    "fetch_uncommitted.by": Argument(lambda rows, columns: _peeked(rows, by=columns), f"{ONE}, none"),
    "fetch_uncommitted.wait": Argument(lambda rows, columns: _peeked(rows, wait=columns), f"{TIMES}, none"),
    "fetch.by": Argument(lambda rows, columns: _fetched(rows, by=columns), f"{ONE}, none"),
    "progress.at": Argument(lambda rows, columns: _reported(rows, at=columns), TIMES),
    "progress.by": Argument(lambda rows, columns: _reported(rows, by=columns), f"{ONE}, none"),
    "lookup.on": Argument(lambda rows, columns: rows.collection.lookup(rows.collection, columns), NAMES),
    "lookup.left_on": Argument(
        lambda rows, columns: rows.collection.lookup(rows.collection, left_on=columns, right_on=_names(columns)), NAMES,
    ),
    "lookup.right_on": Argument(
        lambda rows, columns: rows.collection.lookup(rows.collection, left_on=_names(columns), right_on=columns), NAMES,
    ),
    "expire.column": Argument(lambda rows, columns: rows.collection.expire(columns, after=2), ONE),
    "input.key": Argument(_keyed, f"{NAMES}, none"),
    "vertex.routes": Argument(_routed, f"{NAMES}, none"),
}  # fmt: skip


def answers(argument: Argument, columns: Any) -> Any:
    """What two epochs of rows lead to."""
    written = Written.new()
    answered = argument.give(written, columns)
    if not isinstance(answered, rr.Collection):  # a collection as a state
        answered = written.collection.fetch(answered, key=answered.key.names)
    written.flow.output("made", answered)
    names = ["rows", "keyed"] if "keyed" in written.flow.inputs else ["rows"]
    seen = []
    with written.flow.run(workers=2) as run:
        for rows in ([(1, 2, "a"), (2, 2, "bcd"), (2, 1, "ef")], [(1, 3, "abcdefgh"), (2, 2, "")]):
            for name in names:
                run.insert(name, rows)
            run.commit()
            seen.append(run.read("made").rows())
    return seen


SAME = {
    "col": "alpha",
    "tuple": ["beta", "alpha"],
    "list_of_col": ["beta", "alpha"],
    "list_of_one": "alpha",
    "number": pl.lit(5, pl.Int64),
    "expression": "plus",
    "dict": "beta",
}
DEFAULTS = {
    "update.key": "alpha",
    "update.value": "beta",
    "update.time": "time",
    "fetch.key": "alpha",
    "fetch_uncommitted.key": "alpha",
}
"""What None stands for: columns of the same names."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", STATES)
def test_a_state_or_an_input(name, form):
    argument, columns = STATES[name], FORMS[form][0]
    if not argument.accepts(form):
        with pytest.raises(rr.PlanError) as refused:
            argument.give(Written.new(), columns)
        check_refusal(refused.value, form, argument.takes)
    elif form in SAME:
        assert answers(argument, columns) == answers(argument, SAME[form])
    elif form == "none" and name in DEFAULTS:
        assert answers(argument, None) == answers(argument, DEFAULTS[name])
    else:
        assert all(answers(argument, columns))


# -- what is made, and what is read


NEW_NAMES = {
    "windows.into": lambda rows, name: rows.windows("alpha", 2, into=name),
    "count.name": lambda rows, name: rows.count(name),
    "Grouped.count.name": lambda rows, name: rows.group_by("text").count(name),
    "rename.names": lambda rows, name: rows.rename({"alpha": name}),
    "join.suffix": lambda rows, name: rows.join(rows, on="alpha", suffix=name),
    "alias": lambda rows, name: rows.group_by("text").agg(rr.sum("alpha").alias(name)),
    "probe.name": lambda rows, name: rows.probe(name),
}


@pytest.mark.parametrize("new_name", [5, None, ["x"], pl.col("x"), b"x", {"x": 1}], ids=str)
@pytest.mark.parametrize("name", NEW_NAMES)
def test_a_new_name_is_a_string(name, new_name):
    rows = rr.Dataflow("drawn").input("rows", SCHEMA)
    with pytest.raises(rr.PlanError) as refused:
        NEW_NAMES[name](rows, new_name)
    assert refused.value.hint


@pytest.mark.parametrize("form", FORMS)
def test_rename_by_a_mapping(form):
    columns, kind = FORMS[form]
    try:
        names = {columns: "x"}
    except TypeError:
        return  # Python itself: not hashable
    rows = rr.Dataflow("drawn").input("rows", SCHEMA)
    if kind == "one":
        assert rows.rename(names).columns == ["x", "beta", "text"]
        return
    with pytest.raises(rr.PlanError) as refused:
        rows.rename(names)
    check_refusal(refused.value, form, ONE)


@pytest.mark.parametrize("form", FORMS)
def test_a_column_of_a_result(form):
    columns, kind = FORMS[form]
    flow = rr.Dataflow("drawn")
    flow.output("made", flow.input("rows", SCHEMA))
    with flow.run() as run:
        run.insert("rows", [(1, 2, "a")])
        run.commit()
        result = run.read("made")
        if kind == "one":
            assert result[columns] == [1]
            return
        with pytest.raises(rr.RiverrunError) as refused:
            result[columns]
    assert refused.value.hint
    if form == "missing":
        assert "did you mean 'alpha'?" in str(refused.value)


@pytest.mark.parametrize("form", FORMS)
def test_the_key_of_a_mirror(form, tmp_path):
    pytest.importorskip("deltalake")
    columns, kind = FORMS[form]
    flow = rr.Dataflow("drawn")
    flow.output("made", flow.input("rows", SCHEMA))
    with flow.run() as run:
        if kind in ("one", "several", "none"):
            run.write_delta("made", tmp_path / "table", mode="mirror", key=columns)
            return
        with pytest.raises(rr.PlanError) as refused:
            run.write_delta("made", tmp_path / "table", mode="mirror", key=columns)
    check_refusal(refused.value, form, NAMES)


def test_the_name_of_a_count_is_not_the_column_to_count():
    rows = rr.Dataflow("drawn").input("rows", SCHEMA)
    for give in (lambda: rows.count("alpha"), lambda: rows.group_by("text").count("alpha")):
        with pytest.raises(rr.PlanError) as refused:
            give()
        assert 'rr.count("alpha")' in refused.value.hint
    assert rows.with_columns(count=alpha).group_by("text").count().columns == ["text", "count"]


WITHOUT = {
    "src": {"from": pl.Int64, "dst": pl.Int64, "time": pl.Int64, "weight": pl.Float64},
    "dst": {"src": pl.Int64, "dest": pl.Int64, "time": pl.Int64, "weight": pl.Float64},
}
ON_GRAPHS = {
    "Graph": lambda flow, edges: graphs.Graph(None, edges),
    "adaptive_pagerank": lambda flow, edges: graphs.adaptive_pagerank(edges),
    "bfs": lambda flow, edges: graphs.bfs(edges, flow.input("s", {"node": pl.Int64})),
    "clustering_coefficient": lambda flow, edges: graphs.clustering_coefficient(edges),
    "components": lambda flow, edges: graphs.components(edges),
    "cycles": lambda flow, edges: graphs.cycles(flow, edges, 5),
    "k_core": lambda flow, edges: graphs.k_core(edges, 2),
    "label_propagation": lambda flow, edges: graphs.label_propagation(edges),
    "nodes_of": lambda flow, edges: graphs.nodes_of(edges),
    "pagerank": lambda flow, edges: graphs.pagerank(edges),
    "shortest_paths": lambda flow, edges: graphs.shortest_paths(
        edges, flow.input("s", {"node": pl.Int64})
    ),
    "strongly_connected_components": lambda flow, edges: graphs.strongly_connected_components(
        edges
    ),
    "triangle_counts": lambda flow, edges: graphs.triangle_counts(edges),
    "triangles": lambda flow, edges: graphs.triangles(edges),
    "undirected": lambda flow, edges: graphs.undirected(edges),
    "pregel": lambda flow, edges: graphs.pregel(
        graphs.Graph(None, edges), {}, send={"n": 1}, combine={"n": rr.sum("n")}
    ),
    "ftrl": learning.ftrl,
    "k_means": lambda flow, edges: learning.k_means(
        edges, flow.input("s", {"cluster": pl.Int64, "src": pl.Int64, "dst": pl.Int64})
    ),
    "logistic_regression": lambda flow, edges: learning.logistic_regression(
        edges, ["src", "dst"], label="weight"
    ),
}


@pytest.mark.parametrize("missing", WITHOUT)
@pytest.mark.parametrize("name", ON_GRAPHS)
def test_an_algorithm_without_one_of_its_columns(name, missing):
    flow = rr.Dataflow("drawn")
    with pytest.raises(rr.PlanError) as refused:
        ON_GRAPHS[name](flow, flow.input("edges", WITHOUT[missing]))
    assert refused.value.hint
    if name != "ftrl":
        assert repr(missing) in str(refused.value)


# -- nothing is left out

OTHERS = {
    "Collection": "others function schema other name step size offset after epochs late suffix how state rule "
    "closed idle progress requests side body rounds mode patience predicates times inner "
    "workset send better missing until maintain expect spread_over",
    "Grouped": "function schema many name k descending collection",
    "Dataflow": "name collection schema checked expect around make inputs outputs tables value time start "
    "compact compaction sweep accelerate replies_first workers checkpoint history seed on memory "
    "timeout recovery security short",
    "Run": "live timeout name epoch wait rows kind function start workers frame mode stream checkpoint "
    "trigger path storage_options",
    "Result": "name schema portions epoch spark",
}
"""Arguments that do not name columns: a test of their own is elsewhere."""
ELSEWHERE = {
    *(
        "filter.equal",
        "agg.named",
        "agg.aggregates",
        "rename.names",
        "of.key",
        "state.key",
        "fetch.time",
        "fetch_uncommitted.time",
    ),
    "write_delta.key",
}


def test_every_argument_is_known():
    drawn = {*COLLECTIONS, *STATES, *ELSEWHERE} | {
        name.removeprefix("Grouped.") for name in NEW_NAMES
    }
    elsewhere = set()
    for kind in (rr.Collection, rr.Grouped, rr.Dataflow, rr.Run, rr.Result):
        for method, function in inspect.getmembers(kind, inspect.isroutine):
            if method.startswith("_"):
                continue
            for argument in inspect.signature(function).parameters:
                if argument == "self" or argument in OTHERS[kind.__name__].split():
                    elsewhere.add((kind.__name__, argument))
                else:
                    assert f"{method}.{argument}" in drawn, (kind.__name__, method, argument)
    assert not {(kind, name) for kind in OTHERS for name in OTHERS[kind].split()} - elsewhere
    for name in ("count", "count_distinct", "first", "last", "max", "mean", "min", "sum"):
        for argument in inspect.signature(getattr(rr, name)).parameters:
            assert f"rr.{name}.{argument}" in drawn
    listed = {*graphs.__all__, *learning.__all__} - {"Clusters", "Model", "Regression"}
    assert listed == set(ON_GRAPHS)


def test_names_of_steps_are_keywords():
    """The name of a step is nobody's column; what is read by its name takes that first."""
    first = {
        "Dataflow": ("input", "output", "state", "schema"),
        "Grouped": ("named", "count"),
        "Collection": ("probe", "count"),
    }
    for kind in (rr.Collection, rr.Grouped, rr.Dataflow, rr.Loop):
        for method, function in inspect.getmembers(kind, inspect.isroutine):
            parameter = (
                None
                if method.startswith("_")
                else inspect.signature(function).parameters.get("name")
            )
            if parameter is not None and method not in first.get(kind.__name__, ("state",)):
                assert parameter.kind is parameter.KEYWORD_ONLY, (kind.__name__, method)
    for name in ON_GRAPHS:
        parameter = inspect.signature(getattr(graphs, name, learning.ftrl)).parameters.get("name")
        assert parameter is None or parameter.kind is parameter.KEYWORD_ONLY, name
