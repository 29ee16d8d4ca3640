"""run.rounds: what each round of a loop did, in loops of every kind, on any number of workers."""

from __future__ import annotations

import sys
from collections import Counter
from xml.etree import ElementTree

import polars as pl
import pytest

import riverrun as rr
from riverrun.run import progress_line
from riverrun.run.rounds import SHOWN, Rounds
from riverrun.runtime import local
from tests.soaking import some

SVG = "{http://www.w3.org/2000/svg}"


def components(mode="auto", name="components"):
    """The components of the README."""
    flow = rr.Dataflow("social")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    both = edges.concat(edges.select(src="dst", dst="src"))
    nodes = both.select(node="src", label="src").distinct()

    def spread(labels):
        heard = labels.join(both, left_on="node", right_on="src").select(node="dst", label="label")
        return heard.concat(nodes).group_by("node").agg(label=rr.min("label"))

    flow.output("components", nodes.iterate(spread, mode=mode, name=name))
    return flow


def path(length):
    return [(at, at + 1) for at in range(length)]


def counted(rounds):
    """The figures that do not depend on how fast a machine is."""
    frame = rounds.to_polars()
    assert frame["ms"].min() is None or frame["ms"].min() >= 0
    return frame.drop("ms").rows()


def labels_by_round(edges):
    """The labels of all nodes after the first round, and after each later one those that differ; from scratch."""
    both = [*edges, *((dst, src) for src, dst in edges)]
    before, now = set(), {node: node for node, _ in both}
    rounds = []
    while not rounds or rounds[-1]:
        now = {node: min(node, *(now[dst] for src, dst in both if src == node)) for node in now}
        rounds.append(len(before ^ {*now.items()}))
        before = {*now.items()}
    return rounds


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_differential_loop_tells_what_changed_in_each_round(workers):
    edges = [*path(6), (20, 21)]
    with components("differential").run(workers=workers) as run:
        assert len(run.rounds("components")) == 0
        run.insert("edges", edges)
        run.commit()
        run.commit()  # nothing to do
        run.delete("edges", [(20, 21)])
        run.commit()
        frame = run.rounds("components").to_polars()
    assert frame["epoch"].unique().sort().to_list() == [0, 2]
    first = frame.filter(epoch=0)
    assert first["round"].to_list() == list(range(len(first)))
    assert first["messages"].to_list() == labels_by_round(edges)
    assert (first["touched"] > 0).all()
    assert (frame["rounds"] == 1).all()


@pytest.mark.parametrize("mode", ["rounds", "differential"])
def test_figures_do_not_depend_on_the_number_of_workers(mode):
    edges = [(n, n * 7 % 40) for n in range(40)]
    told = []
    for workers in (1, 2, 3):
        with components(mode).run(workers=workers) as run:
            for at in range(0, 40, 8):
                run.insert("edges", edges[at : at + 8])
                run.delete("edges", edges[max(at - 8, 0) : at : 3])
                run.commit()
            told.append(counted(run.rounds("components")))
    assert told[0] == told[1] == told[2]
    assert len(told[0]) > 10


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_loop_by_rounds_tells_all_rows_of_each_round(workers):
    with components("rounds").run(workers=workers) as run:
        run.insert("edges", path(3))
        run.commit()
        run.commit()  # nothing to do
        run.insert("edges", [(0, 3)])
        run.commit()
        rows = counted(run.rounds("components"))
        told = run.rounds("components").to_polars()
    # Four labels are sorted to be sent; then those that are heard, with the own ones, by node; and four labels go on.
    # From the second round on, a node hears the same label more than once, which is added up.
    assert set(told["messages"]) == {4}
    assert told.filter(epoch=0)["touched"].to_list() == [4 + 6 + 4, 11, 12, 11]
    assert told.filter(epoch=2)["touched"][0] == 4 + 8 + 4
    assert {row[0] for row in rows} == {0, 2}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loop_on_arrays_tells_an_epoch_in_a_row(workers):
    with components().run(workers=workers) as run:
        run.insert("edges", path(5))
        run.commit()
        run.insert("edges", [(50, 51)])
        run.commit()
        run.commit()  # nothing to do
        rounds = run.rounds("components")
        assert rounds.epochs == [0, 1]
        (first, second) = counted(rounds)
        assert first[:3] == (0, None, 0)
        assert first[3] == 6  # all nodes got a value
        assert first[4] >= 10  # each value is sent along each edge, in both directions
        # 50 and 51 get a value, of 50 the second one is told to 51, and what 51 has is told to 50.
        assert second == (1, None, 0, 2, second[4])
        assert 2 <= second[4] <= 6
        assert "all" in str(rounds)


def reached(mode):
    """How far nodes are from 0, on all workers."""
    flow = rr.Dataflow("reached")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    start = flow.input("start", {"node": pl.Int64, "far": pl.Int64})

    def send(near):
        there = near.join(edges, left_on="node", right_on="src")
        return there.select(node="dst", far=pl.col("far") + 1)

    best = rr.loops.least("far")
    how = {"missing": "add", "mode": mode, "spread_over": "all", "name": "near"}
    flow.output("near", start.iterate_delta(send(start), key="node", send=send, better=best, **how))
    return flow


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_supersteps_on_all_workers_tell_every_round(workers):
    told = []
    for count in (1, workers):
        with reached("superstep").run(workers=count) as run:
            run.insert("start", [(0, 0)])
            run.insert("edges", [(0, 1), (0, 2), *((at, at + 2) for at in range(1, 9)), (3, 4)])
            run.commit()
            run.commit()  # nothing to do
            run.delete("edges", [(2, 4)])
            run.commit()
            run.insert("edges", [(2, 4)])
            run.commit()
            told.append(run.rounds("near").to_polars().drop("ms"))
            with pytest.raises(rr.PlanError, match="the loops are: near"):
                run.rounds("near:spread")
    assert told[0]["epoch"].unique().sort().to_list() == [0, 2, 3]
    # From 0 two ways lead on, by odd and by even nodes: so each round has two nodes that send.
    first = told[1].filter(epoch=0)
    assert first["round"].to_list() == list(range(len(first)))
    assert first["touched"].sum() == 11
    assert first["messages"].sum() >= 11
    assert (told[1]["rounds"] == 1).all()
    assert told[1].filter(epoch=3)["round"][0] == 0
    assert told[1].filter(epoch=3)["messages"].sum() >= 4  # to 4, and from it to 10


@pytest.mark.parametrize("workers", [1, 3])
def test_microsteps_on_all_workers_tell_an_epoch_in_a_row(workers):
    with reached("microstep").run(workers=workers) as run:
        run.insert("start", [(0, 0)])
        run.insert("edges", path(9))
        run.commit()
        run.insert("edges", [(9, 10)])
        run.commit()
        run.commit()  # nothing to do
        (first, second) = counted(run.rounds("near"))
    assert first[:4] == (0, None, 0, 10)
    assert first[4] >= 9
    assert second == (1, None, 0, 1, 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loop_that_pulls_tells_every_round(workers):
    flow = rr.Dataflow("ranks")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    start = edges.select(node="src").distinct().select("node", rank=pl.lit(1.0))

    def flowing(ranks):
        sent = ranks.join(edges, left_on="node", right_on="src").select(node="dst", part="rank")
        return sent.group_by("node").agg(rank=rr.sum("part"))

    flow.output("ranks", start.iterate(flowing, rounds=3, mode="arrays", name="ranks"))
    with flow.run(workers=workers) as run:
        run.insert("edges", [(0, 1), (1, 2), (2, 0), (2, 1)])
        run.commit()
        rows = counted(run.rounds("ranks"))
    # In the first round 1 gets two parts; then the ranks move on. Every edge sends a part in every round.
    assert rows == [(0, 0, 1, 1, 4), (0, 1, 1, 1, 4), (0, 2, 1, 2, 4)]


def test_a_delta_iteration_by_hand_and_nested_loops():
    flow = rr.Dataflow("nested")
    rows = flow.input("rows", {"n": pl.Int64})

    def halve(each):
        return each.select(n=pl.col("n") // 2).concat(rows).distinct()

    def outer(each):
        return each.iterate(halve, name="inner").filter(pl.col("n") < 50).concat(rows).distinct()

    flow.output("nested", rows.iterate(outer, name="outer"))
    with flow.run() as run:
        run.insert("rows", [(100,), (7,)])
        run.commit()
        inner, outer = run.rounds("outer/inner"), run.rounds("outer")
        frame = inner.to_polars()
        assert frame.columns == [
            "epoch",
            "outer round",
            "round",
            "rounds",
            "touched",
            "messages",
            "ms",
        ]
        whole = outer.to_polars()
        assert whole.columns == ["epoch", "round", "rounds", "touched", "messages", "ms"]
        assert frame["outer round"].unique().sort().to_list() == whole["round"].to_list()
        assert frame["round"].to_list()[:4] == [0, 1, 2, 3]
        # All that is done inside of the inner loop is done inside of the outer one.
        inside = (
            frame.group_by(round="outer round").agg(pl.col("touched", "ms").sum()).sort("round")
        )
        assert (whole["touched"] >= inside["touched"]).all()
        assert whole["touched"].sum() > inside["touched"].sum()
        assert (whole["ms"] > inside["ms"]).all()
        assert whole["messages"][-1] == 0
        assert "  0/0  " in str(inner)
        assert ElementTree.fromstring(inner.to_svg()).tag == f"{SVG}svg"


def test_names_that_there_are_not():
    with components().run() as run:
        with pytest.raises(rr.PlanError) as caught:
            run.rounds("component")
        assert caught.value.code == "plan.loop_unknown"
        assert "'component'" in str(caught.value)
        assert "the loops are: components" in str(caught.value)
        with pytest.raises(rr.PlanError, match="the loops are: components"):
            run.rounds(["components"])
        with pytest.raises(rr.PlanError, match="live=3: that is True or False"):
            run.rounds("components", live=3)
        with pytest.raises(AttributeError, match="to_polars"):
            _ = run.rounds("components").rows
    flow = rr.Dataflow("straight")
    flow.output("n", flow.input("n", {"n": pl.Int64}))
    with flow.run() as run, pytest.raises(rr.PlanError, match="the loops are: none"):
        run.rounds("loop-1")


@pytest.mark.parametrize("mode", ["auto", "rounds", "differential"])
def test_a_loop_without_a_name_has_a_number(mode):
    with components(mode, name=None).run() as run:
        run.insert("edges", path(3))
        run.commit()
        assert len(run.rounds("loop-1")) >= 1


@pytest.mark.parametrize("mode", ["auto", "rounds", "differential"])
def test_a_run_that_is_resumed_begins_with_no_figures(mode, tmp_path):
    with components(mode).run(checkpoint=tmp_path / "run", every=None) as run:
        run.insert("edges", path(4))
        run.commit()
        assert run.rounds("components").epochs == [0]
    with components(mode).run(checkpoint=tmp_path / "run", every=None) as run:
        assert run.epoch == 0
        assert run.rounds("components").epochs == []
        assert "no epoch yet" in str(run.rounds("components"))
        assert ElementTree.fromstring(run.rounds("components").to_svg()).tag == f"{SVG}svg"
        run.insert("edges", [(70, 71)])
        run.commit()
        assert run.rounds("components").epochs == [1]


@pytest.mark.parametrize("mode", ["auto", "rounds", "differential"])
def test_an_epoch_that_is_done_again_is_told_once(mode, tmp_path):
    with components(mode).run(workers=2, checkpoint=tmp_path / "run", every=None) as run:
        run.insert("edges", path(4))
        run.commit()
        before = counted(run.rounds("components"))
        run._cluster.kill(0)
        assert len(run.read("components")) == 5
        assert counted(run.rounds("components")) == before
        run.insert("edges", [(70, 71)])
        run.commit()
        assert run.rounds("components").epochs == [0, 1]


@pytest.mark.sampled
@pytest.mark.parametrize("mode", some(["auto", "rounds", "differential"], 1))
def test_workers_in_processes_tell_the_same(mode):
    told = []
    for options in ({"workers": 1}, {"workers": 2, "on": "processes"}):
        with components(mode).run(**options) as run:
            run.insert("edges", [*path(12), (90, 91)])
            run.commit()
            run.delete("edges", [(90, 91)])
            run.commit()
            told.append(counted(run.rounds("components")))
    assert told[0] == told[1]
    assert {row[0] for row in told[0]} == {0, 1}


# -- as text, and as a drawing


@pytest.fixture(scope="module")
def rounds():
    """Four epochs of a differential loop."""
    with components("differential").run(history=4) as run:
        for at in range(4):
            run.insert("edges", [(100 * at + n, 100 * at + n + 1) for n in range(5 + 5 * at)])
            run.commit()
        return run.rounds("components")


def test_the_table_as_text(rounds):
    lines = str(rounds).splitlines()
    assert lines[0] == "components, epochs 2 to 3 (and epochs 0 to 1 before)"
    assert lines[1].split() == ["epoch", "round", "touched", "ms", "messages"]
    shown = rounds.to_polars().filter(pl.col("epoch") >= 2)
    assert len(lines) == 2 + len(shown) <= 2 + SHOWN
    for line, row in zip(lines[2:], shown.iter_rows(named=True), strict=True):
        cells = line.split()
        if row["round"] == 0:
            assert cells.pop(0) == str(row["epoch"])
        assert cells[0] == str(row["round"])
        assert cells[1] == str(row["touched"])
        assert cells[3] == str(row["messages"])
        assert len(cells) == (5 if row["messages"] else 4)
    assert max(line.count("█") for line in lines) == 20
    assert repr(rounds) == str(rounds)


def test_a_long_epoch_is_shown_by_its_ends():
    with components("differential").run() as run:
        run.insert("edges", path(60))
        run.commit()
        rounds = run.rounds("components")
        lines = str(rounds).splitlines()
    assert len(lines) == 2 + SHOWN + 1
    assert f"({len(rounds) - SHOWN} rounds more)" in lines[2 + SHOWN // 2]


def test_the_drawing_has_a_line_for_each_epoch(rounds):
    picture = ElementTree.fromstring(rounds.to_svg())
    texts = [each.text for each in picture.iter(f"{SVG}text")]
    for text in (
        "components",
        "rows touched",
        "messages",
        "milliseconds",
        "round",
        "epoch 0",
        "epoch 3",
    ):
        assert text in texts
    lines = [each for each in picture.iter(f"{SVG}path") if each.get("stroke-linejoin")]
    assert len(lines) == 3 * 4
    width, height = float(picture.get("width")), float(picture.get("height"))
    for dot in picture.iter(f"{SVG}circle"):
        assert 0 < float(dot.get("cx")) < width
        assert 0 < float(dot.get("cy")) < height
    told = Counter(each.text.partition(",")[0] for each in picture.iter(f"{SVG}title"))
    assert told == {
        f"epoch {epoch}": 3 * len(rounds.to_polars().filter(epoch=epoch)) for epoch in range(4)
    }
    assert rounds._repr_svg_() == rounds.to_svg()


def test_epochs_of_one_row_are_drawn_by_epoch():
    with components().run() as run:
        for at in range(20):
            run.insert("edges", [(10 * at, 10 * at + 1)])
            run.commit()
        picture = ElementTree.fromstring(run.rounds("components").to_svg())
    texts = [each.text for each in picture.iter(f"{SVG}text")]
    assert "epoch" in texts
    assert "round" not in texts
    bars = [each for each in picture.iter(f"{SVG}rect") if each.find(f"{SVG}title") is not None]
    assert len(bars) == 3 * 20


def test_frames_of_any_kind(rounds):
    frame = rounds.to_polars()
    assert rounds.to_arrow().to_pylist() == frame.to_dicts()
    assert rounds.to_pandas().to_dict("records") == frame.to_dicts()
    assert len(rounds) == len(frame)
    assert rounds.name == "components"
    assert isinstance(rounds, Rounds)


# -- in a terminal


def in_terminal(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")


def test_a_loop_that_is_followed_leaves_a_line_for_each_epoch(monkeypatch, capsys):
    in_terminal(monkeypatch)
    with components("differential").run() as run:
        run.insert("edges", path(4))
        run.commit()
        assert capsys.readouterr().err == ""
        run.rounds("components", live=True)
        run.commit()
        assert capsys.readouterr().err == ""  # nothing to do
        run.insert("edges", [(70, 71), (71, 72)])
        run.commit()
        said = capsys.readouterr().err
        assert said.startswith("social: epoch 2, loop 'components': 3 rounds, ")
        assert "▁" in said or "█" in said
        assert said.count("\n") == 1
        waiting = []
        for at in (80, 90):
            run.insert("edges", [(at, at + 1)])
            waiting.append(run.commit(wait=False))
        waiting[-1].wait()
        said = capsys.readouterr().err
        assert [line.partition(",")[0] for line in said.splitlines()] == [
            "social: epoch 3",
            "social: epoch 4",
        ]
        run.rounds("components", live=False)
        run.insert("edges", [(60, 61)])
        run.commit()
        assert capsys.readouterr().err == ""


def test_nothing_is_shown_where_there_is_no_terminal(capsys):
    with components().run() as run:
        run.rounds("components", live=True)
        run.insert("edges", path(4))
        run.commit()
    assert capsys.readouterr().err == ""


def test_the_line_of_a_long_commit_shows_how_the_loop_goes(monkeypatch, capsys):
    in_terminal(monkeypatch)
    monkeypatch.setattr(progress_line, "DELAY", 0.0)
    monkeypatch.setattr(progress_line, "EVERY", 0.01)
    monkeypatch.setattr(local, "LOOK", 0.0)
    with components("differential").run() as run:
        run.rounds("components", live=True)
        run.insert("edges", path(150))
        run.commit()
    said = capsys.readouterr().err
    assert "loop 'components': round" in said
    assert "rows change ▁" in said or "rows change █" in said
    assert "social: epoch 0, loop 'components': 151 rounds" in said
