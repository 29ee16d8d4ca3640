"""Sinks to files and tables: sums, crashes and gaps, foreign places, failing disks, keys, types."""

from __future__ import annotations

import datetime
import decimal
import errno
import fcntl
import os
import random
import re
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import deltalake
import obstore.store
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import riverrun as rr
from riverrun import retry
from riverrun.run.sinks import parquet
from riverrun.run.sinks.delta import DeltaTable
from riverrun.run.sinks.destination import Kept
from riverrun.run.sinks.parquet import ParquetDirectory, _Folder
from riverrun.run.sinks.queue import EpochChanges
from riverrun.storage.store import Storage
from tests.frontends.collections.checking import Rows, any_row, build, feed
from tests.frontends.collections.reference import counted
from tests.soaking import Shown, seeds

SCHEMAS = {"rows": {"a": pl.Int64, "x": pl.Float64}}
SOON = 30.0


def unlucky(row):
    if row["a"] == 13:
        raise ValueError("unlucky")
    return [row]


def program(rows):
    lucky = rows.flat_map(unlucky, SCHEMAS["rows"])
    return {"all": lucky, "counts": lucky.group_by("a").count()}


def keyed(rows):
    """One row for each key, none with a null."""
    known = rows.filter(pl.col("a").is_not_null()).flat_map(unlucky, SCHEMAS["rows"])
    return {"all": known, "counts": known.group_by("a").agg(n=rr.count(), m=rr.max("x"))}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(retry, "DELAYS", (0.001, 0.001, 0.001))
    monkeypatch.setattr(retry, "DEADLINE", 0.2)


def summed(frame, upto=None):
    """The rows that changes up to an epoch come to."""
    sums = Counter()
    for *row, diff, epoch in frame.rows():
        if upto is None or epoch <= upto:
            sums[next(iter(counted([row])))] += diff
    return {row: count for row, count in sums.items() if count}


def read_parquet(path):
    files = sorted(path.glob("*.parquet"))
    return pl.read_parquet(path) if files else pl.DataFrame()


def read_delta(path):
    return pl.DataFrame(pl.from_arrow(deltalake.DeltaTable(path).to_pyarrow_table()))


def labels(path, epoch):
    found = pq.read_schema(path / f"epoch-{epoch:020d}.parquet").metadata
    return {key.decode(): value.decode() for key, value in found.items()}


class Playing:
    """A run that is fed random rows, and what an output was at each epoch."""

    def __init__(self, draw):
        self.draw = draw
        self.rows = Rows(any_row(SCHEMAS["rows"]))
        self.past = []

    def step(self, run, output):
        if self.draw.random() < 0.15:
            run.insert("rows", [(13, 1.0), (2, 2.0)])
            with pytest.raises(rr.OperatorFailed):
                run.commit()
            return
        feed(run, "rows", self.rows.epoch(self.draw, 5))
        run.commit()
        self.past.append(counted(run.read(output).rows()))


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(8, soak=32))
def test_the_sum_of_diffs_is_the_result(seed, tmp_path):
    print(f"seed {seed}")
    draw = random.Random(seed)
    playing, places = Playing(draw), [tmp_path / "parquet", tmp_path / "delta"]
    workers, turns = draw.randint(1, 3), draw.choice([None, seed])
    with build(program, SCHEMAS).run(workers=workers, seed=turns) as run:
        written = run.write_parquet("all", places[0])
        table = run.write_delta("all", places[1])
        mirror = run.write_delta("all", tmp_path / "mirror", mode="mirror")
        shown = Shown(rows=1)
        for _ in shown.turns(8):
            playing.step(run, "all")
            mirror.wait(timeout=SOON)
            now = playing.past[-1] if playing.past else {}
            shown["rows"] += len(now)
            assert counted(read_delta(tmp_path / "mirror").rows()) == now
        assert written.wait(timeout=SOON).epoch == table.wait(timeout=SOON).epoch == run.epoch
    found = [read_parquet(places[0]), read_delta(places[1])]
    for epoch, expected in enumerate(playing.past):
        for frame in found:
            assert summed(frame, epoch) == expected, epoch
    changed = {
        epoch
        for epoch, now in enumerate(playing.past)
        if now != (playing.past[epoch - 1] if epoch else {})
    }
    names = {path.name for path in places[0].iterdir()}
    assert names == {f"epoch-{epoch:020d}.parquet" for epoch in changed}
    assert found[0].columns == found[1].columns == ["a", "x", "diff", "epoch"]
    as_arrow = pl.from_arrow(pa.dataset.dataset(places[0]).to_table())
    assert summed(as_arrow) == summed(pl.read_delta(str(places[1]))) == playing.past[-1]


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(6, soak=24))
def test_a_mirror_with_a_key_is_the_result(seed, tmp_path):
    print(f"seed {seed}")
    draw = random.Random(seed)
    playing = Playing(draw)
    with build(keyed, SCHEMAS).run(workers=draw.randint(1, 3)) as run:
        sink = run.write_delta("counts", tmp_path, mode="mirror", key="a")
        for _ in range(10):
            playing.step(run, "counts")
            sink.wait(timeout=SOON)
            now = playing.past[-1] if playing.past else {}
            assert counted(read_delta(tmp_path).rows()) == now


def writers(run, path, mode):
    """The sinks under test, by name: each to its own place below a path."""
    if mode == "parquet":
        return run.write_parquet("counts", path)
    if mode == "changes":
        return run.write_delta("counts", path)
    key = "a" if mode == "merged" else None
    return run.write_delta("counts", path, mode="mirror", key=key)


def content_of(path, mode):
    if mode == "parquet":
        return summed(read_parquet(path))
    if mode == "changes":
        return summed(read_delta(path))
    return counted(read_delta(path).rows())


MODES = ["parquet", "changes", "mirror", "merged"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(2, soak=20))
def test_sinks_that_die_anywhere_are_made_up_for(seed, mode, tmp_path, monkeypatch):
    """Before writing an epoch, or after and before anybody knew; then the run resumes, further on."""
    print(f"seed {seed}, {mode}")
    draw = random.Random(seed)
    playing, path = Playing(draw), tmp_path / "sink"
    flow = build(keyed, SCHEMAS)
    real = {ParquetDirectory: ParquetDirectory._store, DeltaTable: DeltaTable._store}
    for _ in range(6):
        dies, after = draw.randint(0, 4), draw.random() < 0.5
        calls = iter(range(99))

        def store(self, changes, again, dies=dies, after=after, calls=calls):
            now = next(calls) == dies
            if not now or after:
                real[type(self)](self, changes, again)
            if now:
                raise rr.RiverrunError("test.died", "died")

        for kind in real:
            monkeypatch.setattr(kind, "_store", store)
        options = {"workers": draw.randint(1, 3), "every": draw.choice([1, 2, None])}
        options["history"] = draw.choice([1, 1, 4])
        with flow.run(checkpoint=tmp_path / "kept", **options) as run:
            sink = writers(run, path, mode)
            if run.epoch is not None and draw.random() < 0.3:
                run.checkpoint()
            for _ in range(draw.randint(0, 5)):
                playing.step(run, "counts")
            try:
                sink.wait(timeout=SOON)
            except rr.RiverrunError as error:
                assert error.code == "test.died"  # noqa: PT017
    for kind, method in real.items():
        monkeypatch.setattr(kind, "_store", method)
    with flow.run(checkpoint=tmp_path / "kept") as run:
        sink = writers(run, path, mode)
        playing.step(run, "counts")
        assert sink.wait(timeout=SOON).epoch == run.epoch
    assert content_of(path, mode) == (playing.past[-1] if playing.past else {})
    if mode == "parquet":
        epochs = read_parquet(path).get_column("epoch").unique() if playing.past else []
        assert len(epochs) == len(list(path.iterdir()))


def test_the_gap_is_one_file_that_says_so(tmp_path, monkeypatch):
    flow, path = build(program, SCHEMAS), tmp_path / "out"
    kept = {"checkpoint": tmp_path / "kept"}

    def give(run, *numbers):
        for number in numbers:
            run.insert("rows", [(number, 0.0)])
            run.commit()

    with flow.run(**kept) as run:
        run.write_parquet("all", path)
        give(run, 1, 2)
    with flow.run(**kept) as run:
        give(run, 3, 4)
        run.delete("rows", [(1, 0.0)])
        run.commit()
    with flow.run(**kept) as run:
        sink = run.write_parquet("all", path)
        give(run, 5)
        sink.wait(timeout=SOON)
    assert [int(name.stem[6:]) for name in sorted(path.iterdir())] == [0, 1, 4, 5]
    assert labels(path, 1)["riverrun.from_epoch"] == "1"
    gap = labels(path, 4)
    assert (gap["riverrun.from_epoch"], gap["riverrun.epoch"]) == ("2", "4")
    assert (gap["riverrun.flow"], gap["riverrun.output"]) == ("checked", "all")
    rows = read_parquet(path).filter(pl.col("epoch") == 4).rows()
    assert sorted(rows) == [(1, 0.0, -1, 4), (3, 0.0, 1, 4), (4, 0.0, 1, 4)]
    before = sorted(name.name for name in path.iterdir())
    with flow.run(**kept) as run:  # nothing is missing: nothing is written
        assert run.write_parquet("all", path).wait(timeout=SOON).epoch == 5
    assert sorted(name.name for name in path.iterdir()) == before
    with flow.run(history=9, **kept) as run:
        give(run, 6, 7)
    with flow.run(history=9, **kept) as run:  # what can be told is told epoch by epoch
        run.write_parquet("all", path).wait(timeout=SOON)
    assert [labels(path, epoch)["riverrun.from_epoch"] for epoch in (6, 7)] == ["6", "7"]


def test_a_process_that_is_killed(tmp_path):
    """A real death, at a random place of the sink's thread, again and again until all is sent."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, random, sys
            import polars as pl
            import riverrun as rr
            from riverrun.run.sinks import parquet

            flow = rr.Dataflow("killed")
            rows = flow.input("rows", {{"a": pl.Int64}})
            flow.output("counts", rows.group_by("a").count())
            draw, stop = random.Random(int(sys.argv[1])), []
            path = {str(tmp_path)!r}

            def dying(function):
                def call(*arguments, **folders):
                    if folders and "follow_symlinks" not in folders:  # of a checkpoint, not of the sink
                        return function(*arguments, **folders)
                    if draw.random() < 0.1:
                        os._exit(9)
                    made = function(*arguments, **folders)
                    if draw.random() < 0.1:
                        os._exit(9)
                    return made
                return call

            parquet._Folder.create = dying(parquet._Folder.create)
            os.link = dying(os.link)
            with flow.run(checkpoint=path + "/kept", every=3) as run:
                sink = run.write_parquet("counts", path + "/out")
                table = run.write_delta("counts", path + "/delta")
                for number in range(run.completed, 12):
                    run.insert("rows", [(number % 3,)])
                    run.commit()
                sink.wait(), table.wait()
            """
        )
    )
    for seed in range(40):
        code = subprocess.run([sys.executable, str(script), str(seed)], check=False).returncode
        if code == 0:
            break
        assert code == 9, seed
    assert seed > 0
    assert code == 0
    expected = {(0, 4): 1, (1, 4): 1, (2, 4): 1}
    assert summed(read_parquet(tmp_path / "out")) == expected
    assert summed(read_delta(tmp_path / "delta")) == expected
    assert not list(tmp_path.glob(".out-*"))


# -- places


def fed(run, *numbers):
    for number in numbers:
        run.insert("rows", [(number, 0.5)])
        run.commit()


def refused(told, code):
    assert told.value.code == code
    assert told.value.hint
    return str(told.value)


def test_a_place_belongs_to_one_output(tmp_path):
    flow = build(program, SCHEMAS)
    with flow.run() as run:
        run.write_parquet("all", tmp_path / "a")
        run.write_delta("all", tmp_path / "b")
        fed(run, 1, 2)
    other = build(program, SCHEMAS, name="other")
    wider = build(lambda rows: {"all": rows.with_columns(y=pl.lit(1))}, SCHEMAS)
    with flow.run() as run:
        for write, path in ((run.write_parquet, "a"), (run.write_delta, "b")):
            with pytest.raises(rr.RiverrunError) as told:
                write("counts", tmp_path / path)
            assert "output 'all'" in refused(told, "sink.foreign")
    for changed, said in ((other, "flow 'checked'"), (wider, "y")):
        with changed.run() as run:
            fed(run, 1, 2, 3)
            for write, path in ((run.write_parquet, "a"), (run.write_delta, "b")):
                with pytest.raises(rr.RiverrunError) as told:
                    write("all", tmp_path / path)
                assert said in refused(told, "sink.foreign")
    with flow.run() as run, pytest.raises(rr.RiverrunError) as told:
        run.write_delta("all", tmp_path / "b", mode="mirror")
    assert "mode 'changes'" in refused(told, "sink.foreign")


def test_a_place_that_is_ahead_of_the_run(tmp_path):
    flow = build(program, SCHEMAS)
    with flow.run(checkpoint=tmp_path / "kept") as run:
        run.write_parquet("all", tmp_path / "a")
        run.write_delta("all", tmp_path / "b")
        fed(run, 1, 2)
    shutil.rmtree(tmp_path / "kept")  # so it begins anew, and does not know
    with flow.run(checkpoint=tmp_path / "kept") as run:
        fed(run, 1)
        for write, path in ((run.write_parquet, "a"), (run.write_delta, "b")):
            with pytest.raises(rr.RiverrunError) as told:
                write("all", tmp_path / path)
            assert "has epoch 1 already" in refused(told, "sink.ahead")


def test_the_place_of_another_run(tmp_path):
    flow = build(program, SCHEMAS)
    with flow.run() as run:
        run.write_parquet("all", tmp_path / "a")
        run.write_delta("all", tmp_path / "b")
        fed(run, 1, 2)
    with flow.run(history=100) as run:
        fed(run, 1, 2, 3, 4)
        for write, path in ((run.write_parquet, "a"), (run.write_delta, "b")):
            with pytest.raises(rr.RiverrunError) as told:
                write("all", tmp_path / path)
            refused(told, "sink.foreign")


def test_other_files_and_torn_ones_are_refused(tmp_path):
    flow = build(program, SCHEMAS)
    (tmp_path / "a").mkdir()
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "a" / "mine.parquet")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / f"epoch-{0:020d}.parquet").write_bytes(b"PAR1half")
    (tmp_path / "c").write_text("a file")
    deltalake.write_deltalake(tmp_path / "d", pa.table({"a": [1]}))
    with flow.run() as run:
        for name, code in (("a", "foreign"), ("b", "foreign"), ("c", "place")):
            with pytest.raises(rr.RiverrunError) as told:
                run.write_parquet("all", tmp_path / name)
            assert name in refused(told, f"sink.{code}")
        for name, code in (("c", "place"), ("d", "foreign")):
            with pytest.raises(rr.RiverrunError) as told:
                run.write_delta("all", tmp_path / name)
            refused(told, f"sink.{code}")
        with pytest.raises(rr.RiverrunError) as told:
            run.write_parquet("all", "gopher://x/y")
        refused(told, "sink.place")
        with pytest.raises(rr.RiverrunError) as told:
            run.write_parquet("all", 7)
        refused(told, "sink.place")
        with pytest.raises(rr.PlanError, match="outputs are"):
            run.write_parquet("al", tmp_path)
        assert run.status()["sinks"] == []


PLAIN = pa.schema({"a": pa.int64(), "x": pa.float64()})


def opened(kind, place):
    return kind(place, "flow", "all", PLAIN)


def two_epochs(place):
    for epoch in range(2):
        rows = pa.table({"a": [epoch], "x": [0.5], "diff": [1]}, place.changed)
        place.write(EpochChanges("all", rows, epoch))


def test_damaged_files_are_refused_and_named(tmp_path):
    """Law *read back as written*: each damage is refused, when the sink is opened or when it reads its rows back."""

    def written(place):
        two_epochs(opened(ParquetDirectory, place))
        return [place / f"epoch-{epoch:020d}.parquet" for epoch in (0, 1)]

    def read_back(place):
        return opened(ParquetDirectory, place).content()

    first, second = written(tmp_path / "moved")
    assert read_back(tmp_path / "moved").num_rows == 2
    second.rename(second.with_name(f"epoch-{7:020d}.parquet"))
    with pytest.raises(rr.RiverrunError) as told:
        read_back(tmp_path / "moved")
    assert f"{7:020d}" in refused(told, "sink.damaged")

    first, second = written(tmp_path / "twice")
    shutil.copy(first, second)
    with pytest.raises(rr.RiverrunError) as told:
        read_back(tmp_path / "twice")
    refused(told, "sink.damaged")

    first, second = written(tmp_path / "flipped")
    data = bytearray(first.read_bytes())
    value = bytes(pa.array([0.5]).buffers()[1])
    data[data.index(value) + 6] ^= (
        1  # 0.5 becomes another number: nothing else is wrong with the file
    )
    first.write_bytes(data)
    assert pq.read_table(first).column("x").to_pylist() != [0.5]
    with pytest.raises(rr.RiverrunError) as told:
        read_back(tmp_path / "flipped")
    assert first.name in refused(told, "sink.damaged")

    first, second = written(tmp_path / "folder")
    second.unlink()
    second.mkdir()
    with pytest.raises(rr.RiverrunError) as told:
        read_back(tmp_path / "folder")
    refused(told, "sink.place")

    first, second = written(tmp_path / "labels")
    table = pq.read_table(first)
    labelled = {**table.schema.metadata, b"\xff": b"\xff"}
    pq.write_table(
        table.replace_schema_metadata(labelled), first
    )  # rewritten: its rows are the same
    assert read_back(tmp_path / "labels").num_rows == 2
    word = labelled.pop(b"riverrun.checksum")
    for damage in (
        {b"riverrun.checksum": word, b"riverrun.from_epoch": b"7"},
        {b"riverrun.chocksum": word},
    ):
        pq.write_table(table.replace_schema_metadata({**labelled, **damage}), first)
        with pytest.raises(rr.RiverrunError) as told:
            read_back(tmp_path / "labels")
        assert first.name in refused(told, "sink.damaged")


def test_a_delta_log_that_contradicts_itself_is_refused(tmp_path):
    two_epochs(opened(DeltaTable, tmp_path / "table"))
    log = tmp_path / "table" / "_delta_log" / f"{2:020d}.json"
    whole = log.read_bytes()
    assert opened(DeltaTable, tmp_path / "table").epoch == 1
    log.write_bytes(whole.replace(b'"version":1}', b'"version":5}'))
    with pytest.raises(rr.RiverrunError) as told:
        opened(DeltaTable, tmp_path / "table")
    assert "epoch 5" in refused(told, "sink.damaged")
    log.write_bytes(whole)
    wrong = re.sub(rb'(\\"nullCount\\":\{[^}]*\\"a\\":)0', rb"\g<1>1", whole)
    assert wrong != whole
    log.write_bytes(wrong)  # Arrow would read a null
    content = opened(DeltaTable, tmp_path / "table").content()
    assert sorted(content.column("a").to_pylist()) == [0, 1]
    log.write_bytes(whole)
    deltalake.DeltaTable(tmp_path / "table").optimize.compact()  # by somebody else: all is well
    assert opened(DeltaTable, tmp_path / "table").epoch == 1


def test_a_sink_inside_of_the_place_of_another_one_is_refused(tmp_path):
    """A reader of the outer folder, such as ``pl.read_parquet(folder)``, may read the inner one too."""
    with build(program, SCHEMAS).run() as run:
        run.write_parquet("all", tmp_path / "out" / "a")
        inside = tmp_path / "out" / "a" / "deep" / "sub"
        for name in ("write_parquet", "write_delta"):
            for place in (inside, tmp_path / "out", f"{tmp_path}/out/b/../a/x"):
                with pytest.raises(rr.PlanError) as told:
                    getattr(run, name)("all", place)
                refused(told, "sink.nested")
        beside = [run.write_parquet("all", tmp_path / "out" / each) for each in ("ab", "b")]
        fed(run, 1)
        for sink in beside:
            sink.wait(timeout=SOON)
    assert summed(read_parquet(tmp_path / "out" / "ab")) == {(1, 0.5): 1}


def test_of_two_sinks_to_one_place_one_fails(tmp_path):
    for name in ("write_parquet", "write_delta"):
        with build(program, SCHEMAS).run() as run:
            places = (
                tmp_path / name,
                f"file://{tmp_path / name}",
            )  # told apart only by what is there
            pair = [getattr(run, name)("all", place) for place in places]
            with pytest.raises(rr.PlanError) as told:
                getattr(run, name)("all", tmp_path / name)
            refused(told, "sink.taken")
            fed(run, 1)
            codes = []
            for sink in pair:
                try:
                    sink.wait(timeout=SOON)
                except rr.RiverrunError as error:
                    codes.append(error.code)
            assert codes == ["sink.taken"]
    assert summed(read_parquet(tmp_path / "write_parquet")) == {(1, 0.5): 1}
    assert summed(read_delta(tmp_path / "write_delta")) == {(1, 0.5): 1}


def test_urls_and_stores(tmp_path):
    with build(program, SCHEMAS).run() as run:
        run.write_parquet("all", f"file://{tmp_path}/a")
        sink = run.write_parquet("all", "memory:///")
        fed(run, 1, 2)
        assert sink.wait(timeout=SOON).epoch == 1
    assert summed(read_parquet(tmp_path / "a")) == {(1, 0.5): 1, (2, 0.5): 1}


def schema_of(run, output):
    return run.plan.readable[output].schemas[0]


def test_an_object_store_is_gone_on_with(tmp_path):
    flow = build(program, SCHEMAS)
    store = Storage(obstore.store.MemoryStore(), "deep/down")
    for numbers in ((1, 2, 3), (4, 5)):
        with flow.run(checkpoint=tmp_path) as run:
            fed(run, *numbers)  # the sink comes too late for these
            place = ParquetDirectory(store, "checked", "all", schema_of(run, "all"))
            run._sink_maker.make("all", place).wait(timeout=SOON)
    tables = [pq.read_table(pa.BufferReader(store.get(name))) for name in store.names("")]
    frame = pl.DataFrame(pl.from_arrow(pa.concat_tables(tables)))
    assert summed(frame) == {(n, 0.5): 1 for n in range(1, 6)}
    assert len(tables) == 2


# -- disks that fail


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_fails_for_a_while_is_tried_again(when, tmp_path, monkeypatch):
    real, failures = _Folder.create, []

    def create(self, name, data):
        if when == "after":
            made = real(self, name, data)
        if len(failures) < 2:
            failures.append(name)
            raise OSError("no space")
        return real(self, name, data) if when == "before" else made

    monkeypatch.setattr(_Folder, "create", create)
    with build(program, SCHEMAS).run() as run:
        sink = run.write_parquet("all", tmp_path)
        fed(run, 1, 2)
        assert sink.wait(timeout=SOON).epoch == 1
    assert len(failures) == 2
    assert summed(read_parquet(tmp_path)) == {(1, 0.5): 1, (2, 0.5): 1}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_fails_is_tried_again(when, tmp_path, monkeypatch):
    real, failures = deltalake.write_deltalake, []

    def write(*arguments, **options):
        if when == "after":
            real(*arguments, **options)
        if len(failures) < 2:
            failures.append(1)
            raise OSError("no network")
        if when == "before":
            real(*arguments, **options)

    monkeypatch.setattr(deltalake, "write_deltalake", write)
    with build(program, SCHEMAS).run() as run:
        sink = run.write_delta("all", tmp_path)
        fed(run, 1, 2)
        assert sink.wait(timeout=SOON).epoch == 1
    assert len(failures) == 2
    assert summed(read_delta(tmp_path)) == {(1, 0.5): 1, (2, 0.5): 1}
    history = deltalake.DeltaTable(tmp_path).history()
    assert [each.get("riverrun.epoch") for each in history] == ["1", "0", None]


def test_what_goes_on_failing_ends_the_sink(tmp_path, monkeypatch):
    def create(self, name, data):
        raise OSError("no space")

    with build(program, SCHEMAS).run() as run:
        sink = run.write_parquet("all", tmp_path)
        fed(run, 1)
        sink.wait(timeout=SOON)
        monkeypatch.setattr(_Folder, "create", create)
        fed(run, 2, 3)
        with pytest.raises(rr.TransportError, match="no space") as told:
            sink.wait(timeout=SOON)
        assert "epoch 1 of 'all'" in refused(told, "sink.unreachable")
        assert isinstance(told.value.__cause__, OSError)
        assert run.completed == 3
        (status,) = run.status()["sinks"]
        assert (status["name"], status["place"]) == ("all", str(tmp_path))
        assert (status["epoch"], status["lag"]) == (0, 2)
        assert "no space" in status["error"]


def test_a_write_that_dies_half_way_leaves_nothing_to_read(tmp_path, monkeypatch):
    path, met = tmp_path / "out", []

    def half(*arguments):
        met.append(list(path.iterdir()))  # what a reader of the directory would meet now
        raise SystemExit(1)

    with build(program, SCHEMAS).run() as run:
        sink = run.write_parquet("all", path)
        with monkeypatch.context() as patch:
            patch.setattr(parquet.os, "fsync", half)
            fed(run, 1)
            with pytest.raises(rr.RiverrunError, match="SystemExit"):
                sink.wait(timeout=SOON)
    assert met == [[]]
    assert list(path.iterdir()) == []
    for folder in (tmp_path, path):
        (folder / f".out-{'de' * 16}.tmp").write_bytes(b"PAR1")  # of a process that was killed
    with build(program, SCHEMAS).run() as run:
        run.write_parquet("all", path)
    assert [left.name for left in tmp_path.iterdir()] == ["out"]
    assert list(path.iterdir()) == []


def test_what_other_sinks_are_writing_is_left_alone(tmp_path):
    """That of a place whose name begins alike, and that of a live one at the same place."""
    others = [tmp_path / f".out-2-{'ab' * 16}.tmp", tmp_path / ".out-notes.tmp"]
    for other in others:
        other.write_bytes(b"PAR1")
    live, dead = (tmp_path / f".out-{word * 16}.tmp" for word in ("ab", "cd"))
    dead.write_bytes(b"PAR1")
    link = tmp_path / f".out-{'ef' * 16}.tmp"
    link.symlink_to(others[0])
    with live.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with build(program, SCHEMAS).run() as run:
            run.write_parquet("all", tmp_path / "out")
    assert all(path.exists() for path in (*others, live, link))
    assert not dead.exists()


def without_unnamed_files(monkeypatch):
    """As on a file system that has none."""
    real = os.open

    def opened(path, flags, *arguments, **options):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(parquet.os, "open", opened)


@pytest.mark.parametrize("way", ["unnamed", "beside", "inside", "without links"])
def test_files_are_made_whole_in_every_way(tmp_path, monkeypatch, way):
    path, real, linked = tmp_path / "deep" / "out", os.link, []
    if way != "unnamed":
        without_unnamed_files(monkeypatch)

    def link(source, *arguments, **options):
        linked.append(str(source))
        if way == "without links":
            raise OSError(errno.EOPNOTSUPP, "no links")
        if way == "inside" and Path(source).parent == path.parent:
            raise OSError(errno.EXDEV, "another device")
        assert list(path.glob("*.parquet")) == []
        return real(source, *arguments, **options)

    monkeypatch.setattr(parquet.os, "link", link)
    folder = _Folder(path)
    assert folder.create("epoch.parquet", pa.py_buffer(b"whole"))
    monkeypatch.setattr(parquet.os, "link", real)
    assert not folder.create("epoch.parquet", pa.py_buffer(b"other"))
    assert (path / "epoch.parquet").read_bytes() == b"whole"
    assert [left.name for left in path.iterdir()] == ["epoch.parquet"]
    assert [left.name for left in path.parent.iterdir()] == ["out"]
    ways = {"unnamed": ["/proc"], "beside": [path.parent], "inside": [path.parent, path]}
    for source, folder in zip(linked, ways.get(way, linked), strict=True):
        assert source.startswith(str(folder))


def test_a_mount_point_can_be_written_to(tmp_path, monkeypatch):
    path = tmp_path / "disk"
    path.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(path)]
    try:
        mounted = subprocess.run(mounting, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"there is no mount: {error}")
    if mounted.returncode:
        pytest.skip(f"no right to mount: {mounted.stderr.strip()}")
    try:
        for unnamed in (True, False):
            if not unnamed:
                without_unnamed_files(monkeypatch)
            with build(program, SCHEMAS).run() as run:
                sink = run.write_parquet("all", path)
                fed(run, 1)
                sink.wait(timeout=SOON)
            assert [file.suffix for file in path.iterdir()] == [".parquet"]
            for file in path.iterdir():
                file.unlink()
        assert [left.name for left in tmp_path.iterdir()] == ["disk"]
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with build(program, SCHEMAS).run() as run, pytest.raises(rr.RiverrunError) as told:
        run.write_delta("all", tmp_path)
    assert "pip install deltalake" in refused(told, "sink.missing_package")


# -- columns


EVERYTHING = {
    "s": pl.String,
    "f": pl.Float64,
    "b": pl.Boolean,
    "raw": pl.Binary,
    "d": pl.Date,
    "t": pl.Datetime("us"),
    "z": pl.Datetime("ms", "Europe/Oslo"),
    "m": pl.Decimal(20, 3),
    "l": pl.List(pl.Int32),
    "st": pl.Struct({"p": pl.Int8, "q": pl.String}),
    "u": pl.UInt32,
    "c": pl.Categorical,
    "pair": pl.Array(pl.Int16, 2),
    "code": pa.binary(2),
}


def everything(draw):
    def maybe(value):
        return None if draw.random() < 0.2 else value

    zone = datetime.UTC
    return {
        "s": maybe(draw.choice(["", "a", "ä" * 40])),
        "f": maybe(draw.choice([0.0, 1.5, float("nan"), float("inf")])),
        "b": maybe(draw.random() < 0.5),
        "raw": maybe(draw.choice([b"", b"\x00\xff"])),
        "d": maybe(datetime.date(1960, 2, draw.randint(1, 3))),
        "t": maybe(datetime.datetime(2020, 1, 1, 0, 0, 0, draw.randint(0, 3))),
        "z": maybe(datetime.datetime(2020, 1, draw.randint(1, 3), tzinfo=zone)),
        "m": maybe(decimal.Decimal(draw.randint(-2, 2)) / 8),
        "l": maybe([maybe(1), 2][: draw.randint(0, 2)]),
        "st": maybe({"p": maybe(3), "q": maybe("x")}),
        "u": maybe(draw.choice([0, 2**32 - 1])),
        "c": maybe(draw.choice(["red", "blue"])),
        "pair": maybe(draw.choice([[1, 2], [None, 3]])),
        "code": maybe(draw.choice([b"ab", b"\x00\xff"])),
    }


@pytest.mark.parametrize("mode", ["parquet", "changes", "mirror"])
def test_columns_of_many_types(mode, tmp_path):
    """Also read back, and subtracted from what is there: a gap in each life."""
    draw, path = random.Random(3), tmp_path / "out"
    flow = rr.Dataflow("checked")
    flow.output("counts", flow.input("rows", EVERYTHING))
    there = []
    for _ in range(3):
        with flow.run(checkpoint=tmp_path / "kept", workers=draw.randint(1, 2)) as run:
            for _ in range(4):
                rows = [everything(draw) for _ in range(6)]
                run.insert("rows", rows)
                there += rows
                gone = [there.pop(draw.randrange(len(there))) for _ in range(3)]
                run.delete("rows", gone)
                run.commit()
            writers(run, path, mode).wait(timeout=SOON)
            expected = counted([tuple(map(str, row)) for row in run.read("counts").rows()])
    table = (
        deltalake.DeltaTable(path).to_pyarrow_table() if mode != "parquet" else pq.read_table(path)
    )
    with flow.run() as run:
        schema = schema_of(run, "counts")
    shown = parquet._fitted(table.select(schema.names), schema).to_pylist()
    diffs = table.column("diff").to_pylist() if mode != "mirror" else [1] * len(shown)
    sums = Counter()
    for row, diff in zip(shown, diffs, strict=True):
        sums[tuple(map(str, row.values()))] += diff
    assert {row: count for row, count in sums.items() if count} == expected


def test_columns_called_diff_and_epoch(tmp_path):
    flow = rr.Dataflow("named")
    flow.output("all", flow.input("rows", {"diff": pl.Int64, "Epoch": pl.Int64}))
    with flow.run() as run:
        run.write_parquet("all", tmp_path / "a")
        run.write_delta("all", tmp_path / "b")
        run.insert("rows", [(7, 8)])
        run.commit()
    for frame in (read_parquet(tmp_path / "a"), read_delta(tmp_path / "b")):
        assert frame.to_dicts() == [{"diff": 7, "Epoch": 8, "diff_": 1, "epoch_": 0}]


def test_types_that_delta_does_not_hold(tmp_path):
    for kind in (pl.UInt64, pl.Duration("us"), pl.Time, pl.Datetime("ns"), pl.List(pl.UInt64)):
        flow = rr.Dataflow("typed")
        flow.output("all", flow.input("rows", {"a": pl.Int64, "odd": kind}))
        with flow.run() as run:
            with pytest.raises(rr.SchemaError, match="'odd'") as told:
                run.write_delta("all", tmp_path / "b")
            refused(told, "sink.schema")
            run.write_parquet("all", tmp_path / str(kind).replace("/", "-"))
    assert not (tmp_path / "b").exists()


# -- keys


def test_a_key_of_odd_names_and_several_columns(tmp_path):
    names = {"Big Key": pl.String, "x.y": pl.Date, 'q"u': pl.Int64}
    flow = rr.Dataflow("odd")
    flow.output("all", flow.input("rows", names))
    day = datetime.date(2020, 1, 1)
    with flow.run() as run:
        sink = run.write_delta("all", tmp_path, mode="mirror", key=["Big Key", "x.y"])
        run.insert("rows", [("it's", day, 1), ("b", day, 2), ("c", day, None)])
        run.commit()
        run.delete("rows", [("it's", day, 1), ("b", day, 2)])
        run.insert("rows", [("it's", day, 3), ("d", day, 4)])
        run.commit()
        sink.wait(timeout=SOON)
        assert counted(read_delta(tmp_path).rows()) == counted(run.read("all").rows())
    log = deltalake.DeltaTable(tmp_path).history()
    assert [each["operation"] for each in log] == ["MERGE", "MERGE", "CREATE TABLE"]


@pytest.mark.parametrize(
    ("epochs", "said"),
    [
        ([[(1, 1.0), (1, 2.0)]], "two rows with (1,)"),
        ([[(1, 1.0)], [(1, 2.0)]], "two rows with (1,)"),
        ([[(1, 1.0), (1, 1.0)]], "more than once"),
        ([[(1, 1.0)], [(1, 1.0)]], "two rows with (1,)"),
        ([[(2, 1.0)], [(None, 1.0)]], "null"),
    ],
)
def test_a_key_that_is_none(epochs, said, tmp_path):
    with build(program, SCHEMAS).run() as run:
        sink = run.write_delta("all", tmp_path, mode="mirror", key="a")
        for rows in epochs:
            run.insert("rows", rows)
            run.commit()
        with pytest.raises(rr.SchemaError) as told:
            sink.wait(timeout=SOON)
        assert said in refused(told, "sink.key")
    written = [row for rows in epochs[:-1] for row in rows]
    assert counted(read_delta(tmp_path).rows()) == counted(
        written
    )  # nothing of the one that failed


def test_options_that_do_not_fit(tmp_path):
    with build(program, SCHEMAS).run() as run:
        for options in ({"mode": "copy"}, {"key": "a"}, {"mode": "mirror", "key": "b"}):
            with pytest.raises(rr.PlanError):
                run.write_delta("all", tmp_path, **options)
        with pytest.raises(rr.PlanError, match="by the key 'x', which is double"):
            run.write_delta("all", tmp_path, mode="mirror", key=["a", "x"])
    assert not list(tmp_path.iterdir())


def test_kept_things_say_what_they_cannot():
    place = Kept("here", "flow", "out", pa.schema([("a", pa.int64())]))
    for ask in (place.content, lambda: place._store(None, False)):
        with pytest.raises(NotImplementedError):
            ask()
