"""A state is read by its name: the same rows as its entries, as of the same epochs, wherever a name is taken.

The oracle is another run of the same updates, on one worker, whose program has the entries as an output.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.dataset as ds
import pytest

import riverrun as rr
from tests.soaking import seeds

pytestmark = pytest.mark.drawn
HISTORY = 3
COLUMNS = ["k", "at", "v", "w"]
Row = tuple[Any, ...]


def program(seed: int, *, entries: bool, name: str = "stock") -> rr.Dataflow:
    """A state with two streams of updates and one of fetches, with rules and switches drawn."""
    draw = random.Random(seed)
    rule = draw.choice([rr.rules.replace, rr.rules.append, rr.rules.add])
    compacts = [None, rr.rules.drop_before(3)]
    compacts += [rr.rules.fold] if rule is rr.rules.add else [rr.rules.keep_latest] * 2
    flow = rr.Dataflow(name)
    state = flow.state(
        "left",
        key={"k": pl.String},
        value={"v": pl.Int64, "w": pl.Float64},
        time={"at": pl.Int64},
        compact=draw.choice(compacts),
        compaction=draw.choice(["lazy", "active"]),
        sweep=draw.choice([1, 100]),
        accelerate=draw.random() < 0.7,
    )
    columns = {"k": pl.String, "at": pl.Int64, "v": pl.Int64, "w": pl.Float64}
    for stream in ("some", "others"):
        flow.input(stream, columns).update(state, rule=rule, late=2)
    asked = flow.input("asked", {"k": pl.String, "at": pl.Int64, "since": pl.Int64})
    fetch = rr.rules.total if rule is rr.rules.add else rr.rules.within
    flow.output("found", asked.fetch(state, at="at", since="since", rule=fetch, late=2))
    if entries:
        flow.output("entries", state.entries())
    return flow


class Both:
    """The run that is tested and the oracle, which get the same rows; each stage of the life of the first is a `with`
    of `life`."""

    def __init__(self, seed: int, path: Path) -> None:
        self.draw = random.Random(seed)
        self.path = path / "kept"
        self.flow = program(seed, entries=False)
        self.oracle = program(seed, entries=True).run(history=100)
        self.there: Counter[Row] = Counter()
        self.said = f"seed={seed}"

    def life(self) -> rr.Run:
        return self.flow.run(
            workers=self.draw.randint(1, 3), history=HISTORY, checkpoint=self.path, every=None,
            seed=self.draw.randrange(100),
        )  # fmt: skip

    def epoch(self, run: rr.Run) -> None:
        draw, now = self.draw, run.completed
        for stream in ("some", "others"):
            rows = [
                (draw.choice("abcdef") if draw.random() < 0.9 else None, now + draw.randint(-4, 2),
                 draw.randint(-2, 2), draw.choice([0.5, -1.0, 2.25]))
                for _ in range(draw.randint(0, 4))
            ]  # fmt: skip
            rows += rows[:1] if draw.random() < 0.3 else []
            for each in (run, self.oracle):
                each.insert(stream, rows)
        asked = [("a", now - 1, now - draw.randint(1, 3))]
        for each in (run, self.oracle):
            each.insert("asked", asked)
            each.commit()

    def check(self, run: rr.Run, first: int) -> None:
        """Every epoch since `first`, which is the first of this life, as far as it is kept."""
        assert run.schema("left") == self.oracle.schema("entries")
        assert run.read("left").rows() == self.oracle.read("entries").rows(), self.said
        for epoch in range(max(first, run.completed - HISTORY), run.completed):
            told = f"{self.said}, epoch={epoch}"
            assert run.read("left", epoch).rows() == self.oracle.read("entries", epoch).rows(), told
            changes, expected = run.changes("left", epoch), self.oracle.changes("entries", epoch)
            assert Counter(changes.rows()) == Counter(expected.rows()), told


@pytest.mark.parametrize("seed", seeds(12, soak=100))
def test_a_state_reads_as_its_entries(seed: int, tmp_path: Path) -> None:
    """Epoch by epoch, with some workers, in two lives; and from the checkpoints of both, with nobody alive."""
    both, first = Both(seed, tmp_path), 0
    followed: Counter[Row] = Counter()

    def follow(changes: Any, epoch: int) -> None:
        for *row, diff in changes.rows():
            followed[tuple(row)] += diff

    for _ in range(2):
        with both.life() as run:
            written = run.write_parquet("left", tmp_path / "files")
            is_new = not run.completed
            if is_new:
                sink = run.for_each_epoch("left", follow)
            for _ in range(both.draw.randint(3, 7)):
                both.epoch(run)
                both.check(run, first)
                if both.draw.random() < 0.2:
                    run.scale(both.draw.randint(1, 3))
                    first = run.completed  # what changed before is told as far as `history` goes
            if is_new:
                sink.wait()
                assert +followed == Counter(run.read("left").rows()), both.said
            written.wait()
            run.checkpoint()
            first, rows = run.completed, run.read("left").rows()
            old = {epoch: run.read("left", epoch).rows() for epoch in range(first - HISTORY, first)}
        stored = rr.read_checkpoint(both.path, "left")
        assert stored.schema.names == COLUMNS
        assert stored.rows() == rows
        for epoch, then in old.items():
            assert rr.read_checkpoint(both.path, "left", epoch=epoch).rows() == then, both.said
    files = ds.dataset(tmp_path / "files").to_table().to_pylist()
    added: Counter[Row] = Counter()
    for each in files:
        added[tuple(each[name] for name in COLUMNS)] += each["diff"]
    assert +added == Counter(rows), both.said
    both.oracle.close()


def small(*, output: bool = True) -> rr.Dataflow:
    flow = rr.Dataflow("small")
    sold = flow.state("sold", key={"item": pl.String}, value={"n": pl.Int64})
    flow.input("sales", {"item": pl.String, "time": pl.Int64, "n": pl.Int64}).update(sold)
    if output:
        flow.output("items", sold.entries().select("item").distinct())
    return flow


def test_a_program_may_have_a_state_and_no_output(tmp_path: Path) -> None:
    with small(output=False).run(on=None, checkpoint=tmp_path, every=None) as run:
        run.insert("sales", [("rope", 1, 5), ("sail", 1, 2), ("rope", 1, 7)])
        run.commit()
        assert run.read("sold").rows() == [("rope", 1, 7), ("sail", 1, 2)]
        run.checkpoint()
    assert rr.read_checkpoint(tmp_path).rows() == [("rope", 1, 7), ("sail", 1, 2)]


def test_in_processes_a_state_reads_as_in_one() -> None:
    with small().run(on="processes", workers=2) as run:
        for time in range(3):
            run.insert("sales", [(item, time, time) for item in "abcdefgh"])
            run.commit()
            expected = sorted((item, t, t) for item in "abcdefgh" for t in range(time + 1))
            assert run.read("sold").rows() == expected
            assert run.changes("sold").rows() == [(item, time, time, 1) for item in "abcdefgh"]


def test_a_state_and_the_outputs_are_in_the_status() -> None:
    with small().run(workers=2) as run:
        run.insert("sales", [("rope", 1, 5), ("sail", 1, 2)])
        run.commit()
        status = run.status()
        assert status["outputs"].keys() == {"items"}
        figures = status["outputs"]["items"]
        assert figures.keys() == {"rows", "bytes"}
        assert figures["rows"] == 2
        assert figures["bytes"] > 0
        assert status["states"]["sold"]["rows"] == 2


def test_the_columns_of_a_state() -> None:
    flow = small()
    assert flow.schema("sold").names == ["item", "time", "n"]
    assert flow.states["sold"].schema == flow.schema("sold")
    assert repr(flow) == "<Dataflow 'small': inputs sales; outputs items; states sold>"
    with flow.run() as run:
        assert run.schema("sold").names == ["item", "time", "n"]


# -- what is refused

KEY, VALUE, ROWS = (
    {"k": pl.Int64},
    {"v": pl.Int64},
    {"k": pl.Int64, "time": pl.Int64, "v": pl.Int64},
)


def declare(flow: rr.Dataflow, kind: str, *, key: str | None = None) -> Any:
    if kind == "input":
        return flow.input("sold", ROWS, key=key)
    if kind == "state":
        return flow.state("sold", KEY, VALUE)
    other = flow.inputs["other"] if "other" in flow.inputs else flow.input("other", ROWS)
    return flow.output("sold", other)


@pytest.mark.parametrize("first", ["input", "output", "state"])
@pytest.mark.parametrize("second", ["input", "output", "state"])
def test_a_name_means_one_thing(first: str, second: str) -> None:
    flow = rr.Dataflow("names")
    declare(flow, first)
    with pytest.raises(rr.PlanError) as refused:
        declare(flow, second, key="k" if second == "input" else None)
    error = refused.value
    assert error.code == "plan.name_taken"
    at = r"at test_reading\.py:\d+: "
    assert re.search(rf"the {second} 'sold' {at}.* the {first} 'sold' already, {at}", error.message)
    assert error.hint
    flow.schema("sold")  # what was declared first stays


def test_an_output_with_the_name_of_an_input_is_that_input() -> None:
    flow = rr.Dataflow("names")
    rows = flow.input("rows", ROWS, key="k")
    with pytest.raises(rr.PlanError, match="the input 'rows' already"):
        flow.output("rows", rows.filter(pl.col("k") > 1))
    flow.output("rows", rows.probe("seen").inspect())
    with pytest.raises(rr.PlanError, match="the output 'rows' already"):
        flow.output("rows", rows)
    with flow.run() as run:
        run.upsert("rows", [(1, 1, 1)])
        run.commit()
        assert run.read("rows").rows() == [(1, 1, 1)]


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    flow = small()
    loop = flow.loop(name="around")
    inside = loop.state("inside", KEY, VALUE)
    loop.enter(flow.input("more", ROWS)).update(inside)
    with flow.run() as run:
        for name, words in (
            ("solt", "check the spelling"),
            ("sales", "whose rows are not kept"),
            ("inside", "loop.leave(state.entries())"),
        ):
            for call in (run.read, run.changes, run.schema):
                with pytest.raises(rr.PlanError) as refused:
                    call(name)
                assert "the outputs are: items; the states are: sold" in refused.value.message
                assert words in (refused.value.hint or "")
        for _ in range(3):
            run.commit()
        with pytest.raises(rr.TimeViolation, match="history"):
            run.read("sold", 0)


def test_a_named_state_is_read_by_its_name(tmp_path: Path) -> None:
    with small().run(checkpoint=tmp_path, every=None) as run:
        run.insert("sales", [("rope", 1, 5)])
        run.commit()
        run.checkpoint()
        run_rows = run.read("sold").rows()
    assert rr.read_checkpoint(tmp_path, "sold").rows() == run_rows
    with pytest.raises(TypeError, match="has no argument state="):
        rr.read_checkpoint(tmp_path, state="sold")
    with pytest.raises(rr.CheckpointError, match="there are: sold, items"):
        rr.read_checkpoint(tmp_path, "solt")
    assert rr.read_checkpoint(tmp_path).rows() == [("rope",)]  # the only output


@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.schema(output="items"),
        lambda run: run.for_each_epoch(output="items", function=print),
        lambda run: run.write_parquet(output="items", path="x"),
        lambda run: run.write_delta(output="items", path="x"),
        lambda run: rr.read_checkpoint("x", output="items"),
    ],
)
def test_what_is_read_is_called_its_name(call: Any) -> None:
    with small().run() as run, pytest.raises(TypeError, match=r"no argument output=\nHint: .*name"):
        call(run)


def test_probes_steps_and_sinks_are_called_their_names(tmp_path: Path) -> None:
    with small().run() as run:
        with pytest.raises(TypeError, match=r"no argument probe=\nHint: run\.frontier\(name\)"):
            run.frontier(probe="p")
        with pytest.raises(TypeError, match=r"no argument state=\nHint: .*name"):
            rr.read_checkpoint("x", state="count.state")
        sink = run.write_parquet("items", tmp_path / "items")
        assert (sink.name, sink.place) == ("items", str(tmp_path / "items"))
        assert [(each["name"], each["place"]) for each in run.status()["sinks"]] == [
            (sink.name, sink.place)
        ]
        with pytest.raises(AttributeError, match=r"Hint: sink\.name"):
            _ = sink.output  # type: ignore[attr-defined]
