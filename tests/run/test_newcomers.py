"""What somebody who has read only the documentation does: each is done as written, or refused in words."""

from __future__ import annotations

from threading import Event
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.errors import PlanError, RiverrunError, SchemaError
from riverrun.testing import COMMIT, check_operator, each_epoch, insert, once


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
    script = [insert("new", new), insert("old", old), COMMIT]
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
    check_operator(lambda a, b: gone(a, b), {"new": {"x": int}, "old": {"x": int}}, rounds=1)
    with pytest.raises(PlanError, match="handed over by name"):
        check_operator(lambda new, b: gone(new, b), {"old": {"x": int}, "new": {"x": int}})


ATTEMPTS = {
    "commit": lambda run: run.commit(),
    "commit and go on": lambda run: run.commit(wait=False),
    "make a checkpoint": lambda run: run.checkpoint(),
    "scale": lambda run: run.scale(2),
    "close": lambda run: run.close(),
    "status, then scale": lambda run: (run.status(), run.scale(2)),
    "wait": lambda run: rr.run.live.Commit(run, 0).wait(),
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


@pytest.mark.parametrize("tags", [[1], [], [[1]]])
def test_a_dict_of_lists_is_refused_where_all_columns_are_lists(tags: list[Any]) -> None:
    flow = rr.Dataflow("lists")
    kinds = {"tags": pl.List(pl.Int64), "more": pl.List(pl.Int64)}
    flow.output("o", flow.input("i", kinds))
    with flow.run() as run:
        with pytest.raises(SchemaError, match="one row or a dict of columns"):
            run.insert("i", {"tags": tags, "more": []})
        run.insert("i", [{"tags": [], "more": []}])
        run.insert("i", pl.DataFrame({"tags": [[1]], "more": [[]]}, schema=kinds))
        run.insert("i", {name: pl.Series([[2]], dtype=kind) for name, kind in kinds.items()})
        run.commit()
        assert len(run.read("o")) == 3


def test_an_input_has_columns() -> None:
    with pytest.raises(PlanError, match="without columns"):
        rr.Dataflow("none").input("i", {})


@pytest.mark.parametrize("also", [{"after": 3}, {"late": 3}, {"after": 3, "late": 3}])
def test_expiring_by_epochs_takes_no_times(also: dict[str, int]) -> None:
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
    [{"checkpoint": ""}, {"checkpoint": " "}, {"checkpoint": 3}, {"skip_failing": True}]
    + [{"skip_failing": "no"}, {"seed": "x"}, {"seed": True}],
)
def test_options_of_a_run_are_looked_at(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(PlanError, match=f"cannot run with {name}="):
        numbers()[0].run(**options)


def test_a_flag_of_commit_is_true_or_false() -> None:
    with numbers()[0].run() as run, pytest.raises(PlanError, match="that is True or False"):
        run.commit(wait="no")


@pytest.mark.parametrize("other", [pl.DataFrame(), pl.DataFrame({"t": [1]}), [pl.DataFrame()]])
def test_only_collections_are_concatenated(other: Any) -> None:
    given = rr.Dataflow("more").input("i", {"t": pl.Int64})
    with pytest.raises(PlanError, match="is not a collection"):
        given.concat(other)
    assert given.concat([given], given).columns == ["t"]
