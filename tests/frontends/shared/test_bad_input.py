"""Errors of programs around a state name the user's line; a run that refuses an epoch goes on."""

from __future__ import annotations

import pickle
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.operators.shared.fetch import Fetch
from riverrun.plan.lineage import lineage_of

UPS = {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64, "s": pl.String, "x": pl.Float64}
ASKS = {"k": pl.Int64, "at": pl.Int64, "since": pl.Int64, "name": pl.String, "l": pl.List(pl.String)}  # fmt: skip
KEY, VALUE = {"k": pl.Int64}, {"v": pl.Int64}


class Written:
    """A program to be written wrongly."""

    def __init__(self, **options: Any) -> None:
        self.flow = rr.Dataflow("bad")
        self.ups = self.flow.input("ups", UPS)
        self.asks = self.flow.input("asks", ASKS)
        self.state = self.flow.state("s", KEY, VALUE, **options)

    def fetch(self, **options: Any) -> rr.Collection:
        return self.asks.fetch(self.state, **{"key": "k", "at": "at", **options})

    def fetch_uncommitted(self, **options: Any) -> rr.Collection:
        return self.asks.fetch_uncommitted(self.state, **{"key": "k", "at": "at", **options})

    def other(self) -> rr.State:
        return rr.Dataflow("other").state("s", KEY, VALUE)


def compacted(compact: Any, **fetch: Any) -> Any:
    return lambda w: Written(compact=compact).fetch(**fetch)


WRONG: dict[str, tuple[str, Any]] = {
    # the state
    "two_states_of_a_name": ("plan.name_taken", lambda w: w.flow.state("s", KEY, VALUE)),
    "a_state_named_like_an_input": ("plan.name_taken", lambda w: w.flow.state("ups", KEY, VALUE)),
    "no_key": ("state.key", lambda w: w.flow.state("t", {}, VALUE)),
    "two_times": ("state.time", lambda w: w.flow.state("t", KEY, VALUE, time={"a": pl.Int64, "b": pl.Int64})),
    "a_time_of_strings": ("state.time", lambda w: w.flow.state("t", KEY, VALUE, time=pl.String)),
    "a_time_of_floats": ("state.time", lambda w: w.flow.state("t", KEY, VALUE, time=pl.Float64)),
    "the_time_is_a_value": ("plan.column_twice", lambda w: w.flow.state("t", KEY, {"time": pl.Int64})),
    "a_start_of_another_type": ("state.start", lambda w: w.flow.state("t", KEY, VALUE, start="noon")),
    "no_compaction": ("state.rule", lambda w: w.flow.state("t", KEY, VALUE, compact=rr.rules.latest)),
    "no_kind_of_compaction": ("state.option", lambda w: w.flow.state("t", KEY, VALUE, compaction="eager")),
    "no_sweep": ("state.sweep", lambda w: w.flow.state("t", KEY, VALUE, sweep=0)),
    "fold_strings": ("state.type", lambda w: w.flow.state("t", KEY, {"v": pl.String}, compact=rr.rules.fold)),
    "fold_what_holds_no_sum": ("state.type", lambda w: w.flow.state("t", KEY, {"v": pl.Int8}, compact=rr.rules.fold)),
    "drop_before_a_negative": ("plan.span", lambda w: w.flow.state("t", KEY, VALUE, compact=rr.rules.drop_before(-1))),
    # update
    "update_no_state": ("state.state", lambda w: w.ups.update(w.asks)),
    "update_no_rule": ("state.rule", lambda w: w.ups.update(w.state, rule=rr.rules.latest)),
    "update_by_a_bare_function": ("state.rule", lambda w: w.ups.update(w.state, rule=lambda e, u: e)),
    "update_no_such_column": ("plan.column_unknown", lambda w: w.ups.update(w.state, key="kk")),
    "update_key_of_another_type": ("state.type", lambda w: w.ups.update(w.state, key="s")),
    "update_time_of_another_type": ("state.type", lambda w: w.ups.update(w.state, time="x")),
    "update_value_of_another_type": ("state.type", lambda w: w.ups.update(w.state, value="s")),
    "update_too_many_keys": ("state.columns", lambda w: w.ups.update(w.state, key=["k", "v"])),
    "update_key_by_another_name": ("state.columns", lambda w: w.ups.update(w.state, key={"q": "k"})),
    "update_never_idle": ("state.idle", lambda w: w.ups.update(w.state, idle=0)),
    "update_negative_lateness": ("plan.span", lambda w: w.ups.update(w.state, late=-1)),
    "update_by_floats": ("state.by", lambda w: w.ups.update(w.state, by="x")),
    "update_by_no_such_column": ("plan.column_unknown", lambda w: w.ups.update(w.state, by="xx")),
    "update_of_another_flow": ("plan.two_flows", lambda w: w.ups.update(w.other())),
    "add_strings": ("state.type", lambda w: w.ups.update(w.flow.state("t", KEY, {"s": pl.String}), rule=rr.rules.add)),
    "update_from_its_own_fetch": ("state.cycle", lambda w: w.fetch().select("k", time="at", v="v").update(w.state)),
    # fetch
    "fetch_no_state": ("state.state", lambda w: w.asks.fetch(w.ups, key="k", at="at")),
    "fetch_no_rule": ("state.rule", lambda w: w.fetch(rule=rr.rules.add)),
    "fetch_no_time": ("state.at", lambda w: w.fetch(at=None)),
    "fetch_no_such_column": ("plan.column_unknown", lambda w: w.fetch(at="att")),
    "fetch_key_of_another_type": ("state.type", lambda w: w.fetch(key="name")),
    "fetch_list_of_another_type": ("state.type", lambda w: w.fetch(key="l")),
    "fetch_time_of_another_type": ("state.type", lambda w: w.fetch(at="name")),
    "fetch_half_closed": ("state.option", lambda w: w.fetch(closed="half")),
    "fetch_outer": ("state.option", lambda w: w.fetch(how="outer")),
    "fetch_the_time_of_a_total": ("state.total_time", lambda w: w.fetch(rule=rr.rules.total, time="of")),
    "fetch_of_another_flow": ("plan.two_flows", lambda w: w.asks.fetch(w.other(), key="k", at="at")),
    "fetch_many_inner": ("state.how", lambda w: w.fetch(requests=lambda row: [], how="inner")),
    "fetch_many_by_source": ("state.by", lambda w: w.fetch(requests=lambda row: [], by="name")),
    "fetch_no_function": ("plan.function", lambda w: w.fetch(requests=[1])),
    "progress_of_a_fetch_of_a_fetch": (
        "state.progress", lambda w: w.fetch().fetch(w.state, key="k", at="at", suffix="2", progress=True)),
    "fetch_of_a_fetch_without_a_suffix": (
        "plan.column", lambda w: w.fetch().fetch(w.state, key="k", at="at", suffix="")),
    "within_what_keeps_the_latest": ("state.compaction", compacted(rr.rules.keep_latest, rule=rr.rules.within)),
    "latest_of_what_is_folded": ("state.compaction", compacted(rr.rules.fold)),
    "all_of_what_is_dropped": ("state.compaction", compacted(rr.rules.drop_before(5), rule=rr.rules.total)),
    # progress
    "progress_of_no_side": ("state.option", lambda w: w.ups.progress(w.state, "read", at="time")),
    "progress_of_another_type": ("state.type", lambda w: w.ups.progress(w.state, "update", at="x")),
    "progress_to_no_state": ("state.state", lambda w: w.ups.progress("s", "update", at="time")),
    "progress_from_its_own_fetch": ("state.cycle", lambda w: w.fetch().progress(w.state, "update", at="at")),
    # collections
    "lookup_no_such_column": ("plan.column_unknown", lambda w: w.asks.lookup(w.ups, "kk")),
    "lookup_in_a_state": ("plan.lookup", lambda w: w.asks.lookup(w.state, "k")),
    "lookup_no_key": ("plan.join", lambda w: w.asks.lookup(w.ups)),
    "lookup_no_rule": ("state.rule", lambda w: w.asks.lookup(w.ups, "k", rule=rr.rules.add)),
    "lookup_no_way": ("state.option", lambda w: w.asks.lookup(w.ups, "k", how="full")),
    "lookup_in_another_flow": (
        "plan.two_flows", lambda w: Written().asks.lookup(w.ups, "k")),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_built(name: str) -> None:
    code, write = WRONG[name]
    written = Written()
    with pytest.raises(rr.RiverrunError) as raised:
        write(written)
    error = raised.value
    assert error.code == code, f"{error.code}: {error}"
    assert error.hint
    assert "test_bad_input.py" in str(error), "it names the user's line"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    if name in ("add_strings", "add_up_strings"):
        return  # there it is another state that has no updater
    written.ups.update(written.state)
    written.flow.output("o", written.fetch())
    with written.flow.run() as run:  # what was refused has left nothing behind
        run.insert("ups", [(1, 5, 6, "", 0.0), (1, 9, 7, "", 0.0)])
        run.insert("asks", [(1, 5, 0, "", [])])
        run.commit()
        assert run.read("o")["v"] == [6]


def test_a_function_that_is_none() -> None:
    for make in (rr.rules.update, rr.rules.compact, lambda f: rr.rules.fetch(f, {"n": pl.Int64})):
        with pytest.raises(rr.PlanError) as raised:
            make("max")
        assert raised.value.hint


UNFINISHED: dict[str, tuple[str, Any]] = {
    "nobody_updates": ("state.no_updater", lambda w: w.flow.output("o", w.fetch())),
    "nobody_reports": (
        "state.no_progress",
        lambda w: (w.ups.update(w.state, progress=False), w.flow.output("o", w.fetch())),
    ),
    "only_fetches_report": (
        "state.no_progress",
        lambda w: (
            w.ups.update(w.state, progress=False).progress(w.state, "fetch", at="time"),
            w.flow.output("o", w.fetch_uncommitted(since="since")),
        ),
    ),
}


@pytest.mark.parametrize("name", UNFINISHED)
def test_what_could_never_answer(name: str) -> None:
    code, write = UNFINISHED[name]
    written = Written()
    write(written)
    with pytest.raises(rr.PlanError) as raised:
        written.flow.run()
    assert raised.value.code == code
    assert raised.value.hint
    assert raised.value.fields["state"] == "s"
    assert "test_bad_input.py" in str(raised.value)


def test_uncommitted_reads_need_no_progress() -> None:
    written = Written()
    written.ups.update(written.state, progress=False)
    written.flow.output("o", written.fetch_uncommitted())
    with written.flow.run() as run:
        run.insert("ups", [(1, 5, 6, "", 0.0)])
        run.insert("asks", [(1, 5, 0, "", [])])
        run.commit()
        assert run.read("o")["v"] == [6]


def test_a_state_in_a_loop_in_a_loop() -> None:
    written = Written()
    outer = written.flow.loop(name="outer")
    inside = outer.enter(written.asks)

    def body(rows: rr.Collection) -> rr.Collection:
        loop = rr.Loop(rows._builder, rows.scope, "inner")
        loop.state("t", KEY, VALUE)
        return rows

    with pytest.raises(rr.PlanError) as raised:
        body(inside)
    assert raised.value.code == "state.nested"
    assert raised.value.hint


# -- found while it runs: the epoch is refused, and the run goes on as if it had not been


def boom(*arguments: Any) -> Any:
    raise ValueError("boom")


class Run:
    """A state with one of each, one part of which is wrong for some rows: those with v or name of 13."""

    def __init__(self, compact: Any = None, **parts: Any) -> None:
        self.flow = rr.Dataflow("bad")
        self.ups = self.flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
        self.asks = self.flow.input("asks", {"k": pl.Int64, "at": pl.Int64, "since": pl.Int64})
        self.said = self.flow.input("said", {"at": pl.Int64})
        state = self.flow.state("s", KEY, VALUE, compact=compact)
        self.ups.update(state, rule=parts.pop("update", rr.rules.append))
        self.said.progress(state, "update", at="at", idle=1)
        self.flow.output("o", self.asks.fetch(state, **{"key": "k", "at": "at", **parts}))
        self.flow.output("entries", state.entries())


def on_thirteen(column: str, wrong: Any, right: Any) -> Any:
    """A rule that goes wrong where a value is 13."""

    def rule(*frames: Any) -> Any:
        is_wrong = any(isinstance(f, pl.DataFrame) and 13 in f[column].to_list() for f in frames)
        return (wrong if is_wrong else right)(*frames)

    return rule


def both(entries: pl.DataFrame, updates: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([entries, updates])


def counts(values: pl.DataFrame) -> pl.DataFrame:
    return values.group_by("request").agg(n=pl.len().cast(pl.Int64))


def requests(row: dict[str, Any]) -> Any:
    return {13: 7, 14: ["x"], 15: [{"q": 1}]}.get(row["since"], [{"k": row["k"]}])


def failing_requests(row: dict[str, Any]) -> Any:
    return boom() if row["since"] == 13 else [{"k": row["k"]}]


def updates_with(wrong: Any) -> Run:
    return Run(update=rr.rules.update(on_thirteen("v", wrong, both)))


def fetches_with(wrong: Any) -> Run:
    return Run(rule=rr.rules.fetch(on_thirteen("v", wrong, counts), {"n": pl.Int64}))


def compacts_with(wrong: Any) -> Run:
    keep = on_thirteen("v", wrong, lambda entries, horizon: entries)
    return Run(compact=rr.rules.compact(keep))


BAD_UPDATE = {"ups": [(1, 50, 13)]}
BAD_FETCH = {"ups": [(1, 50, 13), (2, 60, 0)], "asks": [(1, 50, 0)], "said": [(99,)]}
FAILS: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "update_rule_raises": ("operator.failed", "boom", lambda: updates_with(boom), BAD_UPDATE),
    "update_rule_gives_a_number": ("", "update rule", lambda: updates_with(lambda e, u: 5), BAD_UPDATE),
    "update_rule_gives_other_columns": ("", "'v'", lambda: updates_with(lambda e, u: u.drop("v")), BAD_UPDATE),
    "update_rule_gives_other_types": (
        "", "v", lambda: updates_with(lambda e, u: u.with_columns(v=pl.lit("a"))), BAD_UPDATE),
    "update_rule_gives_another_key": (
        "state.rule_key", "{'k': 77}",
        lambda: updates_with(lambda e, u: both(e, u.with_columns(k=pl.lit(77, pl.Int64)))), BAD_UPDATE),
    "update_rule_gives_no_time": (
        "state.rule_time", "null",
        lambda: updates_with(lambda e, u: both(e, u.with_columns(time=pl.lit(None, pl.Int64)))), BAD_UPDATE),
    "update_rule_changes_what_is_final": (
        "state.updated_final", "at 10", lambda: updates_with(lambda e, u: u), BAD_UPDATE),
    "update_rule_and_a_deletion": (
        "state.rule_deletes", "take updates back", lambda: updates_with(boom), {"-ups": [(1, 40, 4)]}),
    "fetch_rule_raises": ("operator.failed", "boom", lambda: fetches_with(boom), BAD_FETCH),
    "fetch_rule_gives_a_number": ("", "fetch rule", lambda: fetches_with(lambda v: 5), BAD_FETCH),
    "fetch_rule_answers_nobody": (
        "state.rule_request", "'request'",
        lambda: fetches_with(lambda v: counts(v).with_columns(request=pl.col("request") + 9)),
        BAD_FETCH),
    "fetch_rule_gives_no_request": (
        "", "request", lambda: fetches_with(lambda v: counts(v).drop("request")),
        BAD_FETCH),
    "requests_raise": ("operator.failed", "boom", lambda: Run(requests=failing_requests), {"asks": [(1, 50, 13)]}),
    "requests_of_a_number": ("state.requests", "7", lambda: Run(requests=requests), {"asks": [(1, 50, 13)]}),
    "requests_of_strings": ("", "x", lambda: Run(requests=requests), {"asks": [(1, 50, 14)]}),
    "requests_of_other_columns": ("", "q", lambda: Run(requests=requests), {"asks": [(1, 50, 15)]}),
    "an_update_without_a_time": ("state.time_null", "1 of 2", Run, {"ups": [(1, None, 3), (1, 50, 3)]}),
    "a_fetch_without_a_time": ("state.time_null", "'at'", Run, {"asks": [(1, None, 3)]}),
    "a_fetch_without_a_start": ("state.time_null", "'since'", lambda: Run(since="since"), {"asks": [(1, 3, None)]}),
    "progress_that_goes_back": ("progress.went_back", "30", Run, {"said": [(30,)]}),
}  # fmt: skip


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", FAILS)
def test_an_epoch_that_fails(name: str, workers: int) -> None:
    code, said, make, wrong = FAILS[name]
    program = make()
    plain = make()
    outcomes = []
    for flow, rows in ((program.flow, wrong), (plain.flow, None)):
        with flow.run(workers=workers) as run:
            run.insert("ups", [(k, t, 1) for k in (1, 2, 3) for t in (10, 20)])
            run.insert("ups", [(1, 40, 4)])
            run.insert("said", [(40,)])
            run.insert("asks", [(1, 15, 0), (1, 45, 0), (2, 15, 0)])
            run.commit()
            if rows is not None:
                for each, listed in rows.items():
                    if each.startswith("-"):
                        run.delete(each[1:], listed)
                    else:
                        run.insert(each, listed)
                run.insert("asks", [(2, 41, 0)])
                with pytest.raises(rr.RiverrunError) as raised:
                    run.commit()
                error = raised.value
                if code:
                    assert error.code == code, f"{error.code}: {error}"
                assert said in str(error), str(error)
                assert "test_bad_input.py" in str(error), f"it names the user's line: {error}"
                assert error.fields.get("node"), "it names the node"
                pickle.loads(pickle.dumps(error))
            run.insert("ups", [(1, 70, 5), (2, 70, 5)])
            run.insert("said", [(70,)])
            run.insert("asks", [(1, 44, 0), (3, 60, 0)])
            run.commit()
            states = run.status()["states"]["s"]
            figures = [states[each] for each in ("update", "fetch", "pending")]
            outcomes.append((run.read("o").rows(), run.read("entries").rows(), figures))
    assert outcomes[0] == outcomes[1]


COMPACTIONS: dict[str, tuple[str, str, Any]] = {
    "raises": ("operator.failed", "boom", boom),
    "gives_a_number": ("", "compaction rule", lambda e, h: 5),
    "gives_other_columns": ("", "'v'", lambda e, h: e.drop("v")),
    "gives_another_key": (
        "state.rule_key",
        "{'k': 78}",
        lambda e, h: e.with_columns(k=pl.lit(78, pl.Int64)),
    ),
    "gives_no_time": (
        "state.rule_time",
        "null",
        lambda e, h: e.with_columns(time=pl.lit(None, pl.Int64)),
    ),
    "changes_what_is_not_past": (
        "state.compacted_too_much",
        "at 30",
        lambda e, h: e.filter(pl.col("time") < h),
    ),
}


@pytest.mark.parametrize("name", COMPACTIONS)
def test_a_compaction_that_fails(name: str) -> None:
    code, said, wrong = COMPACTIONS[name]
    with compacts_with(wrong).flow.run(workers=2) as run:
        run.insert("ups", [(1, 10, 1), (1, 30, 3)])
        run.insert("said", [(25,)])
        run.insert("asks", [(1, 22, 0)])
        run.commit()
        run.insert("ups", [(1, 31, 13)])  # touches the key, now that F is 22
        with pytest.raises(rr.RiverrunError) as raised:
            run.commit()
        assert raised.value.code == (code or raised.value.code), (
            f"{raised.value.code}: {raised.value}"
        )
        assert said in str(raised.value), str(raised.value)
        assert "test_bad_input.py" in str(raised.value)
        run.insert("ups", [(1, 32, 2)])
        run.insert("said", [(32,)])
        run.commit()
        assert run.read("entries").rows() == [(1, 10, 1), (1, 30, 3), (1, 32, 2)]


def test_a_fetch_that_reaches_back_too_far() -> None:
    program = Run(compact=rr.rules.drop_before(5), since="since", rule=rr.rules.total)
    with program.flow.run(workers=2) as run:
        run.insert("ups", [(1, 10, 1), (1, 18, 2), (2, 30, 0)])
        run.insert("said", [(30,)])
        run.insert("asks", [(1, 20, 12)])
        run.commit()
        run.insert("asks", [(1, 22, 14)])
        with pytest.raises(rr.RiverrunError) as raised:
            run.commit()
        error = raised.value
        assert error.code == "state.reaches_back"
        assert error.fields["state"] == "s"
        for part in ("since 14", "from 15 on", "come to 20", "test_bad_input.py"):
            assert part in str(error), str(error)
        run.insert("asks", [(1, 22, 15), (1, 19, 15)])  # and the second is late
        run.commit()
        assert run.read("o").rows() == [(1, 20, 12, 2), (1, 22, 15, 2)]
        assert [(e["what"], e["rows"], e["state"]) for e in run.events("late")] == [
            ("fetch", 1, "s")
        ]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("many", [False, True])
def test_what_comes_and_goes_in_an_epoch_is_not_looked_at(many: bool, workers: int) -> None:
    """It would be refused: its time is null, or it reaches back too far."""
    asked = {"requests": lambda row: [{"k": row["k"]}]} if many else {}
    program = Run(compact=rr.rules.drop_before(5), since="since", rule=rr.rules.total, **asked)
    with program.flow.run(workers=workers) as run:
        run.insert("ups", [(1, 10, 1), (1, 18, 2), (2, 30, 0)])
        run.insert("said", [(30,)])
        run.insert("asks", [(1, 20, 12)])
        run.commit()
        for name, row in (
            ("asks", (1, 22, 14)),
            ("asks", (1, 22, -99)),
            ("asks", (1, 22, None)),
            ("asks", (1, None, 18)),
            ("ups", (1, None, 5)),
        ):
            run.insert(name, [row, row])
            run.delete(name, [row, row])
            run.insert("asks", [(1, 22, 17)])
            run.commit()
        assert run.events("late") == []
        sums = [2] * 6 if not many else [[2]] * 6
        assert sorted(row[3] for row in run.read("o").rows()) == sums


def test_streams_are_told_by_what_a_user_knows() -> None:
    flow = rr.Dataflow("names")
    ups = flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
    asks = flow.input("asks", {"k": pl.Int64, "ks": pl.List(pl.Int64), "at": pl.Int64})
    state = flow.state("s", KEY, VALUE, compact=rr.rules.keep_latest)
    ups.update(state)
    some = ups.filter(pl.col("v") > 0)
    some.update(state, late=99)
    marks = flow.input("marks", {"at": pl.Int64})
    marks.progress(state, "fetch", at="at")
    options: dict[str, Any] = {"at": "at", "progress": False}
    asks.fetch(state, key="ks", **options)
    asks.fetch(state, requests=lambda row: [{"k": row["k"]}] * 2, **options)
    asks.fetch(state, key=pl.col("k") + 1, **options)
    few = asks.filter(pl.col("k") > 0).with_columns(k=pl.col("k") + 1)
    few.fetch(state, key="ks", **options)
    both = few.concat(asks)
    both.fetch(state, key="k", **options)
    few.fetch(state, key="k", name="first", **options).fetch(state, key="k", **options)
    loop = flow.loop(name="rounds")
    loop.enter(asks).fetch(state, key="ks", **options)
    flow.output("entries", state.entries())
    with flow.run() as run:
        run.insert("ups", [(1, 50, 1)])
        run.insert("marks", [(40,)])
        run.commit()
        run.insert("ups", [(1, 200, 1)])
        run.insert("marks", [(45,)])
        run.commit()
        run.insert("ups", [(1, 40, 1)])
        run.insert("asks", [(1, [1, 2], 20)])
        run.commit()
        late_rows = {(e["what"], e["stream"]): e["rows"] for e in run.events("late")}
    lines = [flow.plan.nodes[each._port.node].line.split(": ")[0] for each in (some, few, both)]
    assert late_rows == {
        ("update", "'ups'"): 1,
        ("update", f"filter of 'ups' ({lines[0]})"): 1,
        ("fetch", "'asks'"): 2 + 2 + 1 + 2,
        ("fetch", f"select of 'asks' ({lines[1]})"): 2 + 1,
        ("fetch", f"concat of 'asks' ({lines[2]})"): 2,
    }
    fetches = [node.operator for node in flow.plan.nodes if isinstance(node.operator, Fetch)]
    assert "'first'" in [fetch.stream for fetch in fetches], (
        "a step that was given a name goes by it"
    )
    assert lines[0].startswith("test_bad_input.py:")


def test_what_a_stream_is_called_is_no_part_of_a_state() -> None:
    """Another line, or another number of a step, leaves a checkpoint what it was."""
    words = []
    for before in (0, 1):
        flow = rr.Dataflow("moved")
        ups = flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
        state = flow.state("s", KEY, VALUE)
        if before:
            flow.output("others", ups.filter(pl.col("v") < 0))
            some = ups.filter(pl.col("v") > 0)
        else:
            some = ups.filter(pl.col("v") > 0)
        some.update(state)
        flow.output("o", some.fetch(state, requests=lambda row: [{"k": 1}], at="time"))
        words.append([lineage_of(flow.plan)[name] for name in ("s", "s:progress")])
    assert words[0] == words[1]


@pytest.mark.parametrize("listed", [False, True])
def test_messages_of_several_requests_name_the_stream(listed: bool) -> None:
    flow = rr.Dataflow("names")
    ups = flow.input("ups", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
    asks = flow.input("asks", {"ks": pl.List(pl.Int64), "at": pl.Int64})
    state = flow.state("s", KEY, VALUE)
    ups.update(state)
    many: dict[str, Any] = {"requests": lambda row: [{"k": k} for k in row["ks"]]}
    many = {"key": "ks"} if listed else many
    flow.output("o", asks.fetch(state, at=pl.col("at") + 1, **many))
    flow.output("p", asks.fetch_uncommitted(state, **many))
    with flow.run() as run:
        run.insert("asks", [([1, 2], None)])
        with pytest.raises(
            rr.RiverrunError, match="2 of 2 requests have no time in 'at'"
        ) as raised:
            run.commit()
        assert "for 'asks'" in str(raised.value)
        run.insert("asks", [([1, 2], 7)])
        run.commit()
        run.delete("asks", [([1, 2], 7)])
        with pytest.raises(rr.RiverrunError, match="take back 2 requests of 'asks'"):
            run.commit()


def test_an_uncommitted_answer_is_not_taken_back() -> None:
    written = Written()
    written.ups.update(written.state)
    written.flow.output("o", written.asks.fetch_uncommitted(written.state, key="k"))
    written.flow.output("c", written.asks.lookup(written.ups, "k", rule=rr.rules.within))
    row = (1, 1, 1, "", [])
    with written.flow.run() as run:
        run.insert("ups", [(1, 1, 1, "", 0.0)])
        run.insert("asks", [row])
        run.commit()
        run.delete("asks", [row])
        with pytest.raises(rr.RiverrunError) as raised:
            run.commit()
        assert raised.value.code == "state.answer_kept"
        assert "test_bad_input.py" in str(raised.value)
        assert "1 rows of 'asks'" in str(raised.value)
        run.insert("asks", [row, row])  # what goes in the epoch in which it came was never there
        run.delete("asks", [row])
        run.commit()
        assert len(run.read("o").rows()) == len(run.read("c").rows()) == 2


def test_an_input_that_forgets_times_cannot_update():
    flow = rr.Dataflow("prices")
    prices = flow.input("prices", {"k": pl.Int64, "time": pl.Int64, "v": pl.Float64}, key="k")
    state = flow.state("s", key={"k": pl.Int64}, value={"v": pl.Float64})
    with pytest.raises(rr.PlanError, match="takes the one before it back") as caught:
        prices.update(state)
    assert caught.value.code == "state.keyed_input"
    corrected = flow.input(
        "corrected", {"k": pl.Int64, "time": pl.Int64, "v": pl.Float64}, key=["k", "time"]
    )
    asks = flow.input("asks", {"k": pl.Int64, "at": pl.Int64})
    corrected.update(state, late=10)
    flow.output("out", asks.fetch(state, key="k", at="at"))
    with flow.run() as run:
        run.upsert("corrected", [(1, 5, 1.0), (1, 6, 2.0)])
        run.commit()
        run.upsert("corrected", [(1, 5, 3.0), (2, 20, 0.0)])
        run.insert("asks", [(1, 5), (1, 6)])
        run.commit()
        assert run.read("out").rows() == [(1, 5, 3.0), (1, 6, 2.0)]


def test_what_is_no_state_is_told_apart():
    flow = rr.Dataflow("mixed up")
    rows = flow.input("rows", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
    state = flow.state("s", key={"k": pl.Int64}, value={"v": pl.Int64})
    rows.update(state)
    with pytest.raises(rr.PlanError) as caught:
        rows.fetch(rows, key="k", at="time")
    assert "lookup" in caught.value.hint
    with pytest.raises(rr.PlanError) as caught:
        flow.output("s", state)
    assert "entries()" in caught.value.hint


def test_a_rule_that_fails_for_what_waits_says_how_to_go_on():
    def strict(values):
        if values["v"].max() > 5:
            raise ValueError("v over 5")
        return values.group_by("request").agg(x=pl.col("v").max())

    flow = rr.Dataflow("strict")
    rows = flow.input("rows", {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64})
    asks = flow.input("asks", {"k": pl.Int64, "at": pl.Int64})
    state = flow.state("s", key={"k": pl.Int64}, value={"v": pl.Int64})
    rows.update(state)
    flow.output(
        "out", asks.fetch(state, key="k", at="at", rule=rr.rules.fetch(strict, {"x": pl.Int64}))
    )
    with flow.run() as run:
        run.insert("rows", [(1, 1, 1), (2, 1, 9)])
        run.insert("asks", [(1, 1), (2, 1)])
        run.commit()
        run.insert("rows", [(1, 5, 1)])
        with pytest.raises(
            rr.OperatorFailed, match="strict failed: ValueError: v over 5"
        ) as caught:
            run.commit()
        assert "delete" in caught.value.hint
        run.delete("asks", [(2, 1)])
        run.commit()
        run.insert("rows", [(1, 5, 1)])
        run.commit()
        assert run.read("out").rows() == [(1, 1, 1)]


def test_a_state_that_waits_for_itself_is_refused():
    flow = rr.Dataflow("chicken and egg")
    rows = flow.input("rows", {"k": pl.Int64, "n": pl.Int64})
    loop = flow.loop()
    for start, refused in ((None, True), (0, False)):
        state = loop.state(
            f"from {start}",
            key={"k": pl.Int64},
            value={"v": pl.Int64},
            time={"n": pl.Int64},
            start=start,
        )
        got = loop.enter(rows).fetch(state, key="k", at="n", closed="left")
        got.with_columns(v=pl.col("n")).update(state)
        flow.output(f"out {start}", loop.leave(got))
        if not refused:
            continue
        with pytest.raises(rr.PlanError, match="neither would ever begin") as caught:
            flow.run()
        assert "start=0" in caught.value.hint


def test_a_value_called_like_the_number_of_a_request_is_refused():
    flow = rr.Dataflow("names")
    rows = flow.input("rows", {"k": pl.Int64, "time": pl.Int64, "request": pl.Int64})
    state = flow.state("s", key={"k": pl.Int64}, value={"request": pl.Int64})
    rows.update(state)
    with pytest.raises(rr.PlanError, match="number of a request"):
        rows.fetch(
            state, key="k", at="time", rule=rr.rules.fetch(lambda values: values, {"x": pl.Int64})
        )
