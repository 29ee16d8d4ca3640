"""Results that are lent outlive the workers that lend them: every row once, as of the same epoch, or a clear error."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.engine import reading
from riverrun.progress import Antichain
from riverrun.runtime.network.lending import Borrowed
from riverrun.state import END, Schema, Spine
from riverrun.state.shards import Shards
from tests.chaos.besieged import ProcessRun
from tests.runtime.launchers import Processes, Threads, gone_by
from tests.soaking import draws, first_seed

Row = tuple[Any, ...]


def flow() -> rr.Dataflow:
    made = rr.Dataflow("lent")
    rows = made.input("rows", {"k": pl.Int64, "v": pl.Int64})
    made.output("rows", rows)
    made.output("counts", rows.group_by("k").count())
    return made


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    before, made = set(threading.enumerate()), list[Any]()

    def begin(launcher: type[Threads] = Threads, **options: Any) -> Any:
        options = {"checkpoint": str(tmp_path / "run"), "every": 3, **options}
        made.append(ProcessRun(flow().plan, launcher, **options))
        return made[-1]

    yield begin
    for run in made:
        run.close()
    gone_by(before)


class Model:
    """Rows that come and go, several times each, and what is there."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.rows: Counter[Row] = Counter()

    def commit(self, run: Any, size: int = 400) -> Counter[Row]:
        """What the epoch changed."""
        source, changed = self.source, Counter[Row]()
        for _ in range(size):
            changed[source.randrange(60), source.randrange(4)] += 1
        gone = Counter(source.sample(list(self.rows.elements()), self.rows.total() // 3))
        run.insert("rows", list(changed.elements()))
        run.delete("rows", list(gone.elements()))
        run.commit()
        self.rows = self.rows + changed - gone
        changed.subtract(gone)
        return Counter({row: diff for row, diff in changed.items() if diff})

    def expected(self) -> list[Row]:
        return sorted(self.rows.elements())


def strike(run: Any, source: random.Random) -> None:
    """Lose a worker, or several."""
    for _ in range(source.choice((1, 1, 2))):
        lose(run, source.randrange(run._cluster.status()["workers"]), source.random() < 0.7)


def lose(run: Any, index: int, wait: bool = True) -> None:
    """Lose a worker; wait until nobody answers where it was, with all it lent."""
    over = len(run.launcher.why)
    run._cluster.kill(index)
    deadline = time.monotonic() + 5
    while wait and len(run.launcher.why) == over and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize("seed", range(draws(6, sample=20, soak=60)))
def test_a_result_outlives_the_workers_that_lend_it(start: Any, seed: int) -> None:
    seed += first_seed()
    source, model = random.Random(seed), Model(seed)
    run = start(workers=1 + seed % 4, recovery=source.choice(("replace", "spread")), history=2)
    for _ in range(source.randrange(1, 5)):
        changed = model.commit(run)
    whole, changes = run.read("rows"), run.changes("rows")
    expected, epoch = model.expected(), run.epoch
    after = source.choice((0, 0, 1))
    for _ in range(after):
        strike(run, source) if source.random() < 0.5 else None
        model.commit(run)
    strike(run, source)
    assert whole.rows() == expected
    told = Counter[Row]()
    for *row, diff in changes.to_arrow().to_pylist() and changes.rows():
        told[tuple(row)] += diff
    assert {row: diff for row, diff in told.items() if diff} == dict(changed)
    assert (whole.epoch, changes.epoch) == (epoch, epoch)
    assert run.read("rows").rows() == model.expected()
    assert run.read("counts").rows() == sorted(Counter(k for k, _ in model.rows.elements()).items())


@pytest.mark.parametrize("seed", range(draws(6, sample=20, soak=60)))
def test_rows_that_are_iterated_go_on_where_they_were(
    start: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker, and those in place of it, are lost again and again between one batch and the next."""
    seed += first_seed()
    monkeypatch.setattr(reading, "PIECE", 16)
    source, model = random.Random(seed), Model(seed)
    run = start(workers=2 + seed % 3, recovery=source.choice(("replace", "spread")))
    model.commit(run, 2000)
    condition = [reading.Where("v", "<", 3)] if source.random() < 0.5 else []
    found: list[Row] = []
    struck = 0
    for portion in run.read("rows").portions:
        batches = portion.batches(["v", "k"], condition)
        while taken := list(islice(batches, source.randrange(1, 12))):
            found += [
                (k, v) for each in taken for v, k in zip(*each.to_pydict().values(), strict=True)
            ]
            if not struck or (source.random() < 0.3 and struck < 4):
                strike(run, source)
                struck += 1
    expected = model.expected()
    assert sorted(found) == [row for row in expected if not condition or row[1] < 3]
    assert struck


def test_a_worker_that_is_scaled_away_takes_no_rows_with_it(start: Any) -> None:
    model = Model(3)
    run = start(workers=4)
    model.commit(run)
    whole = run.read("rows")
    assert len(whole.portions) == 4
    run.scale(1)
    assert whole.rows() == model.expected()
    assert all(isinstance(portion, Borrowed) for portion in whole.portions)


def test_an_epoch_that_is_not_kept_any_more_is_an_error_that_says_so(start: Any) -> None:
    model = Model(4)
    run = start(workers=2, history=1)
    model.commit(run)
    whole = run.read("rows")
    for _ in range(4):
        model.commit(run)
    lose(run, 0)
    with pytest.raises(rr.TimeViolation, match="the worker that held the rows was lost") as told:
        whole.rows()
    assert told.value.code == "time.compacted"
    assert "history=" in str(told.value)
    assert run.read("rows").rows() == model.expected()


def test_the_end_of_the_run_ends_reading(start: Any) -> None:
    model = Model(5)
    run = start(workers=2)
    model.commit(run)
    whole = run.read("rows")
    run.close()
    with pytest.raises(rr.RiverrunError, match="closed"):
        whole.rows()


def test_loans_are_given_back_also_those_in_place_of_others(start: Any) -> None:
    import gc

    model = Model(6)
    run = start(workers=3)
    model.commit(run)
    whole = run.read("rows")
    lose(run, 1)
    assert whole.rows() == model.expected()
    cluster = run._cluster
    assert sum(answer["leases"] for _, answer in cluster._questions.ask_all("stats")) >= 3
    del whole
    gc.collect()

    def left() -> int:
        cluster._tick()
        return sum(answer["leases"] for _, answer in cluster._questions.ask_all("stats"))

    for _ in range(100):
        if not left():
            return
    pytest.fail("loans are left")


def test_processes_that_are_killed_while_their_rows_are_read(start: Any) -> None:
    """kill -9 between reading and fetching, and while rows are on their way."""
    import os
    import signal

    model = Model(7)
    run = start(Processes, workers=2)
    model.commit(run, 3000)
    for at in range(2):
        whole = run.read("rows")
        victims = [each["pid"] for each in run._cluster.status()["processes"] if each]
        if at == 0:
            os.kill(victims[0], signal.SIGKILL)
            assert whole.rows() == model.expected()
            continue
        batches = whole.portions[1].batches()
        first = next(batches)
        os.kill(victims[1], signal.SIGKILL)
        rows = [row for each in (first, *batches) for row in each.to_pylist()]
        rows += [row for each in whole.portions[0].batches() for row in each.to_pylist()]
        assert sorted((row["k"], row["v"]) for row in rows) == model.expected()


@pytest.mark.parametrize("seed", range(draws(20, soak=100)))
def test_rows_have_one_order_whoever_holds_them(seed: int) -> None:
    """The law that continuing rests on: batches, merges and cuts do not show in the order of a scan."""
    import pyarrow as pa

    seed += first_seed()
    source = random.Random(seed)
    schema = Schema.of(
        {"k": pa.int64()}, {"v": pa.string(), "w": pa.float64()}, order=["w"]
    ) if seed % 2 else Schema.of({}, {"v": pa.string(), "w": pa.float64()})  # fmt: skip
    names = [field.name for field in (*schema.key, *schema.value)]
    changes = [
        (source.randrange(5), source.choice("abcdefg") * source.randrange(3), float(source.randrange(3)))
        for _ in range(300)
    ]  # fmt: skip

    def spine(cuts: int) -> Spine:
        """The same changes in another order, in other batches."""
        made, rows = Spine("x", schema), list(changes)
        source.shuffle(rows)
        for at in range(cuts):
            part = rows[at::cuts]
            columns = dict(zip("kvw", map(list, zip(*part, strict=True)), strict=True))
            made.insert(pa.table({name: columns[name] for name in names}), time=(at,))
        made.advance_upper(Antichain([(20,)]))
        return made

    def scanned(low: int, high: int, made: Spine) -> list[Row]:
        portion = reading.ViewPortion(
            "x", pa.schema([*schema.key, *schema.value]), made.view(), 19, [(low, high)]
        )
        return [tuple(row.values()) for batch in portion.batches() for row in batch.to_pylist()]

    whole = scanned(0, END, spine(1))
    assert len(whole) == len(changes)
    cuts = sorted({0, END, *(source.randrange(END) for _ in range(3))})
    pieces = [
        row
        for low, high in pairwise(cuts)
        for row in scanned(low, high, spine(source.randrange(1, 12)))
    ]
    assert pieces == whole


def test_runs_of_shards_are_in_order_and_whole() -> None:
    source = random.Random(first_seed())
    for _ in range(200):
        shards = Shards.even(source.randrange(1, 6))
        for _ in range(source.randrange(4)):
            shards = shards.resized(source.randrange(1, 6))
        wanted = Shards.even(4).of(source.randrange(4))
        runs = shards.runs(wanted)
        listed = sorted(
            (low, high, index) for index, each in runs.items() for run in each for low, high in run
        )
        assert sum(high - low for low, high, _ in listed) == sum(h - low for low, h in wanted)
        for low, high, index in listed:
            assert any(a <= low and high <= b for a, b in shards.of(index))
        starts = sorted((run[0], index) for index, each in runs.items() for run in each)
        assert all(one[1] != other[1] for one, other in pairwise(starts))
