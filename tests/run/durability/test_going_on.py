"""Law: a changed program that goes on at once can do so before its first epoch: everything that a run can do.

`KINDS` are the changes of docs/changed-programs.md, with and without ``rebuild=True``; `ACTIONS` is what a user does
with a run that has just been resumed and has committed nothing. Each pair is tried with one worker or with several, in
a soak with both; results are compared with those of the same program run from scratch over the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from tests.chaos.besieged import ProcessRun
from tests.runtime.launchers import Threads
from tests.soaking import SOAK

Rows = Counter[tuple[Any, ...]]


def program(kind: str = "before") -> rr.Dataflow:
    """The program as it was (`before`), or with one kind of change."""
    flow = rr.Dataflow("shop")
    new_first = kind == "new input first"
    if new_first:
        flow.output("early counts", flow.input("early", {"k": pl.Int64}).group_by("k").count())
    items = flow.input("items", {"item": pl.String, "price": pl.Int64}, key="item")
    sales = flow.input("sales", {"item": pl.String, "count": pl.Int64})
    if kind == "shown":
        sales = sales.inspect(lambda rows: None).probe("sales")
    groups = items.group_by("price")
    prices = groups.count("n")
    paid = sales.join(items, "item").select("item", paid=pl.col("count") * pl.col("price"))
    flow.output("prices", prices)
    if kind != "output gone":
        flow.output("paid", paid)
    sums = sales.group_by("item").agg(sold=rr.sum("count"))
    flow.output("sums", sums)
    if kind in ("keyed input shown", "group and more"):
        flow.output("items", items)
    if kind == "group shown":
        flow.output("prices again", prices)
        flow.output("sums again", sums)
    if kind == "output renamed":
        flow.output("paid otherwise", paid)
    if kind == "new input":
        later = flow.input("later", {"item": pl.String, "w": pl.Int64})
        flow.output("later", later)
        flow.output("later sums", later.group_by("item").agg(w=rr.sum("w")))
        flow.output("later joined", later.join(items, "item"))
    if kind in ("group and more", "built anew"):
        flow.output("most", sums.group_by("sold").count("items"))
    if kind == "loop":
        flow.output(
            "loop",
            items.select("price").iterate(
                lambda found: found.concat(
                    found.filter(pl.col("price") > 1).select(price=pl.col("price") - 1)
                ).distinct()
            ),
        )
    return flow


KINDS: dict[str, bool] = {  # whether rebuild=True is needed
    "before": False,
    "shown": False,
    "output gone": False,
    "output renamed": False,
    "keyed input shown": False,
    "group shown": False,
    "new input": False,
    "new input first": False,
    "built anew": True,
    "group and more": True,
    "loop": True,
}
EPOCHS: list[dict[str, list[tuple[Any, ...]]]] = [
    {"items": [("tea", 3), ("ink", 9)], "sales": [("tea", 2), ("ink", 1)]},
    {"items": [("tea", 4)], "sales": [("tea", 6)]},
    {"items": [("pen", 3)], "sales": [("ink", 5), ("pen", 1)]},
]
MORE = {"items": [("ink", 4)], "sales": [("tea", 1)], "later": [("tea", 7)], "early": [(1,)]}


def play(run: Any, epoch: dict[str, list[tuple[Any, ...]]]) -> None:
    for name, rows in epoch.items():
        if name in run.plan.by_name:
            (run.upsert if name == "items" else run.insert)(name, rows)
    run.commit()


@cache
def from_scratch(kind: str, epochs: int, more: bool = False) -> dict[str, Rows]:
    flow = program(kind)
    with flow.run() as run:
        for epoch in EPOCHS[:epochs] + [MORE] * more:
            play(run, epoch)
        return results(run)


def results(run: Any) -> dict[str, Rows]:
    outputs = [name for name in run.plan.by_name if name.endswith(":output")]
    names = [name.removesuffix(":output") for name in outputs]
    return {name: Counter(run.read(name).rows()) for name in names}


# ---- what is done before the first epoch


def read(run: Any, kind: str, path: Path) -> None:
    assert results(run) == from_scratch(kind, len(EPOCHS))


def read_as_of(run: Any, kind: str, path: Path) -> None:
    for name, rows in from_scratch(kind, len(EPOCHS)).items():
        assert Counter(run.read(name, epoch=run.epoch).rows()) == rows
        with pytest.raises(rr.TimeViolation) as caught:
            run.read(name, epoch=run.epoch - 1)
        assert caught.value.code == "time.compacted"


def tell_changes(run: Any, kind: str, path: Path) -> None:
    """What the last epoch changed is known where the checkpoint has it, and refused otherwise; never wrong."""
    now, before = from_scratch(kind, len(EPOCHS)), from_scratch(kind, len(EPOCHS) - 1)
    for name in now:
        expected = Counter(now[name])
        expected.subtract(before[name])
        try:
            found = run.changes(name).rows()
        except rr.TimeViolation as error:
            assert error.code == "time.compacted"  # noqa: PT017
            assert str(run.epoch) in str(error)  # noqa: PT017
            continue
        assert {row[:-1]: row[-1] for row in found} == {r: n for r, n in expected.items() if n}


def follow(run: Any, kind: str, path: Path) -> None:
    """A function is given all rows first, then each epoch; the sum of the diffs is the result."""
    seen: dict[str, Rows] = {}
    sinks = []
    for name in from_scratch(kind, len(EPOCHS)):
        sums = seen[name] = Counter()

        def add(changes: Any, epoch: int, sums: Rows = sums) -> None:
            for row in changes.rows():
                sums[row[:-1]] += row[-1]

        sinks.append(run.for_each_epoch(name, add))
    for sink in sinks:
        sink.wait(timeout=60)
    assert {name: +sums for name, sums in seen.items()} == from_scratch(kind, len(EPOCHS))
    play(run, MORE)
    for sink in sinks:
        sink.wait(timeout=60)
    assert {name: +sums for name, sums in seen.items()} == from_scratch(kind, len(EPOCHS), True)


def follow_from_now(run: Any, kind: str, path: Path) -> None:
    seen: list[int] = []
    sinks = [
        run.for_each_epoch(name, lambda _, epoch: seen.append(epoch), start="now")
        for name in from_scratch(kind, len(EPOCHS))
    ]
    play(run, MORE)
    for sink in sinks:
        sink.wait(timeout=60)
    assert set(seen) == {len(EPOCHS)}


def write_files(run: Any, kind: str, path: Path) -> None:
    for name, rows in from_scratch(kind, len(EPOCHS)).items():
        place = path.with_name(f"{name}.parquet")
        sink = run.write_parquet(name, place)
        sink.wait(timeout=60)
        sink.close()
        written: Rows = Counter()
        for file in sorted(place.glob("*.parquet")):
            for row in pl.read_parquet(file).rows():
                written[row[:-2]] += row[-2]
        assert +written == rows


def save(run: Any, kind: str, path: Path) -> None:
    """A checkpoint of this program is made: it can be read with no run alive, and gone on from without a word."""
    number = run.checkpoint()
    assert run.checkpoint() == number  # there is nothing new
    for name, rows in from_scratch(kind, len(EPOCHS)).items():
        assert Counter(rr.read_checkpoint(path, name, number=number).rows()) == rows
    read(run, kind, path)
    run._cluster.kill(0)
    read(run, kind, path)
    run.scale(3)
    read(run, kind, path)
    run.close()
    with program(kind).run(checkpoint=path, every=None, workers=2) as again:
        read(again, kind, path)
        play(again, MORE)
        assert results(again) == from_scratch(kind, len(EPOCHS), True)


def scale(run: Any, kind: str, path: Path) -> None:
    for workers in (3, 1, 2):
        run.scale(workers)
        read(run, kind, path)


def lose(run: Any, kind: str, path: Path) -> None:
    for _ in range(2):
        run._cluster.kill(0)
        read(run, kind, path)


def ask(run: Any, kind: str, path: Path) -> None:
    status = run.status()
    assert (run.epoch, run.completed) == (len(EPOCHS) - 1, len(EPOCHS))
    assert (status["completed"], status["closed"]) == (len(EPOCHS), None)
    assert status["states"]["items:rows"]["rows"] >= 3
    assert "Run of 'shop'" in repr(run)


def read_and_go_on(run: Any, kind: str, path: Path) -> None:
    """What was read stays as it is; the epochs that come are right too."""
    kept = {name: run.read(name) for name in from_scratch(kind, len(EPOCHS))}
    play(run, MORE)
    assert {name: Counter(it.rows()) for name, it in kept.items()} == from_scratch(
        kind, len(EPOCHS)
    )
    assert results(run) == from_scratch(kind, len(EPOCHS), True)


def commit_nothing(run: Any, kind: str, path: Path) -> None:
    run.commit()
    read(run, kind, path)
    assert all(not run.changes(name).rows() for name in from_scratch(kind, len(EPOCHS)))


ACTIONS: list[Callable[[Any, str, Path], None]] = [
    read, read_as_of, tell_changes, follow, follow_from_now, write_files, save, scale, lose, ask,
    read_and_go_on, commit_nothing,
]  # fmt: skip


@cache
def written_by(workers: int, folder: str) -> None:
    with program().run(checkpoint=folder, every=None, workers=workers) as run:
        for epoch in EPOCHS:
            play(run, epoch)
        run.checkpoint()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, Path], None]:
    """A path with a checkpoint of the program as it was, copied."""
    import shutil

    made: dict[int, Path] = {}

    def copy(workers: int, path: Path) -> None:
        if workers not in made:
            made[workers] = tmp_path_factory.mktemp("written") / "path"
            written_by(workers, str(made[workers]))
        shutil.copytree(made[workers], path)

    return copy


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_before_the_first_epoch(
    kind: str, action: Callable[[Any, str, Path], None], written: Any, tmp_path: Path
) -> None:
    pairs = ((1, 1), (1, 3), (3, 2))
    at = [*KINDS].index(kind) + ACTIONS.index(action)
    for old, new in pairs if SOAK else pairs[at % 3 : at % 3 + 1]:
        path = tmp_path / f"{old}-{new}" / "path"
        path.parent.mkdir()
        written(old, path)
        options = {"rebuild": True} if KINDS[kind] else {}
        with program(kind).run(checkpoint=path, every=None, workers=new, **options) as run:
            action(run, kind, path)


@pytest.mark.parametrize("kind", ["keyed input shown", "group and more", "new input"])
def test_before_the_first_epoch_with_workers_elsewhere(
    kind: str, written: Any, tmp_path: Path
) -> None:
    path = tmp_path / "path"
    written(1, path)
    options = {"rebuild": True} if KINDS[kind] else {}
    with ProcessRun(
        program(kind).plan, Threads, checkpoint=path, every=None, workers=2, **options
    ) as run:
        for action in (read, read_as_of, tell_changes, ask, lose, follow):
            if action is not read_as_of or kind == "new input":  # these look back one epoch further
                action(run, kind, path)


def test_a_longer_history_shows_what_is_there_for_as_long(tmp_path: Path, written: Any) -> None:
    """An output that was added shows the epoch it began with as long as `history` says, and none before."""
    path = tmp_path / "path"
    written(1, path)
    flow = program("keyed input shown")
    then = from_scratch("keyed input shown", len(EPOCHS))["items"]
    with flow.run(checkpoint=path, every=None, history=3) as run:
        last = run.epoch
        for number in range(3):
            assert Counter(run.read("items", epoch=last).rows()) == then
            with pytest.raises(rr.TimeViolation, match="only"):
                run.read("items", epoch=last - 1)
            run.upsert("items", [(f"new {number}", number)])
            run.commit()
            assert [row[-1] for row in run.changes("items").rows()] == [1]
        with pytest.raises(rr.TimeViolation):
            run.read("items", epoch=last)
        assert len(run.read("items", epoch=last + 1).rows()) == 4
