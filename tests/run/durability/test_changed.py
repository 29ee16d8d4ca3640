"""Law: a program that resumes from the checkpoint of another one gives what it would have given from the start.

Programs are drawn from a family: two that differ in one or several points run one after the other on a path, with
random rows, other numbers of workers, checkpoints, and workers or whole runs that are lost while states are being
built anew. At every boundary all results are compared with those of a run from scratch over all rows.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.engine import backfill
from riverrun.engine.instance import Maker
from riverrun.runtime.local import LocalCluster
from riverrun.runtime.remote import RemoteCluster
from riverrun.state.block import resident_bytes
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.records import record_name
from tests.engine.flows import contents
from tests.runtime.launchers import Processes, Threads
from tests.soaking import seeds, some

OPTIONS: dict[str, list[Any]] = {
    "least": [1, 2],  # a filter before everything that is made of sales
    "early": [False, True],  # one more of everything, at the start: numbers of nodes move
    "shown": [False, True],
    "sums": ["none", "sum", "max", "python"],
    "joined": [True, False],
    "by_joined": [False, True],
    "outer": [False, True],
    "itself": [False, True],
    "reach": ["none", "plain", "filtered", "counted"],
    "flat": [0, 1, 2],
    "later": [False, True],  # an input that was not there
    "recent": [0, 2, 3],
    "by_recent": [False, True],
    "of_both": ["none", "all", "inner", "kept"],
    "nested": ["none", "none", "plain", "other", "counted"],
    # a loop on arrays; the same on all workers, without and with rounds; differentially; over other edges; and with the
    # other order of values
    "spread": [
        "none",
        "arrays",
        "shared",
        "rounds",
        "differential",
        "filtered",
        "greatest",
        "counted",
    ],
    # a loop that pulls parts, on arrays; differentially; other edges, another message, another last step, more rounds
    "pull": ["none", "arrays", "differential", "filtered", "halved", "finished", "longer"],
    # a loop by rounds; the same differentially; over other edges, with another end, by another step, with a reader
    "rounds": ["none", "rounds", "differential", "filtered", "until", "halved", "counted"],
    # a delta iteration by supersteps from scratch; the same differentially; over other edges
    "steps": ["none", "superstep", "differential", "filtered"],
}


def draw(source: random.Random, **fixed: Any) -> dict[str, Any]:
    return {name: source.choice(values) for name, values in OPTIONS.items()} | fixed


def total_of(key: Any, names: pl.DataFrame, sales: pl.DataFrame) -> list[Any]:
    return [(name, sales["v"].sum()) for name in names["name"]]


def build(options: dict[str, Any]) -> rr.Dataflow:
    flow = rr.Dataflow("changing")
    if options["early"]:
        early = flow.input("early", {"k": pl.Int64, "v": pl.Int64})
        flow.output("early counts", early.filter(pl.col("v") > 0).group_by("k").count())
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    names = flow.input("names", {"k": pl.Int64, "name": pl.String}, key="k")
    sales = flow.input("sales", {"k": pl.Int64, "v": pl.Int64})
    if options["shown"]:
        sales = sales.inspect(lambda rows: None)
    some = sales.filter(pl.col("v") >= options["least"])
    flow.output("some", some)
    flow.output("edges", edges)  # arranged by all columns, so that the rows are kept
    flow.output("sales", sales)
    pairs = some.join(names, "k")
    if options["joined"]:
        flow.output("pairs", pairs)
    if options["by_joined"]:
        flow.output("by-name", pairs.group_by("name").agg(total=rr.sum("v"), n=rr.count()))
    if options["sums"] == "sum":
        flow.output("sums", some.group_by("k").agg(total=rr.sum("v")))
    if options["sums"] == "max":
        flow.output("sums", some.group_by("k").agg(most=rr.max("v"), few=rr.min("v")))
    if options["sums"] == "python":
        least = options["least"]
        flow.output(
            "sums",
            some.group_by("k").apply(lambda rows: rows["v"].sum() * least, {"made": pl.Int64}),
        )
    if options["of_both"] != "none":
        inner = options["of_both"] == "inner"
        keeps = ["name"] if options["of_both"] == "kept" else []
        columns = {"name": pl.String, "total": pl.Int64}
        flow.output(
            "of-both", names.co_group(some, "k", total_of, columns, inner=inner, keeps=keeps)
        )
    if options["outer"]:
        flow.output("outer", names.join(some, "k", how="left"))
        flow.output("alone", names.anti_join(edges, left_on="k", right_on="src"))
    if options["itself"]:
        flow.output("itself", edges.join(edges, left_on="dst", right_on="src"))
        flow.output("distinct", edges.select("dst").distinct())
    if options["reach"] != "none":
        starts = edges.select(at="src", to="src").distinct()

        def step(found: rr.Collection) -> rr.Collection:
            met = edges if options["reach"] != "filtered" else edges.filter(pl.col("dst") != 2)
            on = found.join(met, left_on="to", right_on="src").select("at", to="dst")
            return on.concat(found).distinct()

        reach = starts.iterate(step)
        flow.output("reach", reach)
        if options["reach"] == "counted":
            flow.output("sizes", reach.group_by("at").count())
            flow.output("met", reach.join(names, left_on="to", right_on="k"))
    if options["spread"] != "none":
        along = edges.filter(pl.col("dst") != 2) if options["spread"] == "filtered" else edges
        own = edges.select(at="src", best="src").distinct()
        way = "greatest" if options["spread"] == "greatest" else "least"

        def send(known: rr.Collection) -> rr.Collection:
            return known.join(along, left_on="at", right_on="src").select(at="dst", best="best")

        spread = own.iterate_delta(
            send(own),
            key="at",
            send=send,
            better=getattr(rr.loops, way)("best"),
            missing="add",
            mode={"differential": "differential", "rounds": "superstep"}.get(
                options["spread"], "microstep"
            ),
            spread_over="all" if options["spread"] in ("shared", "rounds") else "auto",
        )
        flow.output("spread", spread)
        if options["spread"] == "counted":
            flow.output("best sizes", spread.group_by("best").count())
    if options["pull"] != "none":
        way = options["pull"]
        along = edges.filter(pl.col("dst") != 2) if way == "filtered" else edges
        begun = edges.select(at="src").distinct().select("at", rank=pl.lit(8.0))
        part = pl.col("rank") / (2 if way == "halved" else 3)

        def pulled(ranks: rr.Collection) -> rr.Collection:
            sent = ranks.join(along, left_on="at", right_on="src").select(at="dst", part=part)
            sums = sent.concat(begun.select("at", part="rank")).group_by("at")
            last = sums.agg(rank=rr.sum("part"))
            if way == "finished":
                last = last.with_columns(rank=pl.col("rank") - 0.5)
            return last

        mode = "differential" if way == "differential" else "arrays"
        flow.output("pull", begun.iterate(pulled, rounds=4 if way == "longer" else 3, mode=mode))
    if options["rounds"] != "none":
        way = options["rounds"]
        met = edges.filter(pl.col("dst") != 2) if way == "filtered" else edges
        opened = some.select(at="k", n="v")

        def round_of(now: rr.Collection) -> rr.Collection:
            on = now.join(met, left_on="at", right_on="src").select(at="dst", n="n")
            less = now.select("at", n=pl.col("n") // (2 if way == "halved" else 3))
            return on.concat(less, opened).group_by("at").agg(n=rr.max("n"))

        found = opened.iterate(
            round_of,
            until=(lambda before, after: after.filter(pl.col("n") > 2)) if way == "until" else None,
            rounds=5,
            mode="differential" if way == "differential" else "rounds",
        )
        flow.output("rounds", found)
        if way == "counted":
            flow.output("in rounds", found.group_by("at").count())
            flow.output("of rounds", found.join(names, left_on="at", right_on="k"))
    if options["steps"] != "none":
        way = options["steps"]
        on_way = edges.filter(pl.col("dst") != 2) if way == "filtered" else edges
        roots = some.select(at="k", far="v")

        def further(near: rr.Collection) -> rr.Collection:
            there = near.join(on_way, left_on="at", right_on="src")
            return there.select(at="dst", far=pl.col("far") + 1)

        steps = roots.iterate_delta(
            further(roots),
            key="at",
            send=further,
            better=rr.loops.least("far"),
            missing="add",
            mode="differential" if way == "differential" else "superstep",
            maintain="differential" if way == "differential" else "restart",
        )
        flow.output("steps", steps)
    if options["flat"]:
        times = options["flat"]
        flow.output(
            "flat", names.flat_map(lambda row: [row] * times, {"k": pl.Int64, "name": pl.String})
        )
    if options["later"]:
        later = flow.input("later", {"k": pl.Int64, "w": pl.Int64})
        flow.output("later counts", later.group_by("k").count())
        flow.output("with-later", later.join(names, "k"))
    if options["recent"]:
        recent = sales.expire("v", after=options["recent"])
        flow.output("recent", recent.filter(pl.col("k") > 0))
        if options["by_recent"]:
            flow.output("by-recent", recent.group_by("v").count())
    if options["nested"] != "none":
        least = 1 if options["nested"] == "other" else 0

        def inner(found: rr.Collection) -> rr.Collection:
            on = found.join(edges, left_on="dst", right_on="src", suffix="_on")
            return on.select("src", dst="dst_on").concat(found).distinct()

        def outer(found: rr.Collection) -> rr.Collection:
            back = found.filter(pl.col("dst") >= least).select(src="dst", dst="src")
            return found.iterate(inner, rounds=3).concat(back).distinct()

        nested = edges.distinct().iterate(outer, rounds=4)
        flow.output("nested", nested)
        if options["nested"] == "counted":
            flow.output("nested-sizes", nested.group_by("src").count())
    return flow


class Past:
    """Rows that were committed, for a run from scratch; and random ones to come."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.epochs: list[list[tuple[str, str, list[tuple[Any, ...]]]]] = []
        self.there: dict[str, Counter[tuple[Any, ...]]] = {}

    def commit(self, run: Any, flow: rr.Dataflow) -> None:
        source, epoch = self.source, []
        for name in flow.inputs:
            if source.random() < 0.3:
                continue
            rows = [self._row(name) for _ in range(source.choice((1, 3, 8)))]
            epoch.append(("upsert" if name == "names" else "insert", name, rows))
            here = self.there.setdefault(name, Counter())
            here.update(rows)
            if source.random() < 0.5:
                gone = source.sample(sorted(here.elements()), min(3, here.total()))
                if name == "names":
                    gone = sorted({(row[0],) for row in gone})
                else:
                    here.subtract(gone)
                epoch.append(("delete", name, gone))
        self.epochs.append(epoch)
        play(run, epoch)

    def _row(self, name: str) -> tuple[Any, ...]:
        source = self.source
        if name == "names":
            return (source.randrange(6), source.choice("abc"))
        return (source.randrange(6), source.randrange(5))


def play(run: Any, epoch: list[tuple[str, str, list[tuple[Any, ...]]]]) -> None:
    for what, name, rows in epoch:
        if name in run.plan.by_name:
            getattr(run, what)(name, rows)
    run.commit()


def results(run: Any, flow: rr.Dataflow) -> dict[str, Counter[Any]]:
    return {name: Counter(run.read(name).rows()) for name in flow.outputs}


def from_scratch(options: dict[str, Any], past: Past) -> dict[str, Any]:
    """What a program gives when it is run from the start."""
    flow = build(options)
    with flow.run() as run:
        for epoch in past.epochs:
            play(run, epoch)
        return results(run, flow)


class Lost(Exception):
    """The process is gone."""


def disturbed(source: random.Random, monkeypatch: Any, how: str) -> None:
    """Have a worker, or the run, be lost at some point soon."""
    turn, at = LocalCluster._turn, source.randrange(1, 40)
    calls = iter(range(1 << 30))

    def disturb(self: LocalCluster) -> bool:
        if next(calls) == at:
            if how == "kill":
                self.kill(source.randrange(len(self._coordinator.members)))
            else:
                raise Lost
        return turn(self)

    monkeypatch.setattr(LocalCluster, "_turn", disturb)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(4, soak=48))
def test_a_changed_program_gives_what_it_would_from_the_start(
    seed: int, tmp_path: Any, monkeypatch: Any
) -> None:
    source = random.Random(seed)
    old = draw(source)
    new = dict(old)
    for name in source.sample(sorted(OPTIONS), source.choice((1, 1, 2, 3, 6))):
        new[name] = source.choice(OPTIONS[name])
    # Recent rows depend on how they came, so a change of that needs all of the log.
    keep_inputs = new["recent"] not in (0, old["recent"]) or source.random() < 0.2
    print(f"seed {seed}: from {old} to {new}, keep_inputs={keep_inputs}")
    past = Past(source)
    flow = build(old)
    options = {"checkpoint": tmp_path, "every": None, "keep_inputs": keep_inputs}
    with flow.run(workers=source.randint(1, 4), **options) as run:
        for _ in range(source.randint(1, 4)):
            past.commit(run, flow)
        run.checkpoint()
        for _ in range(source.choice((0, 0, 1, 2))):
            past.commit(run, flow)
    gone = set(flow.inputs) - set(build(new).inputs)
    flow = build(new)
    rebuild = {**options, "rebuild": True}
    with monkeypatch.context() as patch:
        how = source.choice(("", "kill", "lose"))
        if how:
            disturbed(source, patch, how)
        try:
            run = flow.run(workers=source.randint(1, 4), **rebuild)
        except Lost:
            patch.undo()
            run = flow.run(workers=source.randint(1, 4), **rebuild)
        except rr.CheckpointError as error:
            assert "the log has rows for the input" in str(error)  # noqa: PT017
            assert error.fields["differ"][0] in gone  # noqa: PT017
            return
    with run:
        if (
            source.random() < 0.3
        ):  # the checkpoint of what was built anew may be published by now, or not
            run._cluster.kill(0)
        assert run.epoch == len(past.epochs) - 1
        assert results(run, flow) == from_scratch(new, past)
        for _ in range(2):
            past.commit(run, flow)
            assert results(run, flow) == from_scratch(new, past)
        if source.random() < 0.7:
            run.checkpoint()
    with flow.run(workers=source.randint(1, 4), **options) as run:
        assert results(run, flow) == from_scratch(new, past)
        past.commit(run, flow)
        assert results(run, flow) == from_scratch(new, past)


# ---- one at a time


def stock(least: int = 5, *, sums: bool = False, renamed: bool = False) -> rr.Dataflow:
    flow = rr.Dataflow("stock")
    items = flow.input("goods" if renamed else "items", {"item": pl.String, "left": pl.Int64})
    flow.output("few", items.filter(pl.col("left") < least))
    if sums:
        flow.output("sums", flow.outputs["few"].group_by("item").agg(left=rr.sum("left")))
    return flow


ROWS = [("rope", 3), ("sail", 6), ("rope", 1)]


def written(path: Any, **options: Any) -> None:
    with stock().run(checkpoint=path, every=None, **options) as run:
        run.insert("items", ROWS)
        run.commit()
        run.checkpoint()
        run.insert("items", [("mast", 2)])
        run.commit()
        run.checkpoint()
        run.checkpoint()


def refused(flow: rr.Dataflow, path: Any, code: str, **options: Any) -> rr.CheckpointError:
    with pytest.raises(rr.CheckpointError) as caught:
        flow.run(checkpoint=path, **options)
    assert caught.value.code == code
    return caught.value


def test_a_refusal_says_what_differs_and_what_would_help(tmp_path: Any) -> None:
    written(tmp_path)
    error = refused(stock(4), tmp_path, "checkpoint.incompatible")
    assert str(error) == (
        "cannot resume 'stock' from checkpoint 2: it is of another program:\n"
        "changed: 'filter-1'\n"
        "    was: filter [left < 5] (item: large_string, left: int64) <- items\n"
        "    is:  filter [left < 4] (item: large_string, left: int64) <- items\n"
        "not kept: 'few:result', because of 'filter-1'\n"
        "Hint: rebuild=True would not do: all rows of the input 'items' are needed, and the log does not have them any "
        "more. Run the program that wrote it; or use another path, and insert all rows again. From the start, "
        "keep_inputs=True has the log keep all rows, and an input that is keyed or arranged keeps what is in it"
    )
    assert error.fields["differ"] == ["filter-1"]
    assert error.fields["keep"] == []
    assert error.fields["rebuild"] == ["few:result"]
    error = refused(stock(4), tmp_path, "checkpoint.not_rebuildable", rebuild=True)
    assert error.fields["inputs"] == ["items"]
    error = refused(stock(sums=True), tmp_path, "checkpoint.incompatible")
    assert error.fields["keep"] == ["few:result"]
    assert "rebuild=True: what is kept is taken from the checkpoint" in str(error)
    with stock().run(checkpoint=tmp_path) as run:  # nobody has taken the path over
        assert run.epoch == 1
        assert len(run.read("few")) == 3


def test_without_a_word_nothing_is_built_anew(tmp_path: Any) -> None:
    written(tmp_path)
    refused(stock(sums=True), tmp_path, "checkpoint.incompatible")
    with stock(sums=True).run(checkpoint=tmp_path, rebuild=True, workers=2) as run:
        assert run.read("sums").rows() == [("mast", 2), ("rope", 4)]
        assert run.completed == 2
        with pytest.raises(rr.TimeViolation):  # it was not there then
            run.read("sums", epoch=0)
    with stock(sums=True).run(checkpoint=tmp_path) as run:
        assert run.status()["checkpoint"]["epoch"] == run.epoch == 1
        assert run.read("sums").rows() == [("mast", 2), ("rope", 4)]
    with stock().run(checkpoint=tmp_path) as run:  # and back: less is always there
        assert len(run.read("few")) == 3


def test_an_input_under_another_name_is_another_input(tmp_path: Any) -> None:
    written(tmp_path)
    refused(stock(renamed=True), tmp_path, "checkpoint.incompatible")
    with stock(renamed=True).run(checkpoint=tmp_path, rebuild=True) as run:
        assert run.read("few").rows() == []


@pytest.mark.parametrize("workers", [1, 3])
def test_a_log_that_is_kept_whole_builds_anything_anew(tmp_path: Any, workers: int) -> None:
    written(tmp_path, keep_inputs=True)
    error = refused(stock(4), tmp_path, "checkpoint.incompatible")
    assert "the log has all epochs, and all are done again" in str(error)
    options = {"checkpoint": tmp_path, "rebuild": True, "keep_inputs": True, "workers": workers}
    with stock(4, sums=True).run(**options) as run:
        assert run.completed == 2
        assert run.read("sums").rows() == [("mast", 2), ("rope", 4)]
        run.insert("items", [("mast", 1)])
        run.commit()
        run.checkpoint()
        run._cluster.kill(0)
        assert run.read("sums").rows() == [("mast", 3), ("rope", 4)]
    manifest = Checkpoints(tmp_path).latest()
    assert manifest is not None
    assert manifest.about["kept"] == 0
    with stock(2).run(**options) as run:  # and once more, over what two programs have logged
        assert run.read("few").rows() == [("mast", 1), ("rope", 1)]
    with stock(2).run(checkpoint=tmp_path, every=1, keep_inputs=False) as run:  # not any more
        for n in range(3):
            run.insert("items", [("rope", n)])
            run.commit()
            run.checkpoint()
    refused(stock(4), tmp_path, "checkpoint.not_rebuildable", rebuild=True)


def test_a_log_alone_is_replayed_by_any_program_with_its_inputs(tmp_path: Any) -> None:
    with stock().run(checkpoint=tmp_path, every=None) as run:
        run.insert("items", ROWS)
        run.commit()
    error = refused(stock(renamed=True), tmp_path, "checkpoint.incompatible", rebuild=True)
    assert error.fields["differ"] == ["items"]
    with stock(9, sums=True).run(checkpoint=tmp_path) as run:
        assert run.read("sums").rows() == [("rope", 4), ("sail", 6)]


def test_what_fails_while_it_is_built_anew_loses_nothing(tmp_path: Any) -> None:
    written(tmp_path)
    flow = stock()
    flow.output(
        "bad", flow.outputs["few"].distinct().flat_map(lambda row: row["?"], {"n": pl.Int64})
    )
    error = refused(flow, tmp_path, "checkpoint.not_rebuilt", rebuild=True)
    assert "KeyError" in str(error)
    with stock(sums=True).run(checkpoint=tmp_path, rebuild=True) as run:
        assert run.read("sums").rows() == [("mast", 2), ("rope", 4)]


def test_a_checkpoint_of_another_program_is_not_gone_back_to(tmp_path: Any) -> None:
    """An owner before us may publish late: what it has is of its program."""
    written(tmp_path)
    storage = Checkpoints(tmp_path)
    manifest = storage.latest()
    assert manifest is not None
    with stock(sums=True).run(checkpoint=tmp_path, rebuild=True, every=None) as run:
        run.checkpoint()
        newest = storage.latest()
        assert newest is not None
        states = {name: storage.restore(name, number=manifest.number) for name in manifest.states}
        number = storage.next_number()
        part = storage.write(states, number)
        storage.publish(number, [part], {**manifest.about, "position": newest.about["position"]})
        for n in range(3):
            run.insert("items", [("mast", n)])
            run.commit()
        with suppress(
            rr.CheckpointError
        ):  # that somebody else has published is found out by trying
            run.checkpoint()
        run.checkpoint()
        run._cluster.kill(0)
        assert run.read("sums").rows() == [("mast", 5), ("rope", 4)]


def shop(more: bool) -> rr.Dataflow:
    """What is new is made of states that hold other columns by other keys."""
    flow = rr.Dataflow("shop")
    names = flow.input("names", {"k": pl.Int64, "name": pl.String}, key="k")
    sales = flow.input("sales", {"k": pl.Int64, "v": pl.Int64})
    sums = sales.group_by("k").agg(n=rr.sum("v")).filter(pl.col("n") >= 0)
    flow.output("joined", sums.join(names, left_on="n", right_on="k").filter(pl.col("k") > 0))
    pairs = sales.join(names, "k")
    flow.output("pairs", pairs.filter(pl.col("v") > 1))
    if more:
        flow.output("again", sums.group_by("k").agg(most=rr.max("n")))
        flow.output("by-name", pairs.group_by("name").agg(total=rr.sum("v")))
    return flow


@pytest.mark.parametrize("workers", [1, 4])
def test_what_was_built_anew_stays_right_after_later_checkpoints(
    tmp_path: Any, workers: int
) -> None:
    """The states it was built from go on too; and rows are where the next change of them will be."""
    epochs = [[(k, 3 * k + at) for k in range(40)] for at in range(3)]

    def play(run: Any, at: int) -> None:
        run.upsert("names", [(k, "abc"[(k + at) % 3]) for k in range(30)])
        run.insert("sales", epochs[at])
        run.commit()

    with shop(True).run() as run:
        for at in range(3):
            play(run, at)
        expected = results(run, shop(True))
    with shop(False).run(checkpoint=tmp_path, every=None, workers=3) as run:
        play(run, 0)
        run.checkpoint()
    options = {"checkpoint": tmp_path, "every": None, "workers": workers}
    with shop(True).run(rebuild=True, **options) as run:
        play(run, 1)
        run.checkpoint()
        run._cluster.kill(0)
        play(run, 2)
        assert results(run, shop(True)) == expected
        run.checkpoint()
    with shop(True).run(checkpoint=tmp_path, workers=2) as run:
        assert results(run, shop(True)) == expected


@pytest.mark.sampled
@pytest.mark.parametrize("kind", some([Threads, Processes], 1))
def test_workers_elsewhere_build_anew_too(tmp_path: Any, kind: Any) -> None:
    written(tmp_path)
    flow = stock(sums=True)
    options = {"checkpoint": str(tmp_path), "rebuild": True, "plan": flow.plan, "every": None}
    with RemoteCluster(kind(Maker(flow.plan, 2)), 2, timeout=60, **options) as cluster:
        cluster.kill(1)  # before the checkpoint is there, or after: the same comes of it
        epoch = cluster.submit({"items": pa.record_batch({"a": ["mast"], "b": [1], "diff": [1]})})
        cluster.wait(epoch)
        found = contents(cluster.read("sums", epoch))
    assert sorted(found) == [("mast", 3), ("rope", 4)]


@pytest.mark.parametrize("name", ["rebuild", "keep_inputs"])
def test_options_need_a_path_and_are_yes_or_no(tmp_path: Any, name: str) -> None:
    for given in ({name: True}, {name: "yes", "checkpoint": tmp_path}):
        with pytest.raises(rr.PlanError) as caught:
            stock().run(**given)
        assert caught.value.code == "plan.run"
        assert name in str(caught.value)


# ---- corners


@pytest.mark.parametrize("many", [False, True])
def test_what_is_made_of_answers_is_made_of_all_epochs_again(tmp_path: Any, many: bool) -> None:
    """The answers of a fetch are kept nowhere; the log has what they were made of."""

    def program(*, more: bool) -> rr.Dataflow:
        flow = rr.Dataflow("answers")
        moves = flow.input("moves", {"ad": pl.Int64, "time": pl.Int64, "place": pl.String})
        key = pl.List(pl.Int64) if many else pl.Int64
        views = flow.input("views", {"ad": key, "at": pl.Int64})
        state = flow.state("places", key={"ad": pl.Int64}, value={"place": pl.String})
        moves.update(state)
        seen = views.fetch(state, key="ad", at="at", name="seen")
        flow.output("seen", seen.group_by("at").count())
        if more:
            flow.output("few", seen.filter(pl.col("at") < 30).group_by("at").count())
        return flow

    with program(more=False).run(checkpoint=tmp_path, every=None) as run:
        run.insert("moves", [(1, 10, "home"), (1, 20, "away")])
        run.insert("views", [([1] if many else 1, at) for at in (12, 15, 15, 30)])
        run.commit()
        run.checkpoint()
    with program(more=True).run(checkpoint=tmp_path, rebuild=True) as run:
        assert run.read("few").rows() == run.read("seen").rows() == [(12, 1), (15, 2)]
        run.insert("moves", [(1, 40, "home")])
        run.commit()
        assert run.read("few").rows() == [(12, 1), (15, 2)]
        assert run.read("seen").rows() == [(12, 1), (15, 2), (30, 1)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("least", [4, 5])  # with 5, what the checkpoint has is of use
@pytest.mark.parametrize("gone", [False, True])
def test_a_checkpoint_of_the_very_start_goes_on_with_any_program(
    tmp_path: Any, workers: int, least: int, gone: bool
) -> None:
    with stock().run(checkpoint=tmp_path, every=None, workers=workers) as run:
        run.checkpoint()
    if gone:  # as when an epoch was refused there, and collected
        (tmp_path / record_name(0)).unlink()
    for _ in range(2):  # the second time there are rows to be done again
        with stock(least, sums=True).run(
            checkpoint=tmp_path, every=None, rebuild=True, workers=3 - workers
        ) as run:
            if run.completed == 0:
                run.insert("items", ROWS)
                run.commit()
            assert (run.epoch, run.completed) == (0, 1)
            assert run.read("sums").rows() == [("rope", 4)]
            run._cluster.kill(0)
            assert run.read("sums").rows() == [("rope", 4)]
    with stock(least, sums=True).run(checkpoint=tmp_path, every=None, rebuild=True) as run:
        run.checkpoint()
    with stock(least, sums=True).run(checkpoint=tmp_path) as run:
        assert run.read("sums").rows() == [("rope", 4)]
        assert run.completed == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_what_stands_in_for_a_state_keeps_to_the_budget(
    tmp_path: Any, monkeypatch: Any, workers: int
) -> None:
    monkeypatch.setattr(backfill, "BLOCK_ROWS", 500)
    held: list[int] = []
    stood_in: list[Any] = []
    of, stand_in = backfill.Batch.of, backfill.Backfill._stand_in

    def weighed(schema: Any, changes: Any, *given: Any) -> Any:
        held.append(changes.rows)
        return of(schema, changes, *given)

    def stands_in(self: Any, actor: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(backfill.Batch, "of", weighed)
            stand_in(self, actor)
        stood_in.append((actor.arrangement.spine.nbytes, self._contents[actor.node.number]))

    def program(*, joined: bool) -> rr.Dataflow:
        flow = rr.Dataflow("large")
        left = flow.input("left", {"k": pl.Int64, "v": pl.Int64}, key="k")
        right = flow.input("right", {"k": pl.Int64, "w": pl.Int64}, key="k")
        flow.output("left", left)
        flow.output("right", right)
        if joined:
            flow.output("both", left.join(right, "k"))
            flow.output("most", left.group_by("k").agg(most=rr.max("v")))
        return flow

    rows = [(k, k * 7) for k in range(5000)]
    with program(joined=False).run(checkpoint=tmp_path, every=None, workers=workers) as run:
        run.upsert("left", rows)
        run.upsert("right", rows)
        run.commit()
        run.checkpoint()
    monkeypatch.setattr(backfill.Backfill, "_stand_in", stands_in)
    budget = 80_000
    with program(joined=True).run(
        checkpoint=tmp_path, rebuild=True, workers=workers, memory=budget
    ) as run:
        assert sorted(run.read("both").rows()) == [(k, v, v) for k, v in rows]
        assert sorted(run.read("most").rows()) == rows
    assert stood_in
    assert max(held) <= 500
    for nbytes, batch in stood_in:
        assert nbytes <= budget
        assert any(not block.resident for block in batch.blocks)  # 5000 rows do not fit
        assert resident_bytes(batch.blocks) <= budget
