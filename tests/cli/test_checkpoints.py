"""The command line: what it tells, its exit codes, and that what it advises works."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.cli import main
from riverrun.storage import Checkpoints
from riverrun.storage.manifest import manifest_name
from riverrun.storage.store import open_storage
from tests.storage.test_damage import damage

Told = pytest.CaptureFixture[str]


def program() -> rr.Dataflow:
    flow = rr.Dataflow("shop")
    sales = flow.input("sales", {"item": pl.Int64, "price": pl.Int64})
    flow.output("paid", sales.group_by("item").agg(paid=rr.sum("price"), n=rr.count()))
    flow.output("dear", sales.filter(pl.col("price") > 50))
    return flow


def paid(rows: Counter[tuple[int, int]]) -> list[tuple[int, int, int]]:
    groups: dict[int, list[int]] = {}
    for item, price in rows.elements():
        groups.setdefault(item, []).append(price)
    return sorted((item, sum(prices), len(prices)) for item, prices in groups.items())


class Shop:
    """A path with checkpoints, and what was in the outputs as of each epoch."""

    def __init__(self, path: Path, seed: int, epochs: int = 5) -> None:
        self.path, rng = str(path), random.Random(seed)
        self.rows: Counter[tuple[int, int]] = Counter()
        self.as_of: list[list[tuple[int, int, int]]] = []
        with program().run(workers=2, checkpoint=path, every=None, history=2) as run:
            for _ in range(epochs):
                new = [(rng.randrange(20), rng.randrange(100)) for _ in range(40)]
                old = rng.sample(sorted(self.rows.elements()), min(15, self.rows.total()))
                run.insert("sales", new)
                run.delete("sales", old)
                self.rows.update(new)
                self.rows.subtract(old)
                self.rows = +self.rows
                run.commit()
                run.checkpoint()
                assert run.read("paid").rows() == paid(self.rows)
                self.as_of.append(run.read("paid").rows())

    def damage(self, number: int, but: int | None = None) -> str:
        """Damage a file that a checkpoint has, and another has not."""
        checkpoints = Checkpoints(self.path)
        names = set(checkpoints.load(number).files)
        if but is not None:
            names -= set(checkpoints.load(but).files)
        name = sorted(names)[0]
        damage(checkpoints.storage, name, "middle byte flipped")
        return name


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop", seed=3)


def told(capsys: Told, *arguments: Any, code: int = 0) -> str:
    assert main(["checkpoints", *map(str, arguments)]) == code
    printed = capsys.readouterr()
    assert bool(printed.err) == (code == 2)
    return printed.out + printed.err


def as_json(capsys: Told, *arguments: Any, code: int = 0) -> Any:
    return json.loads(told(capsys, *arguments, "--json", code=code))


def test_checkpoints_are_listed(shop: Shop, capsys: Told) -> None:
    found = as_json(capsys, shop.path)
    assert [(each["number"], each["epoch"]) for each in found["checkpoints"]] == [(4, 3), (5, 4)]
    assert {each["version"] for each in found["checkpoints"]} == {rr.__version__}
    assert found["log"]["owner"] == 0
    assert found["unreferenced"] == []
    text = told(capsys, shop.path)
    for words in (
        "checkpoint",
        "up to 4",
        rr.__version__,
        found["log"]["identity"],
        "log: 2 records",
    ):
        assert words in text


def test_a_checkpoint_is_shown(shop: Shop, capsys: Told) -> None:
    found = as_json(capsys, shop.path, 5)
    assert found["outputs"]["paid"]["columns"] == ["item", "paid", "n"]
    state = next(s for s in found["states"] if s["name"] == found["outputs"]["paid"]["state"])
    assert (state["epochs"], state["shares"]) == ([3, 4], 2)
    assert state["columns"][0] == "item: int64 (key)"
    assert found["about"]["program"] == "shop"
    assert found["about"]["epoch"] == 4
    assert "sales" in found["program"]
    text = told(capsys, shop.path, 5)
    for words in ("checkpoint 5 of shop: epochs up to 4", "3 to 4", "dear:result", "[price > 50]"):
        assert words in text, text


def test_an_epoch_is_the_last_one_held_everywhere(tmp_path: Path, capsys: Told) -> None:
    """`status`, events, the list of checkpoints and the view of one name the same epoch; None where there is none."""
    flow = rr.Dataflow("shop")
    flow.output("paid", flow.input("sales", {"price": pl.Int64}))
    with flow.run(checkpoint=tmp_path, every=None, retain=9) as run:
        for epoch in (None, 0, 1):
            if epoch is not None:
                run.insert("sales", [(epoch,)])
                run.commit()
            number = run.checkpoint()
            assert run.epoch == run.status()["checkpoint"]["epoch"] == epoch
            assert [event["epoch"] for event in run.events("checkpoint")][-1] == epoch
            assert as_json(capsys, tmp_path, number)["about"]["epoch"] == epoch
            listed = {
                each["number"]: each["epoch"] for each in as_json(capsys, tmp_path)["checkpoints"]
            }
            assert listed[number] == epoch
            shown = "no epochs" if epoch is None else f"epochs up to {epoch}"
            assert f"checkpoint {number} of shop: {shown}" in told(capsys, tmp_path, number)


def test_rows_are_shown(shop: Shop, capsys: Told) -> None:
    for epoch in (2, 3, 4):
        found = as_json(capsys, shop.path, "--name", "paid", "--epoch", epoch, "--limit", 100)
        assert found["epoch"] == epoch
        assert sorted(map(tuple, found["rows"])) == shop.as_of[epoch]
    dear = sorted(row for row in shop.rows.items() if row[0][1] > 50)
    found = as_json(capsys, shop.path, 5, "--name", "dear:result", "--limit", 1000)
    assert found["columns"] == ["item", "price", "count"]
    assert sorted(((item, price), n) for item, price, n in found["rows"]) == dear
    text = told(capsys, shop.path, "--name", "paid", "--limit", 2)
    assert "2 rows of 'paid' as of epoch 4; there are more" in text


def test_verifying_names_the_file_and_what_is_whole(shop: Shop, capsys: Told) -> None:
    assert "nothing is damaged" in told(capsys, shop.path, "--verify")
    name = shop.damage(5, but=4)
    text = told(capsys, shop.path, "--verify", code=1)
    assert f"damaged: {name} (checkpoint 5): its checksum" in text
    assert "whole: checkpoint 4" in text
    assert "the newest whole checkpoint is 4" in text
    found = as_json(capsys, shop.path, "--verify", code=1)
    assert (found["whole"], found["newest_whole"]) == ([4], 4)
    assert found["damages"][0]["file"] == name
    assert "nothing is damaged" in told(capsys, shop.path, 4, "--verify")
    assert name in told(capsys, shop.path, 5, "--verify", code=1)


def test_going_back_as_advised(shop: Shop, capsys: Told) -> None:
    shop.damage(5, but=4)
    advice = " ".join(as_json(capsys, shop.path, "--verify", code=1)["advice"])
    assert "from_checkpoint=4" in advice
    with program().run(workers=3, checkpoint=shop.path, every=None, from_checkpoint=4) as run:
        assert run.read("paid").rows() == paid(shop.rows)
        run.insert("sales", [(1, 7)])
        run.commit()
        assert run.checkpoint() == 7  # 6 is 4 once more
        shop.rows[1, 7] += 1
        assert run.read("paid").rows() == paid(shop.rows)
    told(capsys, shop.path, 7, "--verify")
    assert rr.read_checkpoint(shop.path, "paid").rows() == paid(shop.rows)


def test_a_damaged_log_is_said(shop: Shop, capsys: Told) -> None:
    storage = open_storage(shop.path)
    name = storage.names("log")[-1]
    damage(storage, name, "truncated")
    text = told(capsys, shop.path, "--verify", code=1)
    assert f"damaged: {name}:" in text
    assert "whole: checkpoint 5" in text
    assert "the log is damaged" in text


def test_a_torn_manifest_is_listed(shop: Shop, capsys: Told) -> None:
    damage(open_storage(shop.path), manifest_name(5), "truncated")
    text = told(capsys, shop.path)
    assert "damaged" in text
    assert f"checkpoint 5 cannot be read: cannot read {manifest_name(5)}" in text
    assert manifest_name(5) in told(capsys, shop.path, 5, code=2)


def test_another_version_is_listed(
    shop: Shop, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.cli.checkpoints.__version__", "99.0")
    assert f"{rr.__version__} (this is 99.0)" in told(capsys, shop.path)


def test_errors_are_told_with_a_hint_and_no_traceback(
    shop: Shop, capsys: Told, tmp_path: Path
) -> None:
    for arguments, words in (
        ((tmp_path / "no",), "there is nothing at"),
        ((tmp_path / "no", "--verify"), "there is nothing at"),
        ((tmp_path / "no", "--name", "paid"), "there is nothing at"),
        ((shop.path, 77), "cannot find checkpoint 77: there are: 4, 5"),
        ((shop.path, "--name", "piad"), "there are: dear, paid"),
        ((shop.path, "--name", "piad"), "there are: "),
        (
            (shop.path, "--name", "paid", "--epoch", 1),
            "checkpoint 4: epochs 2 to 3; checkpoint 5",
        ),
    ):
        text = told(capsys, *arguments, code=2)
        assert words in text
        assert "Hint: " in text
        assert "Traceback" not in text
    assert not (tmp_path / "no").exists()
    for wrong in (["--epoch", "3"], ["--verify", "--name", "paid"], ["x"]):
        with pytest.raises(SystemExit) as ended:
            main(["checkpoints", shop.path, *wrong])
        assert ended.value.code == 2
        capsys.readouterr()


def test_the_version_is_that_of_the_package(capsys: Told) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"riverrun {version('riverrun')}\n"


def test_as_a_process(shop: Shop) -> None:
    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=120, check=False
        )

    done = run("-m", "riverrun", "checkpoints", shop.path, "--verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing is damaged" in done.stdout
    shop.damage(5, but=4)
    assert run("-m", "riverrun", "checkpoints", shop.path, "--verify").returncode == 1
    heavy = "{'polars', 'pyspark', 'numba', 'pyarrow', 'rich'} & set(sys.modules)"
    light = run(
        "-c", f"import sys; from riverrun.cli import main; main(['version']); print({heavy})"
    )
    assert light.stdout == f"riverrun {rr.__version__}\nset()\n"


def test_reading_what_a_damaged_file_holds_names_it(shop: Shop, capsys: Told) -> None:
    state = as_json(capsys, shop.path, 5)["outputs"]["paid"]["state"]
    checkpoints = Checkpoints(shop.path)
    files = [b.file.name for share in checkpoints.load(5).states[state] for b in share.blocks]
    damage(checkpoints.storage, files[0], "emptied")
    text = told(capsys, shop.path, 5, "--name", "paid", "--limit", 1000, code=2)
    assert files[0] in text
    assert "--verify says which checkpoint is whole" in text


def test_files_of_others_are_not_said_to_be_collected(shop: Shop, capsys: Told) -> None:
    path = Path(shop.path)
    for name in ("blocks/README", "manifests/.DS_Store", "parcels/notes.txt"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("mine")
    left = f"blocks/{1:012d}-{'0' * 32}.arrow"
    (path / left).write_text("left over")
    ours, others = (
        told(capsys, shop.path)
        .split("named by no checkpoint and no record: 1 files")[1]
        .split("not made by a run: ")
    )
    assert left in ours
    assert "the next one collects" in ours
    assert "README" in others
    assert "notes.txt" in others
    assert "none removes them" in others
    assert "collects" not in others
