"""Programs that a newcomer writes first: they run, or are refused with advice on what to write instead."""

from __future__ import annotations

import copy
from datetime import timedelta
from functools import partial

import polars as pl
import pytest

import riverrun as rr
from riverrun.frontends.arguments import RowsOf
from riverrun.plan.identity import code_of

SCHEMA = {"id": pl.Int64, "amount": pl.Float64, "cust": pl.String}
FRAME = pl.DataFrame({"cust": ["only a frame"]})
ROWS = [(1, -9.0, "ann"), (2, 5.0, "ann"), (3, 7.0, "ann"), (4, 1.0, "bob")]


@pytest.fixture
def flow():
    return rr.Dataflow("shop")


@pytest.fixture
def orders(flow):
    return flow.input("orders", SCHEMA)


def over_orders(program):
    flow = rr.Dataflow("shop")
    flow.output("result", program(flow.input("orders", SCHEMA)))
    return flow


def result_of(program):
    with over_orders(program).run() as run:
        run.insert("orders", ROWS)
        run.commit()
        return run.read("result").rows()


def test_a_collection_is_neither_true_nor_false_and_has_no_length(orders):
    for ask in (bool, lambda rows: rows and 1, lambda rows: not rows):
        with pytest.raises(rr.PlanError, match="cannot tell whether 'orders' is true") as caught:
            ask(orders)
        assert "is not None" in caught.value.hint
    with pytest.raises(TypeError, match="length of a collection: it is a description") as wrong:
        len(orders)
    assert "Hint: count()" in str(wrong.value)


# -- taken


@pytest.mark.parametrize(
    ("program", "columns"),
    [
        (lambda o: o.select(["id", "cust"]), ["id", "cust"]),
        (lambda o: o.select(["id"], pl.col("cust")), ["id", "cust"]),
        (lambda o: o.select([pl.col("id"), "cust"], twice="id"), ["id", "cust", "twice"]),
        (lambda o: o.with_columns([pl.col("id").alias("no")]), ["id", "amount", "cust", "no"]),
        (lambda o: o.drop(["id", "amount"]), ["cust"]),
        (lambda o: o.drop("id", ("amount",)), ["cust"]),
        (lambda o: o.group_by(["cust", "id"]).count(), ["cust", "id", "count"]),
        (
            lambda o: o.group_by("cust").agg([rr.count(), pl.col("id").max()]),
            ["cust", "count", "id"],
        ),
        (lambda o: o.rename({"id": "no"}), ["no", "amount", "cust"]),
        (lambda o: o.rename({"id": "no", "cust": "who"}), ["no", "amount", "who"]),
        (lambda o: o.rename({}), ["id", "amount", "cust"]),
        (lambda o: o.rename({"id": "cust", "cust": "id"}), ["cust", "amount", "id"]),
    ],
)
def test_columns_are_given_as_polars_takes_them(orders, program, columns):
    assert program(orders).columns == columns


@pytest.mark.parametrize(
    ("by", "first"),
    [
        (pl.col("amount"), [(3, 7.0, "ann"), (4, 1.0, "bob")]),
        (pl.col("amount").abs(), [(1, -9.0, "ann"), (4, 1.0, "bob")]),
        ([pl.col("amount") > 0, pl.col("id")], [(3, 7.0, "ann"), (4, 1.0, "bob")]),
        ([pl.col("amount") > 0, -pl.col("id")], [(2, 5.0, "ann"), (4, 1.0, "bob")]),
    ],
)
def test_top_by_an_expression(by, first):
    assert result_of(lambda o: o.group_by("cust").top(1, by=by)) == first


def test_top_by_an_expression_where_its_name_is_taken():
    def program(orders):
        return (
            orders.rename({"id": "by_0"}).group_by("cust").top(1, by=-pl.col("by_0")).select("by_0")
        )

    assert result_of(program) == [(1,), (4,)]


def test_several_conditions():
    passing = result_of(
        lambda o: o.filter(pl.col("id") > 1, pl.col("amount") > 2, pl.col("id") < 3)
    )
    assert passing == [(2, 5.0, "ann")]


# -- refused

REFUSED = {
    "top_by_a_number": (lambda o: o.group_by("cust").top(1, by=5), "5 is not the name"),
    "top_by_unknown": (lambda o: o.group_by("cust").top(1, by=-pl.col("amnt")), "mean 'amount'"),
    "iterate": (lambda o: o.iterate(3), "cannot iterate with 3: that is not a function"),
    "rename_by_position": (lambda o: o.rename("id"), 'rename({"old": "new"})'),
    "rename_by_nothing": (lambda o: o.rename(), 'rename({"old": "new"})'),
    "rename_by_function": (lambda o: o.rename(str.upper), 'rename({"old": "new"})'),
    "rename_by_keyword": (lambda o: o.rename(no="id"), 'rename({"id": "no"})'),
    "rename_by_both": (
        lambda o: o.rename({"id": "no"}, who="cust"),
        'rename({"id": "no", "cust": "who"})',
    ),
    "rename_by_keyword_swapped": (lambda o: o.rename(id="no"), 'rename({"id": "no"})'),
    "rename_as_pandas": (
        lambda o: o.rename(columns={"id": "no", "cust": "who"}),
        'rename({"id": "no", "cust": "who"})',
    ),
    "rename_as_spark": (lambda o: o.rename("id", "no"), 'rename({"id": "no"})'),
    "rename_to_a_number": (lambda o: o.rename({"id": 3}), "3 is not a name"),
    "rename_twice": (lambda o: o.rename({"id": "cust"}), "two would be called 'cust'"),
    "drop_expression": (lambda o: o.drop(pl.col("id") + 1), "the name of a column is wanted"),
    "select": (lambda o: o.select("amnt"), "orders': column 'amnt' does not exist; there are: id,"),
    "select_col": (lambda o: o.select(pl.col("amnt")), "s': column 'amnt' does not exist; there"),
    "select_close": (lambda o: o.select("amnt"), "did you mean 'amount'?"),
    "expression": (lambda o: o.select(x=pl.col("qq") + 1), "column 'x' uses column 'qq', which"),
    "select_all": (lambda o: o.select(pl.all()), "it can stand for several columns"),
    "agg_all": (lambda o: o.group_by("cust").agg(pl.all().sum()), "it can stand for several"),
    "filter_one_of_two": (
        lambda o: o.filter(pl.col("id") > 1, pl.col("amnt") > 1),
        "the condition",
    ),
    "join_frame": (lambda o: o.join(FRAME, on="cust"), "a polars DataFrame is not a collection"),
    "concat_frame": (lambda o: o.concat(FRAME), "a polars DataFrame is not a collection"),
    "concat_groups": (lambda o: o.concat(o.group_by("id")), "call .agg() or .count() on it"),
    "body": (lambda o: o.iterate(lambda rows: FRAME), "the body gave a polars DataFrame"),
    "no_size": (lambda o: o.windows("id", 0), "it must be positive"),
    "no_step": (lambda o: o.windows("id", 5, step=0), "it must be positive"),
    "late": (lambda o: o.expire("id", after=5, late=-1), "it must not be negative"),
    "offset": (lambda o: o.windows("id", 5, offset=timedelta(1)), "the offset of windows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(orders, name):
    program, words = REFUSED[name]
    with pytest.raises(rr.PlanError) as raised:
        program(orders)
    assert words in str(raised.value)
    assert raised.value.hint
    assert "only a frame" not in str(raised.value), "no rows of frames"


@pytest.mark.parametrize(
    "program",
    [
        lambda o: o.join(o, on="zz"),
        lambda o: o.drop("zz"),
        lambda o: o.rename({"zz": "new"}),
        lambda o: o.group_by("zz"),
    ],
)
def test_where_only_names_are_taken_no_literal_is_proposed(orders, program):
    with pytest.raises(rr.PlanError, match="column 'zz' does not exist") as raised:
        program(orders)
    assert "pl.lit" not in raised.value.hint


def test_a_span_of_no_time_is_refused(flow):
    timed = flow.input("timed", {"at": pl.Datetime("us")})
    with pytest.raises(rr.PlanError, match="must be positive"):
        timed.windows("at", size=timedelta(0))


def test_outputs_are_collections(flow, orders):
    for argument, words in (
        (FRAME, "cannot output 'x': a polars DataFrame is not a collection"),
        (orders.group_by("cust"), "call .agg() or .count() on it"),
        ("orders", "not its name"),
    ):
        with pytest.raises(rr.PlanError) as raised:
            flow.output("x", argument)
        assert words in str(raised.value)
        assert "only a frame" not in str(raised.value)


def test_an_input_with_a_key_has_the_name_that_it_was_given(flow, orders):
    cust = flow.input("cust", {"cust": pl.String}, key="cust")
    with pytest.raises(rr.PlanError, match="cannot select from 'cust': "):
        cust.select("zz")
    with pytest.raises(rr.PlanError, match="cannot join 'orders' and 'cust': "):
        orders.join(cust)
    with pytest.raises(rr.PlanError, match="cannot select from 'paid': "):
        flow.input("paid", SCHEMA, checked=True).select("zz")


# -- attributes


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sort", "top(k, by=...)"),
        ("groupBy", "Hint: group_by(...)"),
        ("withColumnRenamed", 'Hint: rename({"old": "new"})'),
        ("withColumnsRenamed", 'Hint: rename({"old": "new"})'),
        ("show", "flow.output(name, collection)"),
        ("amount", "pl.col('amount')"),
    ],
)
def test_an_attribute_of_elsewhere(orders, name, words):
    with pytest.raises(AttributeError) as raised:
        getattr(orders, name)
    assert words in str(raised.value)
    assert raised.value.name == name


def test_a_collection_has_no_rows_to_index(orders):
    for use in (lambda: orders["id"], lambda: list(orders), lambda: "id" in orders):
        with pytest.raises(TypeError, match=r'select\("a", "b"\)'):
            use()


def test_other_attributes_are_as_of_any_object(orders):
    assert not hasattr(orders, "nothing")
    assert not hasattr(orders, "_repr_html_")
    assert not hasattr(orders, "__arrow_c_stream__")
    assert "sort" not in dir(orders)
    assert copy.copy(orders).columns == orders.columns
    groups = orders.group_by("cust")
    assert copy.copy(groups) == groups
    with pytest.raises(AttributeError, match=r'agg\(total=rr.sum\("v"\)\)'):
        groups.sum("amount")


# -- while it runs


@pytest.mark.parametrize(
    "output", [None, {"id": 1}, 5, "row"], ids=["nothing", "one row", "number", "string"]
)
def test_flat_map_gives_a_list_of_rows(output):
    built = over_orders(lambda o: o.flat_map(lambda row: output, {"id": pl.Int64}))
    with built.run() as run:
        run.insert("orders", ROWS)
        with pytest.raises(rr.OperatorFailed, match="not a list of rows") as raised:
            run.commit()
        assert repr(output) in raised.value.message
        assert "[row] for one, [] for none" in raised.value.hint


def test_flat_map_takes_what_can_be_walked_through():
    def both(row):
        yield (row["id"],)
        yield (-row["id"],)

    numbers = result_of(lambda o: o.flat_map(both, {"id": pl.Int64}))
    assert numbers == [(n,) for n in (-4, -3, -2, -1, 1, 2, 3, 4)]


def test_a_cast_that_fails_speaks_of_the_rows_there_are():
    built = over_orders(lambda o: o.select(n=pl.col("cust").cast(pl.Int64)))
    with built.run() as run:
        run.insert("orders", ROWS[:1])
        with pytest.raises(rr.OperatorFailed, match="1 out of 1 values"):
            run.commit()


def test_a_checkpoint_is_compared_with_the_code_of_the_user():
    class Lines:
        def __call__(self, row):
            return [row, row]

    functions = [lambda row: [row], lambda row: [], Lines(), partial(lambda n, row: [row] * n, 3)]
    codes = [code_of(RowsOf(function)) for function in functions]
    assert len(set(codes)) == len(functions)
    assert codes == [code_of(copy.copy(RowsOf(function))) for function in functions]
    assert RowsOf(functions[3])({"a": 1}) == [{"a": 1}] * 3


# -- what hints say


GRAPHS = {
    "components": (lambda flow, rows: rr.graphs.components(rows), {"k": int}, "src, dst"),
    "cycles": (lambda flow, rows: rr.graphs.cycles(flow, rows, 5), {"src": int, "dst": int}, "src, dst, time"),
    "shortest_paths": (
        lambda flow, rows: rr.graphs.shortest_paths(rows, rows), {"src": int, "dst": int}, "src, dst, weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_an_algorithm_says_which_columns_it_takes(flow, name):
    algorithm, schema, columns = GRAPHS[name]
    with pytest.raises(
        rr.PlanError, match=f"cannot take edges of {name}: column '.*' does not"
    ) as caught:
        algorithm(flow, flow.input("rows", schema))
    assert f"the edges of {name} have the columns {columns}:" in caught.value.hint
    assert caught.value.code == "plan.column_unknown"


def mapped(schema, *answers):
    flow = rr.Dataflow("mapped")
    rows = flow.input("rows", {"k": pl.Int64})
    flow.output("o", rows.flat_map(lambda row: answers[row["k"]], schema))
    with flow.run() as run:
        run.insert("rows", [(at,) for at in range(len(answers))])
        run.commit()
        return run.read("o").rows()


def test_one_row_of_a_function_is_a_list_too():
    schema = {"a": pl.Int64, "b": pl.Int64}
    with pytest.raises(rr.OperatorFailed, match="row 0 is 1, an int") as caught:
        mapped(schema, (1, 2))
    assert caught.value.hint.endswith("one row is a list too: [row]")
    assert mapped(schema, [(1, 2)]) == [(1, 2)]


@pytest.mark.parametrize(
    ("rows", "kinds"),
    [
        ([(1,), {"a": 2}], ("a tuple", 1, "a dict")),
        ([{"a": 2}, {"a": 2}, (1,)], ("a dict", 2, "a tuple")),
    ],
)
def test_rows_by_position_and_by_name_do_not_mix(rows, kinds):
    first, at, other = kinds
    said = f"row 0 is {first} and row {at} is {other}, and rows by position cannot mix with rows by name"
    with pytest.raises(rr.OperatorFailed, match=said):
        mapped({"a": pl.Int64}, rows)
    flow = rr.Dataflow("mixed")
    flow.output("o", flow.input("rows", {"a": pl.Int64}))
    with flow.run() as run, pytest.raises(rr.SchemaError, match=said) as caught:
        run.insert("rows", rows)
    assert (
        caught.value.hint
        == "give all rows as tuples, in the order of the columns (a), or all as dicts"
    )
    assert caught.value.code == "schema.not_rows"


def test_what_is_no_number_is_added_up_as_hints_say(flow):
    rows = flow.input("rows", {"e": pl.Enum(["20", "10"]), "t": pl.String, "l": pl.List(pl.Int64)})
    hints = {}
    for column in ("e", "t", "l"):
        for of in (column, pl.col(column)):
            with pytest.raises(rr.PlanError, match=r"adds up .*, which is not a number") as caught:
                rows.group_by().agg(m=rr.mean(of))
            hints.setdefault(column, caught.value.hint)
            assert caught.value.hint == hints[column]
    assert 'as a number: rr.mean(pl.col("e").cast(pl.String).cast(pl.Float64)), its' in hints["e"]
    assert 'in the enum: rr.mean(pl.col("e").to_physical());' in hints["e"]
    assert 'cast it: rr.mean(pl.col("t").cast(pl.Float64));' in hints["t"]
    assert 'of each list: rr.mean(pl.col("l").list.sum().cast(pl.Float64));' in hints["l"]
    means = rows.group_by().agg(
        e=rr.mean(pl.col("e").cast(pl.String).cast(pl.Float64)),
        place=rr.mean(pl.col("e").to_physical()),
        t=rr.mean(pl.col("t").cast(pl.Float64)),
        l=rr.mean(pl.col("l").list.sum().cast(pl.Float64)),
    )
    flow.output("means", means)
    with flow.run() as run:
        run.insert("rows", [("20", "2", [1, 2]), ("10", "3", [4])])
        run.commit()
        assert run.read("means").rows() == [(15.0, 0.5, 2.5, 3.5)]


@pytest.mark.parametrize(
    ("kind", "value", "reason", "hint"),
    [
        (
            pl.Int64,
            2**63,
            "it is out of range",
            "give an int from -2**63 to 2**63 - 1 or None; or declare a type",
        ),
        (pl.UInt8, 256, "it is out of range", "give an int from 0 to 2**8 - 1 or None; or"),
        (
            pl.List(pl.Int64),
            [1, 2**63],
            "of its item 9223372036854775808, it is",
            "give a list in which each value is an int from -2**63",
        ),
        (
            pl.List(pl.Int64),
            [1, "x"],
            "of its item 'x', it is a str",
            "give a list in which each value is an int or None",
        ),
        (pl.List(pl.Int64), 1, "it is an int", "give a list or None"),
        (
            pl.Struct({"a": pl.Int8}),
            {"a": 300},
            "of its field 'a', it is out",
            "an int from -2**7 to 2**7 - 1 or None; or",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_advised_on(kind, value, reason, hint):
    flow = rr.Dataflow("values")
    for name, declared in (("rows", kind), ("wide", pl.Decimal(38, 0))):
        flow.output(f"{name} out", flow.input(name, {"v": declared}))
    with flow.run() as run:
        with pytest.raises(rr.SchemaError, match=reason) as caught:
            run.insert("rows", [(value,)])
        assert hint in caught.value.hint
        run.insert("wide", [(2**63,)])  # the wider type of the hint
        run.commit()
        assert run.read("wide out").rows() == [(2**63,)]


# -- what the pages say of corners


@pytest.mark.parametrize(
    ("epochs", "values"),
    [
        ([{"insert": [0.1, 9.0]}, {"delete": [0.1]}], [[9.0], [9.0]]),
        ([{"insert": [0.1, 9.0]}, {"delete": [9.0]}], [[9.0], []]),
        ([{"insert": [9.0]}, {"insert": [0.1]}, {"delete": [9.0]}], [[9.0], [0.1], [0.1]]),
        ([{"insert": [9.0]}, {"insert": [0.1]}, {"delete": [0.1]}], [[9.0], [0.1], []]),
        ([{"insert": [9.0, 9.0]}, {"delete": [9.0]}], [[9.0], []]),
        ([{"insert": [0.1]}, {"delete": [0.1], "insert": [9.0]}], [[0.1], [9.0]]),
    ],
)
def test_deleting_an_update_takes_out_the_value_that_is_there(flow, epochs, values):
    updates = flow.input("updates", {"k": pl.Int64, "t": pl.Int64, "v": pl.Float64})
    key, value, time = {"k": pl.Int64}, {"v": pl.Float64}, {"t": pl.Int64}
    state = flow.state("state", key=key, value=value, time=time)
    updates.update(state, late=9)
    seen = []
    with flow.run() as run:
        for epoch in epochs:
            for act, given in epoch.items():
                getattr(run, act)("updates", [(1, 0, v) for v in given])
            run.commit()
            seen.append([row[2] for row in run.read("state").rows()])
    assert seen == values


def test_an_order_of_several_columns_with_nulls(flow):
    rows = flow.input("rows", {"a": pl.Int64, "b": pl.Int64})
    both = pl.struct("a", "b")
    first, last = rr.first(both, by=["a", "b"]), rr.last(both, by=["a", "b"])
    flow.output("ends", rows.group_by().agg(first=first, last=last))
    ends = []
    with flow.run() as run:
        for some in ([(None, 9), (1, None)], [(1, 5)], [(2, None), (0, None)], [(0, 3)]):
            run.insert("rows", some)
            run.commit()
            ((low, high),) = run.read("ends").rows()
            ends.append((tuple(low.values()), tuple(high.values())))
    assert ends == [
        ((1, None), (1, None)), ((1, 5), (1, 5)), ((0, None), (2, None)), ((0, 3), (2, None)),
    ]  # fmt: skip


@pytest.mark.parametrize("checked", [False, True])
def test_deleting_a_row_that_left_by_its_epoch_is_a_debt_for_as_long(flow, checked):
    rows = flow.input("rows", {"k": pl.Int64}, checked=checked)
    flow.output("recent", rows.expire(epochs=2))
    with flow.run() as run:
        run.insert("rows", [(1,)])
        for _ in range(3):
            run.commit()
        assert run.read("recent").rows() == []
        run.delete("rows", [(1,)])
        for _ in range(2):
            run.commit()
            with pytest.raises(rr.OperatorFailed, match="is there -1 times"):
                run.read("recent").rows()
        run.commit()
        assert run.read("recent").rows() == []


def test_which_rows_of_an_epoch_are_late_and_how_they_are_counted(tmp_path):
    def program():
        flow = rr.Dataflow("late")
        rows = flow.input("rows", {"k": pl.Int64, "t": pl.Int64})
        for name in ("one", "two"):
            flow.output(name, rows.expire("t", after=5))
        state = flow.state("state", key={"k": pl.Int64}, value={}, time={"t": pl.Int64})
        rows.update(state, late=5)
        return flow

    def late(run):
        return {event["what"]: event["rows"] for event in run.events("late")}

    with program().run(checkpoint=tmp_path / "path", every=None) as run:
        run.insert("rows", [(1, 0), (1, 100)])
        run.commit()
        assert run.read("one").rows() == [(1, 100)]
        assert run.read("state").rows() == [(1, 0), (1, 100)]
        assert late(run) == {"expire": 2}
        run.insert("rows", [(1, 3)])
        run.commit()
        assert late(run) == {"expire": 4, "update": 1}
    with program().run(checkpoint=tmp_path / "path", every=None) as run:
        assert late(run) == {"expire": 4, "update": 1}  # these epochs are done again
        run.checkpoint()
    with program().run(checkpoint=tmp_path / "path", every=None) as run:
        assert late(run) == {}


# -- points in time, selectors, vertices, graphs


@pytest.mark.parametrize("kind", [pl.Date, pl.Time, pl.Datetime("us"), pl.Datetime("ms", "UTC")])
def test_points_in_time_have_a_mean_and_no_sum(kind):
    rows = rr.Dataflow("moments").input("rows", {"k": pl.Int64, "at": kind})
    for aggregate in (rr.sum("at"), rr.sum("at") - rr.min("at")):
        with pytest.raises(rr.PlanError, match=r"adds up .* which is a point in time") as caught:
            rows.group_by("k").agg(x=aggregate)
        assert caught.value.code == "plan.type"
        assert "rr.mean takes it" in caught.value.hint
    assert rows.group_by("k").agg(x=rr.mean("at"), n=rr.count("at")).columns == ["k", "x", "n"]


def test_an_expression_for_several_columns_is_refused_in_the_words_of_its_method():
    rows = rr.Dataflow("several").input("rows", {"a": pl.Int64, "b": pl.Int64})
    with pytest.raises(rr.PlanError, match=r"cannot aggregate .* several columns") as caught:
        rows.group_by("a").agg(pl.all().sum())
    assert "agg(a=" in caught.value.hint
    with pytest.raises(rr.PlanError, match=r"cannot compute .* several columns"):
        rows.with_columns(pl.all() * 2)


class Deaf(rr.Vertex):
    pass


class Wrong(rr.Vertex):
    def on_recv(self, port, rows, time):
        what = rows["what"][0]
        if what == "table":
            self.table("nope")
        elif what == "send":
            self.send(rows.drop("diff"), time=3)
        else:
            self.notify_at("soon")


def test_mistakes_in_a_vertex_are_told():
    flow = rr.Dataflow("vertices")
    rows = flow.input("rows", {"what": pl.String})
    with pytest.raises(rr.PlanError, match="Deaf has no method on_recv") as caught:
        flow.vertex(Deaf, {"rows": rows}, {"what": pl.String})
    assert "on_recv" in caught.value.hint
    flow.output("out", flow.vertex(Wrong, {"rows": rows}, {"what": pl.String}))
    said = {
        "table": "cannot take table 'nope' of Wrong: declared are: none",
        "send": r"cannot send at 3 .*a time is a tuple of whole numbers",
        "notify": r"cannot be notified at 'soon' .*a time is a tuple of whole numbers",
    }
    with flow.run() as run:
        for what, message in said.items():
            run.insert("rows", [(what,)])
            with pytest.raises(rr.RiverrunError, match=message):
                run.commit()


@pytest.mark.parametrize("algorithm", [rr.graphs.bfs, rr.graphs.shortest_paths])
def test_nodes_of_two_kinds_are_refused_in_the_words_of_the_graph(algorithm):
    flow = rr.Dataflow("graph")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64, "weight": pl.Int64})
    sources = flow.input("sources", {"node": pl.String})
    with pytest.raises(
        rr.PlanError, match="'src' of edges is Int64 and 'node' of sources is String"
    ) as caught:
        algorithm(edges, sources)
    assert caught.value.code == "plan.types_differ"
    with pytest.raises(rr.PlanError, match="prioritised='yes': that is True, False or None"):
        rr.graphs.components(edges, prioritised="yes")


def test_looking_up_by_a_column_that_is_not_there():
    flow = rr.Dataflow("looking")
    orders, people = (flow.input(name, {"n": pl.Int64, "i": pl.Int64}) for name in ("o", "p"))
    with pytest.raises(
        rr.PlanError, match="cannot look up rows of 'o': column 'shp' does not exist"
    ):
        orders.lookup(people, "shp")
