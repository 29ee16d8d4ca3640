"""What somebody who has read only the documentation does: each is done as written, or refused in words."""

from __future__ import annotations

from decimal import Decimal
from threading import Event
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun import graphs, learning
from riverrun.errors import PlanError, RiverrunError, SchemaError
from riverrun.testing import COMMIT, check_dataflow, check_operator, each_epoch, insert, once


def numbers(function: Any = None) -> tuple[rr.Dataflow, dict[str, Any]]:
    """A program whose function of rows may use the run, which is in the box."""
    flow, box = rr.Dataflow("numbers"), dict[str, Any]()
    given = flow.input("i", {"t": pl.Int64})
    made = given
    if function is not None:

        def call(row: dict[str, Any]) -> list[dict[str, Any]]:
            if row["t"] == 2 and "run" in box:
                function(box["run"])
            return [row]

        made = given.flat_map(call, {"t": pl.Int64})
    flow.output("o", made)
    return flow, box


def gone(new: rr.Collection, old: rr.Collection) -> rr.Collection:
    return new.join(old, on="x", how="anti")


def test_inputs_go_to_the_parameters_of_their_names() -> None:
    new, old = [{"x": 1}, {"x": 2}], [{"x": 1}]
    assert once(gone, new=new, old=old).rows() == [(2,)]
    assert once(gone, old=old, new=new).rows() == [(2,)]
    script: list[Any] = [insert("new", new), insert("old", old), COMMIT]
    (result,) = each_epoch(gone, script, old={"x": int}, new={"x": int})
    assert result.rows() == [(2,)]

    def oracle(new: Any, old: Any) -> set[tuple[int]]:
        return {(row["x"],) for row in new if row not in old}

    def distinct(new: rr.Collection, old: rr.Collection) -> rr.Collection:
        return gone(new, old).distinct()

    for names in (("new", "old"), ("old", "new")):
        check_operator(distinct, {name: {"x": int} for name in names}, oracle=oracle, rounds=1)


@pytest.mark.parametrize("names", [("b",), ("a", "b"), ()])
def test_an_input_that_no_parameter_is_called_by_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(PlanError, match=r"its parameters are a, and the inputs are"):
        once(lambda a: a, **{name: [{"x": 1}] for name in names})


def test_a_check_takes_inputs_in_order_where_no_name_is_shared() -> None:
    check_operator(lambda a, b: gone(b, a), {"old": {"x": int}, "new": {"x": int}}, rounds=1)
    with pytest.raises(PlanError, match="handed over by name"):
        check_operator(lambda new, b: gone(b, new), {"old": {"x": int}, "new": {"x": int}})


ATTEMPTS = {
    "commit": lambda run: run.commit(),
    "commit and go on": lambda run: run.commit(wait=False),
    "make a checkpoint": lambda run: run.checkpoint(),
    "scale": lambda run: run.scale(2),
    "close": lambda run: run.close(),
    "status, then scale": lambda run: (run.status(), run.scale(2)),
    "wait": lambda run: rr.Commit(run._commits, 0, 0).wait(),
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_cannot_change_its_own_run(tmp_path: Any, attempt: str, workers: int) -> None:
    flow, box = numbers(ATTEMPTS[attempt])
    with flow.run(workers=workers, checkpoint=tmp_path / "kept") as run:
        box["run"] = run
        run.insert("i", [(1,)])
        run.commit()
        run.insert("i", [(2,)])
        with pytest.raises(RiverrunError, match="from a function of the run of 'numbers'"):
            run.commit()
        assert run.read("o").rows() == [(1,)]
        run.insert("i", [(3,)])
        run.commit()
        assert run.read("o").rows() == [(1,), (3,)]
        run.scale(3)
        run.checkpoint()
        assert run.read("o").rows() == [(1,), (3,)]
    box.clear()
    with flow.run(checkpoint=tmp_path / "kept") as run:
        assert run.read("o").rows() == [(1,), (3,)]


def test_a_function_may_read_its_own_run_and_gather_rows() -> None:
    seen: list[Any] = []

    def use(run: rr.Run) -> None:
        run.insert("i", [(7,)])
        seen.extend((run.read("o").rows(), run.changes("o").rows(), run.status()["epoch"]))
        run.rollback()

    flow, box = numbers(use)
    with flow.run() as run:
        box["run"] = run
        run.insert("i", [(1,)])
        run.commit()
        run.insert("i", [(2,)])
        run.commit()
        assert run.read("o").rows() == [(1,), (2,)]
    assert seen == [[(1,)], [(1, 1)], 0]


def test_the_function_of_a_sink_may_commit() -> None:
    """It is called in a thread of its own, after the epoch."""
    flow, _ = numbers()
    done = Event()

    def echo(changes: Any, epoch: int) -> None:
        if epoch == 0:
            run.insert("i", [(10,)])
            run.commit()
            done.set()

    with flow.run() as run:
        run.for_each_epoch("o", echo)
        run.insert("i", [(1,)])
        run.commit()
        assert done.wait(30)
        assert run.read("o").rows() == [(1,), (10,)]


@pytest.mark.parametrize("tags", [[], [None], [1, [1]]])
def test_a_dict_that_could_be_a_row_or_columns_is_refused(tags: list[Any]) -> None:
    flow = rr.Dataflow("lists")
    kinds = {"tags": pl.List(pl.Int64), "more": pl.List(pl.Int64)}
    flow.output("o", flow.input("i", kinds))
    with flow.run() as run:
        with pytest.raises(SchemaError, match="one row or a dict of columns"):
            run.insert("i", {"tags": tags, "more": []})
        run.insert("i", [{"tags": [], "more": []}])
        run.insert("i", pl.DataFrame({"tags": [[1]], "more": [[]]}, schema=kinds))
        run.insert("i", {name: pl.Series([[2]], dtype=kind) for name, kind in kinds.items()})
        run.insert("i", {"tags": [1], "more": []})
        run.insert("i", {"tags": [[1], []], "more": [[], None]})
        run.commit()
        assert len(run.read("o")) == 6


def test_an_input_has_columns() -> None:
    with pytest.raises(PlanError, match="without columns"):
        rr.Dataflow("none").input("i", {})


@pytest.mark.parametrize("also", [{"after": 3}, {"late": 3}, {"after": 3, "late": 3}])
def test_expiring_by_epochs_takes_no_times(also: dict[str, Any]) -> None:
    given = rr.Dataflow("old").input("i", {"t": pl.Int64})
    with pytest.raises(PlanError, match="by epochs= and by after= or late="):
        given.expire(epochs=2, **also)


def test_a_kind_of_events_that_does_not_exist_is_refused() -> None:
    flow, _ = numbers()
    with flow.run() as run:
        with pytest.raises(PlanError, match="did you mean 'late'"):
            run.events("lates")
        assert run.events("late") == []


@pytest.mark.parametrize(
    "options",
    [
        {"checkpoint": ""},
        {"checkpoint": " "},
        {"checkpoint": 3},
        {"skip_failing": True},
        {"skip_failing": "no"},
        {"seed": "x"},
        {"seed": True},
    ],
)
def test_options_of_a_run_are_looked_at(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(PlanError, match=f"cannot run with {name}="):
        numbers()[0].run(**options)


def test_a_flag_of_commit_is_true_or_false() -> None:
    with numbers()[0].run() as run, pytest.raises(PlanError, match="that is True or False"):
        run.commit(wait="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [pl.DataFrame(), pl.DataFrame({"t": [1]}), [pl.DataFrame()]])
def test_only_collections_are_concatenated(other: Any) -> None:
    given = rr.Dataflow("more").input("i", {"t": pl.Int64})
    with pytest.raises(PlanError, match="is not a collection"):
        given.concat(other)
    assert given.concat([given], given).columns == ["t"]


@pytest.mark.parametrize("column", [pl.Series([1]), pl.Series("t", [1])])
def test_a_column_alone_is_no_rows(column: Any) -> None:
    flow, _ = numbers()
    with flow.run() as run, pytest.raises(SchemaError, match="the rows are"):
        run.insert("i", column)
    flow = rr.Dataflow("batches")
    flow.output("o", flow.input("i", {"t": int}).map_batches(lambda frame: frame["t"], {"t": int}))
    with flow.run() as run:
        run.insert("i", [(1,)])
        with pytest.raises(RiverrunError, match="the rows are"):
            run.commit()


def edges(**kinds: Any) -> tuple[rr.Dataflow, rr.Collection]:
    flow = rr.Dataflow("edges")
    given = {"src": pl.Int64, "dst": pl.Int64, "time": pl.Int64} | kinds
    return flow, flow.input("edges", given)


def test_algorithms_refuse_what_is_no_flow_and_no_collection() -> None:
    flow, paid = edges()
    wrong: list[Any] = [(None, None), (paid, flow), (flow, None)]
    for given in wrong:
        with pytest.raises(PlanError, match="that is not a"):
            graphs.cycles(given[0], given[1], 5)
        with pytest.raises(PlanError, match="that is not a"):
            learning.ftrl(given[0], given[1])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"spans": {3: -5}}, "within -5"),
        ({"span": 0}, "within 0"),
        ({"span": "x"}, "within 'x'"),
        ({"spans": {}}, "it says the span of each length"),
    ],
)
def test_spans_of_cycles_are_looked_at(given: Any, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        graphs.cycles(*edges(), **given)


def test_both_ends_of_an_edge_are_nodes_of_one_type() -> None:
    with pytest.raises(PlanError, match="both are nodes"):
        graphs.cycles(*edges(dst=pl.String), span=5)


@pytest.mark.parametrize(
    "test",
    [lambda: once(None), lambda: check_dataflow(None), lambda: check_operator(None, {})],  # type: ignore[arg-type]
)
def test_what_is_no_program_is_not_tested(test: Any) -> None:
    with pytest.raises(PlanError, match=r"cannot (test|check) None"):
        test()


@pytest.mark.parametrize("epoch", [-1, "0", True])
def test_an_epoch_is_a_whole_number(epoch: Any, tmp_path: Any) -> None:
    flow, _ = numbers()
    with flow.run(checkpoint=tmp_path / "kept") as run:
        run.commit()
        with pytest.raises(RiverrunError, match="an epoch is a whole number from 0 on"):
            run.read("o", epoch=epoch)
        run.checkpoint()
        if epoch != -1:
            with pytest.raises(RiverrunError, match="of a checkpoint is a whole number"):
                rr.read_checkpoint(tmp_path / "kept", number=epoch)
            sink = run.for_each_epoch("o", lambda changes, epoch: None)
            with pytest.raises(RiverrunError, match="an epoch is a whole number"):
                sink.wait(epoch)


def test_an_output_declared_after_the_run_began_is_in_the_next_one() -> None:
    flow, _ = numbers()
    with flow.run() as run:
        flow.output("later", flow.inputs["i"])
        with pytest.raises(PlanError, match=r"after flow.run\(\) is in the next run"):
            run.read("later")


def test_joins_say_what_they_are_called_here() -> None:
    flow = rr.Dataflow("two")
    a, b = flow.input("a", {"x": int}), flow.input("b", {"x": int})
    with pytest.raises(PlanError, match='how="full"'):
        a.join(b, on="x", how="outer")
    with pytest.raises(PlanError, match="too many keys are given"):
        a.join(b, on="x", left_on="x", right_on="x")


@pytest.mark.parametrize(
    ("made", "many", "told"),
    [
        ([{"t": 3}], False, r"many=True\) takes a list of rows"),
        ({"t": 3}, True, "give a list of rows"),
    ],
)
def test_one_row_and_many_are_told_apart(made: Any, many: bool, told: str) -> None:
    flow = rr.Dataflow("groups")
    given = flow.input("i", {"t": int})
    flow.output("o", given.group_by("t").apply(lambda frame: made, {"n": int}, many=many))
    with flow.run() as run:
        run.insert("i", [(1,)])
        with pytest.raises(RiverrunError, match=told):
            run.commit()


@pytest.mark.parametrize(
    "kind",
    [pl.Enum, pl.List, pl.Struct, pl.Array, pl.List(pl.List), pl.Struct({"a": pl.Enum})],
)
def test_a_type_says_of_what_it_is(kind: Any) -> None:
    with pytest.raises(SchemaError, match="which does not say of what"):
        rr.Dataflow("types").input("i", {"a": kind})


def test_a_place_has_one_sink(tmp_path: Any) -> None:
    flow, _ = numbers()
    with flow.run() as run:
        first = run.write_parquet("o", tmp_path / "out")
        with pytest.raises(PlanError, match="a sink of this run writes 'o' there"):
            run.write_parquet("o", tmp_path / "sub" / ".." / "out")
        run.insert("i", [(1,)])
        run.commit()
        first.close()
        run.write_parquet("o", tmp_path / "out").wait()


def test_names_from_elsewhere_have_hints() -> None:
    given = rr.Dataflow("names").input("i", {"t": int})
    names = [
        "top",
        "pivot",
        "orderBy",
        "unionAll",
        "sum",
        "fill_null",
        "join_asof",
        "rolling",
        "melt",
        "flatmap",
    ]
    for name in names:
        with pytest.raises(AttributeError, match="Hint: "):
            getattr(given, name)
    flow, _ = numbers()
    with flow.run() as run:
        with pytest.raises(AttributeError, match="did you mean 'commit'"):
            run.comit()  # type: ignore[attr-defined]
        run.commit()
        with pytest.raises(AttributeError, match="to_polars"):
            run.read("o").head()  # type: ignore[attr-defined]


def test_scaling_says_what_to_give() -> None:
    with (
        numbers()[0].run() as run,
        pytest.raises(PlanError, match=r"(?s)cannot scale to workers=0.*scale\(4\)"),
    ):
        run.scale(0)


def test_a_decimal_that_is_too_large_is_told_in_words() -> None:
    flow = rr.Dataflow("money")
    flow.output("o", flow.input("i", {"d": pl.Decimal(5, 2)}))
    with flow.run() as run, pytest.raises(SchemaError, match="3 digits before the point"):
        run.insert("i", [(Decimal("123456.78"),)])


def test_a_loop_that_leads_nowhere_says_how_to_connect_it() -> None:
    flow = rr.Dataflow("loop")
    given = flow.input("i", {"t": int})
    loop = flow.loop()
    back = loop.feedback({"t": int})
    flow.output("o", loop.leave(loop.enter(given).concat(back)))
    with pytest.raises(PlanError, match=r"back\.connect"):
        flow.run()


def test_the_hint_of_another_input_type_does_not_promise_a_rebuild(tmp_path: Any) -> None:
    flow, _ = numbers()
    with flow.run(checkpoint=tmp_path / "kept", keep_inputs=True) as run:
        run.insert("i", [(1,)])
        run.commit()
        run.checkpoint()
    other = rr.Dataflow("numbers")
    other.output("o", other.input("i", {"t": pl.String}))
    with pytest.raises(RiverrunError) as refused:
        other.run(checkpoint=tmp_path / "kept")
    assert "where inputs have the columns and types that they had" in str(refused.value)
