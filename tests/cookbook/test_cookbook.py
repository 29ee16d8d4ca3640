"""Every program of the cookbook gives, after each epoch, what recomputation in plain Python gives (`recomputed`)."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from tests.cookbook.recomputed import CASES, Case, Rows
from tests.soaking import seeds

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "cookbook"
EPOCHS = 6


class Tables:
    """The rows of every input, and the epochs that brought them."""

    def __init__(self, case: Case, random: Random) -> None:
        self.case, self.random = case, random
        self.rows: dict[str, Rows] = {name: [] for name in case.draw}
        self.epochs: list[dict[str, Rows]] = []

    def key(self, name: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
        return row[: self.case.keys[name]]

    def change(self, run: rr.Run) -> None:
        """Delete some rows of each input, and insert some; nothing, now and then."""
        brought: dict[str, Rows] = {}
        for name, draw in self.case.draw.items():
            rows, keyed = self.rows[name], name in self.case.keys
            quiet = self.random.random() < 0.2
            if not quiet and rows and name not in self.case.stays:
                gone = self.random.sample(rows, min(len(rows), self.random.randint(0, 3)))
                for row in gone:
                    rows.remove(row)
                run.delete(name, [self.key(name, row) for row in gone] if keyed else gone)
            count = 0 if quiet else self.random.randint(2, 9)
            brought[name] = [draw(self.random, len(self.epochs)) for _ in range(count)]
            if keyed:
                fresh = {self.key(name, row): row for row in brought[name]}
                rows[:] = [row for row in rows if self.key(name, row) not in fresh]
                rows += fresh.values()
                run.upsert(name, brought[name])
            else:
                rows += brought[name]
                run.insert(name, brought[name])
        self.epochs.append(brought)
        run.commit()

    def expected(self) -> dict[str, Rows]:
        epochs = {"epochs": self.epochs} if self.case.epochs else {}
        return self.case.expected(**self.rows, **epochs)


def ordered(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: [(value is None, value) for value in row])


def equal(one: Any, two: Any) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        return math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == two)


def check(run: rr.Run, tables: Tables, what: str, outputs: set[str] | None = None) -> set[str]:
    """Compare the outputs with recomputation; which of them have rows."""
    expected = tables.expected()
    names = outputs if outputs is not None else expected.keys()
    for name in names:
        rows, right = ordered(run.read(name).rows()), ordered(expected[name])
        same = len(rows) == len(right) and all(
            len(one) == len(two) and all(map(equal, one, two))
            for one, two in zip(rows, right, strict=True)
        )
        assert same, f"{what}: {name!r} after {tables.epochs}\nis        {rows}\nshould be {right}"
    return {name for name in names if expected[name]}


def play(name: str, seed: int, folder: Path) -> set[str]:
    """Play a program with random changes, half of the way after a resume; which outputs had rows."""
    case = CASES[name]
    tables = Tables(case, Random(seed))
    workers = 1 + seed % 3
    program = import_module(f"examples.cookbook.{name}").program
    outputs = set(program().outputs)
    assert outputs <= set(tables.expected()), f"{name}: an output that is not recomputed"
    shown: set[str] = set()
    path = folder / str(seed) if workers == 3 else None
    for some in (
        (range(EPOCHS),) if path is None else (range(EPOCHS // 2), range(EPOCHS // 2, EPOCHS))
    ):
        with program().run(workers=workers, checkpoint=path) as run:
            for epoch in some:
                tables.change(run)
                shown |= check(
                    run, tables, f"{name}, seed {seed}, {workers} workers, epoch {epoch}", outputs
                )
        workers = 2
    return shown


def test_every_program_is_recomputed_and_there_are_twenty() -> None:
    programs = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert programs == set(CASES)
    assert len(programs) == 20


@pytest.mark.drawn
@pytest.mark.parametrize("name", CASES)
def test_a_program_gives_what_recomputation_gives(name: str, tmp_path: Path) -> None:
    outputs = set(import_module(f"examples.cookbook.{name}").program().outputs)
    shown: set[str] = set()
    for seed in seeds(3, soak=60):
        shown |= play(name, seed, tmp_path)
    assert shown == outputs, f"{name}: outputs that never had a row mean nothing"


def test_a_metric_that_is_added_later_has_the_rows_from_before(tmp_path: Path) -> None:
    """`experiment`: the changed program goes on at the same path, and its new output is right at once."""
    from examples.cookbook.experiment import program

    tables = Tables(CASES["experiment"], Random(1))
    with program().run(checkpoint=tmp_path, keep_inputs=True) as run:
        for _ in range(3):
            tables.change(run)
        check(run, tables, "before", {"conversion"})
    with program(revenue=True).run(checkpoint=tmp_path, rebuild=True, workers=2) as run:
        assert check(run, tables, "changed") == {"conversion", "revenue"}
        for _ in range(3):
            tables.change(run)
            check(run, tables, "and on")


def test_a_mirror_has_what_the_log_says(tmp_path: Path) -> None:
    """`change_capture`: after every epoch the Delta table is the result, and so is the sum of the Parquet files."""
    from examples.cookbook.change_capture import program

    tables = Tables(CASES["change_capture"], Random(2))
    with program().run() as run:
        mirror = run.write_delta("customers", tmp_path / "mirror", mode="mirror", key="id")
        changes = run.write_parquet("customers", tmp_path / "changes")
        for _ in range(EPOCHS):
            tables.change(run)
            customers = ordered(tables.expected()["customers"])
            mirror.wait()
            assert ordered(pl.read_delta(str(tmp_path / "mirror")).rows()) == customers
            changes.wait()
            files = pl.read_parquet(tmp_path / "changes").group_by("id", "name", "city")
            there = files.agg(pl.col("diff").sum()).filter(pl.col("diff") != 0)
            assert ordered(there.drop("diff").rows()) == customers
